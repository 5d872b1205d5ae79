"""What a person is told of a run, as text: the progress line, the evaluation line and the closing lines. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maxent_grpo.config.installed import train_command
from maxent_grpo.config.quoting import setting_word
from maxent_grpo.launched import launched_alike
from maxent_grpo.report.read import METRICS_FILE, PAGE_FILE, PICTURE_FILE, evaluated_ks

MISSING = "-"


def format_duration(seconds: float | None) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``; a dash when unknown."""
    if seconds is None:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _format_metric(metrics: Mapping[str, float], name: str, spec: str) -> str:
    return format(metrics[name], spec) if name in metrics else MISSING


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: step of total, the newest value of every metric, and the expected seconds to its end."""

    step: int
    total: int
    latest: Mapping[str, float]
    eta_seconds: float | None

    @property
    def fraction(self) -> float:
        """Share of the run that is done, between 0 and 1."""
        return min(self.step / self.total, 1.0) if self.total else 1.0


def _fields(progress: Progress) -> list[tuple[str, str, int]]:
    """(label, value, width) of each figure, the most important first."""
    latest = progress.latest
    return [
        ("reward", _format_metric(latest, "reward/mean", ".3f"), 6),
        ("pass@1", _format_metric(latest, "eval/pass@1", ".3f"), 5),
        ("eta", format_duration(progress.eta_seconds), 7),
        ("entropy", _format_metric(latest, "policy/entropy", ".3f"), 6),
        ("tokens/s", _format_metric(latest, "throughput/tokens_per_second", ",.0f"), 7),
    ]


def plain_line(progress: Progress) -> str:
    """One aligned line for a log: the same columns at every step, a dash for what was not measured."""
    digits = len(str(progress.total))
    figures = "  ".join(f"{label} {value:>{width}}" for label, value, width in _fields(progress))
    return f"step {progress.step:>{digits}}/{progress.total}  {figures}"


def bar(fraction: float, width: int, is_ascii: bool = False) -> str:
    """A bar of ``width`` characters of which ``fraction`` is filled."""
    full, empty = ("#", "-") if is_ascii else ("━", "╌")
    filled = round(fraction * width)
    return full * filled + empty * (width - filled)


def live_line(progress: Progress, width: int, is_ascii: bool = False) -> str:
    """The progress line for a terminal ``width`` columns wide.

    Figures, least important last, give way to fit; the bar has at least 10 columns on a terminal of 50 or more, else none.
    """
    counter = f"step {progress.step}/{progress.total}"
    figures = [f"{label} {value}" for label, value, _ in _fields(progress) if value != MISSING]
    separator = "  "
    reserved = 10 + len(separator) if width >= 50 else 0
    while figures and len(separator.join([counter, *figures])) + reserved > width:
        figures.pop()
    line = separator.join([counter, *figures])
    room = min(width - len(line) - len(separator), 30)
    if reserved and room > 0:
        line = separator.join([counter, bar(progress.fraction, room, is_ascii), *figures])
    return line[:width]


def evaluation_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """The headline numbers of an evaluation by label: pass@k for every k, then coverage@k of the largest k."""
    names = [f"pass@{k}" for k in evaluated_ks([metrics], "pass")]
    names += [f"coverage@{k}" for k in evaluated_ks([metrics], "coverage")[-1:]]
    return {name: metrics[f"eval/{name}"] for name in names}


def evaluation_line(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """One line for an evaluation."""
    figures = "  ".join(f"{name} {value:.3f}" for name, value in evaluation_figures(metrics).items())
    return f"eval {step:>{len(str(total))}}/{total}  {figures}".rstrip()


def evaluation_table(first: Mapping[str, float], last: Mapping[str, float], steps: tuple[int, int]) -> list[str]:
    """A small table of the first evaluation against the last, at ``steps``."""
    before, after = evaluation_figures(first), evaluation_figures(last)
    names = [name for name in after if name in before]
    if not names:
        return []
    width = max(len(name) for name in names)
    heads = [f"step {step}" for step in steps]
    columns = [max(len(head), 7) for head in heads]
    lines = [f"{'evaluation':<{max(width, 10)}}  {heads[0]:>{columns[0]}}  {heads[1]:>{columns[1]}}  {'change':>7}"]
    for name in names:
        change = after[name] - before[name]
        lines.append(
            f"{name:<{max(width, 10)}}  {before[name]:>{columns[0]}.3f}  {after[name]:>{columns[1]}.3f}  {change:>+7.3f}"
        )
    return lines


def resume_command(run_dir: Path) -> str:
    """The shell command that continues the run, in as many processes as it has now."""
    return launched_alike(f"{train_command()} {setting_word('checkpoint.resume_from', str(run_dir))}")


def where_to_look(run_dir: Path) -> list[str]:
    """What the run left behind, and how to continue it if it left a checkpoint."""
    lines = [f"run directory  {run_dir}"]
    if (run_dir / PAGE_FILE).is_file():
        lines.append(f"open           {run_dir / PAGE_FILE}")
    if (run_dir / PICTURE_FILE).is_file():
        lines.append(f"picture        {run_dir / PICTURE_FILE}")
    if (run_dir / METRICS_FILE).is_file():
        lines.append(f"metrics        {run_dir / METRICS_FILE}")
    if (run_dir / "model").is_dir():
        lines.append(f"trained model  {run_dir / 'model'}")
    if (run_dir / "checkpoints" / "latest").is_file():
        lines.append(f"continue it    {resume_command(run_dir)}")
    return lines


def closing_lines(
    progress: Progress, run_dir: Path, evaluations: Sequence[tuple[int, Mapping[str, float]]]
) -> list[str]:
    """Everything said at the end: how far the run came, first against last evaluation, and where to look."""
    reached_end = progress.step >= progress.total
    lines = [
        f"finished {progress.total} steps" if reached_end else f"ended at step {progress.step} of {progress.total}"
    ]
    if len(evaluations) > 1:
        (first_step, first), (last_step, last) = evaluations[0], evaluations[-1]
        lines += ["", *evaluation_table(first, last, (first_step, last_step))]
    return [*lines, "", *where_to_look(run_dir)]
