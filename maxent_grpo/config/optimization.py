"""`optimization`: batch sizes, length of training, optimiser."""

from dataclasses import dataclass, field

from maxent_grpo.config.parallel import ParallelConfig
from maxent_grpo.training.types.choices import ZeroSignalStep


@dataclass(slots=True)
class OptimizationConfig:
    """Fields that every optimiser has."""

    prompts_per_step: int = 16
    """Prompts of one optimiser step, over all processes; each has generation.num_generations completions [prompts]."""
    minibatches: int = 1
    """Optimiser steps that one pass over a rollout is split into; a rollout has prompts_per_step * minibatches prompts [steps]."""
    num_iterations: int = 1
    """Passes over each rollout; above 1 the ratio and the clip act [passes]."""
    grad_accum_steps: int = 1
    """Loader batches, each sampled and scored on its own, that one optimiser step sums [batches]."""
    num_epochs: int = 1
    """Training length when total_training_steps is 0: num_epochs * ceil(prompts / prompts_per_step) steps [epochs]."""
    total_training_steps: int = 200
    """Training length; 0 leaves it to num_epochs [steps]."""
    learning_rate: float = 5e-4
    """Peak learning rate."""
    lr_scheduler_type: str = "cosine"
    """Learning-rate schedule: a name of transformers' get_scheduler, such as linear, cosine, constant_with_warmup."""
    warmup_steps: int = 5
    """Steps over which the learning rate rises from 0 [steps]."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 switches clipping off."""
    zero_signal_step: ZeroSignalStep = ZeroSignalStep.skip
    """When the whole step's gradient is exactly zero: `skip` optimiser and schedule, or `step` (moments decay)."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


@dataclass(slots=True)
class AdamWConfig(OptimizationConfig):
    """AdamW."""

    adam_beta1: float = 0.9
    """Decay of the first moment."""
    adam_beta2: float = 0.95
    """Decay of the second moment."""
    adam_epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
