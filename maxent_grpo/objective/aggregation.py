"""How much each completion's policy term counts within its group, and each group within the step.

Row weights multiply the advantages; the mean weight of a group is 1 where only the balance within it changes. They are
computed once per rollout and carry no gradient.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxent_grpo.objective.shaping import NO_KEY
from maxent_grpo.objective.weights import masked_log_softmax


def risk_utilities(
    advantages: Float[Tensor, "prompts group"], lengths: Int[Tensor, "prompts group"], *, max_length: int
) -> Float[Tensor, "prompts group"]:
    """U_i = A_i T_i / T_max: the value of a completion's Dr.GRPO row at the policy that sampled it."""
    return advantages * lengths.to(advantages.dtype) / max_length


def tempered_row_weights(
    row_utilities: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    tau: Float[Tensor, " prompts"],
) -> Float[Tensor, "prompts group"]:
    """n a_i with a = softmax(U / tau) over the n valid completions of a group; their mean is 1.

    Source: tempered aggregation (xDr.GRPO). The group's loss is then the entropic risk tau log mean exp(U / tau) in
    place of the mean of U, whose gradient is sum a_i grad U_i by the envelope theorem: the weights are detached. Limits:
    tau -> inf is uniform (Dr.GRPO); tau = 0 is uniform on the exact arg-max set. A group without a valid completion has
    weights 0.
    """
    count = valid.sum(dim=-1, keepdim=True).to(row_utilities.dtype)
    blocked = row_utilities.masked_fill(~valid, -torch.inf)
    ties = valid & (blocked >= blocked.amax(dim=-1, keepdim=True))
    greedy = masked_log_softmax(torch.zeros_like(row_utilities), ties).exp()
    positive = torch.where(tau > 0, tau, torch.ones_like(tau)).unsqueeze(-1)
    soft = masked_log_softmax(row_utilities / positive, valid).exp()
    return torch.where((tau > 0).unsqueeze(-1), soft, greedy) * count


def mode_adaptive_tau(
    keys: Int[Tensor, "prompts group"], right: Bool[Tensor, "prompts group"], *, tau: float
) -> Float[Tensor, " prompts"]:
    """tau_x = tau / log(1 + kappa_x), kappa_x the number of different right answers in the group; tau where it has none.

    A group without a right answer has advantages 0, so its temperature does not matter.
    """
    same = (keys.unsqueeze(-1) == keys.unsqueeze(-2)) & right.unsqueeze(-1) & right.unsqueeze(-2)
    first = right & ~torch.tril(same, diagonal=-1).any(dim=-1)
    kappa = (first | (right & (keys == NO_KEY))).sum(dim=-1).to(torch.float64)
    return torch.where(kappa > 0, tau / torch.log1p(kappa.clamp(min=1)), torch.full_like(kappa, tau))


def prompt_scaled_row_weights(
    row_weights: Float[Tensor, "prompts group"], advantages: Float[Tensor, "prompts group"]
) -> Float[Tensor, "prompts group"]:
    """One weight for a whole group: c_x = <v * A, A> / <A, A> for row weights v; 0 where A = 0.

    The projection of the tempered policy term on Dr.GRPO's: it keeps what tempering does to the step sizes of prompts
    and removes what it does within a group, so it is the control that tells the two apart.
    """
    energy = advantages.square()
    total = energy.sum(dim=-1, keepdim=True)
    scale = (row_weights * energy).sum(dim=-1, keepdim=True) / torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(total > 0, scale, torch.zeros_like(scale)).expand_as(row_weights)


def answer_entropy(
    keys: Int[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    mean_logp: Float[Tensor, "prompts group"],
) -> Float[Tensor, " prompts"]:
    """Entropy [nats] of the group's answers, each weighted by the likelihood of the completions that give it.

    m = softmax over valid completions of the mean token log-probability under the behaviour policy; the mass of an
    answer is the sum of m over its completions, and a completion without a key is an answer of its own. Source:
    semantic entropy as used by SEED-GRPO, arXiv 2505.12346. 0 without a valid completion.
    """
    mass = masked_log_softmax(mean_logp, valid).exp()
    same = (keys.unsqueeze(-1) == keys.unsqueeze(-2)) & valid.unsqueeze(-1) & valid.unsqueeze(-2)
    alone = torch.eye(keys.shape[-1], dtype=torch.bool, device=keys.device)
    same = torch.where((keys == NO_KEY).unsqueeze(-1), alone, same)
    shared = (same.to(mass.dtype) * mass.unsqueeze(-2)).sum(dim=-1)
    # -sum_c p_c log p_c = -sum_i m_i log p_{c(i)}
    return -torch.where(valid, mass * shared.clamp(min=torch.finfo(mass.dtype).tiny).log(), torch.zeros_like(mass)).sum(
        -1
    )


def entropy_discount(entropy: Float[Tensor, " prompts"], *, alpha: float, group_size: int) -> Float[Tensor, " prompts"]:
    """1 / (1 + (alpha / log K) H) with K the configured group size, whose log K is the largest possible entropy.

    Source: SEED-GRPO, arXiv 2505.12346. Every advantage of the prompt is multiplied by it; 1 for K = 1.
    """
    if group_size < 2:
        return torch.ones_like(entropy)
    limit = torch.log(torch.tensor(float(group_size), dtype=entropy.dtype))
    return 1.0 / (1.0 + alpha / limit * entropy)
