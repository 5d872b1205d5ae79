"""vLLM's transfer engines on a machine without a GPU: all of vLLM's own code runs, but for the calls of NCCL and CUDA.

Tensors that NCCL would broadcast go through the store that the two sides have met at, and memory that CUDA IPC would map is a
file. A server takes this in as a plugin (``plugin_folder``), the trainer's side by ``stand_in``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

GPU = "GPU-of-both"
"""The identity of the graphics card that trainer and server would share."""


def plugin_folder(folder: Path) -> dict[str, str]:
    """The environment in which a server loads the plugin, which is written into ``folder``."""
    info = folder / "vllm_transfer-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-transfer\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ntransfer = support.vllm_transfer:stand_in\n")
    tests = Path(__file__).resolve().parents[1]
    paths = [str(folder), str(tests), str(tests.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def stand_in(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Put the stand-ins in the places of NCCL and CUDA in this process."""
    from vllm.distributed.device_communicators import pynccl
    from vllm.distributed.weight_transfer import ipc_engine, nccl_engine

    replace(pynccl, "PyNcclCommunicator", StoreCommunicator)
    replace(nccl_engine, "packed_nccl_broadcast_producer", broadcast_all)
    replace(nccl_engine, "packed_nccl_broadcast_consumer", receive_all)
    replace(ipc_engine, "packed_ipc_producer", lay_out)
    replace(ipc_engine, "packed_ipc_consumer", pick_up)
    replace(torch.accelerator, "current_device_index", lambda: 0)
    replace(torch.accelerator, "synchronize", lambda *_: None)
    replace(torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"uuid": GPU}))
    replace(torch.cuda, "ipc_collect", lambda: None)


class StoreCommunicator:
    """Broadcasts through the store of the group."""

    def __init__(self, group: Any, device: Any) -> None:
        self._group = group

    def send(self, tensor: Tensor) -> None:
        """To all others."""
        self._group.broadcast_obj(tensor.detach().clone(), src=0)

    def receive(self) -> Tensor:
        """What was sent next."""
        return self._group.broadcast_obj(None, src=0)

    def destroy(self) -> None:
        """Leave the group."""


def broadcast_all(
    iterator: Iterator[tuple[str, Tensor]],
    group: StoreCommunicator,
    src: int,
    post_iter_func: Callable[[tuple[str, Tensor]], Tensor],
    **_: int,
) -> None:
    """In the place of vLLM's packed broadcast."""
    for pair in iterator:
        group.send(post_iter_func(pair))


def receive_all(
    iterator: Iterator[tuple[str, tuple[list[int], torch.dtype]]],
    group: StoreCommunicator,
    src: int,
    post_unpack_func: Callable[[list[tuple[str, Tensor]]], object],
    **_: Any,
) -> None:
    """In the place of its other end."""
    for name, (shape, dtype) in iterator:
        tensor = group.receive()
        assert (list(tensor.shape), tensor.dtype) == (list(shape), dtype)
        post_unpack_func([(name, tensor)])


def lay_out(
    iterator: Iterator[tuple[str, Tensor]],
    gpu_uuid: str,
    post_iter_func: Callable[[tuple[str, Tensor]], Tensor],
    buffer_size_bytes: int,
) -> Iterator[Any]:
    """In the place of vLLM's packing into a buffer that another process can map: two chunks, each of a file."""
    from vllm.distributed.weight_transfer.packed_tensor import PackedIpcChunk

    pairs = [(pair[0], post_iter_func(pair).detach().contiguous()) for pair in iterator]
    assert max(tensor.nbytes for _, tensor in pairs) <= buffer_size_bytes
    path = Path(f"/dev/shm/maxent_grpo_test_{os.getpid()}.pt")
    for chunk in (pairs[:3], pairs[3:]):
        torch.save([tensor for _, tensor in chunk], path)
        yield PackedIpcChunk(
            [name for name, _ in chunk],
            [list(tensor.shape) for _, tensor in chunk],
            [str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk],
            [tensor.nbytes for _, tensor in chunk],
            {gpu_uuid: (str(path),)},
        )
    path.unlink()


def pick_up(
    ipc_handle: dict[str, tuple[str]], names: list[str], tensor_sizes: list[int], **_: Any
) -> Iterable[tuple[str, Tensor]]:
    """In the place of its other end."""
    tensors = torch.load(ipc_handle[GPU][0], weights_only=True)
    assert [tensor.nbytes for tensor in tensors] == tensor_sizes
    return list(zip(names, tensors, strict=True))
