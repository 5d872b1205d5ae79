"""What W&B's offline files of a run hold, read back."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maxent_grpo.config.logging import Console, LoggingConfig, TrackerName, WandbConfig, WandbMode
from maxent_grpo.telemetry.tracking import TrackedRun
from maxent_grpo.telemetry.wandb_files import read_records
from maxent_grpo.telemetry.writers import build_logging

OFFLINE = WandbConfig(mode=WandbMode.offline)


@dataclass
class OfflinePart:
    """One `.wandb` file: what one process logged."""

    folder: Path
    id: str = ""
    project: str = ""
    entity: str = ""
    name: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    defined: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    """Metric to the one that it is drawn against, and the summaries asked for."""
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[tuple[str, dict[str, Path]]] = field(default_factory=list)
    """Kind of each artifact, and the files in it."""
    kinds: set[str] = field(default_factory=set)
    """Kinds of records that the file holds."""
    exit_code: int | None = None
    started: int = 0
    """When it began [ns]."""

    @property
    def steps(self) -> list[int]:
        """The optimiser steps of its lines, in order."""
        return [line["step"] for line in self.history]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Every row of every table, by the key it was logged under."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self.history:
            for key, value in line.items():
                if isinstance(value, dict) and value.get("_type", "").endswith("table-file"):
                    table = json.loads((self.folder / "files" / value["path"]).read_text())
                    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
                    found.setdefault(key, []).extend(rows)
        return found


def offline_parts(run_dir: Path, folders: str = "*run-*", *, torn: int = 0) -> list[OfflinePart]:
    """Everything that was logged from a run directory, in order, once W&B has written all of it but for ``torn`` files."""
    patience = time.monotonic() + 20
    while True:
        parts = sorted(map(_part, (run_dir / "wandb").glob(f"{folders}/*.wandb")), key=lambda part: part.started)
        if sum(part.exit_code is None for part in parts) <= torn:
            return parts
        assert time.monotonic() < patience, "W&B did not end its file"
        time.sleep(0.02)


def _part(path: Path) -> OfflinePart:
    part = OfflinePart(path.parent)
    for record in read_records(path):
        kind = record.WhichOneof("record_type")
        content = getattr(record, kind)
        part.kinds.add(kind)
        if kind == "run":
            part.project, part.entity = content.project, content.entity
            part.id, part.name, part.group = content.run_id, content.display_name, content.run_group
            part.tags, part.started = list(content.tags), content.start_time.ToNanoseconds()
            part.config |= _values(content.config.update)
        elif kind == "metric":
            wanted = {name for name in ("min", "max", "last") if getattr(content.summary, name)}
            part.defined[content.name] = (content.step_metric, wanted)
        elif kind == "history":
            part.history.append(_values(content.item))
        elif kind == "summary":
            part.summary |= _values(content.update)
        elif kind == "artifact":
            files = {entry.path: Path(entry.local_path) for entry in content.manifest.contents}
            part.artifacts.append((content.type, files))
        elif kind == "exit":
            part.exit_code = content.exit_code
    return part


def _values(items: Any) -> dict[str, Any]:
    """Key to value; what has several names to its key stands in a dictionary."""
    found: dict[str, Any] = {}
    for item in items:
        *outer, name = item.nested_key or [item.key]
        inside = found
        for key in outer:
            inside = inside.setdefault(key, {})
        inside[name] = json.loads(item.value_json)
    return found


def tracked(run_dir: Path, resumed_from: Path | None = None) -> TrackedRun:
    """What trackers are told of a run that is not made."""
    run_dir.mkdir(parents=True, exist_ok=True)
    options, config = {"scoring": "grpo"}, {"seed": 3}
    return TrackedRun(run_dir, config, options, ["scoring=grpo"], run_dir / "state.json", lambda _: None, resumed_from)


def write_steps(run: TrackedRun, first: int, last: int, wandb: WandbConfig = OFFLINE) -> None:
    """Log steps ``first`` to ``last`` with the run's own files and W&B, as a run does that begins before ``first``."""
    config = LoggingConfig(
        console=Console.silent, report=False, completions_every=1, trackers=[TrackerName.wandb], wandb=wandb
    )
    handles = build_logging(config, run.run_dir, run)
    handles.start(last, first - 1)
    for step in range(first, last + 1):
        handles.write_metrics(step, {"reward/mean": step / 8})
        handles.write_completions(step, [{"row_id": "a", "completion": str(step), "rewards": {"task": 1.0}}])
    handles.close()
