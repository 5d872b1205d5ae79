"""Every setting, with a change of it, the settings under which that change acts, and what it must do there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.knob_effects import (
    Effect,
    adapts,
    changes_alone,
    computes_on_cpu,
    evaluates,
    evaluates_alike,
    lasts,
    measures,
    names_best,
    path,
    records,
    stops_measuring,
    trains,
    uses_threads,
    writes,
)
from support.runs import only_reward

from maxent_grpo.config.data import Example
from maxent_grpo.config.logging import TrackerName
from maxent_grpo.rewards.term_settings import FunctionStyle


@dataclass(frozen=True)
class Knob:
    """A change of one setting."""

    path: str
    value: Any
    effect: Effect
    base: tuple[str, ...] = ()
    """Overrides of both runs, beside those of every small run."""


MAXENT = ("scoring=maxent",)
LISTWISE = ("scoring=maxent_listwise",)
KL = ("scoring.kl_beta=0.5",)
PASSES = ("optimization.num_iterations=3", "optimization.total_training_steps=3", "optimization.learning_rate=0.05")
SAMPLER = (
    "scoring.behavior_logprobs_source=sampler",
    "scoring.mismatch.mode=token_truncate",
    "generation.penalty.gen_presence_penalty=2.0",
)
HALF = (
    "reward.terms.task=0",
    "reward.terms.spread=0",
    "+reward.terms.half=1",
    "+reward.functions.half=support.graders:half",
)
EVAL = ("evaluation.enabled=true", "evaluation.num_samples=4", "evaluation.ks=[1]")
SEEDS = (*EVAL, "evaluation.seed_eval.enabled=true", "data.num_eval=8")
PROFILE = ("profile", "profile/step_2.json.gz", "profile/step_2.txt")
BEST = (
    *EVAL,
    "evaluation.every_n_steps=1",
    "optimization.total_training_steps=3",
    "checkpoint.best_metric=eval/mean_length",
)
WIDE = ("data.num_vertices=6", "data.num_hidden=3")
COUNTDOWN = ("data=countdown",)
LORA = ("model.lora.enabled=true",)
WARM = (
    "model.warm_start.enabled=true",
    "model.warm_start.steps=2",
    "model.warm_start.batch_size=4",
    "model.warm_start.num_problems=8",
)

PASS_K = ("scoring=passk", "scoring.pass_k=2", "scoring.weighting.right_threshold=0.4")
NAMED = (
    "reward.terms.task=0",
    "reward.terms.spread=0",
    "+reward.terms.named_by_first=1",
    "+reward.functions.named_by_first=support.graders:named_by_first",
)
TEMPERED = ("scoring=xdr", "scoring.weighting.right_threshold=0.4")
CAPPED = ("scoring=cispo", "scoring.surrogate.ratio_cap=5", *PASSES)
GATED = ("scoring=sapo", *PASSES)
CLIP_COV = (
    "scoring=clip_cov",
    "scoring.token_selection.share=0.2",
    "scoring.token_selection.covariance_low=0",
)
KL_COV = ("scoring=kl_cov", "scoring.token_selection.share=0.2", *PASSES)
UNCERTAIN = ("scoring=high_entropy_tokens",)

METHODS = (
    Knob("scoring.pass_k", 3, trains, PASS_K),
    Knob("scoring.shaping.kind", "uniqueness", trains, NAMED),
    Knob("scoring.shaping.uniqueness_power", 0.3, trains, ("scoring=uniqueness", *NAMED)),
    Knob("scoring.shaping.unlikeliness_discount", 0.9, trains, ("scoring=unlikeliness",)),
    Knob("scoring.shaping.overlong_buffer", 3, trains),
    Knob("scoring.shaping.overlong_weight", 0.2, trains, ("scoring.shaping.overlong_buffer=3",)),
    Knob("scoring.row_weights.kind", "tempered", trains),
    Knob("scoring.row_weights.tau", 1.0, trains, TEMPERED),
    Knob("scoring.row_weights.mode_adaptive", True, trains, TEMPERED),
    Knob("scoring.row_weights.entropy_alpha", 3.0, trains, ("scoring=seed_grpo",)),
    Knob("scoring.surrogate.kind", "soft_gate", trains, PASSES),
    Knob("scoring.surrogate.ratio_cap", 1.0, trains, CAPPED),
    Knob("scoring.surrogate.positive_temperature", 9.0, trains, GATED),
    Knob("scoring.surrogate.negative_temperature", 9.0, trains, GATED),
    Knob("scoring.token_selection.kind", "high_entropy", trains),
    Knob("scoring.token_selection.share", 0.5, trains, CLIP_COV),
    Knob("scoring.token_selection.covariance_low", 0.3, trains, CLIP_COV),
    Knob("scoring.token_selection.covariance_high", 0.3, trains, CLIP_COV),
    Knob("scoring.token_selection.kl_coef", 9.0, trains, KL_COV),
    Knob("scoring.token_selection.entropy_quantile", 0.4, trains, UNCERTAIN),
    Knob(
        "scoring.token_selection.count_kept_only",
        True,
        trains,
        (*UNCERTAIN, "optimization.adam_epsilon=0.1"),
    ),
    Knob("scoring.group_loss", "centred_likelihood", trains, MAXENT),
)

SCORING = (
    Knob("scoring.advantage", "group_std", trains),
    Knob("scoring.ratio_level", "sequence", trains, PASSES),
    Knob("scoring.reduction", "token", trains),
    Knob("scoring.weighting.tau", 1.0, trains, MAXENT),
    Knob("scoring.weighting.beta", 0.5, trains, MAXENT),
    Knob("scoring.weighting.q_temperature", 3.0, trains, MAXENT),
    Knob("scoring.weighting.q_epsilon", 0.1, trains, MAXENT),
    Knob("scoring.weighting.score_mode", "const", trains, MAXENT),
    Knob("scoring.weighting.score_length", 8, trains, (*MAXENT, "scoring.weighting.score_mode=const")),
    Knob("scoring.weighting.neutral_groups", "keep", trains, (*MAXENT, *HALF)),
    Knob("scoring.weighting.listwise_coef", 0.3, trains),
    Knob("scoring.weighting.right_threshold", 0.4, trains, (*MAXENT, *HALF)),
    Knob("scoring.clipping.clip_range", 0.001, trains, PASSES),
    Knob("scoring.clipping.use_clip_objective", False, trains, (*PASSES, "scoring.clipping.clip_range=0.001")),
    Knob("scoring.clipping.clip_objective_coef", 0.3, trains, MAXENT),
    Knob("scoring.clipping.clip_adv_baseline", 0.9, trains, (*LISTWISE, "scoring.clipping.use_clip_objective=true")),
    Knob("scoring.clipping.clip_range_high", 0.4, trains, (*PASSES, "scoring.clipping.clip_range=0.001")),
    Knob("scoring.clipping.clip_delta", 1.01, trains, (*PASSES, "scoring.clipping.clip_range=0.001")),
    Knob("scoring.batching.logprob_chunk_size", 3, path("forward_passes")),
    Knob("scoring.batching.score_slice", 3, path("slices"), MAXENT),
    Knob("scoring.batching.max_tokens", 30, path("slices"), MAXENT),
    Knob("scoring.batching.score_tail_tokens", 1, trains),
    Knob("scoring.batching.slice_prefetch", 2, path("slices ahead"), ("scoring.batching.score_slice=4",)),
    Knob("scoring.batching.prompt_cache_size", 0, path("cache hits")),
    Knob("scoring.batching.share_prompts", False, path("fed_tokens")),
    Knob("scoring.batching.skip_zero_signal", False, path("fed_tokens"), only_reward("mixed_on_half")),
    Knob("scoring.kl_beta", 0.5, trains),
    Knob("scoring.kl_estimator", "k1", trains, KL),
    Knob("scoring.entropy_coef", 0.1, trains),
    Knob("scoring.policy_entropy", False, measures("policy/entropy")),
    Knob("scoring.policy_entropy_mode", "sample", measures("policy/entropy")),
    Knob("scoring.policy_entropy_bonus_coef", 0.5, trains),
    Knob("scoring.truncation", "exclude", trains),
    Knob("scoring.reference_logprobs_source", "model", measures("policy/kl_to_reference")),
    # the sampler's own log-probs differ from the trainer's by rounding only, but save scoring the rollout once more
    Knob("scoring.behavior_logprobs_source", "sampler", path("forward_passes"), ("optimization.num_iterations=2",)),
    Knob("scoring.mismatch.mode", "sequence_mask", trains, SAMPLER),
    Knob("scoring.mismatch.cap", 1.01, trains, SAMPLER),
    Knob("scoring.mismatch.floor", 0.99, trains, (*SAMPLER, "scoring.mismatch.mode=token_mask")),
    Knob("scoring.reference_sync.every_n_steps", 1, trains, (*KL, "optimization.total_training_steps=3")),
    Knob("scoring.reference_sync.mixing", 0.3, trains, (*KL, "scoring.reference_sync.every_n_steps=1")),
    Knob(
        "scoring.allow_stale_reference_logprobs",
        True,
        trains,
        (*KL, "scoring.reference_sync.every_n_steps=1", "optimization.num_iterations=2"),
    ),
    Knob("scoring.trl_reference_scoring", True, path("fed_tokens"), KL),
)

GENERATION = (
    Knob("generation.num_generations", 3, trains),
    Knob("generation.max_prompt_len", 5, trains, ("data.long_prompts=truncate_left",)),
    Knob("generation.max_completion_len", 5, trains),
    Knob("generation.temperature", 0.7, trains),
    Knob("generation.top_p", 0.6, trains),
    Knob("generation.penalty.gen_top_k", 2, trains),
    Knob("generation.penalty.gen_frequency_penalty", 1.0, trains, SAMPLER),
    Knob("generation.penalty.gen_presence_penalty", 0.5, trains, SAMPLER),
    Knob("generation.penalty.gen_stop_sequences", ["R"], trains),
    Knob("generation.penalty.gen_min_p", 0.9, trains),
    Knob("generation.penalty.gen_repetition_penalty", 3.0, trains, SAMPLER),
    Knob("generation.allowed_tokens", [], trains),
    Knob("generation.batch_size", 5, path("decodes")),
    Knob("generation.async_steps", 1, trains, SAMPLER),
)

OPTIMIZATION = (
    Knob("optimization.prompts_per_step", 3, trains),
    Knob("optimization.minibatches", 2, trains),
    Knob("optimization.num_iterations", 2, trains),
    Knob("optimization.grad_accum_steps", 2, path("sampler calls")),
    Knob("optimization.num_epochs", 2, lasts(6), ("optimization.total_training_steps=0",)),
    Knob("optimization.total_training_steps", 3, lasts(3)),
    Knob("optimization.learning_rate", 0.02, trains),
    Knob("optimization.lr_scheduler_type", "linear", trains),
    Knob("optimization.warmup_steps", 1, trains),
    Knob("optimization.max_grad_norm", 0.01, trains, ("optimization.adam_epsilon=0.01",)),
    Knob("optimization.zero_signal_step", "step", trains, (*HALF, "optimization.weight_decay=0.1")),
    Knob("optimization.adam_beta1", 0.1, trains),
    Knob("optimization.adam_beta2", 0.1, trains),
    Knob("optimization.adam_epsilon", 0.1, trains),
    Knob("optimization.weight_decay", 0.1, trains),
)

BY_MODES = ("data.prompt_template='Any of {num_modes}'", "data.overlap=allow", "optimization.prompts_per_step=2")
"""Questions that say nothing but how many answers are right, so that many are the same."""

DATA = (
    Knob("data.shuffle", False, trains),
    Knob("data.order_seed", 1, trains),
    Knob("data.system_prompt", "Colour it.", trains),
    Knob("data.prompt_template", "Colour {prompt}", trains),
    Knob("data.examples", [Example("RG.", "B")], trains),
    Knob("data.assistant_prefix", "R", trains),
    Knob("data.chat", False, trains),
    Knob("data.dedup", "keep", trains, BY_MODES),
    Knob("data.overlap", "drop", trains, (*BY_MODES, "data.dedup=keep", "data.num_eval=1")),
    Knob("data.answer_in", "tags", trains),
    Knob("data.render_ahead", 0, measures("data/dropped_prompts")),
    Knob("data.num_vertices", 4, trains),
    Knob("data.num_hidden", 2, trains, WIDE),
    Knob("data.edge_probability", 0.2, trains),
    Knob("data.min_modes", 3, trains, WIDE),
    Knob("data.max_modes", 4, trains, WIDE),
    Knob("data.num_train", 9, trains),
    Knob("data.num_eval", 3, evaluates, (*EVAL, *WIDE)),
    Knob("data.problem_seed", 1, trains),
    Knob("data.num_numbers", 4, trains, (*COUNTDOWN, "generation.max_completion_len=12")),
    Knob("data.min_number", 3, trains, COUNTDOWN),
    Knob("data.max_number", 9, trains, COUNTDOWN),
    Knob("data.min_target", 5, trains, COUNTDOWN),
    Knob("data.max_target", 9, trains, COUNTDOWN),
)

MODEL = (
    Knob("model.hidden_size", 64, trains),
    Knob("model.num_layers", 2, trains),
    Knob("model.num_heads", 2, trains, ("model.hidden_size=64",)),
    Knob("model.intermediate_size", 48, trains),
    Knob("model.init_seed", 1, trains),
    Knob("model.dtype", "float64", trains),
    Knob("model.attention", "eager", path("fused attentions")),
    Knob("model.gradient_checkpointing", True, path("layer passes")),
    Knob("model.lora.enabled", True, trains),
    Knob("model.lora.rank", 4, trains, LORA),
    Knob("model.lora.alpha", 4.0, trains, LORA),
    Knob("model.lora.use_rslora", True, trains, LORA),
    Knob("model.lora.target_modules", ["q_proj", "v_proj"], trains, LORA),
    Knob("model.warm_start.enabled", False, trains, WARM),
    Knob("model.warm_start.steps", 3, trains, WARM),
    Knob("model.warm_start.batch_size", 3, trains, WARM),
    Knob("model.warm_start.answers_per_problem", 0, trains, WARM),
    Knob("model.warm_start.learning_rate", 0.01, trains, WARM),
    Knob("model.warm_start.num_problems", 4, trains, WARM),
    Knob("model.warm_start.mode_skew", 3.0, trains, WARM),
    Knob("model.warm_start.seed", 1, trains, WARM),
)


FUNCTIONS = (
    *("+reward.terms.by_question=1", "+reward.functions.by_question=support.graders:by_question"),
    *("+reward.terms.slow_on_red=1", "+reward.functions.slow_on_red=support.graders:slow_on_red"),
    "+reward.on_error.slow_on_red=abstain",
)
SHAPED = (
    *(f"+reward.terms.{name}=1" for name in ("format", "regex", "length", "overlong", "repetition")),
    *("reward.regex.pattern=R", "reward.length.target=2", "reward.length.width=4", "reward.repetition.ngram_size=1"),
    "reward.normalize=sum",
)

REWARD = (
    Knob("reward.terms", {"task": 1.0, "spread": 0.6}, trains),
    Knob("reward.functions", {"spread": "support.graders:starts_with_red"}, trains),
    Knob("reward.styles", {"by_question": FunctionStyle.messages}, trains, FUNCTIONS),
    Knob("reward.time_limits", {"slow_on_red": 0.01}, trains, FUNCTIONS),
    Knob("reward.workers", 1, path("shares rewarded elsewhere")),
    Knob("reward.normalize", "term", trains, SHAPED),
    Knob("reward.normalize_by", "batch", trains, SHAPED),
    Knob("reward.format.style", "boxed", trains, SHAPED),
    Knob("reward.regex.pattern", "G", trains, SHAPED),
    Knob("reward.regex.match", "whole", trains, SHAPED),
    Knob("reward.length.target", 1, trains, SHAPED),
    Knob("reward.length.width", 2, trains, SHAPED),
    Knob("reward.length.shape", "at_least", trains, SHAPED),
    Knob("reward.overlong.buffer", 3, trains, SHAPED),
    Knob("reward.overlong.limit", 3, trains, SHAPED),
    Knob("reward.repetition.ngram_size", 2, trains, SHAPED),
    Knob("reward.repetition.unit", "words", trains, SHAPED),
)

RECORD = (
    Knob("evaluation.enabled", False, evaluates, EVAL),
    Knob("evaluation.every_n_steps", 1, evaluates, EVAL),
    Knob("evaluation.batch_size", 3, evaluates_alike("sampler calls"), EVAL),
    Knob("evaluation.num_samples", 5, evaluates, EVAL),
    Knob("evaluation.ks", [1, 2], evaluates, EVAL),
    Knob("evaluation.seed", 1, evaluates, EVAL),
    Knob("evaluation.temperature", 0.3, evaluates, EVAL),
    Knob("evaluation.top_p", 0.4, evaluates, EVAL),
    Knob("evaluation.greedy", False, stops_measuring("eval/greedy"), EVAL),
    Knob("evaluation.exact", "never", stops_measuring("eval/exact/"), EVAL),
    Knob("evaluation.seed_eval.enabled", False, stops_measuring("eval/seed/"), SEEDS),
    Knob("evaluation.seed_eval.num_seeds", 3, evaluates, SEEDS),
    Knob("evaluation.seed_eval.samples_per_seed", 3, evaluates, SEEDS),
    Knob("evaluation.seed_eval.template", "<{seed}>", evaluates, SEEDS),
    Knob("evaluation.seed_eval.pooling", "last", changes_alone("eval/seed/probe_accuracy"), SEEDS),
    Knob("logging.completions_every", 2, records),
    Knob("logging.completions_per_step", 3, records),
    Knob("logging.report", True, writes("report.png", "report.html")),
    Knob("logging.trackers", [TrackerName.tensorboard], writes("tensorboard")),
    Knob("checkpoint.every_n_steps", 1, writes("checkpoints/step_1")),
    Knob(
        "checkpoint.keep_last",
        1,
        writes("checkpoints/step_1"),
        ("checkpoint.every_n_steps=1",),
    ),
    Knob(
        "checkpoint.best_metric",
        "eval/mean_length",
        writes("checkpoints/best", "checkpoints/step_1"),
        (*EVAL, "optimization.learning_rate=1e-12", "evaluation.every_n_steps=1"),
    ),
    Knob("checkpoint.best_goal", "min", names_best, BEST),
    Knob("checkpoint.final_model", True, writes("model")),
    Knob("checkpoint.early_stop_patience", 1, lasts(2), (*BEST, "optimization.learning_rate=1e-12")),
    *REWARD,
    Knob("run.device", "auto", computes_on_cpu),
    Knob("run.num_threads", 2, uses_threads),
    Knob("run.profile", True, writes(*PROFILE), ("run.profile_steps=[2]",)),
    Knob("run.profile_steps", [1, 2], writes(*PROFILE[1:]), ("run.profile=true", "run.profile_steps=[1]")),
    Knob("seed", 1, trains),
)

OWN_RULE = ("scoring.advantage=function", "scoring.advantage_function=support.rules:centred")

DRAWN_AGAIN = (
    "scoring.dynamic_sampling.enabled=true",
    "optimization.total_training_steps=3",
    *only_reward("mixed_on_half"),
)
DRAWING = (
    Knob("scoring.dynamic_sampling.enabled", True, trains, only_reward("mixed_on_half")),
    Knob("scoring.dynamic_sampling.max_refill", 0, trains, DRAWN_AGAIN),
    Knob("scoring.dynamic_sampling.carry_over", False, trains, DRAWN_AGAIN),
)

OWN = (
    Knob("scoring.advantage_function", "support.rules:first_of_the_group", trains, OWN_RULE),
    Knob("scoring.equal_groups", "drop", trains, ("scoring.kl_beta=0.5", *only_reward("starts_with_red"))),
)

ENTROPY = (
    *("scoring=maxent", "controller=entropy", "optimization.total_training_steps=4"),
    *("controller.warmup_steps=0", "controller.learning_rate=2"),
)
LINEAR = (*ENTROPY, "controller.schedule.kind=linear", "controller.schedule.horizon=2")
PEAK = (
    *(*ENTROPY, "controller.schedule.kind=peak"),
    *("controller.schedule.peak_step=1", "controller.schedule.horizon=4"),
)
HELD = ("controller=kl", "scoring.kl_beta=0.5", "optimization.total_training_steps=3")

CONTROLLER = (
    Knob("controller.tau_min", 0.0999, trains, (*ENTROPY, "controller.target_fraction=0.01")),
    Knob("controller.tau_max", 0.1001, trains, (*ENTROPY, "controller.target_fraction=0.99")),
    Knob("controller.target_fraction", 0.9, trains, ENTROPY),
    Knob("controller.learning_rate", 0.5, trains, ENTROPY),
    Knob("controller.ema", 0.0, trains, ENTROPY),
    Knob("controller.warmup_steps", 1, trains, ENTROPY),
    Knob("controller.schedule.kind", "linear", trains, (*ENTROPY, "controller.schedule.horizon=2")),
    Knob("controller.schedule.final", 0.9, trains, LINEAR),
    Knob("controller.schedule.horizon", 9, trains, LINEAR),
    Knob("controller.schedule.peak", 0.1, trains, PEAK),
    Knob("controller.schedule.peak_step", 3, trains, PEAK),
    Knob(
        "controller.target_size",
        3.0,
        trains,
        ("scoring=maxent", "controller=effective_size", "controller.target_size=2"),
    ),
    Knob("controller.target", "listwise_beta", trains, (*HELD, "scoring=maxent", "scoring.weighting.beta=0.1")),
    Knob("controller.target_kl", 1.0, trains, HELD),
    Knob("controller.law", "halving", trains, HELD),
    Knob("controller.clip", 0.5, trains, HELD),
    Knob("controller.horizon", 1.0, trains, HELD),
    Knob("controller.gain", 0.1, trains, (*HELD, "controller.law=pi")),
    Knob("controller.integral_gain", 0.5, trains, (*HELD, "controller.law=pi")),
    Knob("controller.beta_min", 0.45, trains, (*HELD, "controller.law=halving")),
    Knob(
        "controller.beta_max",
        0.51,
        trains,
        (*HELD, "controller.law=additive", "controller.learning_rate=50", "controller.target_kl=0.001"),
    ),
)

ANALYTIC = (
    *("scoring=maxent", "scoring.weighting.tau=0.5", "controller=meta", "controller.min_groups=1"),
    *("controller.every_n_steps=1", "controller.optimizer=sgd", "controller.learning_rate=0.1"),
    "optimization.total_training_steps=3",
)
REWARD_GRADIENT = (
    *(*ANALYTIC, "controller.mode=first_order", "controller.every_n_steps=10", "controller.num_prompts=6"),
    *("controller.learning_rate=50", "optimization.total_training_steps=11", "optimization.learning_rate=0.002"),
)

META = (
    Knob("controller.mode", "first_order", trains, (*REWARD_GRADIENT, "controller.mode=analytic")),
    Knob("controller.every_n_steps", 2, trains, ANALYTIC),
    Knob("controller.optimizer", "adam", trains, ANALYTIC),
    Knob("controller.max_gradient", 0.01, trains, ANALYTIC),
    Knob("controller.max_log_change", 0.01, trains, ANALYTIC),
    Knob("controller.min_groups", 4, trains, ANALYTIC),
    Knob("controller.adapt_beta", True, trains, (*ANALYTIC, "scoring.weighting.beta=0.2")),
    Knob("controller.num_prompts", 3, adapts, REWARD_GRADIENT),
    Knob("controller.optimizer_jacobian", "frozen", adapts, REWARD_GRADIENT),
)

KNOBS = (*SCORING, *METHODS, *DRAWING, *OWN, *GENERATION, *OPTIMIZATION, *DATA, *MODEL, *CONTROLLER, *META, *RECORD)
"""Changes that two runs show; settings that take more than that have a test of their own, named in ``test_knobs``."""
