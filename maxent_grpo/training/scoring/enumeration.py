"""Exact log-probabilities of all answers that can be listed: one pass over the tree of their prefixes, behind one prompt.

Answers that begin alike share the tokens they have in common: 81 answers of four letters and an end token take 120 fed tokens
instead of 405. Each token of the tree sees the prompt and the tokens that lead to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from maxent_grpo.models.output_head import head_input, output_head
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.objective.head_pairs import pair_logp
from maxent_grpo.training.scoring.packing import ModelInputs
from maxent_grpo.training.scoring.policy import last_logits

FORWARD_TOKENS = 1024
"""Most tokens of one forward pass, unless a single prompt with its part of the answers has more [tokens]."""
ANSWERS_PER_PASS = 243
"""Most answers behind one copy of a prompt: more would make its attention mask, which grows with the square, the main cost."""


@dataclass(frozen=True)
class AnswerTree:
    """The prefixes of some answers, each once; node m is the prefix that ends in token ``token_ids[m]``."""

    token_ids: Tensor
    """[M] token that is fed at each node."""
    depth: Tensor
    """[M] tokens before it."""
    sees: Tensor
    """[M, M] whether a node sees another: itself and its ancestors."""
    answer: Tensor
    """Answer that each target token belongs to, targets of all answers in turn."""
    column: Tensor
    """Place of the target in its answer."""
    node: Tensor
    """Node at which the target is predicted; -1 is the prompt's end."""
    target_ids: Tensor
    """The tokens of all answers in turn."""
    num_answers: int


def answer_tree(answers: Sequence[Sequence[int]]) -> AnswerTree:
    """The tree of token sequences, which end as they are to be scored (with the end token).

    Raises:
        ValueError: no answers, or an empty one.
    """
    if not answers or not all(answers):
        raise ValueError("an answer tree needs answers of at least one token")
    nodes: dict[tuple[int, ...], int] = {}
    parents: list[int] = []
    predicted_at: list[int] = []
    for answer in answers:
        place = -1
        for length in range(len(answer)):
            predicted_at.append(place)
            if length + 1 < len(answer):
                prefix = tuple(answer[: length + 1])
                if prefix not in nodes:
                    nodes[prefix] = len(nodes)
                    parents.append(place)
                place = nodes[prefix]
    sees = torch.eye(len(nodes), dtype=torch.bool)
    for number, parent in enumerate(parents):
        if parent >= 0:
            sees[number] |= sees[parent]  # a parent always has the smaller number
    sizes = torch.tensor([len(answer) for answer in answers])
    return AnswerTree(
        token_ids=torch.tensor([prefix[-1] for prefix in nodes], dtype=torch.long),
        depth=torch.tensor([len(prefix) - 1 for prefix in nodes], dtype=torch.long),
        sees=sees,
        answer=torch.arange(len(answers)).repeat_interleave(sizes),
        column=torch.cat([torch.arange(int(size)) for size in sizes]),
        node=torch.tensor(predicted_at),
        target_ids=torch.tensor([token for answer in answers for token in answer], dtype=torch.long),
        num_answers=len(answers),
    )


@torch.no_grad()
def score_answers(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    pad_token_id: int,
    head: HeadTransform | None = None,
    allowed: Tensor | None = None,
) -> list[Tensor]:
    """log pi(y | x) [nats] of each answer of each prompt in float64, on the CPU: at temperature 1, over the whole vocabulary.

    With ``allowed`` every token is drawn from these tokens alone, as sampling that is restricted to them draws it.

    Args:
        model: causal language model in evaluation mode.
        prompts: token ids of each prompt.
        answers: the token ids of each prompt's answers, end tokens included.
        pad_token_id: fills prompts on the left.
        head: what the model does to the products of its output matrix; None takes its own logits.
        allowed: ids of the tokens that can be sampled, ascending; None is the whole vocabulary.

    Raises:
        ValueError: an answer holds a token that is not allowed.
    """
    trees: dict[tuple[tuple[int, ...], ...], AnswerTree] = {}
    parts: list[tuple[int, AnswerTree]] = []
    for number, listed in enumerate(answers):
        for at in range(0, len(listed), ANSWERS_PER_PASS):
            key = tuple(tuple(answer) for answer in listed[at : at + ANSWERS_PER_PASS])
            if key not in trees:
                trees[key] = answer_tree(key)
            parts.append((number, trees[key]))
    scored: list[list[Tensor]] = [[] for _ in prompts]
    for group in _forward_groups(parts, prompts):
        tree = group[0][1]
        inputs = pack_tree([prompts[number] for number, _ in group], tree, pad_token_id, _dtype(model))
        for (number, _), values in zip(group, _score_tree(model, inputs, tree, head, allowed), strict=True):
            scored[number].append(values)
    return [torch.cat(pieces) for pieces in scored]


def pack_tree(prompts: Sequence[Sequence[int]], tree: AnswerTree, pad_token_id: int, dtype: torch.dtype) -> ModelInputs:
    """One row per prompt, padded on the left, with the tree behind it; answer a of prompt p is row p * answers + a."""
    num, num_nodes = len(prompts), len(tree.token_ids)
    sizes = torch.tensor([len(prompt) for prompt in prompts]).unsqueeze(-1)
    width = int(sizes.max())
    ids = torch.tensor([[pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    columns = torch.arange(width)
    is_prompt = columns >= width - sizes
    visible = torch.zeros((num, width + num_nodes, width + num_nodes), dtype=torch.bool)
    visible[:, :width, :width] = (columns <= columns.unsqueeze(-1)) & is_prompt.unsqueeze(1)
    visible[:, width:, :width] = is_prompt.unsqueeze(1)
    visible[:, width:, width:] = tree.sees
    # padding sees itself, so that no row of the softmax is empty
    visible |= torch.eye(width + num_nodes, dtype=torch.bool)
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    positions = torch.cat([(columns - (width - sizes)).clamp(min=0), sizes + tree.depth], dim=1)
    row = torch.arange(num).unsqueeze(-1)
    return ModelInputs(
        input_ids=torch.cat([ids, tree.token_ids.expand(num, -1)], dim=1),
        attention_mask=mask.unsqueeze(1),
        position_ids=positions,
        num_kept=num_nodes + 1,
        model_row=row.expand(-1, len(tree.node)).flatten(),
        place=(tree.node + 1).repeat(num),
        row=(row * tree.num_answers + tree.answer).flatten(),
        column=tree.column.repeat(num),
        target_ids=tree.target_ids.repeat(num),
    )


def _score_tree(
    model: nn.Module, inputs: ModelInputs, tree: AnswerTree, transform: HeadTransform | None, allowed: Tensor | None
) -> Tensor:
    """Sums of log-probabilities [prompts, answers]; each node's distribution is normalised once."""
    inputs = inputs.to(next(model.parameters()).device)
    targets = inputs.target_ids
    if allowed is not None:
        allowed = allowed.to(targets.device)
        if not bool(torch.isin(targets, allowed).all()):
            raise ValueError("an answer holds a token that cannot be sampled: allow all tokens of the answers")
        targets = torch.searchsorted(allowed, targets)
    # float64, so that probabilities of thousands of answers still sum to at most 1
    if transform is None:
        logits = last_logits(model, inputs)
        logits = logits if allowed is None else logits[..., allowed]
        chosen = torch.log_softmax(logits.double(), dim=-1)[inputs.model_row, inputs.place, targets]
    else:
        head = output_head(model)
        assert isinstance(head, nn.Linear), "setup has looked at the head before it gave a transform"
        with head_input(head) as caught:
            last_logits(model, inputs)
        hidden = caught[0][:, -inputs.num_kept :].flatten(0, 1)
        weight, bias = head.weight, head.bias
        if allowed is not None:
            weight, bias = weight[allowed], None if bias is None else bias[allowed]
        place = inputs.model_row * inputs.num_kept + inputs.place
        chosen = pair_logp(hidden, weight, bias, transform, place, targets)
    sums = torch.zeros(len(inputs.input_ids) * tree.num_answers, dtype=torch.float64, device=chosen.device)
    return sums.index_add_(0, inputs.row, chosen).view(-1, tree.num_answers).cpu()


def _forward_groups(
    parts: Sequence[tuple[int, AnswerTree]], prompts: Sequence[Sequence[int]]
) -> list[list[tuple[int, AnswerTree]]]:
    """Parts with the same tree that are run together, by the length of their prompts."""
    groups: list[list[tuple[int, AnswerTree]]] = []
    # ordered by content, so that what is run together does not depend on the order of the rows
    numbers = {id(tree): number for number, (_, tree) in enumerate(parts)}
    order = sorted(parts, key=lambda part: (numbers[id(part[1])], len(prompts[part[0]]), list(prompts[part[0]])))
    for number, tree in order:
        cost = len(prompts[number]) + len(tree.token_ids)
        if groups and groups[-1][0][1] is tree and (len(groups[-1]) + 1) * cost <= FORWARD_TOKENS:
            groups[-1].append((number, tree))
        else:
            groups.append([(number, tree)])
    return groups


def _dtype(model: nn.Module) -> torch.dtype:
    return cast(Tensor, next(model.parameters())).dtype
