"""What two processes do at once: the first back-propagates two slices and the second none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from support.tiny import prompt_entries, tiny_llama, tiny_tokenizer

from maxent_grpo.training.idle_passes import complete_gradient, most_slices
from maxent_grpo.training.optim import backward, check_finite_loss
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord
from maxent_grpo.training.types.runtime import BatchingSettings

GROUPS = [
    [CompletionRecord("a", [4, 5, 6], None, FinishReason.eos, 0), CompletionRecord("a", [7], None, FinishReason.eos, 0)]
]


def gradient(accelerator: Accelerator, rows: list[RowRange]) -> tuple[dict[str, list[float]], int]:
    """Sums over each part of the gradient of the rows' log-probabilities, of all processes, and this one's forward passes."""
    model: Any = accelerator.prepare_model(tiny_llama(torch.float64))
    settings = BatchingSettings(0, 0, prompt_entries(tiny_tokenizer()))
    batch = build_score_batch(["1+1="], GROUPS, settings, pad_token_id=0, max_prompt_len=8)
    scorer = TokenScorer(SampledDistribution(), settings, None, entropy_carries_gradient=False, padded=False)
    plain = torch.optim.AdamW(model.parameters())
    optimization: Any = SimpleNamespace(handles=SimpleNamespace(base_optimizer=plain))
    most = most_slices(accelerator, len(rows))
    for piece in rows:
        scores = scorer.score(model, scorer.assemble(batch, piece, torch.float64), batch.completion_ids.shape[1])
        check_finite_loss(scores.logp.sum(), accelerator, step=1)
        backward(optimization, accelerator, scores.logp.sum())
    runtime = SimpleNamespace(accelerator=accelerator, model=model, trained=model)
    ctx: Any = SimpleNamespace(runtime=runtime, optimization=optimization)
    complete_gradient(ctx, scorer, batch, len(rows), most, step=1)
    parts = {name.removeprefix("module."): part.grad for name, part in model.named_parameters()}
    sums = {
        name: [float(part.sum()), float(part.abs().sum()), float(part.square().sum())] for name, part in parts.items()
    }
    return sums, scorer.counters.forward_passes


def slices_of_the_first() -> tuple[dict[str, list[float]], int]:
    """``gradient`` of two slices in the first process and of none in the others."""
    accelerator = Accelerator(cpu=True)
    found = gradient(accelerator, [RowRange(0, 1), RowRange(1, 2)] if accelerator.is_main_process else [])
    accelerator.end_training()
    return found
