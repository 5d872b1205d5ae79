"""Countdown: use every number once, with + - * /, to reach the target; every really different solution is known.

A problem is three or four numbers, which may repeat, and a target. Its right answers are counted as modes, expressions up to
commutativity, associativity and sign (``rewards/expressions.py``), so that ``a+b-c`` in all its bracketings is one. A problem is
kept when it has ``min_modes`` to ``max_modes`` of them.

Everything is a function of the settings: random numbers come from ``random.Random.random`` seeded with text, the one
sequence Python promises to keep, and nothing depends on hash order.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from maxent_grpo.config.data import CountdownDataConfig
from maxent_grpo.errors import DataError
from maxent_grpo.rewards.countdown import ALPHABET, LARGEST_NUMBER, CountdownSpec, grade_countdown
from maxent_grpo.rewards.expressions import solutions
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.tasks.base import Demonstration, TaskRow, rank_weights

MAX_FRUITLESS_DRAWS = 20_000
"""Consecutive draws without a new problem after which the space counts as exhausted."""


@dataclass(frozen=True, slots=True)
class CountdownProblem:
    """Numbers, a target, and the canonical texts of all solutions in lexicographic order."""

    spec: CountdownSpec
    answers: tuple[str, ...]

    @property
    def row_id(self) -> str:
        """Hash of the question, which says everything about the problem."""
        return "countdown-" + hashlib.sha256(prompt_text(self.spec).encode()).hexdigest()[:16]


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

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """``num`` solved problems, none of them held out; they may also occur among the training problems.

        An answer is the canonical text of its mode. Problems with fewer than ``min_modes`` solutions, down to one, are
        demonstrated too: they teach arithmetic as well, and there are several times as many.

        Raises:
            DataError: the space holds fewer than ``num``.
        """
        held_out = {row.row_id for row in self.eval_rows}
        stream = f"demonstrations/{seed}"
        problems = _draw_problems(self.config, num, stream=stream, min_modes=1, exclude=held_out)
        return [
            Demonstration(problem.row_id, _messages(problem), problem.answers, rank_weights(len(problem.answers), skew))
            for problem in problems
        ]


def build_countdown(config: CountdownDataConfig) -> CountdownTask:
    """Generate the problems of ``config``, exactly and deterministically from ``config.problem_seed``.

    The held-out problems do not depend on how many training problems are asked for.

    Raises:
        DataError: the settings describe no problem, or fewer different ones than asked for.
    """
    _refuse_impossible(config)
    held_out = _draw_problems(config, config.num_eval, stream="eval", min_modes=config.min_modes, exclude=set())
    excluded = {problem.row_id for problem in held_out}
    train = _draw_problems(config, config.num_train, stream="train", min_modes=config.min_modes, exclude=excluded)
    return CountdownTask(config, [_row(problem) for problem in train], [_row(problem) for problem in held_out])


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
    for holds, problem in checks:
        if not holds:
            raise DataError(f"{problem}: no countdown problem can be generated. Change that setting.")


def _draw_problems(
    config: CountdownDataConfig, num: int, *, stream: str, min_modes: int, exclude: set[str]
) -> list[CountdownProblem]:
    """``num`` different problems outside ``exclude``, in the order in which the named random stream yields them."""
    rng = random.Random(f"countdown/{config.problem_seed}/{stream}")
    problems: dict[str, CountdownProblem] = {}
    fruitless = 0
    while len(problems) < num:
        problem = _draw_problem(rng, config, min_modes)
        row_id = problem.row_id if problem is not None else None
        if problem is not None and row_id is not None and row_id not in exclude and row_id not in problems:
            problems[row_id] = problem
            fruitless = 0
            continue
        fruitless += 1
        if fruitless > MAX_FRUITLESS_DRAWS:
            wanted = "model.warm_start.num_problems" if stream.startswith("demonstrations") else f"data.num_{stream}"
            raise DataError(
                f"{wanted}={num} asks for more different countdown problems than there are: {len(problems)} with "
                f"{config.num_numbers} numbers from {config.min_number} to {config.max_number}, a target from "
                f"{config.min_target} to {config.max_target} and {min_modes} to {config.max_modes} solutions "
                f"({len(exclude)} held out). Ask for fewer, or widen data.max_number or data.max_target."
            )
    return list(problems.values())


def _draw_problem(rng: random.Random, config: CountdownDataConfig, min_modes: int) -> CountdownProblem | None:
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
    return CountdownProblem(CountdownSpec(numbers, target), answers)


def _messages(problem: CountdownProblem) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt_text(problem.spec)}]


def _row(problem: CountdownProblem) -> TaskRow:
    columns = {"num_modes": len(problem.answers), "modes": list(problem.answers)}
    return TaskRow(problem.row_id, _messages(problem), problem.spec.to_json(), columns)
