"""docs/methods.md has a complete sheet of every option of `scoring`, and what it states of each is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest

from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.declared import options, shown
from maxent_grpo.config.scoring import ScoringConfig

REPOSITORY = config_directory().parent
FIELDS = ("For", "Formula", "Sets", "Source", "Tests", "Verified")
OPTIONS = options("scoring")


@cache
def sheets() -> dict[str, dict[str, str]]:
    """Option to field to text, in the order of the page."""
    page = (REPOSITORY / "docs" / "methods.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## `(\w+)`$", page, flags=re.MULTILINE)
    return {
        name: dict(re.findall(r"^- \*\*(\w+):\*\* (.+)$", text, flags=re.MULTILINE))
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


def settings(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in fields(node):
        value = getattr(node, field.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", shown(value)


def test_every_option_has_one_sheet_and_no_sheet_is_of_nothing() -> None:
    page = (REPOSITORY / "docs" / "methods.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## `(\w+)`$", page, flags=re.MULTILINE)) == sorted(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_sheet_is_complete_and_states_the_settings_of_its_option(name: str) -> None:
    sheet = sheets()[name]
    assert tuple(sheet) == FIELDS
    assert all(len(text) > 3 for text in sheet.values())
    base = dict(settings(ScoringConfig()))
    changed = [f"{path}={value}" for path, value in settings(OPTIONS[name]()) if base[path] != value]
    assert re.findall(r"`([^`]+)`", sheet["Sets"]) == changed
    assert changed or sheet["Sets"] == "nothing."


@pytest.mark.parametrize("name", OPTIONS)
def test_the_tests_that_a_sheet_names_exist(name: str) -> None:
    named = re.findall(r"`([^`]+)`", sheets()[name]["Tests"])
    assert named
    for test in named:
        path, _, function = test.partition("::")
        assert re.search(rf"^def {function}\(", (REPOSITORY / path).read_text(encoding="utf-8"), flags=re.MULTILINE), (
            test
        )


@pytest.mark.parametrize("name", OPTIONS)
def test_a_source_on_the_sheet_is_the_one_of_the_options_own_description(name: str) -> None:
    described = re.findall(r"arXiv (\d{4}\.\d{5})", OPTIONS[name].__doc__ or "")
    assert set(described) <= set(re.findall(r"abs/(\d{4}\.\d{5})", sheets()[name]["Source"]))
