"""Group bookkeeping of a rollout: parallel lists of prompts, answers, completions and completion metadata.

A group is one prompt with the completions sampled for it; list ``i`` of every buffer belongs to prompt ``i``. Metadata
is ``None`` when nobody tracks it, else one entry per completion, ``None`` where nothing is known. Pure Python: no tensor,
no model, no I/O. Prompts leave a rollout through the two ``drop_`` functions only, which filter all lists together; lists
that fell out of step raise ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from maxent_grpo.training.types.rewards import GenerationBatch, PromptCompletionBatch
from maxent_grpo.training.types.runtime import GenerationFn

DEFAULT_RETRY_LIMIT = 3
"""Retry rounds when neither the settings nor the group size say how many."""

Completions = list[list[str]]
Metadata = list[list[Any | None]]
Agree = Callable[[bool], bool]
"""Collective "any": true when the argument is true on at least one process."""


def identity(is_true: bool) -> bool:
    """The agreement of a single process with itself."""
    return is_true


@dataclass(slots=True)
class AggregatedGenerationState:
    """The two buffers that the retry loop fills; ``metadata`` is None until a sampler delivers some."""

    completions: Completions
    metadata: Metadata | None = None


def seed_generation_groups(
    prompt_count: int,
    grouped_comps: Sequence[Sequence[str]] | None,
    grouped_meta: Sequence[Sequence[Any | None]] | None,
) -> tuple[Completions, Metadata | None]:
    """Fresh buffers for ``prompt_count`` prompts, holding copies of what is given.

    Missing groups are empty, groups beyond ``prompt_count`` are cut. Metadata is brought to the shape of the completions:
    short metadata is padded with None, surplus is cut; it stays None when none is given.
    """
    completions = [list(group) for group in (grouped_comps or ())[:prompt_count]]
    completions += [[] for _ in range(prompt_count - len(completions))]
    if grouped_meta is None:
        return completions, None
    meta_groups = list(grouped_meta[:prompt_count])
    meta_groups += [()] * (prompt_count - len(meta_groups))
    metadata = [_fitted(meta, len(group)) for group, meta in zip(completions, meta_groups, strict=True)]
    return completions, metadata


def append_completion_group(
    grouped_comps: Completions,
    grouped_meta: Metadata | None,
    prompt_idx: int,
    completions: Sequence[str] | None,
    meta_group: Sequence[Any | None] | None,
) -> Metadata | None:
    """Extend group ``prompt_idx`` of both buffers in place and return the metadata buffer.

    Surplus metadata is cut, missing metadata padded with None. The first metadata to arrive creates the buffer, with None
    for every completion that is already there; hence the return value. Without completions nothing changes.
    """
    if not completions:
        return grouped_meta
    if grouped_meta is None and meta_group:
        grouped_meta = [[None] * len(group) for group in grouped_comps]
    grouped_comps[prompt_idx].extend(completions)
    if grouped_meta is not None:
        grouped_meta[prompt_idx].extend(_fitted(meta_group, len(completions)))
    return grouped_meta


def pending_generation_indices(aggregated_comps: Sequence[Sequence[str]], expected_generations: int) -> list[int]:
    """Indices, ascending, of the prompts with fewer than ``expected_generations`` completions; none if that is <= 0."""
    return [index for index, group in enumerate(aggregated_comps) if len(group) < expected_generations]


def determine_retry_limit(expected_generations: int | None, max_retry_rounds: int | None) -> int:
    """Number of retry rounds: ``max_retry_rounds`` if positive, else the group size if positive, else 3."""
    for limit in (max_retry_rounds, expected_generations):
        if limit is not None and limit > 0:
            return limit
    return DEFAULT_RETRY_LIMIT


def retry_incomplete_prompts(
    prompts: Sequence[str],
    generator: GenerationFn,
    expected_generations: int,
    aggregated: AggregatedGenerationState,
    max_retry_rounds: int | None,
    *,
    agree: Agree = identity,
) -> AggregatedGenerationState:
    """Fill ``aggregated`` in place by asking again for prompts that are short, and return it.

    Each round asks for the short prompts alone, each with its own deficit, and appends whatever comes back: too few or
    none (then the next round asks again), or too many (the caller trims). Ends when no prompt is short or after
    ``determine_retry_limit`` rounds.

    Args:
        prompts: the prompts of the buffers, aligned with them.
        generator: called as ``generator(short_prompts, expected_generations, deficits)``.
        expected_generations: completions that every prompt should have.
        aggregated: the buffers to fill.
        max_retry_rounds: most rounds; None or <= 0 leaves it to the group size.
        agree: given whether this process is short, says whether another round is due. Under several processes it is a
            collective "any"; a process with nothing missing then asks for an empty list of prompts, so that all of them
            make the same number of calls.

    Raises:
        ValueError: the sampler returned a different number of groups than it was asked for.
    """
    for _ in range(determine_retry_limit(expected_generations, max_retry_rounds)):
        short = pending_generation_indices(aggregated.completions, expected_generations)
        if not agree(bool(short)):
            break
        deficits = [expected_generations - len(aggregated.completions[index]) for index in short]
        groups, meta_groups = generator([prompts[index] for index in short], expected_generations, deficits)
        if not groups:
            continue
        for index, group, meta in zip(short, groups, meta_groups or [None] * len(groups), strict=True):
            aggregated.metadata = append_completion_group(
                aggregated.completions, aggregated.metadata, index, group, meta
            )
    return aggregated


def drop_empty_prompt_groups(
    prompts: Sequence[str],
    answers: Sequence[str],
    aggregated_comps: Completions,
    aggregated_meta: Metadata | None,
    generation_stats: dict[str, int],
) -> tuple[list[str], list[str], Completions, Metadata | None]:
    """Without the prompts that have no completion; adds their number to ``generation_stats["dropped_prompts"]`` in place.

    Returns new lists (prompts, answers, completions, metadata), all four filtered together; the given ones are unchanged.
    """
    keep = [bool(group) for group in aggregated_comps]
    return _keep_prompts(keep, prompts, answers, aggregated_comps, aggregated_meta, generation_stats)


def truncate_to_expected_counts(
    aggregated_comps: Completions, aggregated_meta: Metadata | None, expected_generations: int
) -> tuple[Completions, Metadata | None, int]:
    """Trim over-full groups of both buffers in place to their first ``expected_generations`` entries.

    Returns the buffers and the number of non-empty groups whose count still differs from the expected one. With
    ``expected_generations <= 0`` nothing is expected: nothing is trimmed and the number is 0.
    """
    if expected_generations <= 0:
        return aggregated_comps, aggregated_meta, 0
    if aggregated_meta is not None:
        for group, meta in zip(aggregated_comps, aggregated_meta, strict=True):
            if len(group) != len(meta):
                raise ValueError(f"a group has {len(group)} completions but {len(meta)} metadata entries")
            del meta[expected_generations:]
    for group in aggregated_comps:
        del group[expected_generations:]
    num_short = sum(0 < len(group) != expected_generations for group in aggregated_comps)
    return aggregated_comps, aggregated_meta, num_short


def drop_incomplete_prompt_groups(
    prompts: Sequence[str],
    answers: Sequence[str],
    aggregated_comps: Completions,
    aggregated_meta: Metadata | None,
    expected_generations: int,
    generation_stats: dict[str, int],
) -> tuple[list[str], list[str], Completions, Metadata | None, int]:
    """Without the groups of another size than expected; adds their number to ``generation_stats`` in place.

    The number, counted under ``dropped_prompts``, is the fifth value, after the filtered prompts, answers, completions and
    metadata (new lists; the given ones are unchanged). An over-full group goes like a short one: trim first. With
    ``expected_generations <= 0`` nothing is expected and every group stays.
    """
    keep = [expected_generations <= 0 or len(group) == expected_generations for group in aggregated_comps]
    kept = _keep_prompts(keep, prompts, answers, aggregated_comps, aggregated_meta, generation_stats)
    return *kept, keep.count(False)


def flatten_prompt_completions(gen_batch: GenerationBatch) -> tuple[PromptCompletionBatch, list[str]]:
    """Prompt-major pairs, and the answers repeated alike: prompt i and answer i once per completion of group i.

    The pairs' ``metadata`` is the flattened per-completion info, None when the batch has none.
    """
    pairs = [
        (prompt, completion, answer)
        for prompt, answer, group in zip(
            gen_batch.prompts, gen_batch.answers, gen_batch.grouped_completions, strict=True
        )
        for completion in group
    ]
    info = gen_batch.grouped_completion_info
    batch = PromptCompletionBatch(
        prompts=[prompt for prompt, _, _ in pairs],
        completions=[completion for _, completion, _ in pairs],
        metadata=None if info is None else [entry for group in info for entry in group],
    )
    return batch, [answer for _, _, answer in pairs]


def flatten_ref_metadata(grouped_comps: Completions, grouped_meta: Metadata | None) -> list[Any | None] | None:
    """One metadata entry per flattened completion, None where nothing is known; None when metadata is not tracked.

    An entry with a ``to_trl_payload`` method is replaced by what that returns.
    """
    if grouped_meta is None:
        return None
    return [
        _payload(entry)
        for group, meta in zip(grouped_comps, grouped_meta, strict=True)
        for _, entry in zip(group, meta, strict=True)
    ]


def _payload(entry: Any) -> Any:
    """The entry as a plain mapping if it can make one, else itself."""
    return entry.to_trl_payload() if hasattr(entry, "to_trl_payload") else entry


def _fitted(meta_group: Sequence[Any | None] | None, size: int) -> list[Any | None]:
    """``meta_group`` cut or padded with None to ``size`` entries."""
    known = list(meta_group or ())[:size]
    return known + [None] * (size - len(known))


def _keep_prompts(
    keep: Sequence[bool],
    prompts: Sequence[str],
    answers: Sequence[str],
    comps: Completions,
    meta: Metadata | None,
    generation_stats: dict[str, int],
) -> tuple[list[str], list[str], Completions, Metadata | None]:
    """The four lists where ``keep`` is true; counts the others as dropped in ``generation_stats`` in place."""
    kept_prompts = [prompt for prompt, kept in zip(prompts, keep, strict=True) if kept]
    kept_answers = [answer for answer, kept in zip(answers, keep, strict=True) if kept]
    kept_comps = [group for group, kept in zip(comps, keep, strict=True) if kept]
    kept_meta = None if meta is None else [group for group, kept in zip(meta, keep, strict=True) if kept]
    num_dropped = len(keep) - len(kept_prompts)
    generation_stats["dropped_prompts"] = generation_stats.get("dropped_prompts", 0) + num_dropped
    return kept_prompts, kept_answers, kept_comps, kept_meta
