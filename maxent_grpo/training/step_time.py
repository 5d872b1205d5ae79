"""How long an optimiser step takes on many processes, as a function of what a token costs on one; every result is in seconds.

    trainer  = old scores + reference + forward + backward + max(0, exchange - overlap (forward + backward)) + update
    in turn  = sampling + trainer + gathering + weight sync
    ahead    = max(sampling, trainer) + gathering + weight sync          (the next rollout is sampled meanwhile)

A rollout's sampling and scoring are shared out over the steps that it serves. An exchange of n processes moves (n - 1) / n of
the bytes through each of them once (gather, scatter) or twice (all-reduce), as a ring does. Sampling has a least number of
decoding steps: those of the longest completion, and those of all tokens with as many sequences at a time as there is room for.
Every process is taken to have the same work, that of the one with the most prompts; grading, evaluation, checkpoints and what a
step spends between its phases are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from maxent_grpo.training.types.flops import Work, scoring_work


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of a pass: ``fixed`` for each, and for each token, pair of attention and scored position in it."""

    fixed: float = 0.0
    token: float = 0.0
    pair: float = 0.0
    scored: float = 0.0

    def seconds(self, work: Work, passes: float = 1.0) -> float:
        """Of so much work in so many passes."""
        return self.fixed * passes + self.token * work.tokens + self.pair * work.pairs + self.scored * work.scored


@dataclass(frozen=True, slots=True)
class Costs:
    """What work takes on one device; of an engine that is spread over several, on all of them together."""

    prefill: Rate
    decode_step: float
    """A decoding step, however few sequences: reading the weights, starting the operations."""
    decode_token: float
    """What each sequence adds to it: reading its keys and values."""
    decode_compute: float
    """Least time of a sequence in a step, by its operations; counts where it is more than the two above."""
    forward: Rate
    backward: Rate
    update: float
    """The optimiser's step over what one process holds all of; divided where states are."""


@dataclass(frozen=True, slots=True)
class Links:
    """How fast bytes move."""

    inside: float
    """Between the processes of a node, each way, for each of them [bytes/s]."""
    between: float
    """Out of a node, for each of its processes [bytes/s]."""
    per_node: int = 8
    overlap: float = 1.0
    """Share of the passes' time that exchanges run beside."""
    engines: float = 0.0
    """By which weights reach the engines that sample; 0: as fast as a process's way out of its node [bytes/s]."""

    def bus(self, processes: int) -> float:
        """What a ring over so many processes carries: a node's ways out carry it together [bytes/s]."""
        if processes <= self.per_node:
            return self.inside
        return min(self.inside, self.between * self.per_node)


@dataclass(frozen=True, slots=True)
class Load:
    """A rollout and the steps it serves, over all processes."""

    prompts: int
    """Of a step, over all processes."""
    group: int
    prompt_tokens: int
    """Mean length of a prompt."""
    completion_tokens: int
    """Mean length of a completion."""
    longest: int
    """Of the longest completion."""
    minibatches: int = 1
    """Steps that one pass over a rollout is split into."""
    iterations: int = 1
    """Passes over a rollout."""
    rounds: int = 1
    """Loader batches of a step, each sampled when the one before it is; what is sampled ahead is asked for all at once."""
    slices: int = 1
    """Forward and backward passes of a process in a step; an exchange each."""
    old_scores: bool = False
    reference: bool = False
    checkpointing: bool = False
    """Backward passes run the layers forward once more."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that each process puts through collectives of all trainers, before the ring's factor (n - 1) / n."""

    each_slice: int
    """An all-reduce counts twice."""
    each_step: int = 0
    each_rollout: int = 0
    """Divided weights, put together for sampling and for scoring without gradient."""
    sync: int = 0
    """Weights for the engines that sample, sent once."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which devices do what."""

    trainers: int
    engines: int = 0
    """Engines of their own that sample; 0 where every trainer samples for itself."""
    at_once: int = 0
    """Most sequences that an engine, or a trainer that samples, decodes together; 0 is no limit."""
    refills: bool = True
    """A finished sequence makes room at once, as in an engine; otherwise the whole batch is waited for."""
    ahead: bool = False
    """The next rollout is sampled while this one trains, by engines of their own."""

    @property
    def samplers(self) -> int:
        """Processes or engines that share out a rollout."""
        return self.engines or self.trainers


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimiser step by part."""

    sampling: float
    gathering: float
    """Putting divided weights together."""
    old_scores: float
    reference: float
    forward: float
    backward: float
    exchange: float
    """What is waited for beyond the passes that it runs beside."""
    update: float
    sync: float
    ahead: bool
    sampled_tokens: int
    """Completion tokens of a step, over all processes."""

    @property
    def trainer(self) -> float:
        """What the trainers do between two rollouts."""
        return self.old_scores + self.reference + self.forward + self.backward + self.exchange + self.update

    @property
    def between(self) -> float:
        """What neither side goes on during: putting weights together, bringing them to the engines."""
        return self.gathering + self.sync

    @property
    def total(self) -> float:
        """The whole step."""
        both = max(self.sampling, self.trainer) if self.ahead else self.sampling + self.trainer
        return both + self.between

    @property
    def parts(self) -> dict[str, float]:
        """Every part, in the order of a step."""
        return {
            "sampling": self.sampling,
            "gathering weights": self.gathering,
            "scoring at rollout weights": self.old_scores,
            "reference": self.reference,
            "forward": self.forward,
            "backward": self.backward,
            "exchange": self.exchange,
            "update": self.update,
            "weight sync": self.sync,
        }

    @property
    def bottleneck(self) -> str:
        """The largest part; of a run that samples ahead, of the side that is waited for."""
        parts = {name: seconds for name, seconds in self.parts.items() if name not in self.hidden}
        return max(parts, key=lambda name: parts[name])

    @property
    def hidden(self) -> frozenset[str]:
        """The parts of the shorter side, which happen meanwhile."""
        if not self.ahead:
            return frozenset()
        if self.sampling < self.trainer:
            return frozenset({"sampling"})
        return frozenset(self.parts) - {"sampling", "gathering weights", "weight sync"}

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens trained in a second, over all processes."""
        return self.sampled_tokens / self.total if self.total else math.inf


def ring_seconds(size: float, processes: int, links: Links) -> float:
    """Moving ``size`` bytes through every one of ``processes``: (n - 1) / n of them over the slowest way."""
    return (processes - 1) / processes * size / links.bus(processes) if processes > 1 else 0.0


def sampling_seconds(costs: Costs, prompts: int, load: Load, at_once: int, *, refills: bool) -> float:
    """Sampling a group for each of ``prompts`` on one engine: prompts once, then decoding steps."""
    sequences = prompts * load.group
    if sequences == 0:
        return 0.0
    room = min(at_once or sequences, sequences)
    if refills:
        steps = max(float(load.longest), sequences * load.completion_tokens / room)
    else:
        steps = math.ceil(sequences / room) * float(load.longest)
    running = sequences * load.completion_tokens / steps
    step = max(costs.decode_step + running * costs.decode_token, running * costs.decode_compute)
    one = scoring_work(load.prompt_tokens, [])
    prefill = costs.prefill.seconds(Work(prompts * one.tokens, prompts * one.pairs, prompts))
    return prefill + steps * step


def scored_of(prompts: int, load: Load) -> Work:
    """Scoring the groups of so many prompts, each behind one copy of its prompt."""
    one = scoring_work(load.prompt_tokens, [load.completion_tokens] * load.group)
    return Work(prompts * one.tokens, prompts * one.pairs, prompts * one.scored)


def step_time(
    costs: Costs, load: Load, layout: Layout, traffic: Traffic, links: Links, *,
    sampler: Costs | None = None, updated: float = 1.0,
) -> StepTime:  # fmt: skip
    """Seconds of an optimiser step.

    Args:
        costs: of one device.
        sampler: those of an engine, where it is not such a device.
        load: what is done.
        layout: by whom.
        traffic: what moves between trainers, and to the engines.
        links: how fast.
        updated: share of the optimiser's step that one process makes: 1 / W where its states are divided.
    """
    trainers, steps = layout.trainers, load.minibatches * load.iterations
    of_step = math.ceil(load.prompts / trainers)
    work = scored_of(of_step, load)
    # each prompt of a rollout is scored once, and trained once in each iteration
    scored = costs.forward.seconds(work, load.slices) * load.minibatches / steps
    forward, backward = costs.forward.seconds(work, load.slices), costs.backward.seconds(work, load.slices)
    if load.checkpointing:
        backward += forward
    moved = ring_seconds(load.slices * traffic.each_slice + traffic.each_step, trainers, links)
    ahead = layout.ahead and layout.engines > 0
    together = load.prompts * load.minibatches if ahead else load.prompts / load.rounds
    rounds = 1 if ahead else load.rounds * load.minibatches
    sampling = rounds * sampling_seconds(
        sampler or costs, math.ceil(together / layout.samplers), load, layout.at_once, refills=layout.refills
    )
    return StepTime(
        sampling=sampling / steps,
        gathering=ring_seconds(traffic.each_rollout, trainers, links) / steps,
        old_scores=scored if load.old_scores else 0.0,
        reference=scored if load.reference else 0.0,
        forward=forward,
        backward=backward,
        exchange=max(0.0, moved - links.overlap * (forward + backward)),
        update=costs.update * updated,
        sync=traffic.sync / (links.engines or links.between) / steps if layout.engines else 0.0,
        ahead=ahead,
        sampled_tokens=load.prompts * load.group * load.completion_tokens,
    )


def spread_over(costs: Costs, devices: int, efficiency: float) -> Costs:
    """What an engine's work takes that is spread over ``devices``, at that share of a division without loss."""
    by = devices * efficiency if devices > 1 else 1.0
    rate = costs.prefill
    return replace(
        costs,
        prefill=Rate(rate.fixed / by, rate.token / by, rate.pair / by, rate.scored / by),
        decode_step=costs.decode_step / by,
        decode_token=costs.decode_token / by,
        decode_compute=costs.decode_compute / by,
    )
