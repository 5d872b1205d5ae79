"""What an adapter in a checkpoint was trained on: the base, and the adapter that it started from if any, by their digests."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from maxent_grpo.errors import CheckpointError
from maxent_grpo.models.adapter import adapter_digest, base_digest
from maxent_grpo.training.checkpoint.codec import load_tree
from maxent_grpo.training.checkpoint.run_state import STATE_FOLDER

ORIGIN = "adapter_origin"
"""Name of this state in a checkpoint."""
_ADVICE = "an adapter means something on its own base only; give the run the model that it was started with"


class AdapterOrigin:
    """Digests of a model's frozen base and of its adapter as it stands when this is made, at the start of a run.

    The adapter counts only where the run starts from an existing one, which is its reference too; a fresh one follows from the
    seed, and adds nothing.
    """

    def __init__(self, model: nn.Module, *, starts_from_adapter: bool) -> None:
        self._model = model
        self._start = adapter_digest(model) if starts_from_adapter else None

    @cached_property
    def _base(self) -> str:
        return base_digest(self._model)  # reads all weights, once

    def state_dict(self) -> dict[str, Any]:
        """Both digests."""
        return {"base": self._base, "start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare; there is nothing to restore.

        Raises:
            CheckpointError: the saved adapter belongs to another base, or started from another adapter.
        """
        for name, what in (("base", "base weights"), ("start", "starting adapter (model.lora.adapter)")):
            saved, here = state[name], self.state_dict()[name]
            if saved != here:
                raise CheckpointError(
                    f"the checkpoint's adapter was trained with other {what}: SHA-256 {_short(saved)} there, {_short(here)} here; "
                    f"{_ADVICE}"
                )


def require_same_origin(origin: AdapterOrigin, checkpoint: Path) -> None:
    """Refuse a checkpoint whose adapter belongs to another base, before any of it is loaded.

    Raises:
        CheckpointError: it does, or does not say.
    """
    origin.load_state_dict(load_tree(checkpoint / STATE_FOLDER, ORIGIN))


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:16]
