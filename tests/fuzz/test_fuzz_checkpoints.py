"""Damaged checkpoints: every altered byte is found, nothing in them is ever run, and what cannot be read is a CheckpointError."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from support.fuzzing import JSON_VALUES, cases, try_cases
from support.runs import train
from transformers import AutoModelForCausalLM

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.codec import load_tree
from maxent_grpo.training.checkpoint.manifest import MANIFEST, read_manifest, write_manifest
from maxent_grpo.training.checkpoint.run_state import load_run_state
from maxent_grpo.training.checkpoint.store import find_checkpoint
from maxent_grpo.training.checkpoint.weights import load_weights

PICKLES = ("model/pytorch_model.bin", "state/optimizer.pt", "state/rng.pkl", "training_args.bin")
"""Files that other programs load, and run."""


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a small run, inside its `checkpoints` folder."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    train(folder, "evaluation.enabled=false")
    return find_checkpoint(folder)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(checkpoint / "model")


PLACES = st.integers(0, 10**9)
DAMAGE = st.one_of(
    st.tuples(st.just("flip"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACES, st.just(0)),
    st.tuples(st.just("longer"), PLACES, st.integers(1, 40)),
    st.tuples(st.just("gone"), PLACES, st.just(0)),
    st.tuples(st.just("pickle"), PLACES, st.just(0)),
    st.tuples(st.just("folder"), PLACES, st.just(0)),
)


def damage(path: Path, kind: str, place: int, amount: int, bomb: bytes) -> None:
    """Spoil a file; each way changes it."""
    content = bytearray(path.read_bytes())
    if kind == "flip" and content:
        content[place % len(content)] ^= 1 << amount
        path.write_bytes(content)
    elif kind == "cut" and content:
        path.write_bytes(content[: place % len(content)])
    elif kind in ("longer", "flip", "cut"):
        path.write_bytes(bytes(content) + b"\0" * max(amount, 1))
    elif kind == "pickle":
        path.write_bytes(bomb)
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class Bench:
    """A copy of a checkpoint that is spoilt and mended file by file, and a pickle that would leave a trace."""

    def __init__(self, original: Path, tmp_path: Path) -> None:
        self.original, self.trace = original, tmp_path / "trace"
        self.folder = shutil.copytree(original, tmp_path / "run" / "checkpoints" / original.name)
        self.names = files_of(original)
        self.bomb = pickle.dumps(Bomb(self.trace))

    def spoil(self, name: str, change: tuple[str, int, int]) -> None:
        damage(self.folder / name, *change, self.bomb)

    def mend(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.original, self.folder)

    def check_nothing_ran(self) -> None:
        assert not self.trace.exists()


@cases(short=30, long=300)
def test_every_damaged_byte_of_a_checkpoint_is_found(num_cases: int, checkpoint: Path, tmp_path: Path) -> None:
    bench = Bench(checkpoint, tmp_path)

    def check(case: tuple[str, tuple[str, int, int]]) -> None:
        bench.spoil(*case)
        try:
            for path in (bench.folder, bench.folder.parents[1]):
                with pytest.raises(CheckpointError) as caught:
                    find_checkpoint(path)
                assert bench.folder.name in str(caught.value) or "holds no" in str(caught.value)
        finally:
            bench.mend()
        assert find_checkpoint(bench.folder) == bench.folder
        bench.check_nothing_ran()

    drawn = st.tuples(st.sampled_from(bench.names), DAMAGE)
    try_cases(num_cases, drawn, check, seconds=20)


def replace_inside(tree: Any, place: int, value: Any) -> Any:
    """The tree with one of its nodes, which ``place`` leads to, replaced."""
    if place > 0 and isinstance(tree, dict | list) and tree:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        key = keys[place % len(keys)]
        tree[key] = replace_inside(tree[key], place // len(keys), value)
        return tree
    return value


TAGS = ["int", "float", "str", "bytes", "tuple", "dict", "tensor", "tensor_bytes", "array", "scalar", "nothing"]
NODES = st.one_of(
    JSON_VALUES,
    st.dictionaries(st.sampled_from(TAGS), JSON_VALUES, min_size=1, max_size=2),
    st.tuples(
        st.sampled_from(TAGS),
        st.sampled_from(["", "zz", "00", [], [["a"]], ["0", "<f8", [3]], ["0", "O", [1]], 10**400]),
    ).map(lambda pair: dict([pair])),
)


@cases(short=40, long=400)
def test_a_state_with_another_value_inside_is_read_or_refused(num_cases: int, checkpoint: Path, tmp_path: Path) -> None:
    bench = Bench(checkpoint, tmp_path)
    states = [name for name in bench.names if name.startswith("state/") and name.endswith(".json")]

    def check(case: tuple[str, int, Any]) -> None:
        name, place, value = case
        tree = json.loads((checkpoint / name).read_text())
        (bench.folder / name).write_text(json.dumps(replace_inside(tree, place, value)))
        try:
            load_run_state(bench.folder)
        except CheckpointError as error:
            assert str(bench.folder) in str(error)
        finally:
            shutil.copy(checkpoint / name, bench.folder / name)

    drawn = st.tuples(st.sampled_from([*states, "state/index.json"]), PLACES, NODES)
    try_cases(num_cases, drawn, check, seconds=20)


@cases(short=40, long=300)
def test_what_was_damaged_before_it_was_sealed_is_read_or_refused(
    num_cases: int, checkpoint: Path, model: torch.nn.Module, tmp_path: Path
) -> None:
    """A manifest that fits the damage is made, as by a disk or a program that spoilt a file while it was saved."""
    bench = Bench(checkpoint, tmp_path)
    states = sorted({Path(name).stem for name in bench.names if name.startswith("state/")})
    sealed = read_manifest(checkpoint)

    def check(case: list[tuple[str, tuple[str, int, int]]]) -> None:
        for name, change in case:
            if (bench.folder / name).is_file():
                bench.spoil(name, change)
        (bench.folder / MANIFEST).unlink(missing_ok=True)
        write_manifest(bench.folder, sealed.step, sealed.sequence)
        try:
            folder = find_checkpoint(bench.folder)
            for read in (load_run_state, lambda folder: load_weights(model, folder),
                         *(lambda folder, state=state: load_tree(folder / "state", state) for state in states)):  # fmt: skip
                try:
                    read(folder)
                except CheckpointError as error:
                    assert str(folder) in str(error)
        finally:
            bench.mend()
        bench.check_nothing_ran()

    inner = [name for name in bench.names if name != MANIFEST]
    structured = [name for name in inner if name.startswith(("state/", "model/model"))]
    drawn = st.lists(st.tuples(st.sampled_from([*structured, *structured, *inner]), DAMAGE), min_size=1, max_size=3)
    try_cases(num_cases, drawn, check, seconds=20)


def test_pickles_beside_the_weights_are_not_read(checkpoint: Path, model: torch.nn.Module, tmp_path: Path) -> None:
    bench = Bench(checkpoint, tmp_path)
    for name in PICKLES:
        (bench.folder / name).write_bytes(bench.bomb)
    load_weights(model, find_checkpoint(bench.folder))
    load_run_state(bench.folder)
    (bench.folder / "model" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"weights in other formats \(pickles\) are not read"):
        load_weights(model, bench.folder)
    bench.check_nothing_ran()
    pickle.loads(bench.bomb)
    assert bench.trace.exists(), "the pickle would have left its trace"
