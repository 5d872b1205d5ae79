"""Complaints about tokens, masks and generation with pretrained models, each with the value that is right."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import save_checkpoint, small_tokenizer
from support.runs import configured, inside_run, metric_lines, only_reward, train
from support.tiny import prompt_entries, row_prompts, sampling_settings, tiny_llama, tiny_tokenizer
from torch import Tensor, nn

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.models.build import build_model
from maxent_grpo.telemetry.stall import StallWatch
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord
from maxent_grpo.training.types.runtime import BatchingSettings

TOKENIZER = tiny_tokenizer()
ENTRY = prompt_entries(TOKENIZER)


class Always(nn.Module):
    """A model whose most likely next token follows from the last one by a table: what the completion is, is written down."""

    def __init__(self, following: dict[int, int]) -> None:
        super().__init__()
        self.inner = tiny_llama(torch.float32)
        self.following = following

    def forward(self, input_ids: Tensor, **call: Any) -> Any:
        outputs = self.inner(input_ids=input_ids, **call)
        last = input_ids[:, -1].tolist()
        for row, token in enumerate(last):
            if token in self.following:
                outputs.logits[row, -1, self.following[token]] = 1e4
        return outputs


def sampler(model: Any, eos: tuple[int, ...], *, pad: int = 0, **controls: Any) -> LocalGenerator:
    settings = sampling_settings(**controls)
    return LocalGenerator(
        model, TOKENIZER, settings, ENTRY, seed=0, stream="train", pad_token_id=pad, eos_token_ids=eos
    )


def test_a_second_end_token_ends_a_completion_and_is_no_truncation() -> None:
    """Complaint 41 (huggingface/trl PR #7039, modelscope/ms-swift#4950): end tokens {2, 9}: [5, 7, 9] has length 3 and ended."""
    [last] = ENTRY("1").input_ids[-1:]
    model = Always({last: 5, 5: 7, 7: 9, 9: 30})
    _, [[record]] = sampler(model, (2, 9), max_completion_len=5, temperature=0.0)(row_prompts("1"), 1)
    assert record is not None
    assert (record.token_ids, record.finish_reason) == ([5, 7, 9], FinishReason.eos)
    _, [[cut]] = sampler(model, (2,), max_completion_len=3, temperature=0.0)(row_prompts("1"), 1)
    assert cut is not None
    assert cut.finish_reason is FinishReason.length


def test_the_end_token_is_trained_where_it_is_also_the_pad_token(tmp_path: Path) -> None:
    """Complaint 42 (huggingface/trl PR #4970): [5, 2, 2, 2] with pad = eos = 2 has the mask 1, 1, 0, 0."""
    records = [CompletionRecord("r", ids, None, FinishReason.eos, 0) for ids in ([5, 2], [5, 6, 7, 2])]
    batch = build_score_batch(["1"], [records], BatchingSettings(0, 0, ENTRY), pad_token_id=2, max_prompt_len=8)
    assert batch.completion_ids.tolist() == [[5, 2, 2, 2], [5, 6, 7, 2]]
    assert batch.completion_attention_mask.long().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_a_tokenizer_without_a_pad_token_trains_and_is_saved_as_it_was(tmp_path: Path) -> None:
    """The same complaint: Llama has no pad token; the end token fills rows, and nothing is added to the tokenizer."""
    source = save_checkpoint(tmp_path / "model", "llama", tokenizer=small_tokenizer(pad=False))
    overrides = ("model=hf", f"model.name={source}", "generation.allowed_tokens=[]", "evaluation.enabled=false")

    def body(ctx: Any, resources: Any, parts: Any) -> tuple[int, int | None]:
        return resources.generator._pad_token_id, ctx.runtime.tokenizer.pad_token_id

    assert inside_run(configured(tmp_path / "run", *overrides), body) == (2, None)


@pytest.mark.parametrize("padded", [False, True])
def test_a_row_alone_has_the_log_probs_it_has_in_a_batch(padded: bool) -> None:
    """Complaint 43 (huggingface/trl PR #2708): the mask is missing in the forward pass; equal to 1e-5 whatever else is there."""
    model = tiny_llama(torch.float32)
    rows = {"1+1=": [20, 21, 2], "a much longer prompt: ": [30, 31, 32, 33, 34, 35, 2]}
    batching = BatchingSettings(0, 0, ENTRY)
    scorer = TokenScorer(SampledDistribution(), batching, None, entropy_carries_gradient=False, padded=padded)

    def logp(chosen: dict[str, list[int]]) -> list[Tensor]:
        groups = [[CompletionRecord("r", ids, None, FinishReason.eos, 0)] for ids in chosen.values()]
        batch = build_score_batch(list(chosen), groups, batching, pad_token_id=2, max_prompt_len=32)
        chunks = scorer.assemble(batch, RowRange(0, len(chosen)), torch.float32)
        with torch.no_grad():
            found = scorer.score(model, chunks, batch.completion_ids.shape[1]).logp
        return [row[mask] for row, mask in zip(found, batch.completion_attention_mask, strict=True)]

    for (prompt, ids), together in zip(rows.items(), logp(rows), strict=True):
        [alone] = logp({prompt: ids})
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_the_generation_config_of_a_model_does_not_sample(tmp_path: Path) -> None:
    """Complaint 47 (huggingface/trl#5783, PR #3494, PR #5887): temperature .01 and top_k 1 there, 1 here: softmax frequencies."""
    source = save_checkpoint(
        tmp_path / "model", "llama", initializer_range=0.05,
        generation={
            "do_sample": True, "temperature": 0.01, "top_k": 1, "eos_token_id": 2, "suppress_tokens": [30],
            "forced_eos_token_id": 2, "repetition_penalty": 5.0, "max_new_tokens": 1,
        },
    )  # fmt: skip
    loaded = build_model(HfModelConfig(name=str(source)))
    _, [records] = sampler(loaded.model, (2,), max_completion_len=1)(row_prompts("7"), 2000)
    counts = Counter(record.token_ids[0] for record in records if record is not None)
    assert len(counts) > 60
    with torch.no_grad():
        expected = torch.softmax(loaded.model(torch.tensor([ENTRY("7").input_ids])).logits[0, -1], -1)
    found = torch.tensor([counts[token] / 2000 for token in range(len(expected))])
    assert 0.5 * float((found - expected).abs().sum()) < 0.15  # total variation; about .09 by chance alone
    assert counts[30] > 0


class WithoutSlicing(nn.Module):
    """A model that gives the logits of all positions and takes no argument that would restrict them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_llama(torch.float32)
        self.config = self.inner.config

    def forward(self, input_ids: Tensor, attention_mask: Any = None, position_ids: Any = None, **cache: Any) -> Any:
        assert "logits_to_keep" not in cache
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **cache)


def test_a_model_without_logits_to_keep_samples_and_scores_alike() -> None:
    """Complaint 51 (huggingface/trl#2770): a slice off by one where all logits come back; the same tokens and log-probs."""
    lacking = WithoutSlicing()
    prompts = row_prompts("1+1=", "colour: ")
    _, whole = sampler(lacking, (2,))(prompts, 3)
    _, sliced = sampler(lacking.inner, (2,))(prompts, 3)
    groups, others = (
        [[record for record in group if record is not None] for group in found] for found in (whole, sliced)
    )
    for record, other in zip(chain(*groups), chain(*others), strict=True):
        assert record.token_ids == other.token_ids
        assert record.behaviour_logp == pytest.approx(other.behaviour_logp, abs=1e-5)
    batching = BatchingSettings(0, 0, ENTRY)
    batch = build_score_batch(prompts, groups, batching, pad_token_id=0, max_prompt_len=32)
    scorer = TokenScorer(SampledDistribution(), batching, None, entropy_carries_gradient=False, padded=False)
    with torch.no_grad():
        first, second = (
            scorer.score(
                model, scorer.assemble(batch, RowRange(0, 6), torch.float32), batch.completion_ids.shape[1]
            ).logp
            for model in (lacking, lacking.inner)
        )
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_a_stop_string_cuts_the_text_and_counts_as_an_end(tmp_path: Path) -> None:
    """Complaint 52 (huggingface/open-r1#271, huggingface/trl#2702): "\\n\\n" is cut off there, and nothing was truncated."""
    newline, a = TOKENIZER.convert_tokens_to_ids(["\n", "a"])
    [last] = ENTRY("1").input_ids[-1:]
    model = Always({last: a, a: newline, newline: newline})
    texts, [[record]] = sampler(
        model, (2,), max_completion_len=8, temperature=0.0, gen_stop_sequences=["\n\n"]
    )(row_prompts("1"), 1)  # fmt: skip
    assert record is not None
    assert (texts, record.token_ids) == ([["a"]], [a, newline, newline])
    assert record.finish_reason is FinishReason.stop


def test_a_run_that_truncates_everything_and_learns_nothing_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Complaint 53 (huggingface/trl#5697): a length limit that cuts every completion, without a word."""
    caplog.set_level(logging.WARNING, "maxent_grpo")
    few = ("optimization.prompts_per_step=1", "generation.num_generations=2", "generation.max_completion_len=3")
    steps = ("optimization.total_training_steps=8", "evaluation.enabled=false", "generation.allowed_tokens=[]")
    train(tmp_path / "run", *few, *steps, *only_reward("half"))
    lines = [line for line in metric_lines(tmp_path / "run") if line["step"]]
    assert {(line["completion/clipped_ratio"], line["reward/equal_groups"]) for line in lines} == {(1.0, 1.0)}
    [said] = [record.message for record in caplog.records if "nothing is learnt" in record.message]
    assert said.startswith(
        "nothing is learnt: for 5 steps every completion was cut at generation.max_completion_len=3 tokens before it ended, and "
        "all rewards of each group were equal; raise generation.max_completion_len"
    )


def test_a_stall_is_said_at_the_fifth_step_in_a_row_and_once() -> None:
    watch, dead = StallWatch(), {"completion/clipped_ratio": 1.0, "reward/equal_groups": 1.0}
    alive = dead | {"reward/equal_groups": 0.5}
    said = [watch.see(metrics, 16) is not None for metrics in [*[dead] * 4, alive, *[dead] * 12]]
    assert [place for place, spoke in enumerate(said) if spoke] == [9]
