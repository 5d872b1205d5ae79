"""`python train.py` and `python -m maxent_grpo train`: one run, or a sweep of runs."""

from __future__ import annotations

import difflib
import os
import signal
import sys
import time
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from maxent_grpo.commands.dry import describe_run
from maxent_grpo.commands.help import help_text, version_text
from maxent_grpo.config.complain import complain
from maxent_grpo.config.compositions import CONFIG_NAME
from maxent_grpo.config.installed import program, train_command
from maxent_grpo.config.load import check, compose_checked, config_directory, load_config, warnings
from maxent_grpo.config.logging import Console
from maxent_grpo.config.open_names import with_open_names
from maxent_grpo.config.presets import PRESETS
from maxent_grpo.config.resumed import with_run_overrides
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.store import register
from maxent_grpo.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    GenerationError,
    MaxentGrpoError,
    NonFiniteError,
    PeerError,
    RewardError,
    StorageError,
    exit_status,
)
from maxent_grpo.launched import Place, leave_word_to_main, place
from maxent_grpo.sweeps.failure import SweepError

EXPECTED = (
    ConfigError,
    DataError,
    CheckpointError,
    RewardError,
    GenerationError,
    NonFiniteError,
    StorageError,
    PeerError,
)
"""Errors whose message is all that the user needs, the traceback being in run.log; any other one shows its own."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of any program that the signal ends."""

_started: float | None = None
"""When the command began, a time of ``time.monotonic``; jobs of a sweep share it."""
_has_folder = False
"""Whether Hydra has made the folder of the run and begun the job."""
_failures: list[MaxentGrpoError] = []
"""The expected error of a single run: raised through Hydra it would be headed by a line of Hydra's."""


def main(arguments: list[str] | None = None) -> None:
    """Read the command line (or the given arguments), pass the gates, run.

    Exits with status 2 when the configuration is wrong, 1 when the run could not be made for another expected reason, and 75,
    143 or 130 when it was saved and stopped before its end: out of time, by SIGTERM, by SIGINT.
    """
    global _started
    _started = time.monotonic()
    if arguments is not None:
        sys.argv = [program(), *arguments]  # where Hydra reads them
    here, has_begun, run = place(), False, None
    asked = set(sys.argv[1:])
    if asked & {"--help", "-h", "--version"}:
        if here.is_main:
            print(version_text() if "--version" in asked else help_text(train_command()))
        return
    # threads that spin while they wait take the cores from whatever else runs here; read when torch loads
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Hydra would cut the traceback of an error inside the job, and turn it into a SystemExit
    os.environ["HYDRA_FULL_ERROR"] = "1"
    args = get_args_parser().parse_args()
    flags = [text for text in sys.argv[1:] if text not in args.overrides]
    if args.cfg == "job" and not args.resolve:
        flags.append("--resolve")
    register()
    try:
        _refuse_other_roots(args.config_name, args.config_path)
        overrides, folder = with_open_names(with_run_overrides(args.overrides)), args.config_dir
        sys.argv[1:] = [*flags, *overrides]  # where Hydra reads them
        own_mode = any(text.startswith("hydra.mode=") for text in overrides)
        if here.size > 1 and (args.multirun or own_mode):
            raise ConfigError(_no_sweep_of(here))
        if args.multirun and not own_mode:
            # rich and the lock's library take a quarter of a second, which help and single runs need not wait for
            from maxent_grpo.commands.sweep import run_sweep

            run_sweep(overrides, hydra_main, config_dir=folder)
            return
        if not own_mode:
            _refuse_sweep_choices(overrides)
        if args.cfg or args.info:
            compose_checked(overrides, config_dir=folder)
        elif not own_mode:
            run = load_config(overrides, config_dir=folder).run
            if run.dry:
                describe_run(overrides, config_dir=folder)
                return
        if not here.is_main:
            # Hydra would make a folder of its own in each process
            if not (args.cfg or args.info):
                checked = load_config(overrides, config_dir=folder)
                has_begun = True
                _train(checked, [])
            return
        _run_in_folder(None if run is None else Path(run.dir))
    except (*EXPECTED, SweepError) as error:
        if not here.is_main and not has_begun:
            leave_word_to_main(_status(error))
        _tell(error, here)
        if here.size > 1:  # a launcher ends those that are left, and this one ends already, with a status of its own
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(_status(error))
    except KeyboardInterrupt:  # between jobs, or outside of training: inside it is a wish to stop, which saves
        if here.is_main or has_begun:
            complain(program(), "interrupted")
        sys.exit(INTERRUPTED)


def _run_in_folder(folder: Path | None) -> None:
    """One run by Hydra, which makes the folder before the job begins; what ends the job as expected is raised here."""
    global _has_folder
    _has_folder = False
    _failures.clear()
    try:
        hydra_main()
    except OSError as error:
        if _has_folder or folder is None or Path(str(error.filename)) not in (folder, *folder.parents):
            raise
        raise ConfigError(f"run.dir={folder}: cannot be made ({error.strerror}); name another folder") from error
    if _failures:
        raise _failures.pop()


@hydra.main(config_path=str(config_directory()), config_name=CONFIG_NAME, version_base="1.3")
def hydra_main(config: DictConfig) -> None:
    """One job: check what Hydra composed, write into the folder that Hydra made, train."""
    global _has_folder
    _has_folder = True
    runtime = HydraConfig.get()
    config.run.dir = runtime.runtime.output_dir
    try:
        checked = check(config)
        for sentence in warnings(checked):
            complain(program(), f"warning: {sentence}")
        if sys.stdout.isatty() and checked.logging.console is not Console.silent:
            # for some seconds there is nothing else to see
            print("loading torch and transformers", flush=True)
        _train(checked, list(runtime.overrides.task))
    except EXPECTED as error:
        if runtime.mode == RunMode.MULTIRUN:
            raise
        _failures.append(error)


def _train(checked: RootConfig, overrides: list[str]) -> None:
    """Run; exits with the status of a run that was stopped before its end."""
    from maxent_grpo.training.peers import leave
    from maxent_grpo.training.preview.run import start
    from maxent_grpo.training.stopping import EXIT_STATUS

    stopped = start(checked, overrides, started=_started).stopped
    if place().size > 1:
        leave()
    if stopped:
        # no error, so that it also ends a sweep, whose other jobs would only begin
        sys.exit(EXIT_STATUS[stopped])


def _tell(error: MaxentGrpoError, here: Place) -> None:
    """Print the message of an expected error, once for all processes of a run."""
    if isinstance(error, PeerError) and error.is_said:
        return
    name = "" if here.is_main or isinstance(error, PeerError) else f"{here.name}: "
    complain(program(), f"{name}{error}")


def _no_sweep_of(here: Place) -> str:
    """Why several processes cannot start a sweep together."""
    return (
        f"-m: this is one of {here.size} processes that were started together for one run, and each of them would start the sweep's "
        "jobs: start one run at a time, as in `for seed in 0 1; do torchrun --nproc_per_node 2 train.py seed=$seed; done`, or the "
        "sweep in one process, `python train.py -m ...`"
    )


def _refuse_sweep_choices(overrides: list[str]) -> None:
    """A launcher or sweeper does nothing for a single run.

    Raises:
        ConfigError: one is chosen.
    """
    chosen = [text for text in overrides if text.startswith(("hydra/launcher=", "hydra/sweeper="))]
    if chosen:
        raise ConfigError([f"{text}: only a sweep has one; add -m, or leave it out" for text in chosen])


def _refuse_other_roots(name: str | None, path: str | None) -> None:
    """Every run is composed from conf/config.yaml: a resume could not find another root again.

    Raises:
        ConfigError: Hydra's --config-name or --config-path asks for another one.
    """
    presets = sorted(file.stem for file in (config_directory() / PRESETS).glob("*.yaml"))
    problems: list[str] = []
    if name is not None and Path(name).stem != CONFIG_NAME:
        near = difflib.get_close_matches(name, presets, n=1)
        hint = f"did you mean {PRESETS}={near[0]}?" if near else f"a preset is chosen with {PRESETS}=NAME"
        problems.append(f"--config-name {name}: every run starts from conf/{CONFIG_NAME}.yaml; {hint}")
    if path is not None and Path(path).resolve() != config_directory():
        problems.append(
            f"--config-path {path}: every run starts from conf/{CONFIG_NAME}.yaml; presets of your own are found with "
            f"--config-dir DIR and chosen with {PRESETS}=NAME, the file being DIR/{PRESETS}/NAME.yaml"
        )
    if problems:
        raise ConfigError(problems)


def _status(error: MaxentGrpoError) -> int:
    if isinstance(error, PeerError):
        return error.status
    if isinstance(error, SweepError):
        return error.exit_status
    return exit_status(error)
