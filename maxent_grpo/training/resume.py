"""Continuing a run: which checkpoint, whether it fits, and what is restored from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from torch import nn

from maxent_grpo.config.checkpoint import LATEST
from maxent_grpo.config.own_modules import modules_of
from maxent_grpo.config.preflight import holds_checkpoint, run_marks
from maxent_grpo.config.presets import flatten
from maxent_grpo.config.resolve import chosen_options
from maxent_grpo.config.resumed import write_overrides
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice
from maxent_grpo.config.secrets import lost_secrets, redacted, redacted_tree
from maxent_grpo.distributed import from_main
from maxent_grpo.errors import CheckpointError, ConfigError
from maxent_grpo.folder_lock import locked
from maxent_grpo.models.adapter import has_adapter
from maxent_grpo.report.atomic import storage_errors
from maxent_grpo.report.read import read_config
from maxent_grpo.telemetry.config_text import config_text
from maxent_grpo.telemetry.environment import write_environment
from maxent_grpo.telemetry.history import adopt_history
from maxent_grpo.telemetry.run_dir import prepare_run_dir, remove_partials, write_config
from maxent_grpo.telemetry.tracking import TrackedRun
from maxent_grpo.telemetry.versions import write_versions
from maxent_grpo.training.checkpoint.adapter_origin import ORIGIN, AdapterOrigin, require_same_origin
from maxent_grpo.training.checkpoint.compatibility import require_compatible
from maxent_grpo.training.checkpoint.per_process import PROCESSES, PerProcess, generators_share
from maxent_grpo.training.checkpoint.run_state import (
    DataclassState,
    RngState,
    load_run_state,
    restore_run_state,
)
from maxent_grpo.training.checkpoint.store import find_checkpoint
from maxent_grpo.training.checkpoint.weights import load_weights
from maxent_grpo.training.checkpoint.whole import (
    full_optimizer_state,
    full_weights,
    load_full_optimizer_state,
    load_full_weights,
)
from maxent_grpo.training.control.state import claim_state_file, state_file
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.metric_goals import better
from maxent_grpo.training.optim import set_learning_rate
from maxent_grpo.training.repartition import ahead_share, carried_share, rollout_share
from maxent_grpo.training.types.runtime import TrainingLoopContext

GUARD = "nonfinite"
"""Name of the state that counts steps which were left out; checkpoints of earlier versions have none."""
BEFORE_EVERYTHING = -1
"""A step before that of the first evaluation."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resume:
    """A checkpoint to continue from, verified and compatible with the configuration."""

    folder: Path
    run_dir: Path
    step: int


class WeightsState:
    """Registers a model's weights as plain state, for a reference that moves; with an adapter only the adapter, which moves."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """Every parameter and saved buffer by name, or the adapter's matrices."""
        return full_weights(self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the saved weights into the model."""
        load_full_weights(self.model, state)


@dataclass(frozen=True)
class OptimizerState:
    """Registers an optimiser with the state of whole parameters."""

    optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """Moments, step counts and settings."""
        return full_optimizer_state(self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from them."""
        load_full_optimizer_state(self.optimizer, state)


def config_tree(config: RootConfig) -> dict[str, Any]:
    """The configuration as plain nested values, enumerations by name and secrets left out, as files and checkpoints keep it."""
    return cast(dict[str, Any], redacted_tree(_plain(config)))


def refuse_lost_secrets(config: RootConfig) -> None:
    """Refuse settings that were read back from a run's files, where a secret is left out.

    Raises:
        ConfigError: naming each of them.
    """
    lost = lost_secrets(flatten(cast(dict[str, Any], _plain(config))))
    if lost:
        raise ConfigError(lost)


def find_resume(config: RootConfig) -> Resume | None:
    """The checkpoint that ``checkpoint.resume_from`` means, or None; `latest` may find none.

    Raises:
        CheckpointError: there is none, it is damaged, or its objective or data differ from the configuration's.
    """
    source = config.checkpoint.resume_from
    if source == LATEST:
        source = config.run.dir if holds_checkpoint(Path(config.run.dir)) else None
    if source is None:
        return None
    folder = find_checkpoint(source)
    extras = load_run_state(folder).extras
    require_compatible(extras["config"], config_tree(config))
    _require_ahead(config, folder, int(extras["step"]))
    return Resume(folder, folder.parent.parent, int(extras["step"]))


def _require_ahead(config: RootConfig, folder: Path, step: int) -> None:
    """Refuse a run that would end before the step it goes on from: its record would say another thing than its weights."""
    total = config.optimization.total_training_steps
    if 0 < total < step:
        raise ConfigError(
            f"optimization.total_training_steps={total}: {folder} is of step {step}, so that the run would end before it goes on; "
            f"use {step} to end there, more to go on, or an earlier checkpoint"
        )


@contextmanager
def entered_directory(config: RootConfig) -> Iterator[tuple[Path, Resume | None]]:
    """The run directory, made and locked within the block, and the checkpoint that the run goes on from, if any.

    Its record is then that of the run so far: what was written after the checkpoint is taken back, as the steps come again.

    Raises:
        ConfigError: another run lives or goes on there.
        CheckpointError: as ``find_resume``.
    """
    run_dir, resumed_from = Path(config.run.dir), config.checkpoint.resume_from
    with ExitStack() as held:
        is_there = run_dir.is_dir()
        if is_there:  # before anything in it is believed
            held.enter_context(locked(run_dir))
        resume = find_resume(config)
        prepare_run_dir(run_dir, resumed_from)
        if not is_there:
            held.enter_context(locked(run_dir))
        remove_partials(run_dir)
        claim_state_file(config.controller.paths, run_dir)
        with storage_errors(run_dir):
            if resume is not None:
                adopt_history(resume.run_dir, run_dir, resume.step)
            elif resumed_from is not None:
                begin_anew(config, run_dir)
        yield run_dir, resume


def describe_run(config: RootConfig, run_dir: Path, overrides: Sequence[str]) -> None:
    """Keep what the run is: its settings, what was said on its command line, the versions that it is made with, and what it runs on.

    Raises:
        StorageError: one of the files cannot be written.
    """
    with storage_errors(run_dir):
        chosen = chosen_options(config)
        write_config(run_dir, config_text(config_tree(config)), chosen, modules_of(chosen))
        write_overrides(run_dir, overrides)
        write_versions(run_dir)
        on_gpu = config.run.device is not DeviceChoice.cpu
        write_environment(run_dir, config_tree(config), num_threads=config.run.num_threads, on_gpu=on_gpu)


def tracked_run(config: RootConfig, run_dir: Path, overrides: Sequence[str], resume: Resume | None) -> TrackedRun:
    """What trackers are told of the run, without secrets."""
    return TrackedRun(
        run_dir, config_tree(config), chosen_options(config), list(map(redacted, overrides)),
        state_file(config.controller.paths, run_dir), better, None if resume is None else resume.run_dir,
    )  # fmt: skip


def begin_anew(config: RootConfig, run_dir: Path) -> None:
    """Take back what a run left in its directory that was killed before its first checkpoint: its lines come again.

    Raises:
        CheckpointError: the lines are those of a run with another objective or other data.
        DataError: they cannot be read.
    """
    if not run_marks(run_dir):
        return
    ours = OmegaConf.to_container(OmegaConf.create(config_text(config_tree(config))))
    require_compatible(read_config(run_dir), cast(dict[str, Any], ours))
    taken_back = adopt_history(run_dir, run_dir, BEFORE_EVERYTHING)
    logger.warning(
        "%s holds no checkpoint: the run begins anew, and its %d lines so far are taken back",
        run_dir,
        taken_back.num_left,
    )


@dataclass(frozen=True)
class DataContent:
    """The content of the data, by its fingerprint: a position in other data means other rows."""

    fingerprint: str

    def state_dict(self) -> dict[str, Any]:
        """The fingerprint."""
        return {"fingerprint": self.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare.

        Raises:
            CheckpointError: the data are not those of the checkpoint.
        """
        if state["fingerprint"] != self.fingerprint:
            raise CheckpointError(
                "cannot resume: the content of the data has changed since the checkpoint was made, so that its position would "
                "mean other rows; put the data back as they were, or start a new run without checkpoint.resume_from"
            )


def register_state(ctx: TrainingLoopContext, parts: LoopParts, fingerprint: str = "", *, seed: int = 0) -> None:
    """Fill the registry that checkpoints walk: everything that changes in training but the policy's weights.

    ``fingerprint`` is that of the data's content, empty where the settings alone make the data; ``seed`` the run's.
    """
    handles, accelerator = ctx.optimization.handles, ctx.runtime.accelerator
    registry: dict[str, Any] = {
        "optimizer": OptimizerState(handles.base_optimizer),
        "scheduler": handles.lr_scheduler,
        "controller": parts.controller,
        "counters": DataclassState(parts.state),
        "data": parts.position,
        "rollout": PerProcess(parts.buffer, rollout_share, accelerator),
        "early_stopping": parts.saving.best,
        "rng": PerProcess(RngState(), generators_share(seed), accelerator),
    }
    if fingerprint:
        registry["data_content"] = DataContent(fingerprint)
    if parts.carried is not None:
        registry["carried_groups"] = PerProcess(parts.carried, carried_share, accelerator)
    if parts.ahead is not None:
        registry["rollout_ahead"] = PerProcess(parts.ahead, ahead_share, accelerator)
    if ctx.scoring.reference_sync.every_n_steps > 0 and ctx.runtime.reference_model is not None:
        registry["reference"] = WeightsState(ctx.runtime.reference_model)
    if has_adapter(ctx.runtime.model):
        assert ctx.training_args is not None
        starts_elsewhere = ctx.training_args["model"]["lora"]["adapter"] is not None
        registry[ORIGIN] = AdapterOrigin(ctx.runtime.model, starts_from_adapter=starts_elsewhere)
    registry[GUARD] = parts.guard
    ctx.checkpoint_state_ref = registry


def restore(ctx: TrainingLoopContext, parts: LoopParts, resume: Resume) -> None:
    """Load weights and every registered state. A frozen reference stays what it is: the policy as the run began."""
    assert ctx.checkpoint_state_ref is not None
    ctx.resume_checkpoint = str(resume.folder)
    if ORIGIN in ctx.checkpoint_state_ref:
        require_same_origin(ctx.checkpoint_state_ref[ORIGIN], resume.folder)
    load_weights(ctx.runtime.model, resume.folder)
    if ctx.runtime.sharded is not None:
        ctx.runtime.sharded.adopt()
    ctx.resume_state = restore_run_state(resume.folder, ctx.checkpoint_state_ref, optional=(GUARD,))
    # the patience and the length of training may have changed: what follows from them is settled anew
    parts.state.stop_training = parts.saving.best.out_of_patience
    set_learning_rate(ctx.optimization.handles)
    latest, accelerator = parts.saving.store.latest, ctx.runtime.accelerator
    # whether to save again is for all processes to do or not to do
    if from_main(accelerator, latest is not None and latest.resolve() == resume.folder.resolve()):
        parts.saving.newest = resume.step
    others = _other_number(int(ctx.resume_state.get(PROCESSES, 1)), accelerator.num_processes)
    ctx.logging.write_note(f"resumed from {ctx.resume_checkpoint} at step {ctx.resume_state['step']}{others}")


def _other_number(before: int, now: int) -> str:
    """What a change of the number of processes does to a run, for the note; nothing where it stays."""
    if before == now:
        return ""
    seeded = f"; the generators of Python, numpy and torch begin anew in {now - before} of them" if now > before else ""
    return (
        f", saved by {before} {'process' if before == 1 else 'processes'} and continued by {now}: groups that wait are shared out anew, "
        f"and sums are rounded in another order{seeded}"
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
