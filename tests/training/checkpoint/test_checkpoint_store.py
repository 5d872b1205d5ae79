import logging
import random
from pathlib import Path

import pytest

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.manifest import read_manifest, verify
from maxent_grpo.training.checkpoint.store import CheckpointStore, find_checkpoint

FILES = {"model/model.safetensors": b"weights" * 50, "state/index.json": b'{"format":1}', "state/empty.json": b""}


def write(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def write_something_else(folder: Path) -> None:
    (folder / "new").write_bytes(b"new")


def names(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "checkpoints").iterdir()}


def saved_steps(run_dir: Path, keep_last: int, steps: list[int], best: int | None = None) -> CheckpointStore:
    store = CheckpointStore(run_dir, keep_last)
    for step in steps:
        store.save(step, write, is_best=step == best)
    return store


def test_a_saved_checkpoint_holds_what_was_written_and_is_found_from_every_path(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    assert (store.latest, store.best) == (None, None)
    folder = store.save(7, write, is_best=True)
    assert folder == tmp_path / "checkpoints" / "step_7" == store.latest == store.best
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    manifest = verify(folder)
    assert (manifest.step, set(manifest.files)) == (7, set(FILES))
    assert names(tmp_path) == {"step_7", "latest", "best"}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step_7\n"
    for path in (tmp_path, folder, folder.parent, folder.parent / "latest", folder.parent / "best"):
        assert find_checkpoint(path) == folder
        assert find_checkpoint(str(path)) == folder


@pytest.mark.parametrize(
    ("keep_last", "best", "kept"),
    [
        (1, None, {4}),
        (2, None, {3, 4}),
        (2, 1, {1, 3, 4}),
        (2, 3, {3, 4}),
        (1, 4, {4}),
        (9, 2, {1, 2, 3, 4}),
        (0, None, {1, 2, 3, 4}),
    ],
)
def test_rotation_keeps_the_newest_and_the_best(
    tmp_path: Path, keep_last: int, best: int | None, kept: set[int]
) -> None:
    saved_steps(tmp_path, keep_last, [1, 2, 3, 4], best)
    pointers = {"latest"} | ({"best"} if best else set())
    assert names(tmp_path) == {f"step_{step}" for step in kept} | pointers
    assert find_checkpoint(tmp_path).name == "step_4"


def test_a_new_best_lets_rotation_take_the_old_one(tmp_path: Path) -> None:
    store = saved_steps(tmp_path, 1, [1, 2, 3], best=1)
    assert names(tmp_path) == {"step_1", "step_3", "latest", "best"}
    store.save(4, write, is_best=True)
    assert names(tmp_path) == {"step_4", "latest", "best"}
    assert store.best == store.latest == tmp_path / "checkpoints" / "step_4"


def test_after_a_resume_from_an_earlier_step_the_abandoned_later_steps_rotate_out_first(tmp_path: Path) -> None:
    saved_steps(tmp_path, 0, [10, 20, 30])
    store = CheckpointStore(tmp_path, keep_last=2)
    store.save(15, write)
    assert names(tmp_path) == {"step_30", "step_15", "latest"}
    store.save(25, write)
    assert names(tmp_path) == {"step_15", "step_25", "latest"}
    assert find_checkpoint(tmp_path).name == "step_25"


def test_saving_a_step_again_replaces_it_and_pointers_stay(tmp_path: Path) -> None:
    store = saved_steps(tmp_path, 2, [1, 2], best=2)
    store.save(2, write_something_else)
    assert names(tmp_path) == {"step_1", "step_2", "latest", "best"}
    assert store.best == store.latest == tmp_path / "checkpoints" / "step_2"
    assert set(verify(tmp_path / "checkpoints" / "step_2").files) == {"new"}


def test_a_damaged_step_is_replaced_by_saving_it_again(tmp_path: Path) -> None:
    store = saved_steps(tmp_path, 2, [1, 2])
    (tmp_path / "checkpoints" / "step_1" / "manifest.json").unlink()
    store.save(1, write)
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_1"


def test_a_failing_writer_changes_nothing_and_its_error_is_passed_on(tmp_path: Path) -> None:
    store = saved_steps(tmp_path, 1, [1])

    def fail(folder: Path) -> None:
        write(folder)
        raise OSError("no space left")

    for step in (1, 2):
        with pytest.raises(OSError, match="no space left"):
            store.save(step, fail, is_best=True)
    assert names(tmp_path) == {"step_1", "latest"}
    verify(tmp_path / "checkpoints" / "step_1")


def test_leftovers_of_a_crash_are_counted_logged_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert saved_steps(tmp_path, 2, [1]).num_leftovers == 0
    directory = tmp_path / "checkpoints"
    (directory / ".tmp-step_2-2").mkdir()
    write(directory / ".tmp-step_2-2")
    (directory / ".tmp-latest").write_text("step_")
    (directory / ".replacing-step_1-2").mkdir()
    (directory / "notes.txt").write_text("the user's own")
    with caplog.at_level(logging.WARNING):
        assert CheckpointStore(tmp_path, 2).num_leftovers == 3
    assert "removed 3 leftovers of an interrupted save: .replacing-step_1-2, .tmp-latest, .tmp-step_2-2" in caplog.text
    assert names(tmp_path) == {"step_1", "latest", "notes.txt"}


def test_keep_last_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last=-1"):
        CheckpointStore(tmp_path, -1)


EVERY_FILE = [*FILES, "manifest.json"]


@pytest.mark.parametrize("name", EVERY_FILE)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    saved_steps(tmp_path, 2, [1])
    folder = tmp_path / "checkpoints" / "step_1"
    (folder / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(folder)
    state = "half-written" if name == "manifest.json" else "damaged"
    assert str(caught.value) == (
        f"checkpoint {folder} is {state}: {name} is missing; resume from another checkpoint of the run"
    )


@pytest.mark.parametrize("name", ["model/model.safetensors", "state/index.json"])
def test_a_truncated_or_lengthened_file_is_named_with_both_sizes(tmp_path: Path, name: str) -> None:
    saved_steps(tmp_path, 2, [1])
    folder = tmp_path / "checkpoints" / "step_1"
    whole = FILES[name]
    for content in (whole[:-1], whole[:1], b"", whole + b"\0"):
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            find_checkpoint(folder)
        assert f"{name} has {len(content)} bytes, its manifest says {len(whole)}" in str(caught.value)


def test_a_truncated_manifest_is_refused_at_any_length(tmp_path: Path) -> None:
    saved_steps(tmp_path, 2, [1])
    folder = tmp_path / "checkpoints" / "step_1"
    whole = (folder / "manifest.json").read_bytes()
    for length in (*range(0, len(whole), 11), len(whole) - 1):
        (folder / "manifest.json").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"manifest\.json was cut, altered or written by another version"):
            find_checkpoint(folder)


def flipped(content: bytes, bit: int) -> bytes:
    altered = bytearray(content)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


@pytest.mark.parametrize("name", ["model/model.safetensors", "state/index.json", "manifest.json"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, name: str) -> None:
    saved_steps(tmp_path, 2, [1])
    folder = tmp_path / "checkpoints" / "step_1"
    whole = (folder / name).read_bytes()
    rng = random.Random()
    for bit in rng.sample(range(8 * len(whole)), 90):
        (folder / name).write_bytes(flipped(whole, bit))
        with pytest.raises(CheckpointError, match=name):
            find_checkpoint(folder)
    (folder / name).write_bytes(whole)
    assert find_checkpoint(folder) == folder


@pytest.mark.parametrize(
    "content", [None, "", "step_3\n", "step_99\n", "../outside\n", "/etc\n", "\xff", "step_2 extra"]
)
def test_without_a_usable_latest_the_newest_complete_checkpoint_is_used_and_that_is_logged(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    saved_steps(tmp_path, 0, [3, 1, 2])
    directory = tmp_path / "checkpoints"
    (directory / "step_3" / "state" / "index.json").unlink()
    (directory / "latest").unlink()
    if content is not None:
        (directory / "latest").write_bytes(content.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(tmp_path) == directory / "step_2"
    assert f"using {directory / 'step_2'}, the newest complete checkpoint" in caplog.text


def test_damaged_checkpoints_are_passed_over_with_their_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_steps(tmp_path, 0, [1, 2, 3])
    directory = tmp_path / "checkpoints"
    (directory / "step_3" / "state" / "index.json").write_bytes(b"")
    (directory / "step_2" / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(tmp_path) == directory / "step_1"
    assert "state/index.json has 0 bytes, its manifest says 12" in caplog.text


def test_a_path_that_does_not_exist_or_holds_no_checkpoint_is_refused_with_advice(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(missing)
    assert str(caught.value) == (
        f"{missing} does not exist; name a run directory or one of its checkpoints/step_N folders"
    )
    (tmp_path / "metrics.jsonl").write_text("{}")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "metrics.jsonl", tmp_path / "run", tmp_path / "run" / "checkpoints"):
        with pytest.raises(CheckpointError) as caught:
            find_checkpoint(path)
        assert str(caught.value) == (
            f"{path} holds no checkpoint; name a run directory that has saved one, or a checkpoints/step_N folder"
        )


def test_a_run_whose_only_checkpoint_is_damaged_is_refused_with_the_reason(tmp_path: Path) -> None:
    saved_steps(tmp_path, 2, [1])
    (tmp_path / "checkpoints" / "step_1" / "model" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no complete checkpoint: .*model/model\.safetensors is missing"):
        find_checkpoint(tmp_path)
    (tmp_path / "checkpoints" / "latest").write_text("step_9\n")
    with pytest.raises(CheckpointError, match="latest names no checkpoint folder"):
        find_checkpoint(tmp_path / "checkpoints" / "latest")


def test_manifests_count_saves_in_order(tmp_path: Path) -> None:
    saved_steps(tmp_path, 0, [5, 3, 5])
    steps = [read_manifest(tmp_path / "checkpoints" / f"step_{step}") for step in (3, 5)]
    assert [manifest.sequence for manifest in steps] == [2, 3]
