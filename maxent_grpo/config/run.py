"""`run`: the run as a whole."""

from dataclasses import dataclass, field
from enum import StrEnum

from maxent_grpo.config.checkpoint import MetricGoal


class DeviceChoice(StrEnum):
    """Where tensors live."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass(slots=True)
class RunConfig:
    """Where the run goes and what it runs on."""

    dir: str = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"
    """The run directory; it must not already hold a run, unless that run is the one being resumed."""
    device: DeviceChoice = DeviceChoice.auto
    """`auto` takes a GPU when there is one."""
    num_threads: int | None = None
    """CPU threads of torch; null leaves torch's own choice [threads]."""
    profile: bool = False
    """Write a trace of the steps in `profile_steps`, for chrome://tracing or Perfetto, and a table of their dearest operators into `<run>/profile`; the numbers of the run stay the same."""
    profile_steps: list[int] = field(default_factory=lambda: [2, 3])
    """Optimiser steps that `profile` looks at, counted from 1; the first one also pays for what is set up only once."""
    dry: bool = False
    """Only check everything and print the method, the batch arithmetic, token counts, a memory estimate and where the run would write; no weights are made and nothing is written."""
    sweep_resume: bool = False
    """With -m: continue an earlier sweep of the same jobs, the one in `hydra.sweep.dir` or else the newest; finished jobs are skipped, interrupted and failed ones go on from their last checkpoint, or start again where they saved none."""
    objective: str | None = None
    """Metric that a search of hyper-parameters (`-m hydra/sweeper=...`) is for, at its newest value when a job ends, and by which a sweep's table is sorted, such as `eval/pass@1`; null in a grid keeps its order."""
    objective_goal: MetricGoal = MetricGoal.max
    """Whether a larger (`max`) or smaller (`min`) objective is better."""
