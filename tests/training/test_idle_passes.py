"""Processes with fewer slices than others keep up with them, and add nothing to the gradient."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import support
from accelerate import Accelerator
from support.two_ranks_step import gradient

from maxent_grpo.training.scoring.batch import RowRange

TESTS = Path(support.__path__[0]).parent


@pytest.mark.slow
def test_a_process_without_slices_takes_part_in_every_exchange_of_gradients() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "support.two_ranks_step"]
    ranks = [
        subprocess.Popen([*command, str(rank), "2", str(port)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    alone, passes = gradient(Accelerator(cpu=True), [RowRange(0, 1), RowRange(1, 2)])
    assert passes == 2
    for text in printed:
        there, passes = json.loads(text.splitlines()[-1])
        assert passes == 2
        assert there.keys() == alone.keys()
        for name, expected in alone.items():
            assert there[name] == pytest.approx(expected, abs=1e-7), name
    assert max(abs(value) for part in alone.values() for value in part) > 1e-2


def test_without_any_slice_the_gradient_is_zero() -> None:
    nothing, passes = gradient(Accelerator(cpu=True), [])
    assert passes == 0
    assert not any(any(part) for part in nothing.values())
    assert all(nothing.values()), "every parameter has a gradient"
