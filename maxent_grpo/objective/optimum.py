"""The policy that the maximum-entropy objective is maximised by, over answers that can all be listed.

Per prompt, with utilities r(y) and a reference pi_ref over the listed answers y, the objective

    J(pi) = E_pi[r] / T_q + tau H(pi) - beta KL(pi || pi_ref)

has the unique maximiser pi*(y) proportional to exp(r(y) / (T_q (tau+beta))) * pi_ref(y)^(beta/(tau+beta)), and every other
policy falls short of it by J(pi*) - J(pi) = (tau+beta) KL(pi || pi*). It is the fixed point of the listwise cross-entropy
for every group size. The floor of q, which bounds log q within a group, is not part of it.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxent_grpo.objective.weights import maxent_log_weights


def optimal_log_policy(
    utilities: Float[Tensor, "prompts answers"],
    log_reference: Float[Tensor, "prompts answers"],
    valid: Bool[Tensor, "prompts answers"],
    *,
    tau: float,
    beta: float,
    q_temperature: float,
    score_length: float = 1.0,
) -> Float[Tensor, "prompts answers"]:
    """Log of pi*; -inf where ``valid`` is false.

    A listwise term whose sequence scores are log-probabilities divided by a constant L0 has its fixed point where
    log pi = L0 r / (T_q (tau+beta)) + beta/(tau+beta) log pi_ref + c: the rewards count L0 times.

    Args:
        utilities: r(y).
        log_reference: log pi_ref(y), whole sequences [nats]; a constant per prompt cancels, and without beta it is not used.
        valid: answers that have a utility.
        tau: weight of the entropy, >= 0; at tau + beta = 0 the optimum is uniform on the most useful answers.
        beta: weight of the divergence from the reference, >= 0.
        q_temperature: T_q, > 0 [reward units].
        score_length: L0; 1 for summed log-probabilities [tokens].
    """
    log_q = utilities * (score_length / q_temperature)
    return maxent_log_weights(log_q, log_reference, valid, tau=tau, beta=beta)


def divergence_from_optimum(
    log_optimum: Float[Tensor, "prompts answers"], log_policy: Float[Tensor, "prompts answers"]
) -> Float[Tensor, " prompts"]:
    """KL(pi* || pi) = sum pi* (log pi* - log pi) [nats]; answers of optimal probability 0 contribute 0.

    The policy need not sum to 1 over the answers: what it puts elsewhere adds -log of the mass it puts here.
    """
    taken = torch.isfinite(log_optimum)
    safe = log_optimum.masked_fill(~taken, 0.0)
    terms = torch.where(taken, safe.exp() * (safe - log_policy.masked_fill(~taken, 0.0)), torch.zeros_like(safe))
    return terms.sum(dim=-1)
