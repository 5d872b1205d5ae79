from pathlib import Path

from maxent_grpo.config.logging import Console, LoggingConfig
from maxent_grpo.report.read import read_jsonl
from maxent_grpo.telemetry.writers import ReportWriter, build_logging


def test_a_run_leaves_its_record(tmp_path: Path) -> None:
    handles = build_logging(
        LoggingConfig(console=Console.silent, completions_every=2, completions_per_step=1), tmp_path
    )
    handles.start(3, 0)
    handles.write_metrics(0, {"eval/pass@1": 0.5})
    picture = (tmp_path / "report.png").read_bytes()
    for step in range(1, 4):
        handles.write_metrics(step, {"reward/mean": 0.25 * step})
        handles.write_completions(step, [{"row_id": "a", "utility": 1.0}, {"row_id": "b", "utility": 0.0}])
    handles.write_note("half way")
    handles.flush()
    assert (tmp_path / "report.png").read_bytes() == picture
    handles.close()
    assert (tmp_path / "report.png").read_bytes() != picture
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert read_jsonl(tmp_path / "completions.jsonl") == [{"step": 2, "row_id": "a", "utility": 1.0}]
    assert "half way" in (tmp_path / "run.log").read_text()


def test_what_is_switched_off_is_not_written(tmp_path: Path) -> None:
    handles = build_logging(LoggingConfig(console=Console.silent, completions_every=0, report=False), tmp_path)
    handles.start(1, 0)
    handles.write_metrics(1, {"eval/pass@1": 0.5})
    handles.write_completions(1, [{"row_id": "a"}])
    handles.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.log"]


def test_a_run_that_wrote_nothing_has_no_picture(tmp_path: Path) -> None:
    ReportWriter(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
