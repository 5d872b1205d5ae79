import logging
from pathlib import Path

import pytest

from maxent_grpo.config.logging import Console, LoggingConfig
from maxent_grpo.errors import DataError
from maxent_grpo.report.read import read_jsonl
from maxent_grpo.telemetry.run_dir import PACKAGE_LOGGER
from maxent_grpo.telemetry.writers import ReportWriter, build_logging


def test_a_run_leaves_its_record(tmp_path: Path) -> None:
    handles = build_logging(
        LoggingConfig(console=Console.silent, completions_every=2, completions_per_step=1), tmp_path
    )
    handles.start(3, 0)
    handles.write_metrics(0, {"eval/pass@1": 0.5})
    assert not (tmp_path / "report.png").exists()  # the first update does not wait for matplotlib
    handles.write_metrics(1, {"reward/mean": 0.25, "eval/pass@1": 0.5})
    picture = (tmp_path / "report.png").read_bytes()
    for step in range(2, 4):
        handles.write_metrics(step, {"reward/mean": 0.25 * step})
        handles.write_completions(step, [{"row_id": "a", "utility": 1.0}, {"row_id": "b", "utility": 0.0}])
    handles.write_note("half way")
    handles.flush()
    assert (tmp_path / "report.png").read_bytes() == picture
    assert not (tmp_path / "report.html").exists()
    handles.close()
    assert (tmp_path / "report.png").read_bytes() != picture
    assert "finished: 3 of 3 steps" in (tmp_path / "report.html").read_text()
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


def test_a_run_that_wrote_nothing_has_no_report(tmp_path: Path) -> None:
    ReportWriter(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_made_is_told_and_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("report.png", "report.html"):
        (tmp_path / name / "in the way").mkdir(parents=True)
    handles = build_logging(LoggingConfig(console=Console.plain, completions_every=0), tmp_path)
    handles.start(1, 0)
    handles.write_metrics(0, {"eval/pass@1": 0.5})
    handles.write_metrics(1, {"eval/pass@1": 0.75})
    handles.close()
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [0, 1]
    for said in (capsys.readouterr().out, (tmp_path / "run.log").read_text()):
        assert said.count("report.png could not be made (IsADirectoryError") == 2
        assert said.count("report.html could not be made (IsADirectoryError") == 1
        assert f"`python -m maxent_grpo report {tmp_path}` makes it" in said


def test_a_run_that_ends_in_an_error_has_a_report_that_says_so(tmp_path: Path) -> None:
    handles = build_logging(LoggingConfig(console=Console.silent, completions_every=0), tmp_path)
    handles.start(8, 0)
    handles.write_metrics(1, {"reward/mean": 0.5})
    logging.getLogger("maxent_grpo.training.setup").error("stopped: %s", "the disk is <full>")
    handles.close()
    assert "unfinished: 1 of 8 steps (stopped: the disk is &lt;full&gt;)" in (tmp_path / "report.html").read_text()


def test_a_record_that_cannot_be_continued_leaves_no_log_behind_that_hears_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss/total": 1.0}\n')
    package = logging.getLogger(PACKAGE_LOGGER)
    before, level = list(package.handlers), package.level
    with pytest.raises(DataError, match="has a line without a whole-numbered step"):
        build_logging(LoggingConfig(console=Console.silent), tmp_path)
    assert (package.handlers, package.level) == (before, level)
