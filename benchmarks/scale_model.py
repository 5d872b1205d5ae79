"""`python -m benchmarks.scale_model`: the time of a step against the number of GPUs, in turn and ahead, and a check of the model.

Two things, each its own part of the result:

- the simulation: steps of three model sizes on 1 to 64 GPUs, by ``scale_simulation``, from data sheets and stated shares of them. Every
  GPU trains and samples, or some sample, in turn with the others or one rollout ahead of them, in the best of the divisions tried.
- the check: the same functions with costs fitted to one process on this machine foretell a step of two, which is then measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.scale_check import CheckError, measure
from benchmarks.scale_simulation import Assumed, simulated_step
from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.hardware import GPUS, Assumptions
from maxent_grpo.training.preview.plan import Lengths, Machines, Outlook, Plan, make_plan, outlook

KEPT = Path("outputs/benchmarks/scale")
"""The tiny model and its prompts."""
RESULT = Path("benchmarks/results/scale-model")
COUNTS = (1, 2, 4, 8, 16, 32, 64)
MEANS = Lengths(prompt=150, completion=900)
"""Mean lengths of the simulated steps [tokens]."""
TRIED = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Shares of the GPUs that sample, of which the best is taken."""


@dataclass(frozen=True)
class Case:
    """A model of the simulation, and what its run is told."""

    name: str
    settings: tuple[str, ...]
    devices: int = 1
    """GPUs of a server."""


_WEIGHTS = ("model.lora.enabled=false", "model.dtype=bfloat16", "optimization.learning_rate=1e-6")
_CUT = "optimization.parallel.strategy=fsdp"
CASES = (
    Case("0.5B", ("experiment=qwen05b_math", *_WEIGHTS)),
    Case("7B", ("experiment=qwen7b_math", *_WEIGHTS, _CUT)),
    Case("32B", ("experiment=qwen7b_math", "model.name=Qwen/Qwen2.5-32B", *_WEIGHTS, _CUT), devices=2),
)
_VLLM = ("generation=vllm", "generation.engine.enforce_eager=false")
ALONE = (*_VLLM, "generation.vllm_mode=colocate", "generation.engine.sleep=true")
WAYS: Mapping[str, tuple[str, ...]] = {
    "local": (),
    # addresses that nobody is asked at: servers that are joined have GPUs of their own
    "in turn": (*_VLLM, "generation.vllm.url=http://127.0.0.1:8000", "generation.weight_transfer=nccl"),
    "ahead": (
        *_VLLM, "generation.async_steps=1", "generation.vllm.max_staleness=1",
        "scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate",
    ),
}  # fmt: skip
"""How completions are sampled: by every trainer; by vLLM servers on GPUs of their own while the trainers wait; or meanwhile."""
COLOURS = {"local": "#7f7f7f", "in turn": "#1b6ca8", "ahead": "#c0504d"}


def seen(case: Case, more: Sequence[str]) -> Outlook:
    """A case with a way of sampling."""
    spread = (
        [f"generation.engine.tensor_parallel_size={case.devices}"] if _VLLM[0] in more and more is not ALONE else []
    )
    return outlook(load_config([*case.settings, *more, *spread, "run.dry=true"], elsewhere=True))


def fits(plan: Plan) -> bool:
    """Whether a trainer's memory and an engine's weights are there."""
    return plan.memory.peak <= plan.gpu.memory and (plan.room is None or plan.room.sequences > 0)


def point(plan: Plan, assumed: Assumed) -> dict[str, Any]:
    """What is kept of a plan."""
    return {
        "seconds": simulated_step(plan.timing, assumed),
        "closed form": plan.step.total,
        "trainers": plan.layout.trainers,
        "engines": plan.layout.engines,
        "fits": fits(plan),
        "bottleneck": plan.step.bottleneck,
        "peak GiB": plan.memory.peak / 2**30,
    }


def simulate(case: Case, gpu: str, counts: Sequence[int], assumed: Assumed) -> list[dict[str, Any]]:
    """Every way of sampling on each number of GPUs; on one, vLLM in turn is in the trainer's process."""
    ways = {way: seen(case, more) for way, more in WAYS.items()}
    rows: list[dict[str, Any]] = []
    for count in counts:
        row: dict[str, Any] = {"gpus": count}
        row["local"] = point(make_plan(ways["local"], Machines(gpu, count), MEANS), assumed)
        if count == 1:
            row["in turn"] = point(make_plan(seen(case, ALONE), Machines(gpu, 1), MEANS), assumed)
        for way in ("in turn", "ahead"):
            tried = [
                plan for share in TRIED if (plan := _divided(ways[way], gpu, count, share, case.devices)) is not None
            ]
            if tried:
                # what fits comes first
                row[way] = point(min(tried, key=lambda plan: (not fits(plan), plan.step.total)), assumed)
        rows.append(row)
    return rows


def _divided(run: Outlook, gpu: str, count: int, share: float, devices: int) -> Plan | None:
    servers = round(count * share / devices)
    if servers < 1 or count - servers * devices < 1:
        return None
    return make_plan(run, Machines(gpu, count, servers=servers), MEANS)


def markdown(found: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        "# Step time against GPUs",
        "",
        "Made by `make scale-model`. Seconds of an optimiser step with the same global batch on every number of GPUs.",
        "",
        *(f"- {sentence}" for sentence in found["assumptions"]),
        "",
    ]
    for name, rows in found["simulation"].items():
        lines += [
            f"## {name}",
            "",
            "| GPUs | local [s] | servers, in turn [s] | servers, ahead [s] | trainers + servers | bottleneck |",
        ]
        lines += ["|--:|--:|--:|--:|---|---|", *(_line(row) for row in rows), ""]
    if "check" in found:
        lines += _check_lines(found["check"])
    return "\n".join(lines).rstrip() + "\n"


def _line(row: dict[str, Any]) -> str:
    cells = [str(row["gpus"])]
    for way in WAYS:
        cells.append(f"{row[way]['seconds']:,.1f}{'' if row[way]['fits'] else ' *'}" if way in row else "")
    ahead = row.get("ahead")
    cells.append(f"{ahead['trainers']} + {ahead['engines']}" if ahead else "")
    cells.append((ahead or row.get("in turn") or row["local"])["bottleneck"])
    return f"| {' | '.join(cells)} |"


def _check_lines(check: dict[str, Any]) -> list[str]:
    measured, parts = check["two processes"], check["foretold"]
    rows = [
        ("sampling", parts["sampling"], measured["rollout"]),
        ("forward", parts["forward"], measured["policy"]),
        ("backward, with the exchange", parts["backward"] + parts["exchange"], measured["backward"]),
        ("update", parts["update"], measured["optimizer"]),
        ("the step, with the rest and the crowding", parts["step"], check["measured"]),
    ]
    return [
        "## Foretold and measured: two processes on this machine",
        "",
        "Costs are fitted to one process with two batch sizes; two processes then share a batch of twice the larger. Parts are without the "
        f"crowding of {check['crowding']:.2f}, the time of a process beside one that it shares only the machine with; the step has it.",
        "",
        "| | foretold [s] | measured [s] |",
        "|---|--:|--:|",
        *(f"| {name} | {here:.3f} | {there:.3f} |" for name, here, there in rows),
        "",
        f"foretold / measured = **{check['ratio']:.2f}**, to be within {check['tolerance']:.0%}: "
        f"{'it is' if check['holds'] else 'it is not'}. One process with the whole batch would take "
        f"{check['one process with all prompts, foretold']:.3f} s.",
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    """Seconds of a step against GPUs, a panel for each model; hollow where the memory does not suffice."""
    from matplotlib.figure import Figure

    panels = found["simulation"]
    figure = Figure(figsize=(3.2 * len(panels), 3.0), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for place, (name, rows) in zip(axes, panels.items(), strict=True):
        for way, colour in COLOURS.items():
            points = [(row["gpus"], row[way]["seconds"], row[way]["fits"]) for row in rows if way in row]
            place.plot([p[0] for p in points], [p[1] for p in points], color=colour, label=way, linewidth=1)
            for fit, face in ((True, colour), (False, "white")):
                some = [p for p in points if p[2] is fit]
                place.plot(
                    [p[0] for p in some], [p[1] for p in some], "o", color=colour, markerfacecolor=face, markersize=4
                )
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        place.set_xticks(COUNTS, [str(count) for count in COUNTS])
        place.set_title(name, fontsize=10)
        place.set_xlabel("GPUs")
        place.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of a step")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(arguments: list[str]) -> int:
    """The exit status: 0, 1 when the check could not be made or does not hold, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale_model",
        description="Simulate the time of a step on 1 to 64 GPUs, and check the model of it against two processes here. "
        "Takes about two minutes.",
    )
    parser.add_argument("--gpu", choices=list(GPUS), default="h100", help="which (default: h100)")
    parser.add_argument("--no-check", action="store_true", help="only simulate, which takes seconds")
    parser.add_argument("--only-check", action="store_true", help="only check; writes no files")
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULT,
        metavar="STEM",
        help="write STEM.json, STEM.md and STEM.png (default: %(default)s)",
    )
    asked = parser.parse_args(arguments)
    if asked.no_check and asked.only_check:
        parser.error("--no-check and --only-check leave nothing to do")
    assumed, shares = Assumed(), Assumptions()
    found: dict[str, Any] = {
        "machine": machine(),
        "gpu": asdict(GPUS[asked.gpu]),
        "assumptions": [
            f"{GPUS[asked.gpu].name}, eight in a node; {shares.text()}",
            f"128 prompts with 8 completions a step; prompts of {MEANS.prompt} tokens, completions of {MEANS.completion} on average with a "
            f"standard deviation of {assumed.spread:.0%} of that before the limit of 3072 cuts them; {assumed.rollouts} rollouts of seed {assumed.seed}",
            "all weights are trained in bfloat16 with a float32 copy, those of 7B and 32B cut over the trainers (fsdp); `*`: a GPU's memory does not suffice",
            "local: every process samples with the local sampler; servers: vLLM on GPUs of their own, in turn with training or one rollout "
            f"ahead, which takes weights through files, in the best of {len(TRIED)} divisions of the GPUs; trainers, servers and bottleneck are those of the latter. On one GPU "
            "vLLM is in the trainer's process",
            "not counted: grading, evaluations, checkpoints, failures, and what a step spends between its phases",
        ],
        "simulation": {},
    }  # fmt: skip
    try:
        if not asked.only_check:
            for case in CASES:
                found["simulation"][case.name] = simulate(case, asked.gpu, COUNTS, assumed)
        if not asked.no_check:
            found["check"] = measure(KEPT)
    except (CheckError, ConfigError) as error:
        print(f"scale_model: {error}", file=sys.stderr)
        return 1
    print(markdown(found), end="")
    if not asked.only_check:
        Path(f"{asked.output}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        Path(f"{asked.output}.md").write_text(markdown(found), encoding="utf-8")
        draw(found, Path(f"{asked.output}.png"))
    return 0 if asked.no_check or found["check"]["holds"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
