import json
import math
import pickle
import random
import struct
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.identical import assert_identical
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.codec import load_tree, save_tree
from maxent_grpo.training.types.choices import FinishReason


def round_trip(tree: object, folder: Path) -> object:
    save_tree(tree, folder, "tree")
    return load_tree(folder, "tree")


DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]
NUMPY_TYPES = [*"?bBhHiIlLqQefdgFDG", ">i4", ">f8", ">q"]


def bits_to_float(bits: int) -> float:
    return struct.unpack(">d", bits.to_bytes(8, "big"))[0]


def tensor_from(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    count = math.prod(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    raw = raw % 2 if dtype is torch.bool else raw
    return raw.view(dtype).reshape(shape)


def array_from(dtype: str, shape: list[int], seed: int) -> np.ndarray:
    kind = np.dtype(dtype)
    values = np.random.default_rng(seed).normal(size=shape) * 50
    return np.abs(values).astype(kind)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**2000), max_value=2**2000),
    st.integers(0, 2**64 - 1).map(bits_to_float),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e22, 0.1]),
    st.text(st.characters(exclude_categories=[])),
    st.binary(max_size=20),
)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(tensor_from, st.sampled_from(DTYPES), shapes, st.integers(0, 2**32))
arrays = st.builds(array_from, st.sampled_from(NUMPY_TYPES), shapes, st.integers(0, 2**32))
numpy_scalars = st.builds(lambda d, seed: array_from(d, [1], seed)[0], st.sampled_from(NUMPY_TYPES), st.integers(0, 99))
keys = st.one_of(st.text(max_size=5), st.integers())
trees = st.recursive(
    st.one_of(scalars, tensors, arrays, numpy_scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(trees)
def test_any_tree_reads_back_with_the_same_types_and_bits(
    tmp_path_factory: pytest.TempPathFactory, tree: object
) -> None:
    assert_identical(tree, round_trip(tree, tmp_path_factory.mktemp("tree")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [[], [0], [0, 3], [2, 3]], ids=str)
def test_tensors_of_every_type_and_shape_read_back(tmp_path: Path, dtype: torch.dtype, shape: list[int]) -> None:
    tensor = tensor_from(dtype, shape, seed=3)
    assert_identical(tensor, round_trip(tensor, tmp_path))


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpy_arrays_and_scalars_of_every_type_read_back(tmp_path: Path, dtype: str) -> None:
    array = array_from(dtype, [2, 3], seed=1)
    tree = [array, array[0, 0], array[:, ::2], np.asfortranarray(array), np.zeros((0, 2), dtype), array[0, 0, ...]]
    assert_identical(tree, round_trip(tree, tmp_path))


def test_int_keys_stay_ints_beside_their_strings_and_order_is_kept(tmp_path: Path) -> None:
    tree = {1: "int", "1": "str", -(10**30): "big", "dict": {}, "tuple": {"tuple": ()}, "": None}
    assert_identical(tree, round_trip(tree, tmp_path))


def test_views_of_one_storage_become_separate_equal_copies(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    tree = [base, base, base[3:7], base.reshape(3, 4).T, base[::2], base[:0], torch.complex(base, -base).conj()]
    loaded = round_trip(tree, tmp_path)
    assert isinstance(loaded, list)
    assert_identical([tensor.contiguous().resolve_conj() for tensor in tree], loaded)
    loaded[0].zero_()
    assert torch.equal(loaded[1], base)


def test_a_small_view_does_not_store_its_large_base(tmp_path: Path) -> None:
    save_tree(torch.zeros(1_000_000)[:2], tmp_path, "tree")
    assert (tmp_path / "tree.safetensors").stat().st_size < 1000


def test_loaded_tensors_outlive_the_deletion_and_overwriting_of_their_file(tmp_path: Path) -> None:
    loaded = round_trip({"x": torch.arange(5000)}, tmp_path)
    (tmp_path / "tree.safetensors").write_bytes(bytes(50_000))
    assert isinstance(loaded, dict)
    assert torch.equal(loaded["x"], torch.arange(5000))


@pytest.mark.parametrize("with_tensor_rate", [False, True])
def test_adamw_state_reads_back_and_the_next_step_is_bit_equal(tmp_path: Path, with_tensor_rate: bool) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 4, requires_grad=True), torch.randn((), requires_grad=True)]
    rate = torch.tensor(1e-3) if with_tensor_rate else 1e-3
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95))
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    state = optimizer.state_dict()
    assert set(state["state"]) == {0, 1}
    loaded = round_trip(state, tmp_path)
    assert_identical(state, loaded)
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    other = torch.optim.AdamW(copies, lr=rate, betas=(0.9, 0.95))
    assert isinstance(loaded, dict)
    other.load_state_dict(loaded)
    for weight, copy in zip(weights, copies, strict=True):
        copy.grad = weight.grad
    optimizer.step()
    other.step()
    assert_identical([weight.detach() for weight in weights], [copy.detach() for copy in copies])


def test_states_of_transformers_schedules_read_back(tmp_path: Path) -> None:
    extra = {
        SchedulerType.WARMUP_STABLE_DECAY: {"num_decay_steps": 3},
        SchedulerType.COSINE_WITH_MIN_LR: {"min_lr": 1e-5},
        SchedulerType.COSINE_WARMUP_WITH_MIN_LR: {"min_lr": 1e-5},
    }
    names = [
        kind for kind in SchedulerType if kind.value in ("linear", "cosine", "constant", "polynomial", "inverse_sqrt")
    ]
    for kind in [*names, SchedulerType.COSINE_WITH_RESTARTS, SchedulerType.CONSTANT_WITH_WARMUP, *extra]:
        optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=1e-3)
        schedule = get_scheduler(kind, optimizer, 2, 10, scheduler_specific_kwargs=extra.get(kind))
        for _ in range(4):
            optimizer.step()
            schedule.step()
        assert_identical(schedule.state_dict(), round_trip(schedule.state_dict(), tmp_path))


def test_generator_states_read_back(tmp_path: Path) -> None:
    local = np.random.default_rng(7)
    local.normal(size=3)
    random.gauss(0, 1)
    tree = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "numpy dict": np.random.get_state(legacy=False),
        "pcg": local.bit_generator.state,
        "torch": torch.get_rng_state(),
        "own": torch.Generator().manual_seed(5).get_state(),
    }
    assert_identical(tree, round_trip(tree, tmp_path))


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({1, 2}, "cannot save run['a'][1]: a builtins.set is not plain state"),
        (
            FinishReason.eos,
            "cannot save run['a'][1]: a maxent_grpo.training.types.choices.FinishReason is not plain state",
        ),
        (OrderedDict(a=1), "cannot save run['a'][1]: a collections.OrderedDict is not plain state"),
        (Counter("ab"), "cannot save run['a'][1]: a collections.Counter is not plain state"),
        (len, "cannot save run['a'][1]: a builtins.builtin_function_or_method is not plain state"),
        (1j, "cannot save run['a'][1]: a builtins.complex is not plain state"),
        (torch.nn.Parameter(torch.zeros(1)), "a torch.nn.parameter.Parameter is not plain state"),
        (torch.zeros(1, requires_grad=True), "the tensor requires a gradient; store tensor.detach()"),
        (torch.zeros(2, 2).to_sparse(), "only dense tensors that hold data"),
        (torch.zeros(2, device="meta"), "only dense tensors that hold data"),
        (np.array([None]), "numpy data of type object is neither numbers nor booleans"),
        (np.array(["a"]), "numpy data of type <U1 is neither numbers nor booleans"),
        (np.str_("a"), "numpy data of type <U1 is neither numbers nor booleans"),
        ({1.5: 0}, "cannot save run['a'][1]: its key 1.5 is a float; keys must be str or int"),
        ({True: 0}, "cannot save run['a'][1]: its key True is a bool; keys must be str or int"),
        (CYCLE, "nested deeper than 100 levels or contains itself"),
    ],
    ids=str,
)
def test_anything_else_is_refused_with_its_place_in_the_tree(tmp_path: Path, value: object, sentence: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        save_tree({"a": [0, value]}, tmp_path, "run")
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_pickle_in_place_of_a_file_is_refused_and_never_run(tmp_path: Path, suffix: str) -> None:
    save_tree({"x": torch.zeros(2)}, tmp_path, "tree")
    (tmp_path / f"tree.{suffix}").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match="cannot read the state 'tree'"):
        load_tree(tmp_path, "tree")
    torch.save(Bomb(tmp_path / "ran"), tmp_path / f"tree.{suffix}")
    with pytest.raises(CheckpointError, match="cannot read the state 'tree'"):
        load_tree(tmp_path, "tree")
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    save_tree({"x": torch.zeros(2)}, tmp_path, "tree")
    (tmp_path / "tree.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"tree\.safetensors"):
        load_tree(tmp_path, "tree")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"format": 2, "tree": 1},
        {"format": 1},
        {"format": 1, "tree": {"eval": "1"}},
        {"format": 1, "tree": {"tensor": "9"}},
        {"format": 1, "tree": {"dict": [["a"]]}},
        {"format": 1, "tree": {"a": 1, "b": 2}},
        {"format": 1, "tree": {"scalar": ["|O", "00"]}},
        {"format": 1, "tree": {"tensor_bytes": ["0", "torch.float32", [2]]}},
        {"format": 1, "tree": {"array": ["0", "<f8", [7]]}},
        {"format": 1, "tree": math.nan},
    ],
    ids=str,
)
def test_a_document_of_another_form_is_refused(tmp_path: Path, document: object) -> None:
    save_tree({"x": torch.zeros(2)}, tmp_path, "tree")
    (tmp_path / "tree.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError):
        load_tree(tmp_path, "tree")
