"""Tasks of the reasoning-gym library: its problems, and its own graders as the reward.

A problem is addressed by its family, a seed and an index, from which the library makes it again exactly; that address is the
row's answer, and a grader looks the problem up by it. Some of the library's graders hand the answer to Python's or SymPy's evaluator.
Those families see an answer only if it is a plain literal or a plain formula (``rewards/plain.py``); no other text is evaluated.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from maxent_grpo.config.data import ReasoningGymDataConfig
from maxent_grpo.errors import DataError
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.limited_call import limited_call
from maxent_grpo.rewards.plain import is_plain_formula, is_plain_literal
from maxent_grpo.tasks.base import Demonstration, TaskRow
from maxent_grpo.tasks.mixture import apportioned

LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Families whose graders evaluate an answer that is not what they expect as a Python literal."""
FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Families whose graders evaluate an answer as a formula."""
UNGRADED = frozenset({"codeio"})
"""Families that run generated programs; not offered."""
MAX_FRUITLESS_DRAWS = 2_000
"""Consecutive draws without a new problem after which a family counts as exhausted."""
FULL_MARKS = 1.0
KEPT_PROBLEMS = 8_192
"""Problems, and scores, that are kept in memory."""


class ReasoningGymTask:
    """Problems of one family of reasoning-gym, or of several in given shares."""

    name = "reasoning_gym"
    answer_alphabet: str | None = None

    def __init__(self, config: ReasoningGymDataConfig) -> None:
        """Generate the problems of ``config``, deterministically from ``config.problem_seed``.

        The held-out problems do not depend on how many training problems are asked for.

        Raises:
            DataError: a family is unknown or does not take its settings, or has fewer different problems than asked for.
        """
        self._families = {name: _checked_settings(name, config) for name in config.tasks}
        self._problem = lru_cache(maxsize=KEPT_PROBLEMS)(self._made)
        self._score = lru_cache(maxsize=KEPT_PROBLEMS)(self._scored)  # completions of a group often say the same
        self._datasets: dict[tuple[str, int], ProceduralDataset] = {}
        """By family and seed. Some families plan all of a dataset's problems when it is made, so that its size is what is needed."""
        self.eval_rows = self._rows(config, "eval", config.num_eval, frozenset())
        held_out = frozenset(row.messages[-1]["content"] for row in self.eval_rows)
        self.train_rows = self._rows(config, "train", config.num_train, held_out)

    def grade(self, completion: str, answer: str) -> Grade:
        """The library's own score, between 0 and 1, of a completion; white space around it does not count."""
        spec = json.loads(answer)
        family, text = spec["task"], completion.strip()
        if not text:
            return Grade(0.0, None, "empty")
        score = self._score(family, spec["seed"], spec["index"], text)
        if isinstance(score, str):
            return Grade(0.0, None, score)
        key = _key(text)
        return Grade(score, key if score >= FULL_MARKS else None, "", key)

    def _scored(self, family: str, seed: int, index: int, text: str) -> float | str:
        """The library's score, or in one word why there is none."""
        if (family in LITERALS and not is_plain_literal(text)) or (family in FORMULAS and not is_plain_formula(text)):
            return "not_plain"
        problem = self._problem(family, seed, index)
        if family in LITERALS and text.isidentifier():
            # a lone word is a text like any other, but an evaluator would look for a variable of that name
            return float(text == str(problem["answer"]).strip())
        score_answer = self._datasets[family, seed].score_answer
        if family in FORMULAS:  # computer algebra on a formula of the model's may take any time and memory
            return limited_call(lambda: score_answer(text, problem))
        try:
            return float(score_answer(text, problem))
        except Exception:  # the library's graders raise whatever an odd answer makes them; it is counted by its reason
            return "grader_error"

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """There are none.

        Raises:
            DataError: always.
        """
        raise DataError(
            "data=reasoning_gym has no demonstrations for a supervised start; set model.warm_start.enabled=false"
        )

    def _rows(self, config: ReasoningGymDataConfig, split: str, num: int, exclude: frozenset[str]) -> list[TaskRow]:
        """``num`` rows, the families taking turns in proportion to their shares."""
        quotas = dict(zip(config.tasks, apportioned(num, list(config.tasks.values())), strict=True))
        streams = {
            name: self._distinct(name, _stream_seed(config.problem_seed, split, name), quota, exclude, split)
            for name, quota in quotas.items()
        }
        return [next(streams[name]) for name in _turns(quotas)]

    def _distinct(self, name: str, seed: int, num: int, exclude: frozenset[str], split: str) -> Iterator[TaskRow]:
        size = 2 * num + MAX_FRUITLESS_DRAWS
        self._datasets[name, seed] = reasoning_gym.create_dataset(name, seed=seed, size=size, **self._families[name])
        seen, index, fruitless, found = set(exclude), 0, 0, 0
        while found < num:
            question = str(self._problem(name, seed, index)["question"])
            if question in seen:
                fruitless += 1
                if fruitless >= MAX_FRUITLESS_DRAWS or index + 1 >= size:
                    raise DataError(
                        f"data.num_{split} asks for {num} different {name} problems, and only {found} were found"
                        f"{' outside the held-out ones' if exclude else ''}: ask for fewer, or widen the family's settings, "
                        f"data.task_settings.{name}"
                    )
            else:
                seen.add(question)
                fruitless, found = 0, found + 1
                yield self._row(name, seed, index, question)
            index += 1

    def _row(self, name: str, seed: int, index: int, question: str) -> TaskRow:
        spec = json.dumps({"task": name, "seed": seed, "index": index})
        digest = hashlib.sha256(f"{name}|{question}".encode()).hexdigest()[:16]
        solution = self._problem(name, seed, index)["answer"]
        columns = {"task": name, "solution": None if solution is None else str(solution)}
        return TaskRow(f"{name}-{digest}", [{"role": "user", "content": question}], spec, columns)

    def _made(self, name: str, seed: int, index: int) -> dict[str, Any]:
        return self._datasets[name, seed][index]


def offered_families() -> list[str]:
    """The families that can be trained on."""
    return sorted(DATASETS.keys() - UNGRADED)


def _checked_settings(name: str, config: ReasoningGymDataConfig) -> dict[str, Any]:
    if name not in offered_families():
        raise DataError(
            f"data.tasks: reasoning-gym has no task {name!r} that can be trained on{_did_you_mean(name, offered_families())}; "
            f"there are {len(offered_families())}, such as chain_sum, gsm_symbolic, n_queens"
        )
    settings = config.task_settings.get(name, {})
    known = set(DATASETS[name][1].__dataclass_fields__) - {"seed", "size"}
    for key in settings:
        if key not in known:
            raise DataError(
                f"data.task_settings.{name}.{key}: {name} has no such setting{_did_you_mean(key, known)}; it has "
                f"{', '.join(sorted(known))}"
            )
    try:
        reasoning_gym.create_dataset(name, seed=0, size=1, **settings)
    except (AssertionError, ValueError, TypeError) as error:
        raise DataError(f"data.task_settings.{name}={settings}: reasoning-gym refuses it: {error}") from error
    return settings


def _stream_seed(problem_seed: int, split: str, name: str) -> int:
    """Seeds of less than 32 bits, far apart: the library adds a problem's index to its seed, so that near seeds share problems."""
    return (int.from_bytes(hashlib.sha256(f"{problem_seed}/{split}/{name}".encode()).digest()[:4]) % 2**11) << 20


def _turns(quotas: dict[str, int]) -> list[str]:
    """Every name as often as its quota says, spread evenly."""
    places = [
        ((turn + 0.5) / quota, order, name)
        for order, (name, quota) in enumerate(quotas.items())
        for turn in range(quota)
    ]
    return [name for _, _, name in sorted(places)]


def _key(text: str) -> str:
    """One form for answers that say the same: numbers by value, other texts without case and surplus white space."""
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return " ".join(text.split()).casefold()
    return str(number.normalize() + 0) if number.is_finite() else text.casefold()


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else ""
