"""What W&B has of a run already: the run's identity, kept in its directory, and the steps in its offline files.

A `.wandb` file is a log in blocks of 32 KiB. A block holds chunks, each with a checksum, a length and a kind; a record is one
chunk, or a first, middle ones and a last. Its bytes are a protobuf message.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maxent_grpo.report.atomic import write_atomically

logger = logging.getLogger(__name__)

IDENTITY_FILE = "wandb.json"
FOLDER = "wandb"
"""Folder of a run directory in which W&B keeps its files."""
NOTHING = -1
"""Last logged step where nothing is logged; an evaluation before training stands at step 0."""

_MAGIC = b":W&B"
_FILE_HEADER, _BLOCK = 7, 32 * 1024
_CHUNK_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4


@dataclass(frozen=True, slots=True)
class WandbIdentity:
    """Which W&B run a run is, and up to which optimiser step its lines were there when it was last begun or ended."""

    id: str
    project: str
    entity: str | None
    name: str
    group: str | None
    logged: int = NOTHING


def kept_identity(run_dir: Path) -> WandbIdentity | None:
    """The identity that a run directory keeps; None where there is none, or where it cannot be read, which is told."""
    path = run_dir / IDENTITY_FILE
    if not path.is_file():
        return None
    try:
        return WandbIdentity(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        logger.warning("%s is damaged (%s): a new W&B run begins", path, error)
        return None


def keep_identity(run_dir: Path, identity: WandbIdentity) -> None:
    """Keep the identity in the run directory."""
    text = json.dumps(asdict(identity), indent=1) + "\n"
    write_atomically(run_dir / IDENTITY_FILE, lambda file: file.write(text.encode("utf-8")))


def last_step(run_dir: Path, run_id: str) -> int:
    """The last optimiser step whose line stands in W&B's files of a run directory; ``NOTHING`` where none does."""
    steps = [
        record.history.step.num
        for path in (run_dir / FOLDER).glob(f"*run-*-{run_id}*/run-{run_id}.wandb")
        for record in read_records(path)
        if record.HasField("history")
    ]
    return max(steps, default=NOTHING)


def read_records(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file, as protobuf messages; a torn one at its end is left out."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # made at import, so that types are not known before
    for content in _contents(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(content)
        yield record


def _contents(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_MAGIC):
        return
    parts: list[bytes] = []
    at = _FILE_HEADER
    while at + _CHUNK_HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _CHUNK_HEADER.size:  # the rest of a block that has no room for a header is empty
            at += left
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(data, at)
        at += _CHUNK_HEADER.size
        if kind == 0 or at + length > len(data):
            return
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data[at : at + length])
        at += length
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
