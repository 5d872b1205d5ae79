"""Reads a source for the first time: finds its usable records, and refuses or counts those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxent_grpo.config.data_sources import HubDataConfig, Source, SourceDataConfig
from maxent_grpo.config.table_files import PARQUET
from maxent_grpo.errors import DataError
from maxent_grpo.rewards.graders import GRADERS
from maxent_grpo.tasks.hub_data import load_split, stream_into_file
from maxent_grpo.tasks.records import Account, Check, Records, TableFile
from maxent_grpo.tasks.row_mapping import RowMapping
from maxent_grpo.tasks.table_arrow import StoredDataset, open_parquet, read_arrow_table
from maxent_grpo.tasks.table_text import read_text_file


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


def read_files(
    name: str, files: Sequence[Path], mapping: RowMapping, config: SourceDataConfig, accounts: list[Account]
) -> Records:
    """One table of several files, read once; its account is added to ``accounts``.

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


def read_split(
    source: Source,
    split: str,
    num_rows: int | None,
    mapping: RowMapping,
    config: HubDataConfig,
    accounts: list[Account],
) -> Records:
    """A split of a data set; of a stream, its first ``num_rows`` rows.

    Raises:
        DataError: it cannot be had, or as ``read_files``.
    """
    if config.streaming:
        assert num_rows is not None  # the configuration refuses a stream without an end
        kept = mapping.all_columns()
        path = stream_into_file(
            source, split, num_rows=num_rows, seed=config.split_seed, buffer=config.shuffle_buffer, columns=kept,
            cache_dir=config.cache_dir,
        )  # fmt: skip
        return read_files(f"{source.path}, split {split}", [path], mapping, config, accounts)
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
