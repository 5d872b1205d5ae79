"""A reward term: a function with a name, asked about a batch of completions under a time limit and an error policy."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from maxent_grpo.errors import RewardError
from maxent_grpo.rewards.batch import Notes, RewardBatch
from maxent_grpo.rewards.functions import Call, Convention, RewardFunction, convention_of
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.raised import raised, shown
from maxent_grpo.rewards.term_settings import FunctionStyle
from maxent_grpo.rewards.timing import BACKGROUND, CallTimedOut, Outcome, attempt, attempt_within

ERROR, TIMEOUT = "error", "timeout"
"""Why a term has no value for a completion that it did not abstain from by itself."""
MOST_ABANDONED = 8
"""Calls that were given up and still run, beyond which a term stops the run: each takes time from everything else."""


@dataclass
class TermVerdict:
    """What a term says about a batch; every list has one entry a completion."""

    grades: list[Grade | None]
    """None where the term abstains."""
    failures: list[str]
    """``error`` or ``timeout`` where that is why it abstains, else empty."""
    columns: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """Columns that the function logged; None where it logged nothing."""
    metrics: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Numbers that the function logged, by name."""

    def note(self, notes: Notes, rows: Sequence[int]) -> None:
        """Take over what a call about some completions noted down."""
        for name, values in notes.columns.items():
            column = self.columns.setdefault(name, [None] * len(self.grades))
            for row, value in zip(rows, values, strict=True):
                column[row] = value
        for name, numbers in notes.metrics.items():
            self.metrics.setdefault(name, []).extend(numbers)


@dataclass(frozen=True)
class RewardTerm:
    """A named reward function, how it is called, and what an exception or a call that takes too long does."""

    name: str
    function: RewardFunction
    abstain_on_error: bool = False
    style: FunctionStyle = FunctionStyle.auto
    time_limit: float | None = None
    """Longest call [seconds]; None is no limit."""
    is_built_in: bool = False
    """Whether it judges each completion by itself, though it is shown all at once."""
    abandoned: list[threading.Thread] = field(default_factory=list[threading.Thread], compare=False, repr=False)
    """Calls that were given up."""

    @property
    def is_separable(self) -> bool:
        """Whether any part of a batch may be rewarded apart from the rest.

        A function that is shown the whole batch may compare its completions, and a time limit is one of all of them at once.
        """
        by_one = convention_of(self.function, self.style).style is FunctionStyle.verl
        return by_one or (self.is_built_in and self.time_limit is None)

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> list[Grade | None]:
        """One grade per completion, None where the term abstains; see ``start``."""
        return self.start(RewardBatch(prompts, completions, completion_ids, columns))().grades

    def require_arguments(self, batch: RewardBatch) -> None:
        """Find out, without a call, whether the function could be called about completions of such rows.

        Raises:
            RewardError: it asks for columns that are not there.
        """
        convention_of(self.function, self.style).calls(self.name, batch)

    def start(self, batch: RewardBatch) -> Callable[[], TermVerdict]:
        """Begin to reward a batch; calling the result ends it and gives the verdict. Only asynchronous functions run meanwhile.

        Raises:
            RewardError: the function asks for columns that are not there; and, from the result, the function raised or took
                too long and the term does not abstain then, returned the wrong number of values, or returned something
                that is neither a finite number, a Grade nor None.
        """
        convention = convention_of(self.function, self.style)
        calls = convention.calls(self.name, batch)
        started = [self._submit(call) for call in calls] if convention.is_async else []

        def finish() -> TermVerdict:
            verdict = TermVerdict([None] * len(batch), [""] * len(batch))
            for number, call in enumerate(calls):
                outcome = self._outcome(call, started[number] if started else None)
                self._settle(verdict, convention, batch, call, outcome)
            return verdict

        return finish

    def _submit(self, call: Call) -> Future[Any]:
        async def run() -> Any:
            try:
                return await self.function(**call.arguments)
            except SystemExit as error:  # would end the loop that all asynchronous functions share
                raise RuntimeError(f"it raised {error!r}") from error

        return BACKGROUND.submit(run())

    def _outcome(self, call: Call, started: Future[Any] | None) -> Outcome:
        if started is not None:
            return BACKGROUND.outcome(started, self.time_limit)
        if self.time_limit is None:
            return attempt(lambda: self.function(**call.arguments))
        outcome = attempt_within(lambda: self.function(**call.arguments), self.time_limit, self.abandoned)
        self.abandoned[:] = [thread for thread in self.abandoned if thread.is_alive()]
        if len(self.abandoned) > MOST_ABANDONED:
            raise RewardError(
                f"reward term '{self.name}': {len(self.abandoned)} calls that took longer than reward.time_limits."
                f"{self.name}={self.time_limit:g} s are still running and slow everything down; mend the function so that it "
                "ends"
            )
        return outcome

    def _settle(
        self, verdict: TermVerdict, convention: Convention, batch: RewardBatch, call: Call, outcome: Outcome
    ) -> None:
        """Enter what a call gave for its completions."""
        values: list[Any] = []
        if outcome.error is None:
            made = attempt(lambda: convention.values(outcome.value, call.notes))
            values, outcome = (made.value, outcome) if made.error is None else ([], made)
        if outcome.error is not None:
            self._failed(verdict, convention, batch, call, outcome.error)
            return
        if len(values) != len(call.rows):
            raise RewardError(
                f"reward term '{self.name}' returned {len(values)} values for {len(call.rows)} completions: "
                "return one number, Grade or None for each"
            )
        for name, logged in call.notes.columns.items():
            if len(logged) != len(call.rows):
                raise RewardError(
                    f"reward term '{self.name}' logged {len(logged)} values in the column '{name}' for {len(call.rows)} "
                    "completions: call log_extra with one value for each"
                )
        for row, value in zip(call.rows, values, strict=True):
            verdict.grades[row] = self._checked(value, batch, row)
        verdict.note(call.notes, call.rows)

    def _failed(
        self, verdict: TermVerdict, convention: Convention, batch: RewardBatch, call: Call, error: BaseException
    ) -> None:
        """Enter a call that raised or took too long; which completion made it raise is found by asking singly."""
        if isinstance(error, CallTimedOut):
            if not self.abstain_on_error:
                about = self._where(batch, call.rows[0])
                if len(call.rows) > 1:
                    about = f"reward term '{self.name}' on {len(call.rows)} completions"
                raise RewardError(
                    f"{about} took longer than reward.time_limits.{self.name}={self.time_limit:g} s: raise the limit, or let "
                    f"the term abstain with reward.on_error.{self.name}=abstain"
                )
            self._abstain(verdict, call.rows, TIMEOUT)
        elif len(call.rows) > 1:
            self._one_by_one(verdict, convention, batch, error)
        elif self.abstain_on_error:
            self._abstain(verdict, call.rows, ERROR)
        else:
            raise RewardError(f"{self._where(batch, call.rows[0])} raised {raised(error, self.function)}") from error

    def _one_by_one(
        self, verdict: TermVerdict, convention: Convention, batch: RewardBatch, error: BaseException
    ) -> None:
        calls = [call for row in range(len(batch)) for call in convention.calls(self.name, batch, row)]
        started = [self._submit(call) for call in calls] if convention.is_async else []
        for number, call in enumerate(calls):
            self._settle(verdict, convention, batch, call, self._outcome(call, started[number] if started else None))
        if not self.abstain_on_error:
            raise RewardError(
                f"reward term '{self.name}' raised {raised(error, self.function)} on the whole batch, though not on any single completion"
            ) from error

    def _abstain(self, verdict: TermVerdict, rows: Sequence[int], why: str) -> None:
        for row in rows:
            verdict.failures[row] = why

    def _checked(self, value: Any, batch: RewardBatch, row: int) -> Grade | None:
        if value is None:
            return None
        try:
            if isinstance(value, str | bytes):
                raise TypeError("text is no number")
            number = float(value.reward if isinstance(value, Grade) else value)
        except Exception as error:  # what a user's object does when it is asked for its number
            raise RewardError(f"{self._where(batch, row)} returned {shown(value)}, which is not a number") from error
        if not math.isfinite(number):
            raise RewardError(
                f"{self._where(batch, row)} returned {number}: return a finite number, or None to leave the row out"
            )
        return value if isinstance(value, Grade) else Grade(reward=number, mode=None, reason="")

    def _where(self, batch: RewardBatch, row: int) -> str:
        row_id = batch.columns["row_id"][row] if "row_id" in batch.columns else row
        return f"reward term '{self.name}' on row {row_id}, completion {batch.completions[row][:200]!r},"


def ask_terms(terms: Sequence[RewardTerm], batch: RewardBatch) -> dict[str, TermVerdict]:
    """Every term's verdict on a batch, by name; asynchronous functions of all terms run at the same time.

    Raises:
        RewardError: a term misbehaved, see ``RewardTerm.start``, or two terms logged a column of one name.
    """
    started = {term.name: term.start(batch) for term in terms}
    return settled({name: finish() for name, finish in started.items()})


def settled(verdicts: dict[str, TermVerdict]) -> dict[str, TermVerdict]:
    """The verdicts of all terms on a batch, once it is certain that no two logged a column of one name.

    Raises:
        RewardError: two did.
    """
    owners: dict[str, str] = {}
    for name, verdict in verdicts.items():
        for column in verdict.columns:
            if column in owners:
                raise RewardError(
                    f"reward terms '{owners[column]}' and '{name}' both logged the column '{column}': give one another name"
                )
            owners[column] = name
    return verdicts
