"""Numbers and choices that follow from the settings: names of the options, `auto` choices, the batch arithmetic. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from maxent_grpo.config.controller import BETA, KL_BETA
from maxent_grpo.config.generation import VllmGenerationConfig, VllmMode
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.config.store import OPTIONS
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    GroupLoss,
    MismatchMode,
    Reduction,
    ReferenceSource,
    ScoreMode,
)
from maxent_grpo.training.types.runtime import ScoringSettings

LIKELIHOODS = (GroupLoss.centred_likelihood, GroupLoss.importance_likelihood)
"""Group losses that are policy terms themselves, and take the policy term's normaliser."""

SHARE_ALONE = 0.92
"""Of a GPU's memory what vLLM takes of its own accord."""
SHARE_BESIDE, SHARE_ASLEEP = 0.4, 0.6
"""What it takes of the GPU that trains: beside all of training, or beside what stays while training rests."""
LONGEST_SUM_SCORE = 32
"""Completion limit up to which `auto` scores sequences by sums; longer sums lie so far apart that weights become one-hot [tokens]."""


def chosen_options(config: RootConfig) -> dict[str, str]:
    """The option chosen in each group, by the type of its settings; a type outside the table keeps its class name."""
    names = {(group, option): name for group, name, option in OPTIONS}
    chosen: dict[str, str] = {}
    for group in dict.fromkeys(group for group, _, _ in OPTIONS):
        node: object = getattr(config, group)
        chosen[group] = names.get((group, type(node)), type(node).__name__)
    return chosen


def resolve_score_mode(mode: ScoreMode, max_completion_len: int) -> ScoreMode:
    """`auto` is `sum` for completions of at most 32 tokens, else `const`; any other mode is itself."""
    if mode is not ScoreMode.auto:
        return mode
    return ScoreMode.sum if max_completion_len <= LONGEST_SUM_SCORE else ScoreMode.const


def uses_temperature(scoring: ScoringConfig | ScoringSettings) -> bool:
    """Whether the loss depends on tau and beta: through the target weights, the optimality condition or the soft reward."""
    listwise = scoring.weighting.listwise_coef > 0 and scoring.group_loss is not GroupLoss.conditional
    return listwise or scoring.advantage is AdvantageKind.soft


def uses_utilities(scoring: ScoringConfig | ScoringSettings) -> bool:
    """Whether the loss depends on how large utilities are, rather than only on which completions are right."""
    credit = scoring.advantage not in (AdvantageKind.none, AdvantageKind.pass_at_k)
    return credit or uses_temperature(scoring)


def needs_reference(config: RootConfig) -> bool:
    """Whether a coefficient pulls towards the reference, now or once a controller has moved it.

    The beta of the target counts only where the loss depends on it.
    """
    scoring, adapted = config.scoring, config.controller.adapted()
    if scoring.kl_beta > 0 or KL_BETA in adapted:
        return True
    return uses_temperature(scoring) and (scoring.weighting.beta > 0 or BETA in adapted)


def reference_source(config: RootConfig) -> ReferenceSource:
    """`auto` is `model` when a coefficient needs the reference, else `none`; any other source is itself."""
    source = config.scoring.reference_logprobs_source
    if source is not ReferenceSource.auto:
        return source
    return ReferenceSource.model if needs_reference(config) else ReferenceSource.none


def longest_sequence(config: RootConfig) -> int:
    """Positions that the longest prompt with the longest completion takes [tokens]."""
    return config.generation.max_prompt_len + config.generation.max_completion_len


def engine_share(generation: VllmGenerationConfig, *, beside: bool | None = None) -> float:
    """Share of a GPU's memory that an engine takes: a whole GPU but for what passes need, or part of the one that trains.

    ``beside`` says whether that GPU trains as well; None is as the settings have it.
    """
    engine = generation.engine
    if engine.gpu_memory_utilization is not None:
        return engine.gpu_memory_utilization
    if beside is None:
        beside = generation.vllm_mode is VllmMode.colocate or not (engine.devices or generation.vllm.url)
    if beside:
        return SHARE_ASLEEP if engine.sleep else SHARE_BESIDE
    return SHARE_ALONE


def starts_as_base(config: RootConfig) -> bool:
    """Whether the policy is an adapter that starts at nothing and whose reference stays there: the base itself."""
    lora = config.model.lora
    return lora.enabled and lora.adapter is None and config.scoring.reference_sync.every_n_steps == 0


def listwise_lengths(
    scoring: ScoringConfig | ScoringSettings, score_mode: ScoreMode, max_completion_len: int
) -> tuple[int, int] | None:
    """(L_s, T_max), by whose quotient the listwise term is multiplied, or None where it stands as it is.

    The constant reduction divides the policy term by T_max, so the listwise term beside it is divided by T_max too, in
    units of the score's own length L_s (1 for summed scores, the constant length for `const`): T_max alone then leaves
    the balance of the two terms as it was. A weighted likelihood is a policy term of its own and is divided likewise, so
    that its limit is Dr.GRPO and not T_max times that.
    """
    alone = scoring.advantage is AdvantageKind.none and scoring.group_loss not in LIKELIHOODS
    if alone or scoring.reduction is not Reduction.constant:
        return None
    return scoring.weighting.score_length if score_mode is ScoreMode.const else 1, max_completion_len


def has_unit_ratio(config: RootConfig) -> bool:
    """Whether every importance ratio is 1: one update per rollout, and the trainer's own log-probs below the fraction.

    The sampler's log-probs stand below it only when their mismatch is bypassed; otherwise they enter as a separate weight.
    Groups that dynamic sampling carries over were sampled before an update, so that their ratio moves; what is sampled ahead has
    its age in that weight as well.
    """
    steps_per_rollout = config.optimization.minibatches * config.optimization.num_iterations
    scoring = config.scoring
    from_sampler = scoring.behavior_logprobs_source is not BehaviorSource.model
    dynamic = scoring.dynamic_sampling
    carried = dynamic.enabled and dynamic.carry_over and not config.generation.async_steps
    return (
        steps_per_rollout == 1 and not carried and not (from_sampler and scoring.mismatch.mode is MismatchMode.bypass)
    )


def steps_are_given(config: RootConfig) -> bool:
    """Whether the run's length is a number of steps, whatever the number of rows."""
    return config.optimization.total_training_steps > 0


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Sizes of a step, a rollout and the run; counts are global over processes unless named otherwise."""

    prompts_per_step: int
    group_size: int
    sequences_per_step: int
    loader_batches_per_step: int
    prompts_per_rollout: int
    steps_per_rollout: int
    steps_per_epoch: int
    total_steps: int
    slices_per_step: int | None
    """Forward and backward passes of one process in one step; None where that depends on the lengths of its sequences."""


def _split(total: int, num_parts: int) -> list[int]:
    """Sizes of at most ``num_parts`` equal parts of ``total``, the last one smaller where it does not divide."""
    size = math.ceil(total / num_parts)
    return [min(size, total - start) for start in range(0, total, size)]


def _most_tokens(config: RootConfig, sequences: int) -> int:
    """What a slice out of a loader batch of so many sequences feeds to the model at most [tokens]."""
    batching, generation = config.scoring.batching, config.generation
    size = min(batching.score_slice or sequences, sequences)
    prompts = size
    if batching.share_prompts and not config.scoring.trl_reference_scoring:
        # a slice that begins inside a group may touch one more
        prompts = min(size, (size - 1) // generation.num_generations + 1 + (batching.score_slice > 0))
    return prompts * generation.max_prompt_len + size * generation.max_completion_len


def batch_plan(config: RootConfig, num_train_prompts: int, num_processes: int = 1) -> BatchPlan:
    """The batch arithmetic of a run over ``num_train_prompts`` prompts.

    A rollout has prompts_per_step * minibatches prompts and serves minibatches * num_iterations steps; an epoch has
    ceil(prompts / prompts_per_step) steps; a step is the sum of its loader batches, each cut into slices.
    """
    schedule, batching = config.optimization, config.scoring.batching
    group_size = config.generation.num_generations
    loader_prompts = _split(schedule.prompts_per_step, schedule.grad_accum_steps)
    sequences = [math.ceil(prompts / num_processes) * group_size for prompts in loader_prompts]
    slices = None
    if batching.max_tokens == 0 or _most_tokens(config, max(sequences)) <= batching.max_tokens:
        slices = sum(math.ceil(count / batching.score_slice) if batching.score_slice else 1 for count in sequences)
    steps_per_epoch = math.ceil(num_train_prompts / schedule.prompts_per_step)
    return BatchPlan(
        prompts_per_step=schedule.prompts_per_step,
        group_size=group_size,
        sequences_per_step=schedule.prompts_per_step * group_size,
        loader_batches_per_step=len(loader_prompts),
        prompts_per_rollout=schedule.prompts_per_step * schedule.minibatches,
        steps_per_rollout=schedule.minibatches * schedule.num_iterations,
        steps_per_epoch=steps_per_epoch,
        total_steps=schedule.total_training_steps or schedule.num_epochs * steps_per_epoch,
        slices_per_step=slices,
    )
