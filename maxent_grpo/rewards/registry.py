"""Reward terms by name, and how one is called.

A term is a function ``f(prompts, completions, completion_ids, **columns)`` that returns one value per completion: a
number, None to abstain (the row is left out), or a ``Grade``, which also names the completion's mode. The columns are
those of the dataset row, one entry per completion; a function takes what it names, or everything through ``**kwargs``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.rewards.grade import Grade

RewardFunction = Callable[..., Sequence[float | Grade | None]]
Grader = Callable[[str, str], Grade]

BUILT_IN = {
    "task": "the task's own grader: 1 for a right answer, 0 for any other",
    "format": "1 if the completion reads as an answer at all, right or wrong, else 0",
    "exact": "1 if the completion, without surrounding white space, is the row's answer text",
}
"""The named terms and what each rewards."""


@dataclass(frozen=True)
class RewardTerm:
    """A named reward function and what an exception inside it does."""

    name: str
    function: RewardFunction
    abstain_on_error: bool = False

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> list[Grade | None]:
        """One grade per completion, None where the term abstains.

        Raises:
            RewardError: the function raised and the term does not abstain on errors, returned the wrong number of
                values, or returned something that is neither a finite number, a Grade nor None.
        """
        offered = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        try:
            values = list(self.function(**_accepted(self.function, offered)))
        except Exception as error:
            # a reward function is the user's code and may raise anything; which row did it is found by asking singly
            values = self._one_by_one(offered, error)
        if len(values) != len(completions):
            raise RewardError(
                f"reward term '{self.name}' returned {len(values)} values for {len(completions)} completions: "
                "return one number, Grade or None for each"
            )
        return [self._checked(value, offered, row) for row, value in enumerate(values)]

    def _one_by_one(self, offered: Mapping[str, Sequence[Any]], error: Exception) -> list[float | Grade | None]:
        values: list[float | Grade | None] = []
        for row in range(len(offered["completions"])):
            single = {name: [column[row]] for name, column in offered.items()}
            try:
                (value,) = self.function(**_accepted(self.function, single))
                values.append(value)
            except Exception as cause:
                if not self.abstain_on_error:
                    raise RewardError(f"{self._where(offered, row)} raised {cause!r}") from cause
                values.append(None)
        if not self.abstain_on_error:
            raise RewardError(
                f"reward term '{self.name}' raised {error!r} on the whole batch, though not on any single completion"
            ) from error
        return values

    def _checked(self, value: Any, offered: Mapping[str, Sequence[Any]], row: int) -> Grade | None:
        if value is None:
            return None
        try:
            number = float(value.reward if isinstance(value, Grade) else value)
        except (TypeError, ValueError) as error:
            raise RewardError(f"{self._where(offered, row)} returned {value!r}, which is not a number") from error
        if not math.isfinite(number):
            raise RewardError(
                f"{self._where(offered, row)} returned {number}: return a finite number, or None to leave the row out"
            )
        return value if isinstance(value, Grade) else Grade(reward=number, mode=None, reason="")

    def _where(self, offered: Mapping[str, Sequence[Any]], row: int) -> str:
        row_id = offered["row_id"][row] if "row_id" in offered else row
        return f"reward term '{self.name}' on row {row_id}, completion {offered['completions'][row][:200]!r},"


def build_terms(
    weights: Mapping[str, float], functions: Mapping[str, str], abstaining: frozenset[str], grade: Grader
) -> list[RewardTerm]:
    """The terms named by ``weights``, in their order: built-in ones, or functions given as ``package.module:function``."""

    def task(completions: Sequence[str], answer: Sequence[str]) -> list[Grade]:
        return [grade(text, right) for text, right in zip(completions, answer, strict=True)]

    def reads_as_answer(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
        return [float(verdict.reason == "") for verdict in task(completions, answer)]

    def exact(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
        return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]

    built_in: dict[str, RewardFunction] = {"task": task, "format": reads_as_answer, "exact": exact}
    return [
        RewardTerm(
            name,
            built_in[name] if name in built_in else imported_function(f"reward.functions.{name}", functions[name]),
            name in abstaining,
        )
        for name in weights
    ]


def imported_function(setting: str, path: str) -> Callable[..., Any]:
    """The function that a setting names as ``package.module:function``.

    Raises:
        ConfigError: the module has no such function.
    """
    module, _, attribute = path.partition(":")
    function = getattr(import_module(module), attribute, None)
    if not callable(function):
        raise ConfigError(f"{setting}={path}: module {module} has no function {attribute}")
    return cast(Callable[..., Any], function)


def _accepted(function: RewardFunction, offered: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    names = {parameter.name for parameter in parameters}
    return {name: column for name, column in offered.items() if name in names}
