"""Demonstrations as packed rows: one copy of a prompt followed by each of its right answers.

Layout of a row with prompt length P and answers a, b: ``prompt a_1..a_m b_1..b_n``. Answers see the prompt and themselves, never
each other, and their positions restart at P, so every answer is scored as if it stood alone behind the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.errors import DataError

WritePrompt = Callable[[list[dict[str, str]]], str]
"""From a conversation to the text of the prompt."""


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
class TokenizedDemonstration:
    """One demonstration as token ids; answers are closed by the end token."""

    prompt: list[int]
    answers: list[list[int]]
    weights: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PackedDemonstration:
    """A packed row and where in it each answer token is predicted."""

    token_ids: list[int]
    position_ids: list[int]
    segments: list[int]
    """0 for the prompt, j + 1 for the j-th packed answer."""
    source: list[int]
    """Column whose logits predict each target."""
    targets: list[int]
    """Tokens of all packed answers in turn."""
    weights: list[float]
    """Weight of the answer that each target belongs to."""


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


def tokenize_demonstration(
    demonstration: WeightedAnswers, tokenizer: PreTrainedTokenizerBase, write: WritePrompt | None = None
) -> TokenizedDemonstration:
    """Write the question, by default with the chat template, and close each answer with the end token.

    Raises:
        DataError: there is no answer, an answer is empty, or the weights do not belong to the answers.
    """
    answers, weights = demonstration.answers, demonstration.weights
    if not answers or len(weights) != len(answers) or not all(answers):
        raise DataError(
            f"a demonstration has answers {list(answers)} with weights {list(weights)}; it needs at least one answer, none "
            f"empty, and one weight for each. Correct the task's demonstrations."
        )
    messages = demonstration.messages
    if write is None:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    else:
        text = write(messages)
    end = cast(int, tokenizer.eos_token_id)
    return TokenizedDemonstration(
        prompt=list(tokenizer(str(text), add_special_tokens=False)["input_ids"]),
        answers=[[*tokenizer(answer, add_special_tokens=False)["input_ids"], end] for answer in answers],
        weights=np.array(weights, dtype=np.float64),
    )


def draw_answers(
    demonstration: TokenizedDemonstration, num: int, generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """The demonstrator's distribution as seen through ``num`` draws: the share of each answer. 0 draws give it exactly."""
    if num == 0:
        return demonstration.weights
    total = demonstration.weights.cumsum()
    drawn = np.searchsorted(total, generator.random(num) * total[-1], side="right")
    return np.bincount(np.minimum(drawn, len(total) - 1), minlength=len(total)) / num


def pack(demonstration: TokenizedDemonstration, weights: npt.NDArray[np.float64]) -> PackedDemonstration:
    """Pack the answers whose entry in ``weights`` is not 0 behind the prompt. End tokens are targets, never inputs."""
    prompt = demonstration.prompt
    tokens, positions, segments = list(prompt), list(range(len(prompt))), [0] * len(prompt)
    source: list[int] = []
    targets: list[int] = []
    target_weights: list[float] = []
    segment = 0
    for answer, weight in zip(demonstration.answers, weights.tolist(), strict=True):
        if not weight:
            continue
        segment += 1
        num_inputs = len(answer) - 1
        source += [len(prompt) - 1, *range(len(tokens), len(tokens) + num_inputs)]
        targets += answer
        target_weights += [weight] * len(answer)
        tokens += answer[:-1]
        positions += range(len(prompt), len(prompt) + num_inputs)
        segments += [segment] * num_inputs
    return PackedDemonstration(tokens, positions, segments, source, targets, target_weights)


def collate(packed: Sequence[PackedDemonstration], device: torch.device | str = "cpu") -> PackedBatch:
    """Pad packed rows to the longest one. Padding is seen by no token of a row and sees only itself, so attention stays finite."""
    num_columns = max(len(row.token_ids) for row in packed)

    def padded(lists: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([row + [fill] * (num_columns - len(row)) for row in lists])

    segments = padded([row.segments for row in packed], -1)
    query, key = segments[:, :, None], segments[:, None, :]
    causal = torch.ones(num_columns, num_columns, dtype=torch.bool).tril()
    visible = ((key == 0) & (query >= 0)) | ((key == query) & (key > 0)) | torch.eye(num_columns, dtype=torch.bool)
    return PackedBatch(
        token_ids=padded([row.token_ids for row in packed], 0).to(device),
        position_ids=padded([row.position_ids for row in packed], 0).to(device),
        mask=(visible & causal)[:, None].to(device),
        source=torch.tensor(
            [index * num_columns + column for index, row in enumerate(packed) for column in row.source], device=device
        ),
        targets=torch.tensor([target for row in packed for target in row.targets], device=device),
        weights=torch.tensor([weight for row in packed for weight in row.weights], device=device),
    )


def target_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Logits from which each target of the batch is predicted ``[targets, vocabulary]``, with gradient."""
    dtype = next(model.parameters()).dtype
    additive = torch.zeros(batch.mask.shape, dtype=dtype, device=batch.mask.device)
    additive.masked_fill_(~batch.mask, torch.finfo(dtype).min)
    output = model(input_ids=batch.token_ids, attention_mask=additive, position_ids=batch.position_ids, use_cache=False)
    # index_select adds its gradients in order; indexing with two tensors would add them in a racing one
    return output.logits.flatten(0, 1).index_select(0, batch.source)
