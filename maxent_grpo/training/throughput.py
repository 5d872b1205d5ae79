"""How fast a step was, and which share of what the machine can do that is.

    mfu = useful operations / (seconds * peak)

with the useful operations of ``training.types.flops`` and the peak of ``telemetry.matmul_peak``, the rate at which this machine
multiplies large matrices of the model's type with the run's threads. Both are of all processes together: operations are added
up, the time is that of the main process, and the peak is its own times their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from maxent_grpo.models.compute_shape import compute_shape
from maxent_grpo.telemetry.matmul_peak import known_peak
from maxent_grpo.training.types.flops import ComputeShape, Work, backward_flops, forward_flops
from maxent_grpo.training.types.generation import SamplingCounters

UPDATE = ("policy", "backward")
"""Phases that the trained passes take their time in."""
APART = ("evaluation",)
"""Phases whose operations are not counted, and so not their time either."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What useful operations follow from and are compared with."""

    shape: ComputeShape
    peak: float
    """Of matrix products, of all processes together [FLOP/s]."""


def yardstick(
    model: PreTrainedModel,
    dtype: str,
    device: torch.device,
    note: Callable[[str], object],
    *,
    num_processes: int = 1,
) -> Yardstick | None:
    """The model's operations and the processes' rate, which is measured where nobody has yet; ``note`` is told of it.

    None for a model whose operations are not known.
    """
    shape = compute_shape(model)
    if shape is None:
        return None
    peak, said = known_peak(dtype, device)
    if said:
        note(said)
    return Yardstick(shape, peak * 1e9 * num_processes)


@dataclass(frozen=True, slots=True)
class StepWork:
    """What was run for a step since the line before, over all processes."""

    sampled: SamplingCounters
    scored: Work
    """All scoring, the trained passes among it."""
    trained: Work
    """Passes with a backward pass."""
    tokens: int
    """Completion tokens trained."""
    is_overlapped: bool = False
    """Whether sampling goes on while other phases do, so that its own phase is only what was waited for it."""


def throughput_metrics(
    work: StepWork, phases: Mapping[str, float], total: float, yardstick: Yardstick | None
) -> dict[str, float]:
    """Tokens a second, and utilisation where there is something to compare with; ``total`` and ``phases`` in seconds."""
    metrics = {"throughput/tokens_per_second": work.tokens / total if total > 0 else 0.0}
    rollout = 0.0 if work.is_overlapped else phases.get("rollout", 0.0)
    if work.sampled.tokens and rollout > 0:
        metrics["throughput/sampled_tokens_per_second"] = work.sampled.tokens / rollout
    if yardstick is None:
        return metrics
    shape = yardstick.shape
    sampling = forward_flops(shape, work.sampled.work)
    untrained = forward_flops(shape, work.scored - work.trained)
    training = forward_flops(shape, work.trained) + backward_flops(shape, work.trained)
    parts = {
        "mfu": (sampling + untrained + training, total - sum(phases.get(name, 0.0) for name in APART)),
        "mfu_rollout": (sampling, rollout),
        "mfu_update": (training, sum(phases.get(name, 0.0) for name in UPDATE)),
    }
    return metrics | {
        f"throughput/{name}": flops / (seconds * yardstick.peak)
        for name, (flops, seconds) in parts.items()
        if flops and seconds > 0
    }
