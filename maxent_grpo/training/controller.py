"""Controllers: what decides tau, beta and the KL coefficient of the next step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from maxent_grpo.errors import CheckpointError, ConfigError
from maxent_grpo.training.types.runtime import ControllerPaths, ScoringSettings
from maxent_grpo.training.types.weighting import ControllerValues

STATE_FILE = "controller_state.json"


class Controller(Protocol):
    """Adapts the coefficients, one update per optimiser step, from step-global measurements."""

    @property
    def values(self) -> ControllerValues:
        """The coefficients in force."""
        ...

    def update(self, measured: Mapping[str, float]) -> None:
        """Learn from a step's measurements; the same on every process."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


class FixedController:
    """Keeps the coefficients as configured and counts the updates."""

    def __init__(self, values: ControllerValues) -> None:
        self._values = values
        self.num_updates = 0

    @property
    def values(self) -> ControllerValues:
        """The configured coefficients."""
        return self._values

    def update(self, measured: Mapping[str, float]) -> None:
        """Counts; measurements change nothing."""
        self.num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Kind, values and number of updates."""
        values = self._values
        return {
            "kind": "fixed",
            "tau": values.tau,
            "beta": values.beta,
            "kl_beta": values.kl_beta,
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over values and counter of another fixed controller.

        Raises:
            CheckpointError: the state is another controller's.
        """
        if state.get("kind") != "fixed":
            raise CheckpointError(
                f"controller state is of kind {state.get('kind')!r}, controller=fixed cannot continue it: "
                "choose the controller that wrote it"
            )
        self._values = ControllerValues(float(state["tau"]), float(state["beta"]), float(state["kl_beta"]))
        self.num_updates = int(state["num_updates"])


def initial_values(scoring: ScoringSettings) -> ControllerValues:
    """The configured coefficients."""
    return ControllerValues(scoring.weighting.tau, scoring.weighting.beta, scoring.kl_beta)


def state_file(paths: ControllerPaths, run_dir: Path) -> Path:
    """Where the controller's state is kept."""
    return Path(paths.state_path) if paths.state_path else run_dir / STATE_FILE


def claim_state_file(paths: ControllerPaths, run_dir: Path) -> None:
    """Refuse a state file that another run wrote, unless replacing it was asked for.

    Raises:
        ConfigError: the file is there and ``overwrite_existing`` is false.
    """
    path = state_file(paths, run_dir)
    # the file inside the run directory is the run's own, also after the directory was moved
    if paths.state_path is None or not path.exists() or paths.overwrite_existing:
        return
    owner = json.loads(path.read_text()).get("run_dir")
    if owner != str(run_dir.resolve()):
        raise ConfigError(
            f"controller.paths.state_path={path} holds the state of run {owner}: choose another file, or set "
            "controller.paths.overwrite_existing=true to replace it"
        )


def write_state(controller: Controller, paths: ControllerPaths, run_dir: Path, *, step: int) -> None:
    """Write the state as readable JSON, atomically; floats round-trip exactly."""
    path = state_file(paths, run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"run_dir": str(run_dir.resolve()), "step": step, "state": controller.state_dict()}
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)


def read_state(path: str) -> dict[str, Any]:
    """The controller state inside a state file of another run.

    Raises:
        CheckpointError: the file cannot be read as one.
    """
    try:
        return json.loads(Path(path).read_text())["state"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"controller.paths.resume_from={path} is not a controller state file: {error}") from error
