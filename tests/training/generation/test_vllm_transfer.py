"""Weights that go from GPU to GPU: which way is taken, what is sent, and what is said when a side fails; without vLLM."""

from __future__ import annotations

import base64
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.settings import changed
from support.tiny import tiny_llama, tiny_tokenizer

from maxent_grpo.config.generation import VllmGenerationConfig, WeightTransfer
from maxent_grpo.errors import GenerationError
from maxent_grpo.models.adapter import adapter_layers, merged_model
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.training import sampling_engine
from maxent_grpo.training.generation.vllm.ask import BadAnswerError
from maxent_grpo.training.generation.vllm.transfer import Control, PolicyTensors, Transfer, own_address
from maxent_grpo.training.generation.vllm.weights import Snapshots

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
def test_what_is_sent_is_what_a_snapshot_holds(tmp_path: Path, adapted: bool) -> None:
    model = tiny_llama(torch.float32)
    if adapted:
        attach_adapter(model, changed("model.lora.enabled=true").model, 0)
        for _, layer in adapter_layers(model):
            torch.nn.init.normal_(layer.lora_B["default"].weight)
    snapshots = Snapshots(tmp_path / "weights", model, tiny_tokenizer())
    tensors = PolicyTensors(model, snapshots.write(0))
    sent = dict(tensors)
    held = dict(merged_model(model).named_parameters())
    assert sent.keys() == held.keys()
    assert all(torch.equal(tensor, held[name]) for name, tensor in sent.items())
    assert tensors.sizes == [tensor.nbytes for tensor in sent.values()]
    snapshots.remove()


def test_an_architecture_that_is_saved_under_other_names_is_refused(tmp_path: Path) -> None:
    model = tiny_llama(torch.float32)
    snapshots = Snapshots(tmp_path / "weights", model, tiny_tokenizer())
    folder = snapshots.write(0)
    model.get_submodule("model").register_module("norm", None)
    with pytest.raises(GenerationError, match=r"other names than it has in memory \(model\.norm\.weight, 1 in all\)"):
        PolicyTensors(model, folder)
    snapshots.remove()


def test_handles_of_memory_travel_as_a_pickle_and_the_rest_as_json() -> None:
    sent: list[tuple[str, Any]] = []
    control = Control(lambda path, body: sent.append((path, body)))
    control.init_weight_transfer_engine({"packed": True})
    control.start_weight_update()
    control.update_weights({"names": ["a"], "ipc_handles": {"GPU-1": (1, b"x")}, "ipc_handles_pickled": None})
    control.finish_weight_update("ignored: it is told when the caches are empty")
    assert [path for path, _ in sent] == [
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update",
    ]  # fmt: skip
    assert sent[0][1] == {"init_info": {"packed": True}}
    update = sent[2][1]["update_info"]
    assert update.keys() == {"names", "ipc_handles_pickled"}
    assert pickle.loads(base64.b64decode(update["ipc_handles_pickled"])) == {"GPU-1": (1, b"x")}
    assert sent[3][1] is None


class Sides(Transfer):
    """A transfer whose two sides are given, in the place of vLLM's."""

    def __init__(self, model: Any, meet: Any, send: Any) -> None:
        super().__init__(WeightTransfer.nccl, model, Snapshots.__new__(Snapshots), timeout=0.3)
        self._meeting, self._sending = meet, send
        self.aborted: list[str] = []

    def _met(self, url: str, control: Control) -> Any:
        self._meeting(control)
        sides = {"send_weights": lambda _: self._sending(control), "shutdown": lambda _: self.aborted.append(url)}
        return type("Sender", (), sides)()


def refuse(path: str, body: object) -> None:
    """A server that has no engine for it."""
    raise BadAnswerError("status 500: Worker failed with error 'Weight transfer not configured. Please set ...'")


def fail(path: str, body: object) -> None:
    """A server that takes no weights."""
    raise BadAnswerError("status 500: no room")


def waits_for_nothing(control: Control) -> None:
    """A broadcast whose other side is gone, begun beside the request for it."""
    threading.Thread(target=_quietly, args=(control,), daemon=True).start()
    threading.Event().wait(20)


def _quietly(control: Control) -> None:
    with pytest.raises(BadAnswerError):
        control.update_weights({})


def test_a_side_that_fails_is_said_at_once() -> None:
    model, well = tiny_llama(torch.float32), lambda control: None
    with pytest.raises(GenerationError, match=r"http://s was started without it; start it with --weight-transfer-config '{\"backend\": \"nccl\"}'"):  # fmt: skip
        Sides(model, lambda control: control.init_weight_transfer_engine({}), well).carry("http://s", refuse)
    with pytest.raises(
        GenerationError, match=r"did not take the weights by .*=nccl \(status 500: no room\): see its log"
    ):
        Sides(model, well, waits_for_nothing).carry("http://s", fail)
    with pytest.raises(GenerationError, match=r"\(not over after 0\.3 s\): see its log; generation\.vllm\.timeout"):
        Sides(model, well, lambda control: threading.Event().wait(20)).carry("http://s", fail)
    met: list[int] = []
    sides = Sides(model, lambda control: met.append(1), well)
    sides.carry("http://s", fail)
    sides.carry("http://s", fail)
    assert len(met) == 1, "a server is met once"
    sides.carry("http://t", fail)
    assert len(met) == 2


def test_what_was_begun_is_aborted_where_it_fails() -> None:
    """A broadcast that nobody takes would hold up the GPU, and with it the checkpoint that is to be saved."""
    well = lambda control: None  # noqa: E731
    for send, ends in ((well, False), (waits_for_nothing, True), (lambda control: threading.Event().wait(20), True)):
        sides = Sides(tiny_llama(torch.float32), well, send)
        if ends:
            with pytest.raises(GenerationError, match="did not take the weights"):
                sides.carry("http://s", fail)
        else:
            sides.carry("http://s", fail)
        assert sides.aborted == (["http://s"] if ends else [])
    unmet = Sides(tiny_llama(torch.float32), lambda control: control.init_weight_transfer_engine({}), well)
    with pytest.raises(GenerationError, match="was started without it"):
        unmet.carry("http://s", refuse)
    assert unmet.aborted == []


def test_this_machine_is_called_as_a_server_reaches_it() -> None:
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"


AUTO = "generation.weight_transfer=auto"
CHOICES = {
    (AUTO,): (CUDA, 1, "ipc", "the server shares the trainer's GPU"),
    (AUTO, "run.seeds=null"): (CPU, 1, "reload", "this run computes on cpu"),
    (AUTO, "generation.engine.devices=[1]"): (CUDA, 1, "nccl", "the servers have GPUs of their own"),
    (AUTO, "generation.vllm.url=http://a:1"): (CUDA, 4, "nccl", "the servers have GPUs of their own"),
    (AUTO, "generation.engine.tensor_parallel_size=2"): (
        CUDA,
        1,
        "reload",
        "the server shares a GPU with one of several",
    ),
    (AUTO, "generation.vllm_mode=colocate"): (CUDA, 1, "reload", "the engine is in this process"),
    (AUTO, "generation.engine.devices=[0]"): (CUDA, 1, "reload", "the server is on the trainer's GPU"),
    (AUTO, "generation.engine.extra_args=['--data-parallel-size=2']"): (
        CUDA,
        1,
        "reload",
        "generation.engine.extra_args spreads",
    ),
    (AUTO, "generation.async_steps=1"): (CUDA, 1, "reload", "a server may need weights again"),
    ("generation.weight_transfer=nccl",): (CUDA, 1, "nccl", ""),
}


@pytest.mark.parametrize(("overrides", "expected"), CHOICES.items(), ids=map(str, CHOICES))
def test_auto_takes_the_nearest_way_and_says_why(
    overrides: tuple[str, ...], expected: tuple[torch.device, int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, processes, way, why = expected
    monkeypatch.setattr(sampling_engine, "find_module", lambda name: object())
    config = changed("generation=vllm", *(override for override in overrides if "seeds" not in override))
    assert isinstance(config.generation, VllmGenerationConfig)
    taken, said = sampling_engine.weight_transfer(config, device, processes)
    assert taken == way
    assert said.startswith(why)
    assert bool(said) == bool(why)
    monkeypatch.setattr(sampling_engine, "find_module", lambda name: None)
    if config.generation.weight_transfer is WeightTransfer.auto:
        assert sampling_engine.weight_transfer(config, device, processes)[0] is WeightTransfer.reload
