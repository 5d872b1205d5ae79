"""Steps of a run on many GPUs, played through with completions of different lengths.

A rollout's lengths are drawn; engines decode them as far as there is room, a finished one making room for the next; trainers take
the prompts in turn, as a run deals them, and the step is that of the slowest. What a token costs, and what an exchange takes, is
that of ``maxent_grpo.training.step_time``, whose closed form has every completion of the mean length.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maxent_grpo.training.preview.plan import Timing
from maxent_grpo.training.step_time import Costs, Load, ring_seconds
from maxent_grpo.training.types.flops import Work, scoring_work


@dataclass(frozen=True)
class Assumed:
    """What the simulation takes for granted beside the costs."""

    spread: float = 0.6
    """Standard deviation of a completion's length over its mean, before the limit cuts it."""
    rollouts: int = 20
    seed: int = 0


def drawn_lengths(generator: np.random.Generator, load: Load, prompts: int, spread: float) -> np.ndarray:
    """[prompts, G] lengths, log-normal of the load's mean, at least 1 and at most the limit [tokens]."""
    sigma = math.sqrt(math.log(1 + spread**2))
    drawn = generator.lognormal(math.log(load.completion_tokens) - sigma**2 / 2, sigma, (prompts, load.group))
    return np.clip(np.rint(drawn), 1, load.longest).astype(int)


def decode_seconds(costs: Costs, lengths: Sequence[int], at_once: int, *, refills: bool) -> float:
    """Decoding steps of one engine until its last sequence is finished."""
    room = at_once or len(lengths)
    if not refills:
        parts = [lengths[at : at + room] for at in range(0, len(lengths), room)]
        return sum(decode_seconds(costs, part, 0, refills=True) for part in parts)
    waiting, running, step, seconds = list(reversed(lengths)), [], 0, 0.0
    while waiting or running:
        while waiting and len(running) < room:
            heapq.heappush(running, step + waiting.pop())
        until = running[0]
        here = len(running)
        each = max(costs.decode_step + here * costs.decode_token, here * costs.decode_compute)
        seconds += (until - step) * each
        step = until
        while running and running[0] == step:
            heapq.heappop(running)
    return seconds


def sampling_seconds(timing: Timing, lengths: np.ndarray) -> float:
    """Sampling groups of the given lengths, dealt to all samplers, until the last of them has finished."""
    load, layout = timing.load, timing.layout
    one = scoring_work(load.prompt_tokens, [])
    slowest = 0.0
    for sampler in range(layout.samplers):
        mine = lengths[sampler :: layout.samplers]
        if len(mine):
            work = Work(len(mine) * one.tokens, len(mine) * one.pairs, len(mine))
            decoding = decode_seconds(timing.sampler, mine.ravel().tolist(), layout.at_once, refills=layout.refills)
            slowest = max(slowest, timing.sampler.prefill.seconds(work) + decoding)
    return slowest


def trainer_seconds(timing: Timing, lengths: np.ndarray) -> float:
    """Scoring and training on these groups: the process with the most work, then the exchange and the update."""
    costs, load, layout = timing.costs, timing.load, timing.layout
    passes, scored = 0.0, 0.0
    for trainer in range(layout.trainers):
        work = Work()
        for group in lengths[trainer :: layout.trainers]:
            work += scoring_work(load.prompt_tokens, group.tolist())
        forward = costs.forward.seconds(work, load.slices)
        backward = costs.backward.seconds(work, load.slices) + (forward if load.checkpointing else 0.0)
        passes, scored = max(passes, forward + backward), max(scored, forward)
    moved = ring_seconds(
        load.slices * timing.traffic.each_slice + timing.traffic.each_step, layout.trainers, timing.links
    )
    exposed = max(0.0, moved - timing.links.overlap * passes)
    times = (load.old_scores + load.reference) / load.iterations
    return passes + scored * times + exposed + costs.update * timing.updated


def simulated_step(timing: Timing, assumed: Assumed) -> float:
    """Mean seconds of an optimiser step over some rollouts; the first, which nothing ran beside, is left out."""
    generator = np.random.default_rng(assumed.seed)
    load = timing.load
    steps = load.minibatches * load.iterations
    rollouts = [
        drawn_lengths(generator, load, load.prompts * load.minibatches, assumed.spread)
        for _ in range(assumed.rollouts + 1)
    ]
    sampled = [_sampled(timing, lengths) for lengths in rollouts]
    trained = [_trained(timing, lengths) for lengths in rollouts]
    between = timing.step().between * steps
    ahead = timing.step().ahead
    periods = [
        (max(train, following) if ahead else train + following) + between
        for train, following in zip(trained, sampled[1:], strict=False)
    ]
    return statistics.fmean(periods) / steps


def _sampled(timing: Timing, lengths: np.ndarray) -> float:
    """A rollout's sampling: of a run in turn, loader batch after loader batch."""
    load = timing.load
    rounds = 1 if timing.step().ahead else load.rounds * load.minibatches
    return sum(sampling_seconds(timing, part) for part in np.array_split(lengths, rounds))


def _trained(timing: Timing, lengths: np.ndarray) -> float:
    """All steps that a rollout serves."""
    load = timing.load
    return load.iterations * sum(trainer_seconds(timing, part) for part in np.array_split(lengths, load.minibatches))
