"""Jobs in other processes: two at a time, queued, killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from joblib.externals.loky import get_reusable_executor
from omegaconf import OmegaConf
from support.own_options import options_taken_back
from support.runs import SMALL, metric_lines, train
from support.sweep_jobs import OwnScoringConfig, killed_with_seed_1, meet, meet_and_train, note, stopped_with_seed_1

import maxent_grpo
from maxent_grpo.commands.sweep import run_sweep
from maxent_grpo.commands.train import hydra_main
from maxent_grpo.errors import ConfigError
from maxent_grpo.sweeps import launchers
from maxent_grpo.sweeps.failure import SweepError, SweepFailure
from maxent_grpo.sweeps.record import Standing, read_jobs

JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SUBMITIT = ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=2")


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the tests' modules, on a machine of two cores."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launchers, "num_cores", lambda: 2)


@pytest.fixture(scope="module", autouse=True)
def workers_end_with_the_tests() -> Iterator[None]:
    """joblib would keep its processes for later."""
    yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def test_joblib_runs_two_jobs_at_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # workers must learn of an option of the user's own
    with options_taken_back():
        maxent_grpo.add_option("scoring", "own", OwnScoringConfig)
        run_sweep(["scoring=own", "seed=3,4", f"hydra.sweep.dir={tmp_path}/sweep", *JOBLIB], meet)
    assert [job.standing for job in read_jobs(tmp_path / "sweep")] == [Standing.finished] * 2
    assert [(tmp_path / "sweep" / name / "note.txt").read_text() for name in ("0-seed=3", "1-seed=4")] == ["3 1", "4 1"]
    # and of who added it, which the run writes down
    assert [(tmp_path / "sweep" / name / "modules.txt").read_text() for name in ("0-seed=3", "1-seed=4")] == [
        __name__
    ] * 2
    assert "job 2 of 2, 1-seed=4: finished" in capfd.readouterr().out


def test_an_error_in_a_worker_arrives_as_one_line(tmp_path: Path) -> None:
    with pytest.raises(SweepError) as caught:
        run_sweep(["seed=3,13", f"hydra.sweep.dir={tmp_path}/sweep", *JOBLIB], note)
    file = tmp_path / "sweep" / "1-seed=13" / "error.txt"
    sentence = f"ZeroDivisionError: seed 13 (traceback: {file})"
    assert str(caught.value).splitlines() == ["1 of 2 jobs failed:", "  - seed=13", f"      {sentence}"]
    assert 'raise ZeroDivisionError("seed 13' in file.read_text()


def test_a_job_that_is_told_to_stop_leaves_the_others_running(tmp_path: Path) -> None:
    with pytest.raises(SweepError) as caught:
        run_sweep(["seed=0,1", f"hydra.sweep.dir={tmp_path}/sweep", *JOBLIB], stopped_with_seed_1)
    assert [job.standing for job in read_jobs(tmp_path / "sweep")] == [Standing.finished, Standing.interrupted]
    said = ["1 of 2 jobs failed:", "  - seed=1", "      its run was stopped before its last step"]
    assert str(caught.value).splitlines() == said
    assert caught.value.exit_status == 75


@pytest.mark.parametrize(
    ("jobs", "sweep"), [([75], 75), ([75, 75], 75), ([143], 143), ([2, 2], 2), ([2, 75], 1), ([1, 75], 1), ([1], 1)]
)
def test_a_sweep_ends_as_the_jobs_did_that_did_not_finish(jobs: list[int], sweep: int) -> None:
    assert SweepError(3, [SweepFailure([], [], status) for status in jobs]).exit_status == sweep


@pytest.mark.slow
def test_runs_that_train_at_the_same_time_are_those_that_train_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "logging.console=plain", "scoring=maxent,dr_grpo", f"hydra.sweep.dir={tmp_path}/two", *JOBLIB]
    run_sweep(arguments, meet_and_train)
    assert "sequences per step" not in capfd.readouterr().out  # two consoles at once would talk over each other
    for name in ("maxent", "dr_grpo"):
        together = next((tmp_path / "two").glob(f"*-scoring={name}"))
        assert "sequences per step" in (together / "run.log").read_text()
        train(tmp_path / name, f"scoring={name}", "run.num_threads=1")
        assert metric_lines(together) == metric_lines(tmp_path / name)


@pytest.mark.slow
def test_a_job_whose_process_is_killed_does_not_take_the_finished_ones_with_it(tmp_path: Path) -> None:
    # joblib takes workers that have grown by loading torch for leaking ones and replaces them, and then may miss the kill
    get_reusable_executor().shutdown(wait=True, kill_workers=True)
    with pytest.raises(SweepError) as caught:
        run_sweep(["seed=0,1", f"hydra.sweep.dir={tmp_path}/sweep", *JOBLIB], killed_with_seed_1)
    first, second, third, *_ = str(caught.value).splitlines()
    assert (first, second) == ("1 of 2 jobs failed:", "  - seed=1")
    assert third.startswith("      ended without finishing; TerminatedWorkerError: ")
    assert [job.standing for job in read_jobs(tmp_path / "sweep")] == [Standing.finished, Standing.interrupted]


def test_submitit_runs_jobs_in_processes_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    with pytest.raises(SweepError) as caught:
        run_sweep(["seed=3,-1", f"hydra.sweep.dir={folder}", *SUBMITIT], note)
    assert str(caught.value).splitlines()[:2] == ["1 of 2 jobs failed:", "  - seed=-1"]
    assert [job.standing for job in read_jobs(folder)] == [Standing.finished, Standing.refused]
    assert (folder / "0-seed=3" / "note.txt").read_text().startswith("3 ")
    assert "job 1 of 2, 0-seed=3: finished" in capsys.readouterr().out  # said in this process, of another one


@pytest.mark.slow
def test_submitit_trains(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    run_sweep([*SMALL, "seed=0,1", f"hydra.sweep.dir={folder}", *SUBMITIT], hydra_main)
    for job in read_jobs(folder):
        assert (job.standing, job.steps) == (Standing.finished, 2)
        train(tmp_path / job.name, f"seed={job.changed['seed']}", "run.num_threads=1")
        assert metric_lines(folder / job.name) == metric_lines(tmp_path / job.name)


def test_jobs_that_run_at_once_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def hydra(launcher: dict[str, object], **sweeper: object) -> Any:
        return OmegaConf.create({"launcher": launcher, "sweeper": sweeper})

    joblib = {"_target_": "x.JoblibLauncher", "n_jobs": 4}
    local = {"_target_": "x.LocalLauncher", "cpus_per_task": None}
    monkeypatch.setattr(launchers, "num_cores", lambda: 12)
    threads = launchers.threads_of_a_job
    assert threads(hydra({"_target_": "x.BasicLauncher"}), 6) is None
    assert threads(hydra({"_target_": "x.SlurmLauncher"}), 6) is None
    assert threads(hydra(joblib), 6) == 3
    assert threads(hydra(joblib), 2) == 6
    assert threads(hydra({**joblib, "n_jobs": -1}), 100) == 1
    assert threads(hydra(local), 6) == 2
    assert threads(hydra(local, max_batch_size=2), 6) == 6
    assert threads(hydra({**local, "cpus_per_task": 5}), 6) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads(hydra(joblib), 6) is None


def test_a_plugin_that_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "find_module", lambda name: None)
    install = r"is not installed; pip install -e '\.\[sweeps\]'"
    for choice, plugin in (
        ("hydra/launcher=joblib", "hydra-joblib-launcher"),
        ("hydra/launcher=slurm", "hydra-submitit-launcher"),
        ("hydra/sweeper=tau_and_lr", "hydra-optuna-sweeper"),
    ):
        with pytest.raises(ConfigError, match=f"{choice}: {plugin} {install}"):
            run_sweep(["seed=0,1", choice], note)
    with pytest.raises(
        ConfigError, match="hydra/launcher=ray: hydra-ray-launcher is not installed; pip install hydra-ray"
    ):
        run_sweep(["seed=0,1", "hydra/launcher=ray"], note)
    assert list(launchers.missing_plugins(OverridesParser.create().parse_overrides(["hydra/launcher=basic"]))) == []


def test_the_preset_for_slurm_composes(tmp_path: Path) -> None:
    arguments = [
        "seed=13,14",
        "hydra/launcher=slurm",
        "hydra.launcher.partition=gpu",
        f"hydra.sweep.dir={tmp_path}/sweep",
    ]
    with pytest.raises(SweepError) as caught:
        run_sweep(arguments, note)  # there is no sbatch here, which is what the launcher says
    assert "ended without finishing; RuntimeError: " in str(caught.value)
