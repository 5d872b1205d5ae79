"""Countdown: use every number once, with + - * /, to reach the target; every really different solution is known.

A problem is three or four numbers, which may repeat, and a target. Its right answers are counted as modes, expressions up to
commutativity, associativity and sign (``rewards/expressions.py``), so that ``a+b-c`` in all its bracketings is one. A problem is
kept when it has ``min_modes`` to ``max_modes`` of them.

Everything is a function of the settings: random numbers come from ``random.Random.random`` seeded with text, the one
sequence Python promises to keep, and nothing depends on hash order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from maxent_grpo.config.data import CountdownDataConfig
from maxent_grpo.rewards.countdown import ALPHABET, LARGEST_NUMBER, CountdownSpec, grade_countdown
from maxent_grpo.rewards.expressions import solutions
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.tasks.base import Demonstration, TaskRow
from maxent_grpo.tasks.generated import (
    GeneratedProblem,
    draw_distinct,
    refuse_impossible,
    train_and_held_out,
)


@dataclass(frozen=True, slots=True)
class CountdownTask:
    """Countdown problems, built by ``build_countdown``."""

    config: CountdownDataConfig
    train_rows: list[TaskRow]
    eval_rows: list[TaskRow]
    name: str = "countdown"
    answer_alphabet: str | None = ALPHABET

    def grade(self, completion: str, answer: str) -> Grade:
        """See ``grade_expression``."""
        return grade_countdown(completion, answer)

    @property
    def sent_grader(self) -> Callable[[str, str], Grade]:
        """The grader by itself, for other processes."""
        return grade_countdown

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """``num`` solved problems, none of them held out; they may also occur among the training problems.

        An answer is the canonical text of its mode. Problems with fewer than ``min_modes`` solutions, down to one, are
        demonstrated too: they teach arithmetic as well, and there are several times as many.

        Raises:
            DataError: the space holds fewer than ``num``.
        """
        stream = f"demonstrations/{seed}"
        problems = _draw_problems(self.config, stream, num, {row.row_id for row in self.eval_rows}, min_modes=1)
        return [problem.demonstration(skew) for problem in problems]


def build_countdown(config: CountdownDataConfig) -> CountdownTask:
    """Generate the problems of ``config``, exactly and deterministically from ``config.problem_seed``.

    The held-out problems do not depend on how many training problems are asked for.

    Raises:
        DataError: the settings describe no problem, or fewer different ones than asked for.
    """
    _refuse_impossible(config)
    problems = partial(_draw_problems, config)
    return CountdownTask(config, *train_and_held_out(problems, config.num_train, config.num_eval))


def prompt_text(spec: CountdownSpec) -> str:
    """The question as the model reads it: the numbers in increasing order, then the target, as in ``3,4,5=35``."""
    return f"{','.join(map(str, spec.numbers))}={spec.target}"


def _refuse_impossible(config: CountdownDataConfig) -> None:
    """Raise DataError naming the first setting that leaves no problem to generate."""
    checks = [
        (3 <= config.num_numbers <= 4, f"data.num_numbers={config.num_numbers} is neither 3 nor 4"),
        (
            1 <= config.min_number <= config.max_number <= LARGEST_NUMBER,
            f"data.min_number={config.min_number} and data.max_number={config.max_number} are not 1 <= min_number <= "
            f"max_number <= {LARGEST_NUMBER}",
        ),
        (
            1 <= config.min_target <= config.max_target,
            f"data.min_target={config.min_target} and data.max_target={config.max_target} are not 1 <= min_target <= "
            f"max_target",
        ),
        (
            1 <= config.min_modes <= config.max_modes,
            f"data.min_modes={config.min_modes} and data.max_modes={config.max_modes} are not 1 <= min_modes <= max_modes",
        ),
        (config.num_train >= 1, f"data.num_train={config.num_train} leaves nothing to train on"),
        (config.num_eval >= 0, f"data.num_eval={config.num_eval} is negative"),
    ]
    refuse_impossible(checks, "countdown")


def _draw_problems(
    config: CountdownDataConfig, stream: str, num: int, exclude: Collection[str], min_modes: int | None = None
) -> list[GeneratedProblem]:
    """``num`` different problems outside ``exclude``, with at least ``min_modes`` solutions (None: as configured)."""
    fewest = config.min_modes if min_modes is None else min_modes

    def exhausted(found: int) -> str:
        wanted = "model.warm_start.num_problems" if stream.startswith("demonstrations") else f"data.num_{stream}"
        return (
            f"{wanted}={num} asks for more different countdown problems than there are: {found} with "
            f"{config.num_numbers} numbers from {config.min_number} to {config.max_number}, a target from "
            f"{config.min_target} to {config.max_target} and {fewest} to {config.max_modes} solutions "
            f"({len(exclude)} held out). Ask for fewer, or widen data.max_number or data.max_target."
        )

    return draw_distinct(
        num,
        lambda rng: _draw_problem(rng, config, fewest),
        stream=f"countdown/{config.problem_seed}/{stream}",
        exclude=exclude,
        exhausted=exhausted,
    )


def _draw_problem(rng: random.Random, config: CountdownDataConfig, min_modes: int) -> GeneratedProblem | None:
    """One random problem, or None when no target of the drawn numbers has a wanted number of solutions."""
    span = config.max_number - config.min_number + 1
    numbers = tuple(sorted(config.min_number + int(rng.random() * span) for _ in range(config.num_numbers)))
    wanted = [
        (target, answers)
        for target, answers in solutions(numbers, config.max_target).items()
        if target >= config.min_target and min_modes <= len(answers) <= config.max_modes
    ]
    choice = rng.random()
    if not wanted:
        return None
    target, answers = wanted[int(choice * len(wanted))]
    spec = CountdownSpec(numbers, target)
    parts = {"numbers": list(spec.numbers), "target": spec.target}
    return GeneratedProblem("countdown", prompt_text(spec), spec.to_json(), answers, parts)
