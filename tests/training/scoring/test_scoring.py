"""Scoring: every layout, chunking and slicing gives the log-probabilities of a direct forward pass of each sequence."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from maxent_grpo.models.attention import install_layouts
from maxent_grpo.training.scoring import attention_parts
from maxent_grpo.training.scoring.batch import (
    RowRange,
    build_score_batch,
    cut_groups,
    plan_slices,
    sampled_logp_tensor,
    select_groups,
    tail_window,
)
from maxent_grpo.training.scoring.packing import PADDING, Sharing
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer, prefetched
from maxent_grpo.training.scoring.reference import score_without_gradient, sync_reference
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import BatchingSettings, ReferenceSync

VOCAB = 50
LENGTHS = {"a": (5, [3, 1, 4, 2]), "b": (3, [2, 2, 5, 1]), "c": (9, [1, 6, 2, 2])}
"""Prompt length and completion lengths of each group."""

ENTRIES = {
    name: PromptCacheEntry([(7 * ord(name) + i) % (VOCAB - 1) + 1 for i in range(size)], [1] * size)
    for name, (size, _) in LENGTHS.items()
}


def _groups():
    generator = torch.Generator().manual_seed(0)
    return [
        [
            CompletionRecord(
                name, torch.randint(1, VOCAB, (size,), generator=generator).tolist(), [-0.5] * size, FinishReason.eos, 0
            )
            for size in sizes
        ]
        for name, (_, sizes) in LENGTHS.items()
    ]


def _batch(pad_token_id=0, **batching):
    settings = replace(BatchingSettings(0, 0, ENTRIES.__getitem__), **batching)
    return build_score_batch(list(LENGTHS), _groups(), settings, pad_token_id=pad_token_id, max_prompt_len=20)


def _model(kind, dtype=torch.float64):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=2, n_positions=64, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
        )
        made = GPT2LMHeadModel(config).to(dtype).eval()
    else:
        config, model = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[kind]
        made = model(config(**sizes, num_key_value_heads=2, intermediate_size=96, max_position_embeddings=64)).to(dtype)
    install_layouts(made)
    return made


def _scorer(padded=False, entropy="exact", distribution=None, sharing=Sharing.layout, **batching):
    settings = replace(BatchingSettings(0, 0, ENTRIES.__getitem__), **batching)
    return TokenScorer(
        distribution or SampledDistribution(), settings, entropy, entropy_carries_gradient=True, padded=padded,
        sharing=sharing,
    )  # fmt: skip


def _scores(model, scorer, batch):
    dtype = next(model.parameters()).dtype
    return scorer.score(model, scorer.assemble(batch, RowRange(0, 12), dtype), batch.completion_ids.shape[1])


def _direct(model, temperature=1.0):
    """Log-probs of each completion alone, by one forward pass without padding."""
    rows = []
    for name, group in zip(LENGTHS, _groups(), strict=True):
        for record in group:
            prompt = ENTRIES[name].input_ids
            logits = model(torch.tensor([prompt + record.token_ids])).logits[0, len(prompt) - 1 : -1] / temperature
            rows.append(torch.log_softmax(logits, -1).gather(1, torch.tensor(record.token_ids)[:, None])[:, 0])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("how", [{"padded": True}, *({"sharing": sharing} for sharing in Sharing)])
def test_scores_equal_a_direct_forward_of_each_sequence_alone(kind, how):
    model = _model(kind)
    scores = _scores(model, _scorer(distribution=SampledDistribution(temperature=0.7), **how), _batch())
    assert torch.allclose(scores.logp, _direct(model, 0.7), atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("path", "passes", "fed"),
    [
        ({}, 1, 48),
        ({"sharing": Sharing.masks}, 1, 60),
        ({"padded": True}, 1, 180),
        ({"share_prompts": False}, 6, 104),
        ({"sharing": Sharing.none}, 6, 104),
        ({"logprob_chunk_size": 3}, 4, 65),
        ({"logprob_chunk_size": 3, "sharing": Sharing.masks}, 4, 66),
        ({"logprob_chunk_size": 1, "share_prompts": False}, 12, 99),
        ({"max_tokens": 20, "share_prompts": False}, 7, 102),
    ],
)
def test_path_settings_change_the_passes_and_tokens_fed_and_nothing_else(kind, path, passes, fed):
    model = _model(kind)

    def gradients(scorer):
        model.zero_grad()
        scores = _scores(model, scorer, _batch())
        (scores.logp.sum() + 0.3 * scores.entropy.sum()).backward()
        return scores, torch.cat([p.grad.flatten() for p in model.parameters()])

    plain, plain_gradient = gradients(_scorer(padded=True))
    scorer = _scorer(**path)
    scores, gradient = gradients(scorer)
    assert torch.allclose(scores.logp, plain.logp, atol=1e-9)
    assert torch.allclose(scores.entropy, plain.entropy, atol=1e-9)
    # transformers normalises in float32 whatever the model's type, which bounds the agreement of gradients
    assert torch.allclose(gradient, plain_gradient, atol=1e-5)
    assert (scorer.counters.forward_passes, scorer.counters.fed_tokens) == (passes, fed)
    assert scorer.counters.scored_tokens == 31
    assert scorer.counters.real_tokens <= fed
    if scorer.shares_prompts and scorer.sharing is Sharing.layout:
        assert scorer.counters.real_tokens == fed


@pytest.mark.parametrize("whole", [0, attention_parts.WHOLE])
def test_cutting_a_step_into_chunks_changes_the_last_places_only(whole, monkeypatch):
    """A model that normalises in the type it has: every path agrees as closely as sums in another order can."""
    monkeypatch.setattr(attention_parts, "WHOLE", whole)
    model = _model("gpt2")

    def outcome(**path):
        model.zero_grad()
        scores = _scores(model, _scorer(**path), _batch())
        (scores.logp.sum() + 0.3 * scores.entropy.sum()).backward()
        return torch.cat([scores.logp.flatten(), *(p.grad.flatten() for p in model.parameters())])

    paths = [{"logprob_chunk_size": size} for size in (1, 3, 5)] + [{"sharing": other} for other in Sharing]
    for path in [*paths, {"padded": True}]:
        torch.testing.assert_close(outcome(**path), outcome(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("skew", [1, 3])
def test_padded_rows_of_like_length_go_together_and_come_back_in_order(skew):
    generator = torch.Generator().manual_seed(skew)
    entries = {f"p{n}": PromptCacheEntry([7] * size, [1] * size) for n, size in enumerate((3, 40, 11, 24))}
    groups = [
        [
            CompletionRecord(name, torch.randint(1, VOCAB, (size,), generator=generator).tolist(), None, FinishReason.eos, 0)
            for size in (torch.rand(8, generator=generator) ** skew * 20 + 1).long().tolist()
        ]
        for name in entries
    ]  # fmt: skip
    settings = BatchingSettings(0, 0, entries.__getitem__, share_prompts=False)
    batch = build_score_batch(list(entries), groups, settings, pad_token_id=0, max_prompt_len=40)
    model, scorer = _model("llama"), replace(_scorer(), batching=settings)
    chunks = scorer.assemble(batch, RowRange(0, 32), torch.float64)
    assert sum(chunk.num_fed for chunk in chunks) <= PADDING * sum(chunk.num_real for chunk in chunks)
    assert sum(chunk.num_real for chunk in chunks) == 8 * 78 + int(batch.completion_attention_mask.sum())
    assert len(chunks) <= 12
    width = batch.completion_ids.shape[1]
    scores = scorer.score(model, chunks, width)
    shared = _scorer().score(model, _scorer().assemble(batch, RowRange(0, 32), torch.float64), width)
    torch.testing.assert_close(scores.logp, shared.logp, atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.entropy, shared.entropy, atol=1e-6, rtol=0)


def test_padding_is_never_read_whatever_stands_in_it():
    model = _model("llama")
    for padded in (False, True):
        first = _scores(model, _scorer(padded), _batch(pad_token_id=0))
        second = _scores(model, _scorer(padded), _batch(pad_token_id=17))
        assert torch.equal(first.logp, second.logp)


def test_the_mask_comes_from_lengths_so_an_end_token_equal_to_the_pad_token_is_trained():
    record = CompletionRecord("a", [5, 2], None, FinishReason.eos, 0)
    longer = CompletionRecord("a", [5, 6, 7, 2], None, FinishReason.eos, 0)
    batch = build_score_batch(
        ["a"], [[record, longer]], BatchingSettings(0, 0, ENTRIES.__getitem__), pad_token_id=2, max_prompt_len=9
    )
    assert batch.completion_ids.tolist() == [[5, 2, 2, 2], [5, 6, 7, 2]]
    assert batch.completion_attention_mask.tolist() == [[True, True, False, False], [True] * 4]


def test_a_model_without_logits_to_keep_is_scored_all_the_same():
    class Plain(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask, position_ids, use_cache):
            return self.inner(input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache)

    model = _model("llama")
    for how in ({"padded": True}, {"sharing": Sharing.none}, {"sharing": Sharing.masks}):
        wrapped = _scores(Plain(model), _scorer(**how), _batch()).logp
        # heads of other sizes may add up in another order, which is worth a few units in the last place
        torch.testing.assert_close(wrapped, _scores(model, _scorer(**how), _batch()).logp, rtol=0, atol=1e-5)


def test_scoring_replays_truncation_and_always_keeps_the_drawn_token():
    model = _model("llama")
    free = _scores(model, _scorer(), _batch()).logp
    truncated = _scores(model, _scorer(distribution=SampledDistribution(top_k=5)), _batch()).logp
    assert torch.isfinite(truncated).all()
    assert (truncated[free != 0] >= free[free != 0]).all()
    assert not torch.allclose(truncated, free)


def test_allowed_tokens_renormalise_the_scored_distribution():
    model = _model("llama")
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[torch.cat([torch.tensor(r.token_ids) for g in _groups() for r in g]).unique()] = True
    scores = _scores(model, _scorer(distribution=SampledDistribution(allowed=allowed)), _batch())
    free = _scores(model, _scorer(), _batch())
    mask = _batch().completion_attention_mask
    assert (scores.logp[mask] > free.logp[mask]).all()
    assert float(scores.entropy.detach().max()) <= float(torch.log(allowed.sum()))
    assert SampledDistribution(0.7, allowed, top_k=3, top_p=0.5, min_p=0.1).untruncated() == SampledDistribution(
        0.7, allowed
    )


def test_sampled_entropy_is_minus_the_drawn_tokens_logp_and_carries_no_gradient():
    scores = _scores(_model("llama"), _scorer(entropy="sample"), _batch())
    assert torch.equal(scores.entropy, -scores.logp.detach())
    assert not scores.entropy.requires_grad


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_prefetched_slices_come_in_order_and_ahead_of_their_use(depth):
    started = []

    def assemble(item):
        started.append(item)
        return item * 10

    seen = []
    for item in prefetched(range(6), assemble, depth):
        seen.append(item)
        if depth and len(seen) == 1:
            deadline = time.monotonic() + 10
            while len(started) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(started) > 1
        if not depth:
            assert len(started) == len(seen)
    assert seen == [0, 10, 20, 30, 40, 50]


def test_an_error_while_assembling_ahead_reaches_the_caller():
    def fail(item):
        raise ArithmeticError(item)

    with pytest.raises(ArithmeticError):
        list(prefetched([1, 2], fail, 2))


def test_scores_without_gradient_equal_scores_with_it_slice_by_slice():
    model = _model("llama")
    batch = _batch(score_slice=5)
    pieces = plan_slices(batch, RowRange(0, 12), 0)
    logp, entropy = score_without_gradient(_scorer(slice_prefetch=2), model, batch, pieces)
    whole = _scores(model, _scorer(), batch)
    assert torch.allclose(logp, whole.logp, atol=1e-9)
    assert torch.allclose(entropy, whole.entropy, atol=1e-9)
    assert not logp.requires_grad


def test_slices_by_rows_cover_every_row_once_and_leave_a_shorter_last_one():
    pieces = plan_slices(_batch(score_slice=5), RowRange(2, 12), 0)
    assert [(p.first, p.last) for p in pieces] == [(2, 7), (7, 12)]
    assert [(p.first, p.last) for p in plan_slices(_batch(), RowRange(0, 12), 0)] == [(0, 12)]
    assert not cut_groups(plan_slices(_batch(score_slice=4), RowRange(0, 12), 0), 4)
    assert cut_groups(plan_slices(_batch(score_slice=5), RowRange(0, 12), 0), 4)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (48, [(0, 12)]),
        (47, [(0, 8), (8, 12)]),  # groups of 15, 13 and 20 tokens with their prompts
        (28, [(0, 8), (8, 12)]),
        (20, [(0, 4), (4, 8), (8, 12)]),
        (18, [(0, 4), (4, 8), (8, 11), (11, 12)]),
        (13, [(0, 3), (3, 4), (4, 8), (8, 11), (11, 12)]),  # up to 18 tokens behind the prompt of 9
        (1, [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 11), (11, 12)]),
    ],
)
def test_slices_by_tokens_end_between_groups_where_they_can(budget, expected):
    pieces = plan_slices(_batch(), RowRange(0, 12), budget)
    assert [(piece.first, piece.last) for piece in pieces] == expected


def test_rows_and_tokens_both_bound_a_slice():
    pieces = plan_slices(_batch(score_slice=4), RowRange(0, 12), 1000)
    assert [(piece.first, piece.last) for piece in pieces] == [(0, 4), (4, 8), (8, 12)]
    pieces = plan_slices(_batch(score_slice=8), RowRange(0, 12), 16)
    assert [(piece.first, piece.last) for piece in pieces] == [(0, 4), (4, 8), (8, 11), (11, 12)]


def test_padded_rows_are_counted_with_their_padding():
    pieces = plan_slices(_batch(), RowRange(0, 12), 40, shared=False)
    for piece in pieces:
        assert TokenScorer.assemble(_scorer(padded=True), _batch(), piece, torch.float32)[0].num_fed <= 40
    assert [(piece.first, piece.last) for piece in pieces] == [(0, 4), (4, 8), (8, 10), (10, 12)]


def test_the_groups_that_are_left_are_those_of_the_batch():
    batch = _batch()
    part = select_groups(batch, torch.tensor([True, False, True]), 4)
    rows = [*range(4), *range(8, 12)]
    assert part.total_sequences == 8
    assert part.group_starts == (0, 4)
    assert torch.equal(part.completion_ids, batch.completion_ids[rows])
    assert [entry.length for entry in part.prompt_entries] == [batch.prompt_entries[row].length for row in rows]
    assert select_groups(batch, torch.ones(3, dtype=torch.bool), 4) is batch


@pytest.mark.parametrize("budget", [1, 8, 16, 25, 1000])
def test_slices_by_tokens_keep_to_the_budget_unless_one_row_alone_exceeds_it(budget):
    batch = _batch()
    pieces = plan_slices(batch, RowRange(0, 12), budget)
    assert [row for piece in pieces for row in range(piece.first, piece.last)] == list(range(12))
    lengths = batch.completion_attention_mask.sum(-1).tolist()
    for piece in pieces:
        prompts = {id(entry): entry.length for entry in batch.prompt_entries[piece.slice]}
        tokens = sum(lengths[piece.slice]) + sum(prompts.values())
        of_one = 2 * max(prompts.values()) if len(prompts) == 1 else 0
        assert tokens <= max(budget, of_one) or len(piece) == 1


def test_the_tail_window_keeps_the_last_tokens_of_each_completion():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    assert tail_window(mask, 2).int().tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]]
    assert torch.equal(tail_window(mask, None), mask)
    assert torch.equal(tail_window(mask, 9), mask)


def test_sampled_logps_are_aligned_and_unknown_where_the_sampler_gave_none():
    groups = _groups()
    groups[0][1].behaviour_logp = None
    records = [record for group in groups for record in group]
    logp, known = sampled_logp_tensor(_batch(), records)
    assert torch.equal(known, _batch().completion_attention_mask & (torch.arange(12) != 1)[:, None])
    assert torch.equal(logp, torch.where(known, -0.5, 0.0).double())


def test_a_moving_reference_mixes_in_the_policy_only_when_due():
    policy, reference = _model("llama"), _model("llama")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    before = reference.lm_head.weight.clone()
    assert not sync_reference(reference, policy, ReferenceSync(0, 0.5), 4)
    assert not sync_reference(reference, policy, ReferenceSync(3, 0.5), 4)
    assert torch.equal(reference.lm_head.weight, before)
    assert sync_reference(reference, policy, ReferenceSync(2, 0.25), 4)
    assert torch.allclose(reference.lm_head.weight, before + 0.25)
