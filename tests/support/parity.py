"""A given batch through the package's own credit, scoring and loss: what another trainer's numbers are compared with.

Nothing is sampled. Token ids, behaviour log-probabilities and advantages are given, and everything after them is what the
training step calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from support.steps import OPTIONS
from torch import Tensor
from transformers import PreTrainedModel

from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.objective.logprobs import sequence_sum
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.rewards.registry import RewardTerm
from maxent_grpo.training.credit import ScoredTokens, assign_credit, complete_rows, grade_rollout
from maxent_grpo.training.experience import measured_tokens, trained_tokens
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import Method, resolve_method
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch, plan_slices
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.scoring.reference import score_without_gradient
from maxent_grpo.training.settings import entropy_mode, scoring_settings
from maxent_grpo.training.token_selection import choose_tokens, step_tokens
from maxent_grpo.training.types.choices import FinishReason, ReferenceSource, RewardNormalization, ScoreMode
from maxent_grpo.training.types.rewards import (
    CompletionRecord,
    GenerationBatch,
    PromptCacheEntry,
    ScoreBatch,
    SequenceScores,
)
from maxent_grpo.training.types.runtime import RewardSpec, ScoringSettings

PAD, EOS = 0, 2


@dataclass(frozen=True)
class GivenBatch:
    """Prompts and the completions of each, as token ids; completions that do not end in the end token were cut."""

    prompts: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...]
    max_length: int
    """The limit of a completion's length."""

    @property
    def group_size(self) -> int:
        """Completions of each prompt."""
        return len(self.groups[0])

    @property
    def completions(self) -> list[list[int]]:
        """All completions, prompt-major."""
        return [list(completion) for group in self.groups for completion in group]

    @property
    def prompt_of_each(self) -> list[list[int]]:
        """The prompt of each completion."""
        return [list(prompt) for prompt in self.prompts for _ in range(self.group_size)]

    @property
    def mask(self) -> Tensor:
        """[N, T] sampled tokens."""
        lengths = torch.tensor([len(completion) for completion in self.completions])
        return torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)

    def part(self, first: int, last: int) -> GivenBatch:
        """The prompts first .. last - 1."""
        return GivenBatch(self.prompts[first:last], self.groups[first:last], self.max_length)

    def records(self) -> list[list[CompletionRecord]]:
        """The completions as a sampler reports them."""
        return [
            [
                CompletionRecord(
                    row_id=f"row-{number}",
                    token_ids=list(completion),
                    behaviour_logp=None,
                    finish_reason=FinishReason.eos if completion[-1] == EOS else FinishReason.length,
                    policy_version=0,
                )
                for completion in group
            ]
            for number, group in enumerate(self.groups)
        ]


@dataclass(frozen=True)
class Given:
    """What both trainers are told about a batch, [N, T] by token and [N] by completion."""

    advantages: Tensor
    old_logp: Tensor | None = None
    """Denominator of the ratio; None is the policy itself."""
    reference_logp: Tensor | None = None
    sampled_logp: Tensor | None = None
    valid: Tensor | None = None
    """[N] completions with a reward; None is all."""


@dataclass(frozen=True)
class Outcome:
    """The loss of an optimiser step and its gradient for every parameter."""

    loss: float
    gradients: dict[str, Tensor]


def method_settings(option: str, changes: Mapping[str, Any], *, max_length: int) -> ScoringSettings:
    """The settings of `scoring=<option>` with dotted paths changed."""
    config = OPTIONS[option]()
    for path, value in changes.items():
        group, *parents, name = path.split(".")
        owner = reduce(getattr, parents, config)
        assert group == "scoring"
        assert hasattr(owner, name), path
        default = getattr(owner, name)
        setattr(owner, name, type(default)(value) if isinstance(default, StrEnum) else value)
    return training_settings(config, max_length=max_length)


def training_settings(config: ScoringConfig, *, max_length: int) -> ScoringSettings:
    """The settings of a method as training gets them, with the prompts of a `GivenBatch` to look up."""
    source = ReferenceSource.model if config.kl_beta > 0 else ReferenceSource.none
    settings = scoring_settings(config, max_completion_len=max_length, reference=source)
    settings.batching.prompt_length_cache_get = _entry
    return settings


def token_logp(model: PreTrainedModel, batch: GivenBatch, *, temperature: float = 1.0) -> Tensor:
    """[N, T] log-probability of each completion token under a model, without gradient."""
    settings = method_settings("grpo", {}, max_length=batch.max_length)
    tokens = _tokens(batch, settings)
    scorer = _scorer(settings, temperature)
    return score_without_gradient(scorer, model, tokens, [RowRange(0, tokens.total_sequences)])[0]


def step_outcome(
    model: PreTrainedModel, batch: GivenBatch, settings: ScoringSettings, given: Given, *, temperature: float = 1.0
) -> Outcome:
    """One optimiser step up to its gradient, in the slices that ``settings.batching`` asks for."""
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=batch.max_length)
    tokens, scorer = _tokens(batch, settings), _scorer(settings, temperature)
    valid = torch.ones(tokens.total_sequences, dtype=torch.bool) if given.valid is None else given.valid
    complete = complete_rows([record for group in batch.records() for record in group])
    mask = trained_tokens(measured_tokens(tokens, valid), complete, settings.truncation)
    pieces = plan_slices(tokens, RowRange(0, tokens.total_sequences), settings.batching.max_tokens)
    chosen = _trained_by_selection(model, method, settings, scorer, tokens, given, mask)
    counts = StepCounts(float(valid.sum()), float(mask.sum()), float(len(batch.prompts)), float(len(pieces)))
    model.zero_grad(set_to_none=True)
    total = 0.0
    for piece in pieces:
        chunks = scorer.assemble(tokens, piece, next(model.parameters()).dtype)
        raw = scorer.score(model, chunks, mask.shape[1])
        here = mask[piece.slice]
        old = raw.logp.detach() if given.old_logp is None else given.old_logp[piece.slice]
        current_sum, old_sum = sequence_sum(raw.logp, here), sequence_sum(old, here)
        scores = SequenceScores(
            cur_logp_sum=current_sum,
            behavior_logp_sum=old_sum,
            log_ratio_train=(current_sum - old_sum).detach(),
            denom_tok_tensor=here.sum(dim=-1).clamp(min=1),
            token_logp=raw.logp,
            token_mask=here,
            old_token_logp=old,
            token_entropy=raw.entropy,
        )
        nothing = torch.zeros(len(piece))
        targets = SliceTargets(
            advantages=given.advantages[piece.slice].to(raw.logp),
            reference_logp=None if given.reference_logp is None else given.reference_logp[piece.slice],
            sampled_logp=None if given.sampled_logp is None else given.sampled_logp[piece.slice],
            listwise_value=nothing,
            listwise_coefficient=nothing,
            weights=nothing,
            weight_baseline=nothing,
            trained_tokens=None if chosen is None else chosen[piece.slice],
        )
        output = compute_loss(
            scores, targets, method, settings.weighting,
            score_mode=ScoreMode.sum, kl_beta=settings.kl_beta, counts=counts,
        )  # fmt: skip
        output.loss.backward()
        total += float(output.loss.detach())
    return Outcome(total, gradients(model))


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """The gradient of every parameter by name, 0 where none arrived."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def advantages_of(
    batch: GivenBatch,
    rewards: Mapping[str, Sequence[float | None]],
    weights: Sequence[float],
    settings: ScoringSettings,
    normalize: RewardNormalization = RewardNormalization.none,
) -> Tensor:
    """[N] advantages of a batch from the values of its reward terms; None abstains."""
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=batch.max_length)
    records = batch.records()
    texts = [[str(record.token_ids) for record in group] for group in records]
    names = [f"row-{number}" for number in range(len(records))]
    rollout = GenerationBatch(names, ["" for _ in names], texts, [list(group) for group in records])

    def term(name: str, values: Sequence[float | None]) -> RewardTerm:
        return RewardTerm(name, lambda completions, **_: list(values))

    spec = RewardSpec([term(name, values) for name, values in rewards.items()], list(weights), normalize)
    graded = grade_rollout(rollout, {name: {} for name in names}, spec)
    nothing = torch.zeros(batch.mask.shape, dtype=torch.float64)
    tokens = ScoredTokens(batch.mask, batch.mask, nothing, batch.mask)
    credit = assign_credit(graded, settings, method, tokens, reward=spec)
    return torch.tensor(credit.advantage.samples)


def _entry(prompt: str) -> PromptCacheEntry:
    ids = [int(token) for token in prompt.split()]
    return PromptCacheEntry(ids, [1] * len(ids))


def _tokens(batch: GivenBatch, settings: ScoringSettings) -> ScoreBatch:
    texts = [" ".join(map(str, prompt)) for prompt in batch.prompts]
    return build_score_batch(texts, batch.records(), settings.batching, pad_token_id=PAD, max_prompt_len=64)


def _scorer(settings: ScoringSettings, temperature: float) -> TokenScorer:
    return TokenScorer(
        SampledDistribution(temperature=temperature),
        settings.batching,
        entropy=entropy_mode(settings),
        entropy_carries_gradient=settings.entropy_coef > 0,
        padded=settings.trl_reference_scoring,
        head=HeadTransform(),
    )


def _trained_by_selection(
    model: PreTrainedModel,
    method: Method,
    settings: ScoringSettings,
    scorer: TokenScorer,
    tokens: ScoreBatch,
    given: Given,
    mask: Tensor,
) -> Tensor | None:
    if method.selection is None:
        return None
    logp, entropy = score_without_gradient(scorer, model, tokens, [RowRange(0, tokens.total_sequences)])
    old = logp if given.old_logp is None else given.old_logp
    facts = step_tokens(logp, old, given.advantages, entropy, np.zeros(mask.shape), mask)
    return choose_tokens(Accelerator(cpu=True), method, settings.clipping, facts, mask).trained
