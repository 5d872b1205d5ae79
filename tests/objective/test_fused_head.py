"""The fused head against the plain formula, logits written out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maxent_grpo.objective import fused_head
from maxent_grpo.objective.fused_head import HeadScores, Slopes, head_scores
from maxent_grpo.objective.head_distribution import HeadDistribution, HeadTransform
from maxent_grpo.objective.logprobs import chosen_logp, log_distribution, token_entropy
from maxent_grpo.objective.sampling import sampled_logits

VOCAB, WIDTH, TOKENS = 13, 5, 7
ALLOWED = torch.ones(VOCAB, dtype=torch.bool)
ALLOWED[[2, 5, 11]] = False
TRANSFORMS = {
    "plain": HeadTransform(),
    "scaled": HeadTransform(scale=0.25),
    "capped": HeadTransform(scale=1.5, softcap=3.0),
}
CONTROLS: dict[str, dict[str, Any]] = {
    "whole": {},
    "tempered": {"temperature": 0.7},
    "allowed": {"allowed": ALLOWED},
    "top_k": {"temperature": 1.3, "top_k": 4},
    "top_p": {"top_p": 0.8, "allowed": ALLOWED},
    "min_p": {"temperature": 0.7, "min_p": 0.2},
    "greedy": {"temperature": 0.0},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows a chunk and two a block, so that neither divides the number of tokens."""
    monkeypatch.setattr(fused_head, "CHUNK_BYTES", 3 * VOCAB * 8)
    monkeypatch.setattr(fused_head, "BLOCK_BYTES", 2 * VOCAB * 8)


def the_case(dtype: torch.dtype = torch.float64, tokens: int = TOKENS) -> Any:
    """Hidden rows, matrix, bias and targets; some targets are unlikely or not allowed."""
    generator = torch.Generator().manual_seed(5)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((tokens, WIDTH), (VOCAB, WIDTH), (VOCAB,))
    )
    return hidden, weight, bias, torch.arange(tokens) % VOCAB


def written_out(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, distribution: HeadDistribution
) -> HeadScores:
    """The definition, with all logits."""
    logits = torch.nn.functional.linear(hidden, weight, bias) * distribution.transform.scale
    if distribution.transform.softcap is not None:
        logits = torch.tanh(logits / distribution.transform.softcap) * distribution.transform.softcap
    log_p = log_distribution(
        sampled_logits(
            logits, temperature=distribution.temperature, allowed=distribution.allowed, top_k=distribution.top_k,
            top_p=distribution.top_p, min_p=distribution.min_p, keep=targets,
        )
    )  # fmt: skip
    return HeadScores(chosen_logp(log_p, targets), token_entropy(log_p))


def slopes_of(tokens: int, dtype: torch.dtype, *, entropy: bool) -> Any:
    """Some of them 0: tokens that the loss asks nothing of."""
    generator = torch.Generator().manual_seed(6)
    one, other = torch.randn((2, tokens), generator=generator, dtype=torch.float64).to(dtype)
    one[1::3] = other[1::3] = 0
    return Slopes(one, other if entropy else None)


def weighted(scores: Any, slopes: Any) -> Tensor:
    total = (scores.logp * slopes.logp).sum()
    return total if slopes.entropy is None else total + (scores.entropy * slopes.entropy).sum()


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("transform", "control"), list(itertools.product(TRANSFORMS, CONTROLS)))
def test_values_and_gradients_are_those_of_the_written_out_formula(
    transform: str, control: str, known: bool, entropy: bool
) -> None:
    distribution = HeadDistribution(TRANSFORMS[transform], **CONTROLS[control])
    hidden, weight, bias, targets = the_case()
    slopes = slopes_of(TOKENS, torch.float64, entropy=entropy)
    scores = head_scores(
        hidden, weight, bias, targets, distribution, with_entropy=True, slopes=slopes if known else None
    )
    expected = written_out(hidden, weight, bias, targets, distribution)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)
    found = torch.autograd.grad(weighted(scores, slopes), (hidden, weight, bias))
    wanted = torch.autograd.grad(weighted(expected, slopes), (hidden, weight, bias))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("control", ["whole", "tempered", "allowed"])
@pytest.mark.parametrize("entropy", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_gradient_is_that_of_finite_differences(transform: str, control: str, entropy: bool) -> None:
    distribution = HeadDistribution(TRANSFORMS[transform], **CONTROLS[control])
    hidden, weight, bias, targets = the_case(tokens=4)

    def function(*inputs: Any) -> tuple[Tensor, ...]:
        scores = head_scores(inputs[0], inputs[1], inputs[2], targets, distribution, with_entropy=entropy)
        return tuple(part for part in scores if part is not None)

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))


def test_slopes_other_than_the_foreseen_ones_are_followed() -> None:
    hidden, weight, bias, targets = the_case()
    foreseen, real = slopes_of(TOKENS, torch.float64, entropy=True), slopes_of(TOKENS, torch.float64, entropy=False)
    scores = head_scores(
        hidden,
        weight,
        bias,
        targets,
        HeadDistribution(),
        with_entropy=True,
        slopes=foreseen._replace(logp=-foreseen.logp),
    )
    found = torch.autograd.grad(weighted(scores, real), (hidden, weight, bias))
    expected = written_out(hidden, weight, bias, targets, HeadDistribution())
    torch.testing.assert_close(found, torch.autograd.grad(weighted(expected, real), (hidden, weight, bias)))


def test_foreseen_slopes_are_used_without_making_the_logits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _, targets = the_case()
    slopes = slopes_of(TOKENS, torch.float64, entropy=False)
    made: list[int] = []
    real = fused_head._backward

    def counted(*args: Any) -> Any:
        made.append(1)
        return real(*args)

    monkeypatch.setattr(fused_head, "_backward", counted)
    for known, passes in ((slopes, 0), (None, 1)):
        scores = head_scores(hidden, weight, None, targets, HeadDistribution(), slopes=known)
        made.clear()
        weighted(scores, slopes).backward()
        assert len(made) == passes


@pytest.mark.parametrize("known", [False, True])
def test_gradients_that_nobody_wants_are_not_formed(known: bool) -> None:
    hidden, weight, bias, targets = the_case()
    slopes = slopes_of(TOKENS, torch.float64, entropy=False)
    for trained in ((hidden,), (weight,), (hidden, bias)):
        for part in (hidden, weight, bias):
            part.requires_grad_(any(part is one for one in trained))
            part.grad = None
        scores = head_scores(hidden, weight, bias, targets, HeadDistribution(), slopes=slopes if known else None)
        node = scores.logp.grad_fn
        assert node is not None
        weighted(scores, slopes).backward()
        assert [part.grad is not None for part in (hidden, weight, bias)] == [
            any(part is one for one in trained) for part in (hidden, weight, bias)
        ]


def test_without_gradient_nothing_is_kept() -> None:
    hidden, weight, bias, targets = the_case()
    with torch.no_grad():
        scores = head_scores(hidden, weight, bias, targets, HeadDistribution(), with_entropy=True)
    assert not scores.logp.requires_grad
    torch.testing.assert_close(scores, written_out(hidden, weight, bias, targets, HeadDistribution()))
    assert head_scores(hidden.detach(), weight.detach(), None, targets, HeadDistribution()).entropy is None


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_no_tokens_give_no_scores_and_gradients_of_zero(dtype: torch.dtype, known: bool) -> None:
    hidden, weight, bias, targets = the_case(dtype, tokens=0)
    slopes = slopes_of(0, torch.float64, entropy=True)
    scores = head_scores(
        hidden, weight, bias, targets, HeadDistribution(), with_entropy=True, slopes=slopes if known else None
    )
    assert scores.entropy is not None
    assert scores.logp.shape == scores.entropy.shape == (0,)
    weighted(scores, slopes).backward()
    assert hidden.grad.shape == (0, WIDTH)
    assert not weight.grad.any()
    assert not bias.grad.any()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("control", ["whole", "tempered", "allowed", "top_k"])
def test_a_narrow_type_is_rounded_as_the_model_rounds_its_logits(control: str, known: bool) -> None:
    """The values are the written-out ones bit for bit; gradients of the matrix add up in 32 bits."""
    distribution = HeadDistribution(TRANSFORMS["capped"], **CONTROLS[control])
    hidden, weight, bias, targets = the_case(torch.bfloat16)
    slopes = slopes_of(TOKENS, torch.float32, entropy=True)
    scores = head_scores(
        hidden, weight, None, targets, distribution, with_entropy=True, slopes=slopes if known else None
    )
    expected = written_out(hidden, weight, None, targets, distribution)
    assert scores.logp.dtype is torch.float32
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    found = torch.autograd.grad(weighted(scores, slopes), (hidden, weight))
    wanted = torch.autograd.grad(weighted(expected, slopes), (hidden, weight))
    assert found[1].dtype is torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    assert bias.grad is None


def test_a_second_derivative_is_refused_in_words() -> None:
    hidden, weight, bias, targets = the_case()
    logp = head_scores(hidden, weight, bias, targets, HeadDistribution()).logp
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(logp.sum(), hidden, create_graph=True)


def test_a_graph_that_is_kept_gives_the_same_gradient_again() -> None:
    hidden, weight, bias, targets = the_case()
    slopes = slopes_of(TOKENS, torch.float64, entropy=False)
    for known in (slopes, None):
        total = weighted(head_scores(hidden, weight, bias, targets, HeadDistribution(), slopes=known), slopes)
        first = torch.autograd.grad(total, (hidden, weight, bias), retain_graph=True)
        assert all(map(torch.equal, first, torch.autograd.grad(total, (hidden, weight, bias))))


def test_no_buffer_is_larger_than_a_chunk() -> None:
    """Of any size that the tokens would need together, nothing is made: not by either way."""
    tokens, vocab = 64, 512
    made: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            made.extend(part.untyped_storage().nbytes() for part in [result] if isinstance(part, Tensor))
            return result

    hidden, weight = torch.randn(tokens, WIDTH), torch.randn(vocab, WIDTH)
    slopes = slopes_of(tokens, torch.float32, entropy=True)
    for known in (None, slopes):
        rows, matrix = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with Sizes():
            scores = head_scores(
                rows, matrix, None, torch.arange(tokens), HeadDistribution(), with_entropy=True, slopes=known
            )
            weighted(scores, slopes).backward()
        assert max(made) == vocab * WIDTH * 4
