"""Weights from GPU to GPU by vLLM's own transfer engines: NCCL between two GPUs, CUDA IPC between two processes on one.

The engines are driven through their public interface: ``trainer_init`` meets the server's workers, ``send_weights`` sends. What
they ask of a server goes through a client of ours, so that every request has our time limits and messages.
"""

from __future__ import annotations

import base64
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from maxent_grpo.config.generation import WeightTransfer
from maxent_grpo.errors import GenerationError
from maxent_grpo.models.adapter import adapter_layers, base_state, merged_weight
from maxent_grpo.training.generation.vllm import transport
from maxent_grpo.training.generation.vllm.ask import BadAnswerError
from maxent_grpo.training.generation.vllm.carriers import Post
from maxent_grpo.training.generation.vllm.weights import Snapshots

T = TypeVar("T")

IPC_BUFFER = 1024**3
"""Most memory through which CUDA IPC hands over the weights, but for a tensor that is larger alone [bytes]."""
NCCL_BUFFER = 256 * 1024**2
"""Least that is broadcast at a time; each side holds two of these, each larger by up to the largest tensor. A server has them outside
its share of the GPU's memory, which keys and values have filled [bytes]."""
CLOSE_SECONDS = 5.0
NOT_CONFIGURED = "Weight transfer not configured"
"""What vLLM says when a server was started without a transfer engine."""


class PolicyTensors:
    """vLLM's ``WeightSource`` of the policy: names, types and shapes, and the tensors one by one, an adapter merged in on the way.

    A merged matrix is made when it is its turn; every other tensor is the model's own.
    """

    def __init__(self, model: PreTrainedModel, snapshot: Path) -> None:
        """``snapshot``: a folder of the same policy, whose names are those that vLLM loads.

        Raises:
            GenerationError: the architecture is written under other names than it has in memory.
        """
        self._model = model
        written = _written(snapshot)
        state = base_state(model)
        self._names = [name for name in state if name in written]
        here = {name: list(state[name].shape) for name in self._names}
        if here != written:
            differing = sorted(name for name in written if here.get(name) != written[name])
            raise GenerationError(
                f"generation.weight_transfer: this architecture is saved under other names than it has in memory ({differing[0]}, "
                f"{len(differing)} in all), which vLLM would not know; write generation.weight_transfer=reload"
            )

    def metadata(self) -> list[Any]:
        """vLLM's ``ParamMeta`` of each tensor, in the order in which they come."""
        from vllm.distributed.weight_transfer.base import ParamMeta  # pyright: ignore[reportMissingImports]

        state = base_state(self._model)
        return [ParamMeta(name, state[name].dtype, tuple(state[name].shape)) for name in self._names]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each."""
        layers = {f"{name}.weight": layer for name, layer in adapter_layers(self._model)}
        state = base_state(self._model)
        for name in self._names:
            yield name, merged_weight(layers[name]) if name in layers else state[name]

    @property
    def sizes(self) -> list[int]:
        """Of each tensor [bytes]."""
        state = base_state(self._model)
        return [state[name].numel() * state[name].element_size() for name in self._names]


class Control:
    """What vLLM's engines ask of a server, over HTTP: vLLM's ``VLLMWeightSyncClient``."""

    def __init__(self, post: Post) -> None:
        self.post = post
        """Asks the server."""
        self.failed: Future[None] = Future()
        """Has the error of the first request that failed: the other side of a collective call may then wait in vain."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the workers meet the trainer."""
        self._ask("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Weights are coming."""
        self._ask("/start_weight_update", None)

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """What is coming, and for CUDA IPC where it lies; answered when it has been taken.

        The handles are no JSON: vLLM takes them as a pickle, if it was started so that it does.
        """
        sent = dict(update_info)
        handles = sent.pop("ipc_handles", None)
        if handles is not None:
            sent["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(handles)).decode()
        self._ask(
            "/update_weights", {"update_info": {name: value for name, value in sent.items() if value is not None}}
        )

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All have come. The version is told later, when the caches are empty."""
        self._ask("/finish_weight_update", None)

    def _ask(self, path: str, body: dict[str, Any] | None) -> None:
        try:
            self.post(path, body)
        except Exception as error:  # whoever waits for the collective call is told as well
            if not self.failed.done():
                self.failed.set_exception(error)
            raise


class Transfer:
    """Straight into the servers' memory, one server after the other; see ``Carrier``."""

    def __init__(self, way: WeightTransfer, model: PreTrainedModel, snapshots: Snapshots, *, timeout: float) -> None:
        """``timeout``: longest a server may take for its weights [s]."""
        self._way, self._model, self._snapshots, self._timeout = way, model, snapshots, timeout
        self._tensors: PolicyTensors | None = None
        self._senders: dict[str, tuple[Any, Control]] = {}
        self._one_at_a_time = threading.Lock()

    def prepare(self, version: int) -> None:
        """The first time, compare names with those of a snapshot; tensors are sent as they are then; see ``Carrier``."""
        if self._tensors is None:
            self._tensors = PolicyTensors(self._model, self._snapshots.any())

    def carry(self, url: str, post: Post) -> None:
        """Meet the server if it is a new one, and send; see ``Carrier``."""
        with self._one_at_a_time:
            sender, control = None, Control(post)
            try:
                sender, control = self._senders.pop(url, None) or self._meet(url, control)
                self._within(control, partial(self._send, sender))
            except Exception as error:
                self._abandon(sender, control)
                if isinstance(error, GenerationError):
                    raise
                # the two sides no longer agree on what comes next, and a broadcast that was begun cannot be taken back
                raise GenerationError(
                    f"{url} did not take the weights by generation.weight_transfer={self._way} ({transport.reason(error)}): see "
                    "its log; generation.vllm.timeout sets how long it may take, and reload goes through a file"
                ) from error
            self._senders[url] = sender, control

    def _send(self, sender: Any) -> None:
        device = next(self._model.parameters()).device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # vLLM reads the tensors on streams of its own, which wait for no other
        sender.send_weights()

    def _abandon(self, sender: Any, control: Control) -> None:
        """Abort what a sender has begun: a broadcast whose other side is gone would hold up everything else on this GPU for ever."""
        if sender is not None:
            with suppress(Exception):  # what went wrong before is told
                _waited(self._here(sender.shutdown), Control(control.post), CLOSE_SECONDS)

    def close(self) -> None:
        """Part from the servers."""
        for url, (sender, control) in self._senders.items():

            def part(url: str = url, sender: Any = sender) -> None:
                with suppress(Exception):  # the run is over, and the server may be
                    transport.post(f"{url}/shutdown_weight_transfer_engine", None, timeout=CLOSE_SECONDS)
                sender.shutdown()

            with suppress(Exception):
                _waited(self._here(part), control, CLOSE_SECONDS)
        self._senders.clear()

    def _meet(self, url: str, control: Control) -> tuple[Any, Control]:
        try:
            return self._within(control, lambda: self._met(url, control)), control
        except BadAnswerError as error:
            if NOT_CONFIGURED in str(error):
                raise GenerationError(_cure(self._way, url)) from error
            raise

    def _met(self, url: str, control: Control) -> Any:
        """vLLM's sender, once the server's workers have met it."""
        from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
            WeightTransferTrainerFactory,
        )

        assert self._tensors is not None, "prepare comes first"
        source: Any = self._tensors  # what a base class of vLLM's would add is not asked for
        client: Any = control
        return WeightTransferTrainerFactory.trainer_init(self._introduction(url), client=client, source=source)

    def _introduction(self, url: str) -> Any:
        """What vLLM's sender has to know."""
        assert self._tensors is not None
        if self._way is WeightTransfer.ipc:
            from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
                IPCTrainerInitInfo,
            )

            sizes = self._tensors.sizes
            buffer = max(*sizes, min(IPC_BUFFER, sum(sizes)))
            return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=buffer)
        from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
            NCCLTrainerInitInfo,
        )

        workers = transport.content(transport.get(f"{url}/get_world_size", timeout=self._timeout))["world_size"]
        address = own_address(url)
        return NCCLTrainerInitInfo(
            master_address=address,
            master_port=transport.free_port(address),
            world_size=1 + int(workers),
            rank=0,
            packed=True,
            packed_buffer_size_bytes=NCCL_BUFFER,
        )

    def _within(self, control: Control, call: Callable[[], T]) -> T:
        return _waited(self._here(call), control, self._timeout)

    def _here(self, call: Callable[[], T]) -> Callable[[], T]:
        """The call on the model's device: a thread begins on the first one."""

        def on_device() -> T:
            device = next(self._model.parameters()).device
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return call()

        return on_device


def own_address(url: str) -> str:
    """The address of this machine from which a server is reached; nothing is sent."""
    parts = urlsplit(url)
    family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "", parts.port or 80))
        return probe.getsockname()[0]


def _waited(call: Callable[[], T], control: Control, seconds: float) -> T:
    """What the call gives, in a thread that is left alone when the server has failed or the time is over.

    Raises:
        TimeoutError: it took longer.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whoever waits for the result is told
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="vllm_transfer").start()
    both: list[Future[Any]] = [future, control.failed]
    wait(both, timeout=seconds, return_when=FIRST_COMPLETED)
    if control.failed.done():
        control.failed.result()
    if not future.done():
        raise TimeoutError(f"not over after {seconds:g} s")
    return future.result()


def _written(folder: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in a folder's files."""
    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no dict
    return shapes


def _cure(way: WeightTransfer, url: str) -> str:
    unsafe = "VLLM_ALLOW_INSECURE_SERIALIZATION=1 and " if way is WeightTransfer.ipc else ""
    return (
        f"generation.weight_transfer={way}: {url} was started without it; start it with {unsafe}--weight-transfer-config "
        f'\'{{"backend": "{way}"}}\', or write generation.weight_transfer=reload'
    )
