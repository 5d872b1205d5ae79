"""How much of the matmul peak scoring reaches, beside the bare transformer body: SmolLM2, about 2,048 tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks import material
from benchmarks.process import matmul_rate, timed


@dataclass(frozen=True)
class Work:
    """Groups behind shared prompts, 2 (128 + 8 · 112) = 2,048 tokens; the body is given rows of ``row_length``."""

    prompts: int = 2
    prompt_length: int = 128
    group: int = 8
    completion: int = 112
    row_length: int = 256
    laps: int = 2

    @property
    def fed(self) -> int:
        """Tokens that pass the body on either side."""
        return self.prompts * (self.prompt_length + self.group * self.completion)

    @property
    def scored(self) -> int:
        """Tokens that pass the head."""
        return self.prompts * self.group * self.completion


def measure(side: str, work: Work) -> dict[str, Any]:
    """Run one side, `body` or `ours`; the work of a lap is its useful operations."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(material.SMOLLM2, dtype=torch.float32).train()
    config = model.config
    peak = matmul_rate(2048, 2048, 2048)
    body = sum(p.numel() for name, p in model.model.named_parameters() if "embed_tokens" not in name)
    attention = 12.0 * config.num_hidden_layers * config.hidden_size
    if side == "body":
        rows = work.fed // work.row_length
        pairs = rows * work.row_length * (work.row_length + 1) / 2
        operations = 6.0 * body * work.fed + attention * pairs
        tokens = torch.randint(3, config.vocab_size, (rows, work.row_length))
        slope = torch.randn(rows, work.row_length, config.hidden_size)

        def lap() -> float:
            model.zero_grad(set_to_none=True)
            model.model(input_ids=tokens, use_cache=False).last_hidden_state.backward(slope)
            return operations
    else:
        from benchmarks.ours_inside import Scoring

        own = work.completion * (work.completion + 1) / 2 + work.completion * work.prompt_length
        pairs = work.prompts * (work.prompt_length * (work.prompt_length + 1) / 2 + work.group * own)
        head = 6.0 * config.vocab_size * config.hidden_size * work.scored
        operations = 6.0 * body * work.fed + attention * pairs + head
        scoring = Scoring(
            model, prompts=work.prompts, prompt_length=work.prompt_length, group=work.group, completion=work.completion
        )

        def lap() -> float:
            model.zero_grad(set_to_none=True)
            scoring.step()
            return operations

    laps, done = timed(work.laps, lap)
    return laps.as_sample(done, matmul_peak=peak, tokens=work.fed)
