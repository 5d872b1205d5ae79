"""Which weights the engine has, and how several processes ask it together.

In a run of several processes a leader gives the weights while the others wait, and each process asks for its own prompts. What one
of them does not get, all learn when each has its answers or has given up: the leader then starts anew what has ended and gives
the weights again, and who lacks something asks once more. So they agree, round by round, on how it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

from transformers import PreTrainedModel

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm.ask import Answer, Ask
from maxent_grpo.training.generation.vllm.engine import Engine, Place
from maxent_grpo.training.generation.vllm.team import Team
from maxent_grpo.training.generation.vllm.transport import RefusedError
from maxent_grpo.training.generation.vllm.weights import Snapshots, check_probe, own_prompt_logp, probe_tokens
from maxent_grpo.training.types.runtime import GenerationSettings

Sent = Future[list[Answer] | None]


@dataclass
class EngineWeights:
    """Which of the policy's weights the engine has; one for all random streams that share an engine."""

    engine: Engine
    snapshots: Snapshots | None
    """None where another process gives the weights."""
    model: PreTrainedModel
    settings: GenerationSettings
    team: Team = field(default_factory=Team)
    version: int | None = None
    """Optimiser step whose weights the engine has; None before the first."""
    _places: list[Place] | None = None
    """What the leaders said last."""

    def close(self) -> None:
        """Stop what was started, and remove the snapshots."""
        self.engine.close()
        if self.snapshots is not None:
            self.snapshots.remove()

    def bring(self, version: int) -> None:
        """Give the engine the weights as they are after optimiser step ``version``, and check that it computes with them.

        Raises:
            GenerationError: it did not take them, or computes something else; on every process.
        """
        if self.version == version:
            return
        self.engine.settle()
        self.team.exchange(None)  # no process has a request out when weights change
        places = self.team.lead(lambda: self._give(version))
        if not self.team.leads:
            self.engine.load(version)
        self._follow(places)
        self.version = version

    def begin(self, asks: Sequence[Ask], *, partly: bool) -> Sequence[Sent]:
        """Send the asks, whose answers are taken by ``complete`` under the same ``partly``."""
        return self.engine.begin(asks, self.version or 0, partly=partly or self.team.size > 1)

    def complete(self, asks: Sequence[Ask], sent: Sequence[Sent | None], *, partly: bool) -> list[list[Answer] | None]:
        """The answers to the asks, some of which may have been sent before; every process calls it, maybe without any.

        ``partly`` gives None where an answer was tried for often enough, instead of raising.

        Raises:
            GenerationError: tried often enough, or refused; on every process.
        """
        if self.team.size == 1:
            return self._answers(asks, sent, partly=partly)
        answers: list[list[Answer] | None] = [None] * len(asks)
        for renewed in count():
            failures = [failure for failure in self.team.exchange(self._fill(answers, asks, sent)) if failure]
            if not failures:
                break
            refused = [text for text, is_refused in failures if is_refused]
            if refused:
                raise RefusedError(refused[0])
            if renewed == self.settings.vllm.max_retries or not self._renew():
                if not partly:
                    raise GenerationError(failures[0][0])
                break
            sent = [None] * len(asks)
        return answers

    def _give(self, version: int) -> Place:
        stats = self.settings.generation_stats
        try:
            self.engine.load(version)
            tokens = probe_tokens(self.model)
            own = own_prompt_logp(self.model, tokens)
            for where, theirs in self.engine.prompt_logp(tokens).items():
                check_probe(own, theirs, version, where, next(self.model.parameters()).dtype)
        except GenerationError:
            stats["weight_sync_failures"] += 1
            raise
        stats["weight_syncs"] += 1
        return self.engine.place

    def _fill(
        self, answers: list[list[Answer] | None], asks: Sequence[Ask], sent: Sequence[Sent | None]
    ) -> tuple[str, bool] | None:
        """Put in what this process lacks; why something is still missing, and whether for good."""
        missing = [place for place, answer in enumerate(answers) if answer is None]
        try:
            given = self._answers([asks[place] for place in missing], [sent[place] for place in missing], partly=True)
        except GenerationError as error:
            return f"process {self.team.rank}: {error}", True
        for place, answer in zip(missing, given, strict=True):
            answers[place] = answer
        return None if None not in given else (f"process {self.team.rank}: {self.engine.last_failure}", False)

    def _answers(self, asks: Sequence[Ask], sent: Sequence[Sent | None], *, partly: bool) -> list[list[Answer] | None]:
        """Those of what was sent before, and those of the rest, which is sent now."""
        rest = [ask for ask, answer in zip(asks, sent, strict=True) if answer is None]
        fresh = iter(self.engine.complete(rest, self.version or 0, partly=partly))
        return [next(fresh) if answer is None else answer.result() for answer in sent]

    def _renew(self) -> bool:
        """Have the leaders see to their servers; whether anything is other than it was, so that it is worth asking again."""
        before, places = self._places, self.team.lead(self.engine.renew)
        self._follow(places)
        return places != before

    def _follow(self, places: list[Place]) -> None:
        self._places = places
        if not self.team.leads:
            self.engine.follow(places[self.team.rank])
