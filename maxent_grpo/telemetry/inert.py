"""Settings that have no effect in the combination at hand, each with its reason.

A rule says when it holds, why, and of which settings. Only settings that were changed from their option's default are
reported, and the clip range, whose lack of effect with one update per rollout surprises.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from maxent_grpo.config.controller import EntropyControllerConfig, KlControllerConfig
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.logging import TrackerName
from maxent_grpo.config.resolve import batch_plan, reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.telemetry.inert_method import CLIP_RANGE, METHOD_RULES, Rule, under
from maxent_grpo.telemetry.inert_sampling import sampling_rules
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    KlLaw,
    MetaMode,
    MismatchMode,
    ReferenceSource,
    RewardNormalization,
    TargetSchedule,
)

KL_LAW_SETTINGS = {
    KlLaw.multiplicative: ("clip", "horizon"),
    KlLaw.additive: ("learning_rate",),
    KlLaw.halving: (),
    KlLaw.pi: ("gain", "integral_gain"),
}
"""The settings of `controller=kl` that belong to one law only."""


def _value(config: RootConfig, path: str) -> object:
    return reduce(getattr, path.split("."), config)


def _default(config: RootConfig, path: str) -> object:
    """The default of a setting in the option that was chosen for its group."""
    group, *rest = path.split(".")
    return reduce(getattr, rest, type(getattr(config, group))())


def _reference_rules(config: RootConfig) -> Iterator[Rule]:
    scoring = config.scoring
    stale = "scoring.allow_stale_reference_logprobs"
    if reference_source(config) is ReferenceSource.none:
        yield (
            "no coefficient pulls towards a reference, so that none is kept",
            ["scoring.reference_sync.every_n_steps", "scoring.reference_sync.mixing", stale],
        )
    elif scoring.reference_sync.every_n_steps == 0:
        yield (
            "the reference is frozen (scoring.reference_sync.every_n_steps=0)",
            ["scoring.reference_sync.mixing", stale],
        )
    elif config.optimization.minibatches * config.optimization.num_iterations == 1:
        yield "with one update per rollout the reference cannot move between sampling and the update", [stale]


def _mismatch_rules(config: RootConfig) -> Iterator[Rule]:
    name, cap, floor = (f"scoring.mismatch.{field}" for field in ("mode", "cap", "floor"))
    mode = config.scoring.mismatch.mode
    if config.scoring.behavior_logprobs_source is BehaviorSource.model:
        reason = "scoring.behavior_logprobs_source=model takes the trainer's own log-probs, which have no mismatch"
        yield reason, [name, cap, floor]
    elif config.scoring.advantage is AdvantageKind.none:
        yield "only the advantage term is corrected, and scoring.advantage=none has none", [cap, floor]
    elif mode is MismatchMode.bypass:
        yield "scoring.mismatch.mode=bypass corrects nothing", [cap, floor]
    elif mode in (MismatchMode.token_truncate, MismatchMode.sequence_truncate, MismatchMode.geometric_truncate):
        yield f"scoring.mismatch.mode={mode} only caps; the mask modes have a floor", [floor]
    elif mode is MismatchMode.sequence_mask:
        yield "the product over a completion has no floor; token_mask and geometric_mask have one", [floor]


def _batching_rules(config: RootConfig) -> Iterator[Rule]:
    if config.scoring.trl_reference_scoring:
        reason = "scoring.trl_reference_scoring=true pads every sequence with its own prompt"
        yield reason, ["scoring.batching.share_prompts"]
    if batch_plan(config, 1).slices_per_step == 1:
        yield "a step is a single slice, so that there is none to assemble ahead", ["scoring.batching.slice_prefetch"]


def _schedule_rules(config: RootConfig) -> Iterator[Rule]:
    schedule = config.optimization
    if schedule.total_training_steps > 0:
        yield (
            f"optimization.total_training_steps={schedule.total_training_steps} decides the length of training",
            ["optimization.num_epochs"],
        )
    if schedule.lr_scheduler_type == "constant":
        yield "optimization.lr_scheduler_type=constant has no warm-up", ["optimization.warmup_steps"]


def _record_rules(config: RootConfig) -> Iterator[Rule]:
    if not config.evaluation.enabled:
        names = ("every_n_steps", "batch_size", "num_samples", "ks", "seed", "temperature", "top_p", "greedy", "exact")
        yield "evaluation.enabled is false", [f"evaluation.{name}" for name in (*names, "seed_eval.enabled")]
    if not config.evaluation.seed_eval.enabled:
        names = under("evaluation.seed_eval", type(config.evaluation.seed_eval))
        yield "evaluation.seed_eval.enabled is false", [name for name in names if not name.endswith(".enabled")]
    if config.checkpoint.best_metric is None:
        names = ("best_goal", "early_stop_patience")
        yield "checkpoint.best_metric is not set", [f"checkpoint.{name}" for name in names]
    if config.logging.completions_every == 0:
        yield "logging.completions_every is 0, so that none is recorded", ["logging.completions_per_step"]
    if TrackerName.wandb not in config.logging.trackers:
        yield "logging.trackers has no wandb", under("logging.wandb", type(config.logging.wandb))
    if not config.run.profile:
        yield "run.profile is false", ["run.profile_steps"]


def _controller_rules(config: RootConfig) -> Iterator[Rule]:
    controller = config.controller
    if isinstance(controller, EntropyControllerConfig):
        kind, own = controller.schedule.kind, "controller.schedule"
        unused = {
            TargetSchedule.constant: ["peak", "peak_step", "final", "horizon"],
            TargetSchedule.linear: ["peak", "peak_step"],
        }.get(kind, [])
        yield f"{own}.kind={kind} does not use it", [f"{own}.{name}" for name in unused]
    if isinstance(controller, KlControllerConfig):
        used = KL_LAW_SETTINGS[controller.law]
        unused = sorted({name for names in KL_LAW_SETTINGS.values() for name in names} - set(used))
        yield f"controller.law={controller.law} does not use it", [f"controller.{name}" for name in unused]
    if isinstance(controller, MetaControllerConfig):
        analytic = controller.mode is MetaMode.analytic
        unused = ["num_prompts", "optimizer_jacobian"] if analytic else ["target_fraction", "target_kl"]
        yield f"controller.mode={controller.mode} does not use it", [f"controller.{name}" for name in unused]
        if not controller.adapt_beta:
            only_beta = ["beta_min", "beta_max", *(["target_kl"] if analytic else [])]
            yield "controller.adapt_beta is false", [f"controller.{name}" for name in only_beta]


def _data_rules(config: RootConfig) -> Iterator[Rule]:
    if not config.data.shuffle:
        yield "data.shuffle is false, so that rows keep their order", ["data.order_seed"]


def _reward_rules(config: RootConfig) -> Iterator[Rule]:
    reward = config.reward
    for name in ("format", "numeric", "regex", "length", "overlong", "repetition"):
        if name not in reward.terms:
            yield f"reward.terms has no {name}", under(f"reward.{name}", type(getattr(reward, name)))
    if reward.normalize is RewardNormalization.none:
        yield "reward.normalize=none divides by no deviation", ["reward.normalize_by"]


def _start_rules(config: RootConfig) -> Iterator[Rule]:
    if not config.model.warm_start.enabled:
        names = under("model.warm_start", type(config.model.warm_start))
        yield "model.warm_start.enabled is false", [name for name in names if not name.endswith(".enabled")]


def _adapter_rules(config: RootConfig) -> Iterator[Rule]:
    if not config.model.lora.enabled:
        names = under("model.lora", type(config.model.lora))
        yield "model.lora.enabled is false", [name for name in names if not name.endswith(".enabled")]


RULES = (
    *METHOD_RULES,
    _reference_rules,
    _mismatch_rules,
    _batching_rules,
    _schedule_rules,
    _record_rules,
    _controller_rules,
    _data_rules,
    _start_rules,
    _reward_rules,
    _adapter_rules,
    sampling_rules,
)


def idle_reasons(config: RootConfig) -> Iterator[tuple[str, str]]:
    """Dotted path and reason of each setting that has no effect here, changed or not."""
    for rule in RULES:
        for reason, paths in rule(config):
            for path in paths:
                yield path, reason


def inert_settings(config: RootConfig) -> list[str]:
    """One sentence for each setting that was changed and has no effect here, and always for an idle clip range."""
    return [
        f"{path}={_value(config, path)}: {reason}"
        for path, reason in idle_reasons(config)
        if path == CLIP_RANGE or _value(config, path) != _default(config, path)
    ]
