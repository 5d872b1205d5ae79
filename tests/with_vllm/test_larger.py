"""A real pretrained model, and one in bfloat16, each with a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.runs import configured
from support.vllm_policy import HAS_VLLM, NEEDS_VLLM, PROMPTS, Asked, compare_greedy, distribution, policy, settings

from maxent_grpo.config.model import CACHE
from maxent_grpo.models.build import LoadedModel, build_model
from maxent_grpo.models.packaged import smollm2_folder
from maxent_grpo.tasks.rows import RowPrompt

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)]
SMOLLM2 = smollm2_folder(Path(__file__).parents[2] / CACHE)


@contextmanager
def served(loaded: LoadedModel, folder: Path) -> Iterator[Asked]:
    made = Asked.start(loaded, folder, url=None)
    try:
        yield made
    finally:
        made.weights.close()


def mean_gap(asked: Asked, temperature: float, top_p: float) -> float:
    chosen = settings(temperature, top_p)
    _, records = asked.sampler(chosen)(list(PROMPTS), 4)
    replayed = distribution(chosen, asked.loaded.model.config.vocab_size, asked.ends)
    gaps = [asked.gaps(p, r, replayed) for p, group in zip(PROMPTS, records, strict=True) for r in group if r]
    return float(torch.cat(gaps).mean())


@pytest.mark.skipif(not (SMOLLM2 / "config.json").is_file(), reason="SmolLM2 is not here; `make smollm2` fetches it")
def test_a_pretrained_model_writes_the_same_and_as_likely(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", "model=smollm2", f"model.cache_dir={SMOLLM2.parent}", "model.dtype=float32")
    with served(build_model(config.model, positions=128), tmp_path / "server") as asked:
        questions = [f"What is {n} + {n + 3}?" for n in range(10)] + [f"Name {n} animals." for n in range(2, 12)]
        tokenizer = asked.loaded.tokenizer
        prompts = [
            RowPrompt(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                ),
                text,
            )
            for text in questions
        ]
        assert compare_greedy(asked, prompts, tie=1e-2) >= 18
        assert mean_gap(asked, 1.0, 1.0) < 1e-3
        assert mean_gap(asked, 0.7, 0.9) < 1e-3


def test_a_model_in_bfloat16_agrees_within_its_rounding(tmp_path: Path) -> None:
    loaded = policy()
    loaded.model.to(torch.bfloat16)
    with served(loaded, tmp_path / "server") as asked:
        asked.weights.bring(0)
        gap = mean_gap(asked, 1.0, 1.0)
        assert 1e-6 < gap < 3e-2
