"""Every listed answer behind one prompt: the numbers of a direct forward pass of each, from far fewer tokens."""

import itertools

import pytest
import torch
from support.tiny import tiny_gpt2, tiny_llama, tiny_qwen2
from torch import nn

from maxent_grpo.objective import fused_head
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.training.scoring import enumeration
from maxent_grpo.training.scoring.enumeration import answer_tree, pack_tree, score_answers

END = 2
PROMPTS = [[1, 40, 41, 42], [1, 50], [1, 60, 61, 62, 63, 64, 65]]
ANSWERS = [[*letters, END] for letters in itertools.product((57, 46, 41), repeat=3)]


ALLOWED = [END, 41, 46, 57]


def direct(model: nn.Module, prompt: list[int], answer: list[int], allowed: list[int] | None = None) -> float:
    """log pi(answer | prompt) from a pass of its own, without padding, sharing or masks; of other tokens only if allowed."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0].double()
    if allowed is not None:
        outside = torch.ones(logits.shape[-1], dtype=torch.bool)
        outside[allowed] = False
        logits = logits.masked_fill(outside, -torch.inf)
    log_probs = torch.log_softmax(logits, dim=-1)
    return sum(float(log_probs[len(prompt) - 1 + n, token]) for n, token in enumerate(answer))


@pytest.mark.parametrize("head", [None, HeadTransform()])
@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2, tiny_qwen2])
def test_each_answer_has_the_log_probability_of_its_own_forward_pass(
    build, head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_head, "CHUNK_BYTES", 7 * 8 * 128)  # the tree's places fall into several chunks
    model = build()
    uneven = [[END], [57, END], [57, 46, END], [46, 57, 57, 41, END]]
    scored = score_answers(model, PROMPTS, [ANSWERS, uneven, ANSWERS], pad_token_id=0, head=head)
    for prompt, answers, values in zip(PROMPTS, (ANSWERS, uneven, ANSWERS), scored, strict=True):
        expected = [direct(model, prompt, answer) for answer in answers]
        assert values.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("head", [None, HeadTransform(scale=2.0)])
def test_tokens_that_cannot_be_sampled_have_no_part_in_a_score(head) -> None:
    model = tiny_llama()
    if head is not None:
        model.lm_head.weight.data /= head.scale
    [scored] = score_answers(model, PROMPTS[:1], [ANSWERS], 0, head, torch.tensor(ALLOWED))
    if head is not None:
        model.lm_head.weight.data *= head.scale
    expected = [direct(model, PROMPTS[0], answer, ALLOWED) for answer in ANSWERS]
    assert scored.tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="cannot be sampled"):
        score_answers(model, PROMPTS[:1], [ANSWERS], 0, head, torch.tensor(ALLOWED[:-1]))


def test_the_probabilities_of_a_prefixs_continuations_sum_to_that_of_the_prefix() -> None:
    model = tiny_llama()
    vocab = list(range(model.config.vocab_size))
    [pairs] = score_answers(model, PROMPTS[:1], [[[57, token] for token in vocab]], pad_token_id=0)
    assert float(pairs.logsumexp(0)) == pytest.approx(direct(model, PROMPTS[0], [57]), abs=1e-9)


def test_common_beginnings_are_fed_once() -> None:
    tree = answer_tree(ANSWERS)
    assert len(tree.token_ids) == 3 + 9 + 27
    inputs = pack_tree(PROMPTS[:1], tree, 0, torch.float64)
    assert inputs.num_fed == len(PROMPTS[0]) + 39
    assert len(inputs.target_ids) == 27 * 4


@pytest.mark.parametrize("head", [None, HeadTransform()])
def test_neither_chunks_nor_company_nor_order_change_a_score(head, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    whole = score_answers(model, PROMPTS, [ANSWERS] * 3, pad_token_id=0, head=head)
    backwards = score_answers(model, PROMPTS[::-1], [ANSWERS] * 3, pad_token_id=0, head=head)[::-1]
    assert all(torch.equal(left, right) for left, right in zip(whole, backwards, strict=True))
    monkeypatch.setattr(enumeration, "ANSWERS_PER_PASS", 4)
    monkeypatch.setattr(enumeration, "FORWARD_TOKENS", 30)
    pieces = score_answers(model, PROMPTS, [ANSWERS] * 3, pad_token_id=0, head=head)
    for left, right in zip(whole, pieces, strict=True):
        assert left.tolist() == pytest.approx(right.tolist(), abs=1e-10)


def test_a_tree_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        answer_tree([[END], []])
