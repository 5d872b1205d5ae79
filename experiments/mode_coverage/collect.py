"""From run directories to the small records in results/, one JSON file a run, from which everything else is made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.mode_coverage.pool import TASK as POOL
from experiments.mode_coverage.pool import trained_figures
from experiments.mode_coverage.table import START, Arm, Part, Study
from maxent_grpo.errors import NonFiniteError
from maxent_grpo.report.read import EVALUATIONS_FILE, iterate_jsonl, read_config, read_metrics, read_versions
from maxent_grpo.sweeps.record import JobRecord, Standing, read_jobs

EXACT = "eval/exact/sampled/"
"""The policy that is sampled from, every token one of the answer alphabet or the end: figures without sampling noise."""
SHORT = {"mode_entropy_ratio": "H_valid"}
SAMPLED = ("eval/pass@", "eval/coverage@", "eval/distinct@")
OF_PROBLEMS = ("pass@1", "pass@8", "coverage@8", "distinct@8")
"""Figures that are kept of each problem at the last evaluation, for intervals over problems within seeds."""
DIGITS = 6
DIVERGED = "diverged"
"""Where a record says why its run ended early."""
SOURCE = "source"
"""Digest of this package's code, among the versions that a run notes."""
TRAINED = "trained"
"""Where a record has what the start and the end come to on the training problems."""
FEWER_SAMPLES = "k=[1,2,4,8,16]"
"""Of them there are many: 16 samples of each say as much as 64 of the held-out ones."""
Record = dict[str, Any]


def collect(study: Study, part: Part, outputs: Path, results: Path) -> tuple[str, bool]:
    """Write the record of every run of a part that has finished or diverged; how many there are, in words, and whether all."""
    arms = {arm.name: arm for arm in part.arms}
    written, wanted = 0, part.runs
    sweep = outputs / part.name
    for job in read_jobs(sweep) if sweep.is_dir() else ():
        if job.standing is Standing.finished or has_diverged(job):
            arm, pair = arms[job.changed["experiment"]], int(job.changed[START])
            record = run_record(study, sweep / job.name, part, arm, pair)
            if has_diverged(job):
                record[DIVERGED] = job.problems[0]
            write_record(results / part.name / f"{arm.name}-{pair}.json", record)
            written += 1
    return f"{part.name}: {written} of {wanted} runs in {results / part.name}", written == wanted


def has_diverged(job: JobRecord) -> bool:
    """Whether numbers that are not finite ended a run, which is then counted by its last evaluation and not made again."""
    return job.standing is Standing.failed and job.problems[0].startswith(f"{NonFiniteError.__name__}:")


def run_record(study: Study, folder: Path, part: Part, arm: Arm, pair: int) -> Record:
    """What the study keeps of one run."""
    lines, config = read_metrics(folder), read_config(folder)
    versions = read_versions(folder) or {}
    points, problems = list(curve(lines, config)), problem_figures(folder, lines[-1]["step"])
    if part.task == POOL:
        trained = trained_figures(folder, [point["step"] for point in points if point["step"]])
        points, problems = [point | measures(trained[point["step"]]) for point in points], {}
    asked: Record = {}
    if part.training_problems:
        trained = trained_figures(folder, [lines[-1]["step"]], FEWER_SAMPLES)
        asked = {TRAINED: [{"step": step, **measures(figures)} for step, figures in sorted(trained.items())]}
    return {
        "part": part.name,
        "task": part.task,
        "arm": arm.name,
        "pair": pair,
        "seed": config["seed"],
        "settings": settings_hash(config),
        "versions": {name: versions[name] for name in ("torch", "transformers", SOURCE) if name in versions},
        "steps": lines[-1]["step"],
        "completions_of_a_step": study.completions_of_a_step(part),
        "cpu_seconds": round(sum(line.get("throughput/cpu_seconds", 0.0) for line in lines), 2),
        "seconds": round(sum(line.get("time/step_seconds", 0.0) for line in lines), 2),
        "curve": points,
        **asked,
        "problems": problems,
    }


def settings_hash(config: Mapping[str, Any]) -> str:
    """Hash of what makes an arm: all settings but seeds, where the run goes and how it is recorded."""
    model = {name: value for name, value in config["model"].items() if name != "init_seed"}
    model["warm_start"] = {
        name: value for name, value in model["warm_start"].items() if name not in {"seed", "cache_dir"}
    }
    aside = {"seed", "model", "run", "logging", "checkpoint"}
    kept = {name: value for name, value in config.items() if name not in aside} | {"model": model}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def curve(lines: list[Record], config: Mapping[str, Any]) -> Iterator[Record]:
    """The measures of every evaluation, with what was sampled and the CPU time spent until then."""
    group, prompts = config["generation"]["num_generations"], config["optimization"]["prompts_per_step"]
    tokens = completions = seconds = 0.0
    for line in lines:
        seconds += line.get("throughput/cpu_seconds", 0.0)
        if "time/rollout_seconds" in line:
            sampled = line.get("sampling/prompts_drawn", prompts) * group
            completions, tokens = completions + sampled, tokens + sampled * line["completion/mean_length"]
        figures = measures(line)
        if figures:
            spent = {"completions": round(completions), "tokens": round(tokens), "cpu_seconds": round(seconds, 2)}
            yield {"step": line["step"], **spent, **figures}


def measures(line: Mapping[str, Any]) -> dict[str, float]:
    """The study's measures on a line of metrics: exact ones where there are any, otherwise sampled ones; none without."""
    found = {name.removeprefix(EXACT): value for name, value in line.items() if name.startswith(EXACT)}
    if not found:
        found = {name.removeprefix("eval/"): value for name, value in line.items() if name.startswith(SAMPLED)}
    found |= {"greedy": line["eval/greedy"]} if found else {}
    return {SHORT.get(name, name): round(float(value), DIGITS) for name, value in found.items()}


def problem_figures(folder: Path, step: int) -> dict[str, list[float]]:
    """The figures of each held-out problem at ``step``, in the order of the problems' names."""
    rows = {line["row_id"]: line for _, line in iterate_jsonl(folder / EVALUATIONS_FILE) if line["step"] == step}
    ordered = [rows[name].get("exact") for name in sorted(rows)]
    if any(row is None for row in ordered):
        return {}
    return {name: [round(row[f"sampled/{name}"], 4) for row in ordered if row is not None] for name in OF_PROBLEMS}


def write_record(path: Path, record: Record) -> None:
    """Write a record with one line for each of its parts, so that a change of one is seen as one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(f" {json.dumps(name)}: {_lines(value)}" for name, value in record.items())
    path.write_text(f"{{\n{body}\n}}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(json.dumps(each) for each in value) + "\n ]"
    return json.dumps(value)
