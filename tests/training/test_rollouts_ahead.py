"""Rollouts that are sampled one ahead: by the right weights, corrected, resumed exactly, and the same however they are waited for."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, only_reward, state_of, train
from support.same_run import assert_same_run
from support.stops import Sends

from maxent_grpo.errors import GenerationError, NonFiniteError
from maxent_grpo.training import samplers
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.stopping import StopCause
from maxent_grpo.training.types.samplers import SendingSampler

PROMPTS, GROUP, STEPS = 4, 4, 5

CORRECTED = ("scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate")
PLAIN = (
    *("scoring=dr_grpo", "model.dtype=float64", "evaluation.enabled=false", "optimization.learning_rate=0.05"),
    *(*CORRECTED, f"optimization.total_training_steps={STEPS}", "checkpoint.every_n_steps=1", "checkpoint.keep_last=0"),
)
AHEAD = (*PLAIN, "generation.async_steps=1")
DYNAMIC = (
    *AHEAD,
    *("scoring=dapo", *only_reward("mixed_on_half"), "optimization.prompts_per_step=3", "optimization.minibatches=2"),
    *("scoring.clipping.use_clip_objective=true", "optimization.total_training_steps=8"),
)


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps whose every rollout serves one."""
    run_dir = tmp_path_factory.mktemp("ahead") / "run"
    train(run_dir, *AHEAD)
    return run_dir


def versions(run_dir: Path) -> dict[int, set[int]]:
    """By step, the weights that sampled what it trained."""
    lines = completion_lines(run_dir)
    steps = sorted({line["step"] for line in lines})
    return {step: {line["policy_version"] for line in lines if line["step"] == step} for step in steps}


def drawn(run_dir: Path) -> dict[int, list[str]]:
    """By step, what was sampled."""
    lines = completion_lines(run_dir)
    return {
        step: [line["completion"] for line in lines if line["step"] == step]
        for step in range(1, 1 + max(line["step"] for line in lines))
    }


def test_each_rollout_is_sampled_by_the_weights_that_the_one_before_began_to_train_with(
    ahead: Path, tmp_path: Path
) -> None:
    assert versions(ahead) == {1: {0}, 2: {0}, 3: {1}, 4: {2}, 5: {3}}
    assert [line["generation/staleness"] for line in metric_lines(ahead)] == [0, 1, 1, 1, 1]
    train(tmp_path / "still", *AHEAD, "optimization.learning_rate=1e-300")
    train(tmp_path / "fresh", *PLAIN)
    old, still, fresh = drawn(ahead), drawn(tmp_path / "still"), drawn(tmp_path / "fresh")
    assert old[1] == still[1] == fresh[1]
    assert old[2] == still[2] != fresh[2], "the second rollout comes from the weights that the run began with"
    assert old[3] != still[3]


def test_the_age_of_a_rollout_is_in_the_mismatch_weight_and_the_ratio_is_to_the_weights_it_begins_to_train_with(
    ahead: Path,
) -> None:
    first, *later = metric_lines(ahead)
    assert first["generation/logprob_gap"] < 1e-12
    assert first["mismatch/raw_max"] == pytest.approx(1, abs=1e-12)
    for line in later:
        assert line["generation/logprob_gap"] > 1e-3
        assert line["mismatch/raw_min"] < 1 - 1e-3
        assert line["mismatch/raw_max"] > 1 + 1e-3
        assert line["mismatch/used_mean"] <= line["mismatch/raw_mean"]
        assert (line["policy/ratio_mean"], line["policy/ratio_max"]) == (1.0, 1.0)


def test_without_the_mismatch_weight_the_ratio_is_to_the_sampler(tmp_path: Path) -> None:
    train(tmp_path / "run", *AHEAD, "scoring.mismatch.mode=bypass")
    first, *later = metric_lines(tmp_path / "run")
    assert first["policy/ratio_max"] == pytest.approx(1, abs=1e-12)
    assert all(line["policy/ratio_max"] > 1 + 1e-3 for line in later)


@pytest.mark.parametrize(
    ("settings", "staleness"),
    [
        (("optimization.minibatches=2",), [0, 1, 2, 3, 2]),
        pytest.param(
            ("optimization.num_iterations=2", "optimization.total_training_steps=6"),
            [0, 1, 2, 3, 2, 3],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["minibatches", "iterations"],
)
def test_a_rollout_is_as_old_as_the_steps_of_the_one_before(
    tmp_path: Path, settings: tuple[str, ...], staleness: list[int]
) -> None:
    train(tmp_path / "run", *AHEAD, *settings, "data.num_train=8")
    lines = metric_lines(tmp_path / "run")
    assert [line["generation/staleness"] for line in lines] == staleness
    starts = [line for line in lines if line["step"] in (3, 5)]
    assert all("mismatch/raw_max" in line and line["policy/ratio_max"] == 1.0 for line in starts)
    assert all(line["policy/ratio_max"] > 1 + 1e-6 for line in lines if line["step"] in (2, 4))


@pytest.mark.parametrize(
    ("settings", "prompts"),
    [((), STEPS * PROMPTS), (("optimization.minibatches=2",), 6 * PROMPTS)],
    ids=["one step a rollout", "a rollout that outlasts the run"],
)
def test_nothing_is_sampled_that_no_step_would_train(tmp_path: Path, settings: tuple[str, ...], prompts: int) -> None:
    asked: list[int] = []

    class Counting(LocalGenerator):
        def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
            asked.append(len(prompts))
            return super().__call__(prompts, num_samples, per_prompt_counts)

    with patch.object(samplers, "LocalGenerator", Counting):
        train(tmp_path / "run", *AHEAD, *settings, "data.num_train=8")
    assert sum(asked) == prompts
    states = state_of(checkpoint_of(tmp_path / "run")).states
    assert states["data"]["epoch"] * 8 + states["data"]["offset"] == prompts
    assert states["rollout_ahead"] == {"rollout": None}


def test_where_no_weight_moves_it_is_the_plain_run(tmp_path: Path) -> None:
    still = ("optimization.learning_rate=1e-300",)
    train(tmp_path / "ahead", *AHEAD, *still)
    train(tmp_path / "plain", *PLAIN, *still)
    left, right = (
        [{name: line[name] for name in line if name != "policy_version"} for line in completion_lines(tmp_path / name)]
        for name in ("ahead", "plain")
    )
    assert left == right
    left, right = (
        [
            {name: line[name] for name in line if name != "generation/staleness"}
            for line in metric_lines(tmp_path / name)
        ]
        for name in ("ahead", "plain")
    )
    assert left == right


class Elsewhere(LocalGenerator):
    """Samples in a thread, from a copy of the weights that is made when a rollout begins, as a server does."""

    log: ClassVar[list[str]] = []
    flying: ClassVar[dict[str, tuple[Future[Any], int]]] = {}
    """By row, what will be sampled of it and its place there."""
    failing: ClassVar[int | None] = None
    """The rollout that does not come."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._trained = self.model

    def begin_rollout(self, index: int, *, ahead: int = 0) -> None:
        assert not Elsewhere.flying, "new weights under a rollout in flight"
        super().begin_rollout(index)
        self.model, self._begun = deepcopy(self._trained), self.policy_version

    def send(self, prompts: list[str], num_samples: int) -> None:
        self.log.append(f"sent {self._rollout}")
        rollout, pool = self._rollout, ThreadPoolExecutor(1)

        def sample() -> Any:
            if rollout == self.failing:
                raise GenerationError(f"rollout {rollout} does not come")
            return LocalGenerator.__call__(self, prompts, num_samples)

        future = pool.submit(sample)
        Elsewhere.flying = {row_of(prompt): (future, place) for place, prompt in enumerate(prompts)}
        pool.shutdown(wait=False)

    def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
        sent = [Elsewhere.flying.pop(row_of(prompt), None) for prompt in prompts]
        if not any(sent):
            return super().__call__(prompts, num_samples, per_prompt_counts)
        given = [(future.result(), place) for future, place in filter(None, sent)]
        return [texts[place] for (texts, _), place in given], [records[place] for (_, records), place in given]

    def _record(self, *arguments: Any) -> Any:
        return replace(super()._record(*arguments), policy_version=self._begun)


def row_of(prompt: str) -> str:
    """The row of a rendered prompt."""
    return getattr(prompt, "row_id", "")


def elsewhere(run_dir: Path, *extra: str, resume_from: Path | None = None) -> list[str]:
    """A run whose completions are sampled while it trains; returns what was sent."""
    Elsewhere.log, Elsewhere.flying = [], {}
    with patch.object(samplers, "LocalGenerator", Elsewhere):
        train(run_dir, *extra, resume_from=resume_from)
    return Elsewhere.log


BESIDE: Mapping[str, tuple[str, ...]] = {
    "saved at every step": AHEAD,
    "evaluated and saved now and then": (
        *AHEAD, "evaluation.enabled=true", "evaluation.every_n_steps=2", "checkpoint.every_n_steps=3",
    ),
    "with refill and carried groups": (
        *DYNAMIC, "optimization.minibatches=1", "optimization.prompts_per_step=5", "checkpoint.every_n_steps=3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=pytest.mark.slow if settings is AHEAD else ())
        for name, settings in BESIDE.items()
    ],
)
def test_sampling_while_training_gives_the_run_that_samples_first(tmp_path: Path, settings: tuple[str, ...]) -> None:
    assert issubclass(Elsewhere, SendingSampler)
    train(tmp_path / "first", *settings)
    sent = elsewhere(tmp_path / "beside", *settings)
    rollouts = 1 + len(sent)
    assert sent == [f"sent {index}" for index in range(1, rollouts)]
    assert_same_run(tmp_path / "first", tmp_path / "beside")
    steps = [line["step"] for line in metric_lines(tmp_path / "first") if line["step"]]
    assert rollouts == len(steps)
    for line in map(json.loads, (tmp_path / "beside" / "metrics.jsonl").read_text().splitlines()):
        times = {name: value for name, value in line.items() if name.startswith("time/")}
        if "time/step_seconds" in times:
            assert sum(times.values()) == pytest.approx(2 * times["time/step_seconds"], rel=1e-6)
        assert "throughput/sampled_tokens_per_second" not in line, "the phase is only what was waited for"


def test_dynamic_sampling_ahead_carries_groups_that_are_corrected_like_the_others(tmp_path: Path) -> None:
    train(tmp_path / "run", *DYNAMIC)
    lines = metric_lines(tmp_path / "run")
    carried = [line for line in lines if line.get("sampling/carried_groups", 0) > 0]
    assert carried
    assert {line["reward/equal_groups"] for line in lines} == {0}
    for line in carried:
        assert line["generation/staleness"] == (2 if line["step"] == 3 else 4)  # one rollout more than its fresh groups
        assert line["policy/ratio_max"] == 1.0
        assert line["mismatch/raw_max"] > 1 + 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        ("checkpoint.every_n_steps=null",),
        ("checkpoint.every_n_steps=1",),
        ("evaluation.enabled=true", "evaluation.every_n_steps=2", "checkpoint.every_n_steps=null"),
    ],
    ids=["when it is to train", "when the run is saved", "when it is evaluated"],
)
def test_what_does_not_come_stops_the_run_which_is_saved_and_goes_on(
    ahead: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Rollout 2 is sent for after the first step; the error is met where it is waited for."""
    with (
        patch.object(Elsewhere, "failing", 2),
        pytest.raises(GenerationError, match=r"rollout 2 does not come\. The run is saved at step 2; ") as caught,
    ):
        elsewhere(tmp_path / "run", *AHEAD, *settings)
    folder = checkpoint_of(tmp_path / "run")
    assert str(caught.value).endswith(f"continue it with checkpoint.resume_from={folder}")
    states = state_of(folder).states
    assert states["rollout_ahead"] == {"rollout": None}
    assert states["data"]["offset"] == 2 * PROMPTS
    elsewhere(tmp_path / "later", *AHEAD, resume_from=folder)
    # it comes from the weights of now: those that it would have come from are gone
    assert versions(tmp_path / "later") == {1: {0}, 2: {0}, 3: {2}, 4: {2}, 5: {3}}
    rows = [line["row_id"] for line in completion_lines(tmp_path / "later")]
    assert rows == [line["row_id"] for line in completion_lines(ahead)]


def test_what_has_come_is_kept_when_the_one_after_it_does_not(ahead: Path, tmp_path: Path) -> None:
    class Deaf(LocalGenerator):
        def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
            if self._rollout == 3:
                raise GenerationError("rollout 3 does not come")
            return super().__call__(prompts, num_samples, per_prompt_counts)

    with patch.object(samplers, "LocalGenerator", Deaf), pytest.raises(GenerationError, match="saved at step 2"):
        train(tmp_path / "run", *AHEAD)
    train(tmp_path / "later", *AHEAD, resume_from=tmp_path / "run")
    assert_same_run(ahead, tmp_path / "later")


@pytest.mark.parametrize("sampler", [LocalGenerator, Elsewhere], ids=["sampled first", "in flight"])
def test_a_run_that_is_told_to_stop_keeps_what_is_sampled_ahead(
    ahead: Path, tmp_path: Path, sampler: type[LocalGenerator]
) -> None:
    """Between two steps that save nothing, with the rollout of the next one still out where a sampler is sent for it."""
    seldom = (*AHEAD, "checkpoint.every_n_steps=null")
    Elsewhere.flying = {}
    with patch.object(samplers, "LocalGenerator", sampler):
        stopped = run_from_config(configured(tmp_path / "run", *seldom), watchers=[Sends(3, signal.SIGTERM)])
        assert (stopped.global_step, stopped.stopped) == (3, StopCause.terminate)
        assert state_of(checkpoint_of(tmp_path / "run")).states["rollout_ahead"]["rollout"]["version"] == 2
        train(tmp_path / "run", *seldom, resume_from=tmp_path / "run")
    assert_same_run(ahead, tmp_path / "run")


@pytest.mark.parametrize("sampler", [LocalGenerator, Elsewhere], ids=["sampled first", "in flight"])
def test_a_run_that_meets_numbers_that_are_not_finite_keeps_both_of_its_rollouts(
    tmp_path: Path, sampler: type[LocalGenerator]
) -> None:
    """The one that the step would have trained on, and the one that was asked for before."""
    bad = (*AHEAD, *only_reward("overflows_in_two_steps"), "optimization.learning_rate=0.01")
    seldom, skip = (*bad, "checkpoint.every_n_steps=null"), "run.on_nonfinite=skip"
    train(tmp_path / "whole", *seldom, skip)
    first = next(line["step"] for line in metric_lines(tmp_path / "whole") if "loss/total" not in line)
    assert first == 3, "what the weights of step 1 sampled"
    Elsewhere.flying = {}
    with patch.object(samplers, "LocalGenerator", sampler):
        with pytest.raises(NonFiniteError, match="The run is saved at step 2; continue it with"):
            train(tmp_path / "run", *seldom)
        states = state_of(checkpoint_of(tmp_path / "run")).states
        assert states["rollout"]["experience"]["version"] == 1
        assert states["rollout_ahead"]["rollout"]["version"] == 2
        train(tmp_path / "run", *seldom, skip, resume_from=tmp_path / "run")
    # a run that stops has nothing to count
    assert_same_run(tmp_path / "whole", tmp_path / "run", but="optim/skipped_nonfinite")


def test_a_run_ahead_is_resumed_only_as_one(ahead: Path, tmp_path: Path) -> None:
    config = configured(tmp_path / "run", *PLAIN, resume_from=checkpoint_of(ahead, 2))
    with pytest.raises(Exception, match=r"generation\.async_steps: 1 in the checkpoint, 0 now"):
        run_from_config(config)


def test_what_went_wrong_in_sampling_stands_on_the_line_of_the_rollout_it_went_wrong_in(tmp_path: Path) -> None:
    class Short(LocalGenerator):
        """Gives one completion too few of a prompt of the third rollout, at first."""

        def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
            texts, records = super().__call__(prompts, num_samples, per_prompt_counts)
            if self._rollout == 2 and per_prompt_counts is None:
                texts[0], records[0] = texts[0][:-1], records[0][:-1]
            return texts, records

    with patch.object(samplers, "LocalGenerator", Short):
        train(tmp_path / "run", *AHEAD)
    assert [line["generation/partial_prompts"] for line in metric_lines(tmp_path / "run")] == [0, 0, 1, 0, 0]
    train(tmp_path / "later", *AHEAD, resume_from=checkpoint_of(tmp_path / "run", 2))
    assert_same_run(tmp_path / "run", tmp_path / "later")
