from pathlib import Path

import pytest

from maxent_grpo.errors import ConfigError
from maxent_grpo.report.read import read_jsonl
from maxent_grpo.telemetry.files import MetricsFile
from maxent_grpo.telemetry.history import AdoptedHistory, adopt_history


def make_run(run_dir: Path, torn: str = "") -> Path:
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "a/b": 0.1}}\n' for n in range(6)) + torn)
    lines = "".join(f'{{"step": {n}, "row_id": "{row}"}}\n' for n in (2, 4) for row in "xy")
    (run_dir / "completions.jsonl").write_text(lines)
    (run_dir / "evaluations.jsonl").write_text("".join(f'{{"step": {n}, "row_id": "z"}}\n' for n in (0, 5)))
    return run_dir


def steps(run_dir: Path, name: str) -> list[int]:
    return [row["step"] for row in read_jsonl(run_dir / name)]


def test_a_new_folder_starts_with_the_lines_up_to_the_step(tmp_path: Path) -> None:
    source, target = make_run(tmp_path / "a", torn='{"step": 6, "a/'), tmp_path / "b"
    target.mkdir()
    before = (source / "metrics.jsonl").read_bytes()
    assert adopt_history(source, target, 3) == AdoptedHistory(num_kept=7, num_left=5)
    assert steps(target, "metrics.jsonl") == [0, 1, 2, 3]
    assert steps(target, "completions.jsonl") == [2, 2]
    assert steps(target, "evaluations.jsonl") == [0]
    assert (target / "metrics.jsonl").read_bytes() == b"".join(before.splitlines(keepends=True)[:4])
    assert (source / "metrics.jsonl").read_bytes() == before


def test_the_same_folder_is_cut_back_in_place_and_can_go_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", torn='{"step": 6, "a/')
    adopt_history(run, tmp_path / "a" / ".." / "a", 2)
    assert steps(run, "metrics.jsonl") == [0, 1, 2]
    assert steps(run, "completions.jsonl") == [2, 2]
    assert steps(run, "evaluations.jsonl") == [0]
    file = MetricsFile(run)
    file.write_metrics(3, {"a/b": 1.0})
    file.close()
    assert steps(run, "metrics.jsonl") == [0, 1, 2, 3]
    assert sorted(path.name for path in run.iterdir()) == [
        "completions.jsonl",
        "evaluations.jsonl",
        "metrics.jsonl",
    ]


def test_a_record_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    source, target = make_run(tmp_path / "a"), tmp_path / "b"
    target.mkdir()
    (source / "completions.jsonl").unlink()
    (source / "evaluations.jsonl").unlink()
    adopt_history(source, target, 100)
    assert [path.name for path in target.iterdir()] == ["metrics.jsonl"]
    assert steps(target, "metrics.jsonl") == [0, 1, 2, 3, 4, 5]


def test_another_record_is_never_replaced(tmp_path: Path) -> None:
    source, target = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    with pytest.raises(ConfigError, match="already holds metrics"):
        adopt_history(source, target, 3)
    assert steps(target, "metrics.jsonl") == [0, 1, 2, 3, 4, 5]
