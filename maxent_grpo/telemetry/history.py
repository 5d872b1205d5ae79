"""The record a resumed run starts with: that of the run it continues, up to the step it continues from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import RECORD_FILES, iterate_jsonl


@dataclass(frozen=True, slots=True)
class AdoptedHistory:
    """How many lines were kept, and how many later ones were left behind, over all files."""

    num_kept: int
    num_left: int


def _lines_with_fate(source: Path, step: int) -> Iterator[tuple[bytes, bool]]:
    for line, value in iterate_jsonl(source):
        if not isinstance(value.get("step"), int):
            raise DataError(f"{source} has a line without a whole-numbered step: restore the file, or move it away")
        yield line, value["step"] <= step


def _adopt_file(source: Path, target: Path, step: int) -> AdoptedHistory:
    counts = {True: 0, False: 0}

    def copy(file: BinaryIO) -> None:
        for line, kept in _lines_with_fate(source, step):
            counts[kept] += 1
            if kept:
                file.write(line)

    write_atomically(target, copy)
    return AdoptedHistory(num_kept=counts[True], num_left=counts[False])


def adopt_history(source_run: Path, target_run: Path, step: int) -> AdoptedHistory:
    """Give ``target_run`` the lines of ``source_run``'s metrics, completions and evaluations up to step ``step``.

    When both are the same folder its files are cut back in place: the later lines will be produced again. Each file is
    replaced atomically. A file that the source lacks is not created.

    Raises:
        ConfigError: the target is another folder that already holds a record.
        DataError: a whole line of the source is not a JSON object.
    """
    is_same = source_run.resolve() == target_run.resolve()
    names = [name for name in RECORD_FILES if (source_run / name).is_file()]
    taken = [name for name in RECORD_FILES if not is_same and (target_run / name).exists()]
    if taken:
        raise ConfigError(
            f"run.dir={target_run} already holds {' and '.join(taken)}, which the history of {source_run} would replace: "
            "choose a new run.dir, or resume into the folder of the run itself"
        )
    adopted = [_adopt_file(source_run / name, target_run / name, step) for name in names]
    return AdoptedHistory(sum(part.num_kept for part in adopted), sum(part.num_left for part in adopted))
