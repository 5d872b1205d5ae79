"""Whether the completions of a prompt can be scored behind one copy of it, found out by trying.

Sharing gives a model a mask for every pair of positions, and positions that start anew with each completion. Attention
kernels without such masks, recurrent layers and positions counted from a mask do not go along with that. Two short
completions are scored in both layouts: where these disagree, or the model refuses one, every sequence gets its own prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from maxent_grpo.models.attention import LAID_OUT
from maxent_grpo.training.forward import evaluation_mode, uncompiled
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.packing import ModelInputs, pack_rows, pad_rows
from maxent_grpo.training.scoring.policy import last_logits
from maxent_grpo.training.scoring.windows import layer_kinds
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import BatchingSettings, ScoringSettings

TAKES_MASKS = ("sdpa", "eager", LAID_OUT)
"""Attention implementations that take a mask for every pair of positions."""
PROMPT, COMPLETIONS = 7, (5, 3)
"""Lengths of the sequences that are tried [tokens]."""
WINDOW = 4
"""Window of the layers that have one while it is tried: short enough to cut both the prompt and a completion [tokens]."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Mean difference of log-probabilities that is rounding [nats]."""


def shares_prompts(model: PreTrainedModel, scoring: ScoringSettings, note: Callable[[str], None]) -> bool:
    """Whether scoring may put a prompt's completions behind one copy of it; where it is asked to and cannot, a note says why."""
    if not scoring.batching.share_prompts or scoring.trl_reference_scoring:
        return not scoring.trl_reference_scoring
    problem = sharing_problem(model)
    if problem:
        note(f"scoring.batching.share_prompts=true: every completion gets its own prompt: {problem}")
    return not problem


def sharing_problem(model: PreTrainedModel) -> str:
    """Why prompts cannot be shared under this model; empty when they can."""
    model = getattr(model, "module", model)
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation not in TAKES_MASKS:
        return f"attention {implementation} takes no mask for every pair of positions; sdpa and eager do"
    kinds = layer_kinds(model)
    if kinds.other:
        return f"its layers of kind {', '.join(kinds.other)} carry a state from token to token"
    try:
        with evaluation_mode(model), uncompiled(model), torch.no_grad(), _short_window(model):
            packed, padded = (_logp(model, inputs) for inputs in _layouts(model))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        return f"{type(model).__name__} does not take masks for every pair of positions ({_first_line(error)})"
    gap = float((packed - padded).abs().mean())
    if not gap <= TOLERANCE[packed.dtype]:
        return (
            f"{type(model).__name__} gives other log-probabilities behind a shared prompt (by {gap:.2g} nats a token)"
        )
    return ""


def _layouts(model: PreTrainedModel) -> Iterator[ModelInputs]:
    """The same two completions, packed and padded."""
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
    rows = RowRange(0, len(answers))
    device = next(model.parameters()).device
    yield pack_rows(batch, rows, next(model.parameters()).dtype).to(device)
    yield pad_rows(batch, rows).to(device)


def _logp(model: nn.Module, inputs: ModelInputs) -> torch.Tensor:
    """Log-probability of each completion token, row by row."""
    logits = last_logits(model, inputs)[inputs.model_row, inputs.place]
    return torch.log_softmax(logits, dim=-1).gather(1, inputs.target_ids.unsqueeze(1)).squeeze(1)


@contextmanager
def _short_window(model: PreTrainedModel) -> Iterator[None]:
    """Shorten the window that masks are made from, so that a short sequence reaches beyond it."""
    config: Any = model.config
    before = layer_kinds(model).window
    if before is None:
        yield
        return
    config.sliding_window = min(before, WINDOW)
    try:
        yield
    finally:
        config.sliding_window = before


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
