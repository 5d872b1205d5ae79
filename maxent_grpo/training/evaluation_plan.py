"""Which models an evaluation asks, with which settings and weights, and where it writes. Reads files only; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config.compose import compose_config
from maxent_grpo.config.evaluated import BEST, FINAL, LAST, START, Request, Split, split_checkpoint
from maxent_grpo.config.load import check
from maxent_grpo.config.preflight import run_marks
from maxent_grpo.config.recorded import apply_overrides, recorded_node
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import CheckpointError, ConfigError
from maxent_grpo.report.read import CONFIG_FILE, EVALUATION_FILE, is_run, read_metrics, runs_in
from maxent_grpo.training.checkpoint.manifest import MANIFEST, read_manifest, verify
from maxent_grpo.training.checkpoint.store import CHECKPOINTS, find_checkpoint

DEFAULT_FOLDER = Path("outputs/evaluations")
MODEL_FILE = "config.json"
"""What makes a folder one of transformers."""
FINAL_FOLDER = "model"
"""Where a run leaves its final model."""
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
OF_A_RUN = {
    "checkpoint.resume_from": None,
    "checkpoint.best_metric": None,
    "checkpoint.early_stop_patience": None,
    "controller.paths.resume_from": None,
    "controller.paths.state_path": None,
    "evaluation.enabled": True,
    "run.dry": False,
}
"""Settings of a run that an evaluation of it has no use for, and that would be looked at."""
OF_THE_MODEL = ("model", "run", "logging", "checkpoint", "controller", "optimization")
"""Groups that stay a model's own when it is compared with another; what is asked, and how, is the first one's."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One model to evaluate."""

    label: str
    source: str
    """What the command line named."""
    config: RootConfig
    checkpoint: Path | None
    """The checkpoint whose weights it has; None for those that the model starts with."""
    step: int | None
    """Optimiser step of the weights; None for a model that is no run's."""
    final_model: Path | None = None
    """The folder of the model that a run wrote when it ended, whose weights it has instead."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Everything that is known before a model is loaded."""

    models: list[Subject]
    against: list[Subject]
    split: Split
    limit: int | None
    name: str
    output: Path

    @property
    def subjects(self) -> list[Subject]:
        """Every model, those compared with last."""
        return [*self.models, *self.against]


@dataclass(frozen=True, slots=True)
class _Found:
    """A model that the command line names: its settings, before they are checked, and weights."""

    name: str
    source: str
    node: DictConfig
    checkpoint: Path | None = None
    step: int | None = None
    final_model: Path | None = None


def plan_evaluation(request: Request) -> EvaluationPlan:
    """Find the models and settle the settings; those of the first model are the base for all.

    Raises:
        ConfigError: a setting is wrong, or nothing of a name can be found.
        DataError: a run's record of its settings is damaged.
        CheckpointError: a checkpoint is missing or damaged.
    """
    sources = [list(_expanded(named)) for named in (request.runs, request.against)]
    if not sources[0]:
        found = [[_of_options(request)], [_find(source, request) for source in sources[1]]]
    else:
        found = [[_find(source, request) for source in part] for part in sources]
    every = [*found[0], *found[1]]
    output = _output(request, every[0].name)
    base = every[0].node
    for each in every:
        for group in base:
            if group not in OF_THE_MODEL:
                each.node[str(group)] = base[str(group)]
        for path, value in {**OF_A_RUN, "run.dir": str(output)}.items():
            OmegaConf.update(each.node, path, value, merge=False)
    configs = [check(each.node) for each in every]
    labels = _labels(every)
    subjects = [
        Subject(label, each.source, config, each.checkpoint, each.step, each.final_model)
        for label, each, config in zip(labels, every, configs, strict=True)
    ]
    return EvaluationPlan(
        subjects[: len(found[0])], subjects[len(found[0]) :], request.split, request.limit, every[0].name, output
    )


def _expanded(sources: Sequence[str]) -> Iterator[str]:
    """The sources with the folder of a sweep replaced by its runs, which are named by numbers in order."""
    for source in sources:
        folder, ending = split_checkpoint(source, "")
        runs = runs_in(Path(folder)) if Path(folder).is_dir() else []
        if is_run(Path(folder)) or not runs:
            yield source
            continue
        yield from (f"{path}@{ending}" if ending else str(path) for path in runs)


def _find(source: str, request: Request) -> _Found:
    name, ending = split_checkpoint(source, request.checkpoint)
    path = Path(name)
    if not path.exists():
        name, path = source, Path(source)
    if (path / MANIFEST).is_file() and path.parent.name == CHECKPOINTS:
        return _of_run(path.parent.parent, source, path, request)
    if is_run(path):
        final = path / FINAL_FOLDER
        if ending == FINAL or (ending == LAST and not _has_checkpoint(path) and (final / MODEL_FILE).is_file()):
            return _of_run(path, source, None, request, final)
        return _of_run(path, source, _checkpoint(path, ending), request)
    if (path / MODEL_FILE).is_file():
        return _of_model(path.resolve().name, source, str(path), request)
    if path.exists():
        raise ConfigError(
            f"run={source}: is neither a run (it has no {CONFIG_FILE}), nor a checkpoint ({MANIFEST}), nor a transformers folder "
            f"({MODEL_FILE})"
        )
    if HUB_ID.fullmatch(name) is None or Path(path.parts[0]).is_dir():
        raise ConfigError(f"run={source}: does not exist; name a run directory, a transformers folder or a hub id")
    return _of_model(name, source, name, request)


def _has_checkpoint(run_dir: Path) -> bool:
    return any((run_dir / CHECKPOINTS).glob(f"step_*/{MANIFEST}"))


def _of_run(
    run_dir: Path, source: str, checkpoint: Path | None, request: Request, final_model: Path | None = None
) -> _Found:
    if final_model is not None and not (final_model / MODEL_FILE).is_file():
        raise CheckpointError(f"{run_dir} has no final model: {final_model} is not a transformers folder")
    node = recorded_node(run_dir)
    apply_overrides(node, request.overrides)
    step = 0
    if final_model is not None:
        step = max((row["step"] for row in read_metrics(run_dir)), default=0)
    elif checkpoint is not None:
        verify(checkpoint)
        step = read_manifest(checkpoint).step
    return _Found(_run_name(run_dir), source, node, checkpoint, step, final_model)


def _of_model(name: str, source: str, location: str, request: Request) -> _Found:
    chosen = [text for text in request.overrides if text.startswith("model=")]
    if chosen:
        raise ConfigError(f"{chosen[0]} and run={source} name two models: leave one out")
    node = _composed(["model=hf", *request.overrides])
    OmegaConf.update(node, "model.name", location, merge=False)
    return _Found(name, source, node)


def _of_options(request: Request) -> _Found:
    chosen = next(text for text in reversed(request.overrides) if text.startswith("model="))
    return _Found(chosen.partition("=")[2], chosen, _composed(request.overrides))


def _composed(overrides: list[str]) -> DictConfig:
    composition = compose_config(overrides)
    if composition.problems:
        raise ConfigError(composition.problems)
    return composition.config


def _run_name(run_dir: Path) -> str:
    """A run's folder, with the day before where the folder is only a time."""
    folder = run_dir.resolve()
    is_time = re.fullmatch(r"\d\d-\d\d-\d\d", folder.name) is not None
    return f"{folder.parent.name}_{folder.name}" if is_time else folder.name


def _checkpoint(run_dir: Path, which: str) -> Path | None:
    """The checkpoint of a run that is asked for.

    Raises:
        CheckpointError: there is none; names those there are.
    """
    folder = run_dir / CHECKPOINTS
    if which == START:
        return None
    if which == LAST:
        return find_checkpoint(run_dir)
    if which == BEST:
        if not (folder / BEST).is_file():
            raise CheckpointError(f"{run_dir} keeps no best checkpoint, for which checkpoint.best_metric must be set")
        return find_checkpoint(folder / BEST)
    steps = sorted(
        int(path.name.removeprefix("step_")) for path in folder.glob("step_*") if (path / MANIFEST).is_file()
    )
    if int(which) not in steps:
        there = f"there are steps {', '.join(map(str, steps))}" if steps else "it keeps none"
        raise CheckpointError(f"{run_dir} has no checkpoint of step {which}: {there}, and start")
    return find_checkpoint(folder / f"step_{int(which)}")


def _labels(found: Sequence[_Found]) -> list[str]:
    """Short names, told apart by step and, where that is not enough, by a number."""
    names = {each.name for each in found}
    labels: list[str] = []
    for each in found:
        step = (
            "" if each.step is None else "start" if each.checkpoint is each.final_model is None else f"step {each.step}"
        )
        parts = [each.name if len(names) > 1 or not step else "", step]
        label = ", ".join(part for part in parts if part)
        labels.append(f"{label} ({labels.count(label) + 1})" if label in labels else label)
    return labels


def _output(request: Request, name: str) -> Path:
    """The folder to write into.

    Raises:
        ConfigError: it holds a run or an evaluation already.
    """
    safe = re.sub(r"[^\w.-]+", "_", name)
    folder = Path(request.output) if request.output else DEFAULT_FOLDER / safe / f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    if run_marks(folder) or (folder / EVALUATION_FILE).exists():
        raise ConfigError(f"output={folder}: already holds a run or an evaluation; name another folder")
    return folder
