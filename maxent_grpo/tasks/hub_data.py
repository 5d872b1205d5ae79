"""Data sets of the `datasets` library: from the hub, from a folder that `save_to_disk` wrote, or from one of data files.

What was fetched is kept where that library keeps it (HF_HOME). No code of a data set is ever run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from maxent_grpo.config.data_sources import Source
from maxent_grpo.errors import DataError, NotReachedError
from maxent_grpo.tasks.kept_file import kept_file

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

SAVED = ("dataset_dict.json", "state.json")
"""Files by which a folder that `save_to_disk` wrote is known."""


def load_split(source: Source, split: str) -> Dataset:
    """A split, memory-mapped.

    Raises:
        DataError: it cannot be had; one sentence says why.
    """
    import datasets

    with _one_sentence(source, split):
        if _is_saved(source):
            return _saved_split(source, split)
        found = datasets.load_dataset(_place(source), source.name, split=split, revision=source.revision)
        return cast("Dataset", found)


def stream_into_file(
    source: Source, split: str, *, num_rows: int, seed: int, buffer: int, columns: Sequence[str] | None, cache_dir: str
) -> Path:
    """The first rows of a stream, shuffled through a buffer, as a jsonl file made once.

    The file's name says which rows it holds: data set, split, revision, columns, number, seed and buffer. Rows thus stand at
    the same place in every run with these settings; to read a data set of the hub anew after it has changed, name its
    revision.

    Raises:
        DataError: it cannot be had, or a column holds what JSON cannot say.
    """
    made_from = [
        *(source.path, source.name, split, source.revision, _files_in(source)),
        *(num_rows, seed, buffer, None if columns is None else sorted(columns)),
    ]

    def write(target: Path) -> None:
        with _one_sentence(source, split), target.open("w", encoding="utf-8") as file:
            stream = _stream(source, split).shuffle(seed=seed, buffer_size=buffer).take(num_rows)
            for row in stream if columns is None else stream.select_columns(list(columns)):
                file.write(_as_json(cast("dict[str, Any]", row), source) + "\n")

    return kept_file(cache_dir, "stream", made_from, ".jsonl", write)


def _stream(source: Source, split: str) -> IterableDataset:
    import datasets

    if _is_saved(source):
        return _saved_split(source, split).to_iterable_dataset()
    found = datasets.load_dataset(_place(source), source.name, split=split, revision=source.revision, streaming=True)
    return cast("IterableDataset", found)


def _is_saved(source: Source) -> bool:
    return any((Path(_place(source)) / name).is_file() for name in SAVED)


def _saved_split(source: Source, split: str) -> Dataset:
    import datasets

    found = datasets.load_from_disk(_place(source))
    if isinstance(found, datasets.Dataset):
        found = datasets.DatasetDict({str(found.split or "train"): found})
    if split not in found:
        raise ValueError(f"Unknown split. There are {list(found)}")
    return found[split]


def _place(source: Source) -> str:
    """The hub id, or the folder in full."""
    folder = Path(source.path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else source.path


def _files_in(source: Source) -> list[list[Any]]:
    """What a local folder holds, by name, size and time of change; nothing for a data set of the hub."""
    folder = Path(source.path).expanduser()
    files = sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _as_json(row: dict[str, Any], source: Source) -> str:
    try:
        return json.dumps(row, ensure_ascii=False)
    except TypeError:
        for name, value in row.items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise DataError(
                    f"data.path={source.path}: column {name} holds {type(value).__name__} values, which a stream's file cannot "
                    f"keep; name the columns to keep with data.columns=[...]"
                ) from error
        raise


@contextmanager
def _one_sentence(source: Source, split: str) -> Iterator[None]:
    """Turn what the library raises into a DataError of one sentence."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (OSError, ValueError, RuntimeError, DatasetsError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        sentence = _sentence(error, source, split)
        raise (NotReachedError if _is_unreachable(error) else DataError)(sentence) from error


def _is_unreachable(error: Exception) -> bool:
    return "Couldn't reach" in str(error) or isinstance(error, ConnectionError)


def _sentence(error: Exception, source: Source, split: str) -> str:
    said = " ".join(str(error).split())
    cause = error.__cause__ or error.__context__
    where, listed = f"data.path={source.path}", _listed(said)
    if re.search(r"(unknown|bad) split", said, re.IGNORECASE):
        return f"{where}: there is no split {split}; there are {listed}"
    if "BuilderConfig" in said or "Config name is missing" in said:
        asked = f"data.name={source.name}: no such configuration" if source.name else "data.name is not set"
        return f"{where}: {asked}; there are {listed}"
    if "gated" in said:
        return f"{where}: is a gated data set; accept its terms on the hub, then log in here with `hf auth login`"
    if "scripts are no longer supported" in said:
        return f"{where}: is made by a Python script, which is never run; use a data set that is stored as files"
    if "Revision" in said:
        return f"{where}: there is no revision {source.revision}"
    if _is_unreachable(error):
        return (
            f"{where}: the hub cannot be reached ({said[:120]}), and the data set is not in the cache; fetch it once where there "
            "is a network, with the same HF_HOME, or name a local folder that `save_to_disk` wrote"
        )
    if type(error).__name__ == "DatasetNotFoundError":
        return (
            f"{where}: there is no such data set on the hub, or only for an account that is logged in (`hf auth login`)"
        )
    if "data files" in said.lower():
        return f"{where}: holds no data files that can be read"
    told = f"{said}: {' '.join(str(cause).split())}" if cause else said
    return f"{where}, split {split}: cannot be read ({told[:300]})"


def _listed(said: str) -> str:
    found = re.search(r"\[([^\]]*)\]", said)
    return found[1].replace("'", "").replace('"', "") if found else "others"
