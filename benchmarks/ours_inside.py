"""The few inner parts of the package that are measured on their own, each called as training calls it.

Everything else goes through a run from its configuration; what changes inside the package has to be followed here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maxent_grpo.objective.fused_head import Slopes, head_scores
from maxent_grpo.objective.head_distribution import HeadDistribution


def head(
    hidden: Tensor, weight: Tensor, targets: Tensor, scored: Tensor, slopes: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the scored positions.

    Args:
        hidden: [N, H] before the head.
        weight: [V, H] of the head.
        targets: [N] tokens.
        scored: [N] positions that count.
        slopes: [M] gradients of the loss in both results, which training knows beforehand.
    """
    scores = head_scores(
        hidden[scored], weight, None, targets[scored], HeadDistribution(), with_entropy=True, slopes=Slopes(*slopes)
    )
    assert scores.entropy is not None
    return scores.logp, scores.entropy


def sampler(
    model: Any, tokenizer: Any, prompts: dict[str, list[int]], completion: int
) -> Callable[[int, int, int], list[int]]:
    """Draws (rollout number, completions of each prompt, most new tokens) and returns the length of each completion.

    Args:
        model: causal language model.
        tokenizer: its tokenizer.
        prompts: row name to token ids.
        completion: most new tokens.
    """
    from maxent_grpo.config.load import load_config
    from maxent_grpo.models.attention import install_layouts
    from maxent_grpo.training.generation.local import LocalGenerator
    from maxent_grpo.training.settings import generation_settings
    from maxent_grpo.training.types.rewards import PromptCacheEntry

    config = load_config(
        ["model=smollm2", "data=reasoning_gym", "data.tasks={chain_sum: 1}", "generation.allowed_tokens=[]",
         f"generation.max_completion_len={completion}", "generation.temperature=1.0"]
    )  # fmt: skip
    settings = generation_settings(config.generation, tokenizer, None)
    install_layouts(model)  # as a run's model has them
    generator = LocalGenerator(
        model, tokenizer, settings, lambda name: PromptCacheEntry(prompts[name], [1] * len(prompts[name])),
        seed=0, stream="train", pad_token_id=tokenizer.pad_token_id, eos_token_ids=[tokenizer.eos_token_id],
    )  # fmt: skip

    def draw(rollout: int, group: int, longest: int) -> list[int]:
        settings.max_completion_len = longest
        generator.begin_rollout(rollout)
        _, records = generator(list(prompts), group)
        return [len(record.token_ids) for each in records for record in each if record is not None]

    return draw


class Scoring:
    """Forward and backward of a policy pass over groups of random tokens behind shared prompts."""

    def __init__(self, model: Any, *, prompts: int, prompt_length: int, group: int, completion: int) -> None:
        from maxent_grpo.config.scoring import DrGrpoScoringConfig
        from maxent_grpo.models.attention import install_layouts
        from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
        from maxent_grpo.training.scoring.head_probe import separate_head
        from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
        from maxent_grpo.training.scoring.sharing import prompt_sharing
        from maxent_grpo.training.settings import entropy_mode, scoring_settings
        from maxent_grpo.training.types.choices import FinishReason, ReferenceSource
        from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry

        install_layouts(model)  # as a run's model has them
        draw = torch.Generator().manual_seed(0)
        vocabulary = model.config.vocab_size

        def tokens(number: int) -> list[int]:
            return torch.randint(3, vocabulary, (number,), generator=draw).tolist()

        entries = {f"p{n}": PromptCacheEntry(tokens(prompt_length), [1] * prompt_length) for n in range(prompts)}
        records = [
            [CompletionRecord(name, tokens(completion), None, FinishReason.length, 0) for _ in range(group)]
            for name in entries
        ]
        settings = scoring_settings(
            DrGrpoScoringConfig(), max_completion_len=completion, reference=ReferenceSource.none
        )
        settings.batching.prompt_length_cache_get = entries.__getitem__
        self.model, self.completion = model, completion
        self.batch = build_score_batch(
            list(entries), records, settings.batching, pad_token_id=0, max_prompt_len=prompt_length
        )
        self.rows = RowRange(0, prompts * group)
        self.scorer = TokenScorer(
            SampledDistribution(), settings.batching, entropy=entropy_mode(settings), entropy_carries_gradient=False,
            padded=False, sharing=prompt_sharing(model, settings, _refuse), head=separate_head(model, _refuse),
        )  # fmt: skip
        self.slopes = torch.randn(prompts * group, completion, generator=draw)

    def step(self) -> None:
        """Log-probabilities and entropies of every completion token, and the gradient of a weighted sum of the former."""
        chunks = self.scorer.assemble(self.batch, self.rows, torch.float32)
        scores = self.scorer.score(self.model, chunks, self.completion, Slopes(self.slopes, None))
        (scores.logp * self.slopes).sum().backward()


def _refuse(note: str) -> None:
    raise RuntimeError(note)
