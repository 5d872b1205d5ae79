"""Whether the completions of a prompt can be scored behind one copy of it, and how, found out by trying.

Sharing gives a model positions that start anew with each completion, and a layout or a mask for every pair of positions that
keeps completions apart. Attention of another kind, recurrent layers and positions counted from a mask do not go along with
that. Two short completions are scored in each way: where a way disagrees with rows of their own, or the model refuses it, the
next is taken, a layout before masks before none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from maxent_grpo.models.attention import LAID_OUT, takes_layouts
from maxent_grpo.training.forward import evaluation_mode, uncompiled
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.packing import ModelInputs, Sharing, mask_rows, pack_rows, pad_rows
from maxent_grpo.training.scoring.policy import last_logits
from maxent_grpo.training.scoring.windows import layer_kinds
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry, ScoreBatch
from maxent_grpo.training.types.runtime import BatchingSettings, ScoringSettings

TAKES_MASKS = ("sdpa", "eager", LAID_OUT)
"""Attention implementations that take a mask for every pair of positions."""
PROMPT, COMPLETIONS = 7, (5, 3)
"""Lengths of the sequences that are tried [tokens]."""
WINDOW = 4
"""Window of the layers that have one while it is tried: short enough to cut both the prompt and a completion [tokens]."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Mean difference of log-probabilities that is rounding [nats]."""


def prompt_sharing(model: PreTrainedModel, scoring: ScoringSettings, note: Callable[[str], None]) -> Sharing:
    """How scoring puts a prompt's completions behind one copy of it; a note says why where it could not be the best way."""
    if not scoring.batching.share_prompts or scoring.trl_reference_scoring:
        return Sharing.none
    found = layout_problem(model)
    if not found:
        return Sharing.layout
    problem = sharing_problem(model)
    if problem:
        note(f"scoring.batching.share_prompts=true: every completion gets its own prompt: {problem}")
        return Sharing.none
    note(
        "scoring.batching.share_prompts=true: completions are kept apart by masks, whose cost grows with the square of a group's "
        f"tokens: {found}"
    )
    return Sharing.masks


def layout_problem(model: PreTrainedModel) -> str:
    """Why this model's attention takes no layout; empty when it does."""
    model = getattr(model, "module", model)
    if not takes_layouts(model):
        return f"attention {getattr(model.config, '_attn_implementation', None)} takes no layout; sdpa does"
    return _problem(model, "a layout", pack_rows)


def sharing_problem(model: PreTrainedModel) -> str:
    """Why prompts cannot be shared by masks under this model; empty when they can."""
    model = getattr(model, "module", model)
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation not in TAKES_MASKS:
        return f"attention {implementation} takes no mask for every pair of positions; sdpa and eager do"
    dtype = next(model.parameters()).dtype
    return _problem(model, "masks for every pair of positions", lambda batch, rows: mask_rows(batch, rows, dtype))


def _problem(model: PreTrainedModel, what: str, pack: Callable[[ScoreBatch, RowRange], ModelInputs]) -> str:
    """Why packed rows do not give what padded ones do; empty when they do."""
    kinds = layer_kinds(model)
    if kinds.other:
        return f"its layers of kind {', '.join(kinds.other)} carry a state from token to token"
    batch, rows = _probe(model)
    device = next(model.parameters()).device
    try:
        with evaluation_mode(model), uncompiled(model), torch.no_grad(), _short_window(model):
            packed, padded = (_logp(model, inputs.to(device)) for inputs in (pack(batch, rows), pad_rows(batch, rows)))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        return f"{type(model).__name__} does not take {what} ({_first_line(error)})"
    gap = float((packed - padded).abs().mean())
    if not gap <= TOLERANCE[packed.dtype]:
        return (
            f"{type(model).__name__} gives other log-probabilities behind a shared prompt (by {gap:.2g} nats a token)"
        )
    return ""


def _probe(model: PreTrainedModel) -> tuple[ScoreBatch, RowRange]:
    """Two short completions of one prompt."""
    vocab = cast(torch.Tensor, model.get_input_embeddings().weight).shape[0]
    ids = torch.linspace(0, vocab - 1, PROMPT + sum(COMPLETIONS) + 2)[1:-1].long().tolist()
    prompt, rest = PromptCacheEntry(ids[:PROMPT], [1] * PROMPT), ids[PROMPT:]
    answers = [rest[: COMPLETIONS[0]], rest[COMPLETIONS[0] :]]
    batch = build_score_batch(
        ["probe"],
        [[CompletionRecord("probe", answer, None, FinishReason.length, 0) for answer in answers]],
        BatchingSettings(0, 0, lambda _: prompt),
        pad_token_id=0,
        max_prompt_len=PROMPT,
    )
    return batch, RowRange(0, len(answers))


def _logp(model: nn.Module, inputs: ModelInputs) -> torch.Tensor:
    """Log-probability of each completion token, row by row."""
    logits = last_logits(model, inputs)[inputs.model_row, inputs.place]
    return torch.log_softmax(logits, dim=-1).gather(1, inputs.target_ids.unsqueeze(1)).squeeze(1)


@contextmanager
def _short_window(model: PreTrainedModel) -> Iterator[None]:
    """Shorten the windows of configuration and layers, so that a short sequence reaches beyond them."""
    window = layer_kinds(model).window
    holders: list[Any] = [model.config, *model.modules()] if window is not None else []
    held = [holder for holder in holders if getattr(holder, "sliding_window", None) == window]
    for holder in held:
        holder.sliding_window = min(cast(int, window), WINDOW)
    try:
        yield
    finally:
        for holder in held:
            holder.sliding_window = window


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
