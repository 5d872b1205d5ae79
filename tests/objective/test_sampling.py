"""The sampled distribution and the draw from it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.numbers import assert_equals
from support.properties import quick
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from maxent_grpo.objective.sampling import BLOCK_TOKENS, draw_tokens, penalised_logits, sampled_logits


def random_logits(seed: int, rows: int = 3, vocab: int = 11, spread: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(rows, vocab, dtype=torch.float64, generator=generator)


def support(logits: Tensor) -> Tensor:
    return logits > -math.inf


def probabilities(logits: Tensor, **controls: Any) -> Tensor:
    return torch.log_softmax(sampled_logits(logits, **controls), dim=-1).exp()


def test_the_temperature_divides_logits() -> None:
    logp = torch.log_softmax(sampled_logits(torch.tensor([[1.0, 0.0]]), temperature=0.5), dim=-1)
    assert_equals(logp[0, 0], -math.log1p(math.exp(-2.0)))


def test_all_controls_off_at_temperature_one_return_the_logits_themselves() -> None:
    logits = random_logits(0)
    assert sampled_logits(logits, temperature=1.0) is logits
    assert sampled_logits(logits, temperature=1.0, top_k=11, top_p=1.0, min_p=0.0) is logits


def test_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    for dtype in (torch.float32, torch.float64):
        logits = torch.tensor([[0.2, 0.5, 0.3]], dtype=dtype).log()
        logp = torch.log_softmax(sampled_logits(logits, temperature=1.0, top_p=0.8), dim=-1)
        assert_equals(logp[0, 1], math.log(0.625))
        assert_equals(logp[0, 2], math.log(0.375))
        assert logp[0, 0] == -math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_sum_that_equals_top_p_but_for_rounding_has_reached_it(dtype: torch.dtype) -> None:
    for num in range(1, 10):
        logits = torch.full((1, 10), 0.3, dtype=dtype)
        assert support(sampled_logits(logits, temperature=1.0, top_p=num / 10)).sum() == num


def test_equal_logits_keep_the_tokens_the_controls_promise() -> None:
    logits = torch.zeros(2, 8)
    assert support(sampled_logits(logits, temperature=1.0, top_k=3)).all()
    assert support(sampled_logits(logits, temperature=1.0, min_p=1.0)).all()
    nucleus = support(sampled_logits(logits, temperature=1.0, top_p=0.5))
    assert nucleus.tolist() == [[True] * 4 + [False] * 4] * 2
    greedy = support(sampled_logits(logits, temperature=0.0))
    assert greedy.tolist() == [[True] + [False] * 7] * 2


@pytest.mark.parametrize("controls", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9, "top_k": 1}])
def test_the_narrowest_control_leaves_the_most_likely_token_with_probability_one(controls: dict[str, Any]) -> None:
    logits = random_logits(1)
    probs = probabilities(logits, temperature=0.7, **controls)
    assert_equals(probs, torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]))


def test_temperature_zero_is_a_point_mass_with_log_probability_zero() -> None:
    logits = random_logits(2)
    allowed = torch.zeros(11, dtype=torch.bool)
    allowed[[3, 7]] = True
    for controls, best in (({}, logits.argmax(-1)), ({"allowed": allowed}, logits[:, [3, 7]].argmax(-1) * 4 + 3)):
        logp = torch.log_softmax(sampled_logits(logits, temperature=0.0, **controls), dim=-1)
        assert_equals(logp.gather(-1, best.unsqueeze(-1)), torch.zeros(3, 1))
        assert support(logp).sum() == 3


def test_a_kept_token_stays_whatever_the_controls_say() -> None:
    logits = random_logits(3)
    allowed = torch.ones(11, dtype=torch.bool)
    worst = logits.argmin(dim=-1)
    allowed[worst] = False
    controls: dict[str, Any] = {"temperature": 1.3, "allowed": allowed, "top_k": 4, "top_p": 0.6, "min_p": 0.2}
    without = support(sampled_logits(logits, **controls))
    result = sampled_logits(logits, keep=worst, **controls)
    assert not without.gather(-1, worst.unsqueeze(-1)).any()
    assert torch.equal(support(result), without.scatter(-1, worst.unsqueeze(-1), True))
    assert_equals(result[support(result)], (logits / 1.3)[support(result)])


def test_keeping_a_token_of_the_support_changes_nothing() -> None:
    logits = random_logits(4)
    controls: dict[str, Any] = {"temperature": 0.9, "top_k": 3}
    kept = sampled_logits(logits, keep=logits.argmax(dim=-1), **controls)
    assert torch.equal(kept, sampled_logits(logits, **controls))


def test_gradients_flow_through_the_support_and_nowhere_else() -> None:
    logits = random_logits(5, rows=2, vocab=6)
    allowed = torch.tensor([True, True, False, True, True, True])

    def logp_of_best(values: Tensor) -> Tensor:
        kept = sampled_logits(values, temperature=0.8, allowed=allowed, top_k=4, top_p=0.95, min_p=0.01)
        return torch.log_softmax(kept, dim=-1).amax(dim=-1)

    assert torch.autograd.gradcheck(logp_of_best, logits.clone().requires_grad_())
    leaf = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(logp_of_best(leaf).sum(), leaf)
    outside = ~support(sampled_logits(logits, temperature=0.8, allowed=allowed, top_k=4, top_p=0.95, min_p=0.01))
    assert outside.any()
    assert (slope[outside] == 0).all()
    assert_equals(slope.sum(dim=-1), torch.zeros(2))


def test_sequences_of_tokens_are_truncated_place_by_place() -> None:
    logits = random_logits(6, rows=6)
    keep = logits.argmin(dim=-1)
    controls: dict[str, Any] = {"temperature": 0.8, "top_k": 5, "top_p": 0.7, "min_p": 0.05}
    flat = sampled_logits(logits, keep=keep, **controls)
    nested = sampled_logits(logits.view(2, 3, 11), keep=keep.view(2, 3), **controls)
    assert torch.equal(nested.view(6, 11), flat)


@pytest.mark.parametrize(
    "controls",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": 1.0, "top_k": 0},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_p": math.nan},
        {"temperature": 1.0, "min_p": 1.5},
    ],
)
def test_a_control_out_of_range_is_refused(controls: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"temperature|top_k|top_p|min_p"):
        sampled_logits(random_logits(0), **controls)


controls_strategy = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.1, 3.0),
        "top_k": st.none() | st.integers(1, 15),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.none() | st.floats(0.0, 0.9),
    }
)


@quick
@given(seed=st.integers(0, 10_000), controls=controls_strategy)
def test_truncation_agrees_with_the_warpers_of_transformers(seed: int, controls: dict[str, Any]) -> None:
    logits = random_logits(seed)
    ids = torch.zeros(3, 1, dtype=torch.long)
    expected = TemperatureLogitsWarper(controls["temperature"])(ids, logits)
    if controls["top_k"] is not None:
        expected = TopKLogitsWarper(controls["top_k"])(ids, expected)
    if controls["top_p"] < 1.0:
        expected = TopPLogitsWarper(controls["top_p"])(ids, expected)
    if controls["min_p"] is not None:
        expected = MinPLogitsWarper(controls["min_p"])(ids, expected)
    assert_equals(sampled_logits(logits, **controls), expected)


@quick
@given(seed=st.integers(0, 10_000), controls=controls_strategy, allowed=st.sets(st.integers(0, 10), min_size=1))
def test_what_is_left_is_the_renormalised_head_of_the_allowed_tokens(
    seed: int, controls: dict[str, Any], allowed: set[int]
) -> None:
    logits = random_logits(seed)
    mask = torch.zeros(11, dtype=torch.bool)
    mask[sorted(allowed)] = True
    probs = probabilities(logits, allowed=mask, **controls)
    full = torch.softmax(logits / controls["temperature"], dim=-1)
    kept = probs > 0
    assert not kept[:, ~mask].any()
    assert (kept.sum(-1) >= 1).all()
    assert (kept.sum(-1) <= min(controls["top_k"] or 11, len(allowed))).all()
    assert_equals(probs.sum(-1), torch.ones(3))
    assert_equals(
        probs, torch.where(kept, full, 0.0) / torch.where(kept, full, 0.0).sum(-1, keepdim=True), tolerance=1e-9
    )
    lowest_kept = torch.where(kept, full, math.inf).amin(-1, keepdim=True)
    assert (torch.where(mask & ~kept, full, 0.0) <= lowest_kept).all()


def test_penalties_have_the_meaning_of_the_openai_interface() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, 3.0, -4.0]], dtype=torch.float64)
    prompt = torch.tensor([[1, 0, 0, 0, 2]])
    completion = torch.tensor([[0, 3, 0, 1, 0]])
    result = penalised_logits(logits, prompt, completion, presence=0.25, frequency=0.5, repetition=2.0)
    assert_equals(result, [[1.0, -2.0 - 1.5 - 0.25, 0.5, 1.5 - 0.5 - 0.25, -8.0]])


def test_penalties_that_are_off_return_the_logits_themselves() -> None:
    logits = random_logits(7)
    ones = torch.ones(3, 11, dtype=torch.int32)
    assert penalised_logits(logits, ones, ones) is logits


def test_a_repetition_penalty_must_be_positive() -> None:
    ones = torch.ones(3, 11, dtype=torch.int32)
    with pytest.raises(ValueError, match="repetition"):
        penalised_logits(random_logits(7), ones, ones, repetition=0.0)


def draw(probs: list[float], uniforms: list[float], dtype: torch.dtype = torch.float64) -> list[int]:
    rows = torch.tensor([probs] * len(uniforms), dtype=dtype).log()
    return draw_tokens(rows, torch.tensor(uniforms, dtype=torch.float64))[0].tolist()


def test_a_draw_inverts_the_cumulative_distribution() -> None:
    uniforms = [0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999]
    assert draw([0.25, 0.5, 0.25], uniforms) == [0, 0, 1, 1, 2, 2]


def test_the_share_of_each_token_is_its_probability() -> None:
    probs = torch.softmax(random_logits(8, rows=1)[0], dim=-1)
    num = 20_000
    uniforms = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    tokens, _ = draw_tokens(probs.log().expand(num, -1), uniforms)
    shares = torch.bincount(tokens, minlength=11).double() / num
    assert (shares - probs).abs().max() <= 1.0 / num


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    last = math.nextafter(1.0, 0.0)
    for zeros in ([0.0, 0.4, 0.0, 0.6, 0.0], [0.0, 0.0, 1.0], [0.0, 1e-300, 0.0], [1.0, 0.0]):
        possible = {index for index, prob in enumerate(zeros) if prob > 0}
        assert set(draw(zeros, [0.0, 1e-320, 0.4, 0.5, last])) <= possible


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_that_do_not_sum_to_one_cannot_push_a_draw_past_the_end(dtype: torch.dtype) -> None:
    logp = torch.log_softmax(random_logits(9, rows=64, vocab=301), dim=-1).to(dtype)
    logp[:, 200:] = -math.inf
    tokens, _ = draw_tokens(logp, torch.full((64,), math.nextafter(1.0, 0.0), dtype=torch.float64))
    assert tokens.tolist() == [199] * 64


@pytest.mark.parametrize("top_k", [None, 7])
def test_logits_of_a_narrow_type_are_divided_without_rounding_them_again(top_k: int | None) -> None:
    logits = (8 * random_logits(4, rows=16, vocab=50)).to(torch.bfloat16)
    scaled = sampled_logits(logits, temperature=0.7, top_k=top_k)
    kept = torch.isfinite(scaled)
    torch.testing.assert_close(scaled[kept].double(), (logits.double() / 0.7)[kept], rtol=1e-6, atol=0)
    assert sampled_logits(logits, temperature=1.0) is logits


def test_a_draw_resolves_probabilities_below_single_precision() -> None:
    tiny = 1e-12
    assert draw([1.0 - tiny, tiny], [1.0 - tiny / 2, 1.0 - 2 * tiny]) == [1, 0]


@quick
@given(seed=st.integers(0, 10_000), uniform=st.floats(0.0, 1.0, exclude_max=True), top_k=st.integers(1, 11))
def test_a_drawn_token_brackets_its_uniform_number(seed: int, uniform: float, top_k: int) -> None:
    logp = torch.log_softmax(sampled_logits(random_logits(seed), temperature=1.0, top_k=top_k), dim=-1)
    tokens, _ = draw_tokens(logp, torch.full((3,), uniform, dtype=torch.float64))
    for row, token in zip(logp.exp(), tokens.tolist(), strict=True):
        below = math.fsum(row[:token].tolist())
        assert row[token] > 0
        assert below - 1e-12 <= uniform <= below + float(row[token]) + 1e-12


def plain_inversion(logits: Tensor, uniforms: Tensor) -> list[set[int]]:
    """For each row the tokens that one exact sum over all of them allows, two where the target is next to a boundary."""
    allowed = []
    for row, uniform in zip(logits.tolist(), uniforms.tolist(), strict=True):
        best = max(row)
        weights = [math.exp(value - best) for value in row]
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        total, sums, below = math.fsum(weights), [], 0.0
        for index in possible:
            below += weights[index]
            sums.append(below)
        near = {
            next((i for i, upto in zip(possible, sums, strict=True) if upto > uniform * total + off), possible[-1])
            for off in (-1e-12 * total, 1e-12 * total)
        }
        allowed.append(near)
    return allowed


def adversarial_rows(vocab: int, seed: int) -> Tensor:
    """Flat, peaked at either end, with holes, with whole blocks missing, with one token left, shifted far up and down."""
    rows = random_logits(seed, rows=10, vocab=vocab)
    rows[0] = 0.0
    rows[1, 0], rows[2, -1] = 40.0, 40.0
    rows[3, ::2] = -math.inf
    rows[4, : vocab // 2] = -math.inf
    rows[5, vocab // 2 :] = -math.inf
    rows[6, vocab // 4 : 3 * vocab // 4] = -math.inf
    rows[7, torch.arange(vocab) != seed % vocab] = -math.inf
    rows[8] += 1e4
    rows[9] -= 1e4
    return rows


@quick
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 2, BLOCK_TOKENS, 2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS + 1, 1024, 1300]),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_draw_over_blocks_is_that_of_one_sum_over_all_tokens(seed: int, vocab: int, uniform: float) -> None:
    logits = adversarial_rows(vocab, seed) if vocab > 2 else random_logits(seed, rows=10, vocab=vocab)
    uniforms = torch.full((10,), uniform, dtype=torch.float64)
    tokens, logp = draw_tokens(logits, uniforms)
    for token, near in zip(tokens.tolist(), plain_inversion(logits, uniforms), strict=True):
        assert token in near
    expected = torch.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(logp, expected, atol=1e-11, rtol=0)


def test_a_draw_next_to_the_borders_of_blocks_stays_in_the_support() -> None:
    vocab = 5 * BLOCK_TOKENS + 7
    probs = torch.zeros(vocab, dtype=torch.float64)
    probs[[BLOCK_TOKENS - 1, BLOCK_TOKENS, 3 * BLOCK_TOKENS, vocab - 2]] = 0.25
    uniforms = [0.0, 0.25, 0.5, 0.75]
    uniforms += [math.nextafter(value, 0.0) for value in [*uniforms[1:], 1.0]]
    places = [BLOCK_TOKENS - 1, BLOCK_TOKENS, 3 * BLOCK_TOKENS, vocab - 2]
    assert draw(probs.tolist(), uniforms) == places + places
    assert set(draw(probs.tolist(), uniforms, torch.float32)) == set(places)
