"""Where the time of a step went: every moment in one phase, and all of them together the step."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from statistics import median
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator
from support.runs import configured, inside_run, train

from maxent_grpo.report.read import read_metrics
from maxent_grpo.training import metrics as metrics_module
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.metrics import machine_metrics
from maxent_grpo.training.types.phases import PHASES

EVERYTHING = (
    "data.num_train=16",
    "scoring=maxent",
    "scoring.kl_beta=0.1",
    "scoring.reference_sync.every_n_steps=2",
    "optimization.minibatches=2",
    "optimization.total_training_steps=8",
    "evaluation.every_n_steps=4",
    "checkpoint.every_n_steps=3",
)


def ticking() -> PhaseClock:
    """A clock that is read at 0, 1, 2, ..."""
    times = count()
    return PhaseClock(now=lambda: float(next(times)))


def test_time_inside_another_phase_counts_once() -> None:
    clock = ticking()
    with clock.phase("outer"), clock.phase("inner"):
        pass
    # read at 0 (made), 1 and 2 (entered), 3 and 4 (left), 5 (drained)
    assert clock.drain() == ({"outer": 2.0, "inner": 1.0}, 5.0)
    assert clock.drain() == ({}, 1.0)


def test_a_phase_that_fails_is_counted_and_left() -> None:
    clock = ticking()
    with pytest.raises(ValueError, match="no"), clock.phase("failing"):
        raise ValueError("no")
    assert clock.drain() == ({"failing": 1.0}, 3.0)


def test_waiting_for_items_is_counted_and_using_them_is_not() -> None:
    clock = ticking()
    taken = []
    for item in clock.waiting("making", "ab"):
        with clock.phase("using"):
            taken.append(item)
    # two items and the end of them
    assert (taken, clock.drain()[0]) == (["a", "b"], {"making": 3.0, "using": 2.0})


def test_queued_work_belongs_to_the_phase_that_queued_it() -> None:
    clock, settled = ticking(), []
    clock._settle = lambda: settled.append(dict(clock._seconds))
    with clock.phase("queueing"):
        pass
    assert settled == [{}, {}]  # waited for before each reading


def test_the_phases_of_a_run_add_up_to_its_steps(tmp_path: Path) -> None:
    train(tmp_path / "run", *EVERYTHING)
    first, *lines = read_metrics(tmp_path / "run")
    assert [name for name in first if name.startswith("time/")] == ["time/evaluation_seconds"]
    found: list[set[str]] = []
    for line in lines:
        times = {name[5:-8]: value for name, value in line.items() if name.startswith("time/")}
        total = times.pop("step")
        assert sum(times.values()) == pytest.approx(total, rel=1e-9)
        assert all(value >= 0 for value in times.values())
        found.append(set(times) - {"other"})
    assert all(line["throughput/cpu_seconds"] > 0 for line in lines)
    assert median(line["time/other_seconds"] / line["time/step_seconds"] for line in lines) < 0.1
    assert set().union(*found) == set(PHASES) - {"meta"}
    # steps from 1: a rollout at odd ones, what follows a line on the next one
    assert [n for n, names in enumerate(found, 1) if "rollout" in names] == [1, 3, 5, 7]
    assert [n for n, names in enumerate(found, 1) if "evaluation" in names] == [4, 8]
    assert [n for n, names in enumerate(found, 1) if "checkpoint" in names] == [4, 7]
    assert [n for n, names in enumerate(found, 1) if "log" in names] == [2, 3, 4, 5, 6, 7, 8]


def test_cpu_time_is_that_of_work_and_not_of_waiting() -> None:
    clock = PhaseClock()
    clock.drain_processor()
    time.sleep(0.2)
    waited = clock.drain_processor()
    started = time.process_time()
    while time.process_time() - started < 0.2:
        pass
    worked = clock.drain_processor()
    assert waited < 0.1 < 0.2 <= worked


def test_no_work_of_a_step_is_left_unclaimed(tmp_path: Path) -> None:
    """What the step calls outside its phases is claimed as well: slow counting, slow credit, slow targets."""
    config = configured(tmp_path / "run", "scoring=maxent", "evaluation.enabled=false")

    def body(ctx, resources, parts):  # type: ignore[no-untyped-def]
        from maxent_grpo.training import step as step_module
        from maxent_grpo.training.loop import run_training

        seen: list[list[str]] = []

        def spied(name):  # type: ignore[no-untyped-def]
            original = getattr(step_module, name)

            def spy(*args, **kwargs):  # type: ignore[no-untyped-def]
                seen.append([name, *parts.clock._open])
                return original(*args, **kwargs)

            return patch.object(step_module, name, spy)

        with spied("group_evidence"), spied("sequence_targets"), spied("scored_rows"), spied("SliceLoss"):
            run_training(ctx, resources, parts)
        return seen

    seen = inside_run(config, body)
    assert {name for name, *_ in seen} == {"group_evidence", "sequence_targets", "scored_rows", "SliceLoss"}
    assert {tuple(phases) for _, *phases in seen} == {("prepare",)}


def test_a_gpu_has_a_peak_of_its_own() -> None:
    accelerator = Accelerator(cpu=True)
    assert "memory/peak_cuda_mib" not in machine_metrics({}, 1.0, accelerator) or torch.cuda.is_available()
    with (
        patch.object(metrics_module.torch.cuda, "is_available", lambda: True),
        patch.object(metrics_module.torch.cuda, "max_memory_allocated", lambda: 3 * 2**20),
    ):
        assert machine_metrics({}, 1.0, accelerator)["memory/peak_cuda_mib"] == 3.0
