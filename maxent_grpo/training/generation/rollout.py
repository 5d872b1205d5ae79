"""Collecting a rollout: a complete group of completions for every prompt, whatever the sampler delivers at first.

Effects are confined to the sampler that is called and to ``GenerationSettings.generation_stats``, which counts everything
that did not go smoothly. Groups are only ever identified by the row that their prompt carries, never by text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maxent_grpo.distributed import SAMPLING_ERRORS, SamplingError
from maxent_grpo.errors import DataError, GenerationError
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.generation.helpers import (
    AggregatedGenerationState,
    Agree,
    Completions,
    Metadata,
    determine_retry_limit,
    drop_empty_prompt_groups,
    drop_incomplete_prompt_groups,
    identity,
    pending_generation_indices,
    retry_incomplete_prompts,
    seed_generation_groups,
    truncate_to_expected_counts,
)
from maxent_grpo.training.types.rewards import GenerationBatch
from maxent_grpo.training.types.runtime import GenerationFn, GenerationSettings
from maxent_grpo.training.types.samplers import BackfillingSampler

logger = logging.getLogger(__name__)

RaiseTogether = Callable[[SamplingError | None], None]


def collect_rollout(
    rows: Sequence[Mapping[str, Any]],
    generator: GenerationFn,
    settings: GenerationSettings,
    *,
    agree: Agree = identity,
    raise_together: RaiseTogether | None = None,
    required: bool = True,
) -> GenerationBatch:
    """Sample ``settings.num_generations`` completions for each row; only complete groups are returned.

    Prompts that come back short are asked again for what they miss, and under ``vllm.backfill_local`` the trainer's own model
    samples what is missing after that; groups that stay empty or incomplete are dropped. The
    kept prompts are the rows' own ``RowPrompt`` objects, in the order of the rows, so ``prompt.row_id`` names the row.
    Adds to ``settings.generation_stats``: ``partial_prompts`` (prompts short at the first answer), ``retry_rounds`` (the
    same on every process), ``excess_completions`` (trimmed) and ``dropped_prompts``.

    Args:
        rows: rendered rows with ``row_id``, ``prompt`` and ``answer``.
        generator: the sampler.
        settings: group size, retry limit and counters.
        agree: collective "any" over processes; every process calls it, and the sampler, equally often. With it a process
            without a complete group returns an empty batch as long as another process has one.
        raise_together: collective that raises on every process what the sampler of one has raised; such a process goes on as
            if nothing had come back until all ask, so that nobody waits for it elsewhere. None raises at once.
        required: false returns an empty batch also when no process has a complete group, for a caller that asks on.

    Raises:
        DataError: a row's prompt does not carry the row's identity.
        GenerationError: no process has a complete group, though one is required, or the sampler's answer is not aligned with what it was asked.
    """
    prompts = [_row_prompt(row) for row in rows]
    answers = [row["answer"] for row in rows]
    expected, stats = settings.num_generations, settings.generation_stats
    rounds_before = stats["retry_rounds"]

    patient = _Patient()
    if raise_together is None:
        groups = _sample_all(prompts, generator, settings, agree, _aligned)
    else:
        groups = _sample_all(prompts, generator, settings, agree, lambda sampler: patient.asking(_aligned(sampler)))
        raise_together(patient.error)
    stats["excess_completions"] += sum(max(len(group) - expected, 0) for group in groups.completions)
    kept, kept_answers, completions, metadata = drop_empty_prompt_groups(
        prompts, answers, groups.completions, groups.metadata, stats
    )
    num_empty = len(prompts) - len(kept)
    completions, metadata, num_short = truncate_to_expected_counts(completions, metadata, expected)
    kept, kept_answers, completions, metadata, _ = drop_incomplete_prompt_groups(
        kept, kept_answers, completions, metadata, expected, stats
    )
    rounds = stats["retry_rounds"] - rounds_before
    if not agree(bool(kept)) and required:
        raise GenerationError(_nothing_complete(len(prompts), num_empty, expected, rounds))
    if num_empty or num_short:
        logger.warning(
            "dropped %d of %d prompts after %d retry rounds: %d without any completion, %d with fewer than %d",
            num_empty + num_short, len(prompts), rounds, num_empty, num_short, expected,
        )  # fmt: skip
    return GenerationBatch(kept, kept_answers, completions, metadata, _completion_info(kept, metadata))


def _sample_all(
    prompts: list[str],
    generator: GenerationFn,
    settings: GenerationSettings,
    agree: Agree,
    checking: Callable[[GenerationFn], GenerationFn],
) -> AggregatedGenerationState:
    """Ask for every prompt, then for what is missing; counts rounds and partial prompts in the settings' counters."""
    expected, stats = settings.num_generations, settings.generation_stats
    aligned = checking(generator)

    def counted(
        prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[Completions, Metadata | None]:
        stats["retry_rounds"] += 1
        if settings.use_vllm and prompts:
            time.sleep(settings.vllm.retry_sleep)
        return aligned(prompts, num_samples, per_prompt_counts)

    state = AggregatedGenerationState(*seed_generation_groups(len(prompts), *aligned(prompts, expected)))
    stats["partial_prompts"] += len(pending_generation_indices(state.completions, expected))
    limit = determine_retry_limit(expected, settings.max_retry_rounds)
    state = retry_incomplete_prompts(prompts, counted, expected, state, limit, agree=agree)
    if settings.vllm.backfill_local and isinstance(generator, BackfillingSampler):
        retry_incomplete_prompts(prompts, checking(generator.backfill), expected, state, 1, agree=agree)
    return state


@dataclass
class _Patient:
    """Keeps the first error of a sampler, from which on nothing is asked and nothing comes back."""

    error: SamplingError | None = None

    def asking(self, generator: GenerationFn) -> GenerationFn:
        """The sampler, with empty groups in place of an error."""

        def asked(
            prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
        ) -> tuple[Completions, Metadata | None]:
            if self.error is None:
                try:
                    return generator(prompts, num_samples, per_prompt_counts)
                except SAMPLING_ERRORS as error:
                    self.error = error
            return [[] for _ in prompts], None

        return asked


def _aligned(generator: GenerationFn) -> GenerationFn:
    """The sampler, with every answer checked against the question.

    Groups are matched to prompts by position alone: one group too few would shift completions to another prompt.
    """

    def checked(
        prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[Completions, Metadata | None]:
        groups, metadata = generator(prompts, num_samples, per_prompt_counts)
        for what, delivered in (("groups of completions", groups), ("groups of metadata", metadata)):
            if delivered is not None and len(delivered) != len(prompts):
                raise GenerationError(
                    f"the sampler returned {len(delivered)} {what} for {len(prompts)} prompts, so completions cannot be "
                    "matched to prompts; a sampler must return one group, empty if need be, for each prompt"
                )
        for prompt, meta_group in zip(prompts, metadata or [()] * len(prompts), strict=True):
            _check_rows(prompt, meta_group)
        return groups, metadata

    return checked


def _check_rows(prompt: str, meta_group: Sequence[Any | None]) -> None:
    """Raises GenerationError if a completion's record names another row than its prompt."""
    row_id = getattr(prompt, "row_id", "")
    for record in meta_group:
        if record is not None and record.row_id != row_id:
            raise GenerationError(
                f"the sampler returned a completion of row {record.row_id!r} for the prompt of row {row_id!r}, so its "
                "reward would be taken from the wrong answer; a sampler must keep the order of its prompts"
            )


def _row_prompt(row: Mapping[str, Any]) -> str:
    """The row's prompt; raises DataError unless it carries the row's identity."""
    prompt = row["prompt"]
    if not isinstance(prompt, RowPrompt) or prompt.row_id != row["row_id"]:
        carried = repr(prompt.row_id) if isinstance(prompt, RowPrompt) else "none"
        raise DataError(
            f"the prompt of row {row['row_id']!r} carries the row identity {carried}; its completions could not be traced "
            "back to the row: render rows with RowPrompt(text, row_id)"
        )
    return prompt


def _completion_info(prompts: Sequence[str], metadata: Metadata | None) -> list[list[dict[str, Any]]] | None:
    """The records as plain mappings; of a completion without a record only the row is known."""
    if metadata is None:
        return None
    return [
        [{"row_id": getattr(prompt, "row_id", "")} if entry is None else entry.to_trl_payload() for entry in group]
        for prompt, group in zip(prompts, metadata, strict=True)
    ]


def _nothing_complete(num_prompts: int, num_empty: int, expected: int, rounds: int) -> str:
    """What to tell someone whose sampler completed no group at all."""
    return (
        f"no complete group: {num_prompts} prompts were asked for {expected} completions each, and after {rounds} retry "
        f"rounds {num_empty} had none and {num_prompts - num_empty} had fewer than {expected}; without a complete group "
        "there is nothing to train on. Check that the sampler answers (its log, generation/failed_requests), raise "
        "generation.max_retry_rounds, or lower generation.num_generations"
    )
