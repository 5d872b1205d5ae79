"""Reward functions as users write them for TRL and for verl, none of them written for this package."""

# TRL passes lists of plain values, and its documentation writes functions without any annotation
# pyright: basic
# ruff: noqa: B905

import asyncio
import random
import re
import time

import numpy


def accuracy(completions, solution, **kwargs):
    """A column of the data set compared with the completion."""
    return [1.0 if text == right else 0.0 for text, right in zip(completions, solution)]


def math_only(prompts, completions, task, **kwargs):
    """Rewards rows of one kind and abstains from the others."""
    return [float(text.isdigit()) if kind == "math" else None for text, kind in zip(completions, task)]


def coding_only(prompts, completions, task, **kwargs):
    return [float(text.startswith("def")) if kind == "coding" else None for text, kind in zip(completions, task)]


def by_tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def think_format(completions: list[list[dict[str, str]]], **kwargs) -> list[float]:
    """Annotated as TRL annotates its own: completions are messages."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think>.*$", content, re.DOTALL) else 0.0 for content in contents]


def echoes_the_question(prompts, completions, **kwargs):
    """Written for conversations, and without annotations."""
    return [
        float(prompt[-1]["content"] in completion[-1]["content"]) for prompt, completion in zip(prompts, completions)
    ]


async def asks_a_service(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [float(len(text)) for text in completions]


arrived = []


async def meets(name):
    """Comes back only when two functions are here at once."""
    arrived.append(name)
    async with asyncio.timeout(10):
        while len(set(arrived)) < 2:
            await asyncio.sleep(0.001)


async def meets_the_second(completions, **kwargs):
    await meets("first")
    return [float(len(text)) for text in completions]


async def meets_the_first(completions, solution, **kwargs):
    await meets("second")
    return [float(text == right) for text, right in zip(completions, solution)]


async def never_answers(completions, **kwargs):
    await asyncio.sleep(60)


async def blocks_the_loop(completions, **kwargs):
    time.sleep(1.5)
    return [0.0 for _ in completions]


def logs(completions, trainer_state, log_extra, log_metric, **kwargs):
    """Uses all that TRL's trainer passes."""
    log_extra("length", [len(text) for text in completions])
    log_metric("share_done", trainer_state.global_step / trainer_state.max_steps)
    return [float(len(text)) for text in completions]


def logs_if_it_can(completions, log_extra=None, log_metric=None, **kwargs):
    if log_extra:
        for text in completions:
            log_extra("upper", [text.upper()])
    if log_metric:
        log_metric("count", len(completions))
    return [1.0] * len(completions)


class Scaled:
    """A callable object, as TRL's factories return."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions, **kwargs):
        return [self.scale * len(text) for text in completions]


scaled = Scaled(0.5)


def hangs(completions, **kwargs):
    """Computes far beyond any limit in a test."""
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        pass
    return [0.0 for _ in completions]


def sleeps(completions, **kwargs):
    time.sleep(2.0)
    return [0.0 for _ in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """As in verl's own: dispatches on where the row comes from."""
    if data_source == "openai/gsm8k":
        return 1.0 if solution_str.split("####")[-1].strip() == ground_truth else 0.0
    if data_source == "with_details":
        right = solution_str == ground_truth
        return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str}
    raise NotImplementedError(f"Reward function is not implemented for {data_source=}")


async def compute_score_async(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0.1)
    return float(solution_str == ground_truth) * extra_info.get("scale", 1)


def wavers(data_source, solution_str, ground_truth, extra_info=None):
    """Draws from the generator that all of a process shares."""
    return random.random() if solution_str else numpy.random.random()


def slow_on_some(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "slow":
        time.sleep(1.0)
    return float(solution_str == ground_truth)
