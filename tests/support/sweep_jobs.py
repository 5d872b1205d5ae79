"""Jobs of sweeps for tests, in a module that a worker process can import; torch is loaded only by those that train."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from maxent_grpo.commands.train import hydra_main
from maxent_grpo.config.load import check
from maxent_grpo.config.own_modules import modules_of
from maxent_grpo.config.resolve import chosen_options
from maxent_grpo.config.scoring import DrGrpoScoringConfig
from maxent_grpo.sweeps.record import Standing, read_job


@dataclass
class OwnScoringConfig(DrGrpoScoringConfig):
    """An option that only the process which starts a sweep has made known."""


PATIENCE = 120.0
"""How long a job waits for another one before it gives up [seconds]."""


def job_folder() -> Path:
    """The folder of the job that runs."""
    return Path(HydraConfig.get().runtime.output_dir)


def note(config: DictConfig) -> float:
    """Check, write seed and threads into the job's folder, return tau; seed 13 is unlucky."""
    config.run.dir = str(job_folder())
    checked = check(config)
    if checked.seed == 13:
        raise ZeroDivisionError("seed 13\nhas no luck")
    (job_folder() / "note.txt").write_text(f"{checked.seed} {checked.run.num_threads}")
    (job_folder() / "modules.txt").write_text(" ".join(modules_of(chosen_options(checked))))
    return checked.scoring.weighting.tau


def meet(config: DictConfig) -> None:
    """Go on once the sweep's other job has begun too: jobs that come one after the other never get there."""
    (job_folder() / "here").touch()
    wait_for(lambda: len(list(job_folder().parent.glob("*/here"))) == 2)
    note(config)


def meet_and_train(config: DictConfig) -> None:
    """Train once the sweep's other job has begun too."""
    meet(config)
    hydra_main(config)


def killed_with_seed_1(config: DictConfig) -> float:
    """Seed 1 is killed when the other job of two has finished."""
    if config.seed == 1:
        wait_for(lambda: standing(job_folder().parent / "0-seed=0") is Standing.finished)
        os.kill(os.getpid(), signal.SIGKILL)
    return note(config)


def stopped_with_seed_1(config: DictConfig) -> float:
    """Seed 1 is told to stop, and the other job of two goes on until after that."""
    if config.seed == 1:
        raise SystemExit(75)
    wait_for(lambda: standing(job_folder().parent / "1-seed=1") is Standing.interrupted)
    time.sleep(0.5)  # for what a worker's end would do to the others
    return note(config)


def standing(folder: Path) -> Standing | None:
    """How the job in a folder stands, if it was started."""
    record = read_job(folder)
    return None if record is None else record.standing


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)
