"""Made-up sweeps: runs of several methods and seeds with every problem's counts, for tests of what compares them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.synthetic_run import completion_record, rich_metrics, write_lines, write_run

NUM_PROBLEMS, NUM_SAMPLES = 12, 8


def write_arms(
    folder: Path,
    methods: Sequence[str] = ("maxent", "dr_grpo"),
    seeds: Sequence[int] = (0, 1, 2),
    num_steps: int = 20,
    text: str = "an answer",
    data: str = "coloring",
) -> list[Path]:
    """Write a finished run for each method and seed into ``folder``; later methods find fewer right answers."""
    runs = []
    for place, method in enumerate(methods):
        for seed in seeds:
            run = folder / f"{len(runs)}-scoring={method},seed={seed}"
            runs.append(write_arm_run(run, method, seed, num_steps, worse=place, text=text, data=data))
    return runs


def write_arm_run(
    run: Path,
    method: str,
    seed: int,
    num_steps: int,
    *,
    worse: int = 0,
    text: str = "an answer",
    data: str = "coloring",
) -> Path:
    """One run of a sweep."""
    rng = random.Random(f"{method} {seed}")
    write_run(run, num_steps, num_steps // 4, method, seed)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations: list[dict[str, Any]] = []
    for row in rows:
        step = row["step"]
        if step:
            row |= rich_metrics(step, num_steps, rng)
        if "eval/pass@1" in row:
            row["eval/greedy"] = 0.5 + 0.01 * step
            evaluations += arm_evaluation(step, num_steps, rng, worse)
    write_lines(run / "metrics.jsonl", rows)
    write_lines(run / "evaluations.jsonl", evaluations)
    samples = [
        completion_record(step, prompt, sample, f"{text} of {method}")
        for step in range(num_steps // 4, num_steps + 1, num_steps // 4)
        for prompt in range(4)
        for sample in range(4)
    ]
    write_lines(run / "completions.jsonl", samples)
    (run / "config.yaml").write_text(
        f"# options: model=tiny data={data} scoring={method} controller=fixed\n"
        f"scoring:\n  advantage: {method}\n  clipping:\n    clip_range: 0.2\nlogging:\n  level: l{seed}\n"
        f"optimization:\n  total_training_steps: {num_steps}\nrun:\n  dir: {json.dumps(str(run))}\nseed: {seed}\n"
    )
    (run / "overrides.json").write_text(json.dumps([f"scoring={method}", f"seed={seed}"]))
    return run


def arm_evaluation(step: int, num_steps: int, rng: random.Random, worse: int) -> list[dict[str, Any]]:
    """Records of an evaluation; before training they do not depend on the run."""
    rows: list[dict[str, Any]] = []
    for problem in range(NUM_PROBLEMS):
        gain = round(4 * step / num_steps * rng.random()) if step else 0
        right = min(2 + problem % 4 + gain, NUM_SAMPLES)
        spread = 0 if step and worse else right // 3
        rows.append(
            {
                "step": step,
                "row_id": f"p{problem}",
                "num_samples": NUM_SAMPLES,
                "num_right": right,
                "mode_counts": {"a": right - spread, "b": spread},
                "num_modes": 4,
                "greedy_right": right > 4,
            }
        )
    return rows
