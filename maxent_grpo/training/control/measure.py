"""From a step's groups and sums to what a controller is told, reduced over processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import gather_all, global_sum
from maxent_grpo.objective.weights import group_divergence, masked_log_softmax, weight_entropy
from maxent_grpo.training.control.base import InformativeGroups, StepMeasurement
from maxent_grpo.training.types.entropy import TokenEntropy, WeightEntropy
from maxent_grpo.training.types.weighting import ControllerValues


def step_measurement(
    accelerator: Accelerator,
    groups: InformativeGroups,
    values: ControllerValues,
    *,
    token_kl: float | None,
    token_entropy: float | None,
) -> StepMeasurement:
    """The measurements of a step from this process's groups and the token means of all processes.

    Args:
        accelerator: reduces sums and counts over processes.
        groups: this process's informative groups.
        values: the coefficients that the step's weights were made with.
        token_kl: k3 to the reference, mean over the trained tokens of all processes [nats]; None without a reference.
        token_entropy: token entropy, mean over the same tokens [nats]; None when it was not measured.
    """
    log_w = groups.log_weights(tau=values.tau, beta=values.beta)
    local = [float(len(groups)), float(weight_entropy(log_w).sum()), *_reachable(groups, values.beta)]
    local.append(0.0 if groups.log_reference is None else float(_group_kl(groups, log_w).sum()))
    count, entropy, lowest, highest, kl = global_sum(accelerator, local)
    token = None if token_entropy is None else TokenEntropy(token_entropy)
    if count == 0:
        return StepMeasurement(0, token_kl=token_kl, token_entropy=token)
    return StepMeasurement(
        num_informative=int(count),
        weight_entropy=WeightEntropy(entropy / count),
        lowest_weight_entropy=WeightEntropy(lowest / count),
        highest_weight_entropy=WeightEntropy(highest / count),
        group_kl=None if groups.log_reference is None else kl / count,
        token_kl=token_kl,
        token_entropy=token,
    )


def gathered(accelerator: Accelerator, groups: InformativeGroups) -> Callable[[], InformativeGroups]:
    """Gathers, when called, the informative groups of all processes in rank order."""

    def gather() -> InformativeGroups:
        parts: list[InformativeGroups] = gather_all(accelerator, groups)
        references = [part.log_reference for part in parts if part.log_reference is not None]
        return InformativeGroups(
            torch.cat([part.log_q for part in parts]),
            torch.cat(references) if references else None,
            torch.cat([part.valid for part in parts]),
        )

    return gather


def _reachable(groups: InformativeGroups, beta: float) -> tuple[float, float]:
    """Sums over groups of the lowest and the highest entropy that tau can give the weights."""
    lowest = weight_entropy(groups.log_weights(tau=0.0, beta=beta))
    return float(lowest.sum()), float(groups.valid.sum(dim=-1).double().log().sum())


def _group_kl(groups: InformativeGroups, log_weights: Tensor) -> Tensor:
    """KL(w || pi_ref) of each group, pi_ref over the completions that take part."""
    assert groups.log_reference is not None
    return group_divergence(log_weights, masked_log_softmax(groups.log_reference, groups.valid))
