"""The settings of a run that is continued: what its own command line said, with the new one on top.

A run keeps its overrides in ``overrides.json``. Resuming takes them first, so that
`python train.py checkpoint.resume_from=<run>` continues the run as it was and anything else on the line changes it; with
`checkpoint.resume_from=latest` that run is the one in `run.dir`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from maxent_grpo.config.checkpoint import LATEST
from maxent_grpo.config.declared import groups, options
from maxent_grpo.config.own_modules import unknown_options
from maxent_grpo.config.preflight import CHECKPOINTS
from maxent_grpo.config.presets import PRESETS
from maxent_grpo.config.secrets import lost_secrets, redacted
from maxent_grpo.errors import ConfigError
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import is_run, read_modules

OVERRIDES_FILE = "overrides.json"
RESUME = "checkpoint.resume_from"
_OF_THE_MACHINE = re.compile(
    r"[+~]*(?:(?:run|logging|hydra|controller\.paths)[./=]"
    r"|checkpoint\.(?:final_model|resume_from|keep_last|every_n_steps)=|[\w.]*\.cache_dir=)"
)
RUN_DIR = "run.dir"
OF_ONE_RUN = (RUN_DIR, RESUME, "hydra", "controller.paths")
"""Settings that belong to one run only and are not taken over; a prefix stands for all below it."""


def with_run_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides of the run named by `checkpoint.resume_from`, if any, followed by these.

    An override of the run is left out when a new one sets the same key; one that added a key (`+key=...`) stays before a new
    one that only changes it. Without that setting, or where the path holds no
    record of overrides, the overrides come back as they are: what is wrong with the path is for the gates to say.

    Raises:
        ConfigError: the run's record of overrides is damaged, a secret in it has to be said again, it chooses an option that is
            not known here, or `latest` is asked for in a folder that is new each time.
    """
    path = _value(overrides, RESUME)
    if path == LATEST:
        path = _own_folder(overrides)
    found = None if path is None else _record(Path(path))
    if found is None:
        return list(overrides)
    run_dir, record = found
    kept = [text for text in record if not _is_of_one_run(_key(text)) and not _is_replaced(text, overrides)]
    lost = lost_secrets((_key(text), text.partition("=")[2]) for text in kept)
    if lost:
        raise ConfigError(lost)
    unknown = [text for text in kept if _is_unknown_option(text)]
    if unknown:
        modules = read_modules(run_dir) if is_run(run_dir) else []
        raise ConfigError(f"{RESUME}={path}: {unknown_options(run_dir, unknown, modules)}")
    return [*kept, *overrides]


def write_overrides(run_dir: Path, overrides: Sequence[str]) -> None:
    """Keep a run's overrides in its directory, without secrets."""
    text = json.dumps(list(map(redacted, overrides)), indent=1) + "\n"
    write_atomically(run_dir / OVERRIDES_FILE, lambda file: file.write(text.encode("utf-8")))


def of_the_training(overrides: Sequence[str]) -> list[str]:
    """Those overrides that say what is trained, without those that say where and how it runs and is recorded."""
    return [text for text in overrides if not _OF_THE_MACHINE.match(text)]


def _own_folder(overrides: Sequence[str]) -> str | None:
    """The run directory that the overrides name; None where Hydra or a preset may give it."""
    given = _value(overrides, RUN_DIR)
    elsewhere = ("hydra.", f"{PRESETS}")
    if given is None and not any(_key(text).startswith(elsewhere) for text in overrides):
        raise ConfigError(
            f"{RESUME}={LATEST} goes on with the run in {RUN_DIR}, which is a new folder each time unless it is given: write "
            f"{RUN_DIR}=outputs/NAME, or hydra.sweep.dir=outputs/NAME for the jobs of a sweep (-m)"
        )
    return given


def _value(overrides: Sequence[str], setting: str) -> str | None:
    """What the last of the overrides makes of a setting; None for null, a sweep, and where none sets it."""
    named = [text for text in overrides if _key(text) == setting]
    if not named:
        return None
    try:
        override = OverridesParser.create().parse_override(named[-1])
        value: Any = None if override.is_sweep_override() else override.value()
    except HydraException:
        return None
    return None if value is None else str(value)


def _record(path: Path) -> tuple[Path, list[str]] | None:
    """The directory of the run that ``path`` is, or lies inside of as a checkpoint, and the overrides that it kept."""
    inside = [parent.parent for parent in (path, *path.parents) if parent.name == CHECKPOINTS]
    run_dir = inside[0] if inside else path
    file = run_dir / OVERRIDES_FILE
    if not file.is_file():
        return None
    try:
        record: object = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        record = None
    if not isinstance(record, list) or not all(isinstance(text, str) for text in cast(list[object], record)):
        raise ConfigError(
            f"{RESUME}={path}: {file} is not a list of overrides, so the run's settings are not known; restore the file, or "
            "delete it and write the run's settings on the command line"
        )
    return run_dir, cast(list[str], record)


def _is_unknown_option(override: str) -> bool:
    """Whether a recorded override chooses an option of a group that this process does not have."""
    group = _key(override)
    chosen = _value([override], group) if group in groups() else None
    return chosen is not None and re.fullmatch(r"\w+", chosen) is not None and chosen not in options(group)


def _is_replaced(recorded: str, overrides: Sequence[str]) -> bool:
    new = [text for text in overrides if _key(text) == _key(recorded)]
    adds, only_changes = recorded.startswith("+"), not any(text.startswith(("+", "~")) for text in new)
    return bool(new) and not (adds and only_changes)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _is_of_one_run(key: str) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in OF_ONE_RUN)
