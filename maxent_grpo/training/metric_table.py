"""The one table of metrics: every name that a run emits, with its meaning, its unit and when it is there. No torch."""

from __future__ import annotations

from maxent_grpo.training.types.generation import GENERATION_COUNTERS
from maxent_grpo.training.types.machine_metrics import MACHINE_METRICS
from maxent_grpo.training.types.metric_groups import GROUPS
from maxent_grpo.training.types.metric_info import MetricGroup, MetricInfo

_REFERENCE = "a coefficient pulls towards the reference, or scoring.reference_logprobs_source=model"
_COMPARED = "the trainer has log-probs at rollout weights: always but in later updates of a rollout whose ratio is the sampler's"
_CORRECTED = "scoring.mismatch.mode is not bypass"
_DISCOUNTED = "scoring.row_weights.kind=answer_entropy"
_TEMPERED = "scoring.row_weights.kind is tempered with a finite tau, or prompt_scaled"
_LISTED = "the task lists its answers, and evaluation.exact is not never"
_MODES = "the data say how many right answers a row has"
_RESTRICTED = "sampling is restricted by generation.allowed_tokens"
_SEVERAL = "reward.terms has two or more"
_LISTWISE = "some group takes part in the listwise term"


METRICS: dict[str, MetricInfo] = {
    "reward/mean": MetricInfo("mean utility of the step's valid completions", "reward", "some completion is valid"),
    "reward/std": MetricInfo("population standard deviation of the utility", "reward", "some completion is valid"),
    "reward/shaped_mean": MetricInfo(
        "mean utility after shaping, before any normalisation",
        "reward",
        "scoring.shaping reshapes, and some completion is valid",
    ),
    "reward/rollout_mean": MetricInfo(
        "mean utility of the rollout that the step belongs to", "reward", "optimization.minibatches above 1"
    ),
    "reward/rollout_std": MetricInfo(
        "population standard deviation of that rollout's utilities", "reward", "optimization.minibatches above 1"
    ),
    "reward/term/*": MetricInfo(
        "mean of one reward term, before its weight, where it did not abstain", "reward", "the term gave some number"
    ),
    "reward/term_std/*": MetricInfo("population standard deviation of that term", "reward", _SEVERAL),
    "reward/term_equal_groups/*": MetricInfo(
        "share of groups in which that term gave every completion the same, or fewer than two a value", when=_SEVERAL
    ),
    "reward/term_abstained/*": MetricInfo("share of completions without a value of that term", when="there are some"),
    "reward/term_errors/*": MetricInfo(
        "completions without a value because the term raised",
        "completions",
        "there are some, with reward.on_error abstain",
    ),
    "reward/term_timeouts/*": MetricInfo(
        "completions without a value because the term's call took longer than reward.time_limits",
        "completions",
        "there are some, with reward.on_error abstain",
    ),
    "reward/extra/*": MetricInfo(
        "mean over the rollout's calls, those of all processes, of a number that a reward function logged with log_metric",
        when="a function logged it",
    ),
    "reward/abstained": MetricInfo("term values left out because the term abstained or failed", "completions"),
    "reward/rejected/*": MetricInfo(
        "completions that did not read as an answer, by reason", "completions", "there are some"
    ),
    "reward/drawn_mean": MetricInfo(
        "mean utility of every valid completion drawn for the rollout, of groups kept and not kept",
        "reward",
        "scoring.dynamic_sampling.enabled=true, on the line of a rollout's first step",
    ),
    "reward/equal_groups": MetricInfo("share of groups whose utilities are all equal: no advantage signal"),
    "reward/entropy_bonus_scale": MetricInfo(
        "multiplier of the reward-side entropy bonus", "reward", "scoring.policy_entropy_bonus_coef above 0"
    ),
    "sampling/prompts_drawn": MetricInfo(
        "prompts drawn for the rollout, whether their groups were kept or not", "prompts"
    ),
    "sampling/keep_rate": MetricInfo(
        "share of these whose group has differing utilities", when="scoring.dynamic_sampling.enabled=true drew prompts"
    ),
    "sampling/refill_rounds": MetricInfo("draws after the rollout's first", "rounds"),
    "sampling/carried_groups": MetricInfo("groups of the rollout that the one before had no place for", "groups"),
    "sampling/surplus_groups": MetricInfo(
        "kept groups that the rollout had no place for: carried over, or dropped with "
        "scoring.dynamic_sampling.carry_over=false",
        "groups",
    ),
    "sampling/missing_groups": MetricInfo(
        "places of the rollout left empty after scoring.dynamic_sampling.max_refill rounds", "groups"
    ),
    "advantage/abs_mean": MetricInfo("mean absolute advantage; 0 for a method without advantage", "reward"),
    "advantage/effective_size": MetricInfo(
        "mean over groups of exp(entropy of the row weights): completions that the advantages are spread over",
        "completions",
        _TEMPERED,
    ),
    "advantage/wrong_share": MetricInfo(
        "mean over groups of the share of row weight on completions that are not right", when=_TEMPERED
    ),
    "advantage/prompt_scale": MetricInfo("mean over groups of their mean row weight; 1 for tempered", when=_TEMPERED),
    "advantage/answer_entropy": MetricInfo(
        "mean entropy of a group's answers, weighted by the sampler's likelihoods", "nats", _DISCOUNTED
    ),
    "advantage/answer_entropy_discount": MetricInfo(
        "mean factor of a group's advantages for that entropy", when=_DISCOUNTED
    ),
    "completion/min_length": MetricInfo(
        "shortest completion, end token included; unless all were cut, also the shortest that ended by itself", "tokens"
    ),
    "completion/mean_length": MetricInfo("mean completion, end token included", "tokens"),
    "completion/max_length": MetricInfo("longest completion, end token included", "tokens"),
    "completion/clipped_ratio": MetricInfo("share of completions cut by the length limit"),
    "completion/mean_terminated": MetricInfo("mean completion that ended by itself; 0 if none did", "tokens"),
    "completion/max_terminated": MetricInfo("longest completion that ended by itself; 0 if none did", "tokens"),
    "completion/tail_masked_tokens": MetricInfo("completion tokens outside the trained tail window", "tokens"),
    "completion/distinct_modes": MetricInfo("mean number of different right answers in a group", "modes"),
    "loss/total": MetricInfo("the loss that was differentiated"),
    "loss/policy": MetricInfo("policy term as added"),
    "loss/listwise": MetricInfo("listwise cross-entropy as added"),
    "loss/clip": MetricInfo(
        "clipped auxiliary listwise term before its coefficient",
        when="scoring.advantage=none with scoring.clipping.use_clip_objective=true",
    ),
    "loss/kl": MetricInfo("token KL before its coefficient, under the policy term's reduction", "nats"),
    "loss/weighted_kl": MetricInfo("token KL as added"),
    "loss/entropy": MetricInfo("token-entropy bonus as added"),
    "policy/entropy": MetricInfo(
        "mean token entropy of the sampled distribution",
        "nats",
        "scoring.policy_entropy=true, or an entropy bonus is on",
    ),
    "policy/behaviour_logp_mean": MetricInfo("mean log-prob of the trained tokens under the behaviour policy", "nats"),
    "policy/ratio_mean": MetricInfo("mean importance ratio to the behaviour policy over trained tokens"),
    "policy/ratio_max": MetricInfo("largest importance ratio to the behaviour policy"),
    "policy/log_ratio_abs_mean": MetricInfo(
        "sum over completions of |log of the completion's ratio|, per trained token", "nats"
    ),
    "policy/clip_ratio": MetricInfo(
        "share of tokens whose ratio lies beyond the clip range on the side that a clip stops, low and high together"
    ),
    "policy/clip_ratio_low_mean": MetricInfo("share of tokens clipped below"),
    "policy/clip_ratio_low_min": MetricInfo(
        "smallest share clipped below among completions; above 0 only if every advantage is negative"
    ),
    "policy/clip_ratio_high_mean": MetricInfo("share of tokens clipped above"),
    "policy/clip_ratio_high_max": MetricInfo("largest share clipped above among completions"),
    "policy/selected_tokens": MetricInfo(
        "share of trained tokens that scoring.token_selection picked: left out by clip_cov, held by kl_cov, trained by "
        "high_entropy",
        when="scoring.token_selection.kind is not all",
    ),
    "policy/kl_to_reference": MetricInfo("mean k3 divergence from the reference per trained token", "nats", _REFERENCE),
    "policy/kl_by_length/*": MetricInfo("the same by completion length in tokens", "nats", _REFERENCE),
    "policy/kl_tokens_by_length/*": MetricInfo("trained tokens behind each of those", "tokens", _REFERENCE),
    "reference/logp_mean": MetricInfo(
        "mean over completions of the reference's log-prob per token", "nats", _REFERENCE
    ),
    "reference/token_logp_mean": MetricInfo("mean over tokens of the reference's log-prob", "nats", _REFERENCE),
    "reference/mean_length": MetricInfo(
        "mean number of trained tokens in the rollout's completions: completion/mean_length without the tokens that a "
        "tail window, masking or exclusion leaves out",
        "tokens",
        _REFERENCE,
    ),
    "reference/score_mean": MetricInfo(
        "mean reference score in the configured mode: of sums, means or sums over a constant length", "nats", _REFERENCE
    ),
    "weights/entropy": MetricInfo(
        "mean entropy of the target weights over the groups that take part", "nats", _LISTWISE
    ),
    "weights/effective_size": MetricInfo("mean exp(entropy of the target weights)", "completions", _LISTWISE),
    "weights/policy_effective_size": MetricInfo(
        "mean exp(entropy of the policy over the group)", "completions", _LISTWISE
    ),
    "weights/kl_to_policy": MetricInfo("mean KL(w || p) over the group", "nats", _LISTWISE),
    "weights/wrong_mass": MetricInfo("mean target weight on completions that are not right", when=_LISTWISE),
    "weights/policy_wrong_mass": MetricInfo(
        "mean policy probability over the group on completions not right", when=_LISTWISE
    ),
    "weights/groups": MetricInfo("groups that take part in the listwise term", "groups"),
    "weights/effective_temperature": MetricInfo(
        "q_temperature * (tau + beta): log-odds 1 / this for a unit reward, or, with reward.normalize, for one deviation"
    ),
    "controller/tau": MetricInfo("tau of the step"),
    "controller/beta": MetricInfo("listwise beta of the step"),
    "controller/kl_beta": MetricInfo("token-KL coefficient of the step"),
    "controller/measured": MetricInfo(
        "what the controller holds: weight entropy or divergence in nats, effective size in completions",
        "nats or completions",
    ),
    "controller/smoothed": MetricInfo("exponential average of the weight entropy that tau is moved by", "nats"),
    "controller/target": MetricInfo("where the measured quantity is to go", "nats or completions"),
    "controller/skipped": MetricInfo("steps so far without a measurement, which moved nothing", "steps"),
    "controller/saturated": MetricInfo("steps so far in which a bound stopped the coefficient", "steps"),
    "controller/limited": MetricInfo("updates so far that the largest change of a logarithm held back", "updates"),
    "controller/tau_gradient": MetricInfo("derivative of the outer objective in tau, where an update was due"),
    "controller/beta_gradient": MetricInfo("derivative of the outer objective in beta, where an update was due"),
    "controller/outer_reward": MetricInfo("mean utility of the held-out rollouts behind that gradient", "reward"),
    "controller/infeasible": MetricInfo("steps so far whose groups cannot have the target size at any tau", "steps"),
    "optim/gradient_norm": MetricInfo("global gradient norm before clipping"),
    "optim/learning_rate": MetricInfo("learning rate the step was taken with"),
    "optim/skipped": MetricInfo("1 if the step was left out: its gradient was exactly zero, or not finite"),
    "optim/skipped_nonfinite": MetricInfo(
        "steps so far that were left out because their loss or gradient was NaN or infinite; their lines hold nothing of the "
        "passes that failed",
        "steps",
        "run.on_nonfinite=skip",
    ),
    "mismatch/raw_mean": MetricInfo(
        "mean weight before it is capped or masked; 1 but for noise if nothing is wrong and nothing is sampled ahead",
        when=_COMPARED,
    ),
    "mismatch/raw_min": MetricInfo("smallest weight before it is masked", when=_COMPARED),
    "mismatch/raw_max": MetricInfo("largest weight before it is capped or masked", when=_COMPARED),
    "mismatch/kl": MetricInfo("estimate of KL(mu || pi_old) per token: mean of log mu - log pi_old", "nats", _COMPARED),
    "mismatch/kl_k3": MetricInfo(
        "estimate of the same without negative terms: mean of exp(-d) - 1 + d, d = log mu - log pi_old",
        "nats",
        _COMPARED,
    ),
    "mismatch/used_mean": MetricInfo("mean weight that the policy term was multiplied by", when=_CORRECTED),
    "mismatch/cut_share": MetricInfo("share of tokens whose weight was capped, or masked to 0", when=_CORRECTED),
    "mismatch/missing": MetricInfo(
        "trained tokens without a log-prob of the sampler; their weight is 1", "tokens", "the sampler left some out"
    ),
    "generation/logprob_gap": MetricInfo(
        "mean |sampler - trainer| log-prob of trained tokens, at one version of the weights but for rollouts sampled ahead",
        "nats",
        _COMPARED,
    ),
    "generation/staleness": MetricInfo(
        "optimiser steps between this update and the weights that sampled it, of the step's oldest group", "steps"
    ),
    **{
        f"generation/{name}": MetricInfo(f"{name.replace('_', ' ')} since the last step")
        for name in GENERATION_COUNTERS
    },
    "scoring/forward_passes": MetricInfo("forward passes of scoring since the last step", "passes"),
    "scoring/fed_tokens": MetricInfo("positions fed to the model in scoring, padding included", "tokens"),
    "scoring/scored_tokens": MetricInfo("completion tokens scored", "tokens"),
    "scoring/padding_ratio": MetricInfo(
        "positions fed to the model for each that is a token of a prompt or completion: 1 without padding",
        when="something was scored since the last step",
    ),
    "scoring/skipped_sequences": MetricInfo(
        "completions that were not run through the model, as the gradient of their groups is exactly zero",
        "completions",
    ),
    "data/epoch": MetricInfo("passes over the training rows begun before this one", "epochs"),
    "data/step_in_epoch": MetricInfo(
        "optimiser steps' worth of this epoch's prompts drawn before this rollout", "steps"
    ),
    "data/dropped_prompts": MetricInfo(
        "training prompts passed over so far because they are too long",
        "prompts",
        "there are more training rows than data.render_ahead",
    ),
    "data/input_tokens_seen": MetricInfo("prompt and completion tokens fed to training so far", "tokens"),
    "eval/rows": MetricInfo("held-out rows that were evaluated", "rows"),
    "eval/pass@*": MetricInfo("held-out: probability that at least one of k samples is right, unbiased"),
    "eval/mean@*": MetricInfo("held-out: mean share of right answers among the samples"),
    "eval/maj@*": MetricInfo(
        "held-out: probability that the answer most frequent among k samples is right, ties shared"
    ),
    "eval/distinct@*": MetricInfo("held-out: expected number of different right answers among k samples", "modes"),
    "eval/coverage@*": MetricInfo("held-out: expected share of a row's right answers found by k samples", when=_MODES),
    "eval/greedy": MetricInfo("held-out: share of rows whose most likely completion, token by token, is right"),
    "eval/mean_reward": MetricInfo("held-out: mean utility of the samples that have one", "reward"),
    "eval/abstained": MetricInfo(
        "held-out samples that every reward term abstained from", "completions", "there are any"
    ),
    "eval/mean_length": MetricInfo("held-out: mean sample, end token included", "tokens"),
    "eval/clipped_ratio": MetricInfo("held-out: share of samples cut by the length limit"),
    "eval/exact/pass@*": MetricInfo(
        "pass@k from the probability of every answer, what lies outside them being wrong", when=_LISTED
    ),
    "eval/exact/distinct@*": MetricInfo(
        "expected number of different right answers among k samples, exact", "modes", when=_LISTED
    ),
    "eval/exact/coverage@*": MetricInfo(
        "expected share of a row's right answers found by k samples, exact", when=_LISTED
    ),
    "eval/exact/outside_mass": MetricInfo("probability of everything but the listed answers", when=_LISTED),
    "eval/exact/kl_to_optimum": MetricInfo("KL from the closed-form optimum to the policy", "nats", when=_LISTED),
    "eval/exact/mode_entropy": MetricInfo(
        "entropy of the policy over a row's right answers, renormalised", "nats", when=_LISTED
    ),
    "eval/exact/mode_entropy_ratio": MetricInfo(
        "the same over log of the number of right answers; 1 is uniform", when=_LISTED
    ),
    "eval/exact/effective_modes": MetricInfo(
        "exp of that entropy: right answers in use; 0 where none has mass", "modes", when=_LISTED
    ),
    "eval/exact/within/pass@*": MetricInfo(
        "exact pass@k of the policy renormalised over the listed answers", when=_LISTED
    ),
    "eval/exact/within/distinct@*": MetricInfo(
        "exact distinct@k of the same renormalised policy", "modes", when=_LISTED
    ),
    "eval/exact/within/coverage@*": MetricInfo("exact coverage@k of the same renormalised policy", when=_LISTED),
    "eval/exact/within/kl_to_optimum": MetricInfo(
        "KL from the optimum to the same renormalised policy", "nats", when=_LISTED
    ),
    "eval/exact/sampled/pass@*": MetricInfo(
        "exact pass@k of the policy that is sampled from, every token drawn from the allowed ones alone",
        when=_RESTRICTED,
    ),
    "eval/exact/sampled/distinct@*": MetricInfo("exact distinct@k of the same policy", "modes", _RESTRICTED),
    "eval/exact/sampled/coverage@*": MetricInfo("exact coverage@k of the same policy", when=_RESTRICTED),
    "eval/exact/sampled/outside_mass": MetricInfo(
        "probability that it gives no listed answer, such as one that ends too soon", when=_RESTRICTED
    ),
    "eval/exact/sampled/kl_to_optimum": MetricInfo("KL from the optimum to the same policy", "nats", _RESTRICTED),
    "eval/exact/sampled/mode_entropy": MetricInfo(
        "entropy of the same policy over a row's right answers, renormalised", "nats", _RESTRICTED
    ),
    "eval/exact/sampled/mode_entropy_ratio": MetricInfo(
        "the same over log of the number of right answers; 1 is uniform", when=_RESTRICTED
    ),
    "eval/exact/sampled/effective_modes": MetricInfo(
        "exp of that entropy: right answers in use; 0 where none has mass", "modes", _RESTRICTED
    ),
    "eval/seed/pass@1": MetricInfo("pass@1 with a seed tag in the prompt, mean over seeds"),
    "eval/seed/pass@1/*": MetricInfo("pass@1 under one seed's tag"),
    "eval/seed/pass@1_std": MetricInfo("population standard deviation of pass@1 over seeds"),
    "eval/seed/coverage": MetricInfo("share of a row's right answers found under all seeds together"),
    "eval/seed/probe_accuracy": MetricInfo(
        "accuracy of a linear probe that reads the seed from pooled hidden states, on rows held out from its fit"
    ),
    "eval/seed/probe_chance": MetricInfo("accuracy of guessing the seed: one over the number of seeds"),
    **MACHINE_METRICS,
}
"""Every metric's name, meaning and unit; a name ending in ``*`` stands for a family."""

UNREPRODUCED = ("time/", "throughput/", "memory/")
"""Prefixes of metrics that measure the machine rather than the run; two equal runs may differ in these."""


def metric_entry(name: str) -> str:
    """The key of a metric in the table: its own name, or the narrowest family that it belongs to.

    Raises:
        KeyError: the name is not in the table.
    """
    if name in METRICS:
        return name
    families = [entry for entry in METRICS if entry.endswith("*") and name.startswith(entry[:-1])]
    if not families:
        raise KeyError(f"metric {name!r} is not in the table of metrics")
    return max(families, key=len)


def metric_info(name: str) -> MetricInfo:
    """The table's entry for a metric.

    Raises:
        KeyError: the name is not in the table.
    """
    return METRICS[metric_entry(name)]


def metric_group(name: str) -> MetricGroup:
    """What a metric's prefix says of it."""
    return GROUPS[name[: name.index("/") + 1]]
