import subprocess
import sys
from pathlib import Path

import pytest
from support.synthetic_arms import write_arms
from support.synthetic_run import write_rich_run, write_run

from maxent_grpo.commands.report import main


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_a_run_gets_its_page_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_rich_run(tmp_path / "run", 24)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    main([str(run)])
    assert capsys.readouterr().out == f"wrote {run / 'report.html'}\nwrote {run / 'report.png'}\n"
    after = {path.name: path.read_bytes() for path in run.iterdir()}
    assert after.keys() - before.keys() == {"report.html", "report.png"}
    assert {name: after[name] for name in before} == before


def test_several_runs_get_a_folder_each(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 4, 2) for name in ("a", "b")]
    main([*map(str, runs), "--each", "--output", str(tmp_path / "reports")])
    assert sorted(str(path.relative_to(tmp_path / "reports")) for path in (tmp_path / "reports").rglob("*.*")) == [
        "a/report.html", "a/report.png", "b/report.html", "b/report.png",
    ]  # fmt: skip
    assert not (runs[0] / "report.html").exists()


def test_what_is_no_run_is_named_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 2, 1)
    (tmp_path / "empty").mkdir()
    assert refusal([str(run), str(tmp_path / "empty")], capsys) == (
        f"python -m maxent_grpo report: {tmp_path}/empty is not the directory of a run that has started: it has no "
        "metrics.jsonl, which a report is made from\n"
    )
    assert not (run / "report.html").exists()
    assert refusal([str(tmp_path / "nowhere")], capsys) == (
        f"python -m maxent_grpo report: {tmp_path}/nowhere is not a folder: name the directory of a run, such as "
        "outputs/DAY/TIME\n"
    )


def test_reports_that_would_replace_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / day / "same", 2, 1) for day in ("monday", "tuesday")]
    said = refusal([*map(str, runs), "--each", "--output", str(tmp_path / "reports")], capsys)
    assert "several runs are in folders called same" in said


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 2, 1)
    (tmp_path / "taken").write_text("a file")
    said = refusal([str(run), "--output", str(tmp_path / "taken")], capsys)
    assert "cannot be written into" in said
    assert said.count("\n") == 1


def test_a_damaged_run_is_refused_with_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2, 1)
    (run / "metrics.jsonl").write_text("{broken\n")
    command = [sys.executable, "-m", "maxent_grpo", "report", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"python -m maxent_grpo report: {run}/metrics.jsonl, line 1 is not a JSON object")
    assert done.stderr.count("\n") == 1


def test_the_page_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, browser = write_run(tmp_path / "run", 2, 1), tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    code = f"from maxent_grpo.commands.report import main; main(['{run}', '--open', '--output', '{tmp_path}/one'])"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (tmp_path / "opened").read_text() == f"{(tmp_path / 'one' / 'report.html').as_uri()}\n"


def test_a_sweep_a_pattern_or_several_runs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = write_arms(tmp_path / "sweep", seeds=(0, 1))
    waiting = tmp_path / "sweep" / "9-waiting"
    waiting.mkdir()
    (waiting / "config.yaml").write_text("seed: 5\n")
    monkeypatch.chdir(tmp_path)
    main(["sweep", "--baseline", "dr_grpo"])
    assert capsys.readouterr().out == "wrote sweep/comparison.html\nwrote sweep/comparison.png\n"
    page = (tmp_path / "sweep" / "comparison.html").read_text()
    assert "<h1>scoring=maxent against scoring=dr_grpo</h1>" in page
    assert "sweep/9-waiting is left out: it has no metrics.jsonl yet." in page
    pictures = (tmp_path / "sweep" / "comparison.png").read_bytes()
    main(["sweep/*", "--output", "there", "--x", "tokens"])
    assert capsys.readouterr().out == "wrote there/comparison.html\nwrote there/comparison.png\n"
    assert "Horizontal: prompt and completion tokens" in (tmp_path / "there" / "comparison.html").read_text()
    assert (tmp_path / "there" / "comparison.png").read_bytes() != pictures, "another baseline"
    assert not any((run / "report.html").exists() for run in runs)


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_arms(tmp_path / "sweep", seeds=(0,))
    arguments = [*map(str, runs), "--output", str(tmp_path / "out")]
    said = refusal([*arguments, "--baseline", "rloo"], capsys)
    assert said == (
        "python -m maxent_grpo report: --baseline rloo is no arm; there are: scoring=maxent, scoring=dr_grpo\n"
    )
    assert "fits no folder" in refusal([str(tmp_path / "nothing*")], capsys)
    assert refusal([], capsys).endswith("name a run, the folder of a sweep, or --all\n")
    for run in runs:
        (run / "metrics.jsonl").unlink()
    assert "no run has started there" in refusal([str(tmp_path / "sweep")], capsys)
    assert not (tmp_path / "out").exists()


def test_all_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "outputs" / "run", 4, 2)
    main(["--all", str(tmp_path / "outputs")])
    assert capsys.readouterr().out == f"wrote {tmp_path}/outputs/index.html\n"
    assert "1 run, 0 finished" in (tmp_path / "outputs" / "index.html").read_text()
    assert "is not a folder" in refusal(["--all", str(tmp_path / "none")], capsys)
    assert "leave --output out" in refusal(["--all", str(tmp_path / "outputs"), "--output", "x"], capsys)
