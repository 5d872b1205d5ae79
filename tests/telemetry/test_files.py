import json
import logging
from pathlib import Path

import numpy as np
import pytest

from maxent_grpo.errors import NonFiniteError
from maxent_grpo.report.read import read_jsonl
from maxent_grpo.telemetry.files import CompletionsFile, EvaluationsFile, MetricsFile


def test_a_line_holds_exact_numbers_with_the_step_first(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    values = {"b/float": 0.1 + 0.2, "a/int": 3, "c/numpy": np.float32(0.1), "d/count": np.int64(7)}
    file.write_metrics(5, values)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert (
        line
        == '{"step": 5, "a/int": 3, "b/float": 0.30000000000000004, "c/numpy": 0.10000000149011612, "d/count": 7}\n'
    )
    back = read_jsonl(tmp_path / "metrics.jsonl")[0]
    assert back["b/float"] == 0.1 + 0.2
    assert isinstance(back["a/int"], int)
    assert isinstance(back["d/count"], int)
    file.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf])
def test_a_metric_that_is_not_finite_is_refused_by_name(tmp_path: Path, value: float) -> None:
    file = MetricsFile(tmp_path)
    with pytest.raises(NonFiniteError, match=r"policy/entropy is -?(nan|inf) at step 12"):
        file.write_metrics(12, {"reward/mean": 1.0, "policy/entropy": value})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    file.write_metrics(12, {"reward/mean": 1.0})
    file.close()


def test_what_is_not_a_number_is_refused(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    with pytest.raises(TypeError, match="reward/mean at step 1 is a str"):
        file.write_metrics(1, {"reward/mean": "0.5"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="cannot be called step"):
        file.write_metrics(1, {"step": 1.0})
    file.close()


def test_no_step_is_written_twice_even_after_reopening(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.write_metrics(0, {"eval/pass@1": 0.5})
    file.write_metrics(3, {"reward/mean": 0.5})
    with pytest.raises(ValueError, match="already holds step 3"):
        file.write_metrics(3, {"reward/mean": 0.6})
    file.close()
    file.close()
    again = MetricsFile(tmp_path)
    with pytest.raises(ValueError, match="step 2 cannot be added"):
        again.write_metrics(2, {"reward/mean": 0.6})
    again.write_metrics(4, {"reward/mean": 0.6})
    again.close()
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [0, 3, 4]


def test_a_half_written_line_is_dropped_before_appending(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a/b": 1.0}\n{"step": 2, "a')
    with caplog.at_level(logging.WARNING):
        file = MetricsFile(tmp_path)
    assert "half-written line; its 14 bytes" in caplog.text
    file.write_metrics(2, {"a/b": 2.0})
    file.close()
    assert read_jsonl(path) == [{"step": 1, "a/b": 1.0}, {"step": 2, "a/b": 2.0}]


def test_every_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    for step in range(1, 4):
        file.write_metrics(step, {"reward/mean": float(step)})
        assert len(read_jsonl(tmp_path / "metrics.jsonl")) == step
    file.flush()
    file.close()


def test_completions_are_one_line_each(tmp_path: Path) -> None:
    file = CompletionsFile(tmp_path)
    records = [
        {"step": 10, "row_id": "r1", "completion": "über\n\ud800", "rewards": {"task": 1.0, "form": float("nan")}},
        {
            "step": 10,
            "row_id": "r1",
            "completion": "",
            "utility": float("nan"),
            "weight": np.float64(0.5),
            "mode": None,
        },
    ]
    file.write_completions(10, records)
    file.close()
    first, second = read_jsonl(tmp_path / "completions.jsonl")
    assert first == {
        "step": 10, "completion": "über\n\ud800", "rewards": {"form": None, "task": 1.0}, "row_id": "r1",
    }  # fmt: skip
    assert second["utility"] is None
    assert second["weight"] == 0.5
    raw = (tmp_path / "completions.jsonl").read_text().splitlines()
    assert len(raw) == 2
    assert list(json.loads(raw[0])) == ["step", "completion", "rewards", "row_id"]


def test_an_infinite_number_in_a_completion_is_refused(tmp_path: Path) -> None:
    file = CompletionsFile(tmp_path)
    records = [{"row_id": "r1", "weight": 0.5}, {"row_id": "r2", "rewards": {"task": float("-inf")}}]
    with pytest.raises(NonFiniteError, match=r"row r2 at step 3: rewards\.task is -inf"):
        file.write_completions(3, records)
    assert (tmp_path / "completions.jsonl").read_bytes() == b""
    file.write_completions(3, [])
    file.close()


def test_a_value_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    file = CompletionsFile(tmp_path)
    with pytest.raises(TypeError, match=r"extra\[1\] is a object"):
        file.write_completions(1, [{"row_id": "r", "extra": [1, object()]}])
    file.close()


def test_evaluations_are_one_line_a_row_in_a_file_that_begins_with_the_first(tmp_path: Path) -> None:
    file = EvaluationsFile(tmp_path)
    file.flush()
    file.close()
    assert list(tmp_path.iterdir()) == []
    file.write_evaluation(
        0, [{"row_id": "a", "mode_counts": {"B": 1}, "exact": {"pass@1": 0.1 + 0.2}}, {"row_id": "b"}]
    )
    with pytest.raises(ValueError, match="already holds step 0"):
        file.write_evaluation(0, [{"row_id": "a"}])
    with pytest.raises(NonFiniteError, match=r"evaluation of row a at step 5: mean_reward is inf"):
        file.write_evaluation(5, [{"row_id": "a", "mean_reward": float("inf")}])
    file.write_evaluation(5, [{"row_id": "a", "mean_reward": float("nan")}])
    file.flush()
    file.close()
    assert read_jsonl(tmp_path / "evaluations.jsonl") == [
        {"step": 0, "exact": {"pass@1": 0.1 + 0.2}, "mode_counts": {"B": 1}, "row_id": "a"},
        {"step": 0, "row_id": "b"},
        {"step": 5, "mean_reward": None, "row_id": "a"},
    ]


def test_a_half_written_evaluation_is_dropped_before_appending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"step": 1, "row_id": "a"}\n{"step": 2, "ro')
    file = EvaluationsFile(tmp_path)
    with caplog.at_level(logging.WARNING):
        file.write_evaluation(2, [{"row_id": "a"}])
    assert "half-written line" in caplog.text
    file.close()
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]
