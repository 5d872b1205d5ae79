import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import crash_writer
import pytest

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.manifest import verify
from maxent_grpo.training.checkpoint.store import CheckpointStore, find_checkpoint

SCRIPT = Path(crash_writer.__file__)


@pytest.fixture
def fast_dir() -> Iterator[Path]:
    """A folder in memory where there is one: a kill, unlike a power cut, does not test the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def version_of(folder: Path) -> int:
    """The version a checkpoint was written with; fails unless every file is whole and of that version."""
    verify(folder)
    contents = {(folder / name).read_bytes() for name in ("model/weights.bin", "state.bin", "more.bin")}
    [content] = contents
    assert content == content[: content.index(b";") + 1] * 2_000
    return int(content[: content.index(b";")])


def check_what_a_crash_left(run_dir: Path) -> int:
    """Every visible checkpoint is whole, both pointers name one, and anything half-written is refused."""
    directory = run_dir / "checkpoints"
    for folder in directory.iterdir():
        if folder.name.startswith("step_"):
            version_of(folder)
        elif folder.is_dir():
            try:
                accepted = find_checkpoint(folder)
            except CheckpointError:
                continue
            version_of(accepted)
    for pointer in ("latest", "best"):
        if (directory / pointer).exists():
            version_of(directory / (directory / pointer).read_text().strip())
    found = find_checkpoint(run_dir)
    assert found.name == (directory / "latest").read_text().strip()
    return version_of(found)


def test_a_process_killed_at_random_moments_leaves_only_complete_checkpoints(tmp_path: Path) -> None:
    rng = random.Random()
    for attempt in range(5):
        run_dir = tmp_path / str(attempt)
        writer = subprocess.Popen([sys.executable, SCRIPT, "loop", run_dir], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.2))
        writer.kill()
        announced = [int(line) for line in writer.stdout.read().split()]
        writer.stdout.close()
        assert writer.wait() == -9
        version = check_what_a_crash_left(run_dir)
        assert version - max(announced, default=1) in (0, 1)
        store = CheckpointStore(run_dir, keep_last=2)
        assert not [path for path in store.directory.iterdir() if path.name.startswith(".tmp-")]
        store.save(1, lambda folder: crash_writer.write(folder, 1000))
        assert check_what_a_crash_left(run_dir) == 1000


def test_a_save_that_dies_at_any_of_its_file_operations_leaves_only_complete_checkpoints(fast_dir: Path) -> None:
    base = fast_dir / "base"
    store = CheckpointStore(base, keep_last=2)
    for step in (1, 2):
        store.save(step, lambda folder, step=step: crash_writer.write(folder, step), is_best=step == 2)
    subprocess.run([sys.executable, SCRIPT, "each", base, fast_dir / "out"], check=True)
    crashed = sorted((fast_dir / "out").iterdir(), key=lambda path: int(path.name))
    assert len(crashed) > 30
    versions = [check_what_a_crash_left(run_dir) for run_dir in crashed]
    assert versions == sorted(versions)
    assert (versions[0], versions[-1]) == (2, 99)
    for run_dir in crashed[::4]:
        before = find_checkpoint(run_dir)
        reopened = CheckpointStore(run_dir, keep_last=2)
        assert find_checkpoint(run_dir) == before
        reopened.save(2, lambda folder: crash_writer.write(folder, 100))
        reopened.save(3, lambda folder: crash_writer.write(folder, 101), is_best=True)
        assert check_what_a_crash_left(run_dir) == 101
        assert {path.name for path in reopened.directory.iterdir()} == {"latest", "best", "step_2", "step_3"}
