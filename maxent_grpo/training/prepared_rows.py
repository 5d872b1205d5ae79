"""From a task to the rows of a run: which are left, how their prompts are written, in what order they come, what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import DataError
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.tasks.base import Demonstration, RowMixture, Task, TaskRow
from maxent_grpo.tasks.conversation import Conversation, PromptStyle, conversation_of, prompt_style
from maxent_grpo.tasks.duplicates import Places, distinct_rows
from maxent_grpo.tasks.measure import as_the_model_sees_it, measured
from maxent_grpo.tasks.prompt_writer import PromptWriter
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.tasks.tokenize import RenderedRows, render_rows
from maxent_grpo.training.types.choices import Duplicates, Overlap

Render = Callable[[Sequence[TaskRow]], RenderedRows]


def row_renderer(config: RootConfig, loaded: LoadedModel) -> Render:
    """Writes the prompts of rows as the settings ask for, all of them at once."""
    return partial(render_rows, **_rendering(config, loaded))


def _rendering(config: RootConfig, loaded: LoadedModel) -> dict[str, Any]:
    return {
        "tokenizer": loaded.tokenizer,
        "max_prompt_len": config.generation.max_prompt_len,
        "long_prompts": config.data.long_prompts,
        "style": prompt_style(config.data),
    }


def render_all(config: RootConfig, task: Task, loaded: LoadedModel) -> tuple[RenderedRows, RenderedRows]:
    """The training and the held-out rows with their prompts rendered.

    Raises:
        ConfigError: the tokenizer cannot write prompts in the style that the settings ask for.
        DataError: too few are left to train on.
    """
    data = config.data
    prompt_text(config, loaded.tokenizer)  # a style that this tokenizer cannot write is said before rows are read
    distinct = distinct_rows(
        task.train_rows, task.eval_rows, prompt_style(data), dedup=data.dedup, overlap=data.overlap
    )
    train = render_rows(distinct.rows, render_ahead=data.render_ahead, **_rendering(config, loaded))
    train = replace(
        train,
        places=_composed(distinct.places, train.places),
        num_duplicates=distinct.num_duplicates,
        num_overlapping=distinct.num_overlapping,
    )
    held_out = row_renderer(config, loaded)(task.eval_rows)
    if len(train.rows) < config.optimization.prompts_per_step:
        raise DataError(
            f"{len(train.rows)} training prompts are fewer than one optimiser step's "
            f"optimization.prompts_per_step={config.optimization.prompts_per_step}: use more data or smaller steps"
        )
    return train, held_out


def _composed(
    outer: Sequence[int] | Places | None, inner: Sequence[int] | Places | None
) -> Sequence[int] | Places | None:
    """Where rows stand that were chosen from a choice; None where all were chosen."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return [int(outer[place]) for place in inner]


def rows_per_epoch(task: Task, train: RenderedRows) -> int:
    """All training rows, or those that an epoch takes of a mixture."""
    mixture = _mixture(task)
    return len(train.rows) if mixture is None else mixture.num_rows


def row_order(config: RootConfig, task: Task, train: RenderedRows) -> EpochSampler:
    """The order of the training rows, from a seed of its own or the run's.

    Raises:
        DataError: nothing is left of a source of the mixture.
    """
    data = config.data
    seed = config.seed if data.order_seed is None else data.order_seed
    mixture = _mixture(task)
    if mixture is None:
        return EpochSampler(len(train.rows), seed=seed, shuffle=data.shuffle)
    left: RowMixture = replace(cast(Any, mixture), sizes=sizes_left(mixture.sizes, train.places))
    return EpochSampler(left.num_rows, seed=seed, order=lambda epoch: left.order(seed, epoch, shuffle=data.shuffle))


def sizes_left(sizes: Sequence[int], places: Sequence[int] | Places | None) -> tuple[int, ...]:
    """Rows of each source among those at ``places``.

    Raises:
        DataError: a source has none.
    """
    if places is None:
        return tuple(sizes)
    source = np.searchsorted(np.cumsum(sizes), np.asarray(places), side="right")
    left = np.bincount(source, minlength=len(sizes)).tolist()
    if not all(left):
        raise DataError(
            f"of the {len(sizes)} sources of data.mixture, number {left.index(0) + 1} has no training row left: all are "
            "held out too, asked before, or too long; leave the source out, or see data.overlap, data.dedup and "
            "generation.max_prompt_len"
        )
    return tuple(left)


def _mixture(task: Task) -> RowMixture | None:
    return getattr(task, "mixture", None)


def styled(config: RootConfig, demonstrations: Sequence[Demonstration]) -> list[Demonstration]:
    """Demonstrations whose questions are asked as those of the rows are."""
    style = prompt_style(config.data)
    return [
        replace(shown, messages=conversation_of(TaskRow(shown.row_id, shown.messages, "", dict(shown.columns)), style))
        for shown in demonstrations
    ]


def prompt_text(config: RootConfig, tokenizer: PreTrainedTokenizerBase) -> Callable[[Conversation], str]:
    """Writes a whole conversation as a prompt."""
    return PromptWriter(tokenizer, prompt_style(config.data)).text


def style_identity(config: RootConfig) -> dict[str, Any]:
    """What tells prompts of this style from those of another; empty for the plain one of every option."""
    style = prompt_style(config.data)
    told = asdict(style)
    if not style.chat_template_kwargs:
        del told["chat_template_kwargs"]
    return {} if style == PromptStyle() else {"prompts": told}


def data_facts(
    config: RootConfig, task: Task, loaded: LoadedModel, train: RenderedRows, held_out: RenderedRows
) -> dict[str, Any]:
    """What the data come to, as plain values; the content of data.json."""
    data, mixture = config.data, _mixture(task)
    sources = None if mixture is None else zip(mixture.labels, sizes_left(mixture.sizes, train.places), strict=True)
    return {
        "broken": int(getattr(task, "num_skipped", 0)),
        "mixture": None if sources is None else dict(sources),
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
    return int(facts["broken"] + left_out + train["too_long"] + facts["held_out"]["too_long"])
