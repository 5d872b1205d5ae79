import logging

import pytest
from support.identical import assert_identical

from maxent_grpo.config.checkpoint import MetricGoal
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.checkpoint.best import BestTracker
from maxent_grpo.training.checkpoint.codec import load_tree, save_tree


def outcomes(tracker: BestTracker, values: list[float]) -> list[tuple[bool, bool]]:
    return [tracker.update({"eval/pass@8": value, "eval/other": 0.0}) for value in values]


def test_the_best_is_strictly_better_than_all_before_it() -> None:
    tracker = BestTracker("eval/pass@8")
    found = outcomes(tracker, [0.2, 0.2, 0.5, 0.4, 0.6])
    assert [is_best for is_best, _ in found] == [True, False, True, False, True]
    assert not any(should_stop for _, should_stop in found)
    assert tracker.best == 0.6


def test_a_smaller_value_is_better_under_the_goal_min() -> None:
    found = outcomes(BestTracker("eval/pass@8", MetricGoal.min), [0.5, 0.6, 0.4])
    assert [is_best for is_best, _ in found] == [True, False, True]


def test_training_stops_after_patience_evaluations_in_a_row_without_a_better_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        found = outcomes(BestTracker("eval/pass@8", MetricGoal.max, patience=2), [0.5, 0.4, 0.6, 0.6, 0.1, 0.0])
    assert [should_stop for _, should_stop in found] == [False, False, False, False, True, True]
    assert caplog.messages[0] == "early stop: no better eval/pass@8 in 2 evaluations"


def test_nan_is_never_the_best_and_counts_towards_the_patience() -> None:
    nan = float("nan")
    tracker = BestTracker("eval/pass@8", patience=2)
    assert outcomes(tracker, [nan, 0.1, nan, nan]) == [(False, False), (True, False), (False, False), (False, True)]
    assert tracker.best == 0.1


def test_without_a_metric_nothing_is_best_and_nothing_stops() -> None:
    assert BestTracker(None).update({"eval/pass@8": 1.0}) == (False, False)


def test_a_missing_metric_names_the_evaluation_metrics_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        BestTracker("eval/pass@9").update({"eval/pass@8": 0.1, "reward/mean": 0.2, "eval/coverage@8": 0.3})
    assert caught.value.problems == [
        "checkpoint.best_metric=eval/pass@9 is not among the evaluation metrics, so no checkpoint can be the best; "
        "available: eval/coverage@8, eval/pass@8"
    ]
    with pytest.raises(ConfigError, match="available: none at all"):
        BestTracker("eval/pass@9").update({"reward/mean": 0.2})


@pytest.mark.parametrize(
    ("metric", "patience", "sentence"),
    [("eval/pass@8", 0, "early_stop_patience=0 must be at least 1"), (None, 3, "set checkpoint.best_metric")],
)
def test_a_patience_that_cannot_act_is_refused(metric: str | None, patience: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BestTracker(metric, MetricGoal.max, patience)


@pytest.mark.parametrize("stop_after", range(6))
def test_a_restored_tracker_goes_on_as_if_never_stopped(tmp_path, stop_after: int) -> None:
    values = [0.1 + 0.2, 0.3, 0.5, 0.4, 0.4, 0.3]
    straight = BestTracker("eval/pass@8", patience=2)
    expected = outcomes(straight, values)
    first = BestTracker("eval/pass@8", patience=2)
    found = outcomes(first, values[:stop_after])
    save_tree(first.state_dict(), tmp_path, "early_stopping")
    second = BestTracker("eval/pass@8", patience=2)
    second.load_state_dict(load_tree(tmp_path, "early_stopping"))
    assert found + outcomes(second, values[stop_after:]) == expected
    assert_identical(second.state_dict(), straight.state_dict())


def test_a_state_of_another_metric_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    other = BestTracker("eval/coverage@8")
    other.update({"eval/coverage@8": 0.9})
    tracker = BestTracker("eval/pass@8")
    with caplog.at_level(logging.WARNING):
        tracker.load_state_dict(other.state_dict())
    assert tracker.best is None
    assert "the search for the best eval/pass@8 (max) starts anew" in caplog.text
