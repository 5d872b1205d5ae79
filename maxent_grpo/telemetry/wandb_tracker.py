"""A run at Weights & Biases: metrics against the optimiser step, completions, settings, the controller's state and the report."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

from maxent_grpo.config.installed import has_wandb_key
from maxent_grpo.config.logging import WandbConfig, WandbMode
from maxent_grpo.config.resumed import of_the_training
from maxent_grpo.config.secrets import redacted_tree
from maxent_grpo.report.read import PAGE_FILE, PICTURE_FILE, read_versions, sweep_of
from maxent_grpo.telemetry.completion_table import table_columns, table_rows
from maxent_grpo.telemetry.tracking import TrackedRun, Tracker, recorded_steps
from maxent_grpo.telemetry.wandb_files import (
    FOLDER,
    NOTHING,
    WandbIdentity,
    keep_identity,
    kept_identity,
    last_step,
)

STEP = "step"
"""The optimiser step, against which every metric is drawn."""
TABLE = "completions"
MOST_PARTS = 100
"""Logged steps in one table: as many parts as W&B shows of a table that grows; then another table begins."""
LONGEST_TAG = 64
LONGEST_NAME = 128
"""Characters of a run's or a group's name that W&B's server takes; a sweep's folders may have longer ones."""
SECONDS_TO_BEGIN, SECONDS_TO_END = 30.0, 120.0
"""How long W&B's server may take before the run goes on without it, and before what is left stays on the disk [s]."""


class WandbTracker(Tracker):
    """Logs to one W&B run, which a resumed run continues.

    W&B's own step is the optimiser step, and what it has of a step is never logged again: a run that is resumed before the
    last logged step is silent until it is beyond that, and what the record holds beyond W&B's last step is logged at the
    start. Lines therefore come in order, each once, however the run was ended and continued.
    """

    service = "W&B"

    def __init__(self, config: WandbConfig, run: TrackedRun, say: Callable[[str], None]) -> None:
        super().__init__(run)
        self._config = replace(
            config,
            name=redacted_tree(config.name),
            group=redacted_tree(config.group),
            tags=redacted_tree(config.tags),
        )
        self._say = say
        self._wandb: Any = None
        self._run: Any = None
        self._logged = self._last = NOTHING
        self._defined: set[str] = set()
        self._table: Any = None
        self._table_key = TABLE

    def start(self, total_steps: int, first_step: int) -> None:
        """Begin or continue the W&B run, and log what it lacks of the record."""
        if os.environ.get("WANDB_MODE") == "disabled" and self._config.mode is WandbMode.auto:
            self._say("W&B: switched off by WANDB_MODE")
            return
        self.is_working = True
        self.attempt(lambda: self._begin(first_step))

    def _begin(self, first_step: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no traceback of this program goes to anyone
        # wandb takes half a second to load, which a run without it need not wait for
        import wandb

        self._wandb = wandb
        identity = _identity(self._config, self.run) or _new_identity(self._config, self.run)
        mode = chosen_mode(self._config.mode)
        try:
            self._run = self._init(identity, mode)
        except Exception as error:
            if mode is not WandbMode.online:
                raise
            self._say(f"W&B cannot be reached: the run is kept offline ({type(error).__name__}: {error})")
            mode = WandbMode.offline
            if wandb.run is None:
                wandb.teardown()  # what was begun holds the id
            self._run = self._init(identity, mode)
        self._logged = identity.logged
        if mode is WandbMode.online:
            self._logged = self._run.starting_step - 1 if self._run.resumed else NOTHING
        keep_identity(self.run.run_dir, replace(identity, logged=self._logged))
        where = self._run.url if mode is WandbMode.online else f"offline; `wandb sync {self._folder()}` sends it"
        self._say(f"W&B: run {identity.id}, {where}")
        if self._logged > first_step:
            self._say(f"W&B: steps {first_step + 1} to {self._logged} are there from before and are not logged again")
        self._run.define_metric(STEP, hidden=True)
        self._table_key = TABLE if self._logged == NOTHING else f"{TABLE}_from_{self._logged + 1}"
        for recorded in recorded_steps(self.run.run_dir, self._logged, first_step):
            self._log_metrics(recorded.step, recorded.metrics)
            self._log_completions(recorded.step, recorded.completions)

    def _init(self, identity: WandbIdentity, mode: WandbMode) -> Any:
        settings = self._wandb.Settings(
            silent=True, console="off", symlink=False, init_timeout=SECONDS_TO_BEGIN, finish_timeout=SECONDS_TO_END,
            # the command line, the repository's address and the environment may hold secrets; settings and overrides are
            # logged without them
            disable_git=True, disable_code=True, x_disable_meta=True, x_save_requirements=False,
        )  # fmt: skip
        return self._wandb.init(
            project=identity.project, entity=identity.entity, id=identity.id, name=identity.name, group=identity.group,
            job_type="train", tags=tags(self._config.tags, self.run.overrides), resume="allow", mode=mode.value,
            dir=str(self.run.run_dir.resolve()), reinit="create_new", save_code=False, settings=settings,
            config={
                **self.run.config,
                "options": dict(self.run.options),
                "overrides": list(self.run.overrides),
                "versions": read_versions(self.run.run_dir),
            },
        )  # fmt: skip

    def _folder(self) -> Path:
        return Path(self._run.sync_dir)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line of W&B's history."""
        if step > self._logged:
            self.attempt(lambda: self._log_metrics(step, metrics))

    def _log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name in sorted(metrics.keys() - self._defined):
            goal = self.run.goal(name)
            self._run.define_metric(name, step_metric=STEP, summary=f"{goal},last" if goal else None)
            self._defined.add(name)
        self._run.log({STEP: step, **metrics}, step=step)
        self._last = step

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """More rows of a table that grows, so that those of every step stay in sight."""
        if step > self._logged:
            self.attempt(lambda: self._log_completions(step, records))

    def _log_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        if not records:
            return
        if self._table is None:
            self._table = self._wandb.Table(columns=table_columns(records), log_mode="INCREMENTAL")
            self._num_parts = 0
        elif self._num_parts == MOST_PARTS:
            self._table_key = f"{TABLE}_from_{step}"
            self._table = self._wandb.Table(columns=table_columns(records), log_mode="INCREMENTAL")
            self._num_parts = 0
        for row in table_rows(step, records, self._table.columns):
            self._table.add_data(*row)
        self._num_parts += 1
        with self._staging():
            self._run.log({STEP: step, self._table_key: self._table}, step=step)

    def flush(self) -> None:
        """Bring the controller's state up to date; W&B's own process writes the lines."""
        self.attempt(self._summarise)

    def _summarise(self) -> None:
        if self.run.controller_state.is_file():
            kept = json.loads(self.run.controller_state.read_text(encoding="utf-8"))
            self._run.summary["controller_state"] = {"step": kept["step"], "state": kept["state"]}

    def close(self) -> None:
        """Log the report and end the W&B run; closing again does nothing."""
        self.attempt(self._summarise)
        self.attempt(self._log_report)
        run, self._run = self._run, None
        if run is None:
            return
        if self.is_working:
            self.attempt(lambda: self._end(run))
        else:
            # what went wrong is told already, and may go wrong again
            with suppress(Exception):
                run.finish(exit_code=int(self.run.failed))
        self.is_working = False

    def _end(self, run: Any) -> None:
        run.finish(exit_code=int(self.run.failed))
        # W&B's own process may still be writing when the next part of the run begins
        kept = kept_identity(self.run.run_dir)
        if kept is not None:
            keep_identity(self.run.run_dir, replace(kept, logged=max(self._logged, self._last)))

    def _log_report(self) -> None:
        files = [path for name in (PAGE_FILE, PICTURE_FILE) if (path := self.run.run_dir / name).is_file()]
        if not files:
            return
        with self._staging():
            artifact = self._wandb.Artifact(f"report-{self._run.id}", type="report")
            for path in files:
                artifact.add_file(str(path))
            self._run.log_artifact(artifact)

    @contextmanager
    def _staging(self) -> Iterator[None]:
        """Files on their way stay in the run directory, where a later `wandb sync` finds them, and not in the user's home."""
        before = os.environ.get("WANDB_DATA_DIR")
        os.environ["WANDB_DATA_DIR"] = str((self.run.run_dir / FOLDER / "data").resolve())
        try:
            yield
        finally:
            if before is None:
                del os.environ["WANDB_DATA_DIR"]
            else:
                os.environ["WANDB_DATA_DIR"] = before


def chosen_mode(mode: WandbMode) -> WandbMode:
    """`auto` is what WANDB_MODE says, but never `online` without a key, at which W&B would ask for one."""
    if mode is not WandbMode.auto:
        return mode
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun") or not has_wandb_key():
        return WandbMode.offline
    return WandbMode.online


def tags(own: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The user's tags, then the overrides that say what is trained; W&B takes none of more than 64 characters."""
    found = dict.fromkeys([*own, *of_the_training(overrides)])
    return [tag for tag in found if 0 < len(tag) <= LONGEST_TAG]


def _identity(config: WandbConfig, run: TrackedRun) -> WandbIdentity | None:
    """That of the run which is continued, with the last step that W&B's files hold; None for a new W&B run."""
    if run.resumed_from is None or not config.continue_run:
        return None
    kept = kept_identity(run.resumed_from)
    if kept is None or (kept.project, kept.entity) != (config.project, config.entity):
        return None
    logged = max(kept.logged, last_step(run.resumed_from, kept.id))
    return replace(kept, name=config.name or kept.name, group=config.group or kept.group, logged=logged)


def _new_identity(config: WandbConfig, run: TrackedRun) -> WandbIdentity:
    run_dir = run.run_dir.resolve()
    sweep = sweep_of(run_dir)
    name = (
        f"{run.options['scoring']}, seed {run.config['seed']}, {run_dir.name}"
        if sweep is None
        else str(run_dir.relative_to(sweep))
    )
    run_id = "".join(secrets.choice(ascii_lowercase + digits) for _ in range(8))
    group = config.group or (None if sweep is None else sweep.name[:LONGEST_NAME])
    return WandbIdentity(run_id, config.project, config.entity, config.name or name[:LONGEST_NAME], group)
