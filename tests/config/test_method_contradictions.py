"""What the rules of a method cannot be combined with, each with its exact sentence, and what is only warned about."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.settings import changed, checked

from maxent_grpo.config.contradictions import RULES, warnings
from maxent_grpo.config.contradictions_credit import CREDIT_RULES
from maxent_grpo.config.store import OPTIONS
from maxent_grpo.errors import ConfigError

CREDIT_SENTENCES: dict[tuple[str, ...], list[str]] = {
    ("scoring=passk", "generation.num_generations=4"): [
        "scoring.pass_k=4 is not below generation.num_generations=4: the sets of a group that large all have a right completion "
        "or all have none, so nothing would be learnt; use scoring.pass_k=3 or less, or larger groups"
    ],
    ("scoring=passk", "generation.num_generations=1"): [
        "scoring.pass_k=4 is not below generation.num_generations=1: the sets of a group that large all have a right completion "
        "or all have none, so nothing would be learnt; use larger groups",
        "generation.num_generations=1 gives every completion the advantage 0: use at least 2",
    ],
    ("scoring=passk", "scoring.shaping.kind=uniqueness", "scoring.shaping.overlong_buffer=2"): [
        "scoring.shaping.kind=uniqueness changes how much a completion is worth, and scoring.advantage=pass_at_k looks only at "
        "which are right: use scoring.shaping.kind=none, or scoring.advantage=group_mean",
        "scoring.shaping.overlong_buffer=2 changes how much a completion is worth, and scoring.advantage=pass_at_k looks only "
        "at which are right: use scoring.shaping.overlong_buffer=0, or scoring.advantage=group_mean",
    ],
    ("scoring=passk", "scoring.policy_entropy_bonus_coef=0.5", "scoring.policy_entropy=true"): [
        "scoring.policy_entropy_bonus_coef=0.5 changes how much a completion is worth, and scoring.advantage=pass_at_k looks only "
        "at which are right: use scoring.policy_entropy_bonus_coef=0.0, or scoring.advantage=group_mean",
    ],
    ("scoring=maxent_cond", "scoring.advantage=none", "scoring.clipping.use_clip_objective=false",
     "scoring.shaping.kind=unlikeliness"): [
        "scoring.shaping.kind=unlikeliness changes how much a completion is worth, and scoring.group_loss=conditional looks "
        "only at which are right: use scoring.shaping.kind=none, or scoring.advantage=group_mean"
    ],
    ("scoring=dapo", "scoring.shaping.overlong_buffer=6"): [
        "scoring.shaping.overlong_buffer=6 exceeds generation.max_completion_len=5: no completion could be free of the "
        "penalty; use scoring.shaping.overlong_buffer=5 or less"
    ],
    ("scoring=xdr", "scoring.row_weights.tau=null", "scoring.row_weights.mode_adaptive=true"): [
        "scoring.row_weights.mode_adaptive=true with scoring.row_weights.tau=null: an infinite temperature stays infinite when "
        "it is divided; set scoring.row_weights.tau or scoring.row_weights.mode_adaptive=false"
    ],
    ("scoring=soft", "scoring.row_weights.kind=tempered"): [
        "scoring.row_weights.kind=tempered with scoring.advantage=soft: row weights belong to advantages that follow from "
        "utilities alone, and those of soft change with tau and beta at every step; use scoring.row_weights.kind=uniform"
    ],
    ("scoring=maxent_listwise", "scoring.row_weights.kind=answer_entropy", "scoring.surrogate.kind=soft_gate",
     "scoring.token_selection.kind=kl_cov"): [
        "scoring.row_weights.kind=answer_entropy is a rule of the advantage term, which scoring.advantage=none leaves out: use "
        "scoring.row_weights.kind=uniform or scoring.advantage=group_mean",
        "scoring.surrogate.kind=soft_gate is a rule of the advantage term, which scoring.advantage=none leaves out: use "
        "scoring.surrogate.kind=clip or scoring.advantage=group_mean",
        "scoring.token_selection.kind=kl_cov is a rule of the advantage term, which scoring.advantage=none leaves out: use "
        "scoring.token_selection.kind=all or scoring.advantage=group_mean",
    ],
    ("scoring=cispo", "scoring.ratio_level=sequence"): [
        "scoring.surrogate.kind=weighted_likelihood with scoring.ratio_level=sequence: the ratio weighs the log-probability of "
        "a single token; use scoring.ratio_level=token or scoring.surrogate.kind=clip"
    ],
    ("scoring=clip_cov", "scoring.token_selection.covariance_low=5"): [
        "scoring.token_selection.covariance_low=5.0 is not below scoring.token_selection.covariance_high=5.0: no token lies "
        "between; use a smaller scoring.token_selection.covariance_low"
    ],
    ("scoring=clip_cov", "scoring.ratio_level=sequence", "scoring.reduction=sequence"): [
        "scoring.token_selection.kind=clip_cov with scoring.ratio_level=sequence chooses among tokens that the clip leaves, and "
        "that clips whole completions: use scoring.ratio_level=token or another scoring.token_selection.kind"
    ],
    ("scoring=clip_cov", "scoring.surrogate.kind=soft_gate", "scoring.clipping.use_clip_objective=false"): [
        "scoring.token_selection.kind=clip_cov chooses among the tokens that the clip leaves, and "
        "scoring.surrogate.kind=soft_gate does not clip: use scoring.surrogate.kind=clip or another "
        "scoring.token_selection.kind",
        "scoring.token_selection.kind=clip_cov chooses among the tokens that the clip leaves, and "
        "scoring.clipping.use_clip_objective=false does not clip: use scoring.clipping.use_clip_objective=true or another "
        "scoring.token_selection.kind",
    ],
    ("scoring=high_entropy_tokens", "scoring.policy_entropy=false"): [
        "scoring.token_selection.kind=high_entropy chooses tokens by the entropy of the policy, which "
        "scoring.policy_entropy=false does not measure: set scoring.policy_entropy=true"
    ],
    ("scoring=high_entropy_tokens", "scoring.policy_entropy_mode=sample"): [
        "scoring.token_selection.kind=high_entropy chooses tokens by the entropy of the policy, which "
        "scoring.policy_entropy_mode=sample only estimates by the drawn token: use scoring.policy_entropy_mode=exact"
    ],
    ("scoring=high_entropy_tokens", "scoring.reduction=sequence", "scoring.token_selection.count_kept_only=true"): [
        "scoring.token_selection.count_kept_only=true with scoring.reduction=sequence: only scoring.reduction=token divides by "
        "a number of tokens of the whole step; use scoring.reduction=token or scoring.token_selection.count_kept_only=false"
    ],
    ("scoring=gvpo", "scoring.clipping.use_clip_objective=true"): [
        "scoring.clipping.use_clip_objective=true with scoring.advantage=none adds the clipped term of "
        "scoring.group_loss=cross_entropy, and the group loss is squared_residual: use scoring.clipping.use_clip_objective=false "
        "or scoring.group_loss=cross_entropy"
    ],
}  # fmt: skip

OTHER_SENTENCES: dict[tuple[str, ...], list[str]] = {
    **{
        (f"scoring={option}", "scoring.weighting.tau=0"): [
            f"scoring={option} needs scoring.weighting.tau + scoring.weighting.beta > 0 (got 0.0 + 0.0): the weight exponent "
            f"1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective"
        ]
        for option in ("soft", "gvpo", "maxent_centered", "maxent_is")
    },
    ("scoring=dr_grpo", "scoring.advantage=soft", "scoring.weighting.tau=0"): [
        "scoring=dr_grpo with scoring.advantage=soft needs scoring.weighting.tau + scoring.weighting.beta > 0 (got 0.0 + 0.0): "
        "the weight exponent 1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective"
    ],
    **{
        (f"scoring={option}", "scoring.weighting.beta=0.1", "scoring.reference_logprobs_source=none"): [
            "scoring.weighting.beta=0.1 needs reference log-probabilities, which scoring.reference_logprobs_source=none leaves "
            "out: use scoring.reference_logprobs_source=model or scoring.weighting.beta=0"
        ]
        for option in ("soft", "gvpo", "maxent_is")
    },
    ("scoring=cispo", "scoring.surrogate.ratio_cap=0.2"): ["scoring.surrogate.ratio_cap=0.2: must be at least 1"],
    **{
        ("scoring=maxent_cond", f"controller={controller}"): [
            f"controller={controller} adapts scoring.weighting.tau, which scoring=maxent_cond with "
            f"scoring.group_loss=conditional does not use: use scoring=maxent or controller=fixed"
        ]
        for controller in ("entropy", "effective_size", "meta")
    },
    **{
        (f"scoring={option}", "controller=meta", "controller.mode=first_order"): [
            f"controller.mode=first_order differentiates the listwise cross-entropy, and the listwise term is "
            f"scoring.group_loss={loss}: use scoring.group_loss=cross_entropy or controller.mode=analytic"
        ]
        for option, loss in (("gvpo", "squared_residual"), ("maxent_is", "importance_likelihood"))
    },
    ("scoring=soft", "controller=meta", "controller.mode=first_order"): [
        "controller.mode=first_order differentiates the listwise cross-entropy, and scoring.advantage=soft depends on tau too: "
        "use another scoring.advantage with scoring.weighting.listwise_coef above 0, or controller.mode=analytic"
    ],
}


@pytest.mark.parametrize("overrides", [*CREDIT_SENTENCES, *OTHER_SENTENCES], ids=" ".join)
def test_a_method_that_cannot_work_is_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        checked(*overrides)
    assert refused.value.problems == (CREDIT_SENTENCES | OTHER_SENTENCES)[overrides]


def test_every_rule_of_credit_and_tokens_speaks_above() -> None:
    spoken: set[Callable[..., object]] = set()
    for overrides in CREDIT_SENTENCES:
        config = changed(*overrides)
        spoken |= {rule for rule in CREDIT_RULES if list(rule(config))}
    assert spoken == set(CREDIT_RULES)
    assert spoken <= set(RULES)


@pytest.mark.parametrize(
    "overrides",
    [
        *((f"scoring={name}",) for group, name, _ in OPTIONS if group == "scoring"),
        ("scoring=passk", "scoring.pass_k=15"),
        ("scoring=passk", "scoring.shaping.kind=uniqueness", "scoring.weighting.listwise_coef=0.3"),
        ("scoring=xdr", "scoring.row_weights.tau=null"),
        ("scoring=dr_grpo_scaled", "scoring.row_weights.tau=null"),
        ("scoring=soft", "scoring.shaping.kind=uniqueness"),
        ("scoring=soft", "scoring.weighting.tau=0", "scoring.weighting.beta=0.1"),
        ("scoring=gvpo", "scoring.weighting.tau=0", "scoring.weighting.beta=0.1"),
        ("scoring=maxent_cond", "scoring.weighting.tau=0"),
        ("scoring=maxent_cond", "scoring.weighting.beta=0.1", "scoring.reference_logprobs_source=none"),
        ("scoring=sapo", "scoring.ratio_level=sequence"),
        ("scoring=soft", "controller=entropy"),
        ("scoring=gvpo", "controller=meta"),
        ("scoring=soft", "controller=kl", "controller.target=listwise_beta", "controller.law=additive"),
    ],
    ids=" ".join,
)
def test_a_method_that_can_work_is_not(overrides: tuple[str, ...]) -> None:
    checked(*overrides)


GSPO_WARNING = (
    "scoring.ratio_level=sequence with scoring.reduction={} counts a completion's ratio once for each of its tokens; "
    "scoring.reduction=sequence, as in GSPO, counts it once"
)
HELD_WARNING = (
    "scoring.token_selection.kind=kl_cov holds tokens by |log pi - log pi_old|, which has no gradient where the two are equal, "
    "and with one update per rollout they are: set optimization.num_iterations or optimization.minibatches to 2 or more"
)
SLICE_WARNING = (
    "scoring.reduction=micro_batch averages over slices, and a step is a single one: that is scoring.reduction=token; cut it "
    "with scoring.batching.score_slice"
)
NEUTRAL_WARNING = (
    "scoring.dynamic_sampling.enabled=true replaces groups with equal utilities, some of which {} would train"
)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("scoring=gspo",), []),
        (("scoring=gspo", "scoring.reduction=token"), [GSPO_WARNING.format("token")]),
        (("scoring=dr_grpo", "scoring.ratio_level=sequence"), [GSPO_WARNING.format("constant")]),
        (("scoring=kl_cov",), [HELD_WARNING]),
        (("scoring=kl_cov", "optimization.minibatches=2"), []),
        (("scoring=bnpo", "scoring.batching.max_tokens=0"), [SLICE_WARNING]),
        (("scoring=bnpo",), []),
        (("scoring=bnpo", "scoring.batching.score_slice=16"), []),
        (("scoring=bnpo", "scoring.batching.max_tokens=64"), []),
        (("scoring=dapo",), []),
        (
            ("scoring=maxent", "scoring.dynamic_sampling.enabled=true"),
            [NEUTRAL_WARNING.format("scoring.weighting.neutral_groups=skip_all_wrong")],
        ),
        (
            (
                "scoring=maxent",
                "scoring.dynamic_sampling.enabled=true",
                "scoring.weighting.neutral_groups=skip",
            ),
            [],
        ),
        (("scoring=soft", "scoring.dynamic_sampling.enabled=true"), [NEUTRAL_WARNING.format("scoring.advantage=soft")]),
    ],
)
def test_what_is_probably_not_meant_is_warned_about(overrides: tuple[str, ...], expected: list[str]) -> None:
    assert warnings(checked(*overrides)) == expected
