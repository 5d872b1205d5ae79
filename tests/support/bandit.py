"""A prompt whose completions are single tokens, and whose policy is a table: the package's loss on drawn groups of them."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import torch
from support.steps import Step, scores_of, slice_targets, targets_of
from torch import Tensor

from maxent_grpo.objective.logprobs import chosen_logp, log_distribution
from maxent_grpo.training.loss import compute_loss
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import ScoreMode
from maxent_grpo.training.types.runtime import ScoringSettings


@dataclass(frozen=True)
class Bandit:
    """Outcomes with rewards and reference log-probabilities, both [V], and the method that is to learn them."""

    settings: ScoringSettings
    rewards: Tensor
    reference: Tensor

    def every_group(self, size: int) -> Tensor:
        """All groups of a size, [V^size, size]."""
        return torch.tensor(list(itertools.product(range(len(self.rewards)), repeat=size)))

    def drawn(self, groups: Tensor, policy: Tensor, sampler: Tensor) -> Step:
        """The step on some groups [P, G], with the policy's and the sampler's log-probabilities [V]."""
        rows, zero = groups.view(-1, 1), torch.zeros(groups.numel(), 1, dtype=torch.float64)
        everyone = torch.ones_like(groups, dtype=torch.bool)
        return Step(
            utilities=self.rewards[groups],
            valid=everyone,
            complete=everyone,
            mask=everyone.view(-1, 1),
            logp=policy[rows],
            old_logp=policy[rows],
            reference_logp=self.reference[rows],
            sampled_logp=sampler[rows],
            entropy=zero,
            keys=groups,
            priority=zero,
        )

    def gradient(
        self, logits: Tensor, groups: Tensor, sampler: Tensor | None = None, share: Tensor | None = None
    ) -> Tensor:
        """Gradient of the loss of some groups [P, G] on the logits [V].

        ``sampler`` are the log-probabilities that drew them, by default the policy's; ``share`` [P] is each group's part
        in place of 1/P.
        """
        logits = logits.clone().requires_grad_()
        log_probs = log_distribution(logits)
        fixed = log_probs.detach()
        step = self.drawn(groups, fixed, fixed if sampler is None else sampler)
        weighting = self.settings.weighting
        method = resolve_method(self.settings, score_mode=ScoreMode.sum, max_completion_len=1)
        targets = slice_targets(
            step, method, targets_of(step, method, weighting, ScoreMode.sum), weighting, ScoreMode.sum
        )
        if share is not None:
            # advantages and slopes are factors of the rows' terms, so a group's part in the loss is a factor of them
            part = (share * len(groups)).repeat_interleave(groups.shape[1])
            scaled = {name: getattr(targets, name) * part for name in ("advantages", "listwise_coefficient")}
            targets = dataclasses.replace(targets, **scaled)
        logp = chosen_logp(log_probs.expand(groups.numel(), -1), groups.flatten()).unsqueeze(-1)
        output = compute_loss(
            scores_of(step, logp, slice(0, groups.numel())), targets, method, weighting,
            score_mode=ScoreMode.sum, kl_beta=0.0, counts=step.counts,
        )  # fmt: skip
        return torch.autograd.grad(output.loss, logits)[0]

    def expected_gradient(self, logits: Tensor, size: int, sampler: Tensor | None = None) -> Tensor:
        """Exact expectation over all groups that the sampler, by default the policy, can draw."""
        groups = self.every_group(size)
        log_probs = torch.log_softmax(logits, 0) if sampler is None else sampler
        return self.gradient(logits, groups, log_probs, log_probs[groups].sum(dim=-1).exp())

    def trained(
        self, logits: Tensor, *, num_steps: int, rate: float, num_groups: int = 8, size: int = 4, seed: int = 0
    ) -> Tensor:
        """Logits after on-policy gradient descent on drawn groups."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(num_steps):
            drawn = torch.multinomial(logits.softmax(0).expand(num_groups, -1), size, True, generator=generator)
            logits = logits - rate * self.gradient(logits, drawn)
        return logits
