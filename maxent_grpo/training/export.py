"""The trained model of a run that has ended or goes on, from one of its checkpoints."""

from __future__ import annotations

from pathlib import Path

from maxent_grpo.config.recorded import recorded_config
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.checkpoint.store import BEST, CHECKPOINTS, LATEST, find_checkpoint
from maxent_grpo.training.checkpoint.weights import ADAPTER_FOLDER, MODEL_FOLDER

LAST = "last"


def chosen_checkpoint(run_dir: Path, which: str) -> Path:
    """The folder of `last`, `best` or a step's checkpoint.

    Raises:
        ConfigError: ``which`` is none of these.
        CheckpointError: the run has no such checkpoint, or it is damaged.
    """
    if which in (LAST, LATEST):
        return find_checkpoint(run_dir)
    if which == BEST:
        if not (run_dir / CHECKPOINTS / BEST).exists():
            raise ConfigError(
                f"checkpoint=best: {run_dir} keeps no best checkpoint, for which checkpoint.best_metric must be set; it has "
                f"{_steps(run_dir)}"
            )
        return find_checkpoint(run_dir / CHECKPOINTS / BEST)
    if which.isdigit():
        if not (run_dir / CHECKPOINTS / f"step_{which}").is_dir():
            raise ConfigError(f"checkpoint={which}: {run_dir} has no checkpoint of that step; it has {_steps(run_dir)}")
        return find_checkpoint(run_dir / CHECKPOINTS / f"step_{which}")
    raise ConfigError(f"checkpoint={which}: write checkpoint=last, checkpoint=best or the number of a step")


def _steps(run_dir: Path) -> str:
    steps = sorted(int(path.name.removeprefix("step_")) for path in (run_dir / CHECKPOINTS).glob("step_*"))
    return f"those of steps {', '.join(map(str, steps))}" if steps else "none"


def export(run_dir: Path, which: str, output: Path) -> list[Path]:
    """Write a checkpoint's model into ``output`` as a run does when it ends; returns the folders.

    Raises:
        ConfigError, DataError, CheckpointError: the run, the checkpoint or the base cannot be used, or something is there already.
    """
    for name in (MODEL_FOLDER, ADAPTER_FOLDER):
        if (output / name).exists():
            raise ConfigError(f"output={output}: {name} is there already; name another folder")
    checkpoint = chosen_checkpoint(run_dir, which)
    config = recorded_config(run_dir, {
        "run.dir": str(output), "checkpoint.resume_from": None,
        "controller.paths.resume_from": None, "controller.paths.state_path": None,
    })  # fmt: skip
    from maxent_grpo.models.build import build_model
    from maxent_grpo.tasks.build import build_task
    from maxent_grpo.training.checkpoint.restored import restore_weights
    from maxent_grpo.training.checkpoint.run_state import load_run_state
    from maxent_grpo.training.setup import start_warm
    from maxent_grpo.training.share.final import write_trained
    from maxent_grpo.training.types.logging import LoggingHandles

    loaded = build_model(config.model)
    restore_weights(
        config, loaded, checkpoint, lambda: start_warm(config, build_task(config.data), loaded, LoggingHandles(output))
    )
    step = int(load_run_state(checkpoint).extras["step"])
    return write_trained(config, loaded, run_dir, output, step)
