"""What the start-up summary says of each method, and which of a method's settings it finds without effect."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from support.settings import changed, checked

from maxent_grpo.config.contradictions import contradictions
from maxent_grpo.config.declared import options
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.telemetry.inert import idle_reasons, inert_settings
from maxent_grpo.telemetry.method_summary import loss_formula, method_rows
from maxent_grpo.telemetry.summary import startup_summary

METHODS = tuple(options("scoring"))

SHOWN = {
    ("advantage", "none"): "none: no advantage term",
    ("advantage", "group_std"): "A = (r - mean(r)) / std(r) over the group",
    ("advantage", "leave_one_out"): "A = r - mean(r) over the other completions of the group",
    ("advantage", "whitened"): "over the rollout's tokens, a = r - mean(r) over the group",
    ("advantage", "pass_at_k"): "A of a completion in sets of 4 that are rewarded for a right one (r >= 0.999)",
    ("advantage", "soft"): "R = r / 1 - 0.1 s_mu + 0 (s_ref - s_mu)",
    ("reduction", "token"): "1/N_tok: mean over all tokens",
    ("reduction", "sequence"): "1/(N_seq T_i): mean over each completion's tokens",
    ("reduction", "micro_batch"): "depends on how a step is cut",
    ("ratio_level", "sequence"): "per sequence, to the power 1/T_i",
    ("clipping.clip_range", 3e-4): "clipped to [1 - 0.0003, 1 + 0.0004]",
    ("clipping.clip_range_high", 0.28): "clipped to [1 - 0.2, 1 + 0.28]",
    ("clipping.clip_range_high", 4e-4): "clipped to [1 - 0.0003, 1 + 0.0004]",
    ("clipping.use_clip_objective", False): "not clipped",
    ("dynamic_sampling.enabled", True): "groups with equal utilities are replaced, in up to 10 further draws",
    ("surrogate.kind", "weighted_likelihood"): "sg(min(rho, 5)) A log pi",
    ("surrogate.kind", "soft_gate"): "gated with t 1 where A > 0, else 1.05",
    ("weighting.listwise_coef", 0.3): "0.3 (1/5) mean_groups",
    ("weighting.listwise_coef", 1.0): "mean_groups",
    ("group_loss", "centred_likelihood"): "(tau + beta) sum (w - 1/n) s",
    ("group_loss", "importance_likelihood"): "v ~ w / mu over the group",
    ("group_loss", "conditional"): "CE(1/c, softmax(s) over the c right)",
    ("group_loss", "squared_residual"): "1/2 sum centred((tau + beta) s - beta s_ref - r / q_temperature)^2",
    ("row_weights.kind", "tempered"): "A times v, v = n softmax(A T_i / (T_max tau)) over the group, tau 0.05",
    ("row_weights.kind", "prompt_scaled"): "A times <v A, A> / <A, A>",
    ("row_weights.kind", "answer_entropy"): "A / (1 + H / log G), H the entropy of the group's answers",
    ("entropy_coef", 0.001): "- 0.001 sum 1/(N_seq T_max) H",
    ("shaping.kind", "uniqueness"): "r / n^1 where r > 0, n completions of the group with that answer",
    ("shaping.kind", "unlikeliness"): "r (1 - 0.25 rank / n), rank 0 the least likely of the group's n",
    ("token_selection.kind", "clip_cov"): "clip_cov: leaves out 0.0002 of the step's tokens",
    ("token_selection.kind", "kl_cov"): "kl_cov: holds the 0.0002 of the step's tokens with the largest covariance",
    (
        "token_selection.kind",
        "high_entropy",
    ): "keeps tokens from the 0.8 quantile of the step's entropies; the loss divides by all",
}
"""How the summary shows a setting with which an option differs from Dr.GRPO."""

LOSSES = {
    "bnpo": "L = - sum 1/(N_slices N_tok(slice)) min(rho A, clip(rho) A)",
    "dapo": "L = - sum 1/N_tok min(rho A, clip(rho) A)",
    "rloo": "L = - sum 1/(N_seq T_max) rho A",
    "reinforce_pp": "L = - sum 1/N_tok min(rho A, clip(rho) A)",
    "gspo": "L = - sum 1/(N_seq T_i) min(rho_seq A, clip(rho_seq) A)",
    "cispo": "L = - sum 1/N_tok sg(min(rho, 5)) A log pi",
    "sapo": "L = - sum 1/(N_seq T_i) 4/t sigmoid(t (rho - 1)) A",
    "maxent_centered": "L = - (1/5) mean_groups (tau + beta) sum (w - 1/n) s",
    "maxent_is": "L = - (1/5) mean_groups sum v s",
    "maxent_cond": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A) + (1/5) mean_groups CE(1/c, softmax(s) over the c right)",
    "soft": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "gvpo": "L = mean_groups 1/2 sum centred((tau + beta) s - beta s_ref - r / q_temperature)^2",
    "xdr": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "dr_grpo_scaled": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "seed_grpo": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "token_maxent": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A) - 0.001 sum 1/(N_seq T_max) H",
    "uniqueness": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "unlikeliness": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "passk": "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
    "clip_cov": "L = - sum 1/N_tok 1[kept] min(rho A, clip(rho) A)",
    "kl_cov": "L = - sum 1/N_tok (rho A - 1[held] |log rho|)",
    "high_entropy_tokens": "L = - sum 1/N_tok 1[kept] min(rho A, clip(rho) A)",
}


def rows(*overrides: str) -> dict[str, str]:
    """The summary's rows of the method, those without a label left out."""
    return dict(method_rows(changed(*overrides)))


def differences(node: Any, base: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Path and value of each setting in which a node differs from another."""
    found: list[tuple[str, Any]] = []
    for field in fields(node):
        value, before = getattr(node, field.name), getattr(base, field.name)
        if is_dataclass(value):
            found += differences(value, before, f"{prefix}{field.name}.")
        elif value != before:
            found.append((f"{prefix}{field.name}", value))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_everything_that_makes_an_option_what_it_is_is_shown(method: str) -> None:
    text = startup_summary(changed(f"scoring={method}"), {"train_rows": 10, "eval_rows": 2})
    assert text.startswith(f"method: {method}\n")
    for path, value in differences(options("scoring")[method](), ScoringConfig()):
        assert SHOWN[path, value] in text, (path, value)


def test_every_way_to_show_a_setting_belongs_to_an_option() -> None:
    used = {difference for node in options("scoring").values() for difference in differences(node(), ScoringConfig())}
    assert set(SHOWN) == used


@pytest.mark.parametrize("method", LOSSES)
def test_the_loss_of_each_method_in_one_line(method: str) -> None:
    assert loss_formula(options("scoring")[method](), 5) == LOSSES[method]
    assert rows(f"scoring={method}")["loss"] == LOSSES[method]


@pytest.mark.parametrize(
    ("overrides", "label", "expected"),
    [
        (
            ("scoring=dapo", "scoring.shaping.overlong_buffer=2", "scoring.shaping.overlong_weight=0.5"),
            "overlong", "r falls by up to 0.5 from 3 to 5 tokens",
        ),
        (
            ("scoring=xdr", "scoring.row_weights.mode_adaptive=true"),
            "row weights", "tau 0.05 / log(1 + different right answers of the group)",
        ),
        (("scoring=xdr", "scoring.row_weights.tau=null"), "row weights", "tau infinite"),
        (("scoring=seed_grpo", "scoring.row_weights.entropy_alpha=0.5"), "row weights", "A / (1 + 0.5 H / log G)"),
        (("scoring=dr_grpo", "scoring.advantage=batch_std"), "credit", "/ std(r) over the rollout"),
        (("scoring=passk", "scoring.pass_k=8"), "credit", "in sets of 8"),
        (("scoring=cispo", "scoring.surrogate.ratio_cap=3"), "ratio and clip", "a weight of log pi, at most 3"),
        (("scoring=sapo", "scoring.ratio_level=sequence"), "loss", "4/t sigmoid(t (rho_seq - 1)) A"),
        (
            ("scoring=high_entropy_tokens", "scoring.token_selection.count_kept_only=true", "scoring.kl_beta=0.1"),
            "loss", "L = - sum 1/N_kept 1[kept] min(rho A, clip(rho) A) + 0.1 sum 1/N_kept KL_k3(pi, pi_ref)",
        ),
        (
            ("scoring=clip_cov", "scoring.token_selection.count_kept_only=true", "scoring.token_selection.share=0.01"),
            "tokens", "leaves out 0.01 of the step's tokens, drawn where the covariance of A and log pi is in (1, 5); the loss "
            "divides by the tokens that are kept",
        ),
        (("scoring=kl_cov", "scoring.token_selection.kl_coef=0.5"), "loss", "(rho A - 0.5 1[held] |log rho|)"),
        (
            ("scoring=dapo", "scoring.dynamic_sampling.carry_over=false", "scoring.dynamic_sampling.max_refill=3"),
            "dynamic sampling", "in up to 3 further draws; surplus groups are dropped",
        ),
        (("scoring=gvpo",), "coefficients", "tau 0.1, beta 0, q_temperature 1, neutral groups: skip_all_wrong"),
        (("scoring=maxent_cond",), "right answers", "r >= 0.999, neutral groups: skip_all_wrong"),
        (("scoring=soft", "scoring.weighting.beta=0.2"), "reference", "model, from auto"),
        (("scoring=gvpo", "scoring.weighting.beta=0.2"), "reference", "model, from auto"),
        (("scoring=maxent_cond", "scoring.weighting.beta=0.2"), "reference", "none, from auto"),
        (("scoring=soft", "scoring.weighting.score_mode=const"), "sequence score", "const: s = sum of log-probs / 256"),
        *(
            (
                ("scoring=grpo", "scoring.behavior_logprobs_source=sampler", f"scoring.mismatch.mode={mode}"),
                "mismatch", text,
            )
            for mode, text in (
                ("bypass", "bypass: the sampler's log-probs stand in the ratio, uncorrected"),
                ("token_truncate", "J times pi_old / mu of each token, at most 2"),
                ("token_mask", "J times pi_old / mu of each token, 0 outside [0.5, 2]"),
                ("sequence_mask", "J times pi_old / mu of each completion, the product over its tokens, 0 above 2"),
                ("geometric_truncate", "J times pi_old / mu of each completion, the geometric mean over its tokens, at most 2"),
                (
                    "geometric_mask",
                    "J times pi_old / mu of each completion, the geometric mean over its tokens, 0 outside [0.5, 2]",
                ),
            )
        ),
    ],
)  # fmt: skip
def test_settings_of_a_method_are_said_with_their_numbers(
    overrides: tuple[str, ...], label: str, expected: str
) -> None:
    assert expected in rows(*overrides)[label]


UNUSED = {
    "scoring.pass_k=3": "scoring.advantage=group_mean does not use it",
    "scoring.shaping.uniqueness_power=0.5": "scoring.shaping.kind=none does not use it",
    "scoring.shaping.unlikeliness_discount=0.5": "scoring.shaping.kind=none does not use it",
    "scoring.shaping.overlong_weight=0.5": "scoring.shaping.overlong_buffer is 0, so that no length is penalised",
    "scoring.row_weights.tau=0.5": "scoring.row_weights.kind=uniform does not use it",
    "scoring.row_weights.mode_adaptive=True": "scoring.row_weights.kind=uniform does not use it",
    "scoring.row_weights.entropy_alpha=0.5": "scoring.row_weights.kind=uniform does not use it",
    "scoring.surrogate.ratio_cap=2.0": "scoring.surrogate.kind=clip does not use it",
    "scoring.surrogate.positive_temperature=2.0": "scoring.surrogate.kind=clip does not use it",
    "scoring.surrogate.negative_temperature=2.0": "scoring.surrogate.kind=clip does not use it",
    "scoring.token_selection.share=0.1": "scoring.token_selection.kind=all does not use it",
    "scoring.token_selection.covariance_low=0.5": "scoring.token_selection.kind=all does not use it",
    "scoring.token_selection.covariance_high=9.0": "scoring.token_selection.kind=all does not use it",
    "scoring.token_selection.kl_coef=0.5": "scoring.token_selection.kind=all does not use it",
    "scoring.token_selection.entropy_quantile=0.5": "scoring.token_selection.kind=all does not use it",
    "scoring.dynamic_sampling.max_refill=3": "scoring.dynamic_sampling.enabled is false",
    "scoring.dynamic_sampling.carry_over=False": "scoring.dynamic_sampling.enabled is false",
    "scoring.group_loss=conditional": "scoring.weighting.listwise_coef is 0, so that the listwise term is off",
    "scoring.weighting.q_temperature=2.0": "scoring.weighting.listwise_coef is 0, so that the listwise term is off",
}


def idle(*overrides: str) -> dict[str, str]:
    """Setting and reason of everything that was changed and does nothing."""
    return dict(sentence.split(": ", 1) for sentence in inert_settings(changed(*overrides)))


def test_the_settings_of_rules_that_are_off_are_named() -> None:
    found = idle("scoring=dr_grpo", *UNUSED)
    assert {**found, "scoring.clipping.clip_range=0.2": ""} == {**UNUSED, "scoring.clipping.clip_range=0.2": ""}
    kept_only = idle("scoring=dr_grpo", "scoring.reduction=token", "scoring.token_selection.count_kept_only=true")
    assert (
        kept_only["scoring.token_selection.count_kept_only=True"] == "scoring.token_selection.kind=all does not use it"
    )


@pytest.mark.parametrize(
    ("overrides", "changes", "reason"),
    [
        (
            ("scoring=cispo", "optimization.minibatches=2"),
            ("scoring.clipping.clip_range=0.1", "scoring.clipping.use_clip_objective=False"),
            "scoring.surrogate.kind=weighted_likelihood does not clip",
        ),
        (("scoring=cispo",), ("scoring.surrogate.ratio_cap=2.0",), "with one update per rollout the ratio is 1"),
        (("scoring=sapo",), ("scoring.surrogate.positive_temperature=2.0",), "where the slope of the gate is 1 at every"),
        (
            ("scoring=kl_cov",), ("scoring.token_selection.share=0.1", "scoring.token_selection.kl_coef=0.5"),
            "where |log rho| has no slope",
        ),
        (
            ("scoring=xdr", "scoring.row_weights.tau=0"), ("scoring.row_weights.mode_adaptive=True",),
            "scoring.row_weights.tau is 0, and stays 0 when divided",
        ),
        (
            ("scoring=dapo", "scoring.shaping.overlong_weight=0"), ("scoring.shaping.overlong_buffer=2",),
            "scoring.shaping.overlong_weight is 0",
        ),
        (
            ("scoring=soft",), ("scoring.weighting.q_epsilon=0.001", "scoring.weighting.neutral_groups=keep"),
            "scoring.weighting.listwise_coef is 0",
        ),
        (("scoring=gvpo",), ("scoring.weighting.q_epsilon=0.001",), "squared_residual looks at the utilities, not at q"),
        (
            ("scoring=maxent_cond",),
            ("scoring.weighting.tau=0.5", "scoring.weighting.beta=0.5", "scoring.weighting.q_temperature=2.0"),
            "scoring.group_loss=conditional has no tempered target",
        ),
        (
            ("scoring=grpo", "scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=geometric_truncate"),
            ("scoring.mismatch.floor=0.1",), "scoring.mismatch.mode=geometric_truncate only caps",
        ),
        (("scoring=gvpo",), ("scoring.reduction=token",), "no token-wise term is in the loss"),
    ],
)  # fmt: skip
def test_a_setting_that_another_one_takes_the_effect_from_is_named(
    overrides: tuple[str, ...], changes: tuple[str, ...], reason: str
) -> None:
    found = idle(*overrides, *changes)
    for change in changes:
        assert reason in found.get(change, "not named"), found


ACTING = {
    "scoring=passk": ("scoring.pass_k", "scoring.weighting.right_threshold"),
    "scoring=uniqueness": ("scoring.shaping.uniqueness_power",),
    "scoring=unlikeliness": ("scoring.shaping.unlikeliness_discount",),
    "scoring=xdr": ("scoring.row_weights.tau", "scoring.row_weights.mode_adaptive"),
    "scoring=dr_grpo_scaled": ("scoring.row_weights.tau", "scoring.row_weights.mode_adaptive"),
    "scoring=seed_grpo": ("scoring.row_weights.entropy_alpha",),
    "scoring=cispo": ("scoring.surrogate.ratio_cap",),
    "scoring=sapo": ("scoring.surrogate.positive_temperature", "scoring.surrogate.negative_temperature"),
    "scoring=clip_cov": (
        "scoring.token_selection.share", "scoring.token_selection.covariance_low", "scoring.token_selection.covariance_high",
        "scoring.token_selection.count_kept_only", "scoring.clipping.clip_range",
    ),
    "scoring=kl_cov": ("scoring.token_selection.share", "scoring.token_selection.kl_coef"),
    "scoring=high_entropy_tokens": (
        "scoring.token_selection.entropy_quantile", "scoring.token_selection.count_kept_only",
    ),
    "scoring=dapo": ("scoring.dynamic_sampling.max_refill", "scoring.dynamic_sampling.carry_over"),
    "scoring=soft": ("scoring.weighting.tau", "scoring.weighting.beta", "scoring.weighting.q_temperature"),
    "scoring=gvpo": ("scoring.weighting.tau", "scoring.weighting.beta", "scoring.weighting.q_temperature"),
    "scoring=maxent_centered": ("scoring.weighting.tau", "scoring.weighting.q_epsilon", "scoring.reduction"),
    "scoring=maxent_is": ("scoring.weighting.tau", "scoring.weighting.q_epsilon", "scoring.reduction"),
    "scoring=maxent_cond": ("scoring.weighting.neutral_groups", "scoring.weighting.right_threshold"),
}  # fmt: skip


@pytest.mark.parametrize("method", ACTING)
def test_the_settings_that_a_method_is_made_of_act(method: str) -> None:
    config = checked(method, "optimization.minibatches=2")
    assert list(contradictions(config)) == []
    assert not set(ACTING[method]) & {path for path, _ in idle_reasons(config)}
