"""The directory and the writers of a run, for as long as it goes on: made, held and written to by the main process alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError, StorageError
from maxent_grpo.telemetry.tracking import TrackedRun
from maxent_grpo.telemetry.writers import build_logging
from maxent_grpo.training.peers import Peers
from maxent_grpo.training.resume import Resume, config_tree, describe_run, entered_directory, tracked_run
from maxent_grpo.training.types.logging import LoggingHandles, Writer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """Where a run is written down, and from where it goes on."""

    config: RootConfig
    """With the main process's ``run.dir``: `${now:...}` is another moment in each process."""
    handles: LoggingHandles
    """Without writers on all processes but the main one."""
    resume: Resume | None


@contextmanager
def recorded(
    config: RootConfig, overrides: Sequence[str], watchers: Sequence[Writer], peers: Peers
) -> Iterator[Record]:
    """Enter the run's directory, describe the run there, and tell its writers how it ends.

    Raises:
        ConfigError: another run lives or goes on there, or the processes were given different settings.
        CheckpointError: there is nothing to go on from, or it does not fit.
        StorageError: a file of the run cannot be written.
        PeerError: another process of the run failed within the block.
    """
    with ExitStack() as held:
        entered = held.enter_context(entered_directory(config)) if peers.place.is_main else None
        config, resume = _agreed(config, None if entered is None else entered[1], peers)
        run_dir = Path(config.run.dir)
        tracked = tracked_run(config, run_dir, overrides, resume)
        if peers.place.is_main:
            describe_run(config, run_dir, overrides)
        handles = build_logging(config.logging, run_dir, tracked)
        handles.writers.extend(watchers)
        try:
            with peers.closing(lambda error: _close_failed(error, handles, tracked)):
                yield Record(config, handles, resume)
        except BaseException as error:
            cause = peers.cause(error)
            _close_failed(cause, handles, tracked)
            if cause is error:
                raise
            raise cause from error
        handles.close()


def _agreed(config: RootConfig, resume: Resume | None, peers: Peers) -> tuple[RootConfig, Resume | None]:
    """The directory of the main process and the checkpoint that it found, on every process."""
    run_dir, settings, resume = peers.from_main((config.run.dir, config_tree(config), resume))
    config = replace(config, run=replace(config.run, dir=run_dir))
    own = config_tree(config)
    others = [f"{group}={own[group]} and not {settings[group]}" for group in own if own[group] != settings[group]]
    if others:
        raise ConfigError(
            f"the processes of the run were given different settings, here {'; '.join(others)}: start all of them with the "
            "same command line, environment and files"
        )
    return config, resume


def _close_failed(error: BaseException, handles: LoggingHandles, tracked: TrackedRun) -> None:
    """Write down why the run ends, and close its writers."""
    tracked.failed = True
    if isinstance(error, KeyboardInterrupt):
        logger.error("stopped: interrupted")
    else:
        logger.error("stopped: %s", error, exc_info=error)
    with suppress(StorageError):  # the first error says more
        handles.close()
