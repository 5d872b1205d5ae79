"""The local sampler against a slow reference, and what it promises about batches, retries, cost and modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from support.slow_sampling import next_distribution, next_logits, slow_completion
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
from transformers import GenerationConfig

from maxent_grpo.errors import DataError, GenerationError, NonFiniteError
from maxent_grpo.training.generation import kv_cache
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.generation.streams import completion_uniforms
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord
from maxent_grpo.training.types.runtime import GenerationSettings

TOKENIZER = tiny_tokenizer()
ENTRY = prompt_entries(TOKENIZER)
PROMPTS = ("1+1=", "colour: ", "x", "what is 7*6?")
SEED, STREAM = 11, "train"


def token(character: str) -> int:
    return ENTRY(character).input_ids[0]


DIGITS = tuple(token(character) for character in "0123456789")
# without training the end token is one of a hundred: these give it a fair share
FEW = tuple(token(character) for character in "012")


def local(model: Any, settings: GenerationSettings, *, eos: tuple[int, ...] = (2,), **changes: Any) -> LocalGenerator:
    names: dict[str, Any] = {"seed": SEED, "stream": STREAM, "pad_token_id": 0} | changes
    return LocalGenerator(model, TOKENIZER, settings, ENTRY, eos_token_ids=eos, **names)


def tokens(records: list[list[CompletionRecord | None]]) -> list[list[list[int]]]:
    return [[record.token_ids for record in group if record is not None] for group in records]


def assert_matches_the_slow_sampler(
    model: Any, settings: GenerationSettings, *, eos: tuple[int, ...] = (2,), num: int = 3, rollout: int = 4
) -> list[CompletionRecord]:
    generator = local(model, settings, eos=eos)
    generator.begin_rollout(rollout)
    prompts = row_prompts(*PROMPTS)
    texts, records = generator(prompts, num)
    flat: list[CompletionRecord] = []
    for index, prompt in enumerate(prompts):
        for sample in range(num):
            drawn = completion_uniforms(
                SEED, STREAM, rollout, f"row-{index}", sample, settings.max_completion_len
            ).tolist()
            slow = slow_completion(model, TOKENIZER, ENTRY(prompt).input_ids, drawn, settings, set(eos))
            record = records[index][sample]
            assert record is not None
            assert record.token_ids == slow.token_ids
            assert record.behaviour_logp == pytest.approx(slow.logp, abs=1e-10)
            assert record.finish_reason == slow.finish_reason
            assert record.row_id == f"row-{index}"
            assert texts[index][sample] == slow.text
            flat.append(record)
    return flat


@pytest.mark.parametrize(
    "build", [tiny_llama, tiny_gpt2, *(pytest.param(b, marks=pytest.mark.slow) for b in (tiny_qwen2, tiny_mistral))]
)
def test_every_architecture_draws_what_the_slow_sampler_draws(build: Callable[[], Any]) -> None:
    records = assert_matches_the_slow_sampler(build(), sampling_settings(temperature=1.5, allowed_token_ids=DIGITS))
    assert {record.finish_reason for record in records} == {FinishReason.eos, FinishReason.length}


@pytest.mark.parametrize(
    "controls",
    [
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 0.0},
        {"temperature": 0.0, "gen_repetition_penalty": 1.5, "gen_frequency_penalty": 0.4},
        {"top_p": 0.7},
        {"gen_top_k": 4},
        {"gen_top_k": 4, "allowed_token_ids": DIGITS},
        {"gen_min_p": 0.2},
        {"temperature": 1.4, "gen_top_k": 20, "top_p": 0.8, "gen_min_p": 0.1, "allowed_token_ids": DIGITS},
        {"gen_presence_penalty": 1.5, "allowed_token_ids": FEW},
        {"gen_frequency_penalty": 0.7, "allowed_token_ids": FEW},
        {"gen_repetition_penalty": 1.8, "allowed_token_ids": DIGITS},
        {"gen_stop_sequences": ["1"], "allowed_token_ids": FEW},
        {"gen_stop_sequences": ["20", "012", "1"], "allowed_token_ids": FEW},
    ],
    ids=str,
)
def test_every_control_draws_what_the_slow_sampler_draws(controls: dict[str, Any]) -> None:
    assert_matches_the_slow_sampler(tiny_llama(), sampling_settings(max_completion_len=6, **controls), num=2)


def test_a_stop_string_is_left_out_of_the_text_and_its_last_token_kept() -> None:
    settings = sampling_settings(max_completion_len=12, allowed_token_ids=FEW, gen_stop_sequences=["12", "20"])
    texts, records = local(tiny_llama(), settings)(row_prompts(*PROMPTS), 6)
    reasons = Counter()
    for text, record in zip(chain(*texts), chain(*records), strict=True):
        whole = TOKENIZER.decode(record.token_ids, skip_special_tokens=True)
        reasons[record.finish_reason] += 1
        if record.finish_reason is FinishReason.stop:
            assert whole in (text + "12", text + "20")
        assert "12" not in text
        assert "20" not in text
    assert reasons[FinishReason.stop] > 3
    assert reasons[FinishReason.eos] > 0


def test_greedy_decoding_agrees_with_generate_in_double_precision() -> None:
    compare_greedy(torch.float64, tie=0.0)


def test_greedy_decoding_agrees_with_generate_in_single_precision_up_to_near_ties() -> None:
    compare_greedy(torch.float32, tie=1e-4)


def compare_greedy(dtype: torch.dtype, tie: float) -> None:
    """Differences from ``generate`` are allowed only where the two best logits are closer than ``tie``."""
    model = tiny_llama(dtype)
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=[2, token("q")], do_sample=False)
    prompts = row_prompts(*["abcdefghijklmnopqrstuvwxyz"[start : 2 * start + 1] + str(start) for start in range(20)])
    settings = sampling_settings(max_completion_len=8, temperature=0.0)
    _, records = local(model, settings, eos=(2, token("q")))(prompts, 1)
    for prompt, [ours] in zip(prompts, tokens(records), strict=True):
        prompt_ids = ENTRY(prompt).input_ids
        inputs = torch.tensor([prompt_ids])
        output = model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=8)
        theirs = output[0, len(prompt_ids) :].tolist()
        if ours != theirs:
            same = next(i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
            best = sorted(next_logits(model, prompt_ids + ours[:same]), reverse=True)
            assert best[0] - best[1] < tie


def test_greedy_log_probabilities_are_those_of_the_greedy_distribution() -> None:
    _, records = local(tiny_llama(), sampling_settings(temperature=0.0))(row_prompts(*PROMPTS), 2)
    for first, second in records:
        assert first is not None
        assert second is not None
        assert first.behaviour_logp == [0.0] * len(first.token_ids)
        assert first.token_ids == second.token_ids


def test_behaviour_log_probabilities_equal_those_of_a_direct_forward() -> None:
    model = tiny_qwen2()
    _, records = local(model, sampling_settings(max_completion_len=20))(row_prompts(*PROMPTS), 4)
    for prompt, group in zip(PROMPTS, records, strict=True):
        prompt_ids = ENTRY(prompt).input_ids
        for record in group:
            assert record is not None
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt_ids + record.token_ids])).logits[
                    0, len(prompt_ids) - 1 : -1
                ]
            logp = torch.log_softmax(logits, dim=-1)[torch.arange(len(record.token_ids)), record.token_ids]
            assert record.behaviour_logp == pytest.approx(logp.tolist(), abs=1e-10)


def test_the_models_own_generation_config_does_not_leak_into_sampling() -> None:
    model = tiny_llama(torch.float32)
    model.generation_config = GenerationConfig(
        temperature=0.01, top_k=1, top_p=0.1, do_sample=True, eos_token_id=DIGITS[0], pad_token_id=0, max_new_tokens=1
    )
    settings = sampling_settings(max_completion_len=1, allowed_token_ids=DIGITS[:5])
    num = 2000
    _, records = local(model, settings)(row_prompts("7"), num)
    counts = Counter(ids[0] for ids in tokens(records)[0])
    expected = next_distribution(next_logits(model, ENTRY("7").input_ids), settings, {2})
    assert counts.keys() <= expected.keys()
    assert min(expected.values()) * num > 5
    statistic = sum((counts[t] - num * p) ** 2 / (num * p) for t, p in expected.items())
    assert statistic < 20.5  # the 99.9 % point of chi-square with 5 degrees of freedom


MIXED_COUNTS = [4, 0, 2, 5]


@pytest.mark.parametrize(
    "build", [tiny_llama, *(pytest.param(b, marks=pytest.mark.slow) for b in (tiny_gpt2, tiny_mistral))]
)
def test_the_batch_size_changes_no_token(build: Callable[[], Any]) -> None:
    model, prompts = build(), row_prompts(*PROMPTS)
    results = []
    for batch_size in (0, 1, 3, 6):
        settings = sampling_settings(allowed_token_ids=FEW, batch_size=batch_size)
        texts, records = local(model, settings)(prompts, 99, MIXED_COUNTS)
        assert [len(group) for group in texts] == MIXED_COUNTS
        results.append((texts, tokens(records)))
    assert all(result == results[0] for result in results)


def test_a_prompt_alone_draws_what_it_draws_among_others() -> None:
    model, prompts = tiny_llama(), row_prompts(*PROMPTS)
    texts, records = local(model, sampling_settings())(prompts, 3)
    shuffled_texts, shuffled = local(model, sampling_settings())(prompts[::-1], 3)
    assert tokens(shuffled)[::-1] == tokens(records)
    assert shuffled_texts[::-1] == texts
    for index, prompt in enumerate(prompts):
        alone_texts, alone = local(model, sampling_settings())([prompt], 3)
        assert tokens(alone) == [tokens(records)[index]]
        assert alone_texts == [texts[index]]


def test_a_retry_draws_the_next_samples_and_never_the_same_again() -> None:
    model, prompts = tiny_llama(), row_prompts(*PROMPTS)
    generator = local(model, sampling_settings())
    _, at_once = generator(prompts, 6)
    generator.begin_rollout(0)
    _, first = generator(prompts, 4)
    _, retry = generator(prompts[1:3], 99, [1, 1])
    _, again = generator(prompts[1:2], 1)
    assert [a[:4] for a in tokens(at_once)] == tokens(first)
    assert tokens(retry) == [tokens(at_once)[1][4:5], tokens(at_once)[2][4:5]]
    assert tokens(again) == [tokens(at_once)[1][5:6]]


def test_seed_stream_and_rollout_name_the_samples() -> None:
    model, prompts = tiny_llama(), row_prompts(*PROMPTS)

    def sample(rollout: int = 3, **names: Any) -> list[list[list[int]]]:
        generator = local(model, sampling_settings(), **names)
        generator.begin_rollout(rollout)
        return tokens(generator(prompts, 2)[1])

    assert sample() == sample()
    different = [sample(), sample(rollout=4), sample(seed=SEED + 1), sample(stream="eval")]
    assert len({str(groups) for groups in different}) == 4


def test_rows_with_the_same_text_draw_their_own_samples() -> None:
    same = row_prompts("12", "12")
    _, records = local(tiny_llama(), sampling_settings())(same, 2)
    assert len({str(ids) for group in tokens(records) for ids in group}) == 4


def test_a_prompt_without_a_row_is_known_by_its_text() -> None:
    model = tiny_llama()
    _, both = local(model, sampling_settings())(["12", "345"], 2)
    _, one = local(model, sampling_settings())(["345"], 2)
    assert tokens(both)[1] == tokens(one)[0]
    assert one[0][0] is not None
    assert one[0][0].row_id == ""


def test_each_of_several_end_tokens_ends_a_completion() -> None:
    ends = (2, token("5"))
    records = assert_matches_the_slow_sampler(
        tiny_llama(), sampling_settings(max_completion_len=15, allowed_token_ids=FEW), eos=ends
    )
    assert {record.token_ids[-1] for record in records if record.finish_reason is FinishReason.eos} == set(ends)
    for record in records:
        assert not set(record.token_ids[:-1]) & set(ends)


def test_a_pad_token_that_is_the_end_token_is_kept_once_at_the_end() -> None:
    settings = sampling_settings(max_completion_len=15, allowed_token_ids=FEW)
    model = tiny_llama()
    _, records = local(model, settings, pad_token_id=2)(row_prompts(*PROMPTS), 4)
    _, usual = local(model, settings)(row_prompts(*PROMPTS), 4)
    assert tokens(records) == tokens(usual)
    ended = [r for group in records for r in group if r is not None and r.finish_reason is FinishReason.eos]
    assert ended
    for record in ended:
        assert record.token_ids.count(2) == 1
        assert record.token_ids[-1] == 2
        assert record.behaviour_logp is not None
        assert len(record.behaviour_logp) == len(record.token_ids)


def test_without_end_tokens_only_the_length_ends_a_completion() -> None:
    _, records = local(tiny_llama(), sampling_settings(allowed_token_ids=FEW), eos=())(row_prompts(*PROMPTS), 2)
    for ids in chain(*tokens(records)):
        assert len(ids) == 8
        assert set(ids) <= set(FEW)


def test_each_prompt_is_run_once_and_finished_rows_leave_the_batch() -> None:
    model = tiny_llama()
    fed: list[tuple[int, int]] = []

    def note(_module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        assert output.logits.shape[1] == 1
        fed.append(tuple(kwargs["input_ids"].shape))

    handle = model.register_forward_hook(note, with_kwargs=True)
    settings = sampling_settings(max_completion_len=12, allowed_token_ids=FEW)
    prompt_lengths = [len(ENTRY(prompt).input_ids) for prompt in PROMPTS]
    for batch_size in (0, 4):
        fed.clear()
        settings.batch_size = batch_size
        _, records = local(model, settings)(row_prompts(*PROMPTS), 6)
        lengths = [len(ids) for ids in chain(*tokens(records))]
        assert min(lengths) < max(lengths)
        num_decoded = sum(length - 1 for length in lengths)
        if batch_size == 0:
            # one pass over all prompts, padded; then one row for each token that another one follows
            assert fed[0] == (len(PROMPTS), max(prompt_lengths))
            assert all(width == 1 for _, width in fed[1:])
            assert sum(rows for rows, _ in fed[1:]) == num_decoded
        else:
            # a prompt has more completions than fit, so each is run alone, without padding, for both of its portions
            assert sum(rows * width for rows, width in fed) == sum(prompt_lengths) + num_decoded
            assert max(rows for rows, _ in fed) == batch_size
    handle.remove()


def test_a_cache_that_outgrows_its_room_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = tiny_llama(), sampling_settings(max_completion_len=14, allowed_token_ids=FEW)
    _, roomy = local(model, settings)(row_prompts(*PROMPTS), 4)
    monkeypatch.setattr(kv_cache, "ROOM_TOKENS", 2)
    _, cramped = local(model, settings)(row_prompts(*PROMPTS), 4)
    assert tokens(cramped) == tokens(roomy)


def test_training_mode_and_its_exceptions_are_restored_and_dropout_is_off_while_sampling() -> None:
    model = tiny_gpt2()
    settings = sampling_settings()
    _, expected = local(model, settings)(row_prompts(*PROMPTS), 2)
    model.train()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    _, records = local(model, settings)(row_prompts(*PROMPTS), 2)
    assert [module.training for module in model.modules()] == before
    assert tokens(records) == tokens(expected)


def test_a_model_with_gradient_checkpointing_samples_and_still_trains() -> None:
    model = tiny_llama()
    _, expected = local(model, sampling_settings())(row_prompts(*PROMPTS), 2)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    _, records = local(model, sampling_settings())(row_prompts(*PROMPTS), 2)
    assert tokens(records) == tokens(expected)
    assert model.is_gradient_checkpointing
    model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_policy_version_is_that_of_the_call() -> None:
    generator = local(tiny_llama(), sampling_settings(max_completion_len=1))
    versions = []
    for version in (0, 17):
        generator.policy_version = version
        versions += [record.policy_version for [record] in generator(row_prompts("1"), 1)[1] if record is not None]
    assert versions == [0, 17]


def test_logits_that_are_not_finite_name_the_step_and_the_row() -> None:
    model = tiny_gpt2()
    with torch.no_grad():
        model.transformer.wpe.weight[5] = torch.nan
    with pytest.raises(NonFiniteError, match=r"completion token 2 for 3 of 6 completions \(rows 'row-0'\)"):
        local(model, sampling_settings(), eos=())(row_prompts("1+1=", "12"), 3)
    assert not model.training


def test_what_cannot_be_sampled_is_refused_with_the_reason() -> None:
    model = tiny_llama()
    generator = local(model, sampling_settings())
    with pytest.raises(ValueError, match="2 prompts need as many counts"):
        generator(row_prompts("1", "2"), 1, [1])
    with pytest.raises(ValueError, match="none negative"):
        generator(row_prompts("1", "2"), -1)
    with pytest.raises(DataError, match="row 'row-0' has no tokens"):
        generator(row_prompts(""), 1)
    with pytest.raises(GenerationError, match=r"end token ids \[5000\] are outside the model's vocabulary of 103"):
        local(model, sampling_settings(), eos=(2, 5000))(row_prompts("1"), 1)
    with pytest.raises(GenerationError, match="allowed token ids"):
        local(model, sampling_settings(allowed_token_ids=(-1,)))(row_prompts("1"), 1)


def test_nothing_asked_for_gives_empty_groups() -> None:
    generator = local(tiny_llama(), sampling_settings())
    assert generator([], 3) == ([], [])
    assert generator(row_prompts("1", "2"), 0) == ([[], []], [[], []])
