"""Templates of questions: text with the names of columns in braces. A template can name columns and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter

QUESTION = "prompt"
"""The name that stands for the question itself."""
PLAIN_NAME = re.compile(r"\w[\w -]*")


def fields_of(template: str) -> list[str]:
    """The names in a template's braces, each once, in order.

    Raises:
        ValueError: a brace stands alone, or holds anything but a plain name: no attribute, index, conversion or format.
    """
    names: dict[str, None] = {}
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if not PLAIN_NAME.fullmatch(name) or form or conversion:
            written = "{" + name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
            raise ValueError(f"{written} is not the plain name of a column")
        names[name] = None
    return list(names)


def filled(template: str, values: Mapping[str, object]) -> str:
    """The template with each name replaced by its value as text; braces in values stay as they are.

    Raises:
        KeyError: a name has no value.
    """
    return "".join(
        text + ("" if name is None else str(values[name])) for text, name, _, _ in Formatter().parse(template)
    )
