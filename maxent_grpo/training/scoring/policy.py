"""Log-probabilities of sampled tokens under a model: the only place where a model is run for scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from maxent_grpo.objective.logprobs import chosen_logp, log_distribution, token_entropy
from maxent_grpo.objective.sampling import sampled_logits
from maxent_grpo.training.forward import accepted
from maxent_grpo.training.scoring.batch import RowRange, plan_slices
from maxent_grpo.training.scoring.packing import ModelInputs, pack_rows, pad_rows
from maxent_grpo.training.scoring.windows import layer_kinds, windowed_masks
from maxent_grpo.training.types.choices import Pooling
from maxent_grpo.training.types.rewards import ScoreBatch
from maxent_grpo.training.types.runtime import BatchingSettings

T = TypeVar("T")
R = TypeVar("R")
PAIRWISE = 4
"""Axes of a mask for every pair of positions; one for positions has two."""


@dataclass(frozen=True)
class SampledDistribution:
    """The sampled distribution as scoring replays it, so that ratios compare like with like."""

    temperature: float = 1.0
    allowed: Tensor | None = None
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float | None = None

    def log_probs(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        """Log-distribution [M, V] with the drawn token always inside its support."""
        restricted = sampled_logits(
            logits,
            temperature=self.temperature,
            allowed=self.allowed,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            keep=token_ids,
        )
        return log_distribution(restricted)

    def untruncated(self) -> SampledDistribution:
        """Temperature and allowed tokens only: for a reference, whose own nucleus would differ from the policy's."""
        return SampledDistribution(temperature=self.temperature, allowed=self.allowed)


@dataclass
class ScoringCounters:
    """What scoring did since it was last asked; path settings change these and nothing else."""

    forward_passes: int = 0
    fed_tokens: int = 0
    scored_tokens: int = 0
    real_tokens: int = 0

    def drain(self) -> ScoringCounters:
        """The counts so far; they start again at zero."""
        counted = replace(self)
        self.forward_passes = self.fed_tokens = self.scored_tokens = self.real_tokens = 0
        return counted


@dataclass
class TokenScores:
    """Per-token results of some rows, [n, T] with zeros at padding."""

    logp: Tensor
    entropy: Tensor | None
    pooled_hidden: Tensor | None = None
    """One vector a row [n, D], without gradient; None unless asked for."""


@dataclass
class TokenScorer:
    """Scores rows of a batch under any model, in the configured layout.

    ``entropy``: "exact" over the vocabulary, "sample" by the drawn token, or None.
    """

    distribution: SampledDistribution
    batching: BatchingSettings
    entropy: str | None
    entropy_carries_gradient: bool
    padded: bool
    """One row per sequence, as TRL does, whatever the batching says."""
    pooling: Pooling | None = None
    """Pool the last layer's hidden states over each completion's tokens: their mean, or the last one's; None leaves them."""
    counters: ScoringCounters = field(default_factory=ScoringCounters)

    @property
    def shares_prompts(self) -> bool:
        """Whether the completions of a group stand behind one copy of their prompt."""
        return self.batching.share_prompts and not self.padded

    def plan(self, batch: ScoreBatch, within: RowRange | None = None) -> list[RowRange]:
        """The slices of some rows of a batch, or of all of them, as the batching settings cut them."""
        within = RowRange(0, batch.total_sequences) if within is None else within
        return plan_slices(batch, within, self.batching.max_tokens, shared=self.shares_prompts)

    def assemble(self, batch: ScoreBatch, rows: RowRange, dtype: torch.dtype) -> list[ModelInputs]:
        """The forward passes of a slice: chunks of at most ``logprob_chunk_size`` sequences."""
        size = self.batching.logprob_chunk_size or max(len(rows), 1)
        chunks = [RowRange(at, min(at + size, rows.last)) for at in range(rows.first, rows.last, size)]
        if not self.shares_prompts:
            return [pad_rows(batch, chunk) for chunk in chunks]
        return [pack_rows(batch, chunk, dtype) for chunk in chunks]

    def score(self, model: nn.Module, chunks: list[ModelInputs], width: int) -> TokenScores:
        """Log-probability and entropy of every completion token of the chunks' rows, stacked; ``width`` is T."""
        parts = [self._score_chunk(model, chunk, width) for chunk in chunks]
        return TokenScores(
            torch.cat([part.logp for part in parts]),
            _stacked([part.entropy for part in parts]),
            _stacked([part.pooled_hidden for part in parts]),
        )

    def _score_chunk(self, model: nn.Module, inputs: ModelInputs, width: int) -> TokenScores:
        device = next(model.parameters()).device
        inputs = inputs.to(device)
        logits, hidden = model_outputs(model, inputs, with_hidden=self.pooling is not None)
        # under the same name, so that the logits of places that are not scored are freed here
        logits = logits[inputs.model_row, inputs.place]
        log_probs = self.distribution.log_probs(logits, inputs.target_ids)
        logp = chosen_logp(log_probs, inputs.target_ids)
        num_rows = int(inputs.row.max()) + 1
        self.counters.forward_passes += 1
        self.counters.fed_tokens += inputs.num_fed
        self.counters.scored_tokens += logp.numel()
        self.counters.real_tokens += inputs.num_real

        def spread(values: Tensor) -> Tensor:
            empty = torch.zeros((num_rows, width), dtype=values.dtype, device=device)
            return empty.index_put((inputs.row, inputs.column), values)

        entropy = None
        if self.entropy == "sample":
            entropy = spread(-logp.detach())
        elif self.entropy == "exact":
            entropy = spread(token_entropy(log_probs if self.entropy_carries_gradient else log_probs.detach()))
        pooled = None if self.pooling is None or hidden is None else pool_hidden(hidden, inputs, self.pooling)
        return TokenScores(spread(logp), entropy, pooled)


def pool_hidden(hidden: Tensor, inputs: ModelInputs, pooling: Pooling) -> Tensor:
    """Hidden states [rows, L, D] at each completion's tokens, as one vector a completion [n, D] without gradient."""
    assert inputs.fed_at is not None, "layouts that feed a token for several completions have no states to pool"
    states = hidden.detach()[inputs.model_row, inputs.fed_at].float()
    num_rows = int(inputs.row.max()) + 1
    counts = torch.zeros(num_rows, device=states.device).index_add_(0, inputs.row, torch.ones_like(states[:, 0]))
    if pooling is Pooling.last:
        is_last = inputs.column + 1 == counts[inputs.row]
        pooled = torch.zeros((num_rows, states.shape[1]), device=states.device)
        pooled[inputs.row[is_last]] = states[is_last]
        return pooled
    sums = torch.zeros((num_rows, states.shape[1]), device=states.device).index_add_(0, inputs.row, states)
    return sums / counts.clamp(min=1).unsqueeze(-1)


def _stacked(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def last_logits(model: nn.Module, inputs: ModelInputs) -> Tensor:
    """Logits [rows, num_kept, V] of the last positions; models that cannot restrict them are cut afterwards."""
    return model_outputs(model, inputs, with_hidden=False)[0]


def model_outputs(model: nn.Module, inputs: ModelInputs, *, with_hidden: bool) -> tuple[Tensor, Tensor | None]:
    """``last_logits``, and with ``with_hidden`` the last layer's hidden states [rows, L, D] of every position."""
    mask: Tensor | dict[str, Tensor] = inputs.attention_mask
    if inputs.attention_mask.dim() == PAIRWISE:
        mask = windowed_masks(inputs.attention_mask, inputs.position_ids, layer_kinds(model))
    call: dict[str, Any] = {
        "input_ids": inputs.input_ids,
        "attention_mask": mask,
        "position_ids": inputs.position_ids,
        "logits_to_keep": inputs.num_kept,
    }
    if with_hidden:
        call["output_hidden_states"] = True
    outputs = model(use_cache=False, **accepted(model, call))
    return outputs.logits[:, -inputs.num_kept :], outputs.hidden_states[-1] if with_hidden else None


def prefetched(items: Iterable[T], assemble: Callable[[T], R], depth: int) -> Iterator[R]:
    """``assemble`` of each item in order, up to ``depth`` ahead in a background thread; 0 assembles in place."""
    if depth <= 0:
        yield from map(assemble, items)
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="slices") as pool:
        pending = []
        for item in items:
            pending.append(pool.submit(assemble, item))
            if len(pending) > depth:
                yield pending.pop(0).result()
        for future in pending:
            yield future.result()
