"""Every method against its formula written out in plain numbers: the loss, and its gradient by central differences."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from support.steps import (
    OPTIONS,
    Step,
    behaviour_logp,
    choice_of,
    random_step,
    run_step,
    scores_of,
    settings_for,
    slice_targets,
    targets_of,
)
from support.written_credit import Tokens, log_softmax, plain
from support.written_methods import METHODS, written_loss
from torch import Tensor

from maxent_grpo.objective.logprobs import chosen_logp, log_distribution, token_entropy
from maxent_grpo.training.loss import compute_loss
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import ScoreMode
from maxent_grpo.training.types.runtime import ScoringSettings

BETA, NUDGE = 0.3, 1e-5


def tilted(name: str) -> ScoringSettings:
    settings = settings_for(name)
    settings.weighting.beta = BETA
    return settings


def test_every_option_is_written_out() -> None:
    assert METHODS.keys() == OPTIONS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradient_on_every_token_are_those_of_the_written_formula(name: str) -> None:
    step = random_step(seed=31)
    found = run_step(step, tilted(name))
    numbers = plain(step, BETA)
    loss = written_loss(name, numbers)
    assert float(found.loss) == pytest.approx(loss(numbers.logp, numbers.entropy), abs=1e-10)
    expected = torch.zeros_like(step.logp)
    for row, t in numbers.places:
        sides = []
        for nudge in (NUDGE, -NUDGE):
            # a made-up entropy moves against the log-probability; see ``scores_of``
            logp, entropy = moved(numbers.logp, row, t, nudge), moved(numbers.entropy, row, t, -nudge)
            sides.append(loss(logp, entropy))
        expected[row, t] = (sides[0] - sides[1]) / (2 * NUDGE)
    assert float((found.gradient - expected).abs().max()) < 1e-8
    assert float(expected.abs().max()) > 1e-3


def moved(tokens: Tokens, row: int, t: int, by: float) -> Tokens:
    changed = list(tokens)
    changed[row] = [value + by * (place == t) for place, value in enumerate(tokens[row])]
    return changed


NUM_PROMPTS, GROUP, NUM_TOKENS, VOCABULARY = 4, 4, 3, 3


class Table:
    """A policy with a logit for each prompt, place and token, and completions of it."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (NUM_PROMPTS, NUM_TOKENS, VOCABULARY)
        self.logits = torch.randn(shape, dtype=torch.float64, generator=generator)
        self.drawn = torch.randint(VOCABULARY, (NUM_PROMPTS * GROUP, NUM_TOKENS), generator=generator)
        made_up = random_step(seed, num_prompts=NUM_PROMPTS, group=GROUP, num_tokens=NUM_TOKENS)
        logp, entropy = self.scores(self.logits)
        drift = 0.3 * torch.randn(logp.shape, dtype=torch.float64, generator=generator)
        self.step: Step = dataclasses.replace(made_up, logp=logp, old_logp=logp + drift, entropy=entropy + logp)

    def scores(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N, T] of the completions' tokens."""
        rows = log_distribution(logits).repeat_interleave(GROUP, dim=0)
        return chosen_logp(rows, self.drawn), token_entropy(rows)

    def numbers(self, logits: list[list[list[float]]]) -> tuple[Tokens, Tokens]:
        """The same as plain rows of trained tokens, from nested lists of logits."""
        log_probs = [[log_softmax(place) for place in prompt] for prompt in logits]
        entropies = [[-sum(math.exp(x) * x for x in place) for place in prompt] for prompt in log_probs]
        lengths, drawn = self.step.lengths.tolist(), self.drawn.tolist()
        return (
            [[log_probs[row // GROUP][t][drawn[row][t]] for t in range(n)] for row, n in enumerate(lengths)],
            [entropies[row // GROUP][:n] for row, n in enumerate(lengths)],
        )


@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_on_a_tabular_policy_is_that_of_the_written_formula(name: str) -> None:
    table, settings = Table(seed=5), tilted(name)
    step = table.step
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
    whole = targets_of(step, method, settings.weighting, ScoreMode.sum)
    choice = choice_of(step, method, settings, whole.advantages)
    targets = slice_targets(step, method, whole, settings.weighting, ScoreMode.sum, choice)
    logits = table.logits.clone().requires_grad_()
    logp, entropy = table.scores(logits)
    output = compute_loss(
        scores_of(step, logp, slice(0, 16), old_logp=behaviour_logp(step, method), entropy=entropy),
        targets, method, settings.weighting, score_mode=ScoreMode.sum, kl_beta=0.0, counts=step.counts,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(output.loss, logits)
    loss = written_loss(name, plain(step, BETA))
    logits_as_numbers = table.logits.tolist()
    assert float(output.loss.detach()) == pytest.approx(loss(*table.numbers(logits_as_numbers)), abs=1e-10)
    for prompt, place, token in itertools.product(range(NUM_PROMPTS), range(NUM_TOKENS), range(VOCABULARY)):
        sides = []
        for nudge in (NUDGE, -NUDGE):
            logits_as_numbers[prompt][place][token] += nudge
            sides.append(loss(*table.numbers(logits_as_numbers)))
            logits_as_numbers[prompt][place][token] -= nudge
        slope = (sides[0] - sides[1]) / (2 * NUDGE)
        assert float(gradient[prompt, place, token]) == pytest.approx(slope, abs=1e-8)
    assert float(gradient.abs().max()) > 1e-3
