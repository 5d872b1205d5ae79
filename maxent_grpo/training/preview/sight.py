"""What a preview can see of a run's model and data, and what it assumes of the rest.

A hub that cannot be reached stops a run, and is no reason to say nothing about it: the sizes of well-known models stand in a
table, prompts have a longest length, and runs a given number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.config.preflight_model import is_local
from maxent_grpo.config.resolve import longest_sequence, steps_are_given
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice
from maxent_grpo.errors import ConfigError, NotReachedError
from maxent_grpo.models.build import TORCH_DTYPES, LoadedModel, build_model
from maxent_grpo.models.hub import described_folder
from maxent_grpo.models.known_shapes import known_model
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.tokenize import RenderedRows
from maxent_grpo.telemetry.summary import Row
from maxent_grpo.training.prepared_rows import render_all


@dataclass(slots=True)
class Sight:
    """The model's shapes, and as much of tokenizer and data as there is."""

    model: PreTrainedModel
    """On the meta device, with its adapter."""
    tokenizer: PreTrainedTokenizerBase | None
    task: Task | None
    train: RenderedRows | None = None
    """None where there are no rows, or no tokenizer to write their prompts for."""
    held_out: RenderedRows | None = None
    unseen: list[Row] = field(default_factory=list[Row])
    """What was not looked at, why, and what is assumed instead."""

    @property
    def loaded(self) -> LoadedModel | None:
        """The model with its tokenizer."""
        return None if self.tokenizer is None else LoadedModel(self.model, self.tokenizer)


def look(config: RootConfig) -> Sight:
    """See what can be seen.

    Raises:
        ConfigError, DataError: the run would stop for another reason than that a hub cannot be reached; or so little can be
            seen that there is nothing to say.
    """
    task, unseen = _task(config)
    sight = replace(_model(config), task=task)
    sight.unseen += unseen
    if task is None or sight.loaded is None:
        limit = config.generation.max_prompt_len
        sight.unseen.append(("prompts", f"not written; each counts as generation.max_prompt_len={limit} tokens"))
    else:
        sight.train, sight.held_out = render_all(config, task, sight.loaded)
    return sight


def outline(config: RootConfig) -> LoadedModel:
    """The model with its tokenizer and adapter, its weights on the meta device: shapes and types without memory."""
    with torch.device("meta"):
        loaded = build_model(config.model, positions=longest_sequence(config))
        attach_adapter(loaded.model, config.model, config.seed)
    return loaded


def gpu_is_elsewhere(config: RootConfig) -> bool:
    """Whether the run asks for a GPU, and this machine has none."""
    return config.run.device is DeviceChoice.cuda and not torch.cuda.is_available()


def _task(config: RootConfig) -> tuple[Task | None, list[Row]]:
    try:
        return build_task(config.data), []
    except NotReachedError as error:
        if not steps_are_given(config):
            raise ConfigError(
                f"optimization.total_training_steps=0 leaves the length to the number of rows, and they cannot be counted: {error}"
            ) from error
        return None, [("data", f"not read ({error}); the run's length is optimization.total_training_steps")]


def _model(config: RootConfig) -> Sight:
    model = config.model
    if isinstance(model, HfModelConfig) and not is_local(model.name):
        try:
            described_folder("model.name", model.name, model.revision, with_code=model.trust_remote_code)
        except ConfigError as error:
            with torch.device("meta"):
                known = known_model(model, TORCH_DTYPES[model.dtype], longest_sequence(config))
                if known is None:
                    raise
                attach_adapter(known, model, config.seed)
            why = f"not read ({'; '.join(error.problems)}); its sizes are taken from a table of known models"
            return Sight(known, None, None, unseen=[("model", why)])
    loaded = outline(config)
    return Sight(loaded.model, loaded.tokenizer, None)
