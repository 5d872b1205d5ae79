"""The one table of metrics: every name that a run emits, with its meaning and unit."""

from __future__ import annotations

from dataclasses import dataclass

from maxent_grpo.training.types.generation import GENERATION_COUNTERS


@dataclass(frozen=True)
class MetricInfo:
    """Meaning and unit of a metric, or of a family of metrics."""

    meaning: str
    unit: str = "1"


METRICS: dict[str, MetricInfo] = {
    "reward/mean": MetricInfo("mean utility of the step's valid completions", "reward"),
    "reward/std": MetricInfo("population standard deviation of the utility", "reward"),
    "reward/rollout_mean": MetricInfo("mean utility of the rollout that the step belongs to", "reward"),
    "reward/rollout_std": MetricInfo("population standard deviation of that rollout's utilities", "reward"),
    "reward/term/*": MetricInfo("mean of one reward term, before its weight, where it did not abstain", "reward"),
    "reward/abstained": MetricInfo("term values left out because the term abstained or failed", "completions"),
    "reward/rejected/*": MetricInfo("completions that did not read as an answer, by reason", "completions"),
    "reward/equal_groups": MetricInfo("share of groups whose utilities are all equal: no advantage signal"),
    "reward/entropy_bonus_scale": MetricInfo("multiplier of the reward-side entropy bonus", "reward"),
    "advantage/abs_mean": MetricInfo("mean absolute advantage", "reward"),
    "completion/min_length": MetricInfo("shortest completion, end token included", "tokens"),
    "completion/mean_length": MetricInfo("mean completion, end token included", "tokens"),
    "completion/max_length": MetricInfo("longest completion, end token included", "tokens"),
    "completion/clipped_ratio": MetricInfo("share of completions cut by the length limit"),
    "completion/min_terminated": MetricInfo("shortest completion that ended by itself", "tokens"),
    "completion/mean_terminated": MetricInfo("mean completion that ended by itself", "tokens"),
    "completion/max_terminated": MetricInfo("longest completion that ended by itself", "tokens"),
    "completion/tail_masked_tokens": MetricInfo("completion tokens outside the trained tail window", "tokens"),
    "completion/distinct_modes": MetricInfo("mean number of different right answers in a group", "modes"),
    "loss/total": MetricInfo("the loss that was differentiated"),
    "loss/policy": MetricInfo("policy term as added"),
    "loss/listwise": MetricInfo("listwise cross-entropy as added"),
    "loss/clip": MetricInfo("clipped auxiliary listwise term before its coefficient"),
    "loss/kl": MetricInfo("token KL before its coefficient, under the policy term's reduction", "nats"),
    "loss/weighted_kl": MetricInfo("token KL as added"),
    "loss/entropy": MetricInfo("token-entropy bonus as added"),
    "policy/entropy": MetricInfo("mean token entropy of the sampled distribution", "nats"),
    "policy/behaviour_logp_mean": MetricInfo("mean log-prob of the trained tokens under the behaviour policy", "nats"),
    "policy/ratio_mean": MetricInfo("mean importance ratio to the behaviour policy over trained tokens"),
    "policy/ratio_max": MetricInfo("largest importance ratio to the behaviour policy"),
    "policy/log_ratio_abs_mean": MetricInfo("mean absolute log-ratio per trained token", "nats"),
    "policy/clip_ratio": MetricInfo(
        "share of tokens whose ratio lies beyond the clip range on the side that a clip stops"
    ),
    "policy/clip_ratio_region_mean": MetricInfo("the same, low and high sides together"),
    "policy/clip_ratio_low_mean": MetricInfo("share of tokens clipped below"),
    "policy/clip_ratio_low_min": MetricInfo("smallest share clipped below among completions"),
    "policy/clip_ratio_high_mean": MetricInfo("share of tokens clipped above"),
    "policy/clip_ratio_high_max": MetricInfo("largest share clipped above among completions"),
    "policy/kl_to_reference": MetricInfo("mean k3 divergence from the reference per trained token", "nats"),
    "policy/kl_by_length/*": MetricInfo("the same by completion length in tokens", "nats"),
    "policy/kl_tokens_by_length/*": MetricInfo("trained tokens behind each of those", "tokens"),
    "reference/logp_mean": MetricInfo("mean over completions of the reference's log-prob per token", "nats"),
    "reference/token_logp_mean": MetricInfo("mean over tokens of the reference's log-prob", "nats"),
    "reference/mean_length": MetricInfo("mean number of tokens the reference scored", "tokens"),
    "reference/score_mean": MetricInfo("mean reference score in the configured mode", "nats"),
    "weights/entropy": MetricInfo("mean entropy of the target weights over the groups that take part", "nats"),
    "weights/effective_size": MetricInfo("mean exp(entropy of the target weights)", "completions"),
    "weights/policy_effective_size": MetricInfo("mean exp(entropy of the policy over the group)", "completions"),
    "weights/kl_to_policy": MetricInfo("mean KL(w || p) over the group", "nats"),
    "weights/wrong_mass": MetricInfo("mean target weight on completions that are not right"),
    "weights/policy_wrong_mass": MetricInfo("mean policy probability over the group on completions not right"),
    "weights/groups": MetricInfo("groups that take part in the listwise term", "groups"),
    "weights/effective_temperature": MetricInfo("q_temperature * (tau + beta): log-odds 1 / this for a unit reward"),
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
    "optim/skipped": MetricInfo("1 if the gradient was exactly zero and the step was left out"),
    "generation/logprob_gap": MetricInfo("mean |sampler - trainer| log-prob at the same weights", "nats"),
    "generation/staleness": MetricInfo("optimiser steps between sampling and this update", "steps"),
    **{
        f"generation/{name}": MetricInfo(f"{name.replace('_', ' ')} since the last step")
        for name in GENERATION_COUNTERS
    },
    "scoring/forward_passes": MetricInfo("forward passes of scoring since the last step", "passes"),
    "scoring/fed_tokens": MetricInfo("positions fed to the model in scoring, padding included", "tokens"),
    "scoring/scored_tokens": MetricInfo("completion tokens scored", "tokens"),
    "data/epoch": MetricInfo("passes over the training rows begun before this one", "epochs"),
    "data/step_in_epoch": MetricInfo(
        "optimiser steps' worth of this epoch's prompts drawn before this rollout", "steps"
    ),
    "data/input_tokens_seen": MetricInfo("prompt and completion tokens fed to training so far", "tokens"),
    "eval/*": MetricInfo("held-out evaluation; see the entry of its kind"),
    "time/*": MetricInfo("wall-clock time of a phase since the last step", "seconds"),
    "throughput/*": MetricInfo("completion tokens trained per second of the step", "tokens/second"),
    "memory/*": MetricInfo("largest resident memory of the process so far", "MiB"),
}
"""Every metric's name, meaning and unit; a name ending in ``*`` stands for a family."""

UNREPRODUCED = ("time/", "throughput/", "memory/")
"""Prefixes of metrics that measure the machine rather than the run; two equal runs may differ in these."""


def metric_info(name: str) -> MetricInfo:
    """The table's entry for a metric.

    Raises:
        KeyError: the name is not in the table.
    """
    if name in METRICS:
        return METRICS[name]
    family = next((entry for entry in METRICS if entry.endswith("*") and name.startswith(entry[:-1])), None)
    if family is None:
        raise KeyError(f"metric {name!r} is not in the table of metrics")
    return METRICS[family]
