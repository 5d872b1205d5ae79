"""Everything of a run that is not weights, as a registry: name to object with ``state_dict`` and ``load_state_dict``.

Each object becomes one tree of the codec in the checkpoint's ``state`` folder.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.codec import load_tree, save_tree
from maxent_grpo.training.checkpoint.together import Part

STATE_FOLDER = "state"
_INDEX = "index"
_NAME = re.compile(r"[a-z][a-z0-9_]*")

logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """Anything whose state a checkpoint holds. ``state_dict`` returns plain state of the codec's types."""

    def state_dict(self) -> dict[str, Any]:
        """All of the state, so that loading it continues bit for bit."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Become what the state describes."""
        ...


@dataclass(frozen=True, slots=True)
class SavedRunState:
    """What a checkpoint's state folder holds: one state for each registered name, and the caller's extras."""

    states: dict[str, dict[str, Any]]
    extras: dict[str, Any]


def save_run_state(folder: Path, registry: Mapping[str, Stateful], extras: Mapping[str, object]) -> None:
    """Write the state of every registered object, and ``extras``, into a checkpoint folder.

    Raises:
        CheckpointError: a state holds something that cannot be stored exactly; names where.
    """
    for part in run_state_parts(registry, extras):
        part.write(folder, part.collect())


def run_state_parts(registry: Mapping[str, Stateful], extras: Mapping[str, object]) -> list[Part]:
    """What ``save_run_state`` writes, one state after the other, as processes save it together."""
    for name in registry:
        if not _is_name(name):
            raise ValueError(f"{name!r} cannot name a state: use small letters, digits and _, and not {_INDEX!r}")
    index = {"names": list(registry), "extras": dict(extras)}
    return [
        *(Part(item.state_dict, partial(_write_state, name=name)) for name, item in registry.items()),
        Part(lambda: index, partial(_write_state, name=_INDEX)),
    ]


def _write_state(folder: Path, state: object, *, name: str) -> None:
    (folder / STATE_FOLDER).mkdir(exist_ok=True)
    save_tree(state, folder / STATE_FOLDER, name)


def load_run_state(folder: Path) -> SavedRunState:
    """Read back what ``save_run_state`` wrote, without touching any live object.

    Raises:
        CheckpointError: the folder holds no run state, or a file of it cannot be read.
    """
    source = folder / STATE_FOLDER
    index = load_tree(source, _INDEX)
    names = index.get("names") if isinstance(index, dict) else None
    extras = index.get("extras") if isinstance(index, dict) else None
    if not isinstance(names, list) or not isinstance(extras, dict) or not all(map(_is_name, names)):
        raise CheckpointError(f"the state in {folder} is damaged: {_INDEX}.json does not list its parts")
    states = {name: load_tree(source, name) for name in names}
    strange = [name for name, state in states.items() if not isinstance(state, dict)]
    if strange:
        raise CheckpointError(f"the state in {folder} is damaged: {', '.join(strange)} holds no state")
    return SavedRunState(states, extras)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name != _INDEX


def restore_run_state(
    folder: Path, registry: Mapping[str, Stateful], *, optional: Collection[str] = ()
) -> dict[str, Any]:
    """Load every registered object from a checkpoint folder; returns the extras.

    ``optional`` objects that the checkpoint does not know stay as they are.

    Raises:
        CheckpointError: the registry and the checkpoint do not name the same states; then nothing is loaded.
    """
    saved = load_run_state(folder)
    lacking = sorted(registry.keys() - saved.states.keys() - set(optional))
    if lacking or saved.states.keys() - registry.keys():
        unknown = sorted(saved.states.keys() - registry.keys())
        raise CheckpointError(
            f"the state in {folder} is not this run's: it lacks {lacking} and has {unknown}, which the run does not know; "
            "resume with the version and settings that wrote it"
        )
    # Generators last: loading another object may draw random numbers.
    present = [name for name in registry if name in saved.states]
    for name in sorted(present, key=lambda name: getattr(registry[name], "is_last", False)):
        registry[name].load_state_dict(saved.states[name])
    return saved.extras


class RngState:
    """The global generators of this process: Python's, numpy's, torch's on the CPU and on every CUDA device."""

    is_last = True
    """Loaded behind everything else."""

    def state_dict(self) -> dict[str, Any]:
        """The generators' states; ``cuda`` is empty without a GPU."""
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators; the CUDA ones only if as many devices are here as were saved, otherwise that is logged."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if num_devices == len(state["cuda"]):
            torch.cuda.set_rng_state_all(state["cuda"])
            return
        logger.warning(
            "the checkpoint has random states of %d CUDA devices and this process sees %d; theirs are not restored",
            *(len(state["cuda"]), num_devices),
        )


class DataclassState:
    """Registers a dataclass instance of plain values, such as the loop's counters, by its fields."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def state_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self.target)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set every field.

        Raises:
            CheckpointError: the saved fields are not those of the dataclass.
        """
        names = {field.name for field in fields(self.target)}
        if names != state.keys():
            raise CheckpointError(
                f"the saved {type(self.target).__name__} has the fields {sorted(state)}, this version has {sorted(names)}"
            )
        for name, value in state.items():
            setattr(self.target, name, value)
