"""Gate 3, second half: records and their columns that cannot be read, split or mixed under the other settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from maxent_grpo.config.data import DataConfig, ReasoningGymDataConfig
from maxent_grpo.config.data_sources import (
    HubDataConfig,
    Source,
    TableDataConfig,
    held_out_source,
    settled_sources,
)
from maxent_grpo.config.declared import shown
from maxent_grpo.config.model import PretrainedModelConfig
from maxent_grpo.config.root import RootConfig

GIVEN = ("row_id", "prompt", "answer", "prompts", "completions", "completion_ids")
"""Names under which reward functions get something else than a record's column."""

WITHOUT_DEMONSTRATIONS: dict[type[DataConfig], str] = {
    TableDataConfig: "table",
    HubDataConfig: "hub",
    ReasoningGymDataConfig: "reasoning_gym",
}
"""Options of `data` that a model cannot be taught from before it is trained, and their names."""


def _where(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, (TableDataConfig, HubDataConfig)):
        return
    option = "table" if isinstance(data, TableDataConfig) else "hub"
    example = "data.path=problems.jsonl" if option == "table" else "data.path=openai/gsm8k"
    if data.path is None and not data.mixture:
        yield f"data={option} is not told which data: write {example}, or several with their weights as data.mixture={{...}}"
    if data.path is not None and data.mixture:
        yield (
            f"data.path={data.path} together with data.mixture={_names(data.mixture)}: both say where the rows come from; "
            f"write data.path=null, or make it one of the mixture"
        )
    for name, weight in data.mixture.items():
        if not (weight > 0 and math.isfinite(weight)):
            yield f"data.mixture.{name}={shown(weight)}: a weight must be above 0 and finite; leave out what is not to be used"
    for name in data.sources:
        if name not in data.mixture:
            yield (
                f"data.sources.{name} explains a source that data.mixture={_names(data.mixture)} does not have; add it with "
                f"data.mixture.{name}=1"
            )


def _answers(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, (TableDataConfig, HubDataConfig)):
        return
    for source in settled_sources(data):
        if source.answer_after is not None and source.answer_boxed:
            place = f"data.sources.{source.label}" if source.label in data.sources else "data"
            yield (
                f"{place}.answer_after={source.answer_after} together with {place}.answer_boxed=true: an answer stands in one "
                f"place; choose one of them"
            )
    template: str | None = getattr(data, "prompt_template", None)
    if data.prompt_column is None and template is None:
        yield (
            "data.prompt_column=null leaves rows without a question; name its column, or make it of others with "
            "data.prompt_template='... {column} ...'"
        )
    for name in data.columns or []:
        if name in GIVEN:
            yield f"data.columns={_names(data.columns or [])}: reward functions get {name} in any case; leave it out"
    twice = [name for name, count in Counter(data.columns or []).items() if count > 1]
    if twice:
        yield f"data.columns={_names(data.columns or [])}: names {twice[0]} more than once"


def _held_out(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, (TableDataConfig, HubDataConfig)):
        return
    if isinstance(data, TableDataConfig):
        setting, apart = "data.eval_path", data.eval_path is not None
        if data.eval_path is not None and data.eval_path == data.path:
            yield (
                f"data.eval_path={data.eval_path} is data.path too: every held-out row would be trained on; name another file, "
                f"or write data.eval_path=null to hold out data.eval_fraction of the rows"
            )
    else:
        sources, elsewhere = settled_sources(data), held_out_source(data)
        setting = "data.eval_split"
        apart = elsewhere is not None or (bool(sources) and all(source.eval_split for source in sources))
        yield from _trained_on_too(data, sources, elsewhere)
    if data.eval_fraction == 0 and not apart and config.evaluation.enabled:
        yield (
            f"data.eval_fraction=0.0 holds out no rows, and {setting} names none, but evaluation.enabled=true needs some; set "
            f"one of them, or evaluation.enabled=false"
        )


def _trained_on_too(data: HubDataConfig, sources: list[Source], elsewhere: Source | None) -> Iterator[str]:
    for source in sources:
        if elsewhere is None and source.eval_split == source.split:
            yield (
                f"data.eval_split={source.eval_split} is data.split too: every held-out row would be trained on; name "
                f"another split, or write data.eval_split=null to hold out data.eval_fraction of the rows"
            )
        elif elsewhere is not None and (elsewhere.path, elsewhere.split) == (source.path, source.split):
            yield (
                f"data.eval_path={data.eval_path} with the split {elsewhere.split} is trained on too, every held-out row of it; "
                f"name another data set, or another split with data.eval_split"
            )


def _streams(config: RootConfig) -> Iterator[str]:
    data = config.data
    if not isinstance(data, HubDataConfig) or not data.streaming:
        return
    for setting, value in (("data.num_train", data.num_train), ("data.num_eval", data.num_eval)):
        if value is None:
            yield (
                f"data.streaming=true needs {setting} (got null): a stream is read only as far as that many rows; set it, or "
                f"use data.streaming=false to fetch everything"
            )


def _demonstrations(config: RootConfig) -> Iterator[str]:
    data, model = config.data, config.model
    if not model.warm_start.enabled or type(data) not in WITHOUT_DEMONSTRATIONS:
        return
    other_start = (
        "" if isinstance(model, PretrainedModelConfig) else "a pretrained model (model=hf or model=smollm2), or "
    )
    yield (
        f"model.warm_start.enabled=true with data={WITHOUT_DEMONSTRATIONS[type(data)]}: such data holds questions and answers but no "
        f"demonstrations for a supervised start; use {other_start}model.warm_start.enabled=false"
    )


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


SOURCE_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _where,
    _answers,
    _held_out,
    _streams,
    _demonstrations,
)
"""Every rule about records of one's own."""
