"""A run of tiny steps from a table of many rows, watched from within: what its length and its data cost."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process import cpu_seconds, resident_bytes
from maxent_grpo.telemetry.resident import peak_resident_bytes

WARM = 2
"""First steps that are in no mean."""
LOG_SECONDS = "time/log_seconds"
TINY = (
    "model.hidden_size=32", "model.num_heads=1", "model.num_layers=1", "model.intermediate_size=32",
    "model.warm_start.enabled=false", "generation.num_generations=4", "generation.max_prompt_len=32",
    "generation.max_completion_len=4", "generation.allowed_tokens=[]", "optimization.prompts_per_step=4",
    "optimization.warmup_steps=0", "evaluation.enabled=false", "checkpoint.keep_last=2", "checkpoint.final_model=false",
    "reward=terms", "+reward.terms.spread=1.0", "+reward.functions.spread=benchmarks.rewards:spread",
    "logging.console=silent", "run.device=cpu",
)  # fmt: skip
"""A step of some twenty milliseconds, with every file that a run writes by default."""


@dataclass(frozen=True)
class Work:
    """A run of ``steps`` steps of 4 prompts from a table of ``rows`` rows."""

    steps: int = 30
    rows: int = 30_000
    """More than `data.render_ahead` by default: a row is read and written as a prompt when it is drawn."""
    table: str = "jsonl"
    """`jsonl` or `parquet`."""
    laps: int = 1
    """Of a process; always one run."""


class RunWatch:
    """A writer that notes the process's time after every step, and its memory after the first tenth and at the end."""

    def __init__(self, steps: int) -> None:
        self.marks = (max(steps // 10, WARM + 1), steps)
        self.begun = 0.0
        self.base = 0
        self.seconds: list[float] = []
        self.logged: list[float] = []
        self.resident: dict[int, int] = {}

    def start(self, total_steps: int, first_step: int) -> None:
        self.begun, self.base = time.process_time(), resident_bytes()

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seconds.append(time.process_time())
        self.logged.append(metrics.get(LOG_SECONDS, 0.0))
        if step in self.marks:
            self.resident[step] = resident_bytes()

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None: ...

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def write_note(self, message: str) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def mean_step(self, first: int, last: int) -> float:
        """Mean CPU seconds of steps ``first`` + 1 to ``last``, all that was written after them included."""
        return (self.seconds[last - 1] - self.seconds[first - 1]) / (last - first)


def write_table(root: Path, rows: int, table: str) -> Path:
    """A table of short questions, made unless it is there."""
    path = root / f"sums-{rows}.{table}"
    if path.is_file():
        return path
    root.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    if table == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        prompts = [f"{n} + {n % 97} = ?" for n in range(rows)]
        answers = [str(n + n % 97) for n in range(rows)]
        pq.write_table(pa.table({"prompt": prompts, "answer": answers}), part)
    else:
        with part.open("w", encoding="utf-8") as file:
            for n in range(rows):
                file.write(json.dumps({"prompt": f"{n} + {n % 97} = ?", "answer": str(n + n % 97)}) + "\n")
    part.replace(path)
    return path


def overrides(work: Work, root: Path, run_dir: Path) -> list[str]:
    """The run, as it would be typed."""
    return [
        *TINY, "data=table", f"data.path={write_table(root, work.rows, work.table)}", "data.grader=exact",
        "data.eval_fraction=0", f"data.cache_dir={root / 'unpacked'}", f"optimization.total_training_steps={work.steps}",
        f"checkpoint.every_n_steps={max(work.steps // 10, 1)}", f"run.dir={run_dir}",
    ]  # fmt: skip


def measure(work: Work, root: Path, run_dir: Path) -> dict[str, Any]:
    """The run from its configuration to its report: CPU seconds before, in and after its steps, memory, sizes of its files."""
    from maxent_grpo.config.load import load_config
    from maxent_grpo.training.setup import run_from_config

    typed, watch = overrides(work, root, run_dir), RunWatch(work.steps)
    config = load_config(typed)
    began = time.process_time()
    run_from_config(config, typed, watchers=[watch])
    ended, tenth = cpu_seconds(), watch.marks[0]
    steps = [after - before for before, after in zip(watch.seconds[WARM:], watch.seconds[WARM + 1 :], strict=False)]
    return {
        "seconds": [statistics.median(steps)],
        "work": [1.0],
        "drop": 0,
        "base": watch.base,
        "peak": peak_resident_bytes(),
        "start_seconds": watch.begun - began,
        "first_seconds": watch.mean_step(WARM, tenth),
        "last_seconds": watch.mean_step(work.steps - (tenth - WARM), work.steps),
        "end_seconds": ended - watch.seconds[-1],
        "first_log_seconds": statistics.median(watch.logged[WARM:tenth]),
        "last_log_seconds": statistics.median(watch.logged[WARM - tenth :]),
        "resident_tenth": watch.resident[tenth],
        "resident_end": watch.resident[work.steps],
        "bytes": {path.name: path.stat().st_size for path in sorted(run_dir.iterdir()) if path.is_file()},
    }
