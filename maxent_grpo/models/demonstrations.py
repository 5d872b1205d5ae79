"""Demonstrations as packed rows: one copy of a prompt followed by each of its right answers.

Layout of a row with prompt length P and answers a, b: ``prompt a_1..a_m b_1..b_n``. Answers see the prompt and themselves, never
each other, and their positions restart at P, so every answer is scored as if it stood alone behind the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.errors import DataError


class WeightedAnswers(Protocol):
    """One problem with right answers and the demonstrator's probability of each."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation that ends with the question."""
        ...

    @property
    def answers(self) -> tuple[str, ...]:
        """Right answers."""
        ...

    @property
    def weights(self) -> tuple[float, ...]:
        """Probability of each answer; sums to 1."""
        ...


@dataclass(frozen=True, slots=True)
class PackedDemonstration:
    """A packed row and where in it each answer token is predicted."""

    token_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    """0 for the prompt, j + 1 for answer j."""
    source: npt.NDArray[np.int64]
    """Column whose logits predict each target."""
    targets: npt.NDArray[np.int64]
    """Tokens of all answers in turn, each answer closed by the end token."""
    weights: npt.NDArray[np.float64]
    """Probability of the answer that each target belongs to."""
    answer_index: npt.NDArray[np.int64]
    """Answer that each target belongs to."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Packed rows padded on the right to one length, as tensors."""

    token_ids: Tensor
    position_ids: Tensor
    mask: Tensor
    """Whether a query (axis 2) sees a key (axis 3) ``[rows, 1, columns, columns]``."""
    source: Tensor
    """Flat index (row * columns + column) of the logits that predict each target."""
    targets: Tensor
    weights: Tensor


def pack_demonstration(demonstration: WeightedAnswers, tokenizer: PreTrainedTokenizerBase) -> PackedDemonstration:
    """Tokenise one demonstration with the chat template and pack its answers behind one prompt.

    Raises:
        DataError: there is no answer, an answer is empty, or the weights do not belong to the answers.
    """
    answers, weights = demonstration.answers, demonstration.weights
    if not answers or len(weights) != len(answers) or not all(answers):
        raise DataError(
            f"a demonstration has answers {list(answers)} with weights {list(weights)}; it needs at least one answer, none "
            f"empty, and one weight for each. Correct the task's demonstrations."
        )
    rendered = tokenizer.apply_chat_template(demonstration.messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(str(rendered), add_special_tokens=False)["input_ids"]
    tokens, positions, segments = list(prompt), list(range(len(prompt))), [0] * len(prompt)
    source: list[int] = []
    targets: list[int] = []
    answer_index: list[int] = []
    for index, answer in enumerate(answers):
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        source += [len(prompt) - 1, *range(len(tokens), len(tokens) + len(ids))]
        targets += [*ids, tokenizer.eos_token_id]
        answer_index += [index] * (len(ids) + 1)
        tokens += ids
        positions += range(len(prompt), len(prompt) + len(ids))
        segments += [index + 1] * len(ids)
    return PackedDemonstration(
        token_ids=np.array(tokens),
        position_ids=np.array(positions),
        segments=np.array(segments),
        source=np.array(source),
        targets=np.array(targets),
        weights=np.array(weights)[answer_index],
        answer_index=np.array(answer_index),
    )


def collate(packed: Sequence[PackedDemonstration], device: torch.device | str = "cpu") -> PackedBatch:
    """Pad packed rows to the longest one. Padding is seen by no token of a row and sees only itself, so attention stays finite."""
    num_columns = max(len(row.token_ids) for row in packed)

    def padded(arrays: list[npt.NDArray[np.int64]], fill: int) -> Tensor:
        table = np.full((len(arrays), num_columns), fill, dtype=np.int64)
        for index, array in enumerate(arrays):
            table[index, : len(array)] = array
        return torch.from_numpy(table)

    segments = padded([row.segments for row in packed], -1)
    query, key = segments[:, :, None], segments[:, None, :]
    causal = torch.ones(num_columns, num_columns, dtype=torch.bool).tril()
    visible = ((key == 0) & (query >= 0)) | ((key == query) & (key > 0)) | torch.eye(num_columns, dtype=torch.bool)
    return PackedBatch(
        token_ids=padded([row.token_ids for row in packed], 0).to(device),
        position_ids=padded([row.position_ids for row in packed], 0).to(device),
        mask=(visible & causal)[:, None].to(device),
        source=torch.from_numpy(
            np.concatenate([index * num_columns + row.source for index, row in enumerate(packed)])
        ).to(device),
        targets=torch.from_numpy(np.concatenate([row.targets for row in packed])).to(device),
        weights=torch.from_numpy(np.concatenate([row.weights for row in packed])).float().to(device),
    )


def target_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Logits from which each target of the batch is predicted ``[targets, vocabulary]``, with gradient."""
    dtype = model.get_input_embeddings().weight.dtype
    additive = torch.zeros(batch.mask.shape, dtype=dtype, device=batch.mask.device)
    additive.masked_fill_(~batch.mask, torch.finfo(dtype).min)
    output = model(input_ids=batch.token_ids, attention_mask=additive, position_ids=batch.position_ids, use_cache=False)
    # index_select adds its gradients in order; indexing with two tensors would add them in a racing one
    return output.logits.flatten(0, 1).index_select(0, batch.source)
