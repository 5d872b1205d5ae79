"""Which metrics are better when they are larger, and which when they are smaller. No torch."""

from __future__ import annotations

from typing import Literal

from maxent_grpo.training.metric_table import metric_entry

HIGHER_IS_BETTER = (
    *("reward/mean", "reward/rollout_mean", "reward/drawn_mean", "throughput/tokens_per_second"),
    *("throughput/sampled_tokens_per_second", "throughput/mfu", "throughput/mfu_rollout", "throughput/mfu_update"),
    *(
        "eval/pass@*",
        "eval/mean@*",
        "eval/maj@*",
        "eval/distinct@*",
        "eval/coverage@*",
        "eval/greedy",
        "eval/mean_reward",
    ),
    *("eval/exact/pass@*", "eval/exact/distinct@*", "eval/exact/coverage@*", "eval/exact/within/pass@*"),
    *("eval/exact/within/distinct@*", "eval/exact/within/coverage@*", "eval/seed/pass@1", "eval/seed/coverage"),
    *("eval/exact/sampled/pass@*", "eval/exact/sampled/distinct@*", "eval/exact/sampled/coverage@*"),
)
LOWER_IS_BETTER = (
    *("eval/exact/kl_to_optimum", "eval/exact/within/kl_to_optimum", "eval/exact/outside_mass", "time/step_seconds"),
    *("eval/exact/sampled/kl_to_optimum", "eval/exact/sampled/outside_mass"),
)
"""Entries of which one direction is better whatever the method; of most metrics neither is."""


def better(name: str) -> Literal["max", "min"] | None:
    """Whether larger or smaller values of a metric are better; None where neither is.

    Raises:
        KeyError: the name is not in the table.
    """
    entry = metric_entry(name)
    return "max" if entry in HIGHER_IS_BETTER else "min" if entry in LOWER_IS_BETTER else None
