"""Runs grouped into arms and compared: grouping and names, figures from the counts, what is said of them, and the page."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.html_page import Page
from support.synthetic_arms import write_arm_run, write_arms
from support.synthetic_run import HOSTILE, write_lines, write_run

from maxent_grpo.errors import DataError
from maxent_grpo.report.arms.cautions import cautions
from maxent_grpo.report.arms.curves import AXES, arm_sections
from maxent_grpo.report.arms.figures import Findings, aggregates, family, read_findings
from maxent_grpo.report.arms.group import read_comparisons
from maxent_grpo.report.arms.page import comparison_page, write_comparison_page
from maxent_grpo.report.arms.picture import draw_arms
from maxent_grpo.report.arms.result import shown
from maxent_grpo.stats.passk import coverage_at_k, pass_at_k
from maxent_grpo.stats.seed_tests import holm, sign_flip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_arms(tmp_path_factory.mktemp("sweep"), text=HOSTILE)


@pytest.fixture(scope="module")
def findings(runs: list[Path]) -> Findings:
    return read_findings(runs)[0]


@pytest.fixture(scope="module")
def page(findings: Findings) -> Page:
    return Page(comparison_page([findings]))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def config(run: Path, old: str, new: str) -> None:
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))


def names(runs: list[Path], baseline: str | None = None) -> list[str]:
    return [arm.name for each in read_comparisons(runs, baseline) for arm in each.arms]


# grouping


def test_runs_that_differ_in_their_seed_are_one_arm(findings: Findings) -> None:
    arms = findings.comparison.arms
    assert [(arm.name, arm.seeds) for arm in arms] == [("scoring=maxent", [0, 1, 2]), ("scoring=dr_grpo", [0, 1, 2])]


def test_what_a_command_line_set_is_named_and_what_follows_from_an_option_is_not(tmp_path: Path) -> None:
    runs = write_arms(tmp_path, seeds=(0,))
    runs.append(write_arm_run(tmp_path / "clipped", "maxent", 0, 20))
    config(runs[2], "clip_range: 0.2", "clip_range: 0.4")
    (runs[2] / "overrides.json").write_text('["scoring=maxent", "scoring.clipping.clip_range=0.4"]')
    assert names(runs) == [
        "scoring=maxent clip_range=0.2",
        "scoring=dr_grpo clip_range=0.2",
        "scoring=maxent clip_range=0.4",
    ]
    (runs[2] / "overrides.json").unlink()
    assert names(runs)[2] == "scoring=maxent clip_range=0.4", (
        "a setting that no command line tells names the arm as well"
    )


def test_a_baseline_is_chosen_by_a_part_of_its_name(runs: list[Path]) -> None:
    assert names(runs, "dr_")[0] == "scoring=dr_grpo"
    with pytest.raises(DataError, match=r"--baseline nothing is no arm; there are: scoring=maxent, scoring=dr_grpo"):
        names(runs, "nothing")
    with pytest.raises(DataError, match="fits 2 arms"):
        names(runs, "scoring")


def test_a_second_run_of_a_seed_does_not_count_twice(runs: list[Path], tmp_path: Path) -> None:
    again = shutil.copytree(runs[1], tmp_path / "again")
    comparison = read_comparisons([*runs, again, runs[0]])[0]
    assert comparison.arms[0].seeds == [0, 1, 2]
    assert comparison.notes == [
        f"{tmp_path.name}/again is left out: {runs[1].parent.name}/{runs[1].name} has the same settings and seed."
    ]


def test_runs_without_settings_stand_for_themselves(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 4, 2) for name in "ab"]
    for run in runs:
        (run / "config.yaml").unlink()
    findings = read_findings(runs)[0]
    assert len(findings.comparison.arms) == 2
    assert list(findings.effects) == [], "without seeds nothing can be paired"
    assert comparison_page([findings])


def test_tasks_are_compared_apart_and_put_together_in_the_end(tmp_path: Path) -> None:
    runs = write_arms(tmp_path / "a", seeds=(0, 1)) + write_arms(tmp_path / "b", seeds=(0, 1), data="countdown")
    found = read_findings(runs)
    assert [each.comparison.task for each in found] == ["coloring", "countdown"]
    whole = {(each.arm.name, each.measure): each for each in aggregates(found)}
    scores = [each.figures["scoring=maxent"]["pass@1"].per_seed for each in found]
    flat = np.sort(np.concatenate(scores))
    assert whole["scoring=maxent", "pass@1"].iqm.mean == pytest.approx(flat[1:3].mean())
    text = Page(comparison_page(found)).text
    assert "Result on coloring" in text
    assert "Result on countdown" in text
    assert "all seeds of 2 tasks" in text


# figures


def test_figures_come_from_every_problems_counts(findings: Findings, runs: list[Path]) -> None:
    assert findings.step == 20
    assert findings.num_problems == 12
    assert list(findings.measures) == ["pass@1", "pass@8", "coverage@8", "greedy"]
    for place, run in enumerate(runs[:3]):
        rows = [row for row in lines(run / "evaluations.jsonl") if row["step"] == 20]
        got = {name: each.per_seed[place] for name, each in findings.figures["scoring=maxent"].items()}
        assert got == pytest.approx(
            {
                "pass@1": np.mean([pass_at_k(8, row["num_right"], 1) for row in rows]),
                "pass@8": np.mean([pass_at_k(8, row["num_right"], 8) for row in rows]),
                "coverage@8": np.mean([coverage_at_k([*row["mode_counts"].values()], 8, 8, 4) for row in rows]),
                "greedy": np.mean([row["greedy_right"] for row in rows]),
            }
        )


def test_effects_are_paired_by_seed_and_adjusted_within_their_family(findings: Findings) -> None:
    effects = {each.measure: each for each in findings.effects}
    mine, base = (findings.figures[name]["pass@1"].per_seed for name in ("scoring=dr_grpo", "scoring=maxent"))
    assert effects["pass@1"].differences == pytest.approx(mine - base)
    assert effects["pass@1"].p == sign_flip((mine - base).tolist()).p
    success = [name for name in effects if family(name) == "success"]
    assert success == ["pass@1", "pass@8", "greedy"]
    assert [effects[name].p_holm for name in success] == holm([effects[name].p for name in success])
    assert effects["coverage@8"].p_holm == effects["coverage@8"].p == 0.25
    assert shown(effects["coverage@8"]) == "too few seeds to tell"
    assert effects["pass@1"].equivalence is not None
    assert effects["greedy"].equivalence is None


def test_pairs_are_of_one_seed_whatever_the_order(runs: list[Path], findings: Findings) -> None:
    shuffled = read_findings([runs[5], runs[0], runs[4], runs[2], runs[1]], "maxent")[0]
    effect = next(each for each in shuffled.effects if each.measure == "pass@1")
    assert effect.seeds == [1, 2]
    whole = next(each for each in findings.effects if each.measure == "pass@1")
    assert effect.differences == pytest.approx(whole.differences[1:])
    assert any("left out there: 0" in sentence for sentence in cautions(shuffled))


def test_arms_without_a_common_seed_are_not_paired(runs: list[Path], tmp_path: Path) -> None:
    found = read_findings([*runs[:2], *write_arms(tmp_path, ("dr_grpo",), seeds=(7, 8))])[0]
    assert list(found.effects) == []
    text = Page(comparison_page([found])).text
    assert "scoring=dr_grpo and scoring=maxent have no seed in common: nothing is paired" in text
    assert "No seed is common to all arms" in text
    assert "P(higher than baseline)" in text, "which takes no pairs"


def test_eight_seeds_can_show_a_difference(tmp_path: Path) -> None:
    found = read_findings(write_arms(tmp_path, seeds=range(8)))[0]
    effect = next(each for each in found.effects if each.measure == "coverage@8")
    assert effect.p_holm == 2 / 2**8
    assert effect.mean.high < 0
    assert shown(effect) == "lower"
    assert cautions(found)[0] == "Seeds: 8 seeds an arm."


def test_without_counts_the_recorded_means_stand_in(runs: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    (copies[3] / "evaluations.jsonl").unlink()
    found = read_findings(copies)[0]
    assert found.num_problems is None
    last = [lines(run / "metrics.jsonl")[-1]["eval/pass@8"] for run in copies[:3]]
    assert found.figures["scoring=maxent"]["pass@8"].per_seed == pytest.approx(last)
    assert any("from the means in metrics.jsonl" in sentence for sentence in cautions(found))


# honest words


def test_few_seeds_are_called_few(findings: Findings) -> None:
    sentences = cautions(findings)
    assert sentences[0].startswith("Seeds: 3 seeds an arm. The smallest p that 3 seeds can give is 0.25")
    assert ".05 after Holm's adjustment for the 3 tests of a family takes 7 seeds at the fewest" in sentences[0]
    assert sentences[1].startswith("All runs gave the same answers before training: they share one start.")
    assert len(sentences) == 3


def test_one_seed_has_curves_and_no_p(tmp_path: Path) -> None:
    found = read_findings(write_arms(tmp_path, seeds=(4,)))
    text = Page(comparison_page(found)).text
    assert "One seed an arm: the curves show one run each" in text
    assert "one seed: nothing" in text
    assert "IQM" not in text
    assert "Holm;" not in text
    assert not re.search(r"\bp \d", text)
    assert "nan" not in text.lower()


def test_unfinished_and_shorter_runs_cut_all_and_are_said_to(runs: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    rows = lines(copies[4] / "metrics.jsonl")
    write_lines(copies[4] / "metrics.jsonl", [row for row in rows if row["step"] <= 12])
    with (copies[4] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "rew')
    found = read_findings(copies)[0]
    assert (found.comparison.last_step, found.step) == (12, 10)
    text = " ".join(cautions(found))
    assert "Not finished: scoring=dr_grpo, seed 1 (12 of 20 steps)." in text
    assert "All are cut at step 12, the end of scoring=dr_grpo, seed 1; leave it out" in text
    assert "Held-out figures are of step 10" in text
    drawn = Page(comparison_page([found])).points("reward")
    assert drawn["high"] == 12
    assert all(line[0][-1] == 12 for line in drawn["lines"])


def test_a_run_that_has_not_taken_a_step_is_left_out(runs: list[Path], tmp_path: Path) -> None:
    waiting = shutil.copytree(runs[0], tmp_path / "waiting")
    write_lines(waiting / "metrics.jsonl", lines(runs[0] / "metrics.jsonl")[:1])
    assert read_comparisons([*runs, waiting])[0].notes == [
        f"{tmp_path.name}/waiting is left out: it has not taken a step."
    ]
    with pytest.raises(DataError, match="none of the runs has taken a step"):
        read_comparisons([waiting])


def test_other_problems_starts_data_and_versions_are_named(runs: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    for place, run in enumerate(copies):
        (run / "data.json").write_text(json.dumps({"rows": place // 3}))
        (run / "versions.json").write_text(json.dumps({"torch": "2", "maxent_grpo source": str(place // 3)}))
    for run in copies[3:]:
        rows = lines(run / "evaluations.jsonl")
        for row in rows:
            row["num_right"] -= row["step"] == 0
        write_lines(run / "evaluations.jsonl", [row for row in rows if row["row_id"] != "p3"])
        config(run, "scoring:", "evaluation:\n  temperature: 0.5\nscoring:")
    for run in copies[:3]:
        config(run, "scoring:", "evaluation:\n  temperature: 1.0\nscoring:")
    found = read_findings(copies)[0]
    text = " ".join(cautions(found))
    assert "Evaluated differently (evaluation.temperature)" in text
    assert "asked different held-out problems (11 to 12). Figures here are over the 11 that all were asked." in text
    assert "Not alike at the start" in text
    assert "The data differ between runs" in text
    assert "Made with different versions of maxent_grpo source." in text


# curves and the page


def test_a_curve_is_the_mean_of_its_seeds_with_their_range(findings: Findings, runs: list[Path], page: Page) -> None:
    charts = {
        chart.key: chart for _, drawn in arm_sections(findings.comparison, AXES["steps"]) for chart in drawn.charts
    }
    values = np.array([[row["policy/entropy"] for row in lines(run / "metrics.jsonl")[1:]] for run in runs[:3]])
    line = charts["entropy"].lines[0]
    assert line.y == pytest.approx(values.mean(axis=0))
    assert line.low == pytest.approx(values.min(axis=0))
    assert line.high == pytest.approx(values.max(axis=0))
    assert {each.dash for each in charts["entropy"].lines} == {0, 1}
    assert len(charts["pass-0"].lines[0].raw) == 3, "each seed stands behind the mean of held-out figures"
    assert page.points("entropy")["lines"][0][1] == pytest.approx(values.mean(axis=0), rel=1e-4)


def test_curves_can_stand_against_tokens_and_seconds(findings: Findings) -> None:
    for across, per_step in (("tokens", 6400.0), ("seconds", 0.6)):
        charts = {c.key: c for _, drawn in arm_sections(findings.comparison, AXES[across]) for c in drawn.charts}
        assert charts["entropy"].x_name == across
        assert charts["entropy"].lines[0].x == pytest.approx(per_step * np.arange(1, 21))
        assert charts["pass-0"].lines[0].x[0] == 0


def test_the_page_holds_what_was_asked(page: Page) -> None:
    keys = set(page.ids("figure"))
    assert {f"chart-{key}" for key in (
        "final-pass-1", "final-coverage-8", "effect-pass-8", "pass-0", "pass_by_k", "coverage_by_k", "entropy", "kl", "clip-0",
        "clip-1", "effective_size-0", "throughput", "reward",
    )} <= keys  # fmt: skip
    assert page.ids("section") == [
        "first", "result", "aggregate", "evaluation", "training", "policy", "optimisation", "cost", "seeds", "samples",
        "configuration",
    ]  # fmt: skip
    assert "scoring.advantage" in page.text
    assert "logging.level" not in page.text
    assert "Time of a step = 0.6" in page.text, "what did not move is said"
    assert page.text.count("each seed's sign were a coin's; all sign patterns are counted") == 1


def test_completions_of_one_prompt_stand_beside_each_other(page: Page) -> None:
    assert page.text.count("of maxent") == page.text.count("of dr_grpo") > 0
    assert page.texts["title"] == ["scoring=dr_grpo against scoring=maxent"]
    steps = [a["data-step"] for tag, a in page.tags if tag == "div" and a.get("class") == "step-panel"]
    assert steps == ["5", "10", "15", "20"]


def test_the_page_refers_to_nothing_outside_itself(page: Page) -> None:
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attributes)
    assert [tag for tag, _ in page.tags if tag in ("script", "style", "img")] == ["style", "script"]


def test_names_from_settings_are_escaped(tmp_path: Path) -> None:
    runs = write_arms(tmp_path, ("<b>x</b>", "</script>"), seeds=(0, 1))
    page = Page(comparison_page(read_findings(runs)))
    assert "scoring=<b>x</b>" in page.text
    assert [tag for tag, _ in page.tags if tag == "script"] == ["script"]


def test_equal_runs_give_equal_pages_and_a_picture(findings: Findings, tmp_path: Path) -> None:
    assert comparison_page([findings]) == comparison_page([findings])
    assert write_comparison_page([findings], tmp_path) == tmp_path / "comparison.html"
    assert draw_arms([findings], tmp_path) == [tmp_path / "comparison.png"]
    assert (tmp_path / "comparison.png").stat().st_size > 50_000
