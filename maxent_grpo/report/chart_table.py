"""The one table of a report's charts: for each, the metrics it draws, its title and its unit.

A trace names one metric, or with ``*`` every recorded metric of a family. What was not recorded, or never moved, is said in
words beneath the section instead of being drawn.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trace:
    """One metric, or a family of metrics, of a chart."""

    metric: str
    """Name in metrics.jsonl; a ``*`` stands for any ending."""
    label: str
    """Name in the legend; a ``*`` is replaced by what it stood for."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """One chart of the report."""

    key: str
    title: str
    unit: str
    traces: tuple[Trace, ...]
    is_noisy: bool = True
    """Draw a moving average, with the recorded values faint behind it."""
    from_zero: bool = False
    top: float | None = None
    least: int = 1
    """Fewest traces that are worth a chart."""
    is_count: bool = False
    """A line without the metric counts as 0."""
    band: tuple[str, str] | None = None
    """Metrics whose range is shaded around the first trace."""


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """A group of charts under a heading."""

    key: str
    title: str
    lead: str
    charts: tuple[ChartSpec, ...]


EVALUATION = SectionSpec(
    "evaluation",
    "Held-out evaluation",
    "Problems the policy was not trained on. pass@k: solved within k samples. coverage@k: share of a problem's right answers "
    "found in k samples. distinct@k: how many different ones.",
    (
        ChartSpec(
            "pass", "pass@k over training", "share of problems", (Trace("eval/pass@*", "pass@*"),),
            is_noisy=False, top=1.0,
        ),
        ChartSpec(
            "coverage", "coverage@k over training", "share of right answers", (Trace("eval/coverage@*", "coverage@*"),),
            is_noisy=False, top=1.0,
        ),
        ChartSpec(
            "distinct", "distinct@k over training", "right answers", (Trace("eval/distinct@*", "distinct@*"),),
            is_noisy=False,
        ),
        ChartSpec(
            "single", "Greedy and majority answer", "share of problems",
            (Trace("eval/greedy", "greedy"), Trace("eval/maj@*", "maj@*")), is_noisy=False, top=1.0,
        ),
        ChartSpec("exact", "Exact figures", "by enumeration of all answers", (Trace("eval/exact/*", "*"),), is_noisy=False),
        ChartSpec("seed", "Seed evaluation", "as named", (Trace("eval/seed/*", "*"),), is_noisy=False),
    ),
)  # fmt: skip
TRAINING = SectionSpec(
    "training",
    "Reward and completions",
    "What was sampled for training, and what it earned.",
    (
        ChartSpec("reward", "Training reward", "mean of a step", (Trace("reward/mean", "reward"),)),
        ChartSpec("terms", "Reward terms", "mean, before their weights", (Trace("reward/term/*", "*"),), least=2),
        ChartSpec(
            "signal", "Groups without a signal", "share of groups whose rewards are all equal",
            (Trace("reward/equal_groups", "equal groups"),), from_zero=True, top=1.0,
        ),
        ChartSpec(
            "rejected", "Unreadable answers", "completions a step, by reason", (Trace("reward/rejected/*", "*"),),
            from_zero=True, is_count=True,
        ),
        ChartSpec(
            "length", "Completion length", "tokens; shaded from shortest to longest",
            (Trace("completion/mean_length", "mean"),), from_zero=True,
            band=("completion/min_length", "completion/max_length"),
        ),
        ChartSpec(
            "cut", "Cut at the length limit", "share of completions", (Trace("completion/clipped_ratio", "cut"),),
            from_zero=True, top=1.0,
        ),
        ChartSpec(
            "modes", "Different right answers in a group", "mean over groups",
            (Trace("completion/distinct_modes", "distinct"),), from_zero=True,
        ),
    ),
)  # fmt: skip
POLICY = SectionSpec(
    "policy",
    "Policy and group weights",
    "How spread the policy is and how far it moved; the target weights w over each prompt's completions, and the policy p over "
    "the same group.",
    (
        ChartSpec(
            "entropy", "Token entropy", "nats per token", (Trace("policy/entropy", "entropy"),), from_zero=True
        ),
        ChartSpec(
            "kl", "KL to the reference", "nats per token", (Trace("policy/kl_to_reference", "KL(π ‖ reference)"),),
            from_zero=True,
        ),
        ChartSpec(
            "clip", "Clip fractions", "share of tokens",
            (Trace("policy/clip_ratio_low_mean", "low"), Trace("policy/clip_ratio_high_mean", "high")), from_zero=True,
        ),
        ChartSpec(
            "ratio", "Distance from the behaviour policy", "mean |log ratio| per token",
            (Trace("policy/log_ratio_abs_mean", "|log ratio|"),), from_zero=True,
        ),
        ChartSpec(
            "weight_entropy", "Weight entropy", "nats", (Trace("weights/entropy", "entropy of w"),), from_zero=True
        ),
        ChartSpec(
            "effective_size", "Effective size", "completions, exp(entropy)",
            (Trace("weights/effective_size", "weights w"), Trace("weights/policy_effective_size", "policy p")),
            from_zero=True,
        ),
        ChartSpec(
            "weight_kl", "KL of weights to policy", "nats", (Trace("weights/kl_to_policy", "KL(w ‖ p)"),), from_zero=True
        ),
        ChartSpec(
            "wrong_mass", "Mass on wrong completions", "share of a group",
            (Trace("weights/policy_wrong_mass", "policy p"), Trace("weights/wrong_mass", "weights w")),
            from_zero=True, top=1.0,
        ),
    ),
)  # fmt: skip
OPTIMISATION = SectionSpec(
    "optimisation",
    "Optimisation and controller",
    "The loss that was differentiated, the steps that were taken, and the coefficients that a controller may adapt.",
    (
        ChartSpec(
            "loss", "Loss", "as added up",
            (
                Trace("loss/total", "total"), Trace("loss/policy", "policy"), Trace("loss/listwise", "listwise"),
                Trace("loss/weighted_kl", "KL"), Trace("loss/entropy", "entropy"),
            ),
        ),
        ChartSpec(
            "gradient", "Gradient norm", "before clipping", (Trace("optim/gradient_norm", "gradient norm"),), from_zero=True
        ),
        ChartSpec(
            "learning_rate", "Learning rate", "of the step", (Trace("optim/learning_rate", "learning rate"),),
            is_noisy=False, from_zero=True,
        ),
        ChartSpec("tau", "τ", "temperature of the weights", (Trace("controller/tau", "τ"),), is_noisy=False),
        ChartSpec("beta", "β", "pull of the weights to the reference", (Trace("controller/beta", "β"),), is_noisy=False),
        ChartSpec("kl_beta", "KL coefficient", "of the token KL", (Trace("controller/kl_beta", "KL coefficient"),), is_noisy=False),
    ),
)  # fmt: skip
CONTROLLER_FAMILY = "controller/"
"""Names of a controller's record; beside the coefficients, a chart of its own for each, measured and target of one quantity in one."""

COST = SectionSpec(
    "cost",
    "Cost",
    "Where the time went.",
    (
        ChartSpec(
            "throughput", "Throughput", "completion tokens trained per second",
            (Trace("throughput/tokens_per_second", "tokens/s"),), from_zero=True,
        ),
        ChartSpec(
            "tokens", "Tokens seen", "prompt and completion tokens fed to training",
            (Trace("data/input_tokens_seen", "tokens"),), is_noisy=False, from_zero=True,
        ),
        ChartSpec(
            "memory", "Memory", "MiB, largest so far", (Trace("memory/peak_rss_mib", "resident"),), is_noisy=False
        ),
    ),
)  # fmt: skip

SECTIONS = (EVALUATION, TRAINING, POLICY, OPTIMISATION, COST)
"""Every section with charts, in reading order."""
