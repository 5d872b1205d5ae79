"""The dashboard at W&B as data: sections of panels, each panel drawing metrics of the table of metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

from maxent_grpo.telemetry.wandb_tracker import STEP, TABLE

__all__ = ["SECTIONS", "STEP", "TABLE", "PanelSpec", "SectionSpec", "family_pattern"]


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One chart: metrics over the optimiser step, or every metric of one family, whose name ends in ``*``."""

    title: str
    metrics: tuple[str, ...]
    unit: str = ""
    log: bool = False
    """Whether the vertical axis is logarithmic."""

    @property
    def family(self) -> str | None:
        """The family that the panel draws; None for one with metrics by name."""
        return self.metrics[0] if self.metrics[0].endswith("*") else None


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """A heading with its panels."""

    name: str
    panels: tuple[PanelSpec, ...]
    has_table: bool = False
    """Whether the table of completions stands first."""


def family_pattern(family: str) -> str:
    """A family's name as the regular expression that its metrics match from their beginning."""
    return f"^{re.escape(family[:-1])}[^/]*$"


SECTIONS = (
    SectionSpec(
        "learning",
        (
            PanelSpec("held-out pass@k", ("eval/pass@*",), "share of problems"),
            PanelSpec("held-out coverage@k", ("eval/coverage@*",), "share of right answers"),
            PanelSpec("held-out distinct@k", ("eval/distinct@*",), "right answers"),
            PanelSpec("held-out greedy answer", ("eval/greedy",), "share of problems"),
            PanelSpec("reward", ("reward/mean", "reward/shaped_mean", "reward/drawn_mean"), "mean of a step"),
            PanelSpec("reward terms", ("reward/term/*",), "mean, before weights"),
            PanelSpec("groups without a signal", ("reward/equal_groups",), "share of groups"),
        ),
    ),
    SectionSpec(
        "stability",
        (
            PanelSpec("token entropy", ("policy/entropy",), "nats per token"),
            PanelSpec("KL to the reference", ("policy/kl_to_reference",), "nats per token"),
            PanelSpec(
                "clipped tokens", ("policy/clip_ratio_low_mean", "policy/clip_ratio_high_mean"), "share of tokens"
            ),
            PanelSpec("largest importance ratio", ("policy/ratio_max",)),
            PanelSpec("gradient norm", ("optim/gradient_norm",), "before clipping"),
            PanelSpec("learning rate", ("optim/learning_rate",)),
            PanelSpec("loss", ("loss/total", "loss/policy", "loss/listwise", "loss/weighted_kl")),
            PanelSpec("sampler against trainer", ("generation/logprob_gap", "mismatch/kl_k3"), "nats per token"),
            PanelSpec("staleness", ("generation/staleness",), "optimiser steps"),
        ),
    ),
    SectionSpec(
        "controller",
        (
            PanelSpec("tau", ("controller/tau",), log=True),
            PanelSpec("beta and the KL coefficient", ("controller/beta", "controller/kl_beta")),
            PanelSpec("measured and target", ("controller/measured", "controller/smoothed", "controller/target")),
            PanelSpec("entropy of the target weights", ("weights/entropy",), "nats"),
            PanelSpec(
                "effective group size", ("weights/effective_size", "weights/policy_effective_size"), "completions"
            ),
            PanelSpec("KL from weights to policy", ("weights/kl_to_policy",), "nats"),
            PanelSpec("steps that moved nothing", ("controller/skipped", "controller/saturated", "controller/limited")),
        ),
    ),
    SectionSpec(
        "throughput",
        (
            PanelSpec("tokens per second", ("throughput/tokens_per_second", "throughput/sampled_tokens_per_second")),
            PanelSpec("utilisation", ("throughput/mfu", "throughput/mfu_rollout", "throughput/mfu_update")),
            PanelSpec("time of a step", ("time/step_seconds",), "seconds"),
            PanelSpec("where it goes", ("time/*",), "seconds"),
            PanelSpec("padding", ("scoring/padding_ratio",), "positions a token"),
            PanelSpec("memory", ("memory/peak_rss_mib", "memory/peak_cuda_mib"), "MiB"),
        ),
    ),
    SectionSpec(
        "samples",
        (
            PanelSpec(
                "completion length",
                ("completion/min_length", "completion/mean_length", "completion/max_length"),
                "tokens",
            ),
            PanelSpec("cut at the length limit", ("completion/clipped_ratio",), "share of completions"),
            PanelSpec("different right answers in a group", ("completion/distinct_modes",), "mean over groups"),
            PanelSpec("unreadable answers", ("reward/rejected/*",), "completions"),
        ),
        has_table=True,
    ),
)
"""Every section, in order."""
