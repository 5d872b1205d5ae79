"""A model at the weights of a checkpoint, outside of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from maxent_grpo.config.root import RootConfig
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.training.checkpoint.adapter_origin import AdapterOrigin, require_same_origin
from maxent_grpo.training.checkpoint.weights import load_weights


def restore_weights(config: RootConfig, loaded: LoadedModel, checkpoint: Path, make_base: Callable[[], None]) -> None:
    """Bring a model that was just built to the weights of a checkpoint.

    Args:
        config: the settings of the run that the checkpoint is of.
        loaded: the model as its builder gives it.
        checkpoint: the checkpoint's folder.
        make_base: makes the base of an adapter, where training began with a supervised stage; called only for an adapter.

    Raises:
        ConfigError: the adapter that training started from is not there.
        CheckpointError: the checkpoint's weights are not this model's.
    """
    lora = config.model.lora
    if lora.enabled:
        make_base()
        attach_adapter(loaded.model, config.model, config.seed)
        require_same_origin(AdapterOrigin(loaded.model, starts_from_adapter=lora.adapter is not None), checkpoint)
    load_weights(loaded.model, checkpoint)
