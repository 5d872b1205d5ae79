"""`data=table` and `data=hub`: problems whose right answers are texts, graded by one of the text graders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxent_grpo.config.data_sources import HubDataConfig, Source, SourceDataConfig, TableDataConfig, settled_sources
from maxent_grpo.config.table_files import PARQUET, table_files
from maxent_grpo.errors import DataError
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.graders import GRADERS
from maxent_grpo.tasks.base import Demonstration, TaskRow
from maxent_grpo.tasks.hub_data import load_split, stream_into_file
from maxent_grpo.tasks.mixture import Mixture, apportioned
from maxent_grpo.tasks.records import Account, Check, Records, TableFile
from maxent_grpo.tasks.row_mapping import RowMapping
from maxent_grpo.tasks.source_rows import JoinedRows, SourceRows
from maxent_grpo.tasks.table_arrow import StoredDataset, open_parquet, read_arrow_table
from maxent_grpo.tasks.table_text import read_text_file


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
class _Opened:
    """A source once it was read: what to train on, and what to hold out if that stands apart."""

    train: Records
    held_out: Records | None
    mapping: RowMapping


def build_table(config: TableDataConfig) -> TextTask:
    """The problems of the files that ``config`` names.

    Raises:
        DataError: a file or record cannot be used, a column is not there, or nothing is left.
    """
    accounts: list[Account] = []

    def opened(path: str, mapping: RowMapping) -> Records:
        files, problem = table_files(path)
        if problem:
            raise DataError(f"{path}: {problem}")
        return _read_files(path, files, mapping, config, accounts)

    sources = [
        (source, _Opened(opened(source.path, _mapping(config, source)), None, _mapping(config, source)))
        for source in settled_sources(config)
    ]
    apart = None
    if config.eval_path is not None:
        mapping = RowMapping(
            config.prompt_column, config.answer_column, config.answer_after, config.answer_boxed, config.columns
        )
        apart = SourceRows(
            records := opened(config.eval_path, mapping),
            mapping,
            _chosen(len(records), config.num_eval, config.split_seed),
            "table-eval",
        )
    return _task("table", config, sources, apart, accounts)


def build_hub(config: HubDataConfig) -> TextTask:
    """The problems of the data sets that ``config`` names.

    Raises:
        DataError: a data set or record cannot be used, a column is not there, or nothing is left.
    """
    accounts: list[Account] = []
    sources = settled_sources(config)
    weights = [source.weight for source in sources]
    limits = [None] * len(sources) if config.num_train is None else apportioned(config.num_train, weights)
    held = [None] * len(sources) if config.num_eval is None else apportioned(config.num_eval, weights)
    opened: list[tuple[Source, _Opened]] = []
    for source, num_train, num_eval in zip(sources, limits, held, strict=True):
        mapping = _mapping(config, source)
        if source.eval_split is None and num_train is not None:
            num_train = int(np.ceil(num_train / (1 - config.eval_fraction)))
        train = _read_split(config, source, source.split, num_train, mapping, accounts)
        apart = source.eval_split and _read_split(config, source, source.eval_split, num_eval, mapping, accounts)
        opened.append((source, _Opened(train, apart or None, mapping)))
    return _task("hub", config, opened, None, accounts)


def _task(
    name: str,
    config: SourceDataConfig,
    sources: Sequence[tuple[Source, _Opened]],
    apart: SourceRows | None,
    accounts: Sequence[Account],
) -> TextTask:
    """Training and held-out rows of each source, each with its share of the limits, laid end to end."""
    weights = [source.weight for source, _ in sources]
    limits = [None] * len(sources) if config.num_train is None else apportioned(config.num_train, weights)
    held = [None] * len(sources) if config.num_eval is None else apportioned(config.num_eval, weights)
    train: list[SourceRows] = []
    held_out: list[SourceRows] = [] if apart is None else [apart]
    for (source, opened), num_train, num_eval in zip(sources, limits, held, strict=True):
        label = f":{source.label}" if source.label else ""
        column = source.label or None
        order = _order(len(opened.train), config.split_seed)
        num_held_out = 0
        if opened.held_out is not None:
            chosen = _chosen(len(opened.held_out), num_eval, config.split_seed)
            held_out.append(SourceRows(opened.held_out, opened.mapping, chosen, f"{name}-eval{label}", column))
        elif apart is None:
            wanted = round(config.eval_fraction * len(order))
            num_held_out = min(wanted if num_eval is None else min(wanted, num_eval), len(order) - 1)
            chosen = np.sort(order[:num_held_out])
            held_out.append(SourceRows(opened.train, opened.mapping, chosen, f"{name}{label}", column))
        chosen = np.sort(order[num_held_out:][:num_train])
        if not len(chosen):
            raise DataError(
                f"data.num_train={config.num_train} leaves no row of {source.label or source.path}; raise it"
            )
        train.append(SourceRows(opened.train, opened.mapping, chosen, f"{name}{label}", column))
    sizes = tuple(map(len, train))
    labels = tuple(source.label for source, _ in sources)
    alone = len(sources) == 1 and not labels[0]
    return TextTask(
        name=name,
        train_rows=train[0] if len(train) == 1 else JoinedRows(train),
        eval_rows=held_out[0] if len(held_out) == 1 else JoinedRows(held_out),
        grader=GRADERS[config.grader],
        num_skipped=sum(account.num_bad for account in accounts),
        fingerprint="-".join(opened.train.digest[:16] for _, opened in sources),
        mixture=None if alone else Mixture(labels, sizes, tuple(weights), sum(sizes)),
    )


def _mapping(config: SourceDataConfig, source: Source) -> RowMapping:
    return RowMapping(
        source.prompt_column, source.answer_column, source.answer_after, source.answer_boxed, config.columns
    )


def _check(mapping: RowMapping, config: SourceDataConfig) -> Check:
    """Looks at the records of one table, and shows the answers of the first of them to the grader."""
    grader, left = GRADERS[config.grader], config.check_answers

    def unreadable(answer: str) -> str:
        nonlocal left
        if left == 0:
            return ""
        left -= 1
        try:
            grader("", answer)
        except DataError as why:
            return str(why)
        return ""

    return lambda record: mapping.check(record, unreadable)


def _read_files(
    name: str, files: Sequence[Path], mapping: RowMapping, config: SourceDataConfig, accounts: list[Account]
) -> Records:
    """One table of several files: read once, its broken records settled.

    Raises:
        DataError: a column is not there, records are broken under data.on_bad_row=stop, or none is left.
    """
    account, check = Account(name), _check(mapping, config)
    accounts.append(account)
    seen: dict[str, Any] = {}
    tables: list[TableFile] = []
    for path in files:
        if path.suffix.lower() == PARQUET:
            table = open_parquet(path, config.cache_dir)
            _refuse_absent(name, mapping, table.names, table.record(0) if len(table) else {})
            tables.append(read_arrow_table(table, mapping.read_columns(table.names), check, account))
            seen.update(dict.fromkeys(table.names))
        else:
            tables.append(_read_text(path, check, account, seen))
    return _settled(name, tables, mapping, seen, account, config)


def _read_text(path: Path, check: Check, account: Account, seen: dict[str, Any]) -> TableFile:
    try:
        return read_text_file(path, check, account, seen)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _read_split(
    config: HubDataConfig,
    source: Source,
    split: str,
    num_rows: int | None,
    mapping: RowMapping,
    accounts: list[Account],
) -> Records:
    if config.streaming:
        assert num_rows is not None  # the configuration refuses a stream without an end
        kept = mapping.all_columns()
        path = stream_into_file(
            source, split, num_rows=num_rows, seed=config.split_seed, buffer=config.shuffle_buffer, columns=kept,
            cache_dir=config.cache_dir,
        )  # fmt: skip
        return _read_files(f"{source.path}, split {split}", [path], mapping, config, accounts)
    table = StoredDataset(load_split(source, split), f"{source.path}, split {split}")
    account = Account(table.title)
    accounts.append(account)
    sample = table.record(0) if len(table) else {}
    _refuse_absent(table.title, mapping, table.names, sample)
    file = read_arrow_table(table, mapping.read_columns(table.names), _check(mapping, config), account)
    return _settled(table.title, [file], mapping, dict.fromkeys(table.names) | sample, account, config)


def _settled(
    name: str,
    tables: Sequence[TableFile],
    mapping: RowMapping,
    seen: dict[str, Any],
    account: Account,
    config: SourceDataConfig,
) -> Records:
    if seen:
        _refuse_absent(name, mapping, list(seen), seen)
    account.settle(sum(map(len, tables)), config.on_bad_row)
    return Records(tables, list(seen))


def _refuse_absent(name: str, mapping: RowMapping, names: Sequence[str], sample: dict[str, Any]) -> None:
    absent = list(mapping.absent(sample, names)) if names else []
    if absent:
        raise DataError(f"{name}: " + "; ".join(absent))


def _order(num: int, seed: int) -> np.ndarray:
    """The rows of a source in an order that its length and the seed alone decide."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))).permutation(num)


def _chosen(num: int, limit: int | None, seed: int) -> np.ndarray:
    """At most ``limit`` rows, in their own order."""
    if limit is None or limit >= num:
        return np.arange(num)
    return np.sort(_order(num, seed)[:limit])
