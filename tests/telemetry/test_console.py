import io
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console as Terminal
from support.synthetic_run import write_run

from maxent_grpo.config.logging import Console
from maxent_grpo.telemetry.console import LiveConsole, PlainConsole, SilentConsole, build_console
from maxent_grpo.telemetry.progress import (
    Progress,
    bar,
    closing_lines,
    evaluation_line,
    evaluation_table,
    format_duration,
    live_line,
    plain_line,
    resume_command,
)

METRICS = {"reward/mean": 0.61234, "policy/entropy": 0.75, "throughput/tokens_per_second": 2345.6}
EVALUATION = {"eval/pass@1": 0.5, "eval/pass@8": 0.9, "eval/coverage@1": 0.1, "eval/coverage@8": 0.42}


class Clock:
    """A clock that moves when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_durations_read_like_a_clock() -> None:
    assert [format_duration(s) for s in (None, 0, 9.6, 75, 3725)] == ["-", "0:00", "0:10", "1:15", "1:02:05"]


def test_a_bar_fills_with_the_run() -> None:
    assert [bar(f, 8, is_ascii=True) for f in (0, 0.5, 1)] == ["--------", "####----", "########"]


def test_plain_lines_keep_their_columns() -> None:
    early = plain_line(Progress(1, 200, METRICS, None))
    late = plain_line(Progress(200, 200, METRICS | {"eval/pass@1": 0.5}, 61.0))
    assert early == "step   1/200  reward  0.612  pass@1     -  eta       -  entropy  0.750  tokens/s   2,346"
    assert len(early) == len(late)
    assert late.index("entropy") == early.index("entropy")


@pytest.mark.parametrize("width", [8, 20, 30, 45, 60, 80, 120])
def test_a_live_line_never_exceeds_the_terminal(width: int) -> None:
    line = live_line(Progress(37, 200, METRICS | EVALUATION, 61.0), width)
    assert len(line) <= width
    assert line.startswith("step 37/200"[:width])


def test_a_live_line_gives_up_the_least_important_first() -> None:
    progress = Progress(37, 200, METRICS | EVALUATION, 61.0)
    wide = live_line(progress, 120, is_ascii=True)
    assert wide.startswith("step 37/200  ######------------------------  reward 0.612  pass@1 0.500  eta 1:01")
    assert "tokens/s 2,346" in wide
    assert live_line(progress, 52, is_ascii=True) == "step 37/200  ##---------  reward 0.612  pass@1 0.500"
    assert live_line(progress, 40) == "step 37/200  reward 0.612  pass@1 0.500"


def test_an_evaluation_shows_every_pass_and_the_widest_coverage() -> None:
    assert evaluation_line(50, 200, EVALUATION) == "eval  50/200  pass@1 0.500  pass@8 0.900  coverage@8 0.420"


def test_the_table_sets_the_last_evaluation_against_the_first() -> None:
    after = {"eval/pass@1": 0.625, "eval/pass@8": 0.85, "eval/coverage@8": 0.5}
    assert evaluation_table(EVALUATION, after, (0, 200)) == [
        "evaluation   step 0  step 200   change",
        "pass@1        0.500     0.625   +0.125",
        "pass@8        0.900     0.850   -0.050",
        "coverage@8    0.420     0.500   +0.080",
    ]


def test_the_resume_command_survives_shell_and_hydra() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert resume_command(Path("outputs/a/12-00-00")) == "python train.py checkpoint.resume_from=outputs/a/12-00-00"
    import shlex

    for folder in ("outputs/x/0-seed=1,scoring=maxent", "outputs/it's here", "outputs/(a)"):
        words = shlex.split(resume_command(Path(folder)))
        assert len(words) == 3
        assert OverridesParser.create().parse_override(words[2]).value() == folder


def test_a_run_of_several_processes_is_continued_by_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    script = "train.py checkpoint.resume_from=outputs/a"
    assert resume_command(Path("outputs/a")) == f"torchrun --nproc_per_node 4 {script}"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert resume_command(Path("outputs/a")) == f"torchrun --nnodes 2 RENDEZVOUS --nproc_per_node 2 {script}"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/maxent-grpo"])
    assert "--nproc_per_node 2 --no-python maxent-grpo checkpoint." in resume_command(Path("outputs/a"))


def test_the_end_says_where_to_look(tmp_path: Path) -> None:
    progress = Progress(7, 200, {}, None)
    assert closing_lines(progress, tmp_path, []) == ["ended at step 7 of 200", "", f"run directory  {tmp_path}"]
    for name in ("report.html", "report.png", "metrics.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").touch()
    (tmp_path / "model").mkdir()
    lines = closing_lines(Progress(200, 200, {}, None), tmp_path, [(0, EVALUATION), (200, EVALUATION)])
    assert lines[0] == "finished 200 steps"
    assert lines[-5:] == [
        f"open           {tmp_path / 'report.html'}",
        f"picture        {tmp_path / 'report.png'}",
        f"metrics        {tmp_path / 'metrics.jsonl'}",
        f"trained model  {tmp_path / 'model'}",
        f"continue it    {resume_command(tmp_path)}",
    ]


def test_plain_prints_at_most_a_line_a_second_and_every_evaluation(tmp_path: Path) -> None:
    out, clock = io.StringIO(), Clock()
    console = PlainConsole(tmp_path, out, clock)
    console.start(100, 0)
    console.write_metrics(0, EVALUATION)
    for step in range(1, 101):
        clock.now += 0.1
        console.write_metrics(step, METRICS | (EVALUATION if step == 55 else {}))
    console.write_note("a sentence")
    lines = out.getvalue().splitlines()
    shown = [int(line.split("/")[0].removeprefix("step")) for line in lines if line.startswith("step")]
    assert shown[0] == 1
    assert shown[-1] == 100
    assert 10 <= len(shown) <= 12
    assert [line[:12] for line in lines if line.startswith("eval")] == ["eval   0/100", "eval  55/100"]
    assert lines[-1] == "a sentence"
    console.close()
    console.close()
    assert out.getvalue().count("finished 100 steps") == 1


def test_the_expected_time_counts_steps_and_not_the_first_evaluation(tmp_path: Path) -> None:
    out, clock = io.StringIO(), Clock()
    console = PlainConsole(tmp_path, out, clock)
    console.start(50, 10)
    clock.now += 500
    console.write_metrics(10, EVALUATION)
    clock.now += 20
    console.write_metrics(20, METRICS)
    assert "eta    1:00" in out.getvalue()
    console.close()


def test_a_resumed_run_compares_with_the_very_first_evaluation(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", num_steps=4, every=2), io.StringIO()
    console = PlainConsole(run, out, Clock())
    console.start(8, 4)
    console.write_metrics(8, METRICS | EVALUATION)
    console.close()
    assert "evaluation   step 0   step 8   change" in out.getvalue()
    assert "pass@1        0.562    0.500   -0.062" in out.getvalue()


def test_warnings_of_the_package_are_shown_while_the_console_is_open(tmp_path: Path) -> None:
    out = io.StringIO()
    console = PlainConsole(tmp_path, out, Clock())
    logger = logging.getLogger("maxent_grpo.training.generation")
    logger.warning("asked %d prompts again", 2)
    console.close()
    logger.warning("too late")
    assert out.getvalue().splitlines() == ["warning: asked 2 prompts again", ""]


def test_live_keeps_notes_above_the_line_and_colours_only_if_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show() -> str:
        out = io.StringIO()
        console = LiveConsole(tmp_path, Terminal(file=out, force_terminal=True, width=60, highlight=False), Clock())
        console.start(20, 0)
        console.write_note("[bold]as written[/bold]")
        console.write_metrics(10, METRICS | EVALUATION)
        console.write_note("later")
        console.close()
        console.close()
        return out.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = show()
    assert "\x1b[36m" in coloured
    assert "[bold]as written[/bold]" in coloured
    assert "eval 10/20  pass@1 0.500" in coloured
    assert coloured.index("as written") < coloured.index("later") < coloured.index("ended at step 10 of 20")
    assert coloured.count("ended at step") == 1
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in show()


def test_the_mode_chooses_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(mode: Console) -> type:
        console = build_console(mode, tmp_path)
        console.close()
        return type(console)

    assert kind(Console.live) is LiveConsole
    assert kind(Console.plain) is PlainConsole
    assert kind(Console.silent) is SilentConsole
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert kind(Console.auto) is LiveConsole
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert kind(Console.auto) is PlainConsole
