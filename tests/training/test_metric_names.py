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
from maxent_grpo.training import samplers
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.metric_table import METRICS, UNREPRODUCED, metric_entry, metric_group, metric_info
from maxent_grpo.training.types.metric_groups import GROUPS

MIXED_GROUPS = (
    "reward.terms.task=0.5",
    "reward.terms.spread=0",
    "+reward.terms.starts_with_red=1",
    "+reward.functions.starts_with_red=support.graders:starts_with_red",
    "generation.num_generations=8",
    "generation.max_completion_len=24",
    "optimization.learning_rate=1e-5",
)
"""Groups whose completions end by themselves and earn different rewards, so that tau is measured."""

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
        "scoring.reference_sync.mixing=0.3",
        "optimization.minibatches=2",
        "optimization.num_iterations=2",
        "optimization.total_training_steps=8",
        "checkpoint.every_n_steps=3",
        "optimization.learning_rate=0.05",
        "evaluation.every_n_steps=4",
        "evaluation.seed_eval.enabled=true",
    ),
    "the listwise term alone, with its clipped term and long completions: loss/clip, policy/kl_by_length/*": (
        "scoring=maxent_listwise",
        "scoring.clipping.use_clip_objective=true",
        "scoring.kl_beta=0.1",
        "generation.max_completion_len=40",
        "generation.allowed_tokens=[]",
        "optimization.num_iterations=2",
        "evaluation.enabled=false",
    ),
    "a term that abstains: reward/abstained, reward/term/*, eval/abstained": (
        "scoring=grpo",
        "~reward.terms.task",
        "~reward.terms.spread",
        "~reward.functions.spread",
        "+reward.terms.silent_on_green=1",
        "+reward.functions.silent_on_green=support.graders:silent_on_green",
    ),
    "terms that fail, take too long and log: reward/term_*, reward/extra/*": (
        "scoring=dr_grpo",
        *("+reward.terms.refuses_green=1", "+reward.functions.refuses_green=support.graders:refuses_green"),
        "+reward.on_error.refuses_green=abstain",
        *("+reward.terms.slow_on_red=1", "+reward.functions.slow_on_red=support.graders:slow_on_red"),
        *("+reward.on_error.slow_on_red=abstain", "+reward.time_limits.slow_on_red=0.05"),
        *("+reward.terms.logs_length=1", "+reward.functions.logs_length=support.graders:logs_length"),
        "evaluation.enabled=false",
    ),
    "rewards that differ in some groups only: reward/equal_groups": (
        "scoring=dr_grpo",
        *only_reward("starts_with_red"),
        "generation.num_generations=2",
        "evaluation.enabled=false",
    ),
    "groups without differences drawn again, but not until there are enough, with a length penalty: sampling/*, reward/shaped_mean": (
        "scoring=dapo",
        *only_reward("mixed_on_half"),
        "reward.terms.mixed_on_half=2",
        "generation.num_generations=3",
        "data.num_train=11",
        "optimization.total_training_steps=6",
        "optimization.num_iterations=2",
        "scoring.dynamic_sampling.max_refill=1",
        "scoring.shaping.overlong_buffer=2",
        "evaluation.enabled=false",
    ),
    "rewards without differences: optim/skipped, controller/skipped": (
        "scoring=maxent",
        "scoring.weighting.neutral_groups=skip",
        "controller=effective_size",
        "controller.target_size=2",
        *only_reward("half"),
        "evaluation.enabled=false",
    ),
    "tau towards an entropy: controller/measured, smoothed, target, saturated; eval/seed/*": (
        "scoring=maxent",
        "controller=entropy",
        "controller.warmup_steps=1",
        "controller.tau_max=0.11",
        "controller.learning_rate=5",
        "controller.target_fraction=0.99",
        *MIXED_GROUPS,
        "optimization.total_training_steps=6",
        "evaluation.seed_eval.enabled=true",
        "evaluation.seed_eval.num_seeds=2",
        "evaluation.seed_eval.samples_per_seed=2",
    ),
    "tau towards a group size that some groups cannot have: controller/infeasible": (
        "scoring=maxent",
        "controller=effective_size",
        "controller.target_size=2.2",
        "controller.tau_min=0.4",
        "scoring.weighting.tau=0.5",
        *MIXED_GROUPS,
        "optimization.total_training_steps=6",
        "evaluation.enabled=false",
    ),
    "tau along held-out rewards: controller/tau_gradient, beta_gradient, outer_reward, limited": (
        "scoring=maxent",
        "scoring.weighting.beta=0.2",
        "controller=meta",
        "controller.mode=first_order",
        "controller.adapt_beta=true",
        "controller.every_n_steps=10",
        "controller.min_groups=1",
        "controller.num_prompts=4",
        "controller.learning_rate=5",
        *MIXED_GROUPS,
        "optimization.total_training_steps=20",
        "evaluation.enabled=false",
    ),
    "a sampler that penalises and forgets, corrected; tokens selected, utilities shaped: mismatch/*, policy/selected_tokens": (
        "scoring=high_entropy_tokens",
        "scoring.behavior_logprobs_source=sampler",
        "scoring.mismatch.mode=token_truncate",
        "scoring.mismatch.cap=1.05",
        "generation.penalty.gen_presence_penalty=1.0",
        "scoring.shaping.overlong_buffer=2",
        "evaluation.enabled=false",
    ),
    "prompts weighed by the entropy of their answers: advantage/answer_entropy*": (
        "scoring=seed_grpo",
        "reward.terms.task=0",
        "evaluation.enabled=false",
    ),
    "a step whose loss overflows, left out: optim/skipped_nonfinite": (
        "scoring=dr_grpo",
        "run.on_nonfinite=skip",
        "reward.terms.task=0",
        "reward.functions.spread=support.graders:overflows_in_two_steps",
        "optimization.total_training_steps=6",
        "evaluation.enabled=false",
    ),
    "row weights within groups: advantage/effective_size, advantage/wrong_share": (
        "scoring=xdr",
        "evaluation.enabled=false",
    ),
    "row weights between groups, rows rendered when drawn: advantage/prompt_scale, data/dropped_prompts": (
        "scoring=dr_grpo_scaled",
        "data.render_ahead=0",
        "data.prompt_template='{prompt} {modes}'",
        "generation.max_prompt_len=36",
        "evaluation.enabled=false",
    ),
}
"""What a small run is for, and its overrides: together they emit every name of the table."""

ELSEWHERE = {"memory/peak_cuda_mib"}
"""Names that need a GPU."""

CONSTANT = {
    "reward/term_std/half": "the term gives every completion the same",
    "reward/term_equal_groups/mixed_on_half": "groups in which the term gives every completion the same are drawn again",
    "policy/clip_ratio_low_min": "advantages of a group have mean 0, so that some completion is not clipped below",
    "generation/failed_requests": "the local sampler has no requests",
    "generation/backfilled_completions": "nothing has to stand in for the local sampler",
    "generation/weight_syncs": "the local sampler has the policy's own weights",
    "generation/weight_sync_failures": "the local sampler has the policy's own weights",
}
"""Names that are 0 in every run here, and why; two of them cannot be told apart."""


class Unreliable(LocalGenerator):
    """In every rollout one prompt has three completions too many, one comes short at first, and one is never answered."""

    lost = ""

    def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
        texts, records = super().__call__(prompts, num_samples, per_prompt_counts)
        assert records is not None
        if per_prompt_counts is None and len(prompts) > 3:
            texts[0], records[0] = [*texts[0], *texts[0][:3]], [*records[0], *records[0][:3]]
            texts[1], records[1] = texts[1][:-1], records[1][:-1]
            Unreliable.lost = prompts[-1]
        answered = [prompt is not Unreliable.lost for prompt in prompts]
        return [
            [group if is_answered else [] for group, is_answered in zip(groups, answered, strict=True)]
            for groups in (texts, records)
        ]


class Forgetful(Unreliable):
    """Does not report the log-prob of the first token of every prompt's last completion, nor any of the second prompt's."""

    def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
        texts, records = super().__call__(prompts, num_samples, per_prompt_counts)
        for number, group in enumerate(records):
            for record in group[-1:]:
                known = list(record.behaviour_logp)
                record.behaviour_logp = None if number == 1 else [None, *known[1:]]
        return texts, records


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The lines of every run, machine metrics included, which a sampler that is not always on time makes more telling."""
    folder = tmp_path_factory.mktemp("names")
    found: list[dict[str, float]] = []
    for number, overrides in enumerate(RUNS.values()):
        sampler: type[LocalGenerator] = Unreliable
        if "scoring.behavior_logprobs_source=sampler" in overrides:
            sampler = Forgetful
        if "controller.mode=first_order" in overrides:
            sampler = LocalGenerator
        with patch.object(samplers, "LocalGenerator", sampler):
            train(folder / str(number), *overrides)
            found += read_metrics(folder / str(number))
    return found


def test_the_table_is_what_the_runs_emit(lines: list[dict[str, float]]) -> None:
    emitted = {metric_entry(name) for line in lines for name in line if name != "step"}
    assert emitted == set(METRICS) - ELSEWHERE


def test_no_two_names_carry_the_same_numbers(lines: list[dict[str, float]]) -> None:
    names = sorted({name for line in lines for name in line} - {"step"})
    names = [name for name in names if not name.startswith((*UNREPRODUCED, "eval/"))]
    series = {name: [line.get(name) for line in lines] for name in names}
    assert {name for name in names if set(series[name]) <= {0.0, None}} == set(CONSTANT)
    varying = [name for name in names if name not in CONSTANT]
    alike = []
    for pair in combinations(varying, 2):
        both = [
            (x, y) for x, y in zip(*(series[name] for name in pair), strict=True) if x is not None and y is not None
        ]
        # a pair seen on a few lines may be equal by chance
        if len(both) >= 4 and all(x == y for x, y in both):
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
