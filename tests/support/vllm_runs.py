"""Runs against a server, behind a proxy that spoils some of its answers or of their own, and what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from support.faulting_proxy import FaultingProxy
from support.runs import completion_lines, only_reward

from maxent_grpo.training import loop

JOINED = (
    "generation=vllm",
    "scoring=dr_grpo",
    "evaluation.enabled=false",
    "generation.vllm.backoff=0.05",
    "generation.vllm.retry_sleep=0.05",
    "generation.max_completion_len=6",
)


LEARNING = (
    *JOINED,
    *only_reward("starts_with_red"),
    "optimization.total_training_steps=6",
    "optimization.learning_rate=0.05",
    "generation.num_generations=16",
    "evaluation.enabled=true",
    "checkpoint.every_n_steps=3",
)


AHEAD = (
    *("generation.async_steps=1", "generation.vllm.max_staleness=1"),
    *("scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate"),
)
"""The next rollout is sampled while one trains."""
FOUR = (*JOINED, *AHEAD, "optimization.total_training_steps=4", "optimization.learning_rate=0.02")


def joined(*proxies: FaultingProxy) -> str:
    """The override that names the servers."""
    return "generation.vllm.url='" + ",".join(proxy.url for proxy in proxies) + "'"


def assert_groups_are_whole(run_dir: Path, *, steps: int, prompts: int = 4, group: int = 4) -> None:
    """Every step trained whole groups of different samples, each made by the weights of its own step."""
    lines = completion_lines(run_dir)
    assert len(lines) == steps * prompts * group
    for step in range(1, steps + 1):
        of_step = [line for line in lines if line["step"] == step]
        rows = [line["row_id"] for line in of_step]
        assert len(set(rows)) == prompts
        assert all(rows.count(row) == group for row in set(rows))
        assert {line["policy_version"] for line in of_step} == {step - 1}


def sampled(run_dir: Path) -> list[tuple[Any, ...]]:
    """What was drawn, in the order of the record."""
    return [tuple(line[name] for name in ("step", "row_id", "completion")) for line in completion_lines(run_dir)]


@contextmanager
def around_steps(before: Callable[[int], object], after: Callable[[int], object] = lambda step: None) -> Iterator[None]:
    """Calls with the number of each optimiser step, before it trains and after."""
    train_step = loop.train_step

    def between(*arguments: Any, step: int, **named: Any) -> Any:
        before(step)
        report = train_step(*arguments, step=step, **named)
        after(step)
        return report

    with patch.object(loop, "train_step", between):
        yield


def of_trainer(pid: int) -> list[psutil.Process]:
    """Whatever runs with the weights of that trainer: guards, server, and the server's children."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if f"maxent_grpo_{pid}_" in " ".join(process.cmdline()):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return list(found.values())


def servers(pid: int) -> list[psutil.Process]:
    """The trainer's servers themselves."""
    return [
        process
        for process in of_trainer(pid)
        if process.is_running() and "api_server" in (words := " ".join(process.cmdline())) and "guard.py" not in words
    ]


def until(is_so: Callable[[], object], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > ends:
            return False
        time.sleep(0.2)
    return True


def leftovers(pid: int) -> list[object]:
    """What a trainer has left behind."""
    return [*of_trainer(pid), *Path("/dev/shm").glob(f"maxent_grpo_{pid}_*")]
