"""What makes a checkpoint folder complete: ``manifest.json`` with the size and SHA-256 of every file in it.

The manifest is written last and carries its own checksum, so that any missing, cut or altered byte of the folder is found.
This module and the store import no torch: a resume path can be checked before it loads.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from maxent_grpo.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1
_ADVICE = "resume from another checkpoint of the run"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size [bytes] and SHA-256 of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a checkpoint folder: its optimiser step, when it was saved among its neighbours, and its files."""

    step: int
    sequence: int
    files: dict[str, FileRecord]


def write_manifest(folder: Path, step: int, sequence: int) -> Manifest:
    """Record every file of the folder in its manifest and make the whole folder durable."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = Manifest(step, sequence, {path.relative_to(folder).as_posix(): _record(path) for path in paths})
    (folder / MANIFEST).write_text(_render(manifest), encoding="utf-8")
    for path in (*folder.rglob("*"), folder):
        fsync(path)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder, without looking at the other files.

    Raises:
        CheckpointError: there is none, or it is cut or altered.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {folder} is half-written: {MANIFEST} is missing; {_ADVICE}") from error
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} cannot be read: {error}") from error
    try:
        content = json.loads(text)["content"]
        files = {name: FileRecord(**record) for name, record in content["files"].items()}
        manifest = Manifest(content["step"], content["sequence"], files)
        intact = content["format"] == FORMAT and _render(manifest).encode() == text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {MANIFEST} was cut, altered or written by another version; {_ADVICE}"
        )
    return manifest


def verify(folder: Path) -> Manifest:
    """Check every file of a checkpoint folder against its manifest; reads the whole folder.

    Raises:
        CheckpointError: the manifest or a file is missing, shorter, longer, or has another checksum; names the file.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"checkpoint {folder} is damaged: {name} is missing; {_ADVICE}")
        size = path.stat().st_size
        if size != expected.size:
            raise CheckpointError(
                f"checkpoint {folder} is damaged: {name} has {size} bytes, its manifest says {expected.size}; {_ADVICE}"
            )
        if _sha256(path) != expected.sha256:
            raise CheckpointError(
                f"checkpoint {folder} is damaged: {name} has another checksum than its manifest says; {_ADVICE}"
            )
    return manifest


def fsync(path: Path) -> None:
    """Wait until a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _render(manifest: Manifest) -> str:
    # Reading compares with this exact text, so that not even white space can change unnoticed.
    content = {"format": FORMAT, **asdict(manifest)}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({"content": content, "sha256": digest}, indent=1, sort_keys=True) + "\n"


def _record(path: Path) -> FileRecord:
    return FileRecord(path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
