"""What other trainers call a setting: for the sentence about a name that is none here, where likeness would mislead.

TRL's `beta` is nearest to another `beta` of this package, and `per_device_train_batch_size` to nothing at all.
"""

from __future__ import annotations

TRL, VERL, TRANSFORMERS = "TRL", "verl", "transformers"

_PROMPTS = "optimization.prompts_per_step, the prompts of a whole step over all processes"
_KL = "scoring.kl_beta; scoring.weighting.beta is another, the listwise one"

NAMES: dict[str, tuple[str, str]] = {
    "beta": (TRL, _KL),
    "bf16": (TRANSFORMERS, "model.dtype=bfloat16"),
    "dataset_name": (TRL, "data.name, with data=hub"),
    "delta": (TRL, "scoring.clipping.clip_delta"),
    "epsilon": (TRL, "scoring.clipping.clip_range"),
    "epsilon_high": (TRL, "scoring.clipping.clip_range_high"),
    "eval_steps": (TRANSFORMERS, "evaluation.every_n_steps"),
    "frequency_penalty": (TRL, "generation.penalty.gen_frequency_penalty"),
    "gradient_accumulation_steps": (TRANSFORMERS, "optimization.grad_accum_steps"),
    "importance_sampling_level": (TRL, "scoring.ratio_level"),
    "lora_alpha": (TRL, "model.lora.alpha"),
    "lora_r": (TRL, "model.lora.rank"),
    "loss_type": (TRL, "the option itself: scoring=grpo, scoring=dr_grpo, scoring=dapo, ..."),
    "mask_truncated_completions": (TRL, "scoring.truncation=mask_loss"),
    "max_completion_length": (TRL, "generation.max_completion_len"),
    "max_prompt_length": (TRL, "generation.max_prompt_len"),
    "max_steps": (TRANSFORMERS, "optimization.total_training_steps"),
    "min_p": (TRL, "generation.penalty.gen_min_p"),
    "model_name_or_path": (TRL, "model.name, with model=hf"),
    "num_generations_eval": (TRL, "evaluation.num_samples"),
    "num_return_sequences": (TRANSFORMERS, "generation.num_generations"),
    "num_train_epochs": (TRANSFORMERS, "optimization.num_epochs"),
    "output_dir": (TRANSFORMERS, "run.dir"),
    "per_device_train_batch_size": (TRANSFORMERS, _PROMPTS),
    "presence_penalty": (TRL, "generation.penalty.gen_presence_penalty"),
    "ref_model_mixup_alpha": (TRL, "scoring.reference_sync.mixing"),
    "ref_model_sync_steps": (TRL, "scoring.reference_sync.every_n_steps"),
    "repetition_penalty": (TRL, "generation.penalty.gen_repetition_penalty"),
    "report_to": (TRANSFORMERS, "logging.trackers"),
    "resume_from_checkpoint": (TRANSFORMERS, "checkpoint.resume_from"),
    "reward_funcs": (TRL, "reward.functions"),
    "reward_weights": (TRL, "reward.terms, weights by name"),
    "save_steps": (TRANSFORMERS, "checkpoint.every_n_steps"),
    "scale_rewards": (TRL, "scoring.advantage"),
    "steps_per_generation": (TRL, "optimization.minibatches"),
    "sync_ref_model": (TRL, "scoring.reference_sync.every_n_steps, 0 being off"),
    "top_entropy_quantile": (TRL, "scoring.token_selection.entropy_quantile, which is 1 minus it"),
    "top_k": (TRL, "generation.penalty.gen_top_k"),
    "use_bias_correction_kl": (TRL, "scoring.kl_estimator=k3_is"),
    "use_vllm": (TRL, "generation=vllm"),
    "vllm_gpu_memory_utilization": (TRL, "generation.engine.gpu_memory_utilization"),
    "vllm_importance_sampling_correction": (TRL, "scoring.mismatch.mode"),
    "vllm_mode": (TRL, "generation.vllm_mode, with generation=vllm"),
    "vllm_server_base_url": (TRL, "generation.vllm.url"),
    "vllm_tensor_parallel_size": (TRL, "generation.engine.tensor_parallel_size"),
    "warmup_ratio": (TRANSFORMERS, "optimization.warmup_steps, a number of steps"),
    "actor_rollout_ref.model.path": (VERL, "model.name, with model=hf"),
    "adv_estimator": (VERL, "the option itself: scoring=grpo, scoring=rloo, scoring=reinforce_pp, ..."),
    "clip_ratio": (VERL, "scoring.clipping.clip_range"),
    "clip_ratio_c": (VERL, "scoring.clipping.clip_delta"),
    "clip_ratio_high": (VERL, "scoring.clipping.clip_range_high"),
    "clip_ratio_low": (VERL, "scoring.clipping.clip_range"),
    "entropy_coeff": (VERL, "scoring.entropy_coef"),
    "generation.n": (VERL, "generation.num_generations"),
    "grad_clip": (VERL, "optimization.max_grad_norm"),
    "kl_coef": (VERL, _KL),
    "kl_loss_coef": (VERL, _KL),
    "kl_loss_type": (VERL, "scoring.kl_estimator"),
    "loss_agg_mode": (VERL, "scoring.reduction"),
    "lr": (VERL, "optimization.learning_rate"),
    "max_response_length": (VERL, "generation.max_completion_len"),
    "ppo_epochs": (VERL, "optimization.num_iterations"),
    "ppo_max_token_len_per_gpu": (VERL, "scoring.batching.max_tokens"),
    "ppo_micro_batch_size_per_gpu": (VERL, "scoring.batching.score_slice"),
    "ppo_mini_batch_size": (VERL, _PROMPTS),
    "rollout.n": (VERL, "generation.num_generations"),
    "save_freq": (VERL, "checkpoint.every_n_steps"),
    "tensor_model_parallel_size": (VERL, "generation.engine.tensor_parallel_size"),
    "test_freq": (VERL, "evaluation.every_n_steps"),
    "total_epochs": (VERL, "optimization.num_epochs"),
    "train_batch_size": (VERL, f"{_PROMPTS}, times optimization.minibatches"),
    "train_files": (VERL, "data.path, with data=table"),
}
"""The end of a path, without its first names where these do not matter: whose name it is, and what to type here."""


def known_elsewhere(path: str) -> str | None:
    """The end of the sentence about a name that another trainer has, by its longest end in the table; None for any other."""
    parts = path.split(".")
    for first in range(len(parts)):
        end = ".".join(parts[first:])
        if end in NAMES:
            who, here = NAMES[end]
            return f"{who}'s {end} is here {here}"
    return None
