"""Groups as they were sampled and graded: chosen from, joined, and stored exactly. Nothing is compared with anything here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.credit import GradedRollout
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, GenerationBatch, PromptCompletionBatch

Item = TypeVar("Item")
Groups = tuple[GenerationBatch, GradedRollout]
"""Prompts with their completions, and the verdicts on these in the same order."""


def select_groups(sampled: Groups, groups: Sequence[int]) -> Groups:
    """Some of the groups, in the order asked for, without the numbers that reward functions logged: these are of no group."""
    batch, graded = sampled
    size = graded.group_size
    rows = [row for group in groups for row in range(group * size, (group + 1) * size)]
    per_term = {name: _at(values, rows) for name, values in graded.per_term.items()}
    chosen = GenerationBatch(
        prompts=_at(batch.prompts, groups),
        answers=_at(batch.answers, groups),
        grouped_completions=_at(batch.grouped_completions, groups),
        grouped_ref_meta=_at(batch.grouped_ref_meta or [], groups),
        grouped_completion_info=_at(batch.grouped_completion_info or [], groups),
    )
    pairs = graded.pairs
    return chosen, replace(
        graded,
        pairs=PromptCompletionBatch(
            _at(pairs.prompts, rows), _at(pairs.completions, rows), _at(pairs.metadata or [], rows)
        ),
        records=_at(graded.records, rows),
        utilities=_at(graded.utilities, rows),
        per_term=per_term,
        metadata=_at(graded.metadata, rows),
        abstentions=sum(math.isnan(value) for values in per_term.values() for value in values),
        logged={},
    )


def join_groups(parts: Sequence[Groups]) -> Groups:
    """The groups of at least one part behind one another; all were graded by the same terms."""
    graded = [part for _, part in parts]
    return join_batches([batch for batch, _ in parts]), GradedRollout(
        pairs=PromptCompletionBatch(
            prompts=[prompt for part in graded for prompt in part.pairs.prompts],
            completions=[text for part in graded for text in part.pairs.completions],
            metadata=[entry for part in graded for entry in part.pairs.metadata or []],
        ),
        records=[record for part in graded for record in part.records],
        group_size=graded[0].group_size,
        utilities=[utility for part in graded for utility in part.utilities],
        per_term={name: [value for part in graded for value in part.per_term[name]] for name in graded[0].per_term},
        metadata=[entry for part in graded for entry in part.metadata],
        abstentions=sum(part.abstentions for part in graded),
        logged=_together([part.logged for part in graded]),
    )


def join_batches(batches: Sequence[GenerationBatch]) -> GenerationBatch:
    """The prompts of some batches behind one another."""
    return GenerationBatch(
        prompts=[prompt for batch in batches for prompt in batch.prompts],
        answers=[answer for batch in batches for answer in batch.answers],
        grouped_completions=[group for batch in batches for group in batch.grouped_completions],
        grouped_ref_meta=[group for batch in batches for group in batch.grouped_ref_meta or []],
        grouped_completion_info=[group for batch in batches for group in batch.grouped_completion_info or []],
    )


def groups_to_tree(sampled: Groups) -> dict[str, Any]:
    """Texts, tokens and verdicts as plain lists."""
    batch, graded = sampled
    return {
        "prompts": [str(prompt) for prompt in batch.prompts],
        "row_ids": [group[0].row_id for group in batch.records],
        "answers": list(batch.answers),
        "completions": [list(group) for group in batch.grouped_completions],
        "token_ids": [list(record.token_ids) for record in graded.records],
        "behaviour_logp": [record.behaviour_logp for record in graded.records],
        "finish_reason": [str(record.finish_reason) for record in graded.records],
        "policy_version": [record.policy_version for record in graded.records],
        "utilities": list(graded.utilities),
        "per_term": {name: list(values) for name, values in graded.per_term.items()},
        "modes": [entry["mode"] for entry in graded.metadata],
        "keys": [entry["key"] for entry in graded.metadata],
        "reasons": [entry["reason"] for entry in graded.metadata],
        "failures": [dict(entry["failures"]) for entry in graded.metadata],
        "extra": [dict(entry["extra"]) for entry in graded.metadata],
        "logged": {name: list(numbers) for name, numbers in graded.logged.items()},
        "group_size": graded.group_size,
        "abstentions": graded.abstentions,
    }


def groups_from_tree(tree: Mapping[str, Any]) -> Groups:
    """The groups of a tree that ``groups_to_tree`` made."""
    prompts = [RowPrompt(text, row_id) for text, row_id in zip(tree["prompts"], tree["row_ids"], strict=True)]
    sizes = [len(group) for group in tree["completions"]]
    records = _records(tree, sizes)
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    groups: list[list[Any | None]] = [list(records[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    batch = GenerationBatch(
        prompts=list(prompts),
        answers=list(tree["answers"]),
        grouped_completions=[list(group) for group in tree["completions"]],
        grouped_ref_meta=groups,
        grouped_completion_info=[[record.to_trl_payload() for record in group if record] for group in groups],
    )
    verdicts = ("modes", "keys", "reasons", "failures", "extra")
    metadata = [
        {**record.to_trl_payload(), "mode": mode, "key": key, "reason": reason, "failures": failures, "extra": extra}
        for record, mode, key, reason, failures, extra in zip(records, *(tree[name] for name in verdicts), strict=True)
    ]
    graded = GradedRollout(
        pairs=PromptCompletionBatch(
            prompts=[prompt for prompt, size in zip(prompts, sizes, strict=True) for _ in range(size)],
            completions=[text for group in tree["completions"] for text in group],
            metadata=[record.to_trl_payload() for record in records],
        ),
        records=records,
        group_size=int(tree["group_size"]) if "group_size" in tree else sizes[0],
        utilities=list(tree["utilities"]),
        per_term={name: list(values) for name, values in tree["per_term"].items()},
        metadata=metadata,
        abstentions=int(tree["abstentions"]),
        logged={name: list(numbers) for name, numbers in tree["logged"].items()},
    )
    return batch, graded


def _records(tree: Mapping[str, Any], sizes: Sequence[int]) -> list[CompletionRecord]:
    row_ids = [row_id for row_id, size in zip(tree["row_ids"], sizes, strict=True) for _ in range(size)]
    fields = ("token_ids", "behaviour_logp", "finish_reason", "policy_version")
    return [
        CompletionRecord(row_id, list(ids), logp, FinishReason(reason), version)
        for row_id, ids, logp, reason, version in zip(row_ids, *(tree[name] for name in fields), strict=True)
    ]


def _together(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """The numbers of all parts by name."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [number for part in parts for number in part.get(name, ())] for name in names}


def _at(values: Sequence[Item], places: Sequence[int]) -> list[Item]:
    return [values[place] for place in places]
