"""Asking SLURM to queue this job again, after a run was stopped before its end."""

from __future__ import annotations

import logging
import os
import subprocess

from maxent_grpo.config.run import Requeue
from maxent_grpo.launched import place
from maxent_grpo.training.stopping import StopCause

JOB = "SLURM_JOB_ID"
ASK_SECONDS = 60.0
"""How long `scontrol` may take."""

logger = logging.getLogger(__name__)


def wants_requeue(choice: Requeue, cause: StopCause) -> bool:
    """Whether a job that was stopped for this cause is to be queued again; never after Ctrl-C."""
    out_of_time = cause in (StopCause.notice, StopCause.time_limit)
    return (choice is not Requeue.never and out_of_time) or (
        choice is Requeue.any_stop and cause is StopCause.terminate
    )


def requeue_job(*, got_anywhere: bool = True) -> bool:
    """`scontrol requeue` of the job that this process belongs to; whether it was asked and agreed.

    Of several processes the main one asks. A run whose time did not do for a single step is not ``got_anywhere``: nor would it the next
    time, for ever. A failure is told: the run is saved, and a job that is submitted again goes on with it.
    """
    if not place().is_main:
        return False
    if not got_anywhere:
        logger.warning(
            "run.requeue: run.max_hours left no time for a single step, nor would it the next time: nothing is queued again; raise it"
        )
        return False
    job = os.environ.get(JOB)
    if job is None:
        logger.warning("run.requeue: %s is not set, so this is no SLURM job, and nothing is queued again", JOB)
        return False
    try:
        asked = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, check=False, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    else:
        if asked.returncode == 0:
            logger.info("job %s is queued again", job)
            return True
        problem = asked.stderr.strip() or f"exit status {asked.returncode}"
    logger.warning("`scontrol requeue %s` failed (%s); submit the job again, it goes on by itself", job, problem)
    return False
