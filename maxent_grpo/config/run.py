"""`run`: the run as a whole."""

from dataclasses import dataclass, field
from enum import StrEnum

from maxent_grpo.config.checkpoint import MetricGoal


class DeviceChoice(StrEnum):
    """Where tensors live."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class OnNonfinite(StrEnum):
    """What becomes of an optimiser step whose loss or gradient is NaN or infinite."""

    stop = "stop"
    skip = "skip"


class Requeue(StrEnum):
    """After which stops SLURM is asked to queue the job again."""

    never = "never"
    out_of_time = "out_of_time"
    any_stop = "any_stop"


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
    max_hours: float | None = None
    """Wall-clock time that the run may take, from the start of its command; it saves and stops, with exit status 75, when less is left than two of its longest steps took with what follows them, and at least a hundredth of it; null sets no limit [hours]."""
    requeue: Requeue = Requeue.never
    """Ask SLURM to queue the job again (`scontrol requeue`) once it is saved and stopped: `out_of_time` after SIGUSR1 (`sbatch --signal=USR1@120`) or max_hours, `any_stop` also after SIGTERM, which `scancel` sends too; needs checkpoint.resume_from=latest."""
    on_nonfinite: OnNonfinite = OnNonfinite.stop
    """When a step's loss or gradient is NaN or infinite: `stop` ends the run before the update, `skip` leaves the step out: weights, optimiser, learning rate and controllers stay as they were, the step counts and its prompts are used up."""
    max_nonfinite: int = 3
    """With on_nonfinite=skip, how many steps in a row may be left out before the run stops all the same: weights that went bad do not get better by waiting [steps]."""
    dry: bool = False
    """Only check everything and print the method, the batch arithmetic, token counts, a memory estimate and where the run would write; no weights are made and nothing is written."""
    sweep_resume: bool = False
    """With -m: continue an earlier sweep of the same jobs, the one in `hydra.sweep.dir` or else the newest; finished jobs are skipped, interrupted and failed ones go on from their last checkpoint, or start again where they saved none."""
    objective: str | None = None
    """Metric that a search of hyper-parameters (`-m hydra/sweeper=...`) is for, at its newest value when a job ends, and by which a sweep's table is sorted, such as `eval/pass@1`; null in a grid keeps its order."""
    objective_goal: MetricGoal = MetricGoal.max
    """Whether a larger (`max`) or smaller (`min`) objective is better."""
