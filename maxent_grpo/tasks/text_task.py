"""`data=table` and `data=hub`: problems whose right answers are texts, graded by one of the text graders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maxent_grpo.config.data_sources import (
    HubDataConfig,
    Source,
    SourceDataConfig,
    TableDataConfig,
    held_out_source,
    settled_sources,
)
from maxent_grpo.config.table_files import table_files
from maxent_grpo.errors import DataError
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.graders import GRADERS, NamedGrader
from maxent_grpo.tasks.base import Demonstration, TaskRow
from maxent_grpo.tasks.mixture import Mixture, apportioned
from maxent_grpo.tasks.read_sources import read_files, read_split
from maxent_grpo.tasks.records import Account, Records
from maxent_grpo.tasks.row_mapping import RowMapping
from maxent_grpo.tasks.source_rows import JoinedRows, SourceRows

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextTask:
    """Problems from records, built by ``build_table`` or ``build_hub``; rows are read when they are asked for."""

    name: str
    train_rows: Sequence[TaskRow]
    eval_rows: Sequence[TaskRow]
    grader: Callable[[str, str], Grade]
    num_skipped: int = 0
    """Records that could not be used and were left out."""
    fingerprint: str = ""
    """A hash of the content that is trained on, whatever its files are called: equal settings and fingerprints, equal rows."""
    mixture: Mixture | None = None
    """How an epoch is made of several sources, whose rows stand one after the other in ``train_rows``; None for one source."""
    answer_alphabet: str | None = None

    def grade(self, completion: str, answer: str) -> Grade:
        """The grade of one completion by the chosen grader."""
        return self.grader(completion, answer)

    @property
    def sent_grader(self) -> Callable[[str, str], Grade] | None:
        """The grader by itself, for other processes; None where it is none of the named ones."""
        return next((NamedGrader(name) for name, grader in GRADERS.items() if grader is self.grader), None)

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """None: the records hold questions and answers, not how an answer is written out.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"data={self.name} holds no demonstrations for a supervised start: use a pretrained model, or "
            f"model.warm_start.enabled=false"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """One source with its share of the limits, and its records once they were read."""

    source: Source
    mapping: RowMapping
    num_train: int | None
    num_eval: int | None
    train: Records
    held_out: Records | None
    """What is held out where that stands apart from what is trained on."""


def build_table(config: TableDataConfig) -> TextTask:
    """The problems of the files that ``config`` names.

    Raises:
        DataError: a file or record cannot be used, a column is not there, or nothing is left.
    """
    accounts: list[Account] = []

    def read(path: str, mapping: RowMapping) -> Records:
        files, problem = table_files(path)
        if problem:
            raise DataError(f"{path}: {problem}")
        return read_files(path, files, mapping, config, accounts)

    parts = [
        _Part(source, mapping, num_train, num_eval, read(source.path, mapping), None)
        for source, mapping, num_train, num_eval in _shares(config)
    ]
    apart: SourceRows | None = None
    if config.eval_path is not None:
        mapping = RowMapping(
            config.prompt_column, config.answer_column, config.answer_after, config.answer_boxed, config.columns
        )
        records = read(config.eval_path, mapping)
        chosen = _chosen(len(records), config.num_eval, config.split_seed)
        apart = SourceRows(records, mapping, chosen, "table-eval")
    return _task("table", config, parts, apart, accounts)


def build_hub(config: HubDataConfig) -> TextTask:
    """The problems of the data sets that ``config`` names.

    Raises:
        DataError: a data set or record cannot be used, a column is not there, or nothing is left.
    """
    accounts: list[Account] = []
    parts: list[_Part] = []
    elsewhere = held_out_source(config)
    for source, mapping, num_train, num_eval in _shares(config):
        num_read, held_out = num_train, None
        if elsewhere is not None:
            pass
        elif source.eval_split is not None:
            held_out = read_split(source, source.eval_split, num_eval, mapping, config, accounts)
        elif num_train is not None:
            num_read = math.ceil(num_train / (1 - config.eval_fraction))
        train = read_split(source, source.split, num_read, mapping, config, accounts)
        parts.append(_Part(source, mapping, num_train, num_eval, train, held_out))
    apart: SourceRows | None = None
    if elsewhere is not None:
        mapping = RowMapping(
            config.prompt_column, config.answer_column, config.answer_after, config.answer_boxed, config.columns
        )
        records = read_split(elsewhere, elsewhere.split, config.num_eval, mapping, config, accounts)
        apart = SourceRows(records, mapping, _chosen(len(records), config.num_eval, config.split_seed), "hub-eval")
    return _task("hub", config, parts, apart, accounts)


def _shares(
    config: TableDataConfig | HubDataConfig,
) -> list[tuple[Source, RowMapping, int | None, int | None]]:
    """Each source with its columns and its share, by weight, of data.num_train and data.num_eval."""
    sources = settled_sources(config)
    limits = [
        [None] * len(sources) if limit is None else apportioned(limit, [source.weight for source in sources])
        for limit in (config.num_train, config.num_eval)
    ]
    return [
        (
            source,
            RowMapping(
                source.prompt_column, source.answer_column, source.answer_after, source.answer_boxed, config.columns
            ),
            num_train,
            num_eval,
        )
        for source, num_train, num_eval in zip(sources, *limits, strict=True)
    ]


def _task(
    name: str,
    config: SourceDataConfig,
    parts: Sequence[_Part],
    apart: SourceRows | None,
    accounts: Sequence[Account],
) -> TextTask:
    """The sources' rows laid end to end; ``apart`` are all held-out rows where they have a place of their own."""
    train: list[SourceRows] = []
    held_out: list[SourceRows] = []
    for part in parts:
        trained_on, evaluated_on = _split(name, config, part, hold_out=apart is None)
        train.append(trained_on)
        held_out.append(evaluated_on)
    if apart is not None:
        held_out = [apart]
    sizes = tuple(map(len, train))
    weights = tuple(part.source.weight for part in parts)
    labels = tuple(part.source.label for part in parts)
    return TextTask(
        name=name,
        train_rows=train[0] if len(train) == 1 else JoinedRows(train),
        eval_rows=held_out[0] if len(held_out) == 1 else JoinedRows(held_out),
        grader=GRADERS[config.grader],
        num_skipped=sum(account.num_bad for account in accounts),
        fingerprint="-".join(part.train.digest[:16] for part in parts),
        mixture=Mixture(labels, sizes, weights, sum(sizes)) if any(labels) else None,
    )


def _split(name: str, config: SourceDataConfig, part: _Part, *, hold_out: bool) -> tuple[SourceRows, SourceRows]:
    """What is trained and what is evaluated on of one source; the latter does not depend on how many are trained on.

    Raises:
        DataError: no row is left to train on.
    """
    label = part.source.label
    suffix, column = (f":{label}", label) if label else ("", None)
    order = _order(len(part.train), config.split_seed)
    num_held_out = 0
    if part.held_out is not None:
        chosen = _chosen(len(part.held_out), part.num_eval, config.split_seed)
        held_out = SourceRows(part.held_out, part.mapping, chosen, f"{name}-eval{suffix}", column)
    else:
        if hold_out:
            wanted = min(round(config.eval_fraction * len(order)), len(order) - 1)
            num_held_out = wanted if part.num_eval is None else min(wanted, part.num_eval)
        held_out = SourceRows(part.train, part.mapping, np.sort(order[:num_held_out]), f"{name}{suffix}", column)
    chosen = np.sort(order[num_held_out:][: part.num_train])
    if not len(chosen):
        raise DataError(f"data.num_train={config.num_train} leaves no row of {label or part.source.path}; raise it")
    return SourceRows(part.train, part.mapping, chosen, f"{name}{suffix}", column), held_out


def _order(num: int, seed: int) -> Places:
    """The rows of a source in an order that its length and the seed alone decide."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))).permutation(num)


def _chosen(num: int, limit: int | None, seed: int) -> Places:
    """At most ``limit`` rows, in their own order."""
    if limit is None or limit >= num:
        return np.arange(num)
    return np.sort(_order(num, seed)[:limit])
