import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support.identical import assert_identical
from torch.optim.lr_scheduler import LambdaLR

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.best import BestTracker
from maxent_grpo.training.checkpoint.run_state import (
    DataclassState,
    RngState,
    load_run_state,
    restore_run_state,
    save_run_state,
)
from maxent_grpo.training.checkpoint.store import CheckpointStore, find_checkpoint
from maxent_grpo.training.checkpoint.weights import MODEL_FOLDER
from maxent_grpo.training.types.runtime import TrainingLoopState


class Holder:
    """State that is just a value; loading it draws random numbers, as building a data order does."""

    def __init__(self, value: dict[str, object]) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return self.value

    def load_state_dict(self, state: dict[str, object]) -> None:
        torch.rand(5)
        np.random.random()
        random.random()
        self.value = state


ROLLOUT = {
    "token_ids": [[[3, 4, 1], [5, 1]], [[], [1]]],
    "behaviour_logp": [[[-0.1, -1e-17, -2.5], [-0.3, 0.0]], [[], [float("-inf")]]],
    "rewards": torch.tensor([[1.0, 0.5], [0.1, float("nan")]]),
    "advantages": torch.randn(2, 2).to(torch.bfloat16),
}


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draws() -> list[object]:
    return [random.gauss(0, 1), np.random.normal(), torch.randn(3), random.random(), torch.randperm(9)]


def test_generators_continue_exactly_where_they_were_saved(tmp_path: Path) -> None:
    seed_all(3)
    draws()
    save_run_state(tmp_path, {"rng": RngState()}, {})
    expected = draws()
    seed_all(0)
    assert restore_run_state(tmp_path, {"rng": RngState()}) == {}
    assert_identical(expected, draws())


def test_generators_are_restored_after_objects_that_draw_from_them(tmp_path: Path) -> None:
    registry = {"rng": RngState(), "data": Holder({"epoch": 2, "offset": 7})}
    save_run_state(tmp_path, registry, {})
    expected = draws()
    fresh = {"rng": RngState(), "data": Holder({})}
    restore_run_state(tmp_path, fresh)
    assert_identical(expected, draws())
    assert fresh["data"].state_dict() == {"epoch": 2, "offset": 7}


def test_a_different_number_of_cuda_devices_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    state = RngState().state_dict()
    state["cuda"] = [*state["cuda"], torch.get_rng_state()]
    with caplog.at_level(logging.WARNING):
        RngState().load_state_dict(state)
    assert f"random states of {len(state['cuda'])} CUDA devices" in caplog.text


class Job:
    """A small supervised run with everything that a checkpoint of the loop registers."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 1.0 / (1 + step))
        self.counters = TrainingLoopState()
        self.rollout = Holder(ROLLOUT)
        self.tracker = BestTracker("eval/pass@8", patience=3)

    @property
    def registry(self):
        return {
            "weights": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "counters": DataclassState(self.counters),
            "data": Holder({"epoch": 1, "offset": 3}),
            "rng": RngState(),
            "rollout": self.rollout,
            "early_stopping": self.tracker,
        }

    def step(self) -> None:
        inputs = torch.randn(6, 4) * random.random() + np.random.normal()
        self.optimizer.zero_grad()
        self.model(inputs).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.counters.global_step += 1
        self.counters.num_input_tokens_seen += 0.1
        self.counters.metric_sums["loss/total"] = self.counters.num_input_tokens_seen / 3
        self.tracker.update({"eval/pass@8": random.random()})

    def everything(self) -> dict[str, object]:
        return {name: dict(item.state_dict()) for name, item in self.registry.items()}


class PlainWeights:
    """Registers a module's state dict as a plain dict."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self.module.state_dict())

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.module.load_state_dict(state)


@pytest.mark.parametrize("stop_after", range(6))
def test_stopping_after_any_step_and_resuming_equals_running_straight_on(tmp_path: Path, stop_after: int) -> None:
    seed_all(1)
    job = Job()
    store = CheckpointStore(tmp_path, keep_last=1)
    for _ in range(stop_after):
        job.step()
    registry = job.registry | {"weights": PlainWeights(job.model)}
    store.save(stop_after, lambda folder: save_run_state(folder, registry, {"config": {"seed": 1}}))
    for _ in range(6 - stop_after):
        job.step()
    torch.manual_seed(99)
    other = Job()
    folder = find_checkpoint(tmp_path)
    extras = restore_run_state(folder, other.registry | {"weights": PlainWeights(other.model)})
    assert extras == {"config": {"seed": 1}}
    assert other.counters.global_step == stop_after
    for _ in range(6 - stop_after):
        other.step()
    assert_identical(job.everything(), other.everything())


def test_a_saved_rollout_reads_back_exactly(tmp_path: Path) -> None:
    save_run_state(tmp_path, {"rollout": Holder(ROLLOUT)}, {"note": (1, None)})
    saved = load_run_state(tmp_path)
    assert_identical(ROLLOUT, saved.states["rollout"])
    assert_identical({"note": (1, None)}, saved.extras)


def test_a_registry_with_other_names_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    save_run_state(tmp_path, {"data": Holder({"epoch": 1}), "controller": Holder({})}, {})
    data = Holder({})
    with pytest.raises(CheckpointError, match=r"it lacks \['rng'\] and has \['controller'\]"):
        restore_run_state(tmp_path, {"data": data, "rng": RngState()})
    assert data.value == {}


def test_a_folder_without_run_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / MODEL_FOLDER).mkdir()
    with pytest.raises(CheckpointError, match="cannot read the state 'index'"):
        load_run_state(tmp_path)


@pytest.mark.parametrize("name", ["index", "../outside", "", "A b"])
def test_a_name_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a state"):
        save_run_state(tmp_path, {name: RngState()}, {})


def test_state_that_cannot_be_stored_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot save rollout\['rows'\]: a builtins\.set"):
        save_run_state(tmp_path, {"rollout": Holder({"rows": {1}})}, {})


def test_counters_of_another_version_are_refused() -> None:
    counters = TrainingLoopState(global_step=4)
    with pytest.raises(CheckpointError, match=r"the saved TrainingLoopState has the fields \['global_step'\]"):
        DataclassState(counters).load_state_dict({"global_step": 9})
    assert counters.global_step == 4
