"""Settings as words of a command line: what a shell and Hydra both take as they were meant."""

from __future__ import annotations

import re
import shlex

_PLAIN = re.compile(r"[\w./:+-]+")
"""What neither a shell nor Hydra reads as anything else."""


def quoted(text: str) -> str:
    """A text as a value on Hydra's command line, where backslashes count only before a quotation mark."""
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return f'"{escaped}"'


def setting_word(setting: str, value: str) -> str:
    """`setting=value` as one word for a shell, quoted where the value needs it: a sweep's folders contain '=' and ','."""
    return f"{setting}={value}" if _PLAIN.fullmatch(value) else shlex.quote(f"{setting}={quoted(value)}")
