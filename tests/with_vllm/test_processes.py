"""A server that the command starts: it trains with it, and takes it down however it ends.

All in the long form, as each test starts an engine; in the short one a server is killed and started anew in ``test_server.py``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import metric_lines, overrides
from support.vllm_policy import HAS_VLLM, NEEDS_VLLM
from support.vllm_runs import AHEAD, LEARNING, assert_groups_are_whole, leftovers, servers, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
"""The graders of the small run are imported from the tests."""
LAUNCHED = (*LEARNING, "logging.console=plain", "run.num_threads=1", "generation.vllm.timeout=20")


def start(run_dir: Path, *extra: str) -> subprocess.Popen[str]:
    """The command, left running; what it prints goes to a file beside the run directory."""
    command = [sys.executable, str(ROOT / "train.py"), *overrides(run_dir, *LAUNCHED, *extra)]
    with run_dir.with_suffix(".txt").open("w") as sink:
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=sink, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="terminated"),
    ],
)
def test_a_server_ends_with_the_command_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    """Here while it is still starting, which takes it longest."""
    with start(tmp_path / "run") as trainer:
        assert until(lambda: servers(trainer.pid) or trainer.poll() is not None, 120)
        assert trainer.poll() is None, tmp_path.joinpath("run.txt").read_text()
        time.sleep(3.0)
        trainer.send_signal(number)
        trainer.wait(60)
    assert trainer.returncode != 0
    assert until(lambda: not leftovers(trainer.pid), 30)


@pytest.mark.parametrize("ahead", [(), AHEAD], ids=["", "while the next rollout is in flight"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_server_that_answers_ends_with_the_command(
    tmp_path: Path, number: signal.Signals, ahead: tuple[str, ...]
) -> None:
    with start(tmp_path / "run", *ahead, "optimization.total_training_steps=10000") as trainer:
        assert until(lambda: (tmp_path / "run" / "metrics.jsonl").is_file() or trainer.poll() is not None, 400)
        trainer.send_signal(number)
        trainer.wait(60)
    assert until(lambda: not leftovers(trainer.pid), 30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_command_trains_though_its_server_dies_or_hangs_on_the_way(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path / "run", "generation.vllm.timeout=5") as trainer:
        assert until(lambda: len(_lines(tmp_path / "run")) >= 3 or trainer.poll() is not None, 400)
        [first] = servers(trainer.pid)
        for process in (first, *first.children(recursive=True)):
            os.kill(process.pid, number)
        assert trainer.wait(500) == 0
    said = (tmp_path / "run.txt").read_text()
    assert len(re.findall("vLLM: starting a server", said)) == 2
    assert "vLLM: the server answers after" in said
    assert (tmp_path / "run" / "vllm" / "server.log").stat().st_size > 1000
    steps = [line for line in metric_lines(tmp_path / "run") if line["step"] > 0]
    assert sum(line["generation/failed_requests"] for line in steps) >= 1
    assert steps[-1]["reward/mean"] > steps[0]["reward/mean"] + 0.2
    assert_groups_are_whole(tmp_path / "run", steps=6, group=16)
    assert until(lambda: not leftovers(trainer.pid), 30)


def _lines(run_dir: Path) -> list[str]:
    return (run_dir / "metrics.jsonl").read_text().splitlines() if (run_dir / "metrics.jsonl").is_file() else []
