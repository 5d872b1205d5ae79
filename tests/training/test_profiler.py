"""A profiled run is the run, and leaves a trace of the chosen steps with the phases of the clock in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import train
from support.same_run import assert_same_run

from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.profiler import DEAREST, StepProfiler


def test_a_profiled_run_is_the_run_and_leaves_its_traces(tmp_path: Path) -> None:
    settings = (
        "scoring=maxent",
        "scoring.kl_beta=0.1",
        "optimization.total_training_steps=3",
        "evaluation.enabled=false",
    )
    train(tmp_path / "plain", *settings)
    train(tmp_path / "seen", *settings, "run.profile=true")
    assert_same_run(tmp_path / "plain", tmp_path / "seen")
    folder = tmp_path / "seen" / "profile"
    names = [f"step_{step}.{ending}" for step in (2, 3) for ending in ("json.gz", "txt")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    with gzip.open(folder / "step_2.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    named = {event.get("name") for event in events}
    assert {"rollout", "reward", "reference", "policy", "backward", "optimizer", "measure"} <= named
    assert any(str(name).startswith("aten::") for name in named)
    phases = [event for event in events if event.get("cat") == "user_annotation"]
    linear = [event for event in events if event.get("name") == "aten::linear"]
    holders = {phase["name"] for phase in phases if any(_lies_in(event, phase) for event in linear)}
    assert holders == {"prepare", "rollout", "reference", "policy"}, (
        "a phase spans what it called; backward runs elsewhere"
    )
    table = (folder / "step_2.txt").read_text()
    assert "Self CPU" in table
    assert 10 < table.count("aten::") <= DEAREST


def test_a_step_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    clock = PhaseClock()
    profiler = StepProfiler(tmp_path, [1], clock)
    with pytest.raises(ValueError, match="no"), profiler.watch(1):
        raise ValueError("no")
    assert not clock.labels
    assert list(tmp_path.iterdir()) == []


def _lies_in(event: dict[str, Any], span: dict[str, Any]) -> bool:
    return span["ts"] <= event["ts"] and event["ts"] + event["dur"] <= span["ts"] + span["dur"]
