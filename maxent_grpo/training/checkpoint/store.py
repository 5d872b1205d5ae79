"""The checkpoints of a run directory: atomic writing, rotation, and finding the one to resume from.

``<run>/checkpoints/step_N/`` appears complete or not at all; the text files ``latest`` and ``best`` name complete folders at
every moment, also while one of them is replaced. Names that start with a dot are work in progress. No torch here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.manifest import MANIFEST, fsync, read_manifest, verify, write_manifest

CHECKPOINTS = "checkpoints"
LATEST = "latest"
BEST = "best"
_TEMPORARY = ".tmp-"
_TWIN = ".replacing-"
_FOLDER_NAME = re.compile(r"step_\d+|\.replacing-step_\d+-\d+")

logger = logging.getLogger(__name__)


class CheckpointStore:
    """Writer of one run's checkpoints; a run directory has one writer at a time, the main process; the others only look.

    Opening it as the writer removes what an interrupted save left behind: ``num_leftovers`` folders and files, logged.
    """

    def __init__(self, run_dir: Path, keep_last: int, *, is_writer: bool = True) -> None:
        if keep_last < 0:
            raise ValueError(f"keep_last={keep_last} must be 0 (keep all) or positive")
        self.directory = Path(run_dir) / CHECKPOINTS
        self.keep_last = keep_last
        self.is_writer = is_writer
        self.num_leftovers = self._remove_leftovers() if is_writer else 0

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint folder, or None before the first save."""
        return _named_by(self.directory, LATEST)

    @property
    def best(self) -> Path | None:
        """The best checkpoint folder, or None when none was saved as best."""
        return _named_by(self.directory, BEST)

    def save(self, step: int, write: Callable[[Path], None], *, is_best: bool = False) -> Path:
        """Save a checkpoint: ``write`` fills the empty folder it is given; returns the committed ``step_N``.

        An existing ``step_N`` is replaced. Older checkpoints are deleted only after the new one is durable and named by
        ``latest``: the ``keep_last`` most recently saved stay, and the best. Whatever ``write`` raises is passed on, and then
        nothing has changed.
        """
        if not self.is_writer:
            raise RuntimeError("only the main process of a run writes its checkpoints")
        sequence = 1 + max((_sequence(folder) for folder in _folders(self.directory)), default=0)
        working = self.directory / f"{_TEMPORARY}step_{step}-{sequence}"
        working.mkdir(parents=True)
        try:
            write(working)
            write_manifest(working, step, sequence)
        except BaseException:
            shutil.rmtree(working)
            raise
        final = self.directory / f"step_{step}"
        if final.exists():
            self._replace(working, final, sequence)
        else:
            os.rename(working, final)
        # The new entry must be on the disk before a pointer may name it.
        fsync(self.directory)
        self._point(LATEST, final.name)
        if is_best:
            self._point(BEST, final.name)
        self._rotate()
        return final

    def _replace(self, working: Path, final: Path, sequence: int) -> None:
        """Exchange a folder for a new one; pointers at it name a hard-linked twin of the new one in between.

        No portable call exchanges two folders, and without the twin a pointer would name nothing for a moment.
        """
        pointers = [pointer for pointer in (LATEST, BEST) if _named_by(self.directory, pointer) == final]
        twin = self.directory / f"{_TWIN}{final.name}-{sequence}"
        if pointers:
            unfinished = self.directory / f"{_TEMPORARY}{twin.name.removeprefix('.')}"
            shutil.copytree(working, unfinished, copy_function=_link_or_copy)
            for path in (*unfinished.rglob("*"), unfinished):
                fsync(path)
            os.rename(unfinished, twin)
            fsync(self.directory)
        for pointer in pointers:
            self._point(pointer, twin.name)
        self._delete(final)
        os.rename(working, final)
        fsync(self.directory)
        for pointer in pointers:
            self._point(pointer, final.name)

    def _rotate(self) -> None:
        """Delete checkpoints beyond the newest ``keep_last``, unless a pointer names them, and twins no longer needed.

        Newest is by order of saving, not by step: after a resume from an earlier step the later folders are the old ones.
        """
        named = {self.latest, self.best}
        complete = [folder for folder in _folders(self.directory) if _sequence(folder)]
        twins = [folder for folder in complete if folder.name.startswith(_TWIN)]
        steps = sorted((folder for folder in complete if folder not in twins), key=_sequence, reverse=True)
        surplus = steps[self.keep_last :] if self.keep_last else []
        for folder in (*twins, *surplus):
            if folder not in named:
                self._delete(folder)

    def _delete(self, folder: Path) -> None:
        # Renamed first, so that an interrupted deletion leaves no half folder under a name that counts.
        doomed = folder.with_name(f"{_TEMPORARY}deleted-{folder.name.removeprefix('.')}")
        os.rename(folder, doomed)
        shutil.rmtree(doomed)

    def _point(self, pointer: str, name: str) -> None:
        working = self.directory / f"{_TEMPORARY}{pointer}"
        working.write_text(f"{name}\n", encoding="ascii")
        fsync(working)
        os.replace(working, self.directory / pointer)
        fsync(self.directory)

    def _remove_leftovers(self) -> int:
        if not self.directory.is_dir():
            return 0
        named = {self.latest, self.best}
        leftovers = [
            path
            for path in sorted(self.directory.iterdir())
            if path.name.startswith(_TEMPORARY) or (path.name.startswith(_TWIN) and path not in named)
        ]
        for path in leftovers:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if leftovers:
            names = ", ".join(path.name for path in leftovers)
            logger.warning("removed %d leftovers of an interrupted save: %s", len(leftovers), names)
        return len(leftovers)


def find_checkpoint(path: str | Path) -> Path:
    """The complete, verified checkpoint folder that a resume path means.

    The path is a run directory (its ``latest``; if that is missing or damaged, the most recently saved complete one, which
    is logged), a run's ``checkpoints`` folder, its ``latest`` or ``best`` file, or a checkpoint folder.

    Raises:
        CheckpointError: the path does not exist, holds no checkpoint, or the only checkpoints are half-written or damaged.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; name a run directory or one of its {CHECKPOINTS}/step_N folders")
    if path.is_file() and path.name in (LATEST, BEST):
        return _follow(path)
    if (path / MANIFEST).is_file() or path.name.startswith(_TEMPORARY) or _FOLDER_NAME.fullmatch(path.name):
        verify(path)
        return path
    directory = path if path.name == CHECKPOINTS else path / CHECKPOINTS
    if not directory.is_dir() or not (_folders(directory) or (directory / LATEST).exists()):
        raise CheckpointError(
            f"{path} holds no checkpoint; name a run directory that has saved one, or a {CHECKPOINTS}/step_N folder"
        )
    return _latest_complete(directory)


def _follow(pointer: Path) -> Path:
    folder = _named_by(pointer.parent, pointer.name)
    if folder is None or not folder.is_dir():
        raise CheckpointError(f"{pointer} names no checkpoint folder; name a {CHECKPOINTS}/step_N folder instead")
    verify(folder)
    return folder


def _latest_complete(directory: Path) -> Path:
    pointer = directory / LATEST
    try:
        if pointer.exists():
            return _follow(pointer)
        problem = CheckpointError(f"{pointer} is missing")
    except CheckpointError as error:
        problem = error
    for folder in sorted(_folders(directory), key=_sequence, reverse=True):
        try:
            verify(folder)
        except CheckpointError as error:
            logger.warning("passed over a checkpoint: %s", error)
            continue
        logger.warning("%s; using %s, the newest complete checkpoint", problem, folder)
        return folder
    raise CheckpointError(f"{directory} holds no complete checkpoint: {problem}") from problem


def _named_by(directory: Path, pointer: str) -> Path | None:
    """The folder a pointer file names, whether or not it exists; None without a file or with anything else in it."""
    try:
        name = (directory / pointer).read_bytes().decode("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return directory / name if _FOLDER_NAME.fullmatch(name) else None


def _folders(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [path for path in sorted(directory.iterdir()) if path.is_dir() and _FOLDER_NAME.fullmatch(path.name)]


def _sequence(folder: Path) -> int:
    """Position in the order of saving, from 1; 0 for a folder whose manifest cannot be read."""
    try:
        return read_manifest(folder).sequence
    except CheckpointError:
        return 0


def _link_or_copy(source: str, target: str) -> None:
    # Some file systems have no hard links; a copy is as good, only slower.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
