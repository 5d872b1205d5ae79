"""CONTRIBUTING.md, the README, the Makefile and pytest's marks say the same of what is run when."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from maxent_grpo.config.compose import config_directory

ROOT = config_directory().parent


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_commands_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text("Makefile"), re.MULTILINE))
    for page in (
        "CONTRIBUTING.md",
        "README.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ):
        named = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", text(page), re.MULTILINE))
        assert named <= targets, page
    assert {"check", "test", "test-all"} <= set(re.findall(r"\| `make ([a-z-]+)`", text("CONTRIBUTING.md")))


def test_the_tiers_are_the_marks_that_pytest_knows() -> None:
    settings = tomllib.loads(text("pyproject.toml"))["tool"]["pytest"]["ini_options"]
    for mark in settings["markers"]:
        assert f"`{mark.split(':')[0]}`" in text("CONTRIBUTING.md")
    assert '-m "not slow"' in text("Makefile").split("\ntest:")[1].split("\ntest-all:")[0]
    assert "not slow" not in text("Makefile").split("\ntest-all:")[1].split("\ncheck:")[0]
    for page in ("CONTRIBUTING.md", "README.md"):
        assert "slow" in text(page)


def test_every_link_of_the_pages_leads_somewhere() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for page in [*pages, *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert f"\n## {version} " in text("CHANGELOG.md")
    assert Path(ROOT / "LICENSE").stat().st_size == 11358
