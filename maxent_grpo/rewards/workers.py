"""Rewarding in processes beside the program: the completions of a batch shared out, the verdicts put together in their order.

A term is shared out where it judges each completion by itself: the built-in ones, and functions in verl's style. A function
that is shown the whole batch is called once, always in the same process. Verdicts do not depend on who gave them.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO, Protocol, cast

from maxent_grpo.errors import RewardError
from maxent_grpo.rewards.batch import RewardBatch
from maxent_grpo.rewards.terms import RewardTerm, TermVerdict, settled
from maxent_grpo.rewards.worker_main import read_message, write_message

MODULE = "maxent_grpo.rewards.worker_main"
CLOSING_SECONDS = 5.0
"""Time that a process is given to end before it is killed [seconds]."""
SHARES = 4
"""Shares of a batch for each process, so that one with easy completions takes over from one with hard ones."""


class Recipe(Protocol):
    """What a process builds a term from; it is pickled."""

    @property
    def name(self) -> str:
        """The term's."""
        ...

    def build(self) -> RewardTerm:
        """The term, in whatever process."""
        ...


@dataclass
class _Worker:
    """One process, the jobs it was given and the thread that waits for their outcomes in order."""

    process: subprocess.Popen[bytes]
    waiting: deque[Future[TermVerdict]] = field(default_factory=deque[Future[TermVerdict]])
    lock: threading.Lock = field(default_factory=threading.Lock)
    has_ended: bool = False
    listener: threading.Thread | None = None

    def give(self, job: tuple[str, RewardBatch], future: Future[TermVerdict]) -> None:
        """Send a job, whose outcome ``future`` gets."""
        with self.lock:
            if self.has_ended:
                future.set_exception(self.ending())
                return
            self.waiting.append(future)
            # the listener, which finds a dead process too, tells all that wait
            with suppress(BrokenPipeError):
                write_message(_pipe(self.process.stdin), job)

    def ending(self) -> RewardError:
        """What to tell those who wait for a process that is gone."""
        return RewardError(
            f"a process of reward.workers ended (status {self.process.poll()}) while it rewarded completions: see its message "
            "above; reward.workers=0 calls reward functions in the program itself"
        )


class RewardWorkers:
    """Processes that reward completions; started when the first batch comes, ended by ``close`` or with the program."""

    def __init__(self, count: int, recipes: Sequence[Recipe]) -> None:
        self._count, self._recipes = count, list(recipes)
        self._names = {recipe.name: number for number, recipe in enumerate(self._recipes)}
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def takes(self, term: RewardTerm) -> bool:
        """Whether the term is rewarded there; another one stays with the program."""
        return term.name in self._names

    def start(self, term: RewardTerm, batch: RewardBatch) -> Callable[[], TermVerdict]:
        """Begin to reward a batch; calling the result waits for the verdict. See ``RewardTerm.start``, which it replaces.

        Raises:
            RewardError: what the term would raise; or a process could not be started, or died.
        """
        self._start()
        if not term.is_separable:
            return self._submit(term.name, batch, self._names[term.name] % self._count).result
        ranges = shares(len(batch), self._count * SHARES)
        futures = [self._submit(term.name, batch.rows(*part), None) for part in ranges]
        return lambda: joined_verdicts([future.result() for future in futures])

    def close(self) -> None:
        """End the processes; their work is lost. A later batch starts new ones."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            with suppress(BrokenPipeError):
                _pipe(worker.process.stdin).close()
        for worker in workers:
            try:
                worker.process.wait(CLOSING_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            if worker.listener is not None:
                worker.listener.join()
            _pipe(worker.process.stdout).close()
        atexit.unregister(self.close)

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes; empty while there are none."""
        return [worker.process.pid for worker in self._workers]

    def _submit(self, name: str, batch: RewardBatch, number: int | None) -> Future[TermVerdict]:
        future: Future[TermVerdict] = Future()
        if number is None:  # whoever has least to do
            number = min(range(self._count), key=lambda n: len(self._workers[n].waiting))
        self._workers[number].give((name, batch), future)
        return future

    def _start(self) -> None:
        """Start the processes together, then wait until each has built its terms."""
        with self._lock:
            if self._workers:
                return
            processes = [
                subprocess.Popen(
                    [sys.executable, "-m", MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # an interrupt from the keyboard is for the program
                )
                for _ in range(self._count)
            ]
            atexit.register(self.close)
            self._workers = [_Worker(process) for process in processes]
            for process in processes:
                with suppress(BrokenPipeError):  # that it is gone is said below
                    write_message(_pipe(process.stdin), sys.path)
                    write_message(_pipe(process.stdin), self._recipes)
        for worker in self._workers:
            try:
                ready, problem = read_message(_pipe(worker.process.stdout))
            except EOFError:
                ready, problem = False, "it said nothing"
            if not ready:
                self.close()
                raise RewardError(
                    f"reward.workers={self._count}: a process did not start ({problem}): reward functions must be importable by "
                    "their module or file alone; reward.workers=0 calls them in the program itself"
                )
            worker.listener = threading.Thread(target=_listen, args=(worker,), name="reward workers", daemon=True)
            worker.listener.start()


def _listen(worker: _Worker) -> None:
    """Hand outcomes to those who wait for them; when the process ends, tell them that."""
    try:
        while True:
            done, outcome = read_message(_pipe(worker.process.stdout))
            future = worker.waiting.popleft()
            if done:
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
    except EOFError:
        pass
    finally:  # also after an outcome that cannot be read: nobody waits for a process that is not listened to
        with worker.lock:
            worker.has_ended = True
            left, worker.waiting = list(worker.waiting), deque()
        for future in left:
            future.set_exception(worker.ending())


def shares(size: int, number: int) -> list[tuple[int, int]]:
    """``size`` places as at most ``number`` nearly equal ranges, none of them empty."""
    number = min(size, number)
    ends = [size * part // number for part in range(number + 1)] if number else [0]
    return list(pairwise(ends))


def joined_verdicts(parts: Sequence[TermVerdict]) -> TermVerdict:
    """The verdict on several shares of a batch, behind one another."""
    whole = TermVerdict([], [])
    for part in parts:
        before = len(whole.grades)
        whole.grades += part.grades
        whole.failures += part.failures
        for column in whole.columns.values():
            column += [None] * len(part.grades)
        for name, column in part.columns.items():
            whole.columns.setdefault(name, [None] * (before + len(part.grades)))[before:] = column
        for name, numbers in part.metrics.items():
            whole.metrics.setdefault(name, []).extend(numbers)
    return whole


@dataclass
class Asking:
    """The rewards of completions that come in parts: whatever can be judged before the rest is there is begun at once."""

    terms: Sequence[RewardTerm]
    workers: RewardWorkers | None = None
    _begun: dict[str, list[Callable[[], TermVerdict]]] = field(
        default_factory=dict[str, list[Callable[[], TermVerdict]]]
    )

    def add(self, part: RewardBatch) -> None:
        """Begin with some completions; those of one batch are added in its order, all of them or none."""
        for term in self.terms:
            if self.workers is not None and self.workers.takes(term) and term.is_separable:
                self._begun.setdefault(term.name, []).append(self.workers.start(term, part))

    def verdicts(self, whole: RewardBatch) -> dict[str, TermVerdict]:
        """Every term's verdict on the batch, by name; terms that stay with the program are asked while others wait.

        Raises:
            RewardError: see ``ask_terms``; or a process died.
        """
        finishing = {term.name: self._finish(term, whole) for term in self.terms}
        return settled({name: finish() for name, finish in finishing.items()})

    def _finish(self, term: RewardTerm, whole: RewardBatch) -> Callable[[], TermVerdict]:
        begun = self._begun.pop(term.name, None)
        if begun is not None:
            return lambda: joined_verdicts([finish() for finish in begun])
        if self.workers is not None and self.workers.takes(term):
            return self.workers.start(term, whole)
        return term.start(whole)


def _pipe(stream: Any) -> BinaryIO:
    return cast(BinaryIO, stream)
