"""A run directory with the record of a plausible run, for tests of what reads it."""

import json
import math
import random
from pathlib import Path
from typing import Any


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
        "policy/clip_ratio_low_mean": 0.0,
        "policy/clip_ratio_high_mean": 0.0,
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


HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\"> & \"q\" \ud800 \x00"
"""A completion that tries to run as a part of the page that shows it."""


def rich_metrics(step: int, num_steps: int, rng: random.Random) -> dict[str, float]:
    """What a run with a reference, several reward terms, clipping and an adaptive controller records besides."""
    share = step / num_steps
    return {
        "reward/term/task": 0.5 + 0.2 * share + rng.gauss(0, 0.03),
        "reward/term/length": 0.2 * share + rng.gauss(0, 0.02),
        "reward/equal_groups": 0.3 * share + abs(rng.gauss(0, 0.02)),
        **({"reward/rejected/empty": 2.0} if rng.random() < 0.3 else {}),
        "policy/kl_to_reference": 0.04 * share + abs(rng.gauss(0, 0.002)),
        "policy/clip_ratio_low_mean": 0.02 + abs(rng.gauss(0, 0.01)),
        "policy/clip_ratio_high_mean": 0.05 + abs(rng.gauss(0, 0.01)),
        "policy/log_ratio_abs_mean": 0.03 + abs(rng.gauss(0, 0.01)),
        "weights/policy_effective_size": 12.0 + rng.gauss(0, 0.3),
        "weights/kl_to_policy": 1.2 - 0.6 * share + rng.gauss(0, 0.1),
        "weights/wrong_mass": 0.01 * (1 - share) + abs(rng.gauss(0, 0.001)),
        "weights/policy_wrong_mass": 0.5 - 0.3 * share + rng.gauss(0, 0.02),
        "completion/min_length": 20.0 + rng.randrange(5),
        "completion/mean_length": 60.0 + 30 * share + rng.gauss(0, 2),
        "completion/max_length": 160.0 + rng.randrange(40),
        "completion/clipped_ratio": 0.05 + abs(rng.gauss(0, 0.01)),
        "completion/distinct_modes": 2.0 + share + rng.gauss(0, 0.1),
        "loss/policy": rng.gauss(0, 0.02),
        "loss/listwise": 0.2 - 0.05 * share + rng.gauss(0, 0.01),
        "controller/tau": 0.1 + 0.2 * share,
        "controller/beta": 0.0,
        "controller/kl_beta": 0.04,
        "data/input_tokens_seen": 6400.0 * step,
        "memory/peak_rss_mib": 700.0 + 50 * (step > 10),
        "time/step_seconds": 0.6,
    }


def rich_evaluation(step: int, num_steps: int) -> list[dict[str, Any]]:
    """Records of an evaluation of 12 problems with 16 samples each, 4 modes, more of them found as the run goes on."""
    rows: list[dict[str, Any]] = []
    for problem in range(12):
        right = min(2 + problem % 5 + round(8 * step / num_steps), 16)
        modes = {"a": right - right // 3, "b": right // 3}
        rows.append(
            {
                "step": step,
                "row_id": f"p{problem}",
                "num_samples": 16,
                "num_right": right,
                "mode_counts": modes,
                "num_modes": 4,
                "mean_reward": right / 16,
                "mean_length": 40.0,
                "greedy_right": right > 8,
                "greedy_completion": "a",
                "exact": None,
            }
        )
    return rows


def completion_record(step: int, prompt: int, sample: int, text: str) -> dict[str, Any]:
    """A line of completions.jsonl; even samples are right."""
    is_right = sample % 2 == 0
    return {
        "step": step,
        "row_id": f"row-{prompt}",
        "prompt": f"<bos><|user|>problem {prompt}<|assistant|>",
        "completion": text,
        "rewards": {"task": float(is_right), "length": None},
        "utility": float(is_right),
        "advantage": 0.5 if is_right else -0.5,
        "q": 0.25,
        "weight": 0.45 if is_right else 0.05,
        "mode": "A" if is_right else None,
        "reason": "" if is_right else "wrong_length",
        "finish_reason": "eos",
        "num_tokens": len(text),
        "policy_version": step - 1,
    }


def write_rich_run(run_dir: Path, num_steps: int = 120, text: str = HOSTILE) -> Path:
    """A run directory with everything that a report can show; one completion of every group is ``text``."""
    rng = random.Random(5)
    write_run(run_dir, num_steps, every=num_steps // 4)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = []
    for row in rows:
        step = row["step"]
        if step:
            row |= rich_metrics(step, num_steps, rng)
        if "eval/pass@1" in row:
            row |= {"eval/greedy": 0.5 + 0.2 * step / num_steps, "eval/maj@8": 0.6 + 0.1 * step / num_steps}
            evaluations += rich_evaluation(step, num_steps)
    write_lines(run_dir / "metrics.jsonl", rows)
    write_lines(run_dir / "evaluations.jsonl", evaluations)
    long = "a long answer that goes on. " * 200
    texts = [text, long, "", "short"]
    samples = [
        completion_record(step, prompt, sample, texts[sample])
        for step in range(num_steps // 12, num_steps + 1, num_steps // 12)
        for prompt in range(6)
        for sample in range(4)
    ]
    write_lines(run_dir / "completions.jsonl", samples)
    (run_dir / "config.yaml").write_text(
        "# options: model=tiny data=coloring scoring=dr_grpo controller=fixed\n"
        "model:\n  hidden_size: 64\nscoring:\n  kl_beta: 0.04\n  clipping:\n    clip_range: 0.3\n"
        f"optimization:\n  total_training_steps: {num_steps}\ncheckpoint:\n  resume_from: null\nseed: 7\n"
    )
    overrides = ["scoring=dr_grpo", "scoring.clipping.clip_range=0.3", "seed=7", "run.dir=/somewhere/else"]
    (run_dir / "overrides.json").write_text(json.dumps(overrides))
    return run_dir


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
