"""Grading of a completed graph colouring. Pure text in, verdict out; nothing in a completion can raise or take long."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.grade import Grade

ASCII_WHITESPACE = " \t\n\r\f\v"
WHITESPACE_ALLOWANCE = 64
"""A completion may be this many characters longer than the answer before it is refused unread."""
HIDDEN = "?"


@dataclass(frozen=True, slots=True)
class ColoringSpec:
    """A verifier: the graph, the colours shown (``?`` where hidden) and the letters that stand for colours."""

    edges: tuple[tuple[int, int], ...]
    colors: str
    letters: str

    @property
    def hidden(self) -> tuple[int, ...]:
        """Hidden vertices in increasing order; answer character i colours the i-th."""
        return tuple(vertex for vertex, letter in enumerate(self.colors) if letter == HIDDEN)

    def to_json(self) -> str:
        """The text form that ``parse_spec`` reads; equal specs give equal text."""
        fields = {
            "edges": [list(edge) for edge in self.edges],
            "visible": {str(vertex): letter for vertex, letter in enumerate(self.colors) if letter != HIDDEN},
            "hidden": list(self.hidden),
            "num_colors": len(self.letters),
            "letters": self.letters,
        }
        return json.dumps(fields, separators=(",", ":"))

    def accepts(self, answer: str) -> bool:
        """Whether filling in ``answer`` (one known letter per hidden vertex) leaves no edge with two equal ends."""
        colors = list(self.colors)
        for vertex, letter in zip(self.hidden, answer, strict=True):
            colors[vertex] = letter
        return all(colors[left] != colors[right] for left, right in self.edges)


@lru_cache(maxsize=8192)
def parse_spec(answer: str) -> ColoringSpec:
    """Read a verifier spec.

    Raises:
        DataError: the spec is not JSON of the documented form, or contradicts itself. That is a fault of the dataset,
            never of a completion, so it is not graded as a wrong answer.
    """
    try:
        fields = json.loads(answer)
        edges = tuple((_vertex(left), _vertex(right)) for left, right in fields["edges"])
        visible = {int(vertex): letter for vertex, letter in fields["visible"].items()}
        hidden = [_vertex(vertex) for vertex in fields["hidden"]]
        num_colors, letters = _vertex(fields["num_colors"]), fields["letters"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"colouring answer {answer[:200]!r} is not a verifier spec ({type(error).__name__}: {error}); completions cannot "
            f"be graded against it. Rebuild the dataset: it needs edges, visible, hidden, num_colors and letters."
        ) from error
    problem = _contradiction(edges, visible, hidden, num_colors, letters)
    if problem:
        raise DataError(f"colouring answer {answer[:200]!r} contradicts itself: {problem}. Rebuild the dataset.")
    colors = "".join(visible.get(vertex, HIDDEN) for vertex in range(len(visible) + len(hidden)))
    return ColoringSpec(edges=edges, colors=colors, letters=letters)


def grade_coloring(completion: str, answer: str) -> Grade:
    """Grade ``completion`` against the verifier spec ``answer``: reward 1 for a proper colouring, else 0.

    The completion is one letter per hidden vertex, in vertex order, in upper case. ASCII whitespace around it is ignored;
    inside it, or anything else before or after, is not. The key of an answer is its letters.

    Reasons: ``too_long`` (refused unread), ``empty``, ``unknown_symbol``, ``wrong_length``; a well-formed wrong colouring has
    none.

    Raises:
        DataError: the spec is broken.
    """
    spec = parse_spec(answer)
    num_hidden = len(spec.hidden)
    if len(completion) > num_hidden + WHITESPACE_ALLOWANCE:
        return Grade(0.0, None, "too_long")
    text = completion.strip(ASCII_WHITESPACE)
    if not text:
        return Grade(0.0, None, "empty")
    if any(character not in spec.letters for character in text):
        return Grade(0.0, None, "unknown_symbol")
    if len(text) != num_hidden:
        return Grade(0.0, None, "wrong_length")
    return Grade(1.0, text, "", key=text) if spec.accepts(text) else Grade(0.0, None, "", key=text)


def _vertex(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _contradiction(
    edges: tuple[tuple[int, int], ...], visible: dict[int, object], hidden: list[int], num_colors: int, letters: object
) -> str:
    """What is wrong with a spec whose fields have the right shape; empty when nothing is."""
    if not isinstance(letters, str) or len(set(letters)) != len(letters) or len(letters) != num_colors:
        return f"letters {letters!r} are not {num_colors} different characters"
    if any(not letter.isprintable() or letter.isspace() or letter == HIDDEN for letter in letters):
        return f"letters {letters!r} hold a blank or {HIDDEN!r}"
    num_vertices = len(visible) + len(hidden)
    if not hidden or sorted([*visible, *hidden]) != list(range(num_vertices)) or hidden != sorted(hidden):
        return f"visible {sorted(visible)} and hidden {hidden} do not divide vertices 0..{num_vertices - 1}"
    if any(not isinstance(color, str) or len(color) != 1 or color not in letters for color in visible.values()):
        return f"visible colours {list(visible.values())} are not among {letters!r}"
    if any(not 0 <= left < right < num_vertices for left, right in edges) or len(set(edges)) != len(edges):
        return f"edges {list(edges)} are not distinct pairs left < right below {num_vertices}"
    shown: dict[int, str] = {vertex: cast(str, color) for vertex, color in visible.items()}
    if any(left in shown and shown.get(left) == shown.get(right) for left, right in edges):
        return "an edge joins two visible vertices of one colour, so no answer is right"
    return ""
