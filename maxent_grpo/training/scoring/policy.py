"""Log-probabilities of sampled tokens under a model: the only place where a model is run for scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from maxent_grpo.models.attention import takes_layouts
from maxent_grpo.models.output_head import head_input, unwrapped
from maxent_grpo.objective.fused_head import HeadScores, Slopes, head_scores
from maxent_grpo.objective.head_distribution import HeadDistribution, HeadTransform
from maxent_grpo.objective.logprobs import chosen_logp, log_distribution, token_entropy
from maxent_grpo.objective.sampling import sampled_logits
from maxent_grpo.training.forward import accepted
from maxent_grpo.training.scoring.batch import RowRange, plan_slices
from maxent_grpo.training.scoring.packing import (
    ModelInputs,
    Sharing,
    mask_rows,
    pack_rows,
    pad_by_length,
    pad_rows,
)
from maxent_grpo.training.scoring.windows import layer_kinds, windowed_masks
from maxent_grpo.training.scoring.work import rows_work
from maxent_grpo.training.types.choices import Pooling
from maxent_grpo.training.types.flops import Work
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

    def of_products(self, transform: HeadTransform) -> HeadDistribution:
        """The same distribution of what an output matrix gives, before the model's own ``transform`` of it."""
        return HeadDistribution(transform, self.temperature, self.allowed, self.top_k, self.top_p, self.min_p)

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
    work: Work = field(default_factory=Work)
    """What the passes needed, without padding and repetition."""

    def drain(self) -> ScoringCounters:
        """The counts so far; they start again at zero."""
        counted = replace(self)
        self.forward_passes = self.fed_tokens = self.scored_tokens = self.real_tokens = 0
        self.work = Work()
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
    """One pass with a row per sequence, as TRL does, whatever the batching says."""
    sharing: Sharing = Sharing.masks
    """How completions can share their prompt under the models that are scored, see ``sharing``."""
    pooling: Pooling | None = None
    """Pool the last layer's hidden states over each completion's tokens: their mean, or the last one's; None leaves them."""
    head: HeadTransform | None = None
    """What the models do to the products of their output matrix, so that logits are made a few rows at a time; None takes the
    models' own logits, all at once."""
    single_pass: bool = False
    """One forward pass for each slice, whatever its rows: where each pass is one that all processes make, they make equally many."""
    counters: ScoringCounters = field(default_factory=ScoringCounters)

    @property
    def shares_prompts(self) -> bool:
        """Whether the completions of a group stand behind one copy of their prompt."""
        return self.batching.share_prompts and self.sharing is not Sharing.none and not self.padded

    def plan(self, batch: ScoreBatch, within: RowRange | None = None) -> list[RowRange]:
        """The slices of some rows of a batch, or of all of them, as the batching settings cut them."""
        within = RowRange(0, batch.total_sequences) if within is None else within
        return plan_slices(batch, within, self.batching.max_tokens, shared=self.shares_prompts)

    def assemble(self, batch: ScoreBatch, rows: RowRange, dtype: torch.dtype) -> list[ModelInputs]:
        """The forward passes of a slice: chunks of at most ``logprob_chunk_size`` sequences."""
        self.counters.work += rows_work(batch, rows)
        size = self.batching.logprob_chunk_size or max(len(rows), 1)
        if self.single_pass and not self.shares_prompts:
            return [pad_rows(batch, rows)]
        if not (self.shares_prompts or self.padded):
            return pad_by_length(batch, rows, size, self.batching.max_tokens)
        chunks = [RowRange(at, min(at + size, rows.last)) for at in range(rows.first, rows.last, size)]
        if self.padded:
            return [pad_rows(batch, chunk) for chunk in chunks]
        if self.sharing is Sharing.layout:
            return [pack_rows(batch, chunk) for chunk in chunks]
        return [mask_rows(batch, chunk, dtype) for chunk in chunks]

    def score(
        self, model: nn.Module, chunks: list[ModelInputs], width: int, slopes: Slopes | None = None
    ) -> TokenScores:
        """Log-probability and entropy of every completion token of the chunks' rows, in order; ``width`` is T.

        ``slopes`` [n, T] are the loss's gradient in them if it is known already, which saves making the logits again.
        """
        parts, first = [], 0
        for chunk in chunks:
            rows = slice(first, first + chunk.num_rows) if chunk.order is None else chunk.order
            here = None if slopes is None else Slopes(*(None if part is None else part[rows] for part in slopes))
            parts.append(self._score_chunk(model, chunk, width, here))
            first += chunk.num_rows
        orders = _stacked([chunk.order for chunk in chunks])
        back = None if orders is None else orders.argsort().to(parts[0].logp.device)
        logp = _stacked([part.logp for part in parts], back)
        assert logp is not None
        return TokenScores(
            logp,
            _stacked([part.entropy for part in parts], back),
            _stacked([part.pooled_hidden for part in parts], back),
        )

    def _score_chunk(self, model: nn.Module, inputs: ModelInputs, width: int, slopes: Slopes | None) -> TokenScores:
        device = next(model.parameters()).device
        inputs = inputs.to(device)
        scored, hidden = self._scored(model, inputs, slopes)
        self.counters.forward_passes += 1
        self.counters.fed_tokens += inputs.num_fed
        self.counters.scored_tokens += scored.logp.numel()
        self.counters.real_tokens += inputs.num_real

        def spread(values: Tensor) -> Tensor:
            empty = torch.zeros((inputs.num_rows, width), dtype=values.dtype, device=device)
            return empty.index_put((inputs.row, inputs.column), values)

        entropy = None
        if self.entropy == "sample":
            entropy = spread(-scored.logp.detach())
        elif scored.entropy is not None:
            entropy = spread(scored.entropy if self.entropy_carries_gradient else scored.entropy.detach())
        pooled = None if self.pooling is None or hidden is None else pool_hidden(hidden, inputs, self.pooling)
        return TokenScores(spread(scored.logp), entropy, pooled)

    def _scored(self, model: nn.Module, inputs: ModelInputs, slopes: Slopes | None) -> tuple[HeadScores, Tensor | None]:
        """Scores of each target, and the hidden states of every position where they are pooled."""
        with_entropy, with_hidden = self.entropy == "exact", self.pooling is not None
        if self.head is None:
            logits, hidden = model_outputs(model, inputs, with_hidden=with_hidden)
            # under the same name, so that the logits of places that are not scored are freed here
            logits = logits[inputs.model_row, inputs.place]
            log_probs = self.distribution.log_probs(logits, inputs.target_ids)
            read = log_probs if self.entropy_carries_gradient else log_probs.detach()
            logp = chosen_logp(log_probs, inputs.target_ids)
            return HeadScores(logp, token_entropy(read) if with_entropy else None), hidden
        # not of output_head: of weights that are cut over processes it is whole only while the model is run
        head = unwrapped(model).get_output_embeddings()
        assert isinstance(head, nn.Linear), "setup has looked at the head before it gave the scorer a transform"
        with head_input(head) as caught:
            _, hidden = model_outputs(model, inputs, with_hidden=with_hidden)
        known = None
        if slopes is not None:
            known = Slopes(*(None if part is None else part[inputs.row, inputs.column] for part in slopes))
        scores = head_scores(
            caught[0][:, -inputs.num_kept :][inputs.model_row, inputs.place],
            head.weight,
            head.bias,
            inputs.target_ids,
            self.distribution.of_products(self.head),
            with_entropy=with_entropy,
            slopes=known,
        )
        return scores, hidden


def pool_hidden(hidden: Tensor, inputs: ModelInputs, pooling: Pooling) -> Tensor:
    """Hidden states [rows, L, D] at each completion's tokens, as one vector a completion [n, D] without gradient."""
    assert inputs.fed_at is not None, "layouts that feed a token for several completions have no states to pool"
    states = hidden.detach()[inputs.model_row, inputs.fed_at].float()
    num_rows = inputs.num_rows
    counts = torch.zeros(num_rows, device=states.device).index_add_(0, inputs.row, torch.ones_like(states[:, 0]))
    if pooling is Pooling.last:
        is_last = inputs.column + 1 == counts[inputs.row]
        pooled = torch.zeros((num_rows, states.shape[1]), device=states.device)
        pooled[inputs.row[is_last]] = states[is_last]
        return pooled
    sums = torch.zeros((num_rows, states.shape[1]), device=states.device).index_add_(0, inputs.row, states)
    return sums / counts.clamp(min=1).unsqueeze(-1)


def _stacked(parts: Sequence[Tensor | None], order: Tensor | None = None) -> Tensor | None:
    """The parts' rows one below the other, or those of ``order`` in turn; None where a part has none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    stacked = torch.cat(known)
    return stacked if order is None else stacked[order]


def last_logits(model: nn.Module, inputs: ModelInputs) -> Tensor:
    """Logits [rows, num_kept, V] of the last positions; models that cannot restrict them are cut afterwards."""
    return model_outputs(model, inputs, with_hidden=False)[0]


def model_outputs(model: nn.Module, inputs: ModelInputs, *, with_hidden: bool) -> tuple[Tensor, Tensor | None]:
    """``last_logits``, and with ``with_hidden`` the last layer's hidden states [rows, L, D] of every position.

    Raises:
        ValueError: the inputs have a layout, and the model takes none.
    """
    mask: Tensor | dict[str, Tensor] = inputs.attention_mask
    if inputs.layout is not None and not takes_layouts(model):
        raise ValueError(f"{type(model).__name__} takes no layout, and would let every token see all before it")
    if inputs.layout is None and inputs.attention_mask.dim() == PAIRWISE:
        mask = windowed_masks(inputs.attention_mask, inputs.position_ids, layer_kinds(model))
    call: dict[str, Any] = {
        "input_ids": inputs.input_ids,
        "attention_mask": mask,
        "position_ids": inputs.position_ids,
        "logits_to_keep": inputs.num_kept,
    }
    if inputs.layout is not None:
        call["layout"] = inputs.layout
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
