"""A run directory with the record of a plausible run, for tests of what reads it."""

import json
import math
import random
from pathlib import Path


def step_metrics(step: int, num_steps: int, rng: random.Random, method: str = "maxent") -> dict[str, float]:
    """The metrics line of a training step."""
    share = step / num_steps
    floor = 0.62 if method == "maxent" else 0.25
    effective = 7.5 + 4 * share + rng.gauss(0, 0.5)
    return {
        "reward/mean": 0.55 + 0.17 * (1 - math.exp(-3 * share)) + rng.gauss(0, 0.035),
        "reward/std": 0.4 + rng.gauss(0, 0.02),
        "policy/entropy": floor + (1.0 - floor) * math.exp(-3 * share) + rng.gauss(0, 0.02),
        "policy/kl_to_reference": 0.0,
        "policy/clip_ratio": 0.0,
        "weights/effective_size": effective,
        "weights/entropy": math.log(effective) - 0.1,
        "loss/total": rng.gauss(0, 0.05),
        "optim/gradient_norm": 0.35 + 0.4 * math.exp(-6 * share) + abs(rng.gauss(0, 0.06)),
        "optim/learning_rate": 3e-4 * min(step / 5, 1.0),
        "completion/mean_length": 5.0,
        "completion/clipped_ratio": 0.0,
        "time/rollout_seconds": 0.21 + rng.gauss(0, 0.01),
        "time/scoring_seconds": 0.08 + rng.gauss(0, 0.004),
        "time/update_seconds": 0.26 + rng.gauss(0, 0.012),
        "time/reward_seconds": 0.01,
        "throughput/tokens_per_second": 2300.0 + rng.gauss(0, 60),
        "data/epoch": 0,
    }


def evaluation_metrics(step: int, num_steps: int, rng: random.Random, method: str = "maxent") -> dict[str, float]:
    """The metrics of an evaluation."""
    rise = 1 - math.exp(-3 * step / num_steps)
    pass8, coverage = (0.06, 0.12) if method == "maxent" else (-0.045, -0.09)
    jitter = rng.gauss(0, 0.004) if step else 0.0
    return {
        "eval/pass@1": 0.562 + 0.14 * rise + jitter,
        "eval/pass@8": 0.887 + pass8 * rise + jitter,
        "eval/coverage@1": 0.14,
        "eval/coverage@8": 0.422 + coverage * rise + jitter,
        "eval/distinct@8": 1.86 + 4 * coverage * rise,
        "time/evaluation_seconds": 3.0,
    }


def write_run(
    run_dir: Path, num_steps: int = 300, every: int = 50, method: str = "maxent", seed: int = 0, **changes: float
) -> Path:
    """Write metrics.jsonl and config.yaml of a run of ``num_steps``; ``changes`` overrides metrics of every step."""
    run_dir.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    rows = [{"step": 0, **evaluation_metrics(0, num_steps, rng, method)}]
    for step in range(1, num_steps + 1):
        row = {"step": step, **step_metrics(step, num_steps, rng, method), **changes}
        if step % every == 0 or step == num_steps:
            row |= evaluation_metrics(step, num_steps, rng, method)
        rows.append(row)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_dir / "config.yaml").write_text(f"# options: model=tiny scoring={method}\nseed: {seed}\n")
    return run_dir
