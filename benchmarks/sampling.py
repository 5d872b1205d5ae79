"""Tokens per CPU second of SmolLM2 with natural stopping: ours, `generate` of transformers, vLLM on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import material
from benchmarks.process import matmul_rate, timed

WARM_UP = 2
"""New tokens of the lap that is dropped."""
Draw = Callable[[int, int], list[int]]
"""(lap, most new tokens) -> length of each completion."""


@dataclass(frozen=True)
class Work:
    """Prompts of ``prompt_length`` tokens with ``group`` completions each."""

    prompt_length: int = 90
    completion: int = 64
    group: int = 8
    prompts: int = 4
    laps: int = 2


def measure(side: str, work: Work) -> dict[str, Any]:
    """Run one side: `ours`, `hf` or `vllm`; every lap asks the same prompts with other random numbers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(material.SMOLLM2)
    contents = material.question_prompts(work.prompts, work.prompt_length, tokenizer)
    prompts = [material.chat_ids(content, tokenizer) for content in contents]
    draw, facts = {"ours": _ours, "hf": _hf, "vllm": _vllm}[side](work, prompts, tokenizer)
    lengths: list[list[int]] = []

    def lap() -> float:
        longest = work.completion if lengths else WARM_UP
        lengths.append(draw(len(lengths), longest))
        return float(sum(lengths[-1]))

    laps, tokens = timed(work.laps, lap)
    return laps.as_sample(
        tokens,
        prompt_tokens=[float(sum(map(len, prompts)))] * work.laps,
        completion_tokens=tokens,
        sequences=work.prompts * work.group,
        **facts,
    )


def _model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(material.SMOLLM2, dtype=torch.float32).eval()


def _limit(model: Any, sequences: int) -> dict[str, float]:
    """What a token costs at least: 2 operations for each weight that multiplies, at the rate of that many rows."""
    weights = sum(parameter.numel() for parameter in model.parameters())  # the head is the embedding, counted once
    config = model.config
    rate = matmul_rate(sequences, config.hidden_size, config.intermediate_size)
    return {
        "operations_per_token": 2.0 * weights,
        "matmul_rate": rate,
        "limit_tokens_per_second": rate / (2.0 * weights),
    }


def _ours(work: Work, prompts: list[list[int]], tokenizer: Any) -> tuple[Draw, dict[str, float]]:
    from benchmarks.ours_inside import sampler

    model = _model()
    draw = sampler(model, tokenizer, {f"row-{n}": ids for n, ids in enumerate(prompts)}, work.completion)
    return lambda lap, longest: draw(lap, work.group, longest), _limit(model, work.prompts * work.group)


def _hf(work: Work, prompts: list[list[int]], tokenizer: Any) -> tuple[Draw, dict[str, float]]:
    import torch

    model, end = _model(), tokenizer.eos_token_id
    asked = torch.tensor([prompt for prompt in prompts for _ in range(work.group)])

    def draw(lap: int, longest: int) -> list[int]:
        torch.manual_seed(lap)
        with torch.no_grad():
            rows = model.generate(
                asked, attention_mask=torch.ones_like(asked), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=longest, pad_token_id=tokenizer.pad_token_id, eos_token_id=[end],
            )[:, asked.shape[1] :].tolist()  # fmt: skip
        return [row.index(end) + 1 if end in row else len(row) for row in rows]

    return draw, {}


def _vllm(work: Work, prompts: list[list[int]], tokenizer: Any) -> tuple[Draw, dict[str, float]]:
    import os

    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    engine = LLM(
        str(material.SMOLLM2), dtype="float32", max_model_len=work.prompt_length + work.completion + 16,
        enforce_eager=True, enable_prefix_caching=True,
    )  # fmt: skip

    def draw(lap: int, longest: int) -> list[int]:
        engine.reset_prefix_cache()  # prompts are shared within a lap, not with the one before
        asked = SamplingParams(n=work.group, temperature=1.0, max_tokens=longest, seed=lap)
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
        return [len(completion.token_ids) for output in outputs for completion in output.outputs]

    return draw, {}
