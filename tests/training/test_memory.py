"""The memory formulas against what autograd keeps and what torch has alive, tensor by tensor."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import configured, inside_run
from support.tiny import tiny_llama
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from maxent_grpo.models.attention import install_layouts
from maxent_grpo.objective.fused_head import Slopes
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.generation.decode import DecodeJob, SamplingControls, decode
from maxent_grpo.training.generation.prefix import prefill
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.master_weights import MASTERS
from maxent_grpo.training.memory import (
    HEAP_BLOCK,
    MIB,
    MemoryEstimate,
    Part,
    Phase,
    draw_bytes,
    ends_saved,
    layer_saved,
    optimizer_phase,
    room_tokens,
    sampling_phase,
    saved_bytes,
    scoring_pass,
    training_phases,
)
from maxent_grpo.training.memory_head import head_forward, head_saved
from maxent_grpo.training.memory_sizes import ModelShape, ScoringPath
from maxent_grpo.training.preview.run import workload
from maxent_grpo.training.preview.sight import look
from maxent_grpo.training.preview.sizes import memory_estimate, model_shape
from maxent_grpo.training.scoring import attention_parts
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.packing import Sharing
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.rewards import PromptCacheEntry, ScoreBatch
from maxent_grpo.training.types.runtime import BatchingSettings, StepResources, TrainingLoopContext

PROMPT, COMPLETION, GROUP, PROMPTS = 7, 5, 3, 2
GQA = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


def a_batch() -> ScoreBatch:
    entries = [PromptCacheEntry(list(range(10, 10 + PROMPT)), [1] * PROMPT) for _ in range(PROMPTS)]
    shape = (PROMPTS * GROUP, COMPLETION)
    return ScoreBatch(
        prompt_entries=[entry for entry in entries for _ in range(GROUP)],
        completion_ids=torch.full(shape, 20),
        completion_attention_mask=torch.ones(shape, dtype=torch.bool),
        pad_token_id=0,
        max_prompt_len=PROMPT,
        slice_size=0,
        total_sequences=shape[0],
        score_tail_tokens=None,
    )


def a_scorer(path: ScoringPath, vocab: int, sharing: Sharing = Sharing.layout) -> TokenScorer:
    allowed = torch.ones(vocab, dtype=torch.bool)
    allowed[1] = False
    batching = BatchingSettings(
        logprob_chunk_size=0, score_slice=0, prompt_length_cache_get=None, score_tail_tokens=None, slice_prefetch=0,
        prompt_cache_size=0,
    )  # fmt: skip
    return TokenScorer(
        SampledDistribution(temperature=0.5 if path.tempered else 1.0, allowed=allowed if path.restricted else None),
        batching,
        entropy="exact" if path.exact_entropy else None,
        entropy_carries_gradient=path.entropy_gradient,
        padded=False,
        sharing=sharing,
        head=HeadTransform() if path.separate_head else None,
    )


def slopes_of(path: ScoringPath, batch: ScoreBatch) -> Slopes | None:
    """Of the plain sum of all log-probs, and entropies where they carry gradient."""
    ones = torch.ones(batch.completion_ids.shape)
    return Slopes(ones, ones.clone() if path.entropy_gradient else None) if path.foreseen else None


def kept_by_autograd(model: Any, path: ScoringPath, sharing: Sharing = Sharing.layout) -> int:
    """Bytes of the distinct storages that a scored slice keeps for the backward pass, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.numel() > 1:
            storages[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    if sharing is Sharing.layout:
        install_layouts(model)
    scorer, batch = a_scorer(path, model.config.vocab_size, sharing), a_batch()
    chunks = scorer.assemble(batch, RowRange(0, batch.total_sequences), next(model.parameters()).dtype)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scorer.score(model, chunks, COMPLETION, slopes_of(path, batch))
    return sum(storage.nbytes() for storage in storages.values())


def the_pass(sharing: Sharing = Sharing.layout) -> Any:
    laid_out = sharing is Sharing.layout
    return scoring_pass(PROMPTS * GROUP, GROUP, PROMPT, PROMPT, COMPLETION, shared=True, laid_out=laid_out)


@pytest.mark.parametrize(
    ("attention", "sharing"), [("sdpa", Sharing.layout), ("sdpa", Sharing.masks), ("eager", Sharing.masks)]
)
@pytest.mark.parametrize("whole", [0, attention_parts.WHOLE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_autograd_keeps_exactly_what_the_formula_counts(
    attention: str, sharing: Sharing, whole: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole model with grouped keys and values, byte for byte; and of a layer more."""
    monkeypatch.setattr(attention_parts, "WHOLE", whole)
    path, one = ScoringPath(eager=attention == "eager"), the_pass(sharing)
    seen = []
    for layers in (1, 3):
        model = tiny_llama(dtype, num_hidden_layers=layers, **GQA).train()
        model.set_attn_implementation(attention)
        shape = model_shape(model)
        seen.append(kept_by_autograd(model, path, sharing))
        # written-out attention adds the mask, which needs no copy for the backward pass; the scorer's caller holds it
        held = one.rows * one.width**2 * dtype.itemsize if path.eager else 0
        assert seen[-1] == saved_bytes(shape, one, path) + head_saved(shape, one, path) - held
    assert seen[1] - seen[0] == 2 * layer_saved(model_shape(model), one, path)


@pytest.mark.parametrize(
    "path",
    [
        ScoringPath(restricted=True),
        ScoringPath(tempered=True, exact_entropy=True),
        ScoringPath(exact_entropy=True, entropy_gradient=True),
        ScoringPath(separate_head=True),
        ScoringPath(separate_head=True, restricted=True, exact_entropy=True),
        ScoringPath(separate_head=True, exact_entropy=True, foreseen=True),
        ScoringPath(separate_head=True, exact_entropy=True, entropy_gradient=True, foreseen=True),
    ],
)
def test_the_head_keeps_exactly_what_the_formula_counts(path: ScoringPath) -> None:
    model = tiny_llama(torch.float32, **GQA).train()
    shape = model_shape(model)
    assert kept_by_autograd(model, path) == saved_bytes(shape, the_pass(), path) + head_saved(shape, the_pass(), path)


def test_recomputed_layers_keep_their_input_only() -> None:
    path, seen, counted = ScoringPath(checkpointing=True), [], []
    for layers in (1, 3):
        model = tiny_llama(torch.float32, num_hidden_layers=layers, **GQA).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        seen.append(kept_by_autograd(model, path))
        counted.append(saved_bytes(model_shape(model), the_pass(), path))
    assert seen[1] - seen[0] == counted[1] - counted[0] == 2 * the_pass().tokens * 64 * 4
    assert counted[0] == the_pass().tokens * 64 * 4 + ends_saved(model_shape(model), the_pass(), path)


class Alive(TorchDispatchMode):
    """Follows the memory of the tensors that operations make: now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {
            value.untyped_storage()._cdata
            for value in tree_flatten((args, kwargs or {}))[0]
            if isinstance(value, torch.Tensor)
        }
        for value in tree_flatten(result)[0]:
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in known | self._seen:
                self._follow(value.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        size, key = storage.nbytes(), storage._cdata
        self._seen.add(key)
        self.now += size
        self.most = max(self.most, self.now)

        def gone() -> None:
            self._seen.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def vocabulary_heavy() -> Any:
    """A model whose logits outweigh everything else, as those of a real vocabulary do."""
    model = tiny_llama(torch.float32, tie_word_embeddings=True, **GQA)
    model.resize_token_embeddings(20_000, mean_resizing=False)
    return model


@pytest.mark.parametrize(
    "path",
    [
        ScoringPath(),
        ScoringPath(exact_entropy=True),
        ScoringPath(exact_entropy=True, restricted=True, tempered=True),
        ScoringPath(exact_entropy=True, entropy_gradient=True),
        ScoringPath(separate_head=True),
        ScoringPath(separate_head=True, exact_entropy=True, restricted=True, tempered=True),
        ScoringPath(separate_head=True, exact_entropy=True, entropy_gradient=True, foreseen=True),
    ],
)
def test_a_training_slice_has_at_most_what_the_formula_says_alive(path: ScoringPath) -> None:
    model = vocabulary_heavy().train()
    install_layouts(model)
    shape, batch, scorer = model_shape(model), a_batch(), a_scorer(path, 20_000)
    chunks = scorer.assemble(batch, RowRange(0, batch.total_sequences), torch.float32)
    phases = training_phases(shape, [the_pass()], path, more_slices=False)
    with Alive() as forward:
        scores = scorer.score(model, chunks, COMPLETION, slopes_of(path, batch))
        loss = scores.logp.sum() + (scores.entropy.sum() if path.entropy_gradient else 0)
        in_forward = forward.most
        forward.most = forward.now
        loss.backward()
    assert in_forward == pytest.approx(phases[0].size, rel=0.05)
    assert forward.most == pytest.approx(max(phase.size for phase in phases[1:]), rel=0.1)


@pytest.mark.parametrize("restricted", [False, True])
def test_sampling_has_at_most_what_the_formula_says_alive(restricted: bool) -> None:
    model = vocabulary_heavy()
    allowed = None
    if restricted:
        allowed = torch.ones(20_000, dtype=torch.bool)
        allowed[3] = False
    num, limit = 12, 6
    prompts = [list(range(10, 17)), list(range(30, 37))]
    with torch.no_grad(), evaluation_mode(model), Alive() as alive:
        prefix = prefill(model, prompts, 0, torch.device("cpu"))
        job = DecodeJob(
            torch.arange(num) % 2, torch.full((num, limit), 0.5, dtype=torch.float64), [f"row-{n}" for n in range(num)]
        )
        decode(model, prefix, job, SamplingControls(1.0), is_end=torch.zeros(20_000, dtype=torch.bool), allowed=allowed)
    shape = model_shape(model)
    draw = draw_bytes(shape, restricted=restricted, tempered=False, nucleus=False, counted=False)
    phase = sampling_phase(
        "sampling", shape, prompts=2, sequences=num, prompt=7, completion=limit, draw=draw, eager=False, on_gpu=False
    )
    assert alive.most == pytest.approx(phase.size, rel=0.1)


def test_a_slice_with_gradients_of_others_and_of_several_passes_holds_more() -> None:
    shape = model_shape(vocabulary_heavy())
    one, path = the_pass(), ScoringPath(exact_entropy=True)
    [alone, *_] = training_phases(shape, [one], path, more_slices=False)
    [after_others, *_] = training_phases(shape, [one], path, more_slices=True)
    [twice, *_] = training_phases(shape, [one, one], path, more_slices=False)
    assert after_others.size - alone.size == shape.weights
    assert twice.size - alone.size == saved_bytes(shape, one, path) + head_saved(shape, one, path)
    assert head_forward(shape, one, path) > head_forward(shape, one, replace(path, exact_entropy=False))
    on_gpu, on_cpu = optimizer_phase(shape, lists=True), optimizer_phase(shape, lists=False)
    assert on_gpu.size - on_cpu.size == shape.weights - 2 * shape.embedding


def test_weights_of_16_bits_are_trained_as_a_copy_of_32(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", "model.dtype=bfloat16", "optimization.total_training_steps=1")

    def body(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> dict[str, Any]:
        run_training(ctx, resources, parts)
        return ctx.optimization.handles.base_optimizer.state_dict()

    state = inside_run(config, body)
    sight = look(config)
    shape = model_shape(sight.model)
    estimate = memory_estimate(config, workload(config, sight), shape, process=0, on_gpu=False)
    sizes = {part.name: part.size for part in estimate.persistent}
    assert shape.weights == 2 * shape.num_parameters
    assert sizes["float32 copy of the weights"] == shape.master == sum(copy.nbytes for copy in state[MASTERS])
    moments = [moment[name].nbytes for moment in state["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    assert sizes["optimiser states"] == sum(moments) == 2 * shape.master
    wide = replace(shape, itemsize=4)
    assert (wide.master, wide.updated, wide.updated_block) == (0, wide.weights, wide.embedding)
    one, path = the_pass(), ScoringPath()
    [*_, alone] = training_phases(shape, [one], path, more_slices=False)
    [*_, after_others] = training_phases(shape, [one], path, more_slices=True)
    assert after_others.size - alone.size == shape.master
    assert optimizer_phase(shape, lists=False).size == shape.master + 2 * shape.updated_block


def test_passes_and_room_are_counted_as_they_are_made() -> None:
    shared = scoring_pass(8, 4, 10, 12, 3, shared=True)
    assert (shared.rows, shared.width, shared.kept, shared.scored) == (2, 24, 15, 24)
    flat = scoring_pass(8, 4, 10, 12, 3, shared=True, laid_out=True)
    assert (flat.rows, flat.width, flat.kept, flat.scored) == (1, 48, 39, 24)
    cut = scoring_pass(6, 4, 10, 10, 3, shared=True)
    assert (cut.rows, cut.width) == (3, 22)
    padded = scoring_pass(6, 4, 10, 12, 3, shared=False)
    assert (padded.rows, padded.width, padded.kept, padded.tokens) == (6, 15, 4, 90)
    assert [room_tokens(limit) for limit in (5, 64, 65, 130)] == [5, 64, 128, 192]


def test_the_heap_keeps_small_blocks_of_other_phases_and_a_gpu_does_not() -> None:
    many_small = Phase("many small", (Part("a", 100 * MIB, MIB),))
    few_large = Phase("few large", (Part("b", 80 * MIB, HEAP_BLOCK), Part("c", 10 * MIB, MIB)))
    weights = (Part("weights", 5 * MIB, MIB),)
    cpu = MemoryEstimate(7 * MIB, weights, (many_small, few_large), on_gpu=False, returned_from=HEAP_BLOCK)
    assert (cpu.worst, cpu.peak) == (few_large, (7 + 5 + 80 + 100) * MIB)
    own = MemoryEstimate(7 * MIB, weights, (many_small, few_large), on_gpu=False, returned_from=MIB)
    assert (own.worst, own.peak) == (many_small, (7 + 5 + 100) * MIB)
    gpu = MemoryEstimate(0, weights, (many_small, few_large), on_gpu=True, returned_from=0)
    assert (gpu.worst, gpu.peak) == (many_small, 105 * MIB)


def test_a_shape_of_known_sizes() -> None:
    smol = ModelShape(30, 576, 9, 3, 64, 1536, 49_152, True, 4, 134_515_008)
    assert smol.cache_per_token == 2 * 30 * 3 * 64 * 4
    assert smol.weights == 538_060_032
    one = scoring_pass(32, 8, 78, 78, 48, shared=True)
    # 6 hidden + 4 heads + 4 feed-forward widths, a log-sum-exp per head, two reciprocal roots
    assert layer_saved(smol, one, ScoringPath()) == 4 * one.tokens * (6 * 576 + 4 * 576 + 4 * 1536 + 9 + 2)
    # in a layout keys and values keep their own width
    flat = scoring_pass(32, 8, 78, 78, 48, shared=True, laid_out=True)
    saved = 4 * flat.tokens * (6 * 576 + 2 * 576 + 2 * 192 + 4 * 1536 + 9 + 2)
    assert layer_saved(smol, flat, ScoringPath()) == saved
