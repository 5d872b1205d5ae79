"""The numbers of an optimiser step, under the names of the table of metrics."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from maxent_grpo.objective.advantages import EQUAL_UTILITIES
from maxent_grpo.objective.weights import group_divergence, weight_entropy
from maxent_grpo.training.credit import GradedRollout
from maxent_grpo.training.diagnostics import StepSums, length_stats
from maxent_grpo.training.metric_table import metric_info
from maxent_grpo.training.scoring.policy import ScoringCounters
from maxent_grpo.training.step import StepReport
from maxent_grpo.training.targets import SequenceTargets, policy_group_log_probs
from maxent_grpo.training.term_metrics import term_metrics
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, LossOutputs
from maxent_grpo.training.types.runtime import GenerationSettings, TrainingLoopState
from maxent_grpo.training.types.weighting import WeightingSettings


def step_metrics(
    report: StepReport, weighting: WeightingSettings, scoring: Sequence[ScoringCounters]
) -> dict[str, float]:
    """The numbers of one optimiser step; ``scoring`` is what each scorer did since the last one."""
    rows = report.experience.rows(report.groups).slice
    metrics = {
        **_reward_metrics(report, rows),
        **_length_metrics(report, rows),
        **_loss_metrics(report.losses),
        **_policy_metrics(report),
        **_mismatch_metrics(report.sums, corrected=report.is_corrected),
        **_reference_metrics(report),
        **_weight_metrics(report.targets, report.scores, _scored(report)),
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
        "scoring/skipped_sequences": float((~_scored(report)).sum() * report.experience.group_size),
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


def drain_generation_stats(generation: GenerationSettings) -> dict[str, float]:
    """The sampler's counters since the last step; they start again at zero."""
    drained = {f"generation/{name}": float(count) for name, count in generation.generation_stats.items()}
    for name in generation.generation_stats:
        generation.generation_stats[name] = 0
    return drained


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


def machine_metrics(phases: Mapping[str, float], total: float) -> dict[str, float]:
    """Time of each phase, of the step and of what no phase claims; peak memory."""
    # ru_maxrss is in KiB on Linux and in bytes on macOS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    return {
        **{f"time/{name}_seconds": seconds for name, seconds in phases.items()},
        "time/other_seconds": max(total - sum(phases.values()), 0.0),
        "time/step_seconds": total,
        "memory/peak_rss_mib": peak,
        **_gpu_memory(),
    }


def _gpu_memory() -> dict[str, float]:
    if not torch.cuda.is_available():
        return {}
    return {"memory/peak_cuda_mib": torch.cuda.max_memory_allocated() / 1024**2}


def completion_records(report: StepReport) -> list[dict[str, Any]]:
    """The completions of a step as written to the completions file, group by group."""
    experience, rewards = report.experience, report.experience.rewards
    rows = experience.rows(report.groups)
    weights = report.targets.log_weights.exp().flatten().tolist()
    # of a group that was not run the reference's score is not known, nor therefore its weights
    is_known = torch.ones(len(report.groups), dtype=torch.bool)
    if experience.reference is not None and report.scored is not None:
        is_known = report.scored
    has_weight = is_known.repeat_interleave(experience.group_size).tolist()
    records = []
    for n in range(rows.first, rows.last):
        record = (rewards.ref_logprob_meta or [])[n]
        assert isinstance(record, CompletionRecord)
        sampled, verdict = (rewards.pairs.metadata or [])[n], (rewards.completion_metadata or [])[n]
        rewarded = {name: values[n] for name, values in rewards.per_reward_values.items()}
        records.append(
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


def _scored(report: StepReport) -> torch.Tensor:
    """[P] groups of the step that were run through the model."""
    return torch.ones(len(report.groups), dtype=torch.bool) if report.scored is None else report.scored


def _reward_metrics(report: StepReport, rows: slice) -> dict[str, float]:
    rewards, targets, graded = report.experience.rewards, report.targets, report.experience.graded
    # what the completions earned, rather than the shaped utilities that credit sees
    known = torch.tensor(rewards.total_utils[rows], dtype=torch.float64).view_as(targets.valid)[targets.valid]
    metrics = {"reward/abstained": float(graded.abstentions)}
    if known.numel():
        metrics["reward/mean"], metrics["reward/std"] = float(known.mean()), float(known.std(correction=0))
        if rewards.shaped_utils is not None:
            shaped = torch.tensor(rewards.shaped_utils[rows], dtype=torch.float64).view_as(targets.valid)
            metrics["reward/shaped_mean"] = float(shaped[targets.valid].mean())
    rollout = {"reward/rollout_mean": rewards.train_reward_mean, "reward/rollout_std": rewards.train_reward_std}
    # a rollout of one step's prompts has that step's moments, which stand under reward/mean and reward/std
    if len(report.experience.portions) > 1 and not math.isnan(rewards.train_reward_mean):
        metrics |= rollout
    metrics.update(term_metrics(graded, rows))
    metrics.update(_rejections(graded, rows))
    spread = [_equal(utilities[valid]) for utilities, valid in zip(targets.utilities, targets.valid, strict=True)]
    metrics["reward/equal_groups"] = sum(spread) / max(len(spread), 1)
    metrics["advantage/abs_mean"] = float(targets.advantages.abs().mean())
    metrics.update(_row_weight_metrics(report))
    if rewards.entropy_bonus_scale is not None:
        metrics["reward/entropy_bonus_scale"] = rewards.entropy_bonus_scale
    modes = [entry["mode"] for entry in (rewards.completion_metadata or [])[rows]]
    size = targets.group_size
    distinct = [len(set(modes[at : at + size]) - {None}) for at in range(0, len(modes), size)]
    metrics["completion/distinct_modes"] = sum(distinct) / max(len(distinct), 1)
    return metrics


def _rejections(graded: GradedRollout, rows: slice) -> dict[str, float]:
    counts: dict[str, float] = {}
    for entry in graded.metadata[rows]:
        if entry["reason"]:
            name = f"reward/rejected/{entry['reason']}"
            counts[name] = counts.get(name, 0.0) + 1.0
    return counts


def _equal(utilities: torch.Tensor) -> bool:
    return utilities.numel() < 2 or float(utilities.max() - utilities.min()) <= EQUAL_UTILITIES


def _length_metrics(report: StepReport, rows: slice) -> dict[str, float]:
    records = report.experience.graded.records[rows]
    lengths = [len(record.token_ids) for record in records]
    stats = length_stats(lengths, [record.finish_reason is FinishReason.length for record in records])
    attended = report.experience.tokens.completion_attention_mask[rows]
    tail = report.experience.tokens.score_tail_tokens
    masked = 0 if tail is None else int((attended.sum(dim=-1) - tail).clamp(min=0).sum())
    return {
        "completion/min_length": stats.min_length,
        "completion/mean_length": stats.mean_length,
        "completion/max_length": stats.max_length,
        "completion/clipped_ratio": stats.clipped_ratio,
        "completion/mean_terminated": stats.mean_terminated,
        "completion/max_terminated": stats.max_terminated,
        "completion/tail_masked_tokens": float(masked),
    }


def _loss_metrics(losses: list[LossOutputs]) -> dict[str, float]:
    metrics = {
        "loss/total": sum(loss.total_loss_scalar for loss in losses),
        "loss/policy": sum(loss.policy_loss_scalar for loss in losses),
        "loss/listwise": sum(loss.scalars.listwise_loss for loss in losses),
        "loss/kl": sum(loss.kl_loss_scalar for loss in losses),
        "loss/weighted_kl": sum(loss.weighted_kl_loss_scalar for loss in losses),
        "loss/entropy": sum(loss.scalars.entropy_loss for loss in losses),
    }
    clipped = [loss.clip_loss_scalar for loss in losses if loss.clip_loss_scalar is not None]
    if clipped:
        metrics["loss/clip"] = sum(clipped)
    return metrics


def _policy_metrics(report: StepReport) -> dict[str, float]:
    sums, diagnostics = report.sums, report.sums.diagnostics()
    tokens = max(sums.tokens, 1.0)
    log_ratio = sum(float(loss.log_ratio_train.abs().sum()) for loss in report.losses)
    denominator = sum(float(loss.denom_tok_tensor.sum()) for loss in report.losses)
    metrics = {
        "policy/ratio_mean": sums.ratio_sum / tokens,
        "policy/ratio_max": sums.ratio_max,
        "policy/behaviour_logp_mean": sums.behaviour_logp / tokens,
        "policy/log_ratio_abs_mean": log_ratio / max(denominator, 1.0),
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


def _row_weight_metrics(report: StepReport) -> dict[str, float]:
    """How a group's advantages are weighted, and each group's beside the others."""
    rewards, targets, groups = report.experience.rewards, report.targets, report.groups.slice
    metrics: dict[str, float] = {}
    if rewards.seed_semantic_entropies is not None and rewards.seed_advantage_scales is not None:
        metrics["advantage/answer_entropy"] = _mean(rewards.seed_semantic_entropies[groups])
        metrics["advantage/answer_entropy_discount"] = _mean(rewards.seed_advantage_scales[groups])
    if rewards.row_weights is None:
        return metrics
    weights = torch.tensor(rewards.row_weights[groups], dtype=torch.float64)
    counted = (weights > 0) & targets.valid
    if not bool(counted.any()):
        return metrics
    count = targets.valid.sum(dim=-1).clamp(min=1)
    metrics["advantage/prompt_scale"] = float(((weights * targets.valid).sum(dim=-1) / count).mean())
    some, right = counted.any(dim=-1), targets.right
    shares = torch.where(counted, weights, 0.0)[some]
    shares = shares / shares.sum(dim=-1, keepdim=True)
    return metrics | {
        "advantage/effective_size": float(weight_entropy(shares.log()).exp().mean()),
        "advantage/wrong_share": float((shares * ~right[some]).sum(dim=-1).mean()),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _reference_metrics(report: StepReport) -> dict[str, float]:
    reference, experience = report.experience.reference, report.experience
    if reference is None or not bool(experience.scored.any()):
        return {}
    rows = experience.scored.repeat_interleave(experience.group_size).to(reference.ref_logp_sum.device)
    tokens = reference.ref_tok_counts[rows].sum().clamp(min=1)
    return {
        "reference/logp_mean": reference.ref_logp_mean,
        "reference/token_logp_mean": float(reference.ref_logp_sum_raw[rows].sum() / tokens),
        "reference/mean_length": reference.avg_completion_tokens,
        "reference/score_mean": float(reference.ref_logp_sum[rows].mean()),
    }


def _weight_metrics(targets: SequenceTargets, scores: torch.Tensor, scored: torch.Tensor) -> dict[str, float]:
    part = targets.listwise_valid.any(dim=-1)
    metrics = {"weights/groups": float(part.sum())}
    part = part & scored
    if not bool(part.any()):
        return metrics
    log_w, log_p = targets.log_weights[part], policy_group_log_probs(targets, scores)[part]
    entropy, policy_entropy = weight_entropy(log_w), weight_entropy(log_p)
    weights, policy = log_w.exp(), log_p.exp()
    wrong = ~targets.right[part]
    return metrics | {
        "weights/entropy": float(entropy.mean()),
        "weights/effective_size": float(entropy.exp().mean()),
        "weights/policy_effective_size": float(policy_entropy.exp().mean()),
        "weights/kl_to_policy": float(group_divergence(log_w, log_p).mean()),
        "weights/wrong_mass": float((weights * wrong).sum(dim=-1).mean()),
        "weights/policy_wrong_mass": float((policy * wrong).sum(dim=-1).mean()),
    }
