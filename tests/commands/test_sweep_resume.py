"""An interrupted sweep goes on: what is finished stays, what has begun goes on exactly, what is missing starts."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from support.identical import assert_identical
from support.runs import SMALL, checkpoint_of, completion_lines, metric_lines, state_of, weights_of
from support.sweep_jobs import note, wait_for

from maxent_grpo.__main__ import main as command
from maxent_grpo.commands.sweep import continue_command, run_sweep
from maxent_grpo.commands.train import hydra_main
from maxent_grpo.config.compose import config_directory
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.sweeps.command_line import sort_command
from maxent_grpo.sweeps.failure import SweepError
from maxent_grpo.sweeps.record import SET_ASIDE, Standing, read_job, read_jobs, write_job

ROOT = config_directory().parent
SMALL_JOBS = (
    *SMALL,
    "checkpoint.every_n_steps=1",
    "optimization.total_training_steps=3",
    "evaluation.every_n_steps=3",
)
RESUME = "run.sweep_resume=true"
SEEDS = ("0-seed=0", "1-seed=1", "2-seed=2")


def jobs(folder: Path) -> list[str]:
    return [*SMALL_JOBS, "seed=0,1,2", f"hydra.sweep.dir={folder}"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "undisturbed"
    run_sweep(jobs(folder), hydra_main)
    return folder


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))


def test_a_killed_sweep_goes_on_and_ends_as_the_undisturbed_one(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep"
    half_done = folder / "1-seed=1"
    program = [sys.executable, str(ROOT / "train.py"), "-m", *jobs(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")}
    with subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            wait_for((half_done / "checkpoints" / "step_1" / "manifest.json").is_file)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert [job.standing for job in read_jobs(folder)] == [Standing.finished, Standing.interrupted, Standing.waiting]
    assert [row["status"] for row in table(folder)] == ["finished", "running", "waiting"]
    finished = sorted((path, path.stat().st_mtime_ns) for path in (folder / SEEDS[0]).rglob("*") if path.is_file())

    run_sweep([*jobs(folder), RESUME], hydra_main)
    said = capsys.readouterr().out
    assert "3 jobs, of which 1 skipped, 1 continued, 1 started" in said
    assert "  skipped    0-seed=0: finished" in said
    assert "1-seed=1: was interrupted; goes on from checkpoints/step_" in said
    assert "job 2 of 3, 1-seed=1: continues from checkpoints/step_" in said
    assert "job 1 of 3" not in said
    assert (
        sorted((path, path.stat().st_mtime_ns) for path in (folder / SEEDS[0]).rglob("*") if path.is_file()) == finished
    )
    for name in SEEDS:
        # not the whole state: Python's own random numbers, which no step draws, begin anew in every process
        resumed, straight = checkpoint_of(folder / name), checkpoint_of(undisturbed / name)
        assert_identical(weights_of(resumed), weights_of(straight), name)
        assert_identical(state_of(resumed).states["optimizer"], state_of(straight).states["optimizer"], name)
        assert metric_lines(folder / name) == metric_lines(undisturbed / name)
        assert completion_lines(folder / name) == completion_lines(undisturbed / name)
    rows, expected = table(folder), table(undisturbed)
    measured = [name for name in rows[0] if name.startswith(("eval/", "reward/", "loss/"))]
    assert [[row[name] for name in ("job", "seed", "status", "steps", *measured)] for row in rows] == [
        [row[name] for name in ("job", "seed", "status", "steps", *measured)] for row in expected
    ]
    assert len(measured) > 20


def test_the_table_has_a_row_for_each_job_and_can_be_made_again(
    undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (undisturbed / "sweep.csv").unlink()
    command(["sweep-table", str(undisturbed)])
    rows = table(undisturbed)
    assert [(row["job"], row["seed"], row["status"], row["steps"]) for row in rows] == [
        (name, str(seed), "finished", "3") for seed, name in enumerate(SEEDS)
    ]
    for row in rows:
        lines = metric_lines(Path(row["directory"]))
        assert float(row["eval/pass@1"]) == lines[-1]["eval/pass@1"]
        assert float(row["loss/total"]) == lines[-1]["loss/total"]
        assert float(row["seconds"]) > 0
    said = capsys.readouterr().out.splitlines()
    values = [float(row["eval/pass@1"]) for row in rows]
    mean = sum(values) / 3
    spread = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    assert f"{mean:.3f} ± {spread:.3f}" in said[said.index("mean ± standard deviation over seeds") + 2]
    with pytest.raises(SystemExit) as stopped:
        command(["sweep-table", str(undisturbed / SEEDS[0] / "checkpoints")])
    assert stopped.value.code == 2


def test_the_newest_sweep_of_the_same_jobs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no sweep of these jobs lies in"):
        run_sweep(["seed=4,5", RESUME], note)
    run_sweep(["seed=4,5"], note)
    [folder] = [path.parent for path in tmp_path.glob("outputs/*/*/sweep.json")]
    shutil.rmtree(folder / "1-seed=5")
    run_sweep(["seed=4,5", RESUME], note)
    assert (folder / "1-seed=5" / "note.txt").read_text() == "5 None"
    assert "of which 1 skipped, 1 started" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no sweep of these jobs lies in"):
        run_sweep(["seed=4,5,6", RESUME], note)


def test_a_failed_job_is_tried_again_and_what_it_left_without_a_checkpoint_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_after_its_first_words(config: DictConfig) -> None:
        (Path(config.run.dir) / "metrics.jsonl").write_text('{"step": 0}\n')
        raise DataError("no data today")

    def in_folder(job: Any) -> Any:
        def run(config: DictConfig) -> None:
            from hydra.core.hydra_config import HydraConfig

            config.run.dir = HydraConfig.get().runtime.output_dir
            job(config)

        return run

    arguments = ["seed=4,5", f"hydra.sweep.dir={tmp_path}/sweep"]
    with pytest.raises(SweepError) as caught:
        run_sweep(arguments, in_folder(fails_after_its_first_words))
    assert str(caught.value).count("DataError: no data today") == 2
    assert f"continue it: python train.py -m seed=4,5 hydra.sweep.dir={tmp_path}/sweep run.sweep_resume=true" in (
        capsys.readouterr().out
    )
    run_sweep([*arguments, RESUME], note)
    said = capsys.readouterr().out
    assert (
        f"0-seed=4: failed (DataError: no data today) without a checkpoint, its files are kept in {SET_ASIDE}" in said
    )
    assert (tmp_path / "sweep" / "0-seed=4" / "note.txt").read_text() == "4 None"
    kept = tmp_path / "sweep" / SET_ASIDE / "0-seed=4.1"
    assert sorted(path.name for path in kept.iterdir()) == ["job.json", "metrics.jsonl"]
    assert [job.standing for job in read_jobs(tmp_path / "sweep")] == [Standing.finished, Standing.finished]


def test_a_sweep_is_neither_begun_twice_nor_mixed_with_another(tmp_path: Path) -> None:
    arguments = ["seed=4", f"hydra.sweep.dir={tmp_path}/sweep"]
    seen: list[str] = []

    def tries_the_same(config: DictConfig) -> None:
        with pytest.raises(ConfigError, match=rf"a sweep runs there now \(process {os.getpid()} on ") as caught:
            run_sweep([*arguments, RESUME], note)
        seen.append(str(caught.value))

    run_sweep(arguments, tries_the_same)
    assert len(seen) == 1
    with pytest.raises(ConfigError, match=r"already holds a sweep; continue it with run\.sweep_resume=true"):
        run_sweep(arguments, note)
    with pytest.raises(ConfigError, match=r"holds a sweep of other jobs \(only there: seed=4; only here: seed=5\)"):
        run_sweep(["seed=5", arguments[1], RESUME], note)


def test_a_sweep_that_another_version_began_goes_on(tmp_path: Path) -> None:
    """Its records hold what this version does not read, and lack what it knows a default for."""
    arguments = ["seed=4,5", f"hydra.sweep.dir={tmp_path}/sweep"]
    run_sweep(arguments, note)
    for name, left_out in (("sweep.json", "objective"), ("0-seed=4/job.json", "exit_status")):
        path = tmp_path / "sweep" / name
        content = json.loads(path.read_text())
        del content[left_out]
        path.write_text(json.dumps(content | {"of_a_later_version": 1}))
    run_sweep([*arguments, RESUME], note)
    assert [job.standing for job in read_jobs(tmp_path / "sweep")] == [Standing.finished] * 2
    path.write_text("{}")
    with pytest.raises(
        DataError, match=r"0-seed=4/job\.json is not the record of a job \('standing'\): it was changed"
    ):
        read_jobs(tmp_path / "sweep")


def test_a_job_that_another_process_runs_is_left_alone(tmp_path: Path) -> None:
    arguments = ["seed=4,5", f"hydra.sweep.dir={tmp_path}/sweep"]
    run_sweep(arguments, note)
    folder = tmp_path / "sweep" / "1-seed=5"
    record = read_job(folder)
    assert record is not None
    write_job(folder, replace(record, standing=Standing.running))
    held = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(folder / ".job.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(SweepError, match="still runs in another process"):
            run_sweep([*arguments, RESUME], note)
        owner.kill()
    (folder / "note.txt").unlink()
    run_sweep([*arguments, RESUME], note)
    assert (folder / "note.txt").read_text() == "5 None"


def test_the_command_that_continues_a_sweep_names_the_folder_of_its_presets(tmp_path: Path) -> None:
    texts = ["seed=0,1", "hydra.sweep.dir=elsewhere"]
    said = continue_command(Path("sweep"), sort_command(texts, str(tmp_path)))
    assert said.endswith(f" -m --config-dir {tmp_path} seed=0,1 hydra.sweep.dir=sweep run.sweep_resume=true")
    assert continue_command(Path("sweep"), sort_command(texts, None)).endswith(
        " -m seed=0,1 hydra.sweep.dir=sweep run.sweep_resume=true"
    )
