r"""Text of a mathematical answer in one spelling: LaTeX, plain text and Unicode signs. Pure, linear, no parsing of mathematics.

What is unified means the same to every reader (``\dfrac`` and ``\frac``, a Unicode minus and ``-``, ``\left(`` and ``(``).
Commands that hide text (``\phantom``, comments) are left as they are, so that a reader which does not know them refuses.
"""

from __future__ import annotations

import re
from itertools import pairwise

FUNCTIONS = (
    *("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc"),
    *("log", "ln", "exp", "sqrt"),
)
"""Functions that plain text may name without a backslash."""
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_FULL_WIDTH = {0xFF01 + place: chr(0x21 + place) for place in range(0x5E)}
_SIGNS = str.maketrans(
    {
        **{chr(code): sign for code, sign in _FULL_WIDTH.items()},
        **dict.fromkeys("−–‐‑﹣", "-"),
        **dict.fromkeys("$€£¥₹", " "),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u3000\t\n\r", " "),
        "×": "\\times ",
        "⋅": "\\cdot ",
        "·": "\\cdot ",
        "÷": "/",
        "⁄": "/",
        "∕": "/",
        "π": "\\pi ",
        "∞": "\\infty ",
        "√": "\\sqrt ",
        "°": "^\\circ ",
        "∪": "\\cup ",
        "∩": "\\cap ",
        "∈": "\\in ",
        "≤": "\\le ",
        "⩽": "\\le ",
        "≥": "\\ge ",
        "⩾": "\\ge ",
        "≠": "\\ne ",
        "±": "\\pm ",
        "∅": "\\emptyset ",
        "½": " 1/2",
        "⅓": " 1/3",
        "⅔": " 2/3",
        "¼": " 1/4",
        "¾": " 3/4",
        "％": "%",
        "，": ", ",
    }
)
_REPLACED = {
    "{,}": ",",
    ",\\!": ",",
    "\\!": "",
    "\\%": "%",
    "\\quad": " ",
    "\\qquad": " ",
    "\\displaystyle": "",
    "\\textstyle": "",
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    "\\(": "",
    "\\)": "",
    "\\[": "",
    "\\]": "",
    "~": " ",
    "\\langle": "(",
    "\\rangle": ")",
    "\\lvert": "|",
    "\\rvert": "|",
    "\\vert": "|",
    "**": "^",
    "<=": "\\le ",
    ">=": "\\ge ",
}
_SPELLINGS = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("leq", "leqslant"), "le"),
    **dict.fromkeys(("geq", "geqslant"), "ge"),
    **dict.fromkeys(("neq",), "ne"),
    **dict.fromkeys(("varnothing",), "emptyset"),
    **dict.fromkeys(("degree",), "circ"),
    **dict.fromkeys(("left", "right", "bigl", "bigr", "Bigl", "Bigr", "big", "Big"), ""),
    **dict.fromkeys(
        ("textbf", "textit", "textrm", "textnormal", "mathrm", "mathbf", "mathit", "mathsf", "mbox"), "text"
    ),
    **dict.fromkeys(("operatorname", "boldsymbol"), "text"),
}
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_DIGIT_GROUP = re.compile(r"(?<=\d)\\[,;: ](?=\d{3}(?!\d))")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z{}%,])")
_SPACE = re.compile(r"\\[,;:]|\\ ")
_TEXT = re.compile(r"\\text\s*\{([^{}\\]*)\}")
_BARE_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({'|'.join(FUNCTIONS)})(?![A-Za-z])")
_BARE_CONSTANT = re.compile(r"(?<![\\A-Za-z])(?:(pi)|(infinity|inf|oo))(?![A-Za-z])")
_POWERS = re.compile(f"[{_SUPERSCRIPTS}]+")
_CONNECTIVE = re.compile(
    r"(?<![A-Za-z\\])\s*,?\s*(?:and|or)(?![A-Za-z])|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\\(?:lor|vee)(?![A-Za-z])"
)


def normalised(text: str) -> str:
    """The answer's text in one spelling, without currency signs, layout commands and a final full stop."""
    text = text.translate(_SIGNS)
    text = _POWERS.sub(lambda match: "^{" + "".join(str(_SUPERSCRIPTS.index(sign)) for sign in match[0]) + "}", text)
    if "\\begin" in text:
        text = text.replace("\\\\", "\\cr ")
    text = _DOUBLED.sub(lambda match: "\\", text)
    text = _DIGIT_GROUP.sub("", text)
    for command, replacement in _REPLACED.items():
        text = text.replace(command, replacement)
    text = _SPACE.sub(" ", text)
    text = _COMMAND.sub(lambda match: _spelling(match[1]), text)
    text = _CONNECTIVE.sub(", ", text)
    text = _TEXT.sub(lambda match: _unwrapped(match[1]), text)
    text = _BARE_FUNCTION.sub(r"\\\1", text)
    text = _BARE_CONSTANT.sub(lambda match: "\\pi " if match[1] else "\\infty ", text)
    return " ".join(text.split()).rstrip(".").strip()


def split_at(text: str, separators: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The parts of a text between separators that stand outside all brackets, and the separators in their order.

    Round and square brackets close one another, as half-open intervals need. A separator that is a command ends where
    its name does.
    """
    parts, found, start, depth, place = [], [], 0, 0, 0
    while place < len(text):
        separator = "" if depth else _separator(text, place, separators)
        if separator:
            parts.append(text[start:place].strip())
            found.append(separator)
            place += len(separator)
            start = place
            continue
        depth += _turn(text, place)
        place += 2 if text[place] == "\\" else 1
    return [*parts, text[start:].strip()], found


def wrapped(text: str) -> bool:
    """Whether the first character or escaped brace opens a bracket that the last one, and none before it, closes."""
    depth, place = 0, 0
    while place < len(text):
        depth += _turn(text, place)
        place += 2 if text[place] == "\\" else 1
        if depth <= 0:
            return depth == 0 and place > 1 and place >= len(text)
    return False


def balanced(text: str) -> bool:
    """Whether every bracket is closed and none closes what was not opened; round and square ones close one another."""
    depths, place = [0, 0], 0
    while place < len(text):
        kind = 1 if text[place] in "{}" else 0
        depths[kind] += _turn(text, place)
        if min(depths) < 0:
            return False
        place += 2 if text[place] == "\\" else 1
    return depths == [0, 0]


def _turn(text: str, place: int) -> int:
    """1 where a bracket opens, -1 where one closes."""
    sign = text[place : place + 2] if text[place] == "\\" else text[place]
    return (sign in ("(", "[", "{", "\\{")) - (sign in (")", "]", "}", "\\}"))


def _separator(text: str, place: int, separators: tuple[str, ...]) -> str:
    for separator in separators:
        if text.startswith(separator, place):
            following = text[place + len(separator) : place + len(separator) + 1]
            if separator[0] != "\\" or not (following.isalpha() and following.isascii()):
                return separator
    return ""


def _spelling(command: str) -> str:
    new = _SPELLINGS.get(command, command)
    return "\\" + new if new else ""


def _unwrapped(content: str) -> str:
    r"""What stands for ``\text{content}``: the content itself unless it holds words."""
    bare = content.strip()
    if bare in FUNCTIONS:
        return "\\" + bare + " "
    return (
        "\\text{" + content + "}"
        if any(left.isalpha() and right.isalpha() for left, right in pairwise(bare))
        else content
    )
