import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from support.html_page import Page
from support.synthetic_run import HOSTILE, completion_record, write_lines, write_rich_run, write_run

from maxent_grpo.errors import DataError
from maxent_grpo.report.chart_table import SECTIONS
from maxent_grpo.report.page import report_page, write_page
from maxent_grpo.report.series import MAX_POINTS, drawn_series
from maxent_grpo.stats.passk import pass_at_k
from maxent_grpo.training.metric_table import METRICS, metric_info


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rich_run(tmp_path_factory.mktemp("runs") / "rich")


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(report_page(run))


def test_every_metric_of_the_charts_is_in_the_table_of_metrics() -> None:
    traces = [trace.metric for section in SECTIONS for chart in section.charts for trace in chart.traces]
    traces += [name for section in SECTIONS for chart in section.charts for name in chart.band or ()]
    for name in traces:
        prefix, star, _ = name.partition("*")
        assert not star or any(entry.startswith(prefix) for entry in METRICS) or metric_info(f"{prefix}1")
        assert star or metric_info(name)
    keys = [chart.key for section in SECTIONS for chart in section.charts]
    assert len(keys) == len(set(keys))


def test_a_rich_run_shows_everything(page: Page) -> None:
    assert page.ids("section") == [
        "evaluation", "training", "policy", "optimisation", "cost", "samples", "configuration",
    ]  # fmt: skip
    assert page.ids("figure") == [f"chart-{key}" for key in (
        "pass", "pass_by_k", "coverage", "coverage_by_k", "distinct", "single",
        "reward", "terms", "signal", "rejected", "length", "cut", "modes",
        "entropy", "kl", "clip", "ratio", "weight_entropy", "effective_size", "weight_kl", "wrong_mass",
        "loss", "gradient", "learning_rate", "tau",
        "shares", "time", "throughput", "tokens", "memory",
    )]  # fmt: skip
    assert "finished: 120 of 120 steps" in page.text
    assert "pass@1 0.69" in page.text
    assert "β = 0; KL coefficient = 0.04" in page.text, "what did not move is said"
    assert "Not recorded Exact figures; Seed evaluation" in page.text


def test_the_page_refers_to_nothing_outside_itself(page: Page, run: Path) -> None:
    for tag, attributes in page.tags:
        assert "src" not in attributes
        assert "srcset" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,")), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert "url(" not in attributes.get("style", "")
    assert [tag for tag, _ in page.tags if tag in ("script", "style", "img", "iframe", "object", "form", "base")] == [
        "style", "script",
    ]  # fmt: skip
    for text in (*page.texts["style"], *page.texts["script"]):
        assert not re.search(r"url\(|@import|https?:|fetch|XMLHttpRequest|import\(|WebSocket|sendBeacon", text)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:")
    assert "http" not in re.sub(r"http-equiv", "", report_page(run))


def test_completions_stay_text(page: Page) -> None:
    shown = HOSTILE.replace("\x00", "\u2400")
    assert page.texts["code"].count(shown) == 8 * 4
    assert page.texts["title"] == ["dr_grpo, run rich"]


def test_every_text_of_a_run_is_escaped(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>\"'&"
    run = write_rich_run(tmp_path / "a<b>&'c", 24)
    record = completion_record(2, 0, 0, attack) | {"row_id": attack, "prompt": attack, "mode": attack}
    write_lines(run / "completions.jsonl", [record | {"finish_reason": attack, "rewards": {attack: 1.0, "b": None}}])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for step, row in enumerate(rows[1:]):
        row |= {f"reward/term/{attack}": step, f"controller/{attack}": step, f"time/{attack}_seconds": step + 1}
    write_lines(run / "metrics.jsonl", rows)
    (run / "config.yaml").write_text(f"# options: scoring=<b>x</b>\nrun:\n  dir: {json.dumps(attack)}\n")
    (run / "overrides.json").write_text(json.dumps([f"+a={attack}"]))
    (run / "run.log").write_text(f"2026 ERROR   maxent_grpo: stopped: {attack}\n2026 INFO maxent_grpo: steps 1 to 50\n")
    with (run / "run.log").open("a") as file:
        file.write(f"2026-01-01 ERROR   maxent_grpo.training.setup: stopped: {attack}\n")
    page = Page(report_page(run))
    assert [tag for tag, _ in page.tags if tag in ("script", "b") and tag == "script"] == ["script"]
    assert page.text.count(attack) >= 8
    assert f"unfinished: 24 of 50 steps (stopped: {attack})" in page.text


def test_equal_runs_give_equal_pages(run: Path) -> None:
    assert report_page(run) == report_page(run)
    assert write_page(run).read_bytes() == report_page(run).encode("utf-8", "backslashreplace")


def test_curves_against_k_come_from_the_counts_of_every_problem(page: Page, run: Path) -> None:
    points = page.points("pass_by_k")
    rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    for line, step in zip(points["lines"], (0, 120), strict=True):
        assert line[0] == list(range(1, 17))
        of_step = [row for row in rows if row["step"] == step]
        means = [np.mean([pass_at_k(16, row["num_right"], k) for row in of_step]) for k in range(1, 17)]
        assert line[1] == pytest.approx(means, rel=1e-4)


def test_without_those_counts_the_recorded_ks_stand_in(tmp_path: Path) -> None:
    page = Page(report_page(write_run(tmp_path / "run", 20, 10)))
    assert page.points("pass_by_k")["lines"][0] == [[1, 8], [0.562, 0.887]]
    assert "Against k: only k = 1, 8, from metrics.jsonl" in page.text


def test_charts_hold_the_recorded_numbers(page: Page, run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps, values = page.points("learning_rate")["lines"][0]
    assert (steps, values) == (
        [r["step"] for r in rows[1:]],
        pytest.approx([r["optim/learning_rate"] for r in rows[1:]]),
    )
    steps, values = page.points("pass")["lines"][1]
    assert steps == [0, 30, 60, 90, 120]
    assert values == pytest.approx([r["eval/pass@8"] for r in rows if "eval/pass@8" in r], rel=1e-4)


def test_a_missing_count_is_drawn_as_zero(page: Page, run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    _, values = page.points("rejected")["lines"][0]
    assert np.mean(values) == pytest.approx(np.mean([row.get("reward/rejected/empty", 0.0) for row in rows]), rel=0.1)


def test_a_target_is_drawn_beside_what_is_measured(tmp_path: Path) -> None:
    rows = [
        {
            "step": step,
            "controller/measured_entropy": step / 9,
            "controller/target_entropy": 0.5,
            "controller/error": step,
        }
        for step in range(1, 9)
    ]
    write_lines(tmp_path / "metrics.jsonl", rows)
    page = Page(report_page(tmp_path))
    assert page.ids("figure") == ["chart-error", "chart-target_entropy"]
    assert [line[1][0] for line in page.points("target_entropy")["lines"]] == [pytest.approx(1 / 9, rel=1e-4), 0.5]


def test_few_steps_and_groups_stand_for_all_completions(page: Page) -> None:
    panels = [a["data-step"] for tag, a in page.tags if tag == "div" and a.get("class") == "step-panel"]
    assert panels == ["10", "30", "40", "60", "70", "90", "100", "120"]
    assert len([1 for tag, _ in page.tags if tag == "article"]) == 8 * 4
    assert "128 of 288 recorded completions, of 8 of 12 recorded steps" in page.text


def test_thousands_of_long_completions_keep_the_page_small(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 40, 20)
    records = [completion_record(step, n // 16, n % 16, "word " * 4000) for step in range(1, 41) for n in range(64)]
    write_lines(run / "completions.jsonl", records)
    text = report_page(run)
    assert len(text) < 3_000_000
    assert "512 of 2560 recorded completions" in text
    assert "Texts are cut after 2,929 characters" in text


def test_the_configuration_marks_what_the_command_line_said(page: Page) -> None:
    marked = {a.get("class") for tag, a in page.tags if tag in ("dt", "dd")}
    assert marked == {None, "changed"}
    text = page.text
    assert "python train.py scoring=dr_grpo scoring.clipping.clip_range=0.3 seed=7" in text
    assert "/somewhere/else" not in text
    assert "scoring = dr_grpo1 changed" in text


def test_a_run_that_was_killed_is_called_unfinished(tmp_path: Path) -> None:
    run = write_rich_run(tmp_path / "run", 24)
    for name in ("metrics.jsonl", "completions.jsonl", "evaluations.jsonl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[: len(whole) * 2 // 3])
    page = Page(report_page(run))
    assert re.search(r"unfinished: 1\d of 24 steps", page.text)
    assert len(page.ids("figure")) > 25


def test_an_early_stop_is_an_end(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 5)
    log = "2026 INFO    maxent_grpo: steps 1 to 40\n2026 INFO    a.b: early stop: no better eval/pass@1 in 2 evaluations\n"
    (run / "run.log").write_text(log)
    assert "stopped early: 10 of 40 steps (no better eval/pass@1 in 2 evaluations)" in Page(report_page(run)).text
    (run / "run.log").write_text(log + "2026 INFO    maxent_grpo: steps 11 to 12\n")
    assert "unfinished: 10 of 12 steps" in Page(report_page(run)).text


def test_a_resumed_run_names_the_one_it_continues(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 5)
    (run / "config.yaml").write_text("checkpoint:\n  resume_from: outputs/first\n")
    assert "resumed from outputs/first" in re.sub(r"(?<=from)(?=outputs)", " ", Page(report_page(run)).text)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "reward/mean": 0.5}])
    text = Page(report_page(tmp_path)).text
    for sentence in (
        "1 step; how many were planned is not recorded",
        "The run has no completions.jsonl: logging.completions_every=0, or no step came to record.",
        "overrides.json is not in the run directory",
        "config.yaml is not in the run directory",
        "Training reward: reward = 0.5 (recorded once, at step 1)",
    ):
        assert sentence in text
    (tmp_path / "metrics.jsonl").write_text("")
    assert "No step was recorded yet" in Page(report_page(tmp_path)).text


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl does not exist"):
        report_page(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("overrides.json", "{broken", "is not JSON"),
        ("overrides.json", "3", "not a list"),
        ("config.yaml", "a: [", "cannot be read"),
        ("config.yaml", "- 1\n", "holds a list"),
        ("completions.jsonl", "[]\n", "line 1"),
        ("completions.jsonl", '{"a": 1}\n', "not a record of completions"),
        ("evaluations.jsonl", '{"a": 1}\n', "not a record of evaluations"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    run = write_run(tmp_path / "run", 4, 2)
    (run / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        report_page(run)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 0, "eval/pass@1": 0.5}],
        [{"step": 1, "time/rollout_seconds": 0.0, "time/step_seconds": 0.0, "reward/mean": 0.0}],
        [{"step": n, "reward/mean": -1e-9 * n, "optim/gradient_norm": 1e12 * n, "loss/total": -n} for n in range(1, 4)],
        [{"step": n, "time/rollout_seconds": 1.0, "time/evaluation_seconds": 0.0} for n in (1, 2)],
        [
            {"step": 1, "completion/mean_length": 4.0, "completion/min_length": 1.0},
            {"step": 9, "completion/mean_length": 5},
        ],
    ],
)
def test_thin_records_are_drawn_without_a_number_that_is_none(tmp_path: Path, rows: list[dict]) -> None:
    write_lines(tmp_path / "metrics.jsonl", rows)
    text = report_page(tmp_path)
    Page(text)
    drawn = " ".join(re.findall(r"<svg.*?</svg>|data-points=\"[^\"]*\"", text))
    assert not re.search(r"\bnan\b|\binf", drawn, re.IGNORECASE)


def test_thousands_of_steps_are_thinned_and_said_to_be(tmp_path: Path) -> None:
    rng = random.Random(0)
    names = ["reward/mean", "policy/entropy", "loss/total", *(f"reward/term/t{n}" for n in range(17))]
    rows = [{"step": step, **{name: rng.random() for name in names}} for step in range(1, 4_001)]
    write_lines(tmp_path / "metrics.jsonl", rows)
    text = report_page(tmp_path)
    assert len(text) < 1_000_000
    assert "Lines of more than 300 values are drawn through the means of 300 equal stretches" in text
    assert len(Page(text).points("terms")["lines"]) == 17


def test_thinning_keeps_the_mean_and_the_range() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    thin = drawn_series(range(10_000), values.tolist(), is_noisy=False)
    assert len(thin.steps) == MAX_POINTS
    assert thin.is_merged
    lengths = np.diff(np.append(np.arange(MAX_POINTS) * 10_000 // MAX_POINTS, 10_000))
    assert (thin.middle * lengths).sum() == pytest.approx(values.sum())
    assert (thin.low.min(), thin.high.max()) == (values.min(), values.max())
    assert not drawn_series([1, 2], [0.0, 1.0], is_noisy=False).is_merged
