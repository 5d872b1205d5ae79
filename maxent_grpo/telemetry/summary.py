"""The start-up summary: the resolved method, the batch arithmetic, the data, and the settings without effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce

from maxent_grpo.config.controller import (
    KL_BETA,
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    KlControllerConfig,
)
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.resolve import (
    batch_plan,
    chosen_options,
    listwise_lengths,
    reference_source,
    resolve_score_mode,
)
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.telemetry.inert import inert_settings
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    KlTarget,
    MetaMode,
    RatioLevel,
    Reduction,
    ScoreMode,
    TargetSchedule,
)
from maxent_grpo.training.types.runtime import ClipSettings

Row = tuple[str, str]

KNOWN_FACTS = ("train_rows", "eval_rows", "dropped_prompts", "num_processes")
"""Facts with a place of their own; every other one is listed under its own name."""

CREDIT = {
    AdvantageKind.none: "none: no advantage term",
    AdvantageKind.group_mean: "A = r - mean(r) over the group",
    AdvantageKind.group_std: "A = (r - mean(r)) / std(r) over the group",
}
REDUCTION = {
    Reduction.token: "1/N_tok: mean over all tokens",
    Reduction.sequence: "1/(N_seq T_i): mean over each completion's tokens, then over completions",
    Reduction.constant: "1/(N_seq T_max): sum over tokens over a constant length",
}
COEFFICIENT = {Reduction.token: "1/N_tok", Reduction.sequence: "1/(N_seq T_i)", Reduction.constant: "1/(N_seq T_max)"}


def section(title: str, rows: list[Row]) -> list[str]:
    """A heading with aligned rows of label and text beneath it."""
    width = max((len(label) for label, _ in rows), default=0)
    return [title, *(f"  {label:<{width}}  {value}".rstrip() for label, value in rows), ""]


def _clip_interval(clip: ClipSettings) -> str:
    high = clip.clip_range if clip.clip_range_high is None else clip.clip_range_high
    cap = "" if clip.clip_delta is None else f", capped at {clip.clip_delta:g}"
    return f"[1 - {clip.clip_range:g}, 1 + {high:g}]{cap}"


def _ratio(scoring: ScoringConfig) -> str:
    level = "per token" if scoring.ratio_level is RatioLevel.token else "per sequence, to the power 1/T_i"
    clip = scoring.clipping
    clipping = f"clipped to {_clip_interval(clip)}" if clip.use_clip_objective else "not clipped"
    return f"{level}, {clipping}; behaviour log-probs from {scoring.behavior_logprobs_source}"


def _factor(scoring: ScoringConfig, mode: ScoreMode, max_completion_len: int) -> str:
    """The factor of the listwise term as written in the formula."""
    coefficient = f"{scoring.weighting.listwise_coef:g}"
    lengths = listwise_lengths(scoring, mode, max_completion_len)
    return coefficient if lengths is None else f"{coefficient} ({lengths[0]}/{lengths[1]})"


def loss_formula(scoring: ScoringConfig, max_completion_len: int, adapted: Collection[str] = ()) -> str:
    """The loss in one line, with the coefficients that are on; sums run over the trained tokens of the step.

    A KL coefficient among the ``adapted`` ones is written by its name, since a controller moves it.
    """
    clip = scoring.clipping
    coefficient = COEFFICIENT[scoring.reduction]
    listwise_on = scoring.weighting.listwise_coef > 0
    terms: list[str] = []
    if scoring.advantage is not AdvantageKind.none:
        ratio = "rho" if scoring.ratio_level is RatioLevel.token else "rho_seq"
        objective = f"min({ratio} A, clip({ratio}) A)" if clip.use_clip_objective else f"{ratio} A"
        scale = "" if clip.clip_objective_coef == 1 or not clip.use_clip_objective else f"{clip.clip_objective_coef:g} "
        terms.append(f"- {scale}sum {coefficient} {objective}")
    if listwise_on:
        mode = resolve_score_mode(scoring.weighting.score_mode, max_completion_len)
        factor = _factor(scoring, mode, max_completion_len)
        terms.append(f"+ {'' if factor == '1' else f'{factor} '}mean_groups CE(w, softmax(s))")
    if scoring.advantage is AdvantageKind.none and clip.use_clip_objective:
        terms.append(f"- {clip.clip_objective_coef:g} mean_groups sum min(rho_seq a, clip(rho_seq) a), a = w - b")
    if scoring.kl_beta > 0 or KL_BETA in adapted:
        factor = "kl_beta" if KL_BETA in adapted else f"{scoring.kl_beta:g}"
        terms.append(f"+ {factor} sum {coefficient} KL_{scoring.kl_estimator}(pi, pi_ref)")
    if scoring.entropy_coef > 0:
        terms.append(f"- {scoring.entropy_coef:g} sum {coefficient} H")
    return f"L = {' '.join(terms).removeprefix('+ ')}" if terms else "L = 0"


def _method_rows(config: RootConfig) -> list[Row]:
    scoring, weighting = config.scoring, config.scoring.weighting
    max_len = config.generation.max_completion_len
    rows = [
        ("loss", loss_formula(scoring, max_len, config.controller.adapted())),
        ("credit", CREDIT[scoring.advantage]),
        ("ratio and clip", _ratio(scoring)),
        ("reduction", REDUCTION[scoring.reduction]),
    ]
    if weighting.listwise_coef > 0:
        mode = resolve_score_mode(weighting.score_mode, max_len)
        divisor = {ScoreMode.const: f" / {weighting.score_length}", ScoreMode.mean: " / T_i"}.get(mode, "")
        origin = f", from auto with max_completion_len={max_len}" if weighting.score_mode is ScoreMode.auto else ""
        rows += [
            ("listwise weights", "w ~ q^(1/(tau+beta)) pi_ref^(beta/(tau+beta)), q = softmax(r / q_temperature)"),
            ("", f"tau {weighting.tau:g}, beta {weighting.beta:g}, q_temperature {weighting.q_temperature:g}, "
             f"neutral groups: {weighting.neutral_groups}"),
            ("sequence score", f"{mode}: s = sum of log-probs{divisor}{origin}"),
        ]  # fmt: skip
    source = scoring.reference_logprobs_source
    origin = "" if source == reference_source(config) else f", from {source}"
    rows += [
        ("regularisers", f"token KL {scoring.kl_beta:g}, entropy {scoring.entropy_coef:g}, "
         f"entropy in the reward {scoring.policy_entropy_bonus_coef:g}"),
        ("reference", f"{reference_source(config)}{origin}"),
        ("truncation", str(scoring.truncation)),
    ]  # fmt: skip
    return rows


def _controller_rows(config: RootConfig) -> list[Row]:
    """What the controller moves, from where, between which bounds, and towards what."""
    controller = config.controller
    rows: list[Row] = []
    for path in controller.adapted():
        start = reduce(getattr, path.split("."), config)
        between = controller.bounds().get(path)
        rows.append(("moves", f"{path} from {start:g}" + (f", in [{between[0]:g}, {between[1]:g}]" if between else "")))
    match controller:
        case EntropyControllerConfig():
            rows += [
                ("target", f"mean entropy of the target weights = low + f (high - low), f = {_fraction(controller)}"),
                ("law", f"log tau += {controller.learning_rate:g} (target - average at rate {controller.ema:g}), after "
                 f"{controller.warmup_steps} steps of warm-up"),
            ]  # fmt: skip
        case EffectiveSizeControllerConfig():
            rows += [
                ("target", f"mean exp(entropy of the target weights) = {controller.target_size:g} completions"),
                ("law", "tau solved for each step's groups"),
            ]
        case KlControllerConfig():
            what = "token KL to the reference" if controller.target is KlTarget.kl_beta else "KL(w || pi_ref)"
            rows += [("target", f"mean {what} = {controller.target_kl:g} nats"), ("law", str(controller.law))]
        case MetaControllerConfig():
            rows += _meta_rows(controller)
        case _:
            pass
    return rows


def _meta_rows(controller: MetaControllerConfig) -> list[Row]:
    """The outer objective of a meta controller and how it is descended."""
    objective = "minus the held-out reward after the update, differentiated through the update"
    if controller.mode is MetaMode.analytic:
        kl = f", mean KL(w || pi_ref) = {controller.target_kl:g} nats" if controller.adapt_beta else ""
        objective = f"entropy of the target weights = log c + f (log n - log c), f = {controller.target_fraction:g}{kl}"
    law = (
        f"{controller.optimizer} in the logarithm at rate {controller.learning_rate:g}, every {controller.every_n_steps} steps, "
        f"changes up to {controller.max_log_change:g}"
    )
    return [("target" if controller.mode is MetaMode.analytic else "minimises", objective), ("law", law)]


def _fraction(controller: EntropyControllerConfig) -> str:
    schedule, start = controller.schedule, f"{controller.target_fraction:g}"
    final = f"{schedule.final:g} at step {schedule.horizon}"
    if schedule.kind is TargetSchedule.linear:
        return f"{start} to {final}"
    if schedule.kind is TargetSchedule.peak:
        return f"{start} to {schedule.peak:g} at step {schedule.peak_step}, to {final}"
    return start


def _batch_rows(config: RootConfig, num_train_prompts: int, num_processes: int) -> list[Row]:
    plan = batch_plan(config, num_train_prompts, num_processes)
    schedule = config.optimization
    if plan.slices_per_step is None:
        slices = f"by token budget: max_tokens={config.scoring.batching.max_tokens}"
    else:
        slices = plan.slices_per_step
    counts = [
        ("prompts per step", plan.prompts_per_step),
        ("completions per prompt", plan.group_size),
        ("sequences per step", plan.sequences_per_step),
        ("loader batches per step", plan.loader_batches_per_step),
        (f"slices per step{' of a process' if num_processes > 1 else ''}", slices),
        ("minibatches", schedule.minibatches),
        ("iterations", schedule.num_iterations),
        ("prompts per rollout", plan.prompts_per_rollout),
        ("steps per rollout", plan.steps_per_rollout),
        ("steps per epoch", plan.steps_per_epoch),
        ("steps in all", plan.total_steps),
    ]
    width = max(len(str(count)) for _, count in counts if isinstance(count, int))
    return [(label, f"{count:>{width}}" if isinstance(count, int) else str(count)) for label, count in counts]


def _count(facts: Mapping[str, object], name: str, default: int) -> int:
    value = facts.get(name, default)
    if not isinstance(value, int):
        raise TypeError(f"fact {name} is a {type(value).__name__}, not a whole number")
    return value


def startup_summary(config: RootConfig, facts: Mapping[str, object]) -> str:
    """What is about to run, as aligned plain text.

    Args:
        config: the resolved settings.
        facts: what only the run knows: ``train_rows``, ``eval_rows``, ``dropped_prompts`` and ``num_processes`` as whole
            numbers; anything else (``device``, ``parameters``, ...) is listed as given.
    """
    options = chosen_options(config)
    train_rows = _count(facts, "train_rows", 0)
    run_rows = [(name.replace("_", " "), str(value)) for name, value in facts.items() if name not in KNOWN_FACTS]
    data_rows = [
        ("training prompts", str(train_rows)),
        ("held-out prompts", str(_count(facts, "eval_rows", 0))),
        ("dropped prompts", str(_count(facts, "dropped_prompts", 0))),
    ]
    controller_rows = _controller_rows(config)
    lines = [
        *section(f"method: {options['scoring']}", _method_rows(config)),
        *(section(f"controller: {options['controller']}", controller_rows) if controller_rows else []),
        *section("batch", _batch_rows(config, train_rows, _count(facts, "num_processes", 1))),
        *section(f"data: {options['data']}", data_rows),
        *section(f"run: model {options['model']}, seed {config.seed}", run_rows),
    ]
    idle = inert_settings(config)
    if idle:
        lines += ["has no effect:", *(f"  {sentence}" for sentence in idle), ""]
    return "\n".join(lines)
