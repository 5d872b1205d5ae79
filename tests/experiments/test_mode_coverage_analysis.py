"""The study's analysis, on the records of eighteen real runs of four steps: every table and figure, and what they say."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from experiments.mode_coverage.analyse import FRONT, MARKS, PAGE, main, sections
from experiments.mode_coverage.collect import DIVERGED, has_diverged
from experiments.mode_coverage.effects import (
    BASELINE,
    PRIMARY,
    TESTED,
    Record,
    at,
    at_cost,
    at_equal_cost,
    effects,
    even_share,
    read_results,
)
from experiments.mode_coverage.further import on_training_problems, since_start
from experiments.mode_coverage.table import HERE, read_study
from experiments.mode_coverage.tables import NOT_RUN, levels
from maxent_grpo.sweeps.record import JobRecord, Standing

STUDY = read_study()
RECORDS = Path(__file__).parent / "records"


def test_tables_figures_and_summary_come_from_the_records_and_are_the_same_each_time(tmp_path: Path) -> None:
    page = shutil.copy(HERE / "README.md", tmp_path / "README.md")
    arguments = ["--results", str(RECORDS), "--page", str(page)]
    written = []
    for _ in range(2):
        assert main(arguments) == 0
        written.append({path.name: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()})
    first, second = written
    assert first == second
    pictures = [f"confirmatory_{name}.png" for name in ("curves", "effects", "others", "passk")]
    assert sorted(first) == ["README.md", *pictures, "summary.csv"]
    assert len(first["summary.csv"].splitlines()) == 1 + 18
    text = first["README.md"].decode()
    assert "| `maxent` | 6 | " in text
    assert "not decided yet (18 of 56 runs)" in text  # eight pairs and seven arms were planned
    assert "**holds**" not in text
    assert "The part is not finished: 18 of 56 runs." in text
    assert "Not run yet." in text  # of countdown there is nothing


def test_the_committed_pages_and_summary_are_what_the_committed_records_give(tmp_path: Path) -> None:
    page, front = shutil.copy(PAGE, tmp_path / "README.md"), shutil.copy(FRONT, tmp_path / "front.md")
    assert main(["--page", str(page), "--front", str(front)]) == 0
    assert page.read_text() == PAGE.read_text()
    assert front.read_text() == FRONT.read_text()
    assert (tmp_path / "summary.csv").read_text() == (HERE / "summary.csv").read_text()
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        path.name for path in (HERE / "figures").iterdir()
    }


def test_differences_and_their_chances_are_those_of_the_pairs() -> None:
    results = read_results(STUDY, RECORDS)
    part = STUDY.parts["confirmatory"]
    [found] = [each for each in effects(results, part, measures=[PRIMARY]) if each.arm == "maxent"]
    ends = {
        arm: [
            json.loads((RECORDS / f"confirmatory/{arm}-{pair}.json").read_text())["curve"][-1][PRIMARY]
            for pair in range(6)
        ]
        for arm in ("maxent", BASELINE)
    }
    differences = [left - right for left, right in zip(ends["maxent"], ends[BASELINE], strict=True)]
    assert found.differences == differences
    assert found.interval.low < fmean(differences) < found.interval.high
    flipped = [
        abs(fmean(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=6)
    ]
    assert found.p == pytest.approx(fmean(value >= abs(fmean(differences)) - 1e-12 for value in flipped))
    # the only arm beside A/A, which is a yardstick: nothing to adjust for
    assert found.p_holm == found.p


def test_an_arm_that_samples_more_is_judged_at_an_earlier_step() -> None:
    record = json.loads((RECORDS / "confirmatory/maxent-0.json").read_text())
    assert [point["step"] for point in record["curve"]] == [0, 2, 4]
    assert at(record, 4)["step"] == 4
    for point in record["curve"]:
        point["completions"] *= 2
    assert at(record, 4)["step"] == 2


def test_a_run_that_diverged_counts_with_its_last_evaluation_and_is_named(tmp_path: Path) -> None:
    shutil.copytree(RECORDS, tmp_path / "records")
    path = tmp_path / "records/confirmatory/maxent-3.json"
    record = json.loads(path.read_text())
    cut = record | {"curve": record["curve"][:2], "steps": 3, "problems": {}, DIVERGED: "NonFiniteError: the loss"}
    path.write_text(json.dumps(cut))
    results, part = read_results(STUDY, tmp_path / "records"), STUDY.parts["confirmatory"]
    assert "`maxent` of pair 3 diverged: it counts with its last evaluation, at step 2." in levels(results, part)
    assert "diverged" not in levels(read_results(STUDY, RECORDS), part)
    [found] = [each for each in effects(results, part, measures=[PRIMARY]) if each.arm == "maxent"]
    base = results.runs("confirmatory", BASELINE)[3]
    assert found.differences[3] == record["curve"][1][PRIMARY] - base["curve"][-1][PRIMARY]


def test_only_numbers_that_are_not_finite_make_a_run_diverge() -> None:
    failed = JobRecord("0", {}, Standing.failed, problems=["NonFiniteError: the loss is nan"])
    assert has_diverged(failed)
    assert not has_diverged(replace(failed, problems=["StorageError: the disk is full"]))
    assert not has_diverged(replace(failed, standing=Standing.interrupted))


def test_runs_of_other_settings_are_no_repetitions(tmp_path: Path) -> None:
    shutil.copytree(RECORDS, tmp_path / "records")
    path = tmp_path / "records/confirmatory/maxent-3.json"
    path.write_text(path.read_text().replace('"settings": "', '"settings": "0'))
    with pytest.raises(ValueError, match="other settings than the other runs of confirmatory/maxent"):
        read_results(STUDY, tmp_path / "records")


def test_runs_of_one_pair_began_alike(tmp_path: Path) -> None:
    shutil.copytree(RECORDS, tmp_path / "records")
    path = tmp_path / "records/confirmatory/maxent-3.json"
    record = json.loads(path.read_text())
    record["curve"][0][PRIMARY] += 0.001
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="another start than the other runs of pair 3 of confirmatory"):
        read_results(STUDY, tmp_path / "records")
    moved = tmp_path / "records/doses/maxent-3.json"
    moved.parent.mkdir()
    path.rename(moved)
    moved.write_text(json.dumps(record | {"part": "doses"}))
    read_results(STUDY, tmp_path / "records")  # a last digit, as another machine gives it
    record["curve"][0][PRIMARY] += 0.01
    moved.write_text(json.dumps(record | {"part": "doses"}))
    with pytest.raises(ValueError, match="another start than pair 3 of coloring has in other parts"):
        read_results(STUDY, tmp_path / "records")


def test_at_equal_cpu_time_a_slower_run_is_judged_where_it_had_come_by_then() -> None:
    def run(seconds: float, end: float) -> Record:
        spent = ((0.0, 0.2), (seconds / 2, (0.2 + end) / 2), (seconds, end))
        return {"curve": [{"cpu_seconds": cpu, PRIMARY: value} for cpu, value in spent]}

    slow, fast = {0: run(200.0, 1.0), 1: run(200.0, 0.8)}, {0: run(100.0, 0.4), 1: run(100.0, 0.4)}
    at_the_end = at_equal_cost(slow, fast, "slow", PRIMARY, 1.0)
    assert at_the_end.differences == pytest.approx([0.6 - 0.4, 0.5 - 0.4])
    assert at_equal_cost(slow, fast, "slow", PRIMARY, 0.25).mean == pytest.approx((0.3 + 0.275) / 2 - 0.25)
    assert at_cost(fast[0], PRIMARY, 900.0) == 0.4, "nothing is made up beyond the last evaluation"


def test_the_ceiling_of_coverage_is_that_of_an_even_policy() -> None:
    few, many = (
        {"distinct@8": [1.0, 0.0], "coverage@8": [0.5, 0.0]},
        {"distinct@8": [0.02, 2.7], "coverage@8": [0.01, 0.9]},
    )
    assert even_share([{"problems": few}, {"problems": many}]) == pytest.approx((1 - 0.5**8 + 1 - (2 / 3) ** 8) / 2)
    assert even_share([{"problems": few}]) is None, "nobody answered the second problem"
    assert even_share([{"problems": {}}]) is None


def test_what_is_asked_further_comes_from_the_records() -> None:
    results, part = read_results(STUDY, RECORDS), STUDY.parts["confirmatory"]
    rows = since_start(results, part).splitlines()[2:]
    assert len(rows) == 3 * 4
    curves = [record["curve"] for record in results.runs("confirmatory", "maxent").values()]
    moved = fmean(curve[-1]["pass@1"] - curve[0]["pass@1"] for curve in curves)
    [row] = [row for row in rows if row.startswith("| `maxent` | pass@1 |")]
    assert f"{moved:+.3f}".replace("0.", ".") in row
    assert since_start(results, STUDY.parts["countdown"]) == NOT_RUN
    asked = {"trained": [dict.fromkeys(TESTED, 0.25), dict.fromkeys(TESTED, 0.5)]}
    for key, record in results.records.items():
        results.records[key] = record | asked
    assert on_training_problems(results, part).splitlines()[2:4] == [
        "| start | 6 | .250 ± .000 | .250 ± .000 | .250 ± .000 |",
        "| `dr_grpo` | 6 | .500 ± .000 | .500 ± .000 | .500 ± .000 |",
    ]


def test_a_page_that_asks_for_an_unknown_section_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- verdict: begin -->\n<!-- verdict: end -->\n")
    assert main(["--results", str(RECORDS), "--page", str(page)]) == 1
    assert "asks for ['verdict']: there are verdicts, " in capsys.readouterr().err


def test_the_studys_page_says_what_its_results_say() -> None:
    quoted = sections(read_results(STUDY, HERE / "results"))
    for found in MARKS.finditer((HERE / "README.md").read_text(encoding="utf-8")):
        assert quoted[found["name"]] in found[0], f"{found['name']}: run python -m experiments.mode_coverage.analyse"
