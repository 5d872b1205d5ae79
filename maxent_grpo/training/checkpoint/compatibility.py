"""Which settings may differ between a checkpoint and the run that resumes it. Objective and data may not.

Works on plain nested dicts, the resolved configuration as saved and as it is now; imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from maxent_grpo.errors import CheckpointError

_HORIZON = (
    "extends or shortens the run; a learning-rate schedule that depends on the length, such as cosine or linear, "
    "follows the new length's curve from here on"
)
_PATH = "a path setting: the same loss up to rounding, not bit-equal"
_ASKED = "how vLLM is run, reached and asked again: the same completions up to rounding"

MAY_CHANGE: dict[str, str] = {
    "run.*": "where the run goes and what it runs on; another device or number of threads is equal up to rounding, not bit-equal",
    "logging.*": "what is shown and recorded from here on",
    "checkpoint.*": "what is saved and kept from here on; another best_metric or best_goal starts the search for the best anew",
    "evaluation.*": "evaluation figures are those of the new settings from here on",
    "controller.paths.*": "where controller state is kept",
    "optimization.total_training_steps": _HORIZON,
    "optimization.num_epochs": _HORIZON,
    "optimization.parallel.*": "how the run is spread over processes: the same loss up to rounding, not bit-equal",
    "scoring.batching.logprob_chunk_size": _PATH,
    "scoring.batching.score_slice": _PATH,
    "scoring.batching.max_tokens": _PATH,
    "scoring.batching.slice_prefetch": _PATH,
    "scoring.batching.skip_zero_signal": _PATH,
    "scoring.batching.prompt_cache_size": _PATH,
    "scoring.batching.share_prompts": _PATH,
    "generation.batch_size": _PATH,
    **{
        f"generation.{name}": _ASKED
        for name in (
            *("vllm_mode", "engine.*", "weights_dir", "weight_transfer", "max_in_flight"),
            *("vllm.url", "vllm.launch", "vllm.timeout"),
            *(
                "vllm.max_retries",
                "vllm.backoff",
                "vllm.backoff_multiplier",
                "vllm.retry_sleep",
                "vllm.request_id_prefix",
            ),
        )
    },
    "model.attention": _PATH,
    "model.gradient_checkpointing": _PATH,
    "model.compile": _PATH,
    "model.cache_dir": "where the converted model is kept; the weights come from the checkpoint",
    "model.lora.adapter": "where the starting adapter lies; its weights must be those that the run began with",
    "model.warm_start.cache_dir": "where warm starts are cached; the weights come from the checkpoint",
    "data.cache_dir": "where files made of the data are kept; the rows are the same",
}
"""Dotted key, or prefix ending in ``.*``, to what changing it on resume means. Every other key is refused."""

CUTS = ("scoring.batching.score_slice", "scoring.batching.max_tokens")
"""What decides how a step is cut into slices, on which the loss depends under `scoring.reduction=micro_batch`."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""Stands for the value of a key that one of two configurations lacks."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting with its value in the checkpoint and its value now; ``ABSENT`` where it does not exist."""

    key: str
    saved: object
    current: object
    objective: bool = False
    """Whether the setting belongs to the objective of this run, whatever ``MAY_CHANGE`` says of it."""

    @property
    def meaning(self) -> str | None:
        """What the change means for the resumed run; None if it is not allowed."""
        for pattern, meaning in () if self.objective else MAY_CHANGE.items():
            prefix = pattern.removesuffix("*")
            if self.key.startswith(prefix) if prefix != pattern else self.key == pattern:
                return meaning
        return None

    def __str__(self) -> str:
        return f"{self.key}: {self.saved!r} in the checkpoint, {self.current!r} now"


def compare_for_resume(saved: Mapping[str, object], current: Mapping[str, object]) -> list[Difference]:
    """Every setting that differs, allowed or not, in key order; settings that only one side has differ too.

    Lists and tuples are compared as wholes; 1 and 1.0 are equal, 1 and true are not.
    """
    sliced = _sliced(saved)
    return [
        replace(difference, objective=True) if sliced and difference.key in CUTS else difference
        for difference in _differences("", saved, current)
    ]


def require_compatible(saved_config: Mapping[str, object], current_config: Mapping[str, object]) -> list[Difference]:
    """The differences, all allowed, for the caller to report with their ``meaning``.

    Raises:
        CheckpointError: a setting of the objective or the data differs; names each with both values, and what may change.
    """
    differences = compare_for_resume(saved_config, current_config)
    refused = [difference for difference in differences if difference.meaning is None]
    if refused:
        count = f"{len(refused)} setting{'s' if len(refused) > 1 else ''}"
        raise CheckpointError(
            "\n".join(
                [
                    f"cannot resume: {count} of the objective or the data changed, so this would not be the same run:",
                    *(f"  - {difference}" for difference in refused),
                    "set back what changed, or start a new run without checkpoint.resume_from; these may change on resume:",
                    *(f"  - {pattern}: {meaning}" for pattern, meaning in MAY_CHANGE.items()),
                ]
            )
        )
    return differences


def _sliced(config: Mapping[str, object]) -> bool:
    """Whether the loss is a mean over slices."""
    scoring = config.get("scoring")
    return isinstance(scoring, Mapping) and scoring.get("reduction") == "micro_batch"


def _differences(prefix: str, saved: Mapping[str, object], current: Mapping[str, object]) -> list[Difference]:
    found: list[Difference] = []
    for name in sorted({*saved, *current}):
        key = f"{prefix}{name}"
        before, now = saved.get(name, ABSENT), current.get(name, ABSENT)
        sides = [side for side in (before, now) if side is not ABSENT]
        if all(isinstance(side, Mapping) and side for side in sides):
            found += _differences(f"{key}.", *(side if isinstance(side, Mapping) else {} for side in (before, now)))
        elif not _equal(before, now):
            found.append(Difference(key, before, now))
    return found


def _equal(left: object, right: object) -> bool:
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right):
        return True
    return left == right
