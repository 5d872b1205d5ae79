"""Runs against a server behind a proxy that spoils some of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.faulting_proxy import FaultingProxy
from support.runs import completion_lines, only_reward

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
