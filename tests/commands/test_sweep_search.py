"""Searches: another sweeper chooses the jobs, and a job's value is a metric of its end."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from support.runs import SMALL, metric_lines
from support.sweep_jobs import note

from maxent_grpo.commands.sweep import run_sweep
from maxent_grpo.commands.train import hydra_main
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.sweeps.failure import SweepError
from maxent_grpo.sweeps.record import Standing, read_jobs

# an old import of Optuna's, of SQLAlchemy, when it is loaded first
pytestmark = pytest.mark.filterwarnings("ignore:The ``declarative_base:DeprecationWarning")

SEARCH = ("hydra/sweeper=tau_and_lr", "hydra.sweeper.n_trials=3")
SPACE = tuple(item for item in SMALL if not item.startswith("optimization.learning_rate="))
LOSS = "run.objective=loss/total"


def test_a_search_goes_on_past_a_bad_job_and_finds_the_best_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[float] = []

    def train_all_but_the_second(config: DictConfig) -> None:
        seen.append(config.scoring.weighting.tau)
        if len(seen) == 2:
            raise DataError("no data for the second")
        hydra_main(config)

    folder = tmp_path / "search"
    arguments = [*SPACE, *SEARCH, LOSS, "run.objective_goal=min", f"hydra.sweep.dir={folder}"]
    with pytest.raises(SweepError) as caught:
        run_sweep(arguments, train_all_but_the_second)
    assert str(caught.value).splitlines()[0] == "1 of 3 jobs failed:"
    assert str(caught.value).splitlines()[2] == "      DataError: no data for the second"
    assert len(set(seen)) == 3
    assert all(0.03 <= tau <= 1.0 for tau in seen)
    jobs = read_jobs(folder)
    assert [job.standing for job in jobs] == [Standing.finished, Standing.failed, Standing.finished]
    losses = [metric_lines(folder / job.name)[-1]["loss/total"] for job in (jobs[0], jobs[2])]
    result = OmegaConf.load(folder / "optimization_results.yaml")
    assert result.best_value == min(losses)
    best = jobs[0] if losses[0] < losses[1] else jobs[2]
    assert {key: str(value) for key, value in result.best_params.items()} == best.changed
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [float(row["scoring.weighting.tau"]) for row in rows] == seen
    out = capsys.readouterr()
    shown = [line.split()[0] for line in out.out.splitlines() if line[:2] in ("0 ", "1 ", "2 ")]
    assert shown == [best.name[0], "2" if best is jobs[0] else "0", "1"]
    assert "Error executing job" not in out.err
    assert "job 3 of 3" in out.out

    with pytest.raises(ConfigError, match="already holds a sweep"):
        run_sweep(arguments, hydra_main)
    with pytest.raises(ConfigError, match="holds another sweep"):
        run_sweep([*arguments, "run.objective=reward/mean", "run.sweep_resume=true"], hydra_main)
    run_sweep([*arguments, "run.sweep_resume=true"], hydra_main)
    said = capsys.readouterr().out
    assert f"job 1 of 3, {jobs[0].name}: finished before" in said
    assert f"job 2 of 3, {jobs[1].name}: finished" in said.splitlines()
    assert read_jobs(folder)[0] == jobs[0]
    assert read_jobs(folder)[1].standing is Standing.finished


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), r"run\.objective: a search needs the metric it is for"),
        (("run.objective=eval/greedi",), r"no such metric; did you mean eval/greedy\?"),
        (("run.objective=eval/pass@1", "evaluation.enabled=false"), "which evaluation.enabled=false switches off"),
        ((LOSS, "hydra.sweeper.storage='sqlite:///x.db'"), "searches are kept in their folder"),
        ((LOSS, "hydra.sweeper.direction=minimize"), r"leave it out; run\.objective_goal=max or min says it"),
        ((LOSS, "scoring=maxent,bogus"), "scoring=bogus: no such option"),
        ((LOSS, "run.dry=true"), "none to describe"),
    ],
)
def test_a_search_that_cannot_work_is_refused_before_its_first_job(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_sweep([*SEARCH, *arguments, f"hydra.sweep.dir={tmp_path}/search"], note)
    assert not (tmp_path / "search").exists()


def test_a_job_without_its_objective_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"run\.objective=loss/total: the job ended without that metric"):
        run_sweep([*SEARCH, "hydra.sweeper.n_trials=1", LOSS, f"hydra.sweep.dir={tmp_path}/search"], note)
