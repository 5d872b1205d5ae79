"""Disks that are full, folders that cannot be written: the run stops with a sentence, and what it wrote before is whole."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes import Start, finish
from support.runs import completion_lines, configured, metric_lines, small, train
from support.same_run import assert_same_run

from maxent_grpo.errors import CheckpointError, StorageError
from maxent_grpo.training.checkpoint.manifest import verify
from maxent_grpo.training.setup import run_from_config

RUN = (
    *("scoring=dr_grpo", "evaluation.enabled=false", "optimization.total_training_steps=10"),
    *("checkpoint.every_n_steps=2", "data.num_train=20"),
)
NOBODY = 65534


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder that other users can look into, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 700 KiB, which two checkpoints of the run fit on and a third does not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    try:
        is_there = os.geteuid() == 0 and not subprocess.run(command, check=False, capture_output=True).returncode
    except OSError:
        is_there = False
    if not is_there:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield disk
    finally:
        with suppress(OSError):
            subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on a disk with room."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir, *RUN)
    return run_dir


def test_a_run_on_a_full_disk_stops_and_goes_on_when_there_is_room(
    whole: Path, small_disk: Path, tmp_path: Path
) -> None:
    run_dir, said = small_disk / "run", tmp_path / "said"
    words = (*small(()), *RUN, "checkpoint.resume_from=latest")
    start = Start(run_dir, words, as_command=True, said=said)
    assert finish(start) == 1
    saved = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert saved == ["latest", "step_2", "step_4"]
    for name in saved[1:]:
        verify(run_dir / "checkpoints" / name)
    [problem] = [line for line in said.read_text().splitlines() if line.startswith("train.py: step")]
    assert problem.startswith("train.py: step 6: the checkpoint cannot be written (")
    assert "No space left on device" in problem
    assert f"{run_dir}/checkpoints/step_4 is whole: make room" in problem
    assert "Traceback" not in said.read_text()
    assert finish(start) == 1  # and again, without damage
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    assert finish(start) == 0, said.read_text()
    assert_same_run(whole, run_dir)


def test_a_checkpoint_over_the_largest_size_of_a_file_is_refused_whole(whole: Path, tmp_path: Path) -> None:
    """The optimiser's file is 113 kB, those before it are smaller."""
    run_dir, said = tmp_path / "run", tmp_path / "said"
    latest = {"checkpoint.resume_from": "latest"}
    assert finish(Start(run_dir, RUN, settings=latest, largest_file=100_000, said=said)) == 1
    assert "step 2: the checkpoint cannot be written" in said.read_text()
    assert "no earlier one is there: make room" in said.read_text()
    assert list((run_dir / "checkpoints").iterdir()) == []
    assert [line["step"] for line in metric_lines(run_dir)] == [1, 2]
    train(run_dir, *RUN, resume_from=Path("latest"))
    assert_same_run(whole, run_dir)


def test_a_record_that_cannot_grow_ends_with_whole_lines(tmp_path: Path) -> None:
    run_dir, said = tmp_path / "run", tmp_path / "said"
    unsaved = (*RUN, "checkpoint.every_n_steps=10")
    assert finish(Start(run_dir, unsaved, largest_file=30_000, said=said)) == 1
    assert f"{run_dir}/completions.jsonl cannot be written (File too large): make room" in said.read_text()
    assert len(completion_lines(run_dir)) % 16 == 0
    assert (run_dir / "completions.jsonl").read_bytes().endswith(b"}\n")


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_made(open_dir: Path) -> None:
    said = open_dir / "said"
    said.touch()
    said.chmod(0o666)
    (open_dir / "closed").mkdir(mode=0o555)
    words = (*small(()), *RUN)
    user = NOBODY if os.geteuid() == 0 else None
    closed = open_dir / "closed"
    status = finish(Start(closed / "run", words, as_command=True, user=user, said=said))
    problem = f"  - run.dir={closed}/run: {closed} is not writable; name another folder"
    assert (status, said.read_text().splitlines()) == (2, ["train.py: 1 configuration problem:", problem])
    assert list((open_dir / "closed").iterdir()) == []


def test_a_start_that_fails_is_no_obstacle_for_the_next(tmp_path: Path) -> None:
    """The folder is there, with settings and a log; what failed is mended and the command given again."""
    missing = (*RUN, "optimization.prompts_per_step=50")
    with pytest.raises(Exception, match="fewer than"):
        train(tmp_path / "run", *missing)
    assert (tmp_path / "run" / "config.yaml").is_file()
    assert train(tmp_path / "run", *RUN, "optimization.total_training_steps=1").global_step == 1


def test_a_run_without_a_checkpoint_begins_anew_only_as_the_same_run(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    latest = {"checkpoint.resume_from": "latest"}
    assert finish(Start(run_dir, RUN, largest_file=100_000, said=tmp_path / "said")) == 1
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"cannot resume: 1 setting .*\n  - seed: 0"):
        run_from_config(configured(run_dir, *RUN, "seed=1", settings=latest))
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    run_from_config(configured(run_dir, *RUN, settings=latest))
    assert_same_run(whole, run_dir)


def test_a_storage_error_is_an_oserror_with_a_sentence() -> None:
    error = StorageError("a cannot be written")
    assert isinstance(error, OSError)
    assert str(error) == "a cannot be written"
