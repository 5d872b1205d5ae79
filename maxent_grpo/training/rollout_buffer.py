"""The rollout that training is inside of, and how far it got: saved with a checkpoint, so that resume goes on inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.credit import GradedRollout
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, GenerationBatch, PromptCompletionBatch

Rebuild = Callable[[GenerationBatch, GradedRollout, list[RowRange], Mapping[str, Any]], Experience]
"""Makes an experience again from its sampled part and what was scored at rollout weights."""


class RolloutBuffer:
    """Holds one rollout and hands out its optimiser steps: every portion once per iteration."""

    def __init__(self, num_iterations: int, rebuild: Rebuild) -> None:
        self.num_iterations = num_iterations
        self.num_rollouts = 0
        self._rebuild = rebuild
        self._experience: Experience | None = None
        self._taken = 0

    @property
    def experience(self) -> Experience | None:
        """The rollout in use, None before the first and after the last portion of one."""
        return self._experience

    def put(self, experience: Experience) -> None:
        """Start on a fresh rollout."""
        self._experience, self._taken = experience, 0
        self.num_rollouts += 1

    def replace(self, experience: Experience) -> None:
        """Exchange the rollout in use for the same one with other scores."""
        self._experience = experience

    def take(self) -> RowRange:
        """The groups of the next optimiser step."""
        assert self._experience is not None
        portions = self._experience.portions
        groups = portions[self._taken % len(portions)]
        self._taken += 1
        return groups

    def release_if_done(self) -> None:
        """Let go of a rollout whose every portion has been taken ``num_iterations`` times."""
        if self._experience and self._taken >= self.num_iterations * len(self._experience.portions):
            self._experience = None

    def state_dict(self) -> dict[str, Any]:
        """Counters, and the rollout in use as plain lists and tensors."""
        kept = None if self._experience is None else experience_to_tree(self._experience)
        return {"num_rollouts": self.num_rollouts, "taken": self._taken, "experience": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue inside the saved rollout."""
        self.num_rollouts, self._taken = int(state["num_rollouts"]), int(state["taken"])
        tree = state["experience"]
        self._experience = None if tree is None else self._rebuild(*experience_from_tree(tree), tree)


def experience_to_tree(experience: Experience) -> dict[str, Any]:
    """What a rollout cannot make again: texts, tokens, verdicts, and scores taken at rollout weights."""
    batch, graded, reference = experience.batch, experience.graded, experience.reference
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
        "abstentions": graded.abstentions,
        "portions": [[portion.first, portion.last] for portion in experience.portions],
        "epoch": experience.epoch,
        "step_in_epoch": experience.step_in_epoch,
        "version": experience.policy_version,
        "old_logp": experience.old_logp,
        "token_entropy_mean": experience.token_entropy_mean,
        "reference_logp": None if reference is None else reference.ref_token_logp,
    }


def experience_from_tree(tree: Mapping[str, Any]) -> tuple[GenerationBatch, GradedRollout, list[RowRange]]:
    """The sampled and graded part of a saved rollout."""
    prompts = [RowPrompt(text, row_id) for text, row_id in zip(tree["prompts"], tree["row_ids"], strict=True)]
    sizes = [len(group) for group in tree["completions"]]
    row_ids = [row_id for row_id, size in zip(tree["row_ids"], sizes, strict=True) for _ in range(size)]
    records = [
        CompletionRecord(row_id, list(ids), logp, FinishReason(reason), version)
        for row_id, ids, logp, reason, version in zip(
            row_ids,
            tree["token_ids"],
            tree["behaviour_logp"],
            tree["finish_reason"],
            tree["policy_version"],
            strict=True,
        )
    ]
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    groups: list[list[Any | None]] = [list(records[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    batch = GenerationBatch(
        prompts=list(prompts),
        answers=list(tree["answers"]),
        grouped_completions=[list(group) for group in tree["completions"]],
        grouped_ref_meta=groups,
        grouped_completion_info=[[record.to_trl_payload() for record in group if record] for group in groups],
    )
    metadata = [
        {**record.to_trl_payload(), "mode": mode, "key": key, "reason": reason}
        for record, mode, key, reason in zip(records, tree["modes"], tree["keys"], tree["reasons"], strict=True)
    ]
    graded = GradedRollout(
        pairs=PromptCompletionBatch(
            prompts=[prompt for prompt, size in zip(prompts, sizes, strict=True) for _ in range(size)],
            completions=[text for group in tree["completions"] for text in group],
            metadata=[record.to_trl_payload() for record in records],
        ),
        records=records,
        group_size=sizes[0],
        utilities=list(tree["utilities"]),
        per_term={name: list(values) for name, values in tree["per_term"].items()},
        metadata=metadata,
        abstentions=int(tree["abstentions"]),
    )
    return batch, graded, [RowRange(first, last) for first, last in tree["portions"]]
