"""The training step against itself cut in other ways, and against updates written out by hand; in double precision.

Transformers normalises in single precision inside, so that layouts agree to about 1e-7 even in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.identical import assert_identical
from support.laboratory import Laboratory, Outcome, largest_difference
from support.runs import checkpoint_of, configured, metric_lines, only_reward, train, weights_of
from torch import Tensor

from maxent_grpo.errors import NonFiniteError, RewardError
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.types.choices import FinishReason

TOLERANCE = 1e-6
DOUBLE = (
    "model.dtype=float64",
    "evaluation.enabled=false",
    "optimization.max_grad_norm=0",
    "optimization.adam_epsilon=1e-3",
    "optimization.weight_decay=0.1",
)
METHODS = ("grpo", "dr_grpo", "maxent", "maxent_listwise")
MEASURED = ("loss/", "weights/", "policy/", "reward/", "advantage/", "reference/", "optim/")

BuildLaboratory = Callable[..., Laboratory]


@pytest.fixture
def laboratory(tmp_path: Path) -> BuildLaboratory:
    def build(*extra: str, drift: float = 0.05) -> Laboratory:
        run_dir = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return Laboratory(configured(run_dir, *DOUBLE, *extra), drift=drift)

    return build


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Laboratory, Outcome]]:
    """For each method, a laboratory with five prompts a step, and its step taken in one piece; made once."""

    @cache
    def build(method: str) -> tuple[Laboratory, Outcome]:
        regularised = ("scoring.kl_beta=0.1", "scoring.entropy_coef=0.01", "scoring.weighting.beta=0.05")
        config = configured(
            tmp_path_factory.mktemp("bench") / "run",
            *DOUBLE,
            f"scoring={method}",
            *regularised,
            "optimization.prompts_per_step=5",
        )
        made = Laboratory(config)
        return made, made.step(made.rollout())

    return build


CUTS: dict[str, dict[str, Any]] = {
    "two loader batches": {"optimization.grad_accum_steps": 2},
    "three loader batches": {"optimization.grad_accum_steps": 3},
    "slices that cut groups": {"score_slice": 3},
    "slices that cut groups, within two loader batches": {"score_slice": 5, "optimization.grad_accum_steps": 2},
    "slices of whole groups": {"score_slice": 8},
    "a token budget": {"max_tokens": 60},
    "chunks inside a slice": {"logprob_chunk_size": 3, "score_slice": 7},
    "slices assembled ahead": {"score_slice": 3, "slice_prefetch": 2},
    "padded rows": {"share_prompts": False, "score_slice": 6},
    "as TRL scores": {"padded": True},
    "no prompt cache": {"no_cache": True, "score_slice": 6},
}


def cut(lab: Laboratory, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """Set path settings of a run that is already put together."""
    assert lab.resources.scorer is not None
    assert lab.resources.reference_scorer is not None
    for name, value in settings.items():
        if name == "optimization.grad_accum_steps":
            monkeypatch.setattr(lab.ctx.optimization.schedule, "grad_accum_steps", value)
        elif name == "padded":
            monkeypatch.setattr(lab.resources.scorer, "padded", value)
            monkeypatch.setattr(lab.resources.reference_scorer, "padded", value)
        elif name == "no_cache":
            monkeypatch.setattr(lab.ctx.runtime.prompt_cache_get, "_size", 0)
            lab.ctx.runtime.prompt_cache_get._entries.clear()  # type: ignore[union-attr]
        else:
            monkeypatch.setattr(lab.ctx.scoring.batching, name, value)


CHOSEN = {("maxent", cut) for cut in CUTS} | {
    (method, cut) for method in METHODS for cut in ("slices that cut groups, within two loader batches", "padded rows")
}
"""The short form: every cut of the method that has every term, and two of the others, of which one is not prompt-shared."""


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param(
            method, settings, id=f"{name}-{method}", marks=() if (method, name) in CHOSEN else pytest.mark.slow
        )
        for name, settings in CUTS.items()
        for method in METHODS
    ],
)
def test_cutting_a_step_differently_is_the_same_step(
    bench: Callable[[str], tuple[Laboratory, Outcome]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    settings: dict[str, Any],
) -> None:
    lab, whole = bench(method)
    lab.reset()
    cut(lab, monkeypatch, settings)
    pieces = lab.step(lab.rollout())
    assert pieces.loss == pytest.approx(whole.loss, abs=TOLERANCE)
    assert largest_difference(pieces.gradient, whole.gradient) < TOLERANCE
    assert max(float(gradient.abs().max()) for gradient in whole.gradient.values()) > 1e3 * TOLERANCE
    assert largest_difference(pieces.weights, whole.weights) < 10 * TOLERANCE
    assert pieces.metrics.keys() == whole.metrics.keys()
    for name, value in whole.metrics.items():
        if name.startswith(MEASURED):
            assert pieces.metrics[name] == pytest.approx(value, abs=TOLERANCE), name


def log_probs(lab: Laboratory, model: Any, prompt: str, token_ids: list[int]) -> Tensor:
    """Log-probability of each completion token, from one forward pass without padding, batching or sharing."""
    prompt_ids = lab.ctx.runtime.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    logits = model(input_ids=torch.tensor([prompt_ids + token_ids]), use_cache=False).logits[0]
    allowed = [*(lab.ctx.generation.allowed_token_ids or ()), lab.ctx.runtime.tokenizer.eos_token_id]
    among = logits[len(prompt_ids) - 1 : -1][:, allowed] / lab.ctx.generation.gen_temperature
    drawn = torch.tensor([allowed.index(token) for token in token_ids])
    return torch.log_softmax(among, dim=-1)[torch.arange(len(token_ids)), drawn]


def hand_written_loss(lab: Laboratory, experience: Experience, *, listwise: float, truncation: str = "keep") -> Tensor:
    """Dr.GRPO with k3 to the reference, plus ``listwise`` times the cross-entropy, one completion after another."""
    weighting, t_max, kl_beta = (
        lab.ctx.scoring.weighting,
        lab.ctx.generation.max_completion_len,
        lab.ctx.scoring.kl_beta,
    )
    groups = [
        (prompt, list(group)) for prompt, group in zip(experience.batch.prompts, experience.batch.records, strict=True)
    ]
    utilities, at = experience.graded.utilities, 0
    policy: list[Tensor] = []
    cross_entropy: list[Tensor] = []
    num_valid = 0
    for prompt, records in groups:
        u = utilities[at : at + len(records)]
        at += len(records)
        ended = [record.finish_reason is not FinishReason.length for record in records]
        valid = ended if truncation == "exclude" else [True] * len(records)
        trained = ended if truncation == "mask_loss" else valid
        num_valid += sum(valid)
        mean = sum(x for x, v in zip(u, valid, strict=True) if v) / max(sum(valid), 1)
        current = [log_probs(lab, lab.model, prompt, record.token_ids) for record in records]
        with torch.no_grad():
            reference = [
                log_probs(lab, lab.ctx.runtime.reference_model, prompt, record.token_ids) for record in records
            ]
        for i in range(len(records)):
            if trained[i]:
                ratio = (current[i] - current[i].detach()).exp()
                gap = reference[i] - current[i]
                policy.append((kl_beta * (gap.exp() - 1 - gap) - (u[i] - mean) * ratio).sum())
        members = [i for i in range(len(records)) if ended[i]]
        all_wrong = (
            max(u[i] for i in members) == min(u[i] for i in members) < weighting.right_threshold if members else True
        )
        if listwise and members and not all_wrong:
            q = torch.softmax(torch.tensor([u[i] for i in members], dtype=torch.float64), 0)
            q = (1 - len(q) * weighting.q_epsilon) * q + weighting.q_epsilon
            tilted = [
                log_q + weighting.beta * float(reference[i].sum())
                for log_q, i in zip(q.log().tolist(), members, strict=True)
            ]
            w = torch.softmax(torch.tensor(tilted, dtype=torch.float64) / (weighting.tau + weighting.beta), 0)
            log_p = torch.log_softmax(torch.stack([current[i].sum() for i in members]), 0)
            cross_entropy.append(-(w * log_p).sum())
    loss = torch.stack(policy).sum() / (num_valid * t_max)
    if cross_entropy:
        loss = loss + listwise / t_max * torch.stack(cross_entropy).sum() / len(groups)
    return loss


def hand_written_update(lab: Laboratory, loss: Tensor) -> dict[str, Tensor]:
    """Parameters after the first AdamW step: both bias-corrected moments are the gradient and its square."""
    names, parameters = zip(*lab.model.named_parameters(), strict=True)
    rate, epsilon, decay = 0.01, 1e-3, 0.1
    gradients = torch.autograd.grad(loss, parameters)
    return {
        name: (parameter - rate * decay * parameter - rate * gradient / (gradient.abs() + epsilon)).detach()
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True)
    }


@pytest.mark.parametrize("truncation", ["keep", "mask_loss", "exclude"])
@pytest.mark.parametrize(("method", "listwise"), [("dr_grpo", 0.0), ("maxent", 0.3)])
def test_a_step_is_the_update_written_by_hand(
    laboratory: BuildLaboratory, method: str, listwise: float, truncation: str
) -> None:
    lab = laboratory(
        f"scoring={method}",
        "scoring.kl_beta=0.1",
        f"scoring.weighting.beta={0.05 if listwise else 0}",
        f"scoring.truncation={truncation}",
        "generation.temperature=1.3",
    )
    experience = lab.rollout()
    cut_off = [record.finish_reason is FinishReason.length for record in experience.graded.records]
    assert 0 < sum(cut_off) < len(cut_off)
    loss = hand_written_loss(lab, experience, listwise=listwise, truncation=truncation)
    expected = hand_written_update(lab, loss)
    before = lab.weights()
    taken = lab.step(experience)
    assert taken.loss == pytest.approx(float(loss.detach()), abs=TOLERANCE)
    assert largest_difference(taken.weights, expected) < 10 * TOLERANCE
    assert largest_difference(taken.weights, before) > 1e3 * TOLERANCE


def test_how_truncated_completions_count(laboratory: BuildLaboratory) -> None:
    """`keep` trains them, `mask_loss` keeps them in the group's mean only, `exclude` forgets them."""
    seen = {}
    for truncation in ("keep", "mask_loss", "exclude"):
        lab = laboratory(f"scoring.truncation={truncation}")
        experience = lab.rollout()
        cut_off = ~experience.complete
        seen[truncation] = experience
        trained = experience.mask.any(dim=-1).view_as(cut_off)
        assert trained.equal(torch.ones_like(cut_off) if truncation == "keep" else ~cut_off)
        assert experience.valid.equal(~cut_off if truncation == "exclude" else torch.ones_like(cut_off))
        advantages = torch.tensor(experience.rewards.advantage.grouped)
        assert (advantages[cut_off] == 0).all() == (truncation == "exclude")
    assert seen["keep"].rewards.advantage.grouped == seen["mask_loss"].rewards.advantage.grouped
    assert seen["keep"].rewards.advantage.grouped != seen["exclude"].rewards.advantage.grouped


@pytest.mark.parametrize(
    "measuring",
    [
        ("scoring=soft", "scoring.weighting.beta=0.05"),
        ("scoring=seed_grpo",),
        ("scoring=unlikeliness",),
        ("scoring=dr_grpo", "scoring.policy_entropy_bonus_coef=0.5", "scoring.policy_entropy=true"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_what_is_measured_of_a_truncated_completion_does_not_hang_on_whether_it_is_trained(
    laboratory: BuildLaboratory, measuring: tuple[str, ...]
) -> None:
    kept, masked = (laboratory(*measuring, f"scoring.truncation={how}").rollout() for how in ("keep", "mask_loss"))
    assert not masked.complete.all()
    assert kept.measured.equal(masked.measured)
    assert not kept.mask.equal(masked.mask)
    for measured in ("behaviour_scores", "token_entropy_mean"):
        one, other = getattr(kept, measured), getattr(masked, measured)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    assert kept.rewards.total_utils == masked.rewards.total_utils
    assert kept.rewards.shaped_utils == masked.rewards.shaped_utils
    assert kept.rewards.seed_semantic_entropies == masked.rewards.seed_semantic_entropies
    if kept.reference is not None and masked.reference is not None:
        assert torch.equal(kept.reference.ref_logp_sum, masked.reference.ref_logp_sum)


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "maxent"])
def test_with_one_update_per_rollout_the_ratio_is_exactly_one_and_the_clip_does_nothing(
    tmp_path: Path, method: str
) -> None:
    runs = {}
    for clip_range in ("0.2", "0.001"):
        train(tmp_path / clip_range, f"scoring={method}", f"scoring.clipping.clip_range={clip_range}")
        runs[clip_range] = weights_of(checkpoint_of(tmp_path / clip_range))
        steps = metric_lines(tmp_path / clip_range)[1:]
        assert [(line["policy/ratio_mean"], line["policy/ratio_max"]) for line in steps] == [(1.0, 1.0)] * 2
        assert all(line["policy/clip_ratio"] == line["policy/log_ratio_abs_mean"] == 0.0 for line in steps)
    assert_identical(runs["0.2"], runs["0.001"])


def test_with_two_passes_over_a_rollout_the_clip_acts(tmp_path: Path) -> None:
    runs = {}
    for clip_range in ("0.2", "0.001"):
        two_passes = ("optimization.num_iterations=2", f"scoring.clipping.clip_range={clip_range}")
        train(tmp_path / clip_range, *two_passes)
        first, second = metric_lines(tmp_path / clip_range)[1:]
        assert first["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert second["policy/ratio_max"] > 1.001
        assert second["generation/staleness"] == 1
        runs[clip_range] = (weights_of(checkpoint_of(tmp_path / clip_range)), second["policy/clip_ratio"])
    assert runs["0.001"][1] > runs["0.2"][1]
    assert largest_difference(runs["0.2"][0], runs["0.001"][0]) > 1e-4


@pytest.mark.parametrize("choice", ["skip", "step"])
def test_a_step_without_signal_is_skipped_or_taken(laboratory: BuildLaboratory, choice: str) -> None:
    """A skipped step leaves weights, moments and schedule alone; a taken one decays the weights."""
    lab = laboratory(
        f"optimization.zero_signal_step={choice}",
        *only_reward("half"),
        "optimization.lr_scheduler_type=linear",
    )
    before = lab.weights()
    taken = lab.step(lab.rollout())
    assert taken.metrics["optim/gradient_norm"] == 0.0
    assert taken.metrics["optim/skipped"] == float(choice == "skip")
    handles = lab.ctx.optimization.handles
    if choice == "skip":
        assert_identical(taken.weights, before)
        assert not handles.base_optimizer.state_dict()["state"]
        assert handles.base_optimizer.param_groups[0]["lr"] == 0.01
    else:
        decayed = {name: weight * (1 - 0.01 * 0.1) for name, weight in before.items()}
        assert largest_difference(taken.weights, decayed) < 1e-12
        assert handles.base_optimizer.param_groups[0]["lr"] < 0.01


def assert_untouched(lab: Laboratory, before: dict[str, Tensor]) -> None:
    assert_identical(lab.weights(), before)
    assert not lab.ctx.optimization.handles.base_optimizer.state_dict()["state"]


def test_a_loss_that_is_not_finite_stops_before_the_update(laboratory: BuildLaboratory) -> None:
    lab = laboratory("scoring=maxent")
    experience = lab.rollout()
    with torch.no_grad():
        lab.model.get_output_embeddings().weight[lab.ctx.runtime.tokenizer.eos_token_id, 0] = math.nan
    before = lab.weights()
    with pytest.raises(
        NonFiniteError, match="step 1, process 0: loss is nan; the optimiser step was not taken"
    ) as stop:
        lab.step(experience)
    # every completion's distribution holds the end token
    assert "Of its terms not finite: policy, listwise. Not finite: log-probs of the policy of row coloring-" in str(
        stop.value
    )
    assert f"completion 1 of 4 ({str(experience.batch.prompts[0])!r})" in str(stop.value)
    assert_untouched(lab, before)


def test_a_gradient_that_is_not_finite_stops_before_the_update(laboratory: BuildLaboratory) -> None:
    lab = laboratory()
    experience = lab.rollout()
    before = lab.weights()
    lab.model.get_output_embeddings().weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteError, match=r"step 1, process 0: gradient norm is (nan|inf)"):
        lab.step(experience)
    assert_untouched(lab, before)


def test_logits_that_are_not_finite_stop_sampling(laboratory: BuildLaboratory) -> None:
    lab = laboratory()
    with torch.no_grad():
        lab.model.get_output_embeddings().weight[lab.ctx.runtime.tokenizer.eos_token_id, 0] = math.nan
    before = lab.weights()
    with pytest.raises(NonFiniteError):
        lab.rollout()
    assert_untouched(lab, before)


def test_a_reward_that_is_not_a_number_stops_before_the_update(laboratory: BuildLaboratory) -> None:
    lab = laboratory(*only_reward("not_a_number_on_green"))
    before = lab.weights()
    with pytest.raises(RewardError, match=r"reward term 'not_a_number_on_green' on row coloring-.* returned nan"):
        lab.rollout()
    assert_untouched(lab, before)


class Misreporting:
    """Reports each log-probability 0.1 too low, and none at all for the first completion of a call."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def begin_rollout(self, index: int) -> None:
        self._sampler.begin_rollout(index)

    policy_version = 0

    def __call__(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[Any | None]] | None]:
        texts, records = self._sampler(prompts, num_samples, per_prompt_counts)
        for record in (record for group in records for record in group):
            record.behaviour_logp = [value - 0.1 for value in record.behaviour_logp]
        records[0][0].behaviour_logp = None
        return texts, records


def test_a_completion_without_reported_log_probs_counts_as_on_policy(laboratory: BuildLaboratory) -> None:
    lab = laboratory("scoring.behavior_logprobs_source=sampler")
    lab.resources.generator = Misreporting(lab.resources.generator)
    taken = lab.step(lab.rollout())
    log_ratios = torch.cat([loss.log_ratio_train for loss in taken.report.losses])
    lengths = torch.cat([loss.denom_tok_tensor for loss in taken.report.losses])
    assert log_ratios[0] == 0.0
    torch.testing.assert_close(log_ratios[1:], 0.1 * lengths[1:].double(), rtol=0, atol=2e-6)


def test_the_mismatch_weight_of_a_completion_without_reported_log_probs_is_one(laboratory: BuildLaboratory) -> None:
    """With every reported log-prob 0.1 too low the others weigh exp(0.1)."""
    corrected = ("scoring=dr_grpo", "scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate")
    lab = laboratory(*corrected)
    plain = lab.step(lab.rollout()).gradient
    lab.reset()
    lab.resources.generator = Misreporting(lab.resources.generator)
    experience = lab.rollout()
    advantages = torch.tensor(experience.rewards.advantage.samples, dtype=torch.float64)
    assert advantages[0] != 0
    taken = lab.step(experience)
    weight = torch.full_like(advantages, math.exp(0.1))
    weight[0] = 1.0
    t_max = lab.ctx.generation.max_completion_len
    lab.reset()
    objective = torch.stack(
        [
            a * w * log_probs(lab, lab.model, prompt, record.token_ids).sum()
            for a, w, prompt, record in zip(
                advantages.tolist(),
                weight.tolist(),
                experience.rewards.pairs.prompts,
                experience.graded.records,
                strict=True,
            )
        ]
    ).sum()
    names, parameters = zip(*lab.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(-objective / (len(advantages) * t_max), parameters)
    assert largest_difference(taken.gradient, dict(zip(names, gradients, strict=True))) < TOLERANCE
    assert largest_difference(taken.gradient, plain) > 1e2 * TOLERANCE


def test_the_gap_to_the_sampler_is_measured_at_the_weights_that_sampled(tmp_path: Path) -> None:
    reused = ("scoring=dr_grpo", "optimization.num_iterations=2", "evaluation.enabled=false", "model.dtype=float64")
    train(tmp_path / "run", *reused, "scoring.behavior_logprobs_source=sampler")
    first, second = metric_lines(tmp_path / "run")
    assert first["generation/logprob_gap"] < 1e-12
    assert second["policy/log_ratio_abs_mean"] > 1e-2
    assert "generation/logprob_gap" not in second
