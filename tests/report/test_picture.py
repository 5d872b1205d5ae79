import json
import sys
from pathlib import Path
from subprocess import run as run_process

import numpy as np
import pytest
from matplotlib.image import imread
from support.synthetic_run import write_rich_run, write_run

from maxent_grpo.commands import compare
from maxent_grpo.errors import DataError
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.comparison import EffectPanel, comparison_figure, default_labels
from maxent_grpo.report.picture import draw_comparison, draw_picture, picture_figure
from maxent_grpo.report.series import smoothed
from maxent_grpo.stats.compare import Interval


def panels_of(figure) -> list[str]:
    return [axes.get_label() for axes in figure.axes if axes.get_label() and "<" not in axes.get_label()]


def write_lines(run_dir: Path, rows: list[dict]) -> Path:
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


def test_the_picture_of_a_run_is_large_and_not_blank(tmp_path: Path) -> None:
    path = draw_picture(write_run(tmp_path / "run", num_steps=60))
    assert path == tmp_path / "run" / "report.png"
    pixels = imread(path)[..., :3]
    assert pixels.shape[0] > 900
    assert pixels.shape[1] > 1500
    ink = (pixels < 0.9).any(axis=-1)
    thirds = [part.mean() for row in np.array_split(ink, 3) for part in np.array_split(row, 3, axis=1)]
    assert min(thirds) > 0.002
    assert [name.name for name in (tmp_path / "run").iterdir() if "partial" in name.name] == []


def test_panels_follow_what_was_measured(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", num_steps=10)
    assert panels_of(picture_figure(plain)) == [
        "evaluation", "reward", "entropy", "weights", "optimisation", "length", "time",
    ]  # fmt: skip
    metrics = {"policy/kl_to_reference": 0.02, "policy/clip_ratio_low_mean": 0.1}
    clipped = write_run(tmp_path / "clipped", num_steps=10, **metrics)
    assert {"kl", "clip"} <= set(panels_of(picture_figure(clipped)))
    assert panels_of(picture_figure(write_rich_run(tmp_path / "rich", 24))) == [
        "evaluation", "pass_by_k", "reward", "entropy", "weights", "controller", "kl", "clip", "optimisation", "length", "time",
    ]  # fmt: skip


def test_the_title_names_method_seed_and_change(tmp_path: Path) -> None:
    figure = picture_figure(write_run(tmp_path / "run", num_steps=20, method="dr_grpo", seed=3))
    title, subtitle = (text.get_text() for text in figure.texts)
    assert title == "dr_grpo, seed 3"
    assert "20 steps" in subtitle
    assert "pass@1 0.56 → 0.69" in subtitle


def test_drawn_lines_hold_the_recorded_numbers(tmp_path: Path) -> None:
    rows = [{"step": 0, "eval/pass@1": 0.5}, {"step": 1, "reward/mean": 0.25}, {"step": 2, "reward/mean": 0.75}]
    figure = picture_figure(write_lines(tmp_path / "run", [*rows, {"step": 4, "eval/pass@1": 0.875}]))
    axes = {axes.get_label(): axes for axes in figure.axes}
    assert axes["reward"].lines[0].get_xydata().tolist() == [[1, 0.25], [2, 0.75]]
    assert axes["evaluation"].lines[0].get_xydata().tolist() == [[0, 0.5], [4, 0.875]]
    assert axes["evaluation"].lines[1].get_xydata().tolist() == [[0, 0.5]], "the start is marked"
    assert axes["evaluation"].texts[-1].get_text() == "pass@1  0.88"


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 1, "reward/mean": 0.5, "time/rollout_seconds": 0.5, "optim/gradient_norm": 0.0}],
        [{"step": 0, "eval/pass@1": 0.5}],
        [{"step": 0, "eval/pass@4": 0.0, "eval/coverage@4": 0.0, "time/evaluation_seconds": 1.0}],
        [{"step": 0, "eval/pass@1": 0.5, "eval/pass@8": 1.0}, {"step": 9, "eval/pass@1": 1.0, "eval/pass@8": 1.0}],
        [{"step": step, "policy/entropy": 0.0, "completion/mean_length": 0.0} for step in range(1, 4)],
        [],
        [{"step": 1, "loss/total": 0.1}],
    ],
)
def test_thin_records_are_drawn(tmp_path: Path, rows: list[dict]) -> None:
    path = draw_picture(write_lines(tmp_path / "run", rows))
    assert (imread(path)[..., :3] < 0.9).any(axis=-1).sum() > 300


def test_a_half_written_line_does_not_stop_the_picture(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", num_steps=5)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "reward/me')
    reward = next(axes for axes in picture_figure(run).axes if axes.get_label() == "reward")
    assert reward.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5]


def test_smoothing_keeps_constants_and_the_mean_of_its_window() -> None:
    assert smoothed([2.0] * 200).tolist() == pytest.approx([2.0] * 200)
    ramp = [float(value) for value in range(101)]
    assert smoothed(ramp)[50] == pytest.approx(np.mean(ramp[48:53]))
    assert smoothed(ramp)[0] == pytest.approx(np.mean(ramp[:3]))
    assert smoothed([1.0, 5.0]).tolist() == [1.0, 5.0]


def test_a_comparison_averages_seeds_and_gives_each_method_a_colour(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"{m}{s}", 40, 20, m, s) for m in ("maxent", "dr_grpo") for s in (0, 1)]
    figure = comparison_figure(runs)
    assert panels_of(figure) == [
        "eval/pass@1", "eval/pass@8", "eval/coverage@8", "reward/mean", "policy/entropy", "table",
    ]  # fmt: skip
    axes = next(axes for axes in figure.axes if axes.get_label() == "eval/pass@8")
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["maxent"].get_color() != lines["dr_grpo"].get_color()
    last = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["eval/pass@8"] for run in runs]
    assert lines["maxent"].get_ydata()[-1] == pytest.approx((last[0] + last[1]) / 2)
    table = [text.get_text() for axes in figure.axes if axes.get_label() == "table" for text in axes.texts]
    assert f"{(last[2] + last[3]) / 2:.3f}" in table
    assert "maxent  ×2" in table


def test_a_comparison_with_differences_is_called_after_what_is_compared_with_the_first(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 2, 1, name) for name in ("maxent", "dr_grpo")]
    panel = EffectPanel("effect", "Difference", "minus maxent", {"dr_grpo": Interval(0.1, 0.0, 0.2)})
    titles = ["maxent against dr_grpo", "dr_grpo against maxent"]
    for effects, title, other in (([], *titles), ([panel], *reversed(titles))):
        texts = [text.get_text() for text in comparison_figure(runs, effects=effects).texts]
        assert title in texts
        assert other not in texts


def test_runs_without_evaluations_are_compared_by_what_they_have(tmp_path: Path) -> None:
    rows = [{"step": step, "reward/mean": 0.1 * step, "policy/entropy": 1.0} for step in range(1, 4)]
    runs = [write_lines(tmp_path / name, rows) for name in ("a", "b")]
    compare.main([*map(str, runs), "--labels", "one", "two", "--output", str(tmp_path / "new" / "both.svg")])
    assert "reward" in (tmp_path / "new" / "both.svg").read_text()
    with pytest.raises(SystemExit) as ended:
        compare.main([*map(str, runs), "--output", str(tmp_path / "both.xyz")])
    assert ended.value.code == 2


def test_a_comparison_is_written_where_asked(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 20, 10, name) for name in ("maxent", "dr_grpo")]
    path = draw_comparison(runs, tmp_path / "both.png", labels=["with", "without"])
    assert (imread(path)[..., :3] < 0.9).any(axis=-1).mean() > 0.01


def test_runs_of_one_method_and_seed_are_told_apart(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 2, 1, "maxent", seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert default_labels(runs) == ["maxent (a)", "maxent (b)", "maxent"]


def test_a_comparison_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="at least one run"):
        comparison_figure([])


def test_drawing_leaves_matplotlib_without_global_state(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_steps=3)
    code = (
        "import sys, pathlib; from maxent_grpo.report.picture import draw_picture; "
        "draw_picture(pathlib.Path(sys.argv[1])); assert 'matplotlib.pyplot' not in sys.modules; "
        "assert 'torch' not in sys.modules"
    )
    run_process([sys.executable, "-c", code, str(tmp_path / "run")], check=True)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(b"old")

    def fail(file) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
