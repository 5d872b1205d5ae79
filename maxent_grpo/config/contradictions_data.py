"""Gate 3, second half: problems that cannot be made, asked or answered under the other settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from maxent_grpo.config.contradictions_prompts import PROMPT_RULES
from maxent_grpo.config.data import ColoringDataConfig, CountdownDataConfig, ReasoningGymDataConfig
from maxent_grpo.config.model import TinyModelConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.rewards.countdown import longest_answer

NUM_COLORS = 3
TEMPLATE_TOKENS = 3
"""Tokens that the tiny model's chat template puts around a question."""


def _coloring(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, ColoringDataConfig):
        return
    if data.num_hidden > data.num_vertices:
        yield (
            f"data.num_hidden={data.num_hidden} exceeds data.num_vertices={data.num_vertices}: only vertices of the graph "
            f"can be hidden; use data.num_hidden={data.num_vertices} or less"
        )
    if data.min_modes > data.max_modes:
        yield (
            f"data.min_modes={data.min_modes} exceeds data.max_modes={data.max_modes}: no problem could be kept; use "
            f"data.min_modes={data.max_modes} or less"
        )
    most = NUM_COLORS**data.num_hidden if 1 <= data.num_hidden <= data.num_vertices else None
    if most is not None and data.max_modes > most:
        yield (
            f"data.max_modes={data.max_modes} exceeds the {most} answers there are with data.num_hidden={data.num_hidden}; "
            f"use data.max_modes={most} or less"
        )
    if config.generation.max_completion_len < data.num_hidden + 1:
        yield (
            f"generation.max_completion_len={config.generation.max_completion_len} is too short for "
            f"data.num_hidden={data.num_hidden}: an answer is one token for each hidden vertex and the end token, so none "
            f"could finish; use generation.max_completion_len={data.num_hidden + 1} or more"
        )


def _countdown(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, CountdownDataConfig):
        return
    for low, high, things in (
        ("min_number", "max_number", "numbers"),
        ("min_target", "max_target", "targets"),
        ("min_modes", "max_modes", "problems"),
    ):
        least, most = getattr(data, low), getattr(data, high)
        if least > most:
            yield (
                f"data.{low}={least} exceeds data.{high}={most}: no {things} are left to draw from; use data.{low}={most} or "
                f"less"
            )


def _countdown_lengths(config: RootConfig) -> Iterator[str]:
    data, generation = config.data, config.generation
    if not isinstance(data, CountdownDataConfig) or not isinstance(config.model, TinyModelConfig):
        return  # other tokenizers do not spend one token on each character
    shape = f"data.num_numbers={data.num_numbers} and data.max_number={data.max_number}"
    answer = longest_answer(data.num_numbers, data.max_number) + 1
    if generation.max_completion_len < answer:
        yield (
            f"generation.max_completion_len={generation.max_completion_len} is too short for {shape}: the longest answer takes "
            f"{answer} tokens, the end token included; use generation.max_completion_len={answer} or more, as "
            f"experiment=tiny_countdown does"
        )
    question = data.num_numbers * (len(str(data.max_number)) + 1) + len(str(data.max_target)) + TEMPLATE_TOKENS
    if generation.max_prompt_len < question:
        yield (
            f"generation.max_prompt_len={generation.max_prompt_len} is too short for {shape}: the longest question takes "
            f"{question} tokens, and without one of its numbers it has no answer; use generation.max_prompt_len={question} "
            f"or more"
        )


def _reasoning_gym(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, ReasoningGymDataConfig):
        return
    if not data.tasks:
        yield (
            "data.tasks={}: names no task of reasoning-gym; write data.tasks={chain_sum: 1}, or several with their shares, "
            "data.tasks={chain_sum: 3, gsm_symbolic: 1}"
        )
    for name, share in data.tasks.items():
        if not 0 < share < math.inf:
            yield f"data.tasks.{name}={share}: a share must be above 0; leave a task out with ~data.tasks.{name}"
    for name in data.task_settings.keys() - data.tasks.keys():
        yield (
            f"data.task_settings.{name}: data.tasks has no {name}, so that its settings would do nothing; add "
            f"data.tasks.{name}=1"
        )


DATA_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _coloring,
    _countdown,
    _countdown_lengths,
    _reasoning_gym,
    *PROMPT_RULES,
)
"""Every rule about the problems."""
