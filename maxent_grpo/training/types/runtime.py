"""What lives for the whole job: settings built once in setup, handles to live objects, and the loop's own state.

Settings and handles differ from configuration nodes because they may hold callables and devices; only ``ClipSettings``,
``ControllerPaths`` and ``GenerationPenaltyConfig`` are pure data and serve as configuration nodes too. torch is imported
for types only, so that a configuration error appears before it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from maxent_grpo.training.types.choices import (
    AdvantageKind,
    EqualGroups,
    GroupLoss,
    KlEstimator,
    MismatchMode,
    NormalizeBy,
    RatioLevel,
    Reduction,
    RewardNormalization,
    Truncation,
)
from maxent_grpo.training.types.credit import (
    DynamicSamplingSettings,
    RowWeightSettings,
    ShapingSettings,
    SurrogateSettings,
    TokenSelectionSettings,
)
from maxent_grpo.training.types.generation import (
    GENERATION_COUNTERS,
    GenerationPenaltyConfig,
    GenerationPenaltyPassthrough,
    GenerationSamplingConfig,
    SamplingCounters,
)

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn
    from torch.utils.data import DataLoader, Sampler
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from maxent_grpo.rewards.workers import RewardWorkers
    from maxent_grpo.training.method import Method
    from maxent_grpo.training.scoring.policy import TokenScorer
    from maxent_grpo.training.sharding import ShardedWeights
    from maxent_grpo.training.types.logging import LoggingHandles
    from maxent_grpo.training.types.rewards import PromptCacheEntry, ValidationContext
    from maxent_grpo.training.types.weighting import WeightingSettings


class GenerationFn(Protocol):
    """Samples completions: the seam between training and every sampler.

    Returns the texts grouped by prompt and, when it tracks them, one ``CompletionRecord`` per text. Callers must not know which it is.
    """

    def __call__(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[Any | None]] | None]:
        """Sample ``num_samples`` completions of each prompt, or ``per_prompt_counts[i]`` of prompt i when given."""
        ...


@dataclass(slots=True)
class BatchingSettings:
    """How a step's sequences are cut for scoring. Path settings: none of them changes the loss, except the tail window."""

    logprob_chunk_size: int
    score_slice: int
    prompt_length_cache_get: Callable[[str], PromptCacheEntry] | None = None
    score_tail_tokens: int | None = None
    slice_prefetch: int = 0
    prompt_cache_size: int = 0
    share_prompts: bool = True
    max_tokens: int = 0
    skip_zero_signal: bool = False


@dataclass(slots=True)
class ClipSettings:
    """Clipping of the importance ratio."""

    clip_range: float
    """Lower clip distance: ratios below 1 - clip_range are clipped where the advantage is negative."""
    use_clip_objective: bool
    """Advantage methods: clipped surrogate (true) or plain ratio * advantage (false). Listwise methods: add the clipped auxiliary term."""
    clip_objective_coef: float
    """Factor of the clipped term."""
    clip_adv_baseline: float | None
    """Baseline b of the auxiliary term's a_i = w_i - b; null is 1/n of the group."""
    clip_range_high: float | None = None
    """Upper clip distance: ratios above 1 + clip_range_high are clipped where the advantage is positive; null equals clip_range."""
    clip_delta: float | None = None
    """Cap of the unclipped ratio (two-sided clip); null is off; must exceed 1 + the upper distance."""


@dataclass(slots=True)
class ControllerPaths:
    """Where controller state is kept."""

    state_path: str | None = None
    """File of the controller state; null is `<run>/controller_state.json`."""
    resume_from: str | None = None
    """Start the controllers, and only them, from this state file of another run."""
    overwrite_existing: bool = False
    """A state file of another run at state_path: false refuses to start, true replaces it."""


@dataclass(slots=True)
class EvaluationSettings:
    """Held-out rows and how they are sampled."""

    enabled: bool
    rows: list[dict[str, str]]
    batch_size: int
    every_n_steps: int | None
    seed_eval: dict[str, Any] | None = None
    num_samples: int = 16
    ks: tuple[int, ...] = (1, 8)


@dataclass
class GenerationSettings(GenerationPenaltyPassthrough, GenerationSamplingConfig):
    """How completions are sampled. ``generation_stats`` is written by the rollout and drained by the metrics."""

    penalty: GenerationPenaltyConfig = field(default_factory=GenerationPenaltyConfig)
    generation_stats: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GENERATION_COUNTERS, 0))
    num_generations: int = 16
    max_retry_rounds: int = 0
    allowed_token_ids: tuple[int, ...] | None = None
    batch_size: int = 0


@dataclass(slots=True)
class OptimizationSchedule:
    """How long and in what portions training goes on; counts are optimiser steps."""

    num_epochs: int
    num_generations: int
    grad_accum_steps: int
    max_grad_norm: float
    steps_per_epoch: int | None
    total_training_steps: int
    warmup_steps: int
    lr_scheduler_type: str = "cosine"
    prompts_per_step: int = 16
    minibatches: int = 1
    num_iterations: int = 1

    @property
    def steps_per_rollout(self) -> int:
        """Optimiser steps that one full rollout serves: minibatches times iterations."""
        return self.minibatches * self.num_iterations


@dataclass(slots=True)
class OptimizerHandles:
    """The optimiser as prepared by accelerate, the schedule, and the unwrapped optimiser the learning rate is read from."""

    optimizer: torch.optim.Optimizer
    lr_scheduler: Any | None
    base_optimizer: torch.optim.Optimizer
    learning_rate: float


@dataclass(slots=True)
class OptimizationSettings:
    """Schedule and handles; ``skip_zero_signal``: leave parameters and moments alone when the gradient is exactly zero."""

    schedule: OptimizationSchedule
    handles: OptimizerHandles
    skip_zero_signal: bool = True


@dataclass(slots=True)
class RewardSpec:
    """Reward terms and their weights, one weight per term; and what of them is normalised before credit is assigned."""

    reward_funcs: Sequence[Any]
    reward_weights: list[float]
    normalize: RewardNormalization = RewardNormalization.none
    normalize_by: NormalizeBy = NormalizeBy.group
    workers: RewardWorkers | None = None
    """Processes that reward, if any."""

    def __post_init__(self) -> None:
        if len(self.reward_funcs) != len(self.reward_weights):
            raise ValueError(f"{len(self.reward_funcs)} reward functions for {len(self.reward_weights)} weights")
        names = [getattr(func, "name", repr(func)) for func in self.reward_funcs]
        if len(set(names)) != len(names):
            raise ValueError(f"reward names must be unique, got {names}")


@dataclass
class RuntimeHandles:
    """Live objects of the job. ``get_ref_model`` loads the frozen reference on first call; scoring calls it, nobody else."""

    accelerator: Accelerator
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train_loader: DataLoader
    train_sampler: Sampler | None
    device: torch.device
    get_ref_model: Callable[[], PreTrainedModel]
    reference_model: PreTrainedModel | None = None
    prompt_cache_get: Callable[[str], PromptCacheEntry] | None = None
    wrapped: nn.Module | None = None
    """``model`` as processes train it together, exchanging gradients; None where there is one process."""
    sharded: ShardedWeights | None = None
    """The weights where they are cut over the processes; None where each process has all of them."""

    def whole(self) -> AbstractContextManager[None]:
        """``model`` has its weights inside the block, which all processes enter and leave together."""
        return nullcontext() if self.sharded is None else self.sharded.whole()

    @property
    def trained(self) -> nn.Module:
        """What forward passes with a gradient go through. All others go through ``model``, as many of them as a process likes."""
        return self.model if self.wrapped is None else self.wrapped


@dataclass(slots=True)
class ReferenceSync:
    """A moving reference: every ``every_n_steps`` it becomes mixing * policy + (1 - mixing) * reference; 0 is frozen."""

    every_n_steps: int = 0
    """Optimiser steps between moves of the reference towards the policy; 0 keeps it frozen [steps]."""
    mixing: float = 1.0
    """Share of the policy in the moved reference; 1 replaces it."""


@dataclass(slots=True)
class MismatchSettings:
    """Correction of w = exp(old - sampled log-prob): cap above, floor below (mask modes)."""

    mode: MismatchMode = MismatchMode.bypass
    """`bypass` takes the sampler's log-probs as they are; `truncate` caps the weight, `mask` drops what lies outside floor and cap, per token, per sequence (the product over its tokens) or per geometric mean over them."""
    cap: float = 2.0
    """Largest weight kept."""
    floor: float = 0.5
    """Smallest weight kept by `token_mask` and `geometric_mask`."""


@dataclass(slots=True)
class ScoringSettings:
    """How completions are scored and which loss they make. The extra fields are the method's axes."""

    weighting: WeightingSettings
    clipping: ClipSettings
    batching: BatchingSettings
    reference_logprobs_source: str = "auto"
    behavior_logprobs_source: str = "model"
    allow_stale_reference_logprobs: bool = False
    trl_reference_scoring: bool = False
    policy_entropy_bonus_coef: float = 0.0
    policy_entropy: bool = False
    policy_entropy_mode: str = "exact"
    advantage: AdvantageKind = AdvantageKind.group_mean
    ratio_level: RatioLevel = RatioLevel.token
    reduction: Reduction = Reduction.constant
    kl_beta: float = 0.0
    kl_estimator: KlEstimator = KlEstimator.k3
    entropy_coef: float = 0.0
    truncation: Truncation = Truncation.keep
    mismatch: MismatchSettings = field(default_factory=MismatchSettings)
    reference_sync: ReferenceSync = field(default_factory=ReferenceSync)
    pass_k: int = 4
    shaping: ShapingSettings = field(default_factory=ShapingSettings)
    row_weights: RowWeightSettings = field(default_factory=RowWeightSettings)
    surrogate: SurrogateSettings = field(default_factory=SurrogateSettings)
    token_selection: TokenSelectionSettings = field(default_factory=TokenSelectionSettings)
    group_loss: GroupLoss = GroupLoss.cross_entropy
    dynamic_sampling: DynamicSamplingSettings = field(default_factory=DynamicSamplingSettings)
    advantage_function: str | None = None
    equal_groups: EqualGroups = EqualGroups.keep


class ControllerObjective(Protocol):
    """Gradients of an outer objective with respect to tau and beta; used by a meta controller."""

    def compute(self, context: TrainingLoopContext) -> ControllerGradients | None:
        """The gradients at the current step, or None when there is nothing to learn from."""


@dataclass(slots=True)
class ControllerGradients:
    """dM/dtau and dM/dbeta of the outer objective M."""

    tau_grad: float
    beta_grad: float


@dataclass
class LoopSettings:
    """Every group's settings, as the loop needs them."""

    generation: GenerationSettings
    evaluation: EvaluationSettings
    optimization: OptimizationSettings
    scoring: ScoringSettings
    controller: ControllerPaths
    controller_objective: ControllerObjective | None = None
    controller_meta_manager: Any | None = None


@dataclass
class TrainingLoopContext:
    """The whole job, taken by ``run_training``, ``train_step`` and ``evaluate`` only; others get the narrowest part."""

    runtime: RuntimeHandles
    reward: RewardSpec
    settings: LoopSettings
    logging: LoggingHandles
    eval_reward: RewardSpec | None = None
    resume_checkpoint: str | None = None
    resume_state: dict[str, Any] | None = None
    checkpoint_state_ref: dict[str, Any] | None = None
    training_args: Any | None = None

    @property
    def generation(self) -> GenerationSettings:
        """Sampling settings."""
        return self.settings.generation

    @property
    def evaluation(self) -> EvaluationSettings:
        """Evaluation settings."""
        return self.settings.evaluation

    @property
    def optimization(self) -> OptimizationSettings:
        """Schedule and optimiser handles."""
        return self.settings.optimization

    @property
    def scoring(self) -> ScoringSettings:
        """Scoring and loss settings."""
        return self.settings.scoring

    @property
    def controller(self) -> ControllerPaths:
        """Where controller state is kept."""
        return self.settings.controller

    @property
    def controller_objective(self) -> ControllerObjective | None:
        """Outer objective of a meta controller, or None."""
        return self.settings.controller_objective

    @property
    def controller_meta_manager(self) -> Any | None:
        """Manager that applies meta gradients, or None."""
        return self.settings.controller_meta_manager


@dataclass(slots=True)
class StepBatchInfo:
    """Where in the data the loop stands, and the rows to sample next."""

    epoch: int
    step_in_epoch: int
    batch: list[dict[str, Any]]


@dataclass(slots=True)
class StepResources:
    """What a step calls: the sampler, the resolved method, the scorers of policy and reference; and the evaluations."""

    generator: GenerationFn
    validation_ctx: ValidationContext | None
    method: Method | None = None
    scorer: TokenScorer | None = None
    reference_scorer: TokenScorer | None = None
    seed: int = 0
    """The run's seed, for choices that a step makes at random."""
    sampled: SamplingCounters = field(default_factory=SamplingCounters)
    """What rollouts have sampled since the last line of metrics."""


@dataclass(slots=True)
class TrainingLoopState:
    """The loop's counters: with the registered state dicts, exactly what a checkpoint stores."""

    global_step: int = 0
    stop_training: bool = False
    num_input_tokens_seen: float = 0.0
    metric_sums: dict[str, float] = field(default_factory=dict)
    metric_counts: dict[str, int] = field(default_factory=dict)
