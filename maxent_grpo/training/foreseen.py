"""What a loss will ask of each log-probability, known before the log-probabilities are: it lets scoring form gradients at once.

On the first pass over a rollout the policy's log-probabilities are those of the behaviour policy, so every ratio is exactly 1,
whatever they are. Where no other part of the loss looks at their values, its gradient in them is a constant of the slice; it is
taken from the loss itself, at stand-ins, so that no formula stands twice. Whoever uses it compares it with the gradient that
really arrives, bit for bit: a wrong foresight costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from maxent_grpo.objective.fused_head import Slopes
from maxent_grpo.training.method import Method
from maxent_grpo.training.scoring.policy import TokenScorer, TokenScores


def slopes_are_known(method: Method, *, kl_beta: float, has_old: bool, passes: int) -> bool:
    """Whether dL/dlogp and dL/dH of a slice do not depend on its log-probabilities.

    They do with log-probs of other weights (old ones, ``has_old``, or the sampler's, in the ratio or a mismatch weight), with a token
    KL, and with a listwise term, whose slope is a function of the group's scores. The entropy bonus has a constant slope. ``passes`` forward
    passes that wait for one backward pass would each keep a gradient of the output matrix, so there may be one.
    """
    on_policy = not has_old and not method.ratio_from_sampler and method.mismatch is None
    listwise = method.listwise_scale > 0 or method.listwise_clip is not None
    return on_policy and not listwise and not kl_beta > 0 and passes == 1


def foreseen_slopes(
    loss: Callable[[TokenScores], Tensor], scorer: TokenScorer, shape: tuple[int, int], like: Tensor
) -> Slopes:
    """dL/dlogp [n, T], and dL/dH where the entropy carries gradient, of a loss of these alone.

    Args:
        loss: the slice's loss from its scores, as it will be given to the backward pass.
        scorer: says what the loss is given.
        shape: n completions, T tokens.
        like: a tensor on the model's device, of the model's type.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    logp, entropy = (torch.zeros(shape, dtype=wide, device=like.device, requires_grad=True) for _ in range(2))
    carried = scorer.entropy == "exact" and scorer.entropy_carries_gradient
    given = TokenScores(logp, None if scorer.entropy is None else entropy if carried else entropy.detach())
    with torch.enable_grad():
        found = torch.autograd.grad(loss(given), (logp, entropy), allow_unused=True)
    return Slopes(*found)
