"""The attention of a row of prompts and completions, in parts: that of a mask over all pairs, at a cost without their square."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
import torch
from support.tiny import tiny_llama
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maxent_grpo.models.attention import install_layouts
from maxent_grpo.training.scoring import attention_parts
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.packing import Sharing
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.scoring.shared_attention import SharedPrompts, attend_by_prompt, lay_out
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import BatchingSettings

ROWS = {
    "one token each": ([1], [[1, 1]]),
    "several prompts of one length": ([5, 5, 5], [[3, 1, 6], [2], [4, 4]]),
    "prompts of many lengths": ([1, 9, 4, 30], [[2, 7], [1, 1, 1], [12], [3, 2]]),
    "a completion of nothing, and a prompt without completions": ([4, 3, 2], [[0, 5], [], [1]]),
}
CUTS = {
    "as it is": {},
    "no prompt whole": {"WHOLE": 0},
    "each run by itself": {"WHOLE": 0, "CALL": 0},
    "all together": {"WHOLE": 0, "CALL": 10**6, "ALONE": 10**9, "KEPT_MASK": 0},
}


def layout_of(rows: tuple[list[int], list[list[int]]]) -> SharedPrompts:
    prompts, groups = rows
    return lay_out(
        torch.tensor(prompts), torch.tensor([len(group) for group in groups]), torch.tensor(list(chain(*groups)))
    )


def visible_to(rows: tuple[list[int], list[list[int]]], window: int | None) -> Tensor:
    """[L, L] who sees whom, token by token."""
    tokens = [
        (pack, run, position)
        for pack, (prompt, group) in enumerate(zip(*rows, strict=True))
        for run, first, size in [(0, 0, prompt), *((n + 1, prompt, length) for n, length in enumerate(group))]
        for position in range(first, first + size)
    ]
    return torch.tensor(
        [
            [
                pack == other and seen in (0, run) and at <= position and (window is None or position - at < window)
                for other, seen, at in tokens
            ]
            for pack, run, position in tokens
        ]
    )


def random_heads(length: int, heads: int, kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(1, length, number, 16, generator=generator, dtype=torch.float64)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for number in (heads, kv_heads, kv_heads)
    ]


def outcome(attended: Tensor, heads: list[Tensor]) -> list[Tensor]:
    """Outputs [1, L, heads, D], and the gradients of an uneven sum of them."""
    slopes = torch.linspace(-1, 2, attended.numel(), dtype=attended.dtype).view_as(attended)
    return [attended.detach(), *torch.autograd.grad(attended, heads, slopes)]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("window", [None, 1, 3, 7])
@pytest.mark.parametrize("name", ROWS)
def test_outputs_and_gradients_are_those_of_a_mask_over_all_pairs(
    name: str, window: int | None, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, value in CUTS[cut].items():
        monkeypatch.setattr(attention_parts, setting, value)
    layout, visible = layout_of(ROWS[name]), visible_to(ROWS[name], window)
    for heads, kv_heads in ((2, 2), (4, 2)):
        given = random_heads(len(visible), heads, kv_heads, torch.float64)
        masked = scaled_dot_product_attention(*given, attn_mask=visible, scale=0.3, enable_gqa=True).transpose(1, 2)
        exact = outcome(masked, given)
        parts = layout.attend(*given, scaling=0.3, window=window)
        by_prompt = attend_by_prompt(layout, *given, scaling=0.3, window=window)
        for found in (parts, by_prompt):
            for ours, expected in zip(outcome(found, given), exact, strict=True):
                torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_other_types_round_more(dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_parts, "WHOLE", 0)
    rows = ROWS["prompts of many lengths"]
    layout, visible = layout_of(rows), visible_to(rows, 7)
    given = random_heads(len(visible), 4, 2, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    masked = scaled_dot_product_attention(*exact, attn_mask=visible, enable_gqa=True).transpose(1, 2)
    found = outcome(layout.attend(*given, scaling=None, window=7), given)
    for ours, expected in zip(found, outcome(masked, exact), strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), expected, atol=tolerance, rtol=0)


def test_the_operation_for_compilers_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registration is checked by torch: shapes that a compiler foresees, and gradients."""
    monkeypatch.setattr(attention_parts, "WHOLE", 0)
    layout = layout_of(ROWS["prompts of many lengths"])
    given = random_heads(73, 4, 2, torch.float32)
    plain = outcome(layout.attend(*given, scaling=None, window=3), given)
    operation = torch.ops.maxent_grpo.attention_in_parts
    arguments = (*given, layout.numbers, layout.index, None, 3)
    for ours, expected in zip(outcome(operation(*arguments)[0], given), plain, strict=True):
        assert torch.equal(ours, expected)
    torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


def scores_computed(layout: SharedPrompts) -> int:
    """Pairs of a query and a key that kernels look at."""
    return sum(part.rows * part.queries * (part.keys or part.queries) for part in layout.parts.parts)


def test_nothing_grows_with_the_square_of_a_groups_tokens() -> None:
    """From 4 completions of 64 tokens to 8, 16 and 32: pairs and the largest tensor grow by as much, as one more pass does."""
    model = tiny_llama(torch.float32, num_hidden_layers=1, max_position_embeddings=512)
    install_layouts(model)
    settings = BatchingSettings(0, 0, lambda _: PromptCacheEntry(list(range(3, 67)), [1] * 64))
    scorer = TokenScorer(SampledDistribution(), settings, None, False, padded=False, sharing=Sharing.layout)
    pairs, largest = [], []
    for size in (4, 8, 16, 32):
        records = [CompletionRecord("r", [5] * 64, None, FinishReason.eos, 0) for _ in range(size)]
        batch = build_score_batch(["r"], [records], settings, pad_token_id=0, max_prompt_len=64)
        with Largest() as seen:
            [inputs] = scorer.assemble(batch, RowRange(0, size), torch.float32)
            scorer.score(model, [inputs], 64).logp.sum().backward()
        assert inputs.layout is not None
        assert inputs.num_fed == inputs.num_real == 64 + 64 * size
        pairs.append(scores_computed(inputs.layout))
        largest.append(seen.numel)
    for less, more in [*pairwise(pairs), *pairwise(largest)]:
        assert more <= 2 * less


def test_padding_inside_a_part_costs_less_than_the_calls_it_saves() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 200, (40,), generator=generator)
    prompts = torch.randint(1, 300, (5,), generator=generator)
    layout = lay_out(prompts, torch.full((5,), 8), lengths)
    behind = lengths.view(5, 8).sum(-1)
    exact = int((prompts**2).sum() + (lengths**2).sum() + (prompts * behind).sum())
    calls = len(layout.parts.parts)
    runs = len(prompts) + len(lengths) + len(behind)
    assert calls < runs
    assert exact <= scores_computed(layout) <= exact + attention_parts.CALL * (runs - calls)
