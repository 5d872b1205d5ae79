"""TRL's GRPOTrainer on a given batch: its own inputs, advantages, loss and gradients, with nothing of it replaced.

The completions come in through `rollout_func`, the rewards through reward functions that return given values.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import support.trl_without_vllm  # noqa: F401
import torch
from datasets import Dataset
from support.parity import GivenBatch, Outcome, gradients
from support.tiny import tiny_tokenizer
from torch import Tensor
from transformers import PreTrainedModel
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

Inputs = dict[str, Any]


def trainer_for(
    policy: PreTrainedModel,
    batch: GivenBatch,
    folder: Path,
    *,
    rewards: Mapping[str, Sequence[float | None]] | None = None,
    sampled_logp: Tensor | None = None,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> GRPOTrainer:
    """A trainer of a copy of ``policy``, whose reference is the model saved in ``folder``.

    Args:
        policy: the model as it is to be trained.
        batch: what sampling returns.
        folder: where the reference stands, and where the trainer may write.
        rewards: values of each reward function, None where it abstains; by default a single one of zeros.
        sampled_logp: [N, T] log-probabilities that the sampler reports; by default zeros.
        callbacks: handed to the trainer.
        options: options of `GRPOConfig`.
    """
    model = copy.deepcopy(policy)
    model.config._name_or_path = str(folder)
    completions, lengths = batch.completions, [len(completion) for completion in batch.completions]
    reported = torch.zeros(batch.mask.shape) if sampled_logp is None else sampled_logp

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        return {
            "prompt_ids": batch.prompt_of_each,
            "completion_ids": completions,
            "logprobs": [row[:length].tolist() for row, length in zip(reported, lengths, strict=True)],
        }

    def reward_function(name: str, values: Sequence[float | None]) -> Any:
        def function(completions: list[str], **columns: Any) -> list[float | None]:
            return list(values)

        function.__name__ = name
        return function

    given = {"zero": [0.0] * len(completions)} if rewards is None else rewards
    steps = options.get("steps_per_generation", options.get("gradient_accumulation_steps", 1))
    config = GRPOConfig(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "max_steps": 1,
            "per_device_train_batch_size": len(completions) // steps,
            "num_generations": batch.group_size,
            "max_completion_length": batch.max_length,
            **options,
        }
    )
    with warnings.catch_warnings():
        # the trainer says that `rollout_func` may change: the version is pinned
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'", category=UserWarning)
        return GRPOTrainer(
            model=model,
            reward_funcs=[reward_function(name, values) for name, values in given.items()],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["x"] * len(batch.prompts)}),
            processing_class=copy.deepcopy(tiny_tokenizer()),
            rollout_func=rollout,
            callbacks=list(callbacks),
        )


def generation_inputs(trainer: GRPOTrainer, batch: GivenBatch) -> Inputs:
    """What the trainer makes of the batch before it trains on it: padded ids, masks, advantages, log-probabilities."""
    trainer.model.train()
    return trainer._generate_and_score_completions([{"prompt": "x"} for _ in batch.completions])


def micro_batches(inputs: Inputs, number: int) -> list[Inputs]:
    """The inputs cut as the trainer cuts them; it shuffles rows before, which is left out here."""
    return split_tensor_dict(inputs, number)


def window_outcome(trainer: GRPOTrainer, window: Sequence[Inputs]) -> Outcome:
    """One optimiser step up to its gradient: the micro-batches of an accumulation window, one after the other."""
    trainer.model.zero_grad(set_to_none=True)
    trainer.current_gradient_accumulation_steps = len(window)  # the training loop sets it for each window
    total = 0.0
    for inputs in window:
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        total += float(loss.detach())
    return Outcome(total, gradients(trainer.model))
