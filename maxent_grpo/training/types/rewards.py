"""The values that travel through one step: rollouts, credit, scores, losses.

Legend of axes: ``P`` prompts, ``G`` completions per prompt, ``N = P * G`` sequences (prompt-major), ``T`` completion tokens.
Aligned lists are checked when they are built; rows are dropped only by the helpers, which filter every list together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.training.types.choices import FinishReason

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from maxent_grpo.training.evaluation.exact import ExactEvaluation
    from maxent_grpo.training.evaluation.seeds import SeedEvaluation
    from maxent_grpo.training.types.logging import LoggingHandles
    from maxent_grpo.training.types.runtime import (
        EvaluationSettings,
        GenerationFn,
        GenerationSettings,
        RewardSpec,
        RuntimeHandles,
        ScoringSettings,
    )


@dataclass(slots=True)
class CompletionRecord:
    """One sampled completion as the sampler saw it: made by a sampler, read by scoring, rewards and the record."""

    row_id: str
    """Identity of the dataset row; groups and evaluation are keyed by it, never by text."""
    token_ids: list[int]
    """Sampled tokens including the end token; never re-tokenised from text."""
    behaviour_logp: Sequence[float | None] | None
    """Log-probability of each token under the distribution it was drawn from [nats]; None, for all or for some, if the sampler kept none."""
    finish_reason: FinishReason
    """`eos`, a `stop` string, or the `length` limit (truncated)."""
    policy_version: int
    """Optimiser step whose weights sampled it."""

    def to_trl_payload(self) -> dict[str, Any]:
        """The record as a plain mapping, as reward functions and the completions file see it."""
        return {
            "row_id": self.row_id,
            "token_ids": self.token_ids,
            "behaviour_logp": self.behaviour_logp,
            "finish_reason": str(self.finish_reason),
            "policy_version": self.policy_version,
        }


@dataclass
class GenerationBatch:
    """Prompts with the completions sampled for each; list ``i`` of every field belongs to prompt ``i``.

    Example: ``GenerationBatch(["2+2="], ["4"], [["4", "5"]], [[record_a, record_b]])``.
    """

    prompts: list[str]
    answers: list[str]
    grouped_completions: list[list[str]]
    grouped_ref_meta: list[list[Any | None]] | None
    grouped_completion_info: list[list[dict[str, Any]]] | None = None

    def __post_init__(self) -> None:
        num = len(self.prompts)
        if len(self.answers) != num or len(self.grouped_completions) != num:
            raise ValueError(
                f"{num} prompts, {len(self.answers)} answers and {len(self.grouped_completions)} groups must be aligned"
            )
        for name in ("grouped_ref_meta", "grouped_completion_info"):
            groups = getattr(self, name)
            if groups is None:
                continue
            sizes = [len(group) for group in groups]
            if sizes != [len(group) for group in self.grouped_completions]:
                raise ValueError(f"{name} has group sizes {sizes}, the completions differ")

    @property
    def records(self) -> list[list[CompletionRecord]]:
        """The sampler's record of each completion, by group; training cannot do without them.

        Raises:
            ValueError: the sampler kept no record of some completion.
        """
        groups = self.grouped_ref_meta if self.grouped_ref_meta is not None else []
        records = [[record for record in group if isinstance(record, CompletionRecord)] for group in groups]
        if [len(group) for group in records] != [len(group) for group in self.grouped_completions]:
            raise ValueError("the sampler returned completions without records of their tokens, which training needs")
        return records


@dataclass
class PromptCompletionBatch:
    """Prompt-major pairs: prompt i repeated once per completion, with the completion's metadata beside it."""

    prompts: list[str]
    completions: list[str]
    metadata: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if len(self.prompts) != len(self.completions):
            raise ValueError(f"{len(self.prompts)} prompts and {len(self.completions)} completions must be aligned")
        if self.metadata is not None and len(self.metadata) != len(self.completions):
            raise ValueError(f"{len(self.metadata)} metadata entries for {len(self.completions)} completions")


@dataclass(frozen=True, slots=True)
class DrawingReport:
    """How dynamic sampling came by a rollout; counts are of all processes."""

    num_drawn: int
    """Prompts drawn from the training rows."""
    num_informative: int
    """Of these, groups whose utilities differ."""
    refill_rounds: int
    """Draws after the first."""
    num_carried: int
    """Groups of the rollout that an earlier rollout had left over."""
    num_surplus: int
    """Informative groups for which the rollout had no place."""
    num_missing: int
    """Places of the rollout that stayed empty."""
    mean_utility: float
    """Over every valid completion of the prompts drawn; nan without any."""


@dataclass(slots=True)
class AdvantageStats:
    """Advantages by group and flattened; both views come from one function."""

    grouped: list[list[float]]
    samples: list[float]


@dataclass(slots=True)
class QDistribution:
    """The utility distribution q over each group, by group and flattened."""

    grouped: list[list[float]]
    samples: list[float]


@dataclass(slots=True)
class RewardMoments:
    """Population mean and standard deviation of the utilities of the step's valid rows."""

    mean: float
    std: float


@dataclass
class RewardComputation:
    """Everything the rewards say about a rollout; ``nan`` in ``total_utils`` marks a row without a valid reward."""

    total_utils: list[float]
    per_reward_values: dict[str, list[float]]
    advantage: AdvantageStats
    pairs: PromptCompletionBatch
    q_distribution: QDistribution
    moments: RewardMoments
    ref_logprob_meta: list[Any | None] | None = None
    completion_metadata: list[dict[str, Any]] | None = None
    entropy_bonus_scale: float | None = None
    seed_semantic_entropies: list[float] | None = None
    seed_advantage_scales: list[float] | None = None
    seed_alpha_effective: float | None = None
    seed_max_possible_entropy: float | None = None
    shaped_utils: list[float] | None = None
    """Utilities reshaped by their group or length, where a rule did that; else None."""
    normalized_utils: list[float] | None = None
    """Utilities in units of a deviation, where they were normalised; else None."""
    row_weights: list[list[float]] | None = None
    """Factors of the advantages by group, where they differ within groups or follow from them; None where they do not."""
    right: list[bool] | None = None
    """Which completions are right, by the utilities before any bonus; None is by ``total_utils``."""

    @property
    def credited_utils(self) -> list[float]:
        """The utilities that advantages and q were made from."""
        if self.normalized_utils is not None:
            return self.normalized_utils
        return self.total_utils if self.shaped_utils is None else self.shaped_utils

    @property
    def advantage_samples(self) -> list[float]:
        """Advantages in prompt-major order."""
        return self.advantage.samples

    @property
    def q_grouped(self) -> list[list[float]]:
        """The utility distribution of each group."""
        return self.q_distribution.grouped

    @property
    def train_reward_mean(self) -> float:
        """Mean utility over valid rows."""
        return self.moments.mean

    @property
    def train_reward_std(self) -> float:
        """Population standard deviation of the utility over valid rows."""
        return self.moments.std


@dataclass(slots=True)
class PromptCacheEntry:
    """One tokenised prompt, shared by every completion of its group."""

    input_ids: list[int]
    attention_mask: list[int]

    @property
    def length(self) -> int:
        """Number of prompt tokens."""
        return len(self.input_ids)


@dataclass(slots=True)
class ScoreBatch:
    """The sequences of a step ready for scoring; ``prompt_entries[n]`` and row n of the tensors belong together.

    Completions are padded on the right to the longest one; the mask marks sampled tokens, the end token included, and
    comes from lengths, never from comparing ids with the pad id (which may be the end token).
    """

    prompt_entries: list[PromptCacheEntry]
    completion_ids: Tensor
    completion_attention_mask: Tensor
    pad_token_id: int
    max_prompt_len: int
    slice_size: int
    total_sequences: int
    score_tail_tokens: int | None = None
    group_starts: tuple[int, ...] = ()
    """First row of each group."""


@dataclass(slots=True)
class ReferenceLogprobs:
    """Log-probabilities under the reference: raw sums, scores in the configured mode, and per token. Detached."""

    ref_logp_sum: Tensor
    ref_tok_counts: Tensor
    ref_logp_sum_raw: Tensor
    ref_logp_mean: float
    avg_completion_tokens: float
    ref_token_logp: Tensor | None = None
    ref_token_mask: Tensor | None = None


@dataclass(slots=True)
class SequenceScores:
    """Log-probabilities of a slice under the current policy (carrying gradient) and the behaviour policy (detached)."""

    cur_logp_sum: Tensor
    behavior_logp_sum: Tensor
    log_ratio_train: Tensor
    denom_tok_tensor: Tensor
    pooled_hidden: Tensor | None = None
    policy_entropy_sum: Tensor | None = None
    token_logp: Tensor | None = None
    token_mask: Tensor | None = None
    old_token_logp: Tensor | None = None
    token_entropy: Tensor | None = None


@dataclass(slots=True)
class LossScalarBundle:
    """The loss of a slice taken apart, as floats; total is the sum of all terms as added."""

    total_loss: float
    policy_loss: float
    clip_loss: float | None
    kl_loss: float
    weighted_kl_loss: float
    listwise_loss: float = 0.0
    entropy_loss: float = 0.0


@dataclass(slots=True)
class LossOutputs:
    """The loss of a slice: a share of the step's loss, because every denominator is step-global."""

    loss: Tensor
    scalars: LossScalarBundle
    log_ratio_train: Tensor
    denom_tok_tensor: Tensor

    @property
    def total_loss_scalar(self) -> float:
        """Total loss as a float."""
        return self.scalars.total_loss

    @property
    def policy_loss_scalar(self) -> float:
        """Policy term as a float."""
        return self.scalars.policy_loss

    @property
    def clip_loss_scalar(self) -> float | None:
        """Auxiliary clipped listwise term as a float, None when unused."""
        return self.scalars.clip_loss

    @property
    def kl_loss_scalar(self) -> float:
        """KL term before its coefficient."""
        return self.scalars.kl_loss

    @property
    def weighted_kl_loss_scalar(self) -> float:
        """KL term as added to the loss."""
        return self.scalars.weighted_kl_loss


@dataclass(slots=True)
class BatchDiagnostics:
    """Detached measurements of a step. Token-level numbers are step-global; see each metric's entry in the table."""

    kl_value: float | None
    clip_ratio: float
    clip_ratio_low_mean: float
    clip_ratio_low_min: float
    clip_ratio_high_mean: float
    clip_ratio_high_max: float
    clip_ratio_region_mean: float
    kl_per_token_by_len_bucket: dict[str, float]
    kl_token_count_by_len_bucket: dict[str, float]


@dataclass(slots=True)
class LengthStats:
    """Completion lengths in tokens, the end token included; ``*_terminated`` over completions that ended by themselves."""

    min_length: float
    mean_length: float
    max_length: float
    clipped_ratio: float
    min_terminated: float
    mean_terminated: float
    max_terminated: float


@dataclass
class ValidationContext:
    """What an evaluation needs: held-out rows, the policy, a sampler with its own seed, and the rewards to grade with."""

    evaluation: EvaluationSettings
    accelerator: Accelerator
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reward: RewardSpec
    generator: GenerationFn
    logging: LoggingHandles
    eval_reward: RewardSpec | None = None
    runtime: RuntimeHandles | None = None
    generation: GenerationSettings | None = None
    scoring: ScoringSettings | None = None
    greedy_generator: GenerationFn | None = None
    """Takes the most likely completion; None leaves greedy answers out."""
    exact: ExactEvaluation | None = None
    """Every answer there is; None leaves exact figures out."""
    seeds: SeedEvaluation | None = None
    """The prompts with seed tags; None leaves them out."""
    state: TrainerState = field(default_factory=TrainerState)
    """What reward functions learn of the run's progress; an evaluation belongs to no epoch."""
