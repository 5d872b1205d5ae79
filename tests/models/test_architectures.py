"""Every architecture that the documentation lists: trained, scored, sampled, saved and resumed from a random checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import ARCHITECTURES, TURN_END, save_checkpoint
from support.runs import checkpoint_of, configured, inside_run, train, weights_of
from support.tiny import prompt_entries, row_prompts, sampling_settings
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.models.attention import LAID_OUT, takes_layouts
from maxent_grpo.training.checkpoint.weights import MODEL_FOLDER
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.scoring import attention_parts, policy
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.packing import Sharing
from maxent_grpo.training.scoring.policy import TokenScorer, TokenScores
from maxent_grpo.training.scoring.shared_attention import SharedPrompts
from maxent_grpo.training.scoring.sharing import layout_problem, sharing_problem
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, ScoreBatch
from maxent_grpo.training.types.runtime import BatchingSettings

PROMPTS = ("1+1=", "colour the map: ")
LENGTHS = ((3, 9, 5), (8, 2))
"""Completions behind each prompt; some are longer than the checkpoints' windows of 6, and so is the second prompt."""
STEPS = ("evaluation.enabled=false", "checkpoint.every_n_steps=1", "generation.allowed_tokens=[]")


@dataclass
class Trained:
    """A checkpoint after two steps of the real path."""

    kind: str
    checkpoint: Path
    run_dir: Path
    overrides: tuple[str, ...]
    model: Any
    tokenizer: Any
    scorer: TokenScorer
    end_tokens: frozenset[int]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    checkpoint = save_checkpoint(folder / "checkpoint", kind)
    overrides = ("model=hf", f"model.name={checkpoint}", *ARCHITECTURES[kind].settings, *STEPS)

    def body(ctx: Any, resources: Any, parts: Any) -> Trained:
        run_training(ctx, resources, parts)
        runtime, ends = ctx.runtime, resources.generator._eos_token_ids
        return Trained(
            kind, checkpoint, folder / "run", overrides, runtime.model, runtime.tokenizer, resources.scorer, ends
        )

    return inside_run(configured(folder / "run", *overrides), body)


def batch_of(tokenizer: Any) -> ScoreBatch:
    """Random completions of the lengths above."""
    generator = torch.Generator().manual_seed(3)
    groups = [
        [CompletionRecord("r", torch.randint(8, 90, (n,), generator=generator).tolist(), None, FinishReason.eos, 0) for n in group]
        for group in LENGTHS
    ]  # fmt: skip
    lookup = BatchingSettings(0, 0, prompt_entries(tokenizer))
    return build_score_batch(list(PROMPTS), groups, lookup, pad_token_id=0, max_prompt_len=64)


def scores(model: Any, scorer: TokenScorer, batch: ScoreBatch) -> TokenScores:
    chunks = scorer.assemble(batch, RowRange(0, batch.total_sequences), next(model.parameters()).dtype)
    return scorer.score(model, chunks, batch.completion_ids.shape[1])


def gradients(model: Any, scorer: TokenScorer, batch: ScoreBatch) -> tuple[Tensor, Tensor]:
    """Log-probs of a batch, and the gradient of their mean over all weights."""
    model.zero_grad()
    logp = scores(model, scorer, batch).logp
    (logp.sum() / batch.completion_attention_mask.sum()).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    model.zero_grad()
    return logp.detach(), gradient.clone()


def test_two_steps_move_every_weight_and_a_resumed_run_moves_them_alike(trained: Trained, tmp_path: Path) -> None:
    before = load_file(trained.checkpoint / "model.safetensors")
    after = weights_of(checkpoint_of(trained.run_dir, 2))
    assert before.keys() == after.keys()
    assert [name for name in before if torch.equal(before[name], after[name])] == []
    train(tmp_path / "resumed", *trained.overrides, resume_from=checkpoint_of(trained.run_dir, 1))
    resumed = weights_of(checkpoint_of(tmp_path / "resumed", 2))
    assert [name for name in after if not torch.equal(resumed[name], after[name])] == []


@pytest.mark.parametrize("whole", [0, attention_parts.WHOLE])
def test_packed_and_padded_rows_give_the_same_log_probs_and_gradients(
    trained: Trained, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_parts, "WHOLE", whole)
    batch = batch_of(trained.tokenizer)
    taken = Sharing.masks if trained.kind == "gemma2" else Sharing.layout  # gemma2's capping needs attention=eager
    assert (trained.scorer.sharing, trained.scorer.padded) == (taken, False)
    packed, packed_gradient = gradients(trained.model, trained.scorer, batch)
    for other in ({"padded": True}, {"sharing": Sharing.none}, {"sharing": Sharing.masks}):
        logp, gradient = gradients(trained.model, replace(trained.scorer, **other), batch)
        torch.testing.assert_close(logp, packed, atol=1e-5, rtol=0)
        torch.testing.assert_close(gradient, packed_gradient, atol=1e-4, rtol=0)
    direct = [alone(trained.model, prompt, ids) for prompt, ids in rows_of(batch)]
    torch.testing.assert_close(packed[batch.completion_attention_mask], torch.cat(direct), atol=1e-5, rtol=0)


def rows_of(batch: ScoreBatch) -> list[tuple[list[int], list[int]]]:
    mask = batch.completion_attention_mask
    return [
        (entry.input_ids, batch.completion_ids[row][mask[row]].tolist())
        for row, entry in enumerate(batch.prompt_entries)
    ]


@torch.no_grad()
def alone(model: Any, prompt: list[int], ids: list[int]) -> Tensor:
    """Log-probs of one sequence by a plain call of the model, as its own code masks it."""
    logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(ids)), ids]


def sampler_of(trained: Trained, **controls: Any) -> LocalGenerator:
    settings, ids = sampling_settings(max_completion_len=12, **controls), trained.tokenizer
    return LocalGenerator(
        trained.model, ids, settings, prompt_entries(ids), seed=1, stream="train", pad_token_id=0,
        eos_token_ids=trained.end_tokens,
    )  # fmt: skip


def test_the_sampler_and_the_scorer_have_the_same_log_probs(trained: Trained) -> None:
    _, records = sampler_of(trained)(row_prompts(*PROMPTS), 3)
    groups = [[record for record in group if record is not None] for group in records]
    lookup = BatchingSettings(0, 0, prompt_entries(trained.tokenizer))
    batch = build_score_batch(list(PROMPTS), groups, lookup, pad_token_id=0, max_prompt_len=64)
    reported = [value for group in groups for record in group for value in record.behaviour_logp or []]
    with torch.no_grad():
        scored = scores(trained.model, trained.scorer, batch).logp[batch.completion_attention_mask]
    torch.testing.assert_close(scored, torch.tensor(reported), atol=1e-5, rtol=0)
    assert len(reported) > 24


def test_greedy_decoding_is_that_of_generate(trained: Trained) -> None:
    """Prompts of two lengths in one batch, completions longer than the windows, several of one prompt side by side."""
    _, records = sampler_of(trained, temperature=0.0)(row_prompts(*PROMPTS), 2)
    with evaluation_mode(trained.model):
        for prompt, group in zip(PROMPTS, records, strict=True):
            ids = torch.tensor([prompt_entries(trained.tokenizer)(prompt).input_ids])
            expected = trained.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
                eos_token_id=sorted(trained.end_tokens), pad_token_id=0,
            )[0, ids.shape[1] :].tolist()  # fmt: skip
            assert [record.token_ids for record in group if record is not None] == [expected, expected]


def test_a_saved_model_loads_as_usual_with_the_same_log_probs_and_says_what_ends_a_turn(trained: Trained) -> None:
    folder = checkpoint_of(trained.run_dir, 2) / MODEL_FOLDER
    implementation = trained.model.config._attn_implementation
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=implementation)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for prompt, ids in rows_of(batch_of(tokenizer)):
        assert torch.equal(alone(model, prompt, ids), alone(trained.model, prompt, ids))
    turn_end = tokenizer.convert_tokens_to_ids(TURN_END)
    assert set(model.generation_config.eos_token_id) == trained.end_tokens == {tokenizer.eos_token_id, turn_end}


def test_checkpointing_and_the_attention_implementation_change_nothing(trained: Trained) -> None:
    batch, model = batch_of(trained.tokenizer), trained.model
    logp, plain = gradients(model, trained.scorer, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, recomputed = gradients(model, trained.scorer, batch)
    model.gradient_checkpointing_disable()
    torch.testing.assert_close(recomputed, plain, atol=1e-6, rtol=0)
    if trained.kind != "gemma2":  # sdpa leaves out its capping, and is refused
        model.set_attn_implementation("eager")
        with pytest.raises(ValueError, match="takes no layout"):
            gradients(model, trained.scorer, batch)
        eager, gradient = gradients(model, replace(trained.scorer, sharing=Sharing.masks), batch)
        model.set_attn_implementation(LAID_OUT)
        torch.testing.assert_close(eager, logp, atol=1e-5, rtol=0)
        torch.testing.assert_close(gradient, plain, atol=1e-4, rtol=0)


def test_a_window_left_out_of_a_mask_is_noticed_before_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sharing_problem(trained.model) == ""
    monkeypatch.setattr(policy, "windowed_masks", lambda mask, *_: mask)
    found = sharing_problem(trained.model)
    if ARCHITECTURES[trained.kind].window is None:
        assert found == ""
    else:
        assert "gives other log-probabilities behind a shared prompt (by " in found
        assert trained.model.config.sliding_window == ARCHITECTURES[trained.kind].window


def test_a_window_left_out_of_a_layout_is_noticed_before_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not takes_layouts(trained.model):
        assert layout_problem(trained.model) == "attention eager takes no layout; sdpa does"
        return
    windows = [getattr(module, "sliding_window", None) for module in trained.model.modules()]
    assert layout_problem(trained.model) == ""
    attend = SharedPrompts.attend
    monkeypatch.setattr(SharedPrompts, "attend", lambda *given, window, **how: attend(*given, window=None, **how))
    found = layout_problem(trained.model)
    assert bool(found) == (ARCHITECTURES[trained.kind].window is not None)
    assert not found or "gives other log-probabilities behind a shared prompt (by " in found
    assert [getattr(module, "sliding_window", None) for module in trained.model.modules()] == windows


def test_the_documentation_lists_every_architecture_here_and_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    rows = [
        line.split("|")[1].strip().lower().replace(" ", "").replace("-", "")
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    for kind in ARCHITECTURES:
        assert any(row.startswith(kind.split("-")[0]) for row in rows), kind
    for field in fields(HfModelConfig):
        assert field.name == "lora" or f"model.{field.name}" in page
