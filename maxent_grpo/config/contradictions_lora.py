"""Gate 3, second half: adapters under settings that they cannot stand with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from maxent_grpo.config.model import ALL_LINEAR, PretrainedModelConfig
from maxent_grpo.config.resolve import reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.types.choices import ReferenceSource


def _off(config: RootConfig) -> Iterator[str]:
    lora = config.model.lora
    if lora.adapter is not None and not lora.enabled:
        yield (
            f"model.lora.adapter={lora.adapter} would not be looked at, since model.lora.enabled=false: set "
            f"model.lora.enabled=true, or model.lora.adapter=null"
        )


def _dropout(config: RootConfig) -> Iterator[str]:
    lora = config.model.lora
    if lora.enabled and lora.dropout > 0:
        yield (
            f"model.lora.dropout={lora.dropout:g}: training would score completions under another policy than the one that "
            f"sampled them, a new one at every pass, and take the noise for a change of policy; write model.lora.dropout=0"
        )


def _targets(config: RootConfig) -> Iterator[str]:
    lora = config.model.lora
    if not lora.enabled or lora.target_modules is None:
        return
    shown = f"model.lora.target_modules={_listed(lora.target_modules)}"
    if not lora.target_modules:
        yield f"{shown}: no layer would be trained; name some, or write model.lora.target_modules=null"
    if ALL_LINEAR in lora.target_modules and len(lora.target_modules) > 1:
        yield f"{shown}: {ALL_LINEAR} already is every linear layer; write it alone, or leave it out"
    if "" in lora.target_modules:
        yield f"{shown} holds an empty name, which no layer has: remove it"


def _moving_reference(config: RootConfig) -> Iterator[str]:
    sync, lora = config.scoring.reference_sync, config.model.lora
    if not lora.enabled or sync.every_n_steps < 1 or reference_source(config) is not ReferenceSource.model:
        return
    if sync.mixing < 1:
        yield (
            f"scoring.reference_sync.mixing={sync.mixing:g} with model.lora.enabled=true: a mixture of two low-rank updates "
            f"is not the update that their mixed matrices make, so the reference would be another model than asked for; use "
            f"scoring.reference_sync.mixing=1, which takes the policy over as it is, or "
            f"scoring.reference_sync.every_n_steps=0"
        )


def _taught_base(config: RootConfig) -> Iterator[str]:
    model = config.model
    if model.lora.enabled and model.warm_start.enabled and isinstance(model, PretrainedModelConfig):
        yield (
            "model.lora.enabled=true with model.warm_start.enabled=true: an adapter belongs to the weights it was trained on, and "
            "would be written for the published ones, which the warm start has changed; use model.lora.enabled=false, or "
            "model.warm_start.enabled=false"
        )


def _listed(names: list[str]) -> str:
    return f"[{','.join(names)}]"


LORA_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _off,
    _dropout,
    _targets,
    _moving_reference,
    _taught_base,
)
"""Every rule about adapters."""
