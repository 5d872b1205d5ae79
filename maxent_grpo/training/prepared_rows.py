"""From a task to the rows of a run: which are left, how their prompts are written, in what order they come, what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import DataError
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.tasks.base import Demonstration, Task, TaskRow
from maxent_grpo.tasks.conversation import Conversation, PromptStyle, conversation_of, prompt_style
from maxent_grpo.tasks.duplicates import distinct_rows
from maxent_grpo.tasks.measure import as_the_model_sees_it, measured
from maxent_grpo.tasks.prompt_writer import PromptWriter
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.tasks.tokenize import RenderedRows, render_rows
from maxent_grpo.training.types.choices import Duplicates, Overlap

Render = Callable[[Sequence[TaskRow]], RenderedRows]


def row_renderer(config: RootConfig, loaded: LoadedModel) -> Render:
    """Writes the prompts of rows as the settings ask for, all of them at once."""
    return partial(
        render_rows,
        tokenizer=loaded.tokenizer,
        max_prompt_len=config.generation.max_prompt_len,
        long_prompts=config.data.long_prompts,
        style=prompt_style(config.data),
    )


def render_all(config: RootConfig, task: Task, loaded: LoadedModel) -> tuple[RenderedRows, RenderedRows]:
    """The training and the held-out rows with their prompts rendered.

    Raises:
        ConfigError: the tokenizer cannot write prompts in the style that the settings ask for.
        DataError: too few are left to train on.
    """
    data = config.data
    render = row_renderer(config, loaded)
    held_out = render(task.eval_rows)
    distinct = distinct_rows(
        task.train_rows, task.eval_rows, prompt_style(data), dedup=data.dedup, overlap=data.overlap
    )
    train = replace(
        render(distinct.rows, render_ahead=data.render_ahead),  # pyright: ignore[reportCallIssue] - of the partial
        num_duplicates=distinct.num_duplicates,
        num_overlapping=distinct.num_overlapping,
    )
    if len(train.rows) < config.optimization.prompts_per_step:
        raise DataError(
            f"{len(train.rows)} training prompts are fewer than one optimiser step's "
            f"optimization.prompts_per_step={config.optimization.prompts_per_step}: use more data or smaller steps"
        )
    return train, held_out


def row_order(config: RootConfig, train: RenderedRows) -> EpochSampler:
    """The order of the training rows, from a seed of its own or the run's."""
    seed = config.seed if config.data.order_seed is None else config.data.order_seed
    return EpochSampler(len(train.rows), seed=seed, shuffle=config.data.shuffle)


def styled(config: RootConfig, demonstrations: Sequence[Demonstration]) -> list[Demonstration]:
    """Demonstrations whose questions are asked as those of the rows are."""
    style = prompt_style(config.data)
    return [
        replace(shown, messages=conversation_of(TaskRow(shown.row_id, shown.messages, "", {}), style))
        for shown in demonstrations
    ]


def prompt_text(config: RootConfig, tokenizer: PreTrainedTokenizerBase) -> Callable[[Conversation], str]:
    """Writes a whole conversation as a prompt."""
    return PromptWriter(tokenizer, prompt_style(config.data)).text


def style_identity(config: RootConfig) -> dict[str, Any]:
    """What tells prompts of this style from those of another; empty for the plain one of every option."""
    style = prompt_style(config.data)
    return {} if style == PromptStyle() else {"prompts": asdict(style)}


def data_facts(config: RootConfig, loaded: LoadedModel, train: RenderedRows, held_out: RenderedRows) -> dict[str, Any]:
    """What the data come to, as plain values; the content of data.json."""
    data = config.data
    return {
        "train": {
            **measured(train),
            "duplicates": {"found": train.num_duplicates, "dropped": data.dedup is Duplicates.drop},
            "overlapping": {"found": train.num_overlapping, "dropped": data.overlap is Overlap.drop},
        },
        "held_out": measured(held_out),
        "example": as_the_model_sees_it(loaded.tokenizer, train),
    }


def num_dropped(facts: dict[str, Any]) -> int:
    """Rows that were left out, for whatever reason, as far as that is known before training."""
    train = facts["train"]
    left_out = sum(train[name]["found"] for name in ("duplicates", "overlapping") if train[name]["dropped"])
    return int(left_out + train["too_long"] + facts["held_out"]["too_long"])
