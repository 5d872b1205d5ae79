"""The default task: complete a proper colouring of a small graph; every right answer is known.

A problem is a graph on ``num_vertices`` vertices with a planted colouring in R, G and B. Each pair of vertices of different
planted colour is an edge with probability ``edge_probability``. The last ``num_hidden`` vertices lose their colour (random
graphs have no first or last vertex, so hiding others would only number them differently). The answer names the hidden
colours in vertex order. A problem is kept when it has ``min_modes`` to ``max_modes`` right answers.

Everything is a function of the settings: random numbers come from ``random.Random.random`` seeded with text, the one
sequence Python promises to keep, and nothing depends on hash order.
"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from maxent_grpo.config.data import ColoringDataConfig
from maxent_grpo.rewards.coloring import HIDDEN, ColoringSpec, grade_coloring, parse_spec
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.tasks.base import Demonstration, TaskRow
from maxent_grpo.tasks.generated import (
    GeneratedProblem,
    draw_distinct,
    refuse_impossible,
    train_and_held_out,
)

LETTERS = "RGB"
MAX_VERTICES = 12
NO_EDGE = "."
# 66 symbols, one for each pair of MAX_VERTICES vertices; none is a colour, and none can begin a special token
PAIR_SYMBOLS = string.ascii_lowercase + string.digits + "ACDEFHIJKLMNOPQSTUVWXYZ" + "!#$%&*+"


@dataclass(frozen=True, slots=True)
class ColoringTask:
    """Graph-colouring completion, built by ``build_coloring``."""

    config: ColoringDataConfig
    train_rows: list[TaskRow]
    eval_rows: list[TaskRow]
    name: str = "coloring"
    answer_alphabet: str | None = LETTERS

    def grade(self, completion: str, answer: str) -> Grade:
        """See ``grade_coloring``."""
        return grade_coloring(completion, answer)

    @property
    def sent_grader(self) -> Callable[[str, str], Grade]:
        """The grader by itself, for other processes."""
        return grade_coloring

    def count_answers(self, answer: str) -> int:
        """Letters to the power of hidden vertices."""
        spec = parse_spec(answer)
        return len(spec.letters) ** len(spec.hidden)

    def list_answers(self, answer: str) -> list[str]:
        """Every string of one letter per hidden vertex, in lexicographic order."""
        spec = parse_spec(answer)
        return ["".join(letters) for letters in itertools.product(sorted(spec.letters), repeat=len(spec.hidden))]

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """``num`` solved problems, none of them held out; they may also occur among the training problems.

        Raises:
            DataError: the space holds fewer than ``num``.
        """
        stream = f"demonstrations/{seed}"
        problems = _draw_problems(self.config, stream, num, {row.row_id for row in self.eval_rows})
        return [problem.demonstration(skew) for problem in problems]


def build_coloring(config: ColoringDataConfig) -> ColoringTask:
    """Generate the problems of ``config``, exactly and deterministically from ``config.problem_seed``.

    The held-out problems do not depend on how many training problems are asked for.

    Raises:
        DataError: the settings describe no problem, or fewer different ones than asked for.
    """
    _refuse_impossible(config)
    problems = partial(_draw_problems, config)
    return ColoringTask(config, *train_and_held_out(problems, config.num_train, config.num_eval))


def prompt_text(spec: ColoringSpec) -> str:
    """The question as the model reads it: the visible colours, which the answer continues, then the edges.

    The k-th pair of vertices, in the order (0,1), (0,2), ..., (n-2,n-1), is shown by the k-th of the symbols a, b, c, ...
    where it is an edge and by ``.`` where it is none. Thus everything stands at a position of its own, and a symbol alone
    says which edge it is: a small model learns to read this far sooner than bare bits. For the path 0-1-2 whose vertex 0 is
    red: ``Ra.c``; right answers are ``BG``, ``BR``, ``GB`` and ``GR``.
    """
    edges = set(spec.edges)
    pairs = list(itertools.combinations(range(len(spec.colors)), 2))
    symbols = PAIR_SYMBOLS[: len(pairs)]
    return spec.colors.rstrip(HIDDEN) + "".join(
        symbol if pair in edges else NO_EDGE for pair, symbol in zip(pairs, symbols, strict=True)
    )


def right_answers(spec: ColoringSpec, limit: int | None = None) -> list[str]:
    """All right answers in lexicographic order, or the first ``limit`` of them."""
    neighbours: dict[int, list[int]] = {vertex: [] for vertex in range(len(spec.colors))}
    for left, right in spec.edges:
        neighbours[left].append(right)
        neighbours[right].append(left)
    colors, hidden, letters = list(spec.colors), spec.hidden, sorted(spec.letters)

    def extend(position: int) -> Iterator[str]:
        if position == len(hidden):
            yield "".join(colors[vertex] for vertex in hidden)
            return
        vertex = hidden[position]
        taken = {colors[neighbour] for neighbour in neighbours[vertex]}
        for letter in letters:
            if letter not in taken:
                colors[vertex] = letter
                yield from extend(position + 1)
        colors[vertex] = HIDDEN

    return list(itertools.islice(extend(0), limit))


def _refuse_impossible(config: ColoringDataConfig) -> None:
    """Raise DataError naming the first setting that leaves no problem to generate."""
    most = len(LETTERS) ** config.num_hidden
    checks = [
        (
            2 <= config.num_vertices <= MAX_VERTICES,
            f"data.num_vertices={config.num_vertices} is not in 2..{MAX_VERTICES}",
        ),
        (
            1 <= config.num_hidden <= config.num_vertices,
            f"data.num_hidden={config.num_hidden} is not in 1..{config.num_vertices}, the number of vertices",
        ),
        (0 <= config.edge_probability <= 1, f"data.edge_probability={config.edge_probability} is not a probability"),
        (
            1 <= config.min_modes <= config.max_modes,
            f"data.min_modes={config.min_modes} and data.max_modes={config.max_modes} are not 1 <= min_modes <= max_modes",
        ),
        (
            config.min_modes <= most,
            f"data.min_modes={config.min_modes} exceeds the {most} colourings of {config.num_hidden} hidden vertices",
        ),
        (config.num_train >= 1, f"data.num_train={config.num_train} leaves nothing to train on"),
        (config.num_eval >= 0, f"data.num_eval={config.num_eval} is negative"),
    ]
    refuse_impossible(checks, "colouring")


def _draw_problems(
    config: ColoringDataConfig, stream: str, num: int, exclude: Collection[str]
) -> list[GeneratedProblem]:
    """``num`` different problems outside ``exclude``, in the order in which the named random stream yields them."""

    def exhausted(found: int) -> str:
        return (
            f"asked for {num} different colouring problems ({stream}) but only {found} exist or can be found with "
            f"num_vertices={config.num_vertices}, num_hidden={config.num_hidden}, edge_probability="
            f"{config.edge_probability} and {config.min_modes} to {config.max_modes} right answers "
            f"({len(exclude)} held out). Ask for fewer problems or widen these settings."
        )

    return draw_distinct(
        num,
        lambda rng: _draw_problem(rng, config),
        stream=f"coloring/{config.problem_seed}/{stream}",
        exclude=exclude,
        exhausted=exhausted,
    )


def _draw_problem(rng: random.Random, config: ColoringDataConfig) -> GeneratedProblem | None:
    """One random problem, or None when its number of right answers is outside the wanted range."""
    num_vertices = config.num_vertices
    planted = [LETTERS[int(rng.random() * len(LETTERS))] for _ in range(num_vertices)]
    edges = tuple(
        (left, right)
        for left, right in itertools.combinations(range(num_vertices), 2)
        if planted[left] != planted[right] and rng.random() < config.edge_probability
    )
    colors = "".join(planted[: num_vertices - config.num_hidden]) + HIDDEN * config.num_hidden
    spec = ColoringSpec(edges=edges, colors=colors, letters=LETTERS)
    answers = right_answers(spec, limit=config.max_modes + 1)
    if not config.min_modes <= len(answers) <= config.max_modes:
        return None
    return GeneratedProblem("coloring", prompt_text(spec), spec.to_json(), tuple(answers))
