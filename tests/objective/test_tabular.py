"""A bandit whose policy is a table: the maximum-entropy method keeps every right answer, Dr.GRPO keeps one.

Twenty outcomes, five of them right and not equally likely at the start. Each seed is a prompt with logits of its own; the
loss is the package's, with a completion of one token. Of the step's mean over seeds the learning rate undoes the 1/P.
"""

from __future__ import annotations

import math

import jaxtyping
import pytest
import torch
from support.steps import plain_facts, scoring_settings
from torch import Tensor

from maxent_grpo.config.scoring import DrGrpoScoringConfig, MaxEntScoringConfig, ScoringConfig
from maxent_grpo.objective.logprobs import chosen_logp, log_distribution
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.objective.weights import utility_log_q
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.targets import group_evidence, group_scores, sequence_targets
from maxent_grpo.training.types.choices import ScoreMode
from maxent_grpo.training.types.rewards import (
    AdvantageStats,
    PromptCompletionBatch,
    QDistribution,
    RewardComputation,
    RewardMoments,
    SequenceScores,
)
from maxent_grpo.training.types.weighting import ControllerValues

NUM_OUTCOMES, NUM_RIGHT, GROUP, NUM_SEEDS = 20, 5, 8, 10
LEARNING_RATE, TAU = 0.1, 0.15
ROWS = NUM_SEEDS * GROUP
MASK = torch.ones(ROWS, 1, dtype=torch.bool)
ONE_TOKEN = torch.ones(ROWS, dtype=torch.long)
EVERYONE = torch.ones(NUM_SEEDS, GROUP, dtype=torch.bool)
FACTS = plain_facts(EVERYONE)
PAIRS = PromptCompletionBatch(["x"] * ROWS, ["y"] * ROWS)


def start() -> Tensor:
    logits = torch.zeros(NUM_SEEDS, NUM_OUTCOMES, dtype=torch.float64)
    logits[:, :NUM_RIGHT] = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0], dtype=torch.float64)
    return logits.requires_grad_()


def trained(config: ScoringConfig, num_steps: int) -> Tensor:
    """Probabilities [seeds, outcomes] after on-policy training with the configured method."""
    settings = scoring_settings(config)
    weighting = settings.weighting
    weighting.tau, weighting.q_temperature = TAU, 1.0
    values = ControllerValues(tau=TAU, beta=0.0, kl_beta=0.0)
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=1)
    assert method.advantages is not None
    counts = StepCounts(sequences=ROWS, tokens=ROWS, groups=NUM_SEEDS)
    generator = torch.Generator().manual_seed(0)
    logits = start()
    for _ in range(num_steps):
        log_probs = log_distribution(logits)
        drawn = torch.multinomial(log_probs.detach().exp(), GROUP, replacement=True, generator=generator)
        logp = chosen_logp(log_probs.unsqueeze(1).expand(-1, GROUP, -1), drawn).reshape(ROWS, 1)
        fixed = logp.detach()

        utilities = (drawn < NUM_RIGHT).double()
        advantages = method.advantages(utilities, FACTS)
        q = utility_log_q(utilities, EVERYONE, temperature=weighting.q_temperature, epsilon=weighting.q_epsilon).exp()
        rewards = RewardComputation(
            utilities.flatten().tolist(),
            {},
            AdvantageStats(advantages.tolist(), []),
            PAIRS,
            QDistribution(q.tolist(), []),
            RewardMoments(0.0, 0.0),
        )
        evidence = group_evidence(rewards, EVERYONE, EVERYONE, None, weighting)
        targets = sequence_targets(rewards, evidence, weighting, values)
        term = method.group_loss(targets, group_scores(fixed[:, 0], ONE_TOKEN, weighting, ScoreMode.sum, GROUP))
        rows = SliceTargets(
            advantages=targets.advantages.flatten(),
            reference_logp=None,
            sampled_logp=None,
            listwise_value=term.value.repeat_interleave(GROUP) / GROUP,
            listwise_coefficient=term.coefficient.flatten(),
            weights=targets.log_weights.exp().flatten(),
            weight_baseline=torch.full((ROWS,), 1 / GROUP, dtype=torch.float64),
        )
        scores = SequenceScores(
            cur_logp_sum=logp[:, 0],
            behavior_logp_sum=fixed[:, 0],
            log_ratio_train=torch.zeros(ROWS, dtype=torch.float64),
            denom_tok_tensor=ONE_TOKEN,
            token_logp=logp,
            token_mask=MASK,
            old_token_logp=fixed,
        )
        output = compute_loss(scores, rows, method, weighting, score_mode=ScoreMode.sum, kl_beta=0.0, counts=counts)
        (slope,) = torch.autograd.grad(output.loss, logits)
        with torch.no_grad():
            logits -= LEARNING_RATE * NUM_SEEDS * slope
    return log_distribution(logits).detach().exp()


def measured(policy: Tensor) -> tuple[float, float, float]:
    """Means over seeds: pass@1, entropy among the right outcomes over its maximum, KL(target || policy)."""
    right = policy[:, :NUM_RIGHT]
    among = right / right.sum(dim=-1, keepdim=True)
    entropy = torch.special.entr(among).sum(dim=-1) / math.log(NUM_RIGHT)
    outcome = (torch.arange(NUM_OUTCOMES) < NUM_RIGHT).double()
    target = torch.log_softmax(outcome / TAU, dim=-1)
    divergence = (target.exp() * (target - policy.log())).sum(dim=-1)
    return float(right.sum(dim=-1).mean()), float(entropy.mean()), float(divergence.mean())


@pytest.fixture(scope="module", params=[2500, pytest.param(4000, marks=pytest.mark.slow)])
def numbers(request: pytest.FixtureRequest) -> dict[str, tuple[float, float, float]]:
    maxent = MaxEntScoringConfig()
    maxent.weighting.listwise_coef = 1.0
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        # checking shapes at every one of these calls would double the time of thousands of small steps
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        for name, config in (("maxent", maxent), ("dr_grpo", DrGrpoScoringConfig())):
            found[name] = measured(trained(config, request.param))
            pass_at_1, entropy, divergence = found[name]
            print(
                f"{name}, {request.param} steps: pass@1 {pass_at_1:.4f}, entropy over the right answers {entropy:.4f}, "
                f"KL(target || policy) {divergence:.4f}"
            )
    return found


def test_maxent_is_right_almost_always_and_keeps_every_right_answer(
    numbers: dict[str, tuple[float, float, float]],
) -> None:
    pass_at_1, entropy, divergence = numbers["maxent"]
    assert entropy > 0.95
    assert pass_at_1 > 0.97
    assert divergence < 0.02


def test_dr_grpo_is_right_almost_always_and_keeps_hardly_more_than_one_answer(
    numbers: dict[str, tuple[float, float, float]],
) -> None:
    pass_at_1, entropy, divergence = numbers["dr_grpo"]
    assert entropy < 0.2
    assert pass_at_1 > 0.97
    assert divergence > 1.0
