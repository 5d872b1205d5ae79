from pathlib import Path

import pytest

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import (
    evaluated_ks,
    metric_series,
    read_identity,
    read_jsonl,
    read_metrics,
    runs_in,
    sweep_of,
)


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a/b": 2.5}\n{"step": 2, "a/b"')
    assert read_jsonl(path) == [{"step": 1, "a/b": 2.5}]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("line", ["{broken", "[1, 2]", '{"step": 1, "a/b": NaN}', '{"step": 1, "a/b": -Infinity}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(DataError, match="line 2"):
        read_jsonl(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl does not exist"):
        read_metrics(tmp_path)


def test_metrics_without_a_step_are_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"reward/mean": 1.0}\n')
    with pytest.raises(DataError, match="no whole-numbered step"):
        read_metrics(tmp_path)


def test_a_series_takes_the_lines_that_have_the_metric() -> None:
    rows = [{"step": 0, "eval/pass@1": 0.5}, {"step": 1, "reward/mean": 1}, {"step": 2, "eval/pass@1": 0.75}]
    assert metric_series(rows, "eval/pass@1") == ([0, 2], [0.5, 0.75])


def test_evaluated_ks_are_numbers_in_order() -> None:
    row = {"step": 0, "eval/pass@16": 1.0, "eval/pass@1": 0.5, "eval/coverage@8": 0.1, "eval/pass@2": 0.6}
    assert evaluated_ks([row], "pass") == [1, 2, 16]


def test_identity_comes_from_the_configuration(tmp_path: Path) -> None:
    run = tmp_path / "some-run"
    run.mkdir()
    assert read_identity(run).label == "some-run"
    (run / "config.yaml").write_text("# options: model=tiny scoring=dr_grpo\nseed: 7\nscoring:\n  kl_beta: 0.0\n")
    identity = read_identity(run)
    assert (identity.method, identity.seed, identity.folder, identity.label) == ("dr_grpo", 7, "some-run", "dr_grpo")


def test_the_runs_of_a_sweep_are_found_where_its_folders_are_nested(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    names = ["2-b", "10-a", "grpo/0-c", "grpo/1-d"]
    for name in [*names, "2-b/sub", ".set_aside/2-b.1", "a/b/c"]:
        (sweep / name).mkdir(parents=True)
        (sweep / name / "config.yaml").touch()
    assert runs_in(sweep) == [sweep / "2-b", sweep / "10-a"]  # a folder of runs, not known to be a sweep
    (sweep / "sweep.json").touch()
    assert runs_in(sweep) == [sweep / name for name in names]
    assert {sweep_of(sweep / name) for name in names} == {sweep}
    assert sweep_of(sweep) is None
