"""The prompts of a sampling call after their one forward pass, and what goes on from them.

Two ways of holding them have the same interface. ``padded_prefix`` works for every causal model with a transformers cache: prompts
are padded to one length and masked, and each completion continues a copy of its prompt's cache. ``shared_prefix`` lays
tokens out itself, where the model's attention allows that: no padding is run and no mask is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from maxent_grpo.training.generation import padded_prefix, shared_prefix


class Continuation(Protocol):
    """Completions that run, one after the other token; its rows are theirs."""

    def advance(self, model: PreTrainedModel, tokens: Tensor, step: int) -> Tensor:
        """Feed token ``step`` of each completion [rows]; returns the logits of token ``step + 1`` [rows, V]."""
        ...

    def drop(self, dropped: Tensor) -> Tensor:
        """Drop the completions that are marked; returns the old rows of those that are left, which change their order."""
        ...


class PromptStates(Protocol):
    """Keys and values of prompts; row p is prompt p."""

    def continued(self, rows: Tensor, room: int) -> Continuation:
        """Completions of up to ``room`` tokens, one for each entry of ``rows``, which names its prompt; this stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Prefix:
    """Prompts after their one forward pass; row p of everything is prompt p."""

    prompts: Sequence[Sequence[int]]
    """Their tokens."""
    logits: Tensor
    """Logits of the first completion token [P, V]."""
    states: PromptStates

    def token_counts(self) -> Tensor:
        """How often each token occurs in each prompt [P, V]."""
        vocab, device = self.logits.shape[-1], self.logits.device
        counts = [torch.bincount(torch.tensor(prompt), minlength=vocab) for prompt in self.prompts]
        return torch.stack(counts).int().to(device)


def prefill(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    pad_token_id: int,
    device: torch.device,
    *,
    laid_out: bool = False,
) -> Prefix:
    """Run prompts once; only the logits behind their last tokens are kept.

    Args:
        model: in evaluation mode.
        prompts: token ids, none of them empty. With ``laid_out`` neighbours of one length run as one batch.
        pad_token_id: fills prompts where they are padded.
        device: where the model is.
        laid_out: take ``shared_prefix``, which ``layout_problem`` must have found no fault with.

    Raises:
        GenerationError: the model has no transformers cache.
    """
    if laid_out:
        logits, states = shared_prefix.run_prompts(model, prompts, device)
    else:
        logits, states = padded_prefix.run_prompts(model, prompts, pad_token_id, device)
    return Prefix(prompts, logits, states)
