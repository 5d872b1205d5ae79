"""Exact storage of nested state: tensors in ``<name>.safetensors``, everything else in ``<name>.json``.

A tree is made of dicts (str or int keys), lists, tuples, None, bool, int, float, str, bytes, torch tensors, numpy arrays
and numpy scalars. What is read back equals what was written in type and value, floats and NaN payloads bit for bit. Nothing
else is accepted, subclasses included, and nothing is ever pickled: reading a file cannot run code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from maxent_grpo.errors import CheckpointError

FORMAT = 1
MAX_DEPTH = 100
"""Deepest nesting; also what stops a container that contains itself."""

_NATIVE = (
    torch.bool,
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
)
_AS_BYTES = {str(dtype): dtype for dtype in (torch.complex32, torch.complex128, torch.float8_e8m0fnu)}
"""Types that safetensors does not know; their tensors are stored as bytes."""

_NUMPY_KINDS = "biufc"
_SMALL_INT = 2**63

_NOT_WRITTEN_HERE = (
    *(ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError, OverflowError, MemoryError),
    *(SyntaxError, struct.error),
)
"""What decoding raises on a document that ``save_tree`` did not write: a name of a numpy type is parsed, too."""

Keys = tuple[str | int, ...]


@dataclass
class _TensorSheet:
    """Tensors of one tree by running number, each with a storage of its own, as safetensors demands."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    storages: set[int] = field(default_factory=set)

    def add(self, tensor: torch.Tensor) -> str:
        contiguous = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        storage = contiguous.untyped_storage()
        if storage.data_ptr() in self.storages or storage.nbytes() != contiguous.nbytes:
            contiguous = contiguous.clone()
        self.storages.add(contiguous.untyped_storage().data_ptr())
        name = str(len(self.tensors))
        self.tensors[name] = contiguous
        return name


def save_tree(tree: object, folder: Path, name: str) -> None:
    """Write a tree as ``<name>.json`` and ``<name>.safetensors`` in an existing folder.

    Tensors are stored from the CPU and contiguous; tensors that share storage become separate copies.

    Raises:
        CheckpointError: the tree holds something that is not listed in the module's head; names where.
    """
    sheet = _TensorSheet()
    document = {"format": FORMAT, "tree": _encode(tree, (name,), sheet)}
    safetensors.torch.save_file(sheet.tensors, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")), encoding="ascii")


def load_tree(folder: Path, name: str) -> Any:
    """The tree that ``save_tree`` wrote; tensors come back on the CPU.

    Raises:
        CheckpointError: a file is missing, unreadable, or not of this format.
    """
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_text(encoding="ascii"), parse_constant=_refuse_constant)
        tensors = safetensors.torch.load_file(folder / f"{name}.safetensors")
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the state {name!r} in {folder}: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or "tree" not in document:
        raise CheckpointError(f"{path} is not a state of format {FORMAT}; it was written by another version")
    try:
        return _decode(document["tree"], tensors)
    except _NOT_WRITTEN_HERE as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}") from error


def _encode(value: object, path: Keys, sheet: _TensorSheet) -> Any:
    if len(path) > MAX_DEPTH:
        raise CheckpointError(
            f"cannot save {_where(path[:4])}...: it is nested deeper than {MAX_DEPTH} levels or contains itself"
        )
    if value is None or value is True or value is False:
        return value
    encoder = _ENCODERS.get(type(value))
    if encoder is None and isinstance(value, np.generic):
        encoder = _encode_scalar
    if encoder is None:
        raise CheckpointError(
            f"cannot save {_where(path)}: a {type(value).__module__}.{type(value).__qualname__} is not plain state; use "
            "dict, list, tuple, None, bool, int, float, str, bytes, a tensor, a numeric numpy array or scalar"
        )
    return encoder(value, path, sheet)


def _encode_int(value: int, _path: Keys, _sheet: _TensorSheet) -> Any:
    # Python limits the digits of decimal conversion, not those of hexadecimal.
    return value if -_SMALL_INT <= value < _SMALL_INT else {"int": hex(value)}


def _encode_float(value: float, _path: Keys, _sheet: _TensorSheet) -> Any:
    # repr of a finite float reads back as the same bits; NaN and infinities are not JSON and NaN has a payload.
    return value if np.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _encode_str(value: str, _path: Keys, _sheet: _TensorSheet) -> Any:
    # Two lone surrogates in a row would be read from JSON as the one character they make.
    if any("\ud800" <= character <= "\udfff" for character in value):
        return {"str": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _encode_bytes(value: bytes, _path: Keys, _sheet: _TensorSheet) -> Any:
    return {"bytes": value.hex()}


def _encode_list(value: list[object], path: Keys, sheet: _TensorSheet) -> Any:
    return [_encode(item, (*path, index), sheet) for index, item in enumerate(value)]


def _encode_tuple(value: tuple[object, ...], path: Keys, sheet: _TensorSheet) -> Any:
    return {"tuple": [_encode(item, (*path, index), sheet) for index, item in enumerate(value)]}


def _encode_dict(value: dict[object, object], path: Keys, sheet: _TensorSheet) -> Any:
    pairs = []
    for key, item in value.items():
        if type(key) is not str and type(key) is not int:
            raise CheckpointError(
                f"cannot save {_where(path)}: its key {key!r} is a {type(key).__qualname__}; keys must be str or int"
            )
        pairs.append([_encode(key, path, sheet), _encode(item, (*path, key), sheet)])
    return {"dict": pairs}


def _encode_tensor(value: torch.Tensor, path: Keys, sheet: _TensorSheet) -> Any:
    if value.requires_grad:
        raise CheckpointError(f"cannot save {_where(path)}: the tensor requires a gradient; store tensor.detach()")
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise CheckpointError(f"cannot save {_where(path)}: only dense tensors that hold data can be stored exactly")
    if value.dtype in _NATIVE:
        return {"tensor": sheet.add(value)}
    if str(value.dtype) not in _AS_BYTES:
        raise CheckpointError(f"cannot save {_where(path)}: tensors of {value.dtype} cannot be stored exactly")
    raw = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return {"tensor_bytes": [sheet.add(raw), str(value.dtype), list(value.shape)]}


def _encode_array(value: np.ndarray, path: Keys, sheet: _TensorSheet) -> Any:
    _require_numeric(value.dtype, path)
    # Bytes rather than numbers: numpy has types and byte orders that torch has not.
    raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8))
    return {"array": [sheet.add(raw), _numpy_name(value.dtype), list(value.shape)]}


def _encode_scalar(value: Any, path: Keys, _sheet: _TensorSheet) -> Any:
    _require_numeric(value.dtype, path)
    return {"scalar": [_numpy_name(value.dtype), value.tobytes().hex()]}


def _require_numeric(dtype: np.dtype, path: Keys) -> None:
    if dtype.kind not in _NUMPY_KINDS:
        raise CheckpointError(
            f"cannot save {_where(path)}: numpy data of type {dtype} is neither numbers nor booleans; use lists"
        )


def _numpy_name(dtype: np.dtype) -> str:
    # The character, not the size, tells long from long long, which are two scalar types of one width.
    return dtype.str[0] + dtype.char


def _where(path: Keys) -> str:
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


_ENCODERS: dict[type, Callable[[Any, Keys, _TensorSheet], Any]] = {
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
    torch.Tensor: _encode_tensor,
    np.ndarray: _encode_array,
}


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    [(tag, payload)] = value.items()
    return _DECODERS[tag](payload, tensors)


def _decode_dict(pairs: list[list[Any]], tensors: dict[str, torch.Tensor]) -> dict[str | int, Any]:
    return {_decode(key, tensors): _decode(item, tensors) for key, item in pairs}


def _decode_tensor(name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    # A copy, because the loaded tensor is a view of the file, which rotation may delete.
    return tensors[name].clone()


def _decode_tensor_bytes(payload: list[Any], tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    name, dtype, shape = payload
    return tensors[name].clone().view(_AS_BYTES[dtype]).reshape(shape)


def _decode_array(payload: list[Any], tensors: dict[str, torch.Tensor]) -> np.ndarray:
    name, dtype, shape = payload
    return np.frombuffer(tensors[name].numpy().tobytes(), dtype=_numpy_dtype(dtype)).reshape(shape).copy()


def _decode_scalar(payload: list[Any], _tensors: dict[str, torch.Tensor]) -> np.generic:
    dtype, raw = payload
    [scalar] = np.frombuffer(bytes.fromhex(raw), dtype=_numpy_dtype(dtype))
    return scalar


def _numpy_dtype(name: str) -> np.dtype:
    dtype = np.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"numpy type {name!r} is not numeric")
    return dtype


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODERS: dict[str, Callable[[Any, dict[str, torch.Tensor]], Any]] = {
    "int": lambda raw, _: int(raw, 16),
    "float": lambda raw, _: struct.unpack(">d", bytes.fromhex(raw))[0],
    "str": lambda raw, _: bytes.fromhex(raw).decode("utf-8", "surrogatepass"),
    "bytes": lambda raw, _: bytes.fromhex(raw),
    "tuple": lambda items, tensors: tuple(_decode(item, tensors) for item in items),
    "dict": _decode_dict,
    "tensor": _decode_tensor,
    "tensor_bytes": _decode_tensor_bytes,
    "array": _decode_array,
    "scalar": _decode_scalar,
}
