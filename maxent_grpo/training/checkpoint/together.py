"""Saving by several processes: all of them collect what there is, part after part, and the main one writes it.

One part is in memory at a time. A disk that is full, or anything else that the main process fails at, ends the save on all
processes with the same words, after the same collectives; nothing of the checkpoint is left then, and the one before is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from safetensors import SafetensorError

from maxent_grpo.distributed import from_main
from maxent_grpo.errors import CheckpointError, StorageError
from maxent_grpo.training.checkpoint.store import CheckpointStore


@dataclass(frozen=True)
class Part:
    """Something that a checkpoint holds."""

    collect: Callable[[], Any]
    """Called by every process, in the same order of parts; what it gives on others than the main one is let go."""
    write: Callable[[Path, Any], None]
    """Writes what was collected into the checkpoint's folder; called by the main process alone."""


@dataclass(frozen=True)
class _Outcome:
    """How the main process fared, in words that every process ends with."""

    folder: Path | None
    storage: str = ""
    other: str = ""


def save_together(
    accelerator: Accelerator,
    store: CheckpointStore,
    step: int,
    parts: Sequence[Part],
    *,
    is_best: bool,
    explain: Callable[[Exception], str],
) -> Path:
    """Save a checkpoint of all processes; returns its folder, on all of them.

    ``explain`` makes the main process's sentence of a disk that does not take it.

    Raises:
        StorageError: on every process, the main one's: the disk did not take it.
        CheckpointError: on the others, when the main one failed at something else, which it raises itself.
    """
    rest = iter(parts)
    if not accelerator.is_main_process:
        _collect(rest)
        return _agreed(from_main(accelerator, _Outcome(None)))

    def write(folder: Path) -> None:
        for part in rest:
            part.write(folder, part.collect())

    outcome, cause = _saved(store, step, write, is_best, explain)
    if accelerator.num_processes > 1:
        _collect(rest)  # what the others are still to be asked for
    from_main(accelerator, outcome)
    if cause is not None and not outcome.storage:
        raise cause
    return _agreed(outcome, cause)


def _saved(
    store: CheckpointStore, step: int, write: Callable[[Path], None], is_best: bool, explain: Callable[[Exception], str]
) -> tuple[_Outcome, Exception | None]:
    try:
        return _Outcome(store.save(step, write, is_best=is_best)), None
    except (OSError, SafetensorError) as error:
        return _Outcome(None, storage=explain(error)), error
    except Exception as error:  # whatever it is, the others wait to be told
        return _Outcome(None, other=f"step {step}: the main process could not save: {error}"), error


def _collect(rest: Iterator[Part]) -> None:
    for part in rest:
        part.collect()


def _agreed(outcome: _Outcome, cause: Exception | None = None) -> Path:
    if outcome.storage:
        raise StorageError(outcome.storage) from cause
    if outcome.folder is None:
        raise CheckpointError(outcome.other)
    return outcome.folder
