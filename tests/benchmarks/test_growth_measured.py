"""The measurements of growth: their table, the run that they watch, and bounds on what they find."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth, long_run
from benchmarks.catalogue import OURS
from benchmarks.schedule import Outcome, run_process
from maxent_grpo.config.compose import config_directory

REPOSITORY = config_directory().parent
MIB = 2**20
RECORDED = {"metrics.jsonl": 3 * MIB, "completions.jsonl": MIB}
MACHINE = {"processor": "Processor", "cores": 2, "torch": "2.13.0"}


def sample(seconds: float, peak: int = 300, **facts: Any) -> dict[str, Any]:
    return {"seconds": [9.0, seconds], "work": [1.0, 1.0], "drop": 1, "base": 100 * MIB, "peak": peak * MIB, **facts}


def outcomes(**samples: dict[str, Any]) -> list[Outcome]:
    named = {measurement.name: measurement for measurement in growth.MEASUREMENTS}
    return [Outcome(named[name.replace("_", "-")], {OURS: [one]}) for name, one in samples.items()]


def test_every_row_reads_measurements_that_are_made() -> None:
    names = {measurement.name for measurement in growth.MEASUREMENTS}
    assert len(names) == len(growth.MEASUREMENTS)
    read = {name for row in growth.ROWS for name in (row[2], row[4])}
    assert read == names


def test_the_table_sets_both_ends_beside_each_other_and_leaves_out_what_was_not_measured() -> None:
    failed = Outcome(growth.MEASUREMENTS[-1], notes={OURS: "failed: no port"}, failed=True)
    found = growth.results_of([*outcomes(step=sample(0.25), step_group=sample(1.5, peak=500)), failed], MACHINE)
    table = growth.markdown(found)
    assert "| group size × 8 | CPU time of a step | 0.25 s | 1.5 s | 6.00 |" in table
    assert "| group size × 8 | memory above the start | 200.0 MiB | 400.0 MiB | 2.00 |" in table
    assert table.count("\n| ") == 3  # the head and these
    assert "- processes-many: failed: no port" in table


def test_a_name_that_measures_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        growth.main(["--only", "lenght"])
    assert "--only names no measurement: step, step-tokens" in capsys.readouterr().err


@pytest.mark.slow
def test_a_watched_run_tells_what_every_part_of_it_cost(tmp_path: Path) -> None:
    found = long_run.measure(long_run.Work(steps=20, rows=2_000), tmp_path / "root", tmp_path / "run")
    assert 0.0 < found["start_seconds"] < 20.0
    assert min(found["first_seconds"], found["last_seconds"], found["seconds"][0], found["end_seconds"]) > 0.0
    assert found["bytes"]["metrics.jsonl"] == (tmp_path / "run" / "metrics.jsonl").stat().st_size
    assert {"report.html", "completions.jsonl", "controller_state.json"} <= found["bytes"].keys()
    # the kernel counts pages of each thread in batches, so that the peak may lag behind by a few hundred of them
    assert found["peak"] >= 0.99 * found["resident_end"] > 0


def test_readme_quotes_the_committed_growth() -> None:
    folder = REPOSITORY / "benchmarks" / "results"
    tables = [path.read_text(encoding="utf-8") for path in folder.glob("*-growth.md")]
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    inside = re.search(f"{re.escape(growth.BEGIN)}\n(.*?){re.escape(growth.END)}", page, flags=re.DOTALL)
    assert inside is not None
    assert inside.group(1) in tables
    for path in folder.glob("*-growth.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".md").read_text(encoding="utf-8") == growth.markdown(found)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """What a process of its own found."""
    measurement = next(m for m in growth.MEASUREMENTS if m.name == name)
    (form,) = measurement.plans
    return run_process(measurement.request(OURS, form) | {"root": str(folder / "material")}, folder / f"{name}.sample")


@pytest.mark.slow
def test_ten_thousand_steps_are_flat(tmp_path: Path) -> None:
    found = measured("length-many", tmp_path)
    assert found["resident_end"] - found["resident_tenth"] < 12 * MIB
    assert found["last_seconds"] < 1.6 * found["first_seconds"]
    assert found["peak"] - found["resident_end"] < 160 * MIB  # the report reads the whole record once
    assert found["bytes"]["metrics.jsonl"] < 10_000 * 4096
    assert found["bytes"]["report.html"] < 2 * MIB


@pytest.mark.slow
def test_a_million_rows_cost_a_look_at_each_and_nothing_of_a_step(tmp_path: Path) -> None:
    few, many = (measured(name, tmp_path) for name in ("rows-jsonl", "rows-jsonl-many"))
    assert many["start_seconds"] - few["start_seconds"] < 1_000_000 * 100e-6
    assert many["peak"] - few["peak"] < 150 * MIB
    assert (
        many["seconds"][0] < 4 * few["seconds"][0]
    )  # a thousand times the rows; a step of 20 ms is not measured closely


@pytest.mark.slow
def test_eight_times_the_completions_cost_at_most_eight_times_a_step_and_memory_as_sampling_is_bounded(
    tmp_path: Path,
) -> None:
    base = measured("step", tmp_path)
    for name in ("step-group-limited", "step-tokens-limited"):
        found = measured(name, tmp_path)
        assert min(found["seconds"][found["drop"] :]) < 9.0 * min(base["seconds"][base["drop"] :]), name
        # the system's allocator takes some steps to reach what it keeps, which the small step does not get to
        assert found["peak"] - found["base"] < 3.0 * (base["peak"] - base["base"]), name
