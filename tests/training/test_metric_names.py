"""Every name in the table of metrics is emitted, every emitted name is in the table, and no two names are one quantity."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.runs import metric_lines, only_reward, train

from maxent_grpo.commands.metrics_docs import metrics_file, metrics_reference
from maxent_grpo.report.read import read_metrics
from maxent_grpo.training import setup
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.metric_table import GROUPS, METRICS, UNREPRODUCED, metric_entry, metric_group, metric_info

RUNS: dict[str, tuple[str, ...]] = {
    "maxent in halves of a rollout: reward/rollout_*, reference/*, a moving ratio, a tail window, a reward-side bonus": (
        "scoring=maxent",
        "scoring.kl_beta=0.1",
        "scoring.weighting.beta=0.2",
        "scoring.entropy_coef=0.1",
        "scoring.kl_estimator=k2",
        "scoring.policy_entropy_bonus_coef=0.5",
        "scoring.batching.score_tail_tokens=2",
        "scoring.clipping.clip_range=0.01",
        "scoring.clipping.clip_range_high=0.05",
        "scoring.reference_sync.every_n_steps=1",
        "optimization.minibatches=2",
        "optimization.num_iterations=2",
        "optimization.total_training_steps=8",
        "optimization.learning_rate=0.05",
        "evaluation.every_n_steps=4",
    ),
    "the listwise term alone, with its clipped term: loss/clip": (
        "scoring=maxent_listwise",
        "scoring.clipping.use_clip_objective=true",
        "optimization.num_iterations=2",
        "evaluation.enabled=false",
    ),
    "a term that abstains: reward/abstained, reward/term/*": (
        "scoring=grpo",
        *only_reward("silent_on_green"),
        "evaluation.enabled=false",
    ),
}
"""What a small run is for, and its overrides: together they emit every name of the table."""

SAME_HERE: dict[frozenset[str], str] = {
    frozenset(
        {"policy/clip_ratio_low_min", name}
    ): "no run here clips every completion below, so the smallest share is 0"
    for name in ("optim/skipped",)
}
"""Pairs of different quantities that no run of these tells apart, and why."""

SERVER_ONLY = {f"generation/{name}" for name in ("failed_requests", "weight_syncs", "weight_sync_failures")}
"""Counters of a server of completions: 0 for the local sampler."""


class ShortAndLong(LocalGenerator):
    """Now leaves one completion out, now gives one too many, and once loses a prompt altogether."""

    calls = 0

    def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
        texts, records = super().__call__(prompts, num_samples, per_prompt_counts)
        assert records is not None
        ShortAndLong.calls += 1
        if ShortAndLong.calls % 3 == 1:
            return [[*texts[0], *texts[0][:2]], texts[1][:-1], *texts[2:]], [
                [*records[0], *records[0][:2]],
                records[1][:-1],
                *records[2:],
            ]
        return texts, records


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The lines of every run, machine metrics included, which a sampler that is not always on time makes more telling."""
    folder = tmp_path_factory.mktemp("names")
    found: list[dict[str, float]] = []
    with patch.object(setup, "LocalGenerator", ShortAndLong):
        for number, overrides in enumerate(RUNS.values()):
            train(folder / str(number), *overrides)
            found += read_metrics(folder / str(number))
    return found


def test_the_table_is_what_the_runs_emit(lines: list[dict[str, float]]) -> None:
    emitted = {metric_entry(name) for line in lines for name in line if name != "step"}
    assert emitted == set(METRICS)


def test_no_two_names_carry_the_same_numbers(lines: list[dict[str, float]]) -> None:
    names = sorted({name for line in lines for name in line} - {"step"} - SERVER_ONLY)
    names = [name for name in names if not name.startswith((*UNREPRODUCED, "eval/"))]
    alike = []
    for pair in combinations(names, 2):
        both = [(line[pair[0]], line[pair[1]]) for line in lines if pair[0] in line and pair[1] in line]
        if both and all(left == right for left, right in both) and frozenset(pair) not in SAME_HERE:
            alike.append(pair)
    assert alike == []


def test_a_setting_that_a_metric_waits_for_makes_it_appear(tmp_path: Path) -> None:
    """Without the settings named in their rows these names are absent from a plain run."""
    train(tmp_path / "plain", "scoring=dr_grpo", "scoring.policy_entropy=false", "evaluation.enabled=false")
    plain = {metric_entry(name) for line in metric_lines(tmp_path / "plain") for name in line if name != "step"}
    waiting = {name for name, info in METRICS.items() if "scoring." in info.when or "optimization." in info.when}
    assert waiting >= {"loss/clip", "policy/entropy", "policy/kl_to_reference", "reward/rollout_mean"}
    assert plain & waiting == set()


def test_every_prefix_says_where_it_is_measured() -> None:
    assert {metric_group(name) for name in METRICS} == set(GROUPS.values())
    for group in GROUPS.values():
        module, _, function = group.source.rpartition(".")
        assert hasattr(import_module(f"maxent_grpo.{module}"), function), group.source


def test_a_name_belongs_to_its_narrowest_family() -> None:
    assert metric_entry("reward/mean") == "reward/mean"
    assert metric_entry("reward/term/task") == "reward/term/*"
    assert metric_info("time/rollout_seconds").unit == "seconds"
    with pytest.raises(KeyError, match="'reward/men' is not in the table of metrics"):
        metric_info("reward/men")


def test_docs_metrics_md_is_up_to_date() -> None:
    assert metrics_file().read_text(encoding="utf-8") == metrics_reference(), "run: python -m maxent_grpo metrics-docs"
