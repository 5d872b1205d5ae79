"""One of two processes in which only the second one has a fault, and what each of them makes of it."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import torch
from support.ranks import joined

from maxent_grpo.errors import NonFiniteError
from maxent_grpo.training.optim import check_finite_loss
from maxent_grpo.training.stopping import Stopping


def meet(rank: int, port: int, folder: Path) -> None:
    """Write the decisions to stop, before and after a signal to the second process, and what is said of its loss."""
    accelerator = joined(str(rank), "2", str(port))
    stopping = Stopping()
    with stopping.listening():
        before = stopping.decide(accelerator)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        after = stopping.decide(accelerator)
    said = ""
    try:
        loss = torch.tensor(math.nan if rank == 1 else 0.5)
        check_finite_loss(loss, accelerator, step=3, explain=lambda: f"row of process {rank}")
    except NonFiniteError as error:
        said = str(error)
    (folder / str(rank)).write_text(json.dumps([before, after, said]))
    accelerator.end_training()
