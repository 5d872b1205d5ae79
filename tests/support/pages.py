"""Pages of the documentation that are executed block by block, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from maxent_grpo.config.compose import config_directory

REPOSITORY = config_directory().parent
_BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "=== end of block\n"


@dataclass(frozen=True)
class Ran:
    """What executing the page left: its folder, and beside each expected output the one that came."""

    folder: Path
    outputs: list[tuple[str, str]]
    shown: list[str]
    """What the commands of the shell wrote."""


def execute(page: Path, folder: Path) -> Ran:
    """Files are written first to last; the Python blocks are one session, each command of the shell a process."""
    session, expected, commands = written(page, folder)
    printed = run([sys.executable, "-c", session], folder).split(_END)
    shown = [run(["bash", "-euc", text], folder) for text in commands]
    return Ran(folder, list(zip(expected, printed, strict=False)), shown)


def python_blocks(page: Path, folder: Path, printed: Callable[[str], str]) -> list[tuple[str, str]]:
    """Beside each expected output of the Python blocks what ``printed`` says of their text, the page's files being written."""
    session, expected, _ = written(page, folder)
    return list(zip(expected, printed(session).split(_END), strict=False))


def written(page: Path, folder: Path) -> tuple[str, list[str], list[str]]:
    """The session of the Python blocks, what each is to print, and the commands of the shell; files are written."""
    session, expected, commands = [], [], []
    for language, file, text in (match.groups() for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))):
        if file is not None:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif language == "python":
            session.append(f"{text}\nprint({_END[:-1]!r})\n")
            expected.append("")
        elif language == "text":
            expected[-1] = text
        elif language == "bash":
            commands.append(text)
        else:
            raise AssertionError(f"a block of {language} that nothing executes")
    return "".join(session), expected, commands


def run(command: list[str], folder: Path) -> str:
    """The output of a command that must succeed, run in the folder with this Python and this package."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
