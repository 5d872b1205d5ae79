"""The part of the table of metrics that measures the machine rather than the run. No torch."""

from __future__ import annotations

from maxent_grpo.training.types.metric_info import MetricInfo
from maxent_grpo.training.types.phases import PHASES

_COMPUTED = "the model's operations are known: not with experts"

MACHINE_METRICS: dict[str, MetricInfo] = {
    "time/step_seconds": MetricInfo("from the line before to this one; the other times add up to it", "seconds"),
    **{f"time/{name}_seconds": MetricInfo(phase.about, "seconds", phase.when) for name, phase in PHASES.items()},
    "time/other_seconds": MetricInfo("what no phase claims", "seconds"),
    "throughput/tokens_per_second": MetricInfo("completion tokens trained per second of the step", "tokens/second"),
    "throughput/sampled_tokens_per_second": MetricInfo(
        "completion tokens sampled per second of time/rollout_seconds",
        "tokens/second",
        "a rollout was sampled, and not while another one trained",
    ),
    "throughput/mfu": MetricInfo(
        "useful operations of sampling and scoring per second of the step without evaluation, over the rate at which this "
        "machine multiplies matrices",
        when=_COMPUTED,
    ),
    "throughput/mfu_rollout": MetricInfo(
        "the same of sampling over time/rollout_seconds",
        when=f"a rollout was sampled, and not while another one trained, and {_COMPUTED}",
    ),
    "throughput/mfu_update": MetricInfo(
        "the same of the trained passes, forward and backward, over time/policy_seconds and time/backward_seconds",
        when=_COMPUTED,
    ),
    "throughput/cpu_seconds": MetricInfo(
        "CPU time of this process, all its threads together, since the line before; on the first line of a run, or of a "
        "resumed part, since training began, an evaluation before it included",
        "seconds",
    ),
    "memory/peak_rss_mib": MetricInfo("largest resident memory of the process so far", "MiB"),
    "memory/peak_cuda_mib": MetricInfo("most memory of the GPU that tensors held so far", "MiB", "there is a GPU"),
}
"""Time, speed and memory."""
