"""A real vLLM server gives what was asked for, under the distribution that scoring replays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from support.vllm_policy import PROMPTS, Asked, assert_complete, distribution, settings, token_lists

from maxent_grpo.objective.sampling import penalised_logits
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.generation import VLLMClientConfig

CONTROLS = {
    "nothing": {},
    "temperature and top-p": {"temperature": 0.7, "top_p": 0.9},
    "top-k": {"gen_top_k": 5},
    "min-p": {"gen_min_p": 0.1, "temperature": 1.3},
    "allowed tokens": {"allowed": (5, 6, 7, 8, 9), "temperature": 0.7},
}


@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_log_probabilities_are_those_of_scoring(asked: Asked, controls: dict) -> None:
    chosen = settings(**controls)
    texts, records = asked.sampler(chosen)(list(PROMPTS), 8)
    assert_complete(texts, records, 8)
    vocabulary = asked.loaded.model.config.vocab_size
    replayed = distribution(chosen, vocabulary, asked.ends)
    gaps = torch.cat([asked.gaps(p, r, replayed) for p, group in zip(PROMPTS, records, strict=True) for r in group if r])
    assert gaps.numel() > 200
    assert float(gaps.mean()) < 1e-3
    assert float(gaps.max()) < 1e-2
    # without the controls they are others, so that the comparison can fail
    if controls:
        plain = distribution(settings(), vocabulary, asked.ends)
        other = [asked.gaps(p, r, plain) for p, group in zip(PROMPTS, records, strict=True) for r in group if r]
        assert float(torch.cat(other).mean()) > 1e-2


def test_penalties_are_those_of_the_local_sampler(asked: Asked) -> None:
    amounts = {"presence": 0.7, "frequency": 0.4, "repetition": 1.3}
    chosen = settings(0.8, **{f"gen_{name}_penalty": amount for name, amount in amounts.items()})
    _, records = asked.sampler(chosen)(list(PROMPTS), 4)
    replayed = distribution(chosen, asked.loaded.model.config.vocab_size, asked.ends)
    for prompt, group in zip(PROMPTS, records, strict=True):
        for record in group:
            assert record is not None
            change = penalising(asked, prompt, record.token_ids, **amounts)
            assert float(asked.gaps(prompt, record, replayed, change).max()) < 1e-2


def penalising(
    asked: Asked, prompt: str, drawn: Sequence[int], **amounts: float
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the penalties do to the logits at each place of a completion."""

    def change(logits: torch.Tensor) -> torch.Tensor:
        vocabulary = logits.shape[-1]

        def counts(tokens: Sequence[int]) -> torch.Tensor:
            return torch.bincount(torch.tensor(list(tokens), dtype=torch.long), minlength=vocabulary)

        before = counts(asked.entry(prompt).input_ids).expand_as(logits)
        so_far = torch.stack([counts(drawn[:place]) for place in range(len(drawn))])
        return penalised_logits(logits, before, so_far, **amounts)

    return change


def test_greedy_completions_are_those_of_the_local_sampler(asked: Asked) -> None:
    """Where they part for the first time, the two tokens are as likely as each other up to rounding."""
    chosen = settings(temperature=0.0, length=32)
    prompts = [RowPrompt(f"{n} or {n * n}?", f"row {n}") for n in range(20)]
    theirs = asked.sampler(chosen)(prompts, 1)[1]
    own = asked.local_sampler(chosen)(prompts, 1)[1]
    same = 0
    for prompt, [left], [right] in zip(prompts, theirs, own, strict=True):
        assert left is not None
        assert right is not None
        pairs = list(zip(left.token_ids, right.token_ids, strict=False))
        parted = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        if parted is None:
            assert len(left.token_ids) == len(right.token_ids)
            same += 1
            continue
        logits = asked.logits(prompt, right)[parted]
        assert abs(float(logits[pairs[parted][0]] - logits[pairs[parted][1]])) < 1e-4
    assert same > 15


def test_a_stop_string_ends_a_completion_and_is_left_out(asked: Asked) -> None:
    chosen = settings(length=40, gen_stop_sequences=["e", "R"])
    texts, records = asked.sampler(chosen)(list(PROMPTS), 8)
    found = [
        (text, record.finish_reason, asked.loaded.tokenizer.decode(list(record.token_ids), skip_special_tokens=True))
        for part, group in zip(texts, records, strict=True)
        for text, record in zip(part, group, strict=True)
        if record is not None
    ]
    stopped = [(text, whole) for text, reason, whole in found if reason is FinishReason.stop]
    assert len(stopped) > 10
    assert all(whole in (text + "e", text + "R") for text, whole in stopped)
    assert not [text for text, reason, _ in found if "e" in text or "R" in text]


def test_a_bias_moves_a_token_and_a_guide_is_followed(asked: Asked) -> None:
    tokens = asked.loaded.tokenizer
    [letter] = tokens.encode("k", add_special_tokens=False)
    client = VLLMClientConfig(logit_bias={str(letter): 50.0})
    texts, _ = asked.sampler(settings(client=client, length=6))(list(PROMPTS), 2)
    assert {text for group in texts for text in group} == {"kkkkkk"}
    pattern = "(re|gre)[a-c]{2}"
    texts, _ = asked.sampler(settings(client=VLLMClientConfig(guided_regex=pattern), length=20))(list(PROMPTS), 4)
    assert all(re.fullmatch(pattern, text) for group in texts for text in group)
    assert len({text for group in texts for text in group}) > 5
    schema = json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False})  # fmt: skip
    texts, records = asked.sampler(settings(client=VLLMClientConfig(guided_json=schema), length=60))(list(PROMPTS), 2)
    ended = [
        json.loads(text)
        for part, group in zip(texts, records, strict=True)
        for text, record in zip(part, group, strict=True)
        if record is not None and record.finish_reason is not FinishReason.length
    ]
    assert ended
    assert all(entry in ({"a": "x"}, {"a": "y"}) for entry in ended)


def test_the_same_seed_gives_the_same_completions_and_another_rollout_others(asked: Asked) -> None:
    first, second, other_seed = (asked.sampler(settings(), seed=seed)(list(PROMPTS), 4)[1] for seed in (3, 3, 4))
    other_rollout = asked.sampler(settings(), seed=3, rollout=1)(list(PROMPTS), 4)[1]
    assert token_lists(first) == token_lists(second)
    assert token_lists(first) != token_lists(other_seed)
    assert token_lists(first) != token_lists(other_rollout)
    one = asked.sampler(settings(), seed=3)
    # asked one after the other, a prompt's completions go on and do not come again
    again = one(list(PROMPTS), 4)[1], one(list(PROMPTS), 4)[1]
    assert token_lists(again[0]) == token_lists(first)
    assert all(a != b for a, b in zip(token_lists(again[0]), token_lists(again[1]), strict=True))


def test_counts_of_their_own_are_kept(asked: Asked) -> None:
    texts, records = asked.sampler(settings())(list(PROMPTS), 4, [0, 1, 2, 3, 4, 5])
    assert [len(group) for group in texts] == [len(group) for group in records] == [0, 1, 2, 3, 4, 5]
