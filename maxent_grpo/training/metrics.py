"""The numbers of an optimiser step, under the names of the table of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator

from maxent_grpo.distributed import global_maxima
from maxent_grpo.objective.advantages import EQUAL_UTILITIES
from maxent_grpo.objective.weights import group_divergence, weight_entropy
from maxent_grpo.telemetry.resident import peak_resident_bytes
from maxent_grpo.training.diagnostics import StepSums, length_stats
from maxent_grpo.training.metric_table import metric_info
from maxent_grpo.training.scoring.policy import ScoringCounters
from maxent_grpo.training.step import StepReport
from maxent_grpo.training.step_part import LossSums, RolloutReference, StepGroups, StepPart
from maxent_grpo.training.term_metrics import term_metrics
from maxent_grpo.training.types.rewards import CompletionRecord
from maxent_grpo.training.types.runtime import GenerationSettings, TrainingLoopState
from maxent_grpo.training.types.weighting import WeightingSettings


def step_metrics(report: StepReport, part: StepPart, weighting: WeightingSettings) -> dict[str, float]:
    """The numbers of one optimiser step.

    Args:
        report: the step; what is read of it is the same on every process.
        part: the step's groups, counts and sums, of all processes.
        weighting: how utilities become weights.
    """
    groups, scoring = part.groups, part.scoring
    metrics = {
        **_reward_metrics(report, part),
        **_length_metrics(groups),
        **_loss_metrics(part.losses),
        **_policy_metrics(report, part.losses),
        **_mismatch_metrics(report.sums, corrected=report.is_corrected),
        **_reference_metrics(part.reference),
        **_weight_metrics(groups),
        "weights/effective_temperature": weighting.q_temperature * (report.values.tau + report.values.beta),
        "controller/tau": report.values.tau,
        "controller/beta": report.values.beta,
        "controller/kl_beta": report.values.kl_beta,
        **report.controller_metrics,
        "optim/gradient_norm": report.update.gradient_norm,
        "optim/learning_rate": report.update.learning_rate,
        "optim/skipped": float(report.update.skipped),
        "scoring/forward_passes": sum(counters.forward_passes for counters in scoring),
        "scoring/fed_tokens": sum(counters.fed_tokens for counters in scoring),
        "scoring/scored_tokens": sum(counters.scored_tokens for counters in scoring),
        **_padding_metrics(scoring),
        "scoring/skipped_sequences": float((~groups.scored).sum() * report.experience.group_size),
        "data/epoch": report.experience.epoch,
        "data/step_in_epoch": report.experience.step_in_epoch,
    }
    if report.nonfinite is not None:
        metrics = {name: value for name, value in metrics.items() if _is_known_without_update(name, value)}
    for name in metrics:
        metric_info(name)
    return metrics


def _is_known_without_update(name: str, value: float) -> bool:
    """Whether a number says something of a step that was left out because another was not finite."""
    of_the_passes = ("loss/", "policy/", "mismatch/", "weights/", "reference/", "optim/gradient_norm")
    return not name.startswith(of_the_passes) and math.isfinite(value)


def drain_generation_stats(generation: GenerationSettings) -> dict[str, int]:
    """The sampler's counters since the last step; they start again at zero."""
    drained = dict(generation.generation_stats)
    for name in generation.generation_stats:
        generation.generation_stats[name] = 0
    return drained


def generation_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """The sampler's counters under the names of the table."""
    return {f"generation/{name}": float(count) for name, count in counts.items()}


def drain_running(state: TrainingLoopState) -> dict[str, float]:
    """Means of what was added to the loop's running sums since the last line; the sums start again."""
    means = {name: total / max(state.metric_counts[name], 1) for name, total in state.metric_sums.items()}
    state.metric_sums.clear()
    state.metric_counts.clear()
    return means


def add_running(state: TrainingLoopState, name: str, value: float) -> None:
    """Add a value to a running mean that the next line reports."""
    state.metric_sums[name] = state.metric_sums.get(name, 0.0) + value
    state.metric_counts[name] = state.metric_counts.get(name, 0) + 1


def machine_metrics(phases: Mapping[str, float], total: float, accelerator: Accelerator) -> dict[str, float]:
    """Time of each phase, of the step and of what no phase claims; peak memory, of the process that has most."""
    peak = peak_resident_bytes() / 1024**2
    return {
        **{f"time/{name}_seconds": seconds for name, seconds in phases.items()},
        "time/other_seconds": max(total - sum(phases.values()), 0.0),
        "time/step_seconds": total,
        **global_maxima(accelerator, {"memory/peak_rss_mib": peak, **_gpu_memory()}),
    }


def _gpu_memory() -> dict[str, float]:
    if not torch.cuda.is_available():
        return {}
    return {"memory/peak_cuda_mib": torch.cuda.max_memory_allocated() / 1024**2}


def completion_records(report: StepReport, most: int) -> list[list[dict[str, Any]]]:
    """The completions of a step as written to the completions file, by group; of the first groups with ``most`` completions."""
    experience, rewards = report.experience, report.experience.rewards
    rows, size = experience.rows(report.groups), experience.group_size
    last = min(rows.last, rows.first + size * -(-most // size))
    weights = report.targets.log_weights.exp().flatten().tolist()
    # of a group that was not run the reference's score is not known, nor therefore its weights
    is_known = torch.ones(len(report.groups), dtype=torch.bool)
    if experience.reference is not None and report.scored is not None:
        is_known = report.scored
    has_weight = is_known.repeat_interleave(experience.group_size).tolist()
    records: list[list[dict[str, Any]]] = []
    for n in range(rows.first, last):
        record = (rewards.ref_logprob_meta or [])[n]
        assert isinstance(record, CompletionRecord)
        sampled, verdict = (rewards.pairs.metadata or [])[n], (rewards.completion_metadata or [])[n]
        rewarded = {name: values[n] for name, values in rewards.per_reward_values.items()}
        if (n - rows.first) % size == 0:
            records.append([])
        records[-1].append(
            {
                "row_id": sampled["row_id"],
                "prompt": str(rewards.pairs.prompts[n]),
                "completion": rewards.pairs.completions[n],
                "rewards": {name: None if math.isnan(value) else value for name, value in rewarded.items()},
                "utility": None if math.isnan(rewards.total_utils[n]) else rewards.total_utils[n],
                "advantage": rewards.advantage_samples[n],
                "q": rewards.q_distribution.samples[n],
                "weight": weights[n - rows.first] if has_weight[n - rows.first] else None,
                "mode": verdict["mode"],
                "reason": verdict["reason"],
                "finish_reason": sampled["finish_reason"],
                "num_tokens": len(record.token_ids),
                "policy_version": record.policy_version,
                **({"extra": verdict["extra"]} if verdict["extra"] else {}),
            }
        )
    return records


def _padding_metrics(scoring: Sequence[ScoringCounters]) -> dict[str, float]:
    real = sum(counters.real_tokens for counters in scoring)
    return {"scoring/padding_ratio": sum(counters.fed_tokens for counters in scoring) / real} if real else {}


def _reward_metrics(report: StepReport, part: StepPart) -> dict[str, float]:
    rewards, groups = report.experience.rewards, part.groups
    # what the completions earned, rather than the shaped utilities that credit sees
    known = groups.earned[groups.valid]
    metrics = {"reward/abstained": float(part.abstentions)}
    if known.numel():
        metrics["reward/mean"], metrics["reward/std"] = float(known.mean()), float(known.std(correction=0))
        if groups.shaped is not None:
            metrics["reward/shaped_mean"] = float(groups.shaped[groups.valid].mean())
    rollout = {"reward/rollout_mean": rewards.train_reward_mean, "reward/rollout_std": rewards.train_reward_std}
    # a rollout of one step's prompts has that step's moments, which stand under reward/mean and reward/std
    if len(report.experience.portions) > 1 and not math.isnan(rewards.train_reward_mean):
        metrics |= rollout
    metrics |= term_metrics(groups.terms, part.failures, part.logged)
    metrics |= {f"reward/rejected/{reason}": float(count) for reason, count in part.rejected.items()}
    spread = [_equal(utilities[valid]) for utilities, valid in zip(groups.utilities, groups.valid, strict=True)]
    metrics["reward/equal_groups"] = sum(spread) / max(len(spread), 1)
    metrics["advantage/abs_mean"] = float(groups.advantages.abs().mean())
    metrics |= _row_weight_metrics(groups)
    if rewards.entropy_bonus_scale is not None:
        metrics["reward/entropy_bonus_scale"] = rewards.entropy_bonus_scale
    metrics["completion/distinct_modes"] = int(groups.distinct_modes.sum()) / max(len(groups), 1)
    return metrics


def _equal(utilities: torch.Tensor) -> bool:
    return utilities.numel() < 2 or float(utilities.max() - utilities.min()) <= EQUAL_UTILITIES


def _length_metrics(groups: StepGroups) -> dict[str, float]:
    stats = length_stats(groups.lengths.flatten().tolist(), groups.cut.flatten().tolist())
    return {
        "completion/min_length": stats.min_length,
        "completion/mean_length": stats.mean_length,
        "completion/max_length": stats.max_length,
        "completion/clipped_ratio": stats.clipped_ratio,
        "completion/mean_terminated": stats.mean_terminated,
        "completion/max_terminated": stats.max_terminated,
        "completion/tail_masked_tokens": float(groups.outside_tail.sum()),
    }


def _loss_metrics(losses: LossSums) -> dict[str, float]:
    metrics = {
        "loss/total": losses.total,
        "loss/policy": losses.policy,
        "loss/listwise": losses.listwise,
        "loss/kl": losses.kl,
        "loss/weighted_kl": losses.weighted_kl,
        "loss/entropy": losses.entropy,
    }
    if losses.clip is not None:
        metrics["loss/clip"] = losses.clip
    return metrics


def _policy_metrics(report: StepReport, losses: LossSums) -> dict[str, float]:
    sums, diagnostics = report.sums, report.sums.diagnostics()
    tokens = max(sums.tokens, 1.0)
    metrics = {
        "policy/ratio_mean": sums.ratio_sum / tokens,
        "policy/ratio_max": sums.ratio_max,
        "policy/behaviour_logp_mean": sums.behaviour_logp / tokens,
        "policy/log_ratio_abs_mean": losses.log_ratio / max(losses.tokens, 1.0),
        "policy/clip_ratio": diagnostics.clip_ratio,
        "policy/clip_ratio_low_mean": diagnostics.clip_ratio_low_mean,
        "policy/clip_ratio_low_min": diagnostics.clip_ratio_low_min,
        "policy/clip_ratio_high_mean": diagnostics.clip_ratio_high_mean,
        "policy/clip_ratio_high_max": diagnostics.clip_ratio_high_max,
    }
    if sums.entropy_tokens:
        metrics["policy/entropy"] = sums.entropy / sums.entropy_tokens
    if report.selected_tokens is not None:
        metrics["policy/selected_tokens"] = report.selected_tokens
    if diagnostics.kl_value is not None:
        metrics["policy/kl_to_reference"] = diagnostics.kl_value
    for name, value in diagnostics.kl_per_token_by_len_bucket.items():
        metrics[f"policy/kl_by_length/{name}"] = value
        metrics[f"policy/kl_tokens_by_length/{name}"] = diagnostics.kl_token_count_by_len_bucket[name]
    return metrics


def _mismatch_metrics(sums: StepSums, *, corrected: bool) -> dict[str, float]:
    metrics = {"mismatch/missing": sums.missing} if sums.missing else {}
    if not sums.gap_tokens:
        return metrics
    metrics["generation/logprob_gap"] = sums.gap / sums.gap_tokens
    means = {"raw_mean": sums.mismatch_raw, "kl": sums.mismatch_k1, "kl_k3": sums.mismatch_k3}
    if corrected:
        means |= {"used_mean": sums.mismatch_used, "cut_share": sums.mismatch_cut}
    metrics |= {f"mismatch/{name}": total / sums.gap_tokens for name, total in means.items()}
    return metrics | {"mismatch/raw_min": sums.raw_min, "mismatch/raw_max": sums.raw_max}


def _row_weight_metrics(groups: StepGroups) -> dict[str, float]:
    """How a group's advantages are weighted, and each group's beside the others."""
    metrics: dict[str, float] = {}
    if groups.answer_entropy is not None and groups.discount is not None:
        metrics["advantage/answer_entropy"] = _mean(groups.answer_entropy.tolist())
        metrics["advantage/answer_entropy_discount"] = _mean(groups.discount.tolist())
    if groups.row_weights is None:
        return metrics
    weights = groups.row_weights
    counted = (weights > 0) & groups.valid
    if not bool(counted.any()):
        return metrics
    count = groups.valid.sum(dim=-1).clamp(min=1)
    metrics["advantage/prompt_scale"] = float(((weights * groups.valid).sum(dim=-1) / count).mean())
    some, right = counted.any(dim=-1), groups.right
    shares = torch.where(counted, weights, 0.0)[some]
    shares = shares / shares.sum(dim=-1, keepdim=True)
    return metrics | {
        "advantage/effective_size": float(weight_entropy(shares.log()).exp().mean()),
        "advantage/wrong_share": float((shares * ~right[some]).sum(dim=-1).mean()),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _reference_metrics(reference: RolloutReference | None) -> dict[str, float]:
    if reference is None or not reference.completions:
        return {}
    return {
        "reference/logp_mean": reference.logp_mean,
        "reference/token_logp_mean": reference.token_logp_mean,
        "reference/mean_length": reference.mean_length,
        "reference/score_mean": reference.score_mean,
    }


def _weight_metrics(groups: StepGroups) -> dict[str, float]:
    part = groups.takes_part.any(dim=-1)
    metrics = {"weights/groups": float(part.sum())}
    part = part & groups.scored
    if not bool(part.any()):
        return metrics
    log_w, log_p = groups.log_weights[part], groups.log_policy[part]
    entropy, policy_entropy = weight_entropy(log_w), weight_entropy(log_p)
    weights, policy = log_w.exp(), log_p.exp()
    wrong = ~groups.right[part]
    return metrics | {
        "weights/entropy": float(entropy.mean()),
        "weights/effective_size": float(entropy.exp().mean()),
        "weights/policy_effective_size": float(policy_entropy.exp().mean()),
        "weights/kl_to_policy": float(group_divergence(log_w, log_p).mean()),
        "weights/wrong_mass": float((weights * wrong).sum(dim=-1).mean()),
        "weights/policy_wrong_mass": float((policy * wrong).sum(dim=-1).mean()),
    }
