"""The study in minutes: two arms, two pairs, through its own sweep, collected and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.mode_coverage.collect import collect
from experiments.mode_coverage.effects import BASELINE, HARM, PRIMARY, effects, read_results
from experiments.mode_coverage.run import ended, main, sweep_command, write_presets
from experiments.mode_coverage.table import read_study


@pytest.mark.slow
def test_the_baseline_forgets_right_answers_that_maxent_keeps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = read_study()
    part = study.parts["reduced"]
    command = ["reduced", "--outputs", str(tmp_path / "outputs"), "--results", str(tmp_path / "results")]
    assert main(command) == 0
    results = read_results(study, tmp_path / "results")
    assert results.is_complete(part)
    base, maxent = results.runs("reduced", BASELINE), results.runs("reduced", "maxent")
    for pair in part.pairs:
        # one start for both arms, to the last digit
        assert base[pair]["curve"][0] == maxent[pair]["curve"][0]
        assert base[pair]["cpu_seconds"] > 0
    of = {each.measure: each for each in effects(results, part)}
    assert min(of[PRIMARY].differences) > 0.05, "coverage"
    assert min(of[HARM].differences) > -0.1, "pass@1"
    lost = [record["curve"][-1][PRIMARY] - record["curve"][0][PRIMARY] for record in base.values()]
    assert max(lost) < -0.05, "Dr.GRPO loses coverage"
    # the same command again finds everything done
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "outputs").rglob("metrics.jsonl")}
    capfd.readouterr()
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_runs_that_diverge_are_results_though_their_sweep_fails(tmp_path: Path) -> None:
    study, outputs, results = read_study(), tmp_path / "outputs", tmp_path / "results"
    part = study.parts["reduced"]
    quick = [
        "model.warm_start.steps=40",
        "data.num_train=64",
        "data.num_eval=4",
        "optimization.total_training_steps=12",
    ]
    write_presets(study, part, outputs)
    bursting = [*quick, "optimization.learning_rate=1e30", "optimization.max_grad_norm=0"]
    assert ended(sweep_command(study, part, outputs, 2, bursting)) != 0
    said, is_whole = collect(study, part, outputs, results)
    assert (said, is_whole) == (f"reduced: 4 of 4 runs in {results / 'reduced'}", True)
    for record in read_results(study, results).records.values():
        assert record["diverged"].startswith("NonFiniteError: ")
        assert (record["curve"][0]["step"], record["curve"][-1]["step"] < 12) == (0, True)
