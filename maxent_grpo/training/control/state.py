"""The file that keeps a controller's state, readable and exact, and a run that starts from another one's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maxent_grpo.config.resolve import uses_temperature
from maxent_grpo.errors import CheckpointError, ConfigError
from maxent_grpo.report.atomic import storage_errors, write_atomically
from maxent_grpo.training.control.base import Controller
from maxent_grpo.training.types.runtime import ControllerPaths, ScoringSettings

STATE_FILE = "controller_state.json"


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
    """Write the state as readable JSON, atomically; floats round-trip exactly.

    Raises:
        StorageError: the file cannot be written.
    """
    path = state_file(paths, run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"run_dir": str(run_dir.resolve()), "step": step, "state": controller.state_dict()}
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    # a checkpoint holds the same durably; this one is written at every step
    with storage_errors(path):
        write_atomically(path, lambda file: file.write(text.encode("ascii")), durable=False)


def read_state(path: str) -> dict[str, Any]:
    """The controller state inside a state file of another run.

    Raises:
        CheckpointError: the file cannot be read as one.
    """
    try:
        return json.loads(Path(path).read_text())["state"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"controller.paths.resume_from={path} is not a controller state file: {error}") from error


def take_over(controller: Controller, path: str, scoring: ScoringSettings, *, has_reference: bool) -> None:
    """Continue with the state file of another run.

    Raises:
        CheckpointError: the file does not hold the state of such a controller.
        ConfigError: its coefficients are none that this run's method can work with.
    """
    controller.load_state_dict(read_state(path))
    values, targeted = controller.values, uses_temperature(scoring)
    state = f"controller.paths.resume_from={path}: "
    if not has_reference and (values.kl_beta > 0 or (targeted and values.beta > 0)):
        raise ConfigError(
            f"{state}its kl_beta={values.kl_beta:g} and beta={values.beta:g} need reference log-probabilities, and this run "
            "keeps no reference; use scoring.reference_logprobs_source=model"
        )
    if targeted and values.tau + values.beta == 0:
        raise ConfigError(f"{state}its tau + beta is 0, where the weight exponent 1/(tau+beta) is undefined")
