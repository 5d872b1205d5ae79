"""Complaints about ratio, clip, KL, entropy and importance sampling, each with the number that is right."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from support.laboratory import Build
from support.numbers import assert_equals
from support.peers import ADVANTAGES, LENGTHS, policy_term, step_of_lengths
from support.runs import configured, metric_lines, train
from support.steps import OPTIONS, random_step, run_step, settings_for
from support.tiny import prompt_entries, row_prompts, sampling_settings, tiny_llama, tiny_tokenizer
from torch import Tensor

from maxent_grpo.errors import ConfigError
from maxent_grpo.objective.divergence import KL_ESTIMATORS
from maxent_grpo.objective.logprobs import log_distribution, token_entropy
from maxent_grpo.objective.mismatch import mismatch_weights, raw_mismatch
from maxent_grpo.objective.sampling import penalised_logits, sampled_logits
from maxent_grpo.training.diagnostics import StepSums
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.choices import BehaviorSource, KlEstimator, MismatchMode, Reduction
from maxent_grpo.training.types.runtime import BatchingSettings

TOKENIZER = tiny_tokenizer()
ENTRY = prompt_entries(TOKENIZER)


def sampled_and_scored(**controls: Any) -> tuple[Tensor, Tensor]:
    """Log-probs of the same sampled tokens, as the sampler reports them and as the scorer finds them, in float32."""
    model, prompts = tiny_llama(torch.float32), row_prompts("1+1=", "colour: ")
    settings = sampling_settings(max_completion_len=6, **controls)
    sampler = LocalGenerator(
        model, TOKENIZER, settings, ENTRY, seed=3, stream="train", pad_token_id=0, eos_token_ids=(2,)
    )
    _, records = sampler(prompts, 4)
    groups = [[record for record in group if record is not None] for group in records]
    batching = BatchingSettings(0, 0, ENTRY)
    batch = build_score_batch(prompts, groups, batching, pad_token_id=0, max_prompt_len=64)
    distribution = SampledDistribution(
        settings.gen_temperature, None, settings.gen_top_k, settings.gen_top_p, settings.gen_min_p
    )
    scorer = TokenScorer(distribution, batching, None, entropy_carries_gradient=False, padded=False)
    with torch.no_grad():
        chunks = scorer.assemble(batch, RowRange(0, 8), torch.float32)
        scored = scorer.score(model, chunks, batch.completion_ids.shape[1]).logp
    reported = [value for group in groups for record in group for value in record.behaviour_logp or []]
    return torch.tensor(reported), scored[batch.completion_attention_mask]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_sampler_and_trainer_have_one_temperature(temperature: float) -> None:
    """Complaint 24: the temperature is missing on one side. Logits (1, 0) at T = .5: -0.1269, not -0.3133; both sides to 1e-5."""
    logits, first = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert float(SampledDistribution(0.5).log_probs(logits, first)[0, 0]) == pytest.approx(-0.1269, abs=5e-5)
    assert float(SampledDistribution().log_probs(logits, first)[0, 0]) == pytest.approx(-0.3133, abs=5e-5)
    sampler, trainer = sampled_and_scored(temperature=temperature)
    assert_equals(trainer, sampler, tolerance=1e-5)


def test_a_temperature_near_zero_has_a_finite_loss(tmp_path: Path) -> None:
    """Complaint 25: a temperature near 0 gives infinities or NaN. At T = 1e-3 in float32 every number of a run is finite."""
    cold = ("scoring=grpo", "generation.temperature=0.001", "model.dtype=float32", "evaluation.enabled=false")
    train(tmp_path / "run", *cold, "optimization.num_iterations=2")
    for line in metric_lines(tmp_path / "run"):
        assert all(math.isfinite(value) for value in line.values())
    logits = torch.tensor([[3.0, 1.0, -2.0]], requires_grad=True)
    logp = SampledDistribution(1e-3).log_probs(logits, torch.tensor([2]))[0, 2]
    logp.backward()
    assert math.isfinite(float(logp.detach()))
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


CONTROLS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 2},
    "min_p": {"temperature": 1.0, "min_p": 0.5},
    "all": {"temperature": 0.7, "top_k": 3, "top_p": 0.8, "min_p": 0.1},
}
PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


def sampling_and_scoring(controls: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """mu of every token, and pi of every token drawn from it: with the support replayed, and as the plain softmax."""
    logits = PROBS.log()
    mu = log_distribution(sampled_logits(logits, **controls)).exp()
    drawn = torch.arange(len(PROBS))
    rows = logits.expand(len(PROBS), -1)
    replayed = SampledDistribution(**controls).log_probs(rows, drawn).diagonal().exp()
    return mu, replayed, log_distribution(logits).exp()


@pytest.mark.parametrize("name", CONTROLS)
def test_the_mean_ratio_is_one_over_every_token_that_can_be_drawn(name: str) -> None:
    """Complaint 26: truncated sampling and plain scoring have different supports. E_mu[pi / mu] = 1 with the replay, else not."""
    mu, replayed, plain = sampling_and_scoring(CONTROLS[name])
    possible = mu > 0
    ratio = replayed[possible] / mu[possible]
    assert_equals(ratio, torch.ones_like(ratio))
    assert_equals((mu[possible] * ratio).sum(), 1.0)
    untouched = plain[possible] / mu[possible]
    if name == "temperature":  # all tokens are possible, so that the mean is 1, but no single ratio is
        assert float((untouched - 1).abs().max()) > 0.1
    else:
        assert float((mu[possible] * untouched).sum()) < 0.96


MOVED = torch.tensor([0.2, 0.1, -0.1, -0.1], dtype=torch.float64)
"""A change of the logits that leaves the support of every control as it was."""


@pytest.mark.parametrize("name", CONTROLS)
def test_the_mean_ratio_stays_one_while_the_support_is_that_of_sampling(name: str) -> None:
    """Complaint 26: also where the trainer's weights are not the sampler's: E_mu[pi / mu] = 1 on the support of sampling."""
    mu, _, _ = sampling_and_scoring(CONTROLS[name])
    rows = (PROBS.log() + MOVED).expand(len(PROBS), -1)
    moved = SampledDistribution(**CONTROLS[name]).log_probs(rows, torch.arange(len(PROBS))).diagonal().exp()
    ratio = (moved / mu)[mu > 0]
    assert float((ratio - 1).abs().max()) > 0.01 or len(ratio) == 1
    assert_equals((mu[mu > 0] * ratio).sum(), 1.0)


TRUNCATIONS = {
    "generation.top_p": (0.8, "1"),
    "generation.penalty.gen_top_k": (2, "null"),
    "generation.penalty.gen_min_p": (0.5, "null"),
}


@pytest.mark.parametrize("path", TRUNCATIONS)
def test_truncation_is_refused_where_its_support_cannot_be_replayed(path: str, tmp_path: Path) -> None:
    """Complaint 26: refused with the reason where the weights move within a rollout, or a penalty stands before the truncation."""
    value, off = TRUNCATIONS[path]
    reused = {path: value, "optimization.num_iterations": 2}
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, "scoring=dr_grpo", settings=reused)
    assert caught.value.problems == [
        f"{path}={value} with optimization.minibatches=1 and optimization.num_iterations=2: once an update has moved the "
        f"weights, truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
        f"{path}={off}, or 1 for both"
    ]
    penalty = "generation.penalty.gen_repetition_penalty"
    corrected = {
        "scoring.behavior_logprobs_source": BehaviorSource.sampler,
        "scoring.mismatch.mode": MismatchMode.token_truncate,
    }
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, "scoring=dr_grpo", settings={**corrected, path: value, penalty: 1.2})
    assert caught.value.problems == [
        f"{path}={value} with {penalty}=1.2: sampling truncates the penalised distribution and scoring the plain one, so the "
        f"importance ratio would be biased; use {path}={off} or {penalty}=null"
    ]
    configured(tmp_path, "scoring=dr_grpo", settings={path: value})
    configured(tmp_path, "scoring=dr_grpo", settings={**corrected, penalty: 1.2})
    configured(tmp_path, "scoring=maxent_listwise", settings=reused)


def test_a_support_that_moves_with_the_weights_would_bias_the_ratio() -> None:
    """Complaint 26: the reason for that: tokens kept now and then differ, and E_mu[pi / mu] is no longer 1."""
    mu, _, _ = sampling_and_scoring(CONTROLS["top_k"])
    rows = torch.tensor([0.2, 0.3, 0.45, 0.05], dtype=torch.float64).log().expand(4, -1)
    moved = SampledDistribution(top_k=2).log_probs(rows, torch.arange(4)).diagonal().exp()
    assert abs(float((mu * (moved / mu.clamp(min=1e-300)))[mu > 0].sum()) - 1) > 0.3


def test_a_penalty_corrected_by_the_mismatch_is_unbiased() -> None:
    """Complaint 26: a penalty leaves every token possible, so that the weight pi / mu has mean 1 before it is capped."""
    logits, counts = PROBS.log(), torch.tensor([2, 0, 1, 0])
    penalised = penalised_logits(logits, torch.zeros_like(counts), counts, presence=0.7, frequency=0.3, repetition=1.4)
    mu, pi = log_distribution(penalised), log_distribution(logits)
    mask = torch.ones(4, 1, dtype=torch.bool)
    weight = raw_mismatch(pi.unsqueeze(-1), mu.unsqueeze(-1), mask, mode="token_truncate")[:, 0]
    assert float((weight - 1).abs().max()) > 0.3
    assert_equals((mu.exp() * weight).sum(), 1.0)


def test_the_support_of_the_nucleus_is_replayed() -> None:
    """Complaint 26: p = (.5, .3, .2) with top-p .8: the sampler's log-prob is ln .625, the ratio 1 and not 0.8."""
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    mu = log_distribution(sampled_logits(logits, temperature=1.0, top_p=0.8))
    assert float(mu[0]) == pytest.approx(math.log(0.625), abs=1e-12)
    scored = SampledDistribution(top_p=0.8).log_probs(logits.unsqueeze(0), torch.tensor([0]))[0, 0]
    assert float((scored - mu[0]).exp()) == pytest.approx(1.0, abs=1e-12)
    assert float((logits[0] - mu[0]).exp()) == pytest.approx(0.8, abs=1e-12)


@pytest.mark.parametrize("controls", [{"top_p": 0.8}, {"gen_top_k": 4}, {"gen_min_p": 0.2}], ids=str)
def test_sampler_and_trainer_agree_where_sampling_is_truncated(controls: dict[str, Any]) -> None:
    """Complaint 26: the same on a model: the trainer's log-probs are the sampler's, to 1e-5."""
    sampler, trainer = sampled_and_scored(**controls)
    assert_equals(trainer, sampler, tolerance=1e-5)


def test_only_ratios_that_a_clip_stops_are_counted_as_clipped() -> None:
    """Complaint 27: the clip metric ignores the advantage's sign. Of (.5,1), (1.5,-1), (1.5,1), (.5,-1) the last two: 0.5."""
    ratio = torch.tensor([[0.5], [1.5], [1.5], [0.5]], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    sums = StepSums()
    clip = settings_for("dr_grpo").clipping
    sums.add_policy(ratio, torch.ones_like(ratio, dtype=torch.bool), advantages, clip)
    found = sums.diagnostics()
    assert (found.clip_ratio, found.clip_ratio_low_mean, found.clip_ratio_high_mean) == (0.5, 0.25, 0.25)


def test_a_huge_ratio_of_a_bad_completion_can_be_capped() -> None:
    """Complaint 28: ratio 5 with advantage -1 is not stopped by the clip. Loss 5 plain, 3 with a cap of 3, whose gradient is 0."""
    for delta, loss, slope in ((None, 5.0, 5.0), (3.0, 3.0, 0.0)):
        step = step_of_lengths([1], drift=math.log(5))
        clip = settings_for("dapo").clipping
        clip.clip_delta = delta
        result = policy_term(step, [-1.0], "dapo", clipping=clip)
        assert_equals(result.loss, loss)
        assert_equals(result.gradient, [[slope]])


def test_on_policy_the_loss_is_constant_and_its_gradient_is_not(laboratory: Build) -> None:
    """Complaint 29: the on-policy shortcut loses the gradient, or a constant loss looks so. Value -A, slope -A; weights move."""
    result = policy_term(step_of_lengths([1]), [2.0], "dapo")
    assert_equals(result.loss, -2.0)
    assert_equals(result.gradient, [[-2.0]])
    lab = laboratory("scoring=grpo")
    before = lab.weights()
    outcome = lab.step(lab.rollout())
    assert outcome.metrics["policy/ratio_max"] == 1.0
    assert max(float((outcome.weights[name] - before[name]).abs().max()) for name in before) > 1e-4


def test_a_second_pass_over_a_rollout_has_other_ratios_and_clips(tmp_path: Path) -> None:
    """Complaint 30: old log-probs made in inference mode break the second pass. It runs, its ratios differ from 1, some clip."""
    twice = ("scoring=grpo", "optimization.num_iterations=2", "optimization.learning_rate=0.05")
    train(tmp_path / "run", *twice, "evaluation.enabled=false")
    first, second = metric_lines(tmp_path / "run")
    assert (first["policy/ratio_max"], first["policy/clip_ratio"]) == (1.0, 0.0)
    assert second["policy/ratio_max"] > 1.05
    assert second["policy/clip_ratio"] > 0.0


@pytest.mark.parametrize(("name", "value", "slope"), [("k1", 1.0, 1.0), ("k2", 0.5, 1.0), ("k3", 0.3679, 0.6321)])
def test_each_estimator_of_the_kl_has_its_value_and_its_slope(name: str, value: float, slope: float) -> None:
    """Complaint 31: k3's gradient is clamped, biased or of the wrong sign. logp -1, reference -2: values and slopes as given."""
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    found = KL_ESTIMATORS[name](logp + 2.0)
    found.sum().backward()
    assert logp.grad is not None
    assert (float(found.detach()), float(logp.grad)) == (pytest.approx(value, abs=5e-5), pytest.approx(slope, abs=5e-5))
    assert float(KL_ESTIMATORS[name](torch.zeros(1, dtype=torch.float64))) == 0.0
    assert bool((KL_ESTIMATORS["k3"](torch.linspace(-9, 9, 101)) >= 0).all())


def test_off_policy_the_kl_can_be_weighted_by_the_ratio() -> None:
    """Complaint 32: off-policy, k3 needs the ratio's weight. Value r k3, slope r l with l = log pi/pi_ref; unweighted neither."""
    step = random_step(seed=4)
    nothing = {"advantage": "none", "reduction": Reduction.token, "kl_beta": 1.0}
    d = torch.where(step.mask, step.logp - step.reference_logp, 0.0)
    ratio = torch.where(step.mask, (step.logp - step.old_logp).exp(), 0.0)
    k3 = (-d).exp() - 1 + d
    weighted = run_step(step, settings_for("dr_grpo", kl_estimator=KlEstimator.k3_is, **nothing))
    tokens = float(step.mask.sum())
    assert_equals(weighted.loss, (ratio * k3).sum() / tokens)
    assert_equals(weighted.gradient, ratio * d / tokens)
    plain = run_step(step, settings_for("dr_grpo", kl_estimator=KlEstimator.k3, **nothing))
    assert float((plain.gradient - weighted.gradient).abs().max()) > 1e-3


def test_the_level_of_the_mismatch_decides_what_length_does_to_it() -> None:
    """Complaint 33: a product over 500 tokens, each off by .01, is 148.4 and masked at 3; the geometric mean 1.0101 stays."""
    sampled = -torch.ones(1, 500, dtype=torch.float64)
    old, mask = sampled + 0.01, torch.ones(1, 500, dtype=torch.bool)
    expected = {
        "sequence_mask": (148.4132, 0.0),
        "geometric_mask": (1.01005, 1.01005),
        "token_mask": (1.01005, 1.01005),
    }
    for mode, (raw, used) in expected.items():
        sums, known = StepSums(), mask
        weights = raw_mismatch(old, sampled, mask, mode=mode)
        kept = mismatch_weights(old, sampled, mask, mode=mode, cap=3.0, floor=0.5)
        sums.add_mismatch(weights, kept, known)
        assert sums.raw_max == pytest.approx(raw, rel=1e-5)
        assert_equals(kept, torch.full((1, 500), used), tolerance=2e-5)
        assert sums.mismatch_cut == (500 if used == 0 else 0)


def test_raw_ratios_and_the_share_that_was_cut_are_measured() -> None:
    """Complaint 34: only clipped ratios are logged. Ratios .5 and 4 with a cap of 3: smallest .5, largest 4, half of them cut."""
    old, sampled = torch.tensor([[0.5, 4.0]], dtype=torch.float64).log(), torch.zeros(1, 2, dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    for mode, used in (("token_truncate", 3.5), ("token_mask", 0.5)):
        halves = [StepSums(), StepSums()]
        for half, column in zip(halves, (slice(0, 1), slice(1, 2)), strict=True):
            part = old[:, column], sampled[:, column], mask[:, column]
            raw = raw_mismatch(*part, mode=mode)
            half.add_gap(*part, mask[:, column])
            half.add_mismatch(raw, mismatch_weights(*part, mode=mode, cap=3.0, floor=0.5), mask[:, column])
        first, second = halves
        first.add_mismatch(torch.full((1, 1), 4.0), torch.full((1, 1), used - 0.5), mask[:, :1])
        assert (first.raw_min, first.raw_max, first.mismatch_cut) == (0.5, 4.0, 1.0)
        assert first.mismatch_used == used
        assert (second.raw_max, second.mismatch_cut) == (4.0, 1.0)
        merged = second.merged(Accelerator(cpu=True))
        assert (merged.raw_min, merged.raw_max, merged.mismatch_raw) == (4.0, 4.0, 4.0)
        # the estimates of KL(mu || pi_old): the mean of log mu - log pi_old, and one without negative terms
        assert second.mismatch_k1 == pytest.approx(-math.log(4))
        assert second.mismatch_k3 == pytest.approx(4 - 1 - math.log(4))


class Forgetting:
    """A sampler that does not know the log-prob of the first token of the first completion of a call."""

    policy_version = 0

    def __init__(self, sampler: Any, value: float | None) -> None:
        self._sampler, self._value = sampler, value

    def begin_rollout(self, index: int) -> None:
        self._sampler.begin_rollout(index)

    def __call__(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[Any | None]] | None]:
        texts, records = self._sampler(prompts, num_samples, per_prompt_counts)
        first = records[0][0]
        first.behaviour_logp = [self._value, *first.behaviour_logp[1:]]
        return texts, records


@pytest.mark.parametrize(
    ("value", "mode"), [(None, "token_truncate"), (math.nan, "sequence_mask"), (-math.inf, "bypass")], ids=str
)
def test_a_token_without_a_log_prob_is_counted_and_weighs_one(
    laboratory: Build, value: float | None, mode: str
) -> None:
    """Complaint 35: a log-prob of None or NaN kills the run. Its ratio is 1, the step is the one without it, the count is 1."""
    corrected = ("scoring=dr_grpo", "scoring.behavior_logprobs_source=sampler", f"scoring.mismatch.mode={mode}")
    lab = laboratory(*corrected)
    plain = lab.step(lab.rollout())
    assert "mismatch/missing" not in plain.metrics
    lab.reset()
    lab.resources.generator = Forgetting(lab.resources.generator, value)
    experience = lab.rollout()
    assert experience.mask[0, 0]
    assert not experience.sampled_known[0, 0]
    assert int((experience.mask & ~experience.sampled_known).sum()) == 1
    outcome = lab.step(experience)
    assert outcome.metrics["mismatch/missing"] == 1.0
    for name, gradient in outcome.gradient.items():
        torch.testing.assert_close(gradient, plain.gradient[name], rtol=0, atol=1e-5)


def test_an_impossible_token_leaves_entropy_and_gradient_finite() -> None:
    """Complaint 37: a logit of minus infinity makes the entropy NaN. Logits (0, 0, -inf): ln 2, and a finite gradient."""
    logits = torch.tensor([[0.0, 0.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    entropy = token_entropy(log_distribution(logits))
    entropy.sum().backward()
    assert float(entropy.detach()) == pytest.approx(math.log(2), abs=1e-12)
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize(
    "name", [name for name, node in OPTIONS.items() if node().reduction is not Reduction.micro_batch]
)
def test_the_entropy_bonus_is_the_mean_over_the_tokens_that_train(name: str) -> None:
    """Complaint 38: the bonus counts other tokens than the loss. It adds c times their mean entropy, for any parts and method."""
    step = random_step(seed=5)
    mean = float(torch.where(step.mask, step.entropy - step.logp, 0.0).sum() / step.mask.sum())
    for cuts in ((), (4, 8, 12), (8,)):
        result = run_step(step, settings_for(name, reduction=Reduction.token, entropy_coef=0.05), cuts=cuts)
        without = run_step(step, settings_for(name, reduction=Reduction.token, entropy_coef=0.0), cuts=cuts)
        assert float(result.loss - without.loss) == pytest.approx(-0.05 * mean, abs=1e-12)
        assert result.part("entropy_loss") == pytest.approx(-0.05 * mean, abs=1e-12)


def test_cispo_has_the_plain_policy_gradient_on_policy() -> None:
    """Complaint 40: CISPO's cap is taken for a distance from 1, so that every weight 1 becomes .2. On-policy it is REINFORCE."""
    step = step_of_lengths(LENGTHS)
    cispo = policy_term(step, ADVANTAGES, "cispo")
    clip = settings_for("cispo").clipping
    clip.use_clip_objective = False
    reinforce = policy_term(step, ADVANTAGES, "dapo", clipping=clip)
    assert torch.equal(cispo.gradient, reinforce.gradient)
    capped = settings_for("cispo").surrogate
    capped.ratio_cap = 0.2
    assert_equals(policy_term(step, ADVANTAGES, "cispo", surrogate=capped).gradient, 0.2 * reinforce.gradient)
