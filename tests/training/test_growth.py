"""What must not grow with the length of a run: memory, the time of a step, what a step writes, and what a resume holds at once."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import pytest
from support import runs

from maxent_grpo.report.read import read_metrics
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.telemetry.console import PlainConsole
from maxent_grpo.telemetry.files import MetricsFile
from maxent_grpo.telemetry.history import adopt_history
from maxent_grpo.telemetry.quiet import QuietWriter
from maxent_grpo.telemetry.tracking import recorded_steps
from maxent_grpo.telemetry.writers import ReportWriter
from maxent_grpo.training.row_stream import DataPosition, RowStream
from maxent_grpo.training.setup import run_from_config

NUM_STEPS, WARM, HALF = 110, 30, 70
KEPT_A_STEP = 1024
"""Bytes that a step may leave in memory; one line of metrics as Python holds it is ten times as much."""
NUM_LINES, NUM_NAMES = 800, 60


class Watch(QuietWriter):
    """Notes time, traced memory and bytes written at every step, memory from the end of the warm-up on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.memory: list[int] = []
        self.written: list[int] = []

    def write_metrics(self, step: int, metrics: object) -> None:
        if step == WARM:
            tracemalloc.start()
        if step in (HALF, NUM_STEPS):
            gc.collect()  # cycles that wait for the collector are not kept
        self.seconds.append(time.process_time())
        self.memory.append(tracemalloc.get_traced_memory()[0])
        if step == NUM_STEPS:
            tracemalloc.stop()  # the report is not watched, and would take long
        counters = psutil.Process().io_counters()
        self.written.append(getattr(counters, "write_chars", 0))  # not every system counts them


def test_a_step_leaves_nothing_in_memory_and_costs_what_the_first_ones_cost(tmp_path: Path) -> None:
    watch = Watch()
    typed = (
        f"optimization.total_training_steps={NUM_STEPS}",
        "evaluation.enabled=false",
        "logging.completions_every=10",
    )
    try:
        run_from_config(runs.configured(tmp_path / "run", *typed), watchers=[watch])
    finally:
        tracemalloc.stop()
    assert watch.memory[-1] - watch.memory[HALF - 1] < KEPT_A_STEP * (NUM_STEPS - HALF)
    steps = [after - before for before, after in pairwise(watch.seconds)]
    assert median(steps[HALF:]) < 1.5 * median(steps[WARM:HALF])
    early, late = watch.written[HALF - 1] - watch.written[WARM - 1], watch.written[-1] - watch.written[HALF - 1]
    assert late <= 1.05 * early
    assert late / (NUM_STEPS - HALF) < 16 * 1024


@pytest.fixture(scope="module")
def long_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run of many steps, with completions at every tenth and evaluations at every hundredth."""
    run_dir = tmp_path_factory.mktemp("long")
    with (run_dir / "metrics.jsonl").open("w") as metrics, (run_dir / "completions.jsonl").open("w") as completions:
        for step in range(1, NUM_LINES + 1):
            line = {"step": step, **{f"group/metric_{number}": step + number / 7 for number in range(NUM_NAMES)}}
            line |= {"eval/pass@1": step / NUM_LINES} if step % 100 == 0 else {}
            metrics.write(json.dumps(line) + "\n")
            for place in range(16 if step % 10 == 0 else 0):
                completions.write(json.dumps({"step": step, "row_id": str(place), "completion": "x" * 400}) + "\n")
    return run_dir


def _peak(body: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        body()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_resuming_a_long_run_reads_its_record_without_holding_it(long_record: Path, tmp_path: Path) -> None:
    lines = 0

    def tracked() -> None:
        nonlocal lines
        for recorded in recorded_steps(long_record, 10, NUM_LINES - 5):
            assert len(recorded.completions) == (16 if recorded.step % 10 == 0 else 0)
            assert recorded.metrics["group/metric_0"] == recorded.step
            lines += 1

    console = PlainConsole(long_record)
    bound = 300_000
    assert _peak(tracked) < bound
    assert lines == NUM_LINES - 15
    assert _peak(lambda: console.start(2 * NUM_LINES, NUM_LINES)) < bound
    console.close()
    assert _peak(lambda: adopt_history(long_record, tmp_path, NUM_LINES - 5)) < bound


def test_steps_without_metrics_keep_completions_at_their_own_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "a": {step}}}\n' for step in (0, 2, 3, 6)))
    (tmp_path / "completions.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 2, 5, 6)))
    found = [(recorded.step, len(recorded.completions)) for recorded in recorded_steps(tmp_path, -1, 6)]
    assert found == [(0, 0), (2, 2), (3, 0), (6, 1)]


def test_the_lines_of_a_record_share_their_names(long_record: Path) -> None:
    rows = read_metrics(long_record)
    assert len(rows) == NUM_LINES
    assert all(mine is first for mine, first in zip(rows[-1], rows[0], strict=False))


def test_a_picture_that_has_become_dear_is_drawn_less_often(tmp_path: Path) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 11.0  # each drawing takes that long
        return now

    file, report, drawn = MetricsFile(tmp_path), ReportWriter(tmp_path, clock), []
    for step in range(1, 13):
        metrics = {"reward/mean": step / 10, "eval/pass@1": step / 20}
        for writer in (file, report):
            writer.write_metrics(step, metrics)
        if (tmp_path / "report.png").exists():
            drawn.append(step)
            (tmp_path / "report.png").unlink()
    assert drawn[:2] == [1, 2]
    assert len(drawn) in (2, 3)
    report.close()
    assert (tmp_path / "report.png").exists()
    file.close()


def test_going_back_within_an_epoch_makes_its_order_once() -> None:
    made: list[int] = []

    def order(epoch: int) -> range:
        made.append(epoch)
        return range(6)

    sampler = EpochSampler(6, seed=0, order=order)

    class Loader:
        """Rows one by one from where the sampler stands."""

        def __iter__(self) -> Iterator[list[dict[str, int]]]:
            return ([{"row": place}] for place in sampler)

    stream = RowStream(Loader(), sampler, DataPosition(), 2)  # pyright: ignore[reportArgumentType] - rows are numbers here
    for _ in range(6):
        ahead = stream.peek(2).batch
        assert stream.draw(2).batch == ahead
    assert made == [0, 1]
