"""Prompts laid out by us, shared or copied, against the padded prompts that every model can have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from support.checkpoints import SIZES, SLIDING_LAYERS
from support.tiny import (
    prompt_entries,
    row_prompts,
    sampling_settings,
    tiny_gpt2,
    tiny_llama,
    tiny_mistral,
    tiny_qwen2,
    tiny_tokenizer,
)
from torch import Tensor, nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from maxent_grpo.models.attention import install_layouts
from maxent_grpo.training.generation import kv_cache, shared_prefix
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.generation.prefix import Prefix, prefill
from maxent_grpo.training.generation.shared_prefix import LaidOutPrompts, layout_problem
from maxent_grpo.training.types.rewards import CompletionRecord

TOKENIZER = tiny_tokenizer()
PROMPTS = ("1+1=", "what is 7*6?", "x", "1+2=", "colours?")
CPU = torch.device("cpu")
SHARED, COPIED = 0, 2**60
"""Values of SHARED_BYTES under which prompts are always shared, and never."""


def tiny_gemma3(dtype: torch.dtype = torch.float64) -> Gemma3ForCausalLM:
    """Layers with a window of 6 and without, normalised queries and keys, and a scale of its own."""
    changes = {"sliding_window": 6, "layer_types": SLIDING_LAYERS, "query_pre_attn_scalar": 9}
    config = Gemma3TextConfig(vocab_size=len(TOKENIZER), **(SIZES | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Gemma3ForCausalLM(config).to(dtype).eval()


def grouped_llama(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny_llama(dtype, num_attention_heads=4, num_key_value_heads=2, head_dim=16)


BUILDS = (grouped_llama, tiny_qwen2, tiny_gpt2, tiny_mistral, tiny_gemma3)


def laid_out(build: Callable[..., Any], dtype: torch.dtype = torch.float64) -> Any:
    model = build(dtype)
    install_layouts(model)
    return model


def ids_of(*prompts: str) -> list[list[int]]:
    return [prompt_entries(TOKENIZER)(prompt).input_ids for prompt in prompts]


def logits_of(model: Any, prefix: Prefix, rows: list[int], steps: int, drops: dict[int, list[bool]]) -> list[Tensor]:
    """Logits of every completion's every token, in the order of completions, with some of them dropped on the way."""
    here = torch.arange(len(rows))
    completions = prefix.states.continued(torch.tensor(rows), steps)
    found = [prefix.logits[rows]]
    for step in range(steps):
        if step in drops:
            here = here[completions.drop(torch.tensor(drops[step])[here])]
        tokens = (here * 7 + step * 3) % 90 + 5
        logits = torch.zeros_like(found[0])
        logits[here] = completions.advance(model, tokens, step)
        found.append(logits)
    return found


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("bound", [SHARED, COPIED], ids=["shared", "copied"])
@torch.no_grad()
def test_shared_and_copied_prompts_have_the_logits_of_padded_ones(
    build: Callable[..., Any], bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unequal prompts, some without a completion, completions longer than windows, rows that end, whole prompts that end."""
    monkeypatch.setattr(shared_prefix, "SHARED_BYTES", bound)
    monkeypatch.setattr(kv_cache, "ROOM_TOKENS", 3)
    model = laid_out(build)
    rows = [0, 0, 0, 1, 1, 3, 4, 4]
    ended = [False, True, False, False, False, True, False, True]
    drops = {2: ended, 4: [*ended[:3], True, True, *ended[5:]], 6: [True, *ended[1:3], True, True, *ended[5:]]}
    prompts = ids_of(*PROMPTS)
    expected = logits_of(model, prefill(model, prompts, 0, CPU), rows, 9, drops)
    found = logits_of(model, prefill(model, prompts, 0, CPU, laid_out=True), rows, 9, drops)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@torch.no_grad()
def test_prompts_of_one_length_are_held_without_padding_and_serve_several_jobs() -> None:
    model = laid_out(grouped_llama)
    prompts = ids_of("1+1=", "7*6=", "9-3=")
    prefix = prefill(model, prompts, 0, CPU, laid_out=True)
    assert isinstance(prefix.states, LaidOutPrompts)
    assert prefix.states._padding is None
    padded = prefill(model, prompts, 0, CPU)
    for rows in ([0, 0, 1, 1, 2, 2], [2, 0], [1]):
        for states in (prefix.states.shared, prefix.states.copied):
            completions, others = states(torch.tensor(rows), 4), padded.states.continued(torch.tensor(rows), 4)
            for step in range(4):
                tokens = torch.tensor(rows) + 5 + step
                theirs = others.advance(model, tokens, step)
                torch.testing.assert_close(completions.advance(model, tokens, step), theirs, atol=1e-10, rtol=0)


@torch.no_grad()
def test_bfloat16_logits_are_as_close_to_exact_ones_as_those_of_padded_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefix, "SHARED_BYTES", SHARED)
    prompts, rows = ids_of(*PROMPTS), [0, 0, 1, 2, 3, 4, 4]
    narrow = laid_out(tiny_qwen2, torch.bfloat16)
    exact = tiny_qwen2().to(torch.bfloat16).to(torch.float64)
    expected = logits_of(exact, prefill(exact, prompts, 0, CPU), rows, 5, {})
    gaps = [
        max((ours.double() - theirs).abs().max() for ours, theirs in zip(found, expected, strict=True))
        for found in (
            logits_of(narrow, prefill(narrow, prompts, 0, CPU, laid_out=flag), rows, 5, {}) for flag in (True, False)
        )
    ]
    assert 0 < gaps[0] < 1.5 * gaps[1]


def sampled(model: Any, *, batch_size: int = 0) -> list[list[CompletionRecord]]:
    settings = sampling_settings(max_completion_len=12, batch_size=batch_size, allowed_token_ids=(20, 21, 22))
    generator = LocalGenerator(
        model,
        TOKENIZER,
        settings,
        prompt_entries(TOKENIZER),
        seed=3,
        stream="train",
        pad_token_id=0,
        eos_token_ids=(2,),
    )
    _, records = generator(row_prompts(*PROMPTS), 4)
    return [[record for record in group if record is not None] for group in records]


@pytest.mark.parametrize(
    "build",
    # grouped heads, and windows; that the logits of all agree is shown above
    [pytest.param(b, marks=() if b in (grouped_llama, tiny_gemma3) else pytest.mark.slow) for b in BUILDS],
)
def test_tokens_and_log_probs_are_those_of_padded_prompts_whatever_the_batch_size(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    padded = list(chain(*sampled(build())))
    assert len({len(record.token_ids) for record in padded}) > 1
    model = laid_out(build)
    for bound, batch_size in ((SHARED, 0), (COPIED, 0), (SHARED, 1), (SHARED, 6)):
        monkeypatch.setattr(shared_prefix, "SHARED_BYTES", bound)
        for ours, theirs in zip(chain(*sampled(model, batch_size=batch_size)), padded, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert ours.behaviour_logp == pytest.approx(theirs.behaviour_logp, abs=1e-10)


def test_no_token_of_padding_is_run_and_finished_rows_leave_the_batch() -> None:
    model = laid_out(tiny_llama)
    fed: list[tuple[int, ...]] = []

    def note(_module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        fed.append(tuple(kwargs["input_ids"].shape))
        assert output.logits.shape[0] * output.logits.shape[1] <= 4 * len(PROMPTS)

    sampled(model)
    handle = model.register_forward_hook(note, with_kwargs=True)
    fed.clear()
    records = list(chain(*sampled(model)))
    handle.remove()
    prompt_tokens = sum(len(ids) for ids in ids_of(*PROMPTS))
    assert fed.count((1, prompt_tokens)) == 1
    steps = fed[fed.index((1, prompt_tokens)) + 1 :]
    assert all(width == 1 for _, width in steps)
    assert sum(rows for rows, _ in steps) == sum(len(record.token_ids) - 1 for record in records)


@pytest.mark.parametrize("build", BUILDS)
def test_layouts_are_found_to_hold_for_models_that_take_them(build: Callable[..., Any]) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert layout_problem(laid_out(build, dtype), [5, 9, 31]) == ""


def test_models_that_cannot_be_laid_out_are_told_with_a_reason() -> None:
    assert "attention takes no layouts" in layout_problem(tiny_llama(), [5])
    model = laid_out(tiny_llama)
    for layer in model.model.layers:
        # as attention does whose own code hands no further keywords to the attention function
        inner = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, layout=None, inner=inner, **kwargs: inner(*args, **kwargs)
    assert "0 of 2 layers take a layout" in layout_problem(model, [5])


def test_a_layout_that_gives_other_logits_is_noticed_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sampled(tiny_llama())
    model = laid_out(tiny_llama)
    attend = shared_prefix.LaidOutCompletions.attend
    monkeypatch.setattr(
        shared_prefix.LaidOutCompletions, "attend", lambda *args, **kwargs: 1.1 * attend(*args, **kwargs)
    )
    assert "they give other logits (by " in layout_problem(model, [5, 9, 31])
    with caplog.at_level(logging.WARNING):
        assert sampled(model) == expected
    assert "they give other logits" in caplog.text


def test_broken_weights_are_no_fault_of_the_layout() -> None:
    model = laid_out(tiny_llama)
    with torch.no_grad():
        nn.init.constant_(model.lm_head.weight, torch.nan)
    assert layout_problem(model, [5, 9]) == ""
