"""Gate 3, first half: the range of every number that can be set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

from maxent_grpo.config.declared import shown
from maxent_grpo.config.root import RootConfig


@dataclass(frozen=True, slots=True)
class Interval:
    """The values a setting may have. ``open_low`` and ``open_high`` exclude the ends; NaN is in no interval."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = True

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        bounds: list[str] = []
        if self.low > -math.inf:
            bounds.append(f"{'above' if self.open_low else 'at least'} {_bound(self.low)}")
        if self.high < math.inf:
            bounds.append(f"{'below' if self.open_high else 'at most'} {_bound(self.high)}")
        return " and ".join(bounds) or "finite"


def _bound(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


COUNT = Interval(1)
COUNT_OR_ZERO = Interval(0)
COMPLETION_TOKENS = Interval(1, 2**20, open_high=False)
"""Room is made for the longest completion that is allowed, so that a limit beyond all use is not none."""
THREADS = Interval(1, 1024, open_high=False)
NOT_NEGATIVE = Interval(0.0)
POSITIVE = Interval(0.0, open_low=True)
FINITE = Interval(-math.inf, open_low=True)
SEED = Interval(0, 2**32)
SHARE_ABOVE_ZERO = Interval(0.0, 1.0, open_low=True, open_high=False)
BELOW_ONE = Interval(0.0, 1.0)
INSIDE_ONE = Interval(0.0, 1.0, open_low=True)
VLLM_PENALTY = Interval(-2.0, 2.0, open_high=False)
"""Presence and frequency penalties that vLLM takes."""

RANGES: dict[str, Interval] = {
    "seed": SEED,
    "model.hidden_size": COUNT,
    "model.num_layers": COUNT,
    "model.num_heads": COUNT,
    "model.intermediate_size": COUNT,
    "model.init_seed": SEED,
    "model.lora.rank": COUNT,
    "model.lora.alpha": POSITIVE,
    "model.lora.dropout": BELOW_ONE,
    "model.warm_start.steps": COUNT,
    "model.warm_start.batch_size": COUNT,
    "model.warm_start.answers_per_problem": COUNT_OR_ZERO,
    "model.warm_start.learning_rate": POSITIVE,
    "model.warm_start.num_problems": COUNT,
    "model.warm_start.mode_skew": NOT_NEGATIVE,
    "model.warm_start.seed": SEED,
    "data.order_seed": SEED,
    "data.render_ahead": COUNT_OR_ZERO,
    "data.num_vertices": Interval(2, 12, open_high=False),
    "data.num_hidden": COUNT,
    "data.edge_probability": Interval(0.0, 1.0, open_high=False),
    "data.num_numbers": Interval(3, 4, open_high=False),
    "data.min_number": COUNT,
    "data.max_number": Interval(1, 10**6, open_high=False),
    "data.min_target": COUNT,
    "data.max_target": COUNT,
    "data.min_modes": COUNT,
    "data.max_modes": COUNT,
    "data.num_train": COUNT,
    "data.num_eval": COUNT,
    "data.problem_seed": SEED,
    "data.eval_fraction": BELOW_ONE,
    "data.split_seed": SEED,
    "data.shuffle_buffer": COUNT,
    "data.check_answers": COUNT_OR_ZERO,
    "generation.num_generations": COUNT,
    "generation.max_prompt_len": COUNT,
    "generation.max_completion_len": COMPLETION_TOKENS,
    "generation.temperature": NOT_NEGATIVE,
    "generation.top_p": SHARE_ABOVE_ZERO,
    "generation.penalty.gen_top_k": COUNT,
    "generation.penalty.gen_best_of": COUNT,
    "generation.penalty.gen_frequency_penalty": FINITE,
    "generation.penalty.gen_presence_penalty": FINITE,
    "generation.penalty.gen_min_p": BELOW_ONE,
    "generation.penalty.gen_repetition_penalty": POSITIVE,
    "generation.max_retry_rounds": COUNT_OR_ZERO,
    "generation.async_steps": Interval(0, 1, open_high=False),
    "generation.batch_size": COUNT_OR_ZERO,
    "generation.vllm.rounds_cfg": COUNT_OR_ZERO,
    "generation.vllm.retry_sleep": NOT_NEGATIVE,
    "generation.vllm.best_of": COUNT,
    "generation.vllm.frequency_penalty": VLLM_PENALTY,
    "generation.vllm.presence_penalty": VLLM_PENALTY,
    "generation.vllm.top_k": COUNT,
    "generation.vllm.timeout": POSITIVE,
    "generation.vllm.max_retries": COUNT_OR_ZERO,
    "generation.vllm.backoff": NOT_NEGATIVE,
    "generation.vllm.backoff_multiplier": Interval(1.0),
    "generation.vllm.max_staleness": COUNT_OR_ZERO,
    "generation.vllm.sync_interval": COUNT,
    "generation.engine.max_model_len": COUNT,
    "generation.engine.gpu_memory_utilization": SHARE_ABOVE_ZERO,
    "generation.engine.kv_cache_gib": COUNT,
    "generation.engine.tensor_parallel_size": COUNT,
    "generation.engine.startup_seconds": POSITIVE,
    "generation.max_in_flight": COUNT,
    "scoring.weighting.tau": NOT_NEGATIVE,
    "scoring.weighting.beta": NOT_NEGATIVE,
    "scoring.weighting.q_temperature": POSITIVE,
    "scoring.weighting.q_epsilon": BELOW_ONE,
    "scoring.weighting.score_length": COUNT,
    "scoring.weighting.listwise_coef": NOT_NEGATIVE,
    "scoring.weighting.right_threshold": FINITE,
    "scoring.clipping.clip_range": Interval(0.0, 1.0, open_low=True),
    "scoring.clipping.clip_range_high": POSITIVE,
    "scoring.clipping.clip_objective_coef": NOT_NEGATIVE,
    "scoring.clipping.clip_adv_baseline": FINITE,
    "scoring.clipping.clip_delta": POSITIVE,
    "scoring.batching.logprob_chunk_size": COUNT_OR_ZERO,
    "scoring.batching.score_slice": COUNT_OR_ZERO,
    "scoring.batching.max_tokens": COUNT_OR_ZERO,
    "scoring.batching.score_tail_tokens": COUNT,
    "scoring.batching.slice_prefetch": COUNT_OR_ZERO,
    "scoring.batching.prompt_cache_size": COUNT_OR_ZERO,
    "scoring.kl_beta": NOT_NEGATIVE,
    "scoring.entropy_coef": NOT_NEGATIVE,
    "scoring.policy_entropy_bonus_coef": NOT_NEGATIVE,
    "scoring.mismatch.cap": POSITIVE,
    "scoring.mismatch.floor": NOT_NEGATIVE,
    "scoring.reference_sync.every_n_steps": COUNT_OR_ZERO,
    "scoring.reference_sync.mixing": SHARE_ABOVE_ZERO,
    "scoring.pass_k": COUNT,
    "scoring.shaping.uniqueness_power": NOT_NEGATIVE,
    "scoring.shaping.unlikeliness_discount": Interval(0.0, 1.0, open_high=False),
    "scoring.shaping.overlong_buffer": COUNT_OR_ZERO,
    "scoring.shaping.overlong_weight": NOT_NEGATIVE,
    "scoring.row_weights.tau": NOT_NEGATIVE,
    "scoring.row_weights.entropy_alpha": Interval(-1.0, open_low=True),
    "scoring.surrogate.ratio_cap": Interval(1.0),
    "scoring.surrogate.positive_temperature": POSITIVE,
    "scoring.surrogate.negative_temperature": POSITIVE,
    "scoring.token_selection.share": SHARE_ABOVE_ZERO,
    "scoring.token_selection.covariance_low": FINITE,
    "scoring.token_selection.covariance_high": FINITE,
    "scoring.token_selection.kl_coef": NOT_NEGATIVE,
    "scoring.token_selection.entropy_quantile": Interval(0.0, 1.0),
    "scoring.dynamic_sampling.max_refill": COUNT_OR_ZERO,
    "optimization.prompts_per_step": COUNT,
    "optimization.minibatches": COUNT,
    "optimization.num_iterations": COUNT,
    "optimization.grad_accum_steps": COUNT,
    "optimization.num_epochs": COUNT_OR_ZERO,
    "optimization.total_training_steps": COUNT_OR_ZERO,
    "optimization.learning_rate": POSITIVE,
    "optimization.warmup_steps": COUNT_OR_ZERO,
    "optimization.max_grad_norm": NOT_NEGATIVE,
    "optimization.adam_beta1": BELOW_ONE,
    "optimization.adam_beta2": BELOW_ONE,
    "optimization.adam_epsilon": POSITIVE,
    "optimization.weight_decay": NOT_NEGATIVE,
    "optimization.parallel.deepspeed.zero_stage": Interval(2, 3, open_high=False),
    "controller.tau_min": POSITIVE,
    "controller.tau_max": POSITIVE,
    "controller.target_fraction": INSIDE_ONE,
    "controller.schedule.peak": INSIDE_ONE,
    "controller.schedule.peak_step": COUNT_OR_ZERO,
    "controller.schedule.final": INSIDE_ONE,
    "controller.schedule.horizon": COUNT,
    "controller.learning_rate": POSITIVE,
    "controller.ema": BELOW_ONE,
    "controller.warmup_steps": COUNT_OR_ZERO,
    "controller.target_size": Interval(1.0, open_low=True),
    "controller.target_kl": POSITIVE,
    "controller.clip": INSIDE_ONE,
    "controller.horizon": Interval(1.0),
    "controller.gain": NOT_NEGATIVE,
    "controller.integral_gain": NOT_NEGATIVE,
    "controller.beta_min": NOT_NEGATIVE,
    "controller.beta_max": POSITIVE,
    "controller.every_n_steps": COUNT,
    "controller.max_gradient": POSITIVE,
    "controller.max_log_change": POSITIVE,
    "controller.min_groups": COUNT,
    "controller.num_prompts": COUNT,
    "reward.workers": COUNT_OR_ZERO,
    "reward.numeric.absolute": NOT_NEGATIVE,
    "reward.numeric.relative": NOT_NEGATIVE,
    "reward.regex.time_limit": POSITIVE,
    "reward.length.target": COUNT,
    "reward.length.width": COUNT,
    "reward.overlong.buffer": COUNT,
    "reward.overlong.limit": COUNT,
    "reward.repetition.ngram_size": COUNT,
    "evaluation.every_n_steps": COUNT,
    "evaluation.batch_size": COUNT,
    "evaluation.num_samples": COUNT,
    "evaluation.seed": SEED,
    "evaluation.temperature": NOT_NEGATIVE,
    "evaluation.top_p": SHARE_ABOVE_ZERO,
    "evaluation.seed_eval.num_seeds": Interval(2),
    "evaluation.seed_eval.samples_per_seed": COUNT,
    "logging.completions_every": COUNT_OR_ZERO,
    "logging.completions_per_step": COUNT_OR_ZERO,
    "checkpoint.every_n_steps": COUNT,
    "checkpoint.keep_last": COUNT_OR_ZERO,
    "checkpoint.early_stop_patience": COUNT,
    "run.num_threads": THREADS,
    "run.max_hours": POSITIVE,
    "run.max_nonfinite": COUNT_OR_ZERO,
}
"""Dotted path to interval. A path that the chosen option does not have is passed over, and so is null."""


def out_of_range(config: RootConfig) -> Iterator[tuple[str, str]]:
    """Dotted path and sentence of every number outside its interval, NaN and infinities among them."""
    for path, value in numbers(config):
        interval = RANGES.get(path)
        if interval is not None and value not in interval:
            bounds = str(interval)
            if math.isinf(value) and math.isinf(interval.high) and math.isfinite(interval.low):
                bounds += " and finite"
            yield path, f"{path}={shown(value)}: must be {bounds}"


def numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Dotted path and value of every number in nested dataclasses; neither lists nor dictionaries are entered."""
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        if is_dataclass(value):
            yield from numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
