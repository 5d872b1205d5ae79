"""Whether the model of a step's time foretells two processes: its costs are fitted to one process, and two are measured.

All runs are of a tiny model that never ends a completion early, one thread to a process, on this machine:

    one process with n prompts, and with 2 n        -> seconds of each phase = fixed + per token * tokens
    two such processes that know nothing of each other  -> what sharing the machine costs (memory, caches)
    two processes that only exchange a gradient     -> bytes a second
    two processes of one run with 4 n prompts       -> what is foretold, each process having 2 n

The least of a run's steps counts: they all do the same work, and whatever else runs here only adds to them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.process import one_thread
from benchmarks.steps import Work, overrides, prepare
from maxent_grpo.report.read import read_metrics
from maxent_grpo.training.step_time import Costs, Layout, Links, Load, Rate, StepTime, Traffic, scored_of, step_time

TOLERANCE = 0.25
"""How far the foretold step may be from the measured one, as a share of it."""
SMALL = Work(prompts=4, group=8, completion=64, steps=5, drop=1)
PHASES = ("rollout", "policy", "backward", "optimizer")
"""Phases with costs of their own; the rest of a step is fitted together."""
TOGETHER = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--rdzv_backend", "c10d")
TOGETHER_AT = ("--rdzv_endpoint", "localhost:0")
LIMIT = 600.0
"""Time that one launch may take [s]."""


@dataclass(frozen=True)
class Fitted:
    """Costs of one process here."""

    costs: Costs
    rest: tuple[float, float]
    """What has no cost of its own: of a step, and of each prompt [s]."""
    crowding: float
    """Seconds beside another process over seconds alone."""
    bus: float
    """Bytes a second of an exchange between two processes."""
    gradient: int
    """Bytes of all gradients."""


def phase_seconds(rows: Sequence[Mapping[str, Any]], drop: int) -> dict[str, float]:
    """Seconds of each phase, and of all others together, in the quickest step after the first ones."""
    steps = [row for row in rows if row.get("step", 0) > drop and "time/step_seconds" in row]
    best = min(steps, key=lambda row: row["time/step_seconds"])
    found = {name: float(best[f"time/{name}_seconds"]) for name in PHASES}
    return found | {"rest": float(best["time/step_seconds"]) - sum(found.values())}


def line(small: float, large: float, at_small: float, at_large: float) -> tuple[float, float]:
    """(a, b) of a + b x through two measurements, both at least 0.

    Where the line through both would have one below 0, that one is 0 and the line goes through the larger measurement, from which
    is foretold.
    """
    slope = (large - small) / (at_large - at_small)
    first = small - slope * at_small
    if slope < 0:
        return large, 0.0
    return (first, slope) if first >= 0 else (0.0, large / at_large)


def load_of(work: Work, prompts: int) -> Load:
    """The step of a benchmark as the model of time describes it."""
    return Load(prompts, work.group, work.prompt_length, work.completion, work.completion)


def fit(
    small: Mapping[str, float], large: Mapping[str, float], work: Work, *, crowding: float, bus: float, gradient: int
) -> Fitted:
    """Costs through the phases of a step with ``work.prompts`` prompts and of one with twice as many."""
    few, many = load_of(work, work.prompts), load_of(work, 2 * work.prompts)
    tokens = scored_of(few.prompts, few).tokens, scored_of(many.prompts, many).tokens
    sequences = few.prompts * few.group, many.prompts * many.group
    # prompts are so short beside completions that reading them is counted with the sequences
    step, sequence = line(small["rollout"], large["rollout"], *sequences)
    forward, backward = (Rate(*line(small[name], large[name], *tokens)) for name in ("policy", "backward"))
    costs = Costs(
        prefill=Rate(), decode_step=step / work.completion, decode_token=sequence / work.completion, decode_compute=0.0,
        forward=forward, backward=backward, update=small["optimizer"],
    )  # fmt: skip
    rest = line(small["rest"], large["rest"], few.prompts, many.prompts)
    return Fitted(costs, rest, crowding, bus, gradient)


def foretold(fitted: Fitted, work: Work, prompts: int, processes: int) -> tuple[StepTime, float]:
    """The parts of a step of so many processes with ``prompts`` prompts in all, and its seconds with the rest and the crowding."""
    links = Links(fitted.bus, fitted.bus, per_node=processes, overlap=0.0)
    step = step_time(fitted.costs, load_of(work, prompts), Layout(processes), Traffic(2 * fitted.gradient), links)
    rest = fitted.rest[0] + fitted.rest[1] * prompts / processes
    alone = step.total - step.exchange + rest
    return step, alone * (fitted.crowding if processes > 1 else 1.0) + step.exchange


class CheckError(RuntimeError):
    """A run that is to be measured could not be made."""


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = one_thread(dict(os.environ))
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, *command], stdout=log, stderr=subprocess.STDOUT, env=environment)


def _finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        status = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = None
    if status:
        raise CheckError(f"a run failed with status {status}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    if status is None:
        raise CheckError(f"a run took longer than {LIMIT:g} s")


def _runs(work: Work, root: Path, folders: Sequence[Path], launcher: Sequence[str] = ()) -> list[dict[str, float]]:
    """The phases of a run in each of the folders, all at once."""
    processes: list[subprocess.Popen[bytes]] = []
    for folder in folders:
        folder.parent.mkdir(parents=True, exist_ok=True)
        typed = [*overrides(work, prepare(work, root), folder), "run.num_threads=1"]
        processes.append(_start([*launcher, "train.py", *typed], folder.parent))
    try:
        for process, folder in zip(processes, folders, strict=True):
            _finish(process, folder.parent)
    finally:
        for process in processes:  # those beside one that failed
            process.kill()
            process.wait()
    return [phase_seconds(read_metrics(folder), work.drop) for folder in folders]


def measure(root: Path, work: Work = SMALL) -> dict[str, Any]:
    """Make all runs, and return what was measured and foretold, with the ratio of the two steps."""
    root.mkdir(parents=True, exist_ok=True)
    twice, four = replace(work, prompts=2 * work.prompts), replace(work, prompts=4 * work.prompts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        [small] = _runs(work, root, [folder / "small" / "run"])
        [large] = _runs(twice, root, [folder / "large" / "run"])
        beside = _runs(twice, root, [folder / "left" / "run", folder / "right" / "run"])
        [together] = _runs(four, root, [folder / "together" / "run"], (*TOGETHER, *TOGETHER_AT))
        gradient = _gradient_bytes(folder / "large" / "run")
        bus = _bus(gradient, folder)
    crowding = max(1.0, sum(sum(run.values()) for run in beside) / 2 / sum(large.values()))
    fitted = fit(small, large, work, crowding=crowding, bus=bus, gradient=gradient)
    step, seconds = foretold(fitted, work, four.prompts, 2)
    measured = sum(together.values())
    return {
        "one process": {work.prompts: small, twice.prompts: large},
        "beside another": beside,
        "two processes": together,
        "crowding": crowding,
        "bytes per second": bus,
        "gradient bytes": gradient,
        "foretold": {**step.parts, "step": seconds},
        "measured": measured,
        "one process with all prompts, foretold": foretold(fitted, work, four.prompts, 1)[1],
        "ratio": seconds / measured,
        "tolerance": TOLERANCE,
        "holds": abs(seconds / measured - 1) <= TOLERANCE,
    }


def _gradient_bytes(run: Path) -> int:
    """Bytes of all weights of a run's last checkpoint, which are float32 as its gradients."""
    weights = next((run / "checkpoints").glob("step_*/model/model.safetensors"))
    return weights.stat().st_size


def _bus(size: int, folder: Path) -> float:
    """What a ring between two processes here carries, from an all-reduce of ``size`` bytes [bytes/s]."""
    answer = folder / "bus.json"
    _finish(
        _start([*TOGETHER, *TOGETHER_AT, "-m", "benchmarks.scale_exchange", str(size), str(answer)], folder), folder
    )
    # two processes: (n - 1) / n of twice the bytes
    return size / float(json.loads(answer.read_text()))
