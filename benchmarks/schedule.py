"""Runs measurements: one process each, sides in turn, finished ones kept so that an interrupted benchmark goes on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.catalogue import OURS, Form, Measurement, Plan
from benchmarks.machine import PACKAGES
from benchmarks.process import one_thread
from maxent_grpo.config.installed import installed_version
from maxent_grpo.telemetry.versions import current_versions

REPOSITORY = Path(__file__).resolve().parents[1]
SHOWN = 12
"""Last lines of a failed process that are shown."""
REFUSED = "refused"
Sample = dict[str, Any]


class Watcher(Protocol):
    """Whoever shows how far a benchmark is."""

    def begin(self, label: str) -> None:
        """A process starts, or what it would do is known from before."""

    def done(self, label: str, seconds: float | None) -> None:
        """It ended; ``seconds`` of CPU time of its last lap, None where it was kept or failed."""

    def say(self, text: str) -> None:
        """A sentence for the person watching."""


@dataclass
class Outcome:
    """What is known of a measurement: each side's samples by round, and why there are none."""

    measurement: Measurement
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """Side -> why it is left out, though it is planned; under ``REFUSED`` why none of them is compared."""
    failed: bool = False
    """Whether something that could be measured was not, or may not be compared."""


@dataclass(frozen=True)
class Store:
    """Samples on the disk; one is good for the same request, the same sources of the package and the same versions."""

    folder: Path

    def find(self, name: str, request: dict[str, Any]) -> Sample | None:
        """The sample of a request, if it was made under these circumstances."""
        try:
            kept = json.loads(self.path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept["sample"] if kept.get("circumstances") == circumstances(request) else None

    def keep(self, name: str, request: dict[str, Any], sample: Sample) -> None:
        """Write a sample as a whole."""
        part = self.path(name).with_suffix(".part")
        part.write_text(
            json.dumps({"circumstances": circumstances(request), "sample": sample}) + "\n", encoding="utf-8"
        )
        part.replace(self.path(name))

    def path(self, name: str) -> Path:
        """The file of a sample."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}.json"


def circumstances(request: dict[str, Any]) -> str:
    """A digest of everything that a sample depends on but the machine."""
    versions = {package: installed_version(package) for package in PACKAGES}
    asked = {name: request[name] for name in ("kind", "side", "work")}
    own = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    text = json.dumps([asked, versions, current_versions()["source"], own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def processes(measurement: Measurement, form: Form) -> Iterator[tuple[int, str]]:
    """(round, side) in the order they run: A B A B."""
    plans = measurement.plans[form]
    for number in range(max(plan.rounds for plan in plans.values())):
        yield from ((number, side) for side, plan in plans.items() if number < plan.rounds)


def measure(
    measurements: Sequence[Measurement],
    form: Form,
    store: Store,
    watcher: Watcher,
    *,
    fresh: bool = False,
    launch: Callable[[dict[str, Any], Path], Sample] | None = None,
) -> list[Outcome]:
    """Everything that is asked for, one process after the other.

    Args:
        measurements: what to measure.
        form: how often.
        store: where finished samples are kept.
        watcher: is told how far it is.
        fresh: measure again what is kept.
        launch: runs one process; by default ``run_process``.
    """
    outcomes: list[Outcome] = []
    for measurement in measurements:
        outcome = Outcome(measurement)
        for side in measurement.plans[form]:
            if lacking := measurement.missing(side):
                outcome.notes[side] = lacking
                watcher.say(f"{measurement.name}, {side}: {lacking}")
        for number, side in processes(measurement, form):
            _one(outcome, form, store, watcher, number, side, fresh=fresh, launch=launch or run_process)
        if problem := refusal(outcome):
            outcome.failed = True
            outcome.notes[REFUSED] = problem
            watcher.say(f"{measurement.name}: no ratio is made: {problem}")
        outcomes.append(outcome)
    return outcomes


def _one(
    outcome: Outcome,
    form: Form,
    store: Store,
    watcher: Watcher,
    number: int,
    side: str,
    *,
    fresh: bool,
    launch: Callable[[dict[str, Any], Path], Sample],
) -> None:
    measurement = outcome.measurement
    label = f"{measurement.name}.{side}.{number + 1}"
    watcher.begin(label)
    if side in outcome.notes or OURS in outcome.notes:
        watcher.done(label, None)
        return
    request = measurement.request(side, form) | {"root": str(store.folder / "material")}
    sample = None if fresh else store.find(label, request)
    seconds = None
    if sample is None:
        if measurement.kind == "step" and side != OURS:
            request["first"] = outcome.samples[OURS][number]["first"]
        try:
            sample = launch(request, store.path(label).with_suffix(".sample"))
        except ProcessFailedError as error:
            outcome.failed = True
            outcome.notes[side] = f"failed: {error}"
            watcher.say(f"{label} failed:\n{error}")
            watcher.done(label, None)
            return
        store.keep(label, request, sample)
        seconds = sample["seconds"][-1]
    outcome.samples.setdefault(side, []).append(sample)
    watcher.done(label, seconds)


class ProcessFailedError(RuntimeError):
    """A measurement's process did not end well."""


def run_process(request: dict[str, Any], target: Path) -> Sample:
    """Measure in a fresh process of one thread.

    Raises:
        ProcessFailedError: with the end of what it said.
    """
    environment = one_thread(dict(os.environ))
    paths = [str(REPOSITORY), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.child"],
        input=json.dumps(request | {"target": str(target)}),
        text=True,
        capture_output=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ProcessFailedError("\n".join(said[-SHOWN:]) or f"exit status {done.returncode}")
    sample = json.loads(target.read_text(encoding="utf-8"))
    target.unlink()
    return sample


NATURAL = 0.25
"""Most relative difference of mean completion lengths where completions end by themselves, which chance makes differ."""
ROUNDING = 1e-3
RESULTS = ("loss", "hidden_gradient", "head_gradient")


def refusal(outcome: Outcome) -> str:
    """Why the sides of a measurement cannot be compared, empty when they can: tokens and results have to be the same."""
    ours = outcome.samples.get(OURS, [])
    for side, theirs in outcome.samples.items():
        if side == OURS or not ours:
            continue
        for name in ("prompt_tokens", "completion_tokens"):
            here, there = _laps(ours, name), _laps(theirs, name)
            natural = name == "completion_tokens" and not _is_fixed(outcome.measurement)
            allowed = NATURAL if natural else 0.0
            if here and there and abs(_mean(here) - _mean(there)) > allowed * _mean(here) + 1e-6:
                what = name.replace("_", " ")
                return f"{what} of a lap: ours {_mean(here):.1f}, {side} {_mean(there):.1f}"
        for name in RESULTS:
            if name in ours[0] and abs(ours[0][name] - theirs[0][name]) > ROUNDING * abs(ours[0][name]):
                return f"{name.replace('_', ' ')}: ours {ours[0][name]:.7g}, {side} {theirs[0][name]:.7g}"
    return ""


def _is_fixed(measurement: Measurement) -> bool:
    return measurement.kind == "step" and measurement.work.get("model", "tiny") == "tiny"


def _laps(samples: list[Sample], name: str) -> list[float]:
    """A number of every counted lap."""
    return [value for sample in samples for value in sample.get(name, [])[sample.get("drop", 1) :]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def planned(measurements: Sequence[Measurement], form: Form) -> int:
    """Processes of a benchmark."""
    return sum(len(list(processes(measurement, form))) for measurement in measurements)


__all__ = [
    "Outcome",
    "Plan",
    "ProcessFailedError",
    "Store",
    "measure",
    "planned",
    "processes",
    "refusal",
    "run_process",
]
