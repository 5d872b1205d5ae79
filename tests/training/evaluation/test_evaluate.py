"""Whole evaluations of a small policy: exact against sampled and direct figures, independence, records, options."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.runs import configured, evaluation_lines, inside_run, metric_lines, train

from maxent_grpo.errors import ConfigError
from maxent_grpo.stats.passk import pass_at_k
from maxent_grpo.training import setup
from maxent_grpo.training.evaluation.evaluate import evaluate
from maxent_grpo.training.evaluation.exact import AnswerTable, exact_figures, exact_rows, log_optimum
from maxent_grpo.training.evaluation.sampled import sample_rows
from maxent_grpo.training.evaluation.seeds import SeedAnswers, answer_under_seeds, score_samples, summarise_seeds
from maxent_grpo.training.metric_table import METRICS, metric_info
from maxent_grpo.training.types.choices import Pooling, ScoreMode
from maxent_grpo.training.types.rewards import ValidationContext
from maxent_grpo.training.types.weighting import WeightingSettings

LEARNT = ("model.dtype=float64", "data.num_eval=6", "evaluation.ks=[1,4]")


class Evaluated:
    """A run's evaluation, taken out of it."""

    def __init__(self, run_dir: Path, *extra: str, drift: float = 0.3) -> None:
        ctx, resources, _ = inside_run(configured(run_dir, *extra), lambda *parts: parts)
        assert resources.validation_ctx is not None
        self.ctx: ValidationContext = dataclasses.replace(resources.validation_ctx)
        self.ctx.logging = dataclasses.replace(self.ctx.logging, writers=[])
        self.model: Any = ctx.runtime.model
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += drift * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)

    def figures(self, **changes: Any) -> dict[str, float]:
        settings = dataclasses.replace(self.ctx.evaluation, **changes)
        return evaluate(dataclasses.replace(self.ctx, evaluation=settings), 0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    return Evaluated(tmp_path_factory.mktemp("lab") / "run", *LEARNT, "evaluation.seed_eval.enabled=true")


@pytest.fixture(scope="module")
def figures(lab: Evaluated) -> dict[str, float]:
    return lab.figures()


def test_every_figure_is_in_the_table_by_its_own_row(figures: dict[str, float]) -> None:
    assert "eval/*" not in METRICS
    for name in figures:
        metric_info(name)
    assert {"eval/maj@4", "eval/greedy", "eval/exact/within/coverage@4", "eval/seed/pass@1/3"} <= figures.keys()


def test_neither_batch_size_nor_order_of_rows_nor_other_draws_change_a_figure(
    lab: Evaluated, figures: dict[str, float]
) -> None:
    torch.rand(7)
    for changes in ({"batch_size": 1}, {"batch_size": 4}, {"rows": lab.ctx.evaluation.rows[::-1]}):
        if "rows" in changes:
            assert lab.ctx.seeds is not None
            lab.ctx.seeds.rows_by_seed = [rows[::-1] for rows in lab.ctx.seeds.rows_by_seed]
        assert lab.figures(**changes) == pytest.approx(figures, rel=1e-9, abs=1e-12)
    lab.ctx.seeds.rows_by_seed = [rows[::-1] for rows in lab.ctx.seeds.rows_by_seed]  # type: ignore[union-attr]


def direct_policy(lab: Evaluated, row: dict[str, Any], allowed: list[int] | None = None) -> dict[str, float]:
    """Probability of each answer of two letters, by a forward pass of its own, over all tokens or the allowed ones."""
    tokenizer, found = lab.ctx.tokenizer, {}
    prompt = tokenizer(str(row["prompt"]), add_special_tokens=False)["input_ids"]
    for text in map("".join, itertools.product("RGB", repeat=2)):
        answer = [*tokenizer.convert_tokens_to_ids(list(text)), tokenizer.eos_token_id]
        with torch.no_grad():
            logits = lab.model(input_ids=torch.tensor([prompt + answer])).logits[0]
        outside = torch.zeros(logits.shape[-1], dtype=torch.bool)
        if allowed is not None:
            outside[[token for token in range(len(outside)) if token not in allowed]] = True
        log_probs = torch.log_softmax(logits.masked_fill(outside, -torch.inf), dim=-1)
        found[text] = math.exp(sum(float(log_probs[len(prompt) - 1 + n, t]) for n, t in enumerate(answer)))
    return found


def test_exact_figures_are_those_of_a_direct_forward_pass_of_each_answer(lab: Evaluated) -> None:
    assert lab.ctx.exact is not None
    for row in lab.ctx.evaluation.rows:
        pi = direct_policy(lab, row)
        exact = exact_rows(lab.ctx, lab.ctx.exact, [row])[row["row_id"]]
        right = [pi[mode] for mode in row["modes"]]
        mass = sum(pi.values())
        assert exact["outside_mass"] == pytest.approx(1 - mass, abs=1e-9)
        assert exact["pass@4"] == pytest.approx(1 - (1 - sum(right)) ** 4, abs=1e-9)
        assert exact["coverage@4"] == pytest.approx(sum(1 - (1 - p) ** 4 for p in right) / len(right), abs=1e-9)
        assert exact["within/pass@1"] == pytest.approx(sum(right) / mass, abs=1e-9)
        shares = [p / sum(right) for p in right]
        entropy = -sum(share * math.log(share) for share in shares)
        assert exact["mode_entropy"] == pytest.approx(entropy, abs=1e-9)
        assert exact["effective_modes"] == pytest.approx(math.exp(entropy), abs=1e-9)
        # the optimum at tau 0.1 over rewards 1 + 0.25 spread, spread being different letters over four
        weight = {t: math.exp(((t in row["modes"]) + 0.25 * len(set(t)) / 4) / 0.1) for t in pi}
        optimum = {text: value / sum(weight.values()) for text, value in weight.items()}
        divergence = sum(share * math.log(share / pi[text]) for text, share in optimum.items())
        assert exact["kl_to_optimum"] == pytest.approx(divergence, abs=1e-9)
        assert exact["within/kl_to_optimum"] == pytest.approx(divergence + math.log(mass), abs=1e-9)


def test_the_figures_of_the_sampled_policy_are_those_of_a_pass_over_the_allowed_tokens(lab: Evaluated) -> None:
    """Every token from the letters and the end token alone, with what ends too soon or too late as wrong."""
    assert lab.ctx.exact is not None
    tokenizer = lab.ctx.tokenizer
    letters = [*tokenizer.convert_tokens_to_ids(list("RGB")), tokenizer.eos_token_id]
    for row in lab.ctx.evaluation.rows:
        pi = direct_policy(lab, row, letters)
        exact = exact_rows(lab.ctx, lab.ctx.exact, [row])[row["row_id"]]
        right = [pi[mode] for mode in row["modes"]]
        assert sum(right) > exact["pass@1"]  # some of the whole vocabulary's mass lies elsewhere
        assert exact["sampled/outside_mass"] == pytest.approx(1 - sum(pi.values()), abs=1e-9)
        assert exact["sampled/pass@4"] == pytest.approx(1 - (1 - sum(right)) ** 4, abs=1e-9)
        assert exact["sampled/coverage@4"] == pytest.approx(sum(1 - (1 - p) ** 4 for p in right) / len(right), abs=1e-9)


def test_many_samples_lie_around_the_exact_figures(tmp_path: Path) -> None:
    unrestricted = ("generation.allowed_tokens=[]", "evaluation.num_samples=400", "evaluation.ks=[1,4]")
    figures = Evaluated(tmp_path / "run", *unrestricted, "data.num_eval=6", drift=0.0).figures()
    for name in ("pass@1", "pass@4", "distinct@4", "coverage@4"):
        error = math.sqrt(max(figures[f"eval/exact/{name}"], 1e-3) * 4 / (400 * 6))
        assert figures[f"eval/{name}"] == pytest.approx(figures[f"eval/exact/{name}"], abs=4 * error), name


def table(utilities: list[float], lengths: list[int]) -> AnswerTable:
    modes = [str(n) if utility == 1 else None for n, utility in enumerate(utilities)]
    return AnswerTable([[5] * size for size in lengths], torch.tensor(utilities, dtype=torch.float64), modes, 2)


def test_at_the_optimum_the_divergence_is_zero_and_the_modes_are_even() -> None:
    answers = table([1.0, 1.0] + [0.0] * 79, [5] * 81)
    optimum = log_optimum(answers, WeightingSettings(), None)
    assert optimum is not None
    figures = exact_figures(optimum, answers, [1], right_threshold=0.999, log_optimum=optimum)
    assert figures["pass@1"] == pytest.approx(0.99821, abs=5e-6)
    assert figures["kl_to_optimum"] == pytest.approx(0.0, abs=1e-12)
    assert figures["mode_entropy_ratio"] == pytest.approx(1.0, abs=1e-12)
    assert figures["outside_mass"] == pytest.approx(0.0, abs=1e-12)


def test_the_optimum_follows_the_score_mode_and_is_left_out_where_it_is_unknown() -> None:
    def odds(weighting: WeightingSettings, lengths: tuple[int, int] = (3, 3)) -> float | None:
        found = log_optimum(table([1.0, 0.0], list(lengths)), weighting, None)
        return None if found is None else float(found[0] - found[1])

    assert odds(WeightingSettings(tau=0.5)) == pytest.approx(2.0)
    assert odds(WeightingSettings(tau=0.5, score_mode=ScoreMode.const, score_length=8)) == pytest.approx(16.0)
    assert odds(WeightingSettings(tau=0.5, score_mode=ScoreMode.mean)) == pytest.approx(6.0)
    assert odds(WeightingSettings(tau=0.5, score_mode=ScoreMode.mean), (3, 4)) is None
    assert odds(WeightingSettings(beta=0.5)) is None
    assert log_optimum(table([math.nan, math.nan], [3, 3]), WeightingSettings(), None) is None


def test_the_reference_pulls_the_optimum_and_a_frozen_one_is_scored_once(tmp_path: Path) -> None:
    lab = Evaluated(tmp_path / "run", *LEARNT, "scoring.weighting.beta=0.4", drift=0.0)
    assert lab.ctx.exact is not None
    assert lab.ctx.runtime is not None
    before = lab.figures()["eval/exact/kl_to_optimum"]
    kept = dict(lab.ctx.exact.reference_logp)
    assert len(kept) == 6
    lab.ctx.scoring.weighting.beta = 0.0  # type: ignore[union-attr]
    assert lab.figures()["eval/exact/kl_to_optimum"] != pytest.approx(before, rel=1e-3)
    assert all(lab.ctx.exact.reference_logp[row_id] is logp for row_id, logp in kept.items())


def test_greedy_answers_are_the_most_likely_token_at_each_place(tmp_path: Path) -> None:
    cold = Evaluated(tmp_path / "cold", *LEARNT, "evaluation.temperature=0.0001", drift=0.0).figures()
    lab = Evaluated(tmp_path / "again", *LEARNT, drift=0.0)
    assert lab.figures()["eval/greedy"] == cold["eval/pass@1"] == cold["eval/pass@4"] == cold["eval/maj@4"]
    assert lab.figures()["eval/pass@1"] != cold["eval/pass@1"]


def test_the_record_of_an_evaluation_gives_its_figures_again(tmp_path: Path) -> None:
    train(tmp_path / "run", "evaluation.every_n_steps=1")
    lines = evaluation_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [step for step in (0, 1, 2) for _ in range(4)]
    assert len({line["row_id"] for line in lines}) == 4
    for metrics in metric_lines(tmp_path / "run"):
        rows = [line for line in lines if line["step"] == metrics["step"]]
        assert list(rows[0]) == [
            *("step", "exact", "greedy_completion", "greedy_right", "mean_length", "mean_reward", "mode_counts"),
            *("num_modes", "num_right", "num_samples", "row_id"),
        ]
        for k in (1, 8):
            by_hand = sum(pass_at_k(row["num_samples"], row["num_right"], k) for row in rows) / 4
            assert metrics[f"eval/pass@{k}"] == pytest.approx(by_hand, abs=1e-12)
        assert metrics["eval/greedy"] == sum(row["greedy_right"] for row in rows) / 4
        assert metrics["eval/exact/pass@8"] == pytest.approx(sum(row["exact"]["pass@8"] for row in rows) / 4)
        assert all(sum(row["mode_counts"].values()) == row["num_right"] for row in rows)
        assert all(len(row["mode_counts"]) <= row["num_modes"] for row in rows)


def test_a_resumed_run_has_the_same_record_of_evaluations(tmp_path: Path) -> None:
    saved = ("evaluation.every_n_steps=1", "checkpoint.every_n_steps=1", "checkpoint.keep_last=0")
    train(tmp_path / "run", *saved, "evaluation.seed_eval.enabled=true")
    start = tmp_path / "run" / "checkpoints" / "step_1"
    train(tmp_path / "more", *saved, "evaluation.seed_eval.enabled=true", resume_from=start)
    assert evaluation_lines(tmp_path / "more") == evaluation_lines(tmp_path / "run")
    assert metric_lines(tmp_path / "more") == metric_lines(tmp_path / "run")
    train(tmp_path / "run", *saved, "evaluation.seed_eval.enabled=true", resume_from=start)
    assert evaluation_lines(tmp_path / "more") == evaluation_lines(tmp_path / "run")


def test_any_figure_can_choose_the_best_checkpoint(tmp_path: Path) -> None:
    watched = ("checkpoint.best_metric=eval/seed/probe_accuracy", "evaluation.seed_eval.enabled=true")
    train(tmp_path / "run", *watched, "optimization.total_training_steps=1")
    assert (tmp_path / "run" / "checkpoints" / "best").exists()


def test_rewards_that_abstain_are_counted_and_leave_the_rest_whole(tmp_path: Path) -> None:
    silent = ("+reward.functions.silent_on_green=support.graders:silent_on_green", "+reward.terms.silent_on_green=1")
    train(tmp_path / "run", *silent, "~reward.terms.task", "~reward.terms.spread", "~reward.functions.spread")
    line = metric_lines(tmp_path / "run")[0]
    assert line["eval/abstained"] > 0
    assert 0 < line["eval/mean_reward"] < 1


def test_a_space_too_large_to_enumerate_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxent_grpo.training.evaluation.build.MAX_EXACT_ANSWERS", 8)
    train(tmp_path / "auto")
    assert (
        "no exact evaluation: a problem has 9 answers, more than the 8" in (tmp_path / "auto" / "run.log").read_text()
    )
    assert not [name for name in metric_lines(tmp_path / "auto")[0] if name.startswith("eval/exact/")]
    assert evaluation_lines(tmp_path / "auto")[0]["exact"] is None
    train(tmp_path / "always", "evaluation.exact=always")
    assert "eval/exact/pass@1" in metric_lines(tmp_path / "always")[0]


def test_an_optimum_that_needs_a_missing_reference_is_left_out_and_said(tmp_path: Path) -> None:
    train(tmp_path / "run", "scoring=dr_grpo", "scoring.weighting.beta=0.2")
    assert "this run keeps none; scoring.reference_logprobs_source=model" in (tmp_path / "run" / "run.log").read_text()
    line = metric_lines(tmp_path / "run")[0]
    assert "eval/exact/pass@1" in line
    assert "eval/exact/kl_to_optimum" not in line


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"evaluation.seed_eval.template": "é{seed}"}, "does not know all characters of the tag 'é0'"),
        ({"generation.max_prompt_len": 8}, "with the tag, all 4 prompts are longer than generation.max_prompt_len=8"),
    ],
)
def test_a_tag_that_cannot_be_read_is_refused_before_training(
    tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    config = configured(tmp_path / "run", "evaluation.seed_eval.enabled=true", settings=settings)
    with pytest.raises(ConfigError, match=complaint):
        inside_run(config, lambda *parts: parts)


def test_a_single_prompt_too_long_with_its_tag_is_refused_too(tmp_path: Path) -> None:
    build = setup.build_task

    def longer(config: Any) -> Any:
        task = build(config)
        first, *others = task.eval_rows
        wordy = dataclasses.replace(
            first, messages=[{"role": "user", "content": "Well, " + first.messages[0]["content"]}]
        )
        return dataclasses.replace(task, eval_rows=[wordy, *others])

    config = configured(tmp_path / "run", "evaluation.seed_eval.enabled=true", "generation.max_prompt_len=16")
    with (
        patch.object(setup, "build_task", longer),
        pytest.raises(
            ConfigError, match=r"4 held-out prompts are longer than generation.max_prompt_len=16 tokens with"
        ),
    ):
        inside_run(config, lambda *parts: parts)


def test_the_probe_reads_a_seed_that_the_states_hold_and_guesses_one_that_they_do_not(lab: Evaluated) -> None:
    assert lab.ctx.seeds is not None
    rows = answer_under_seeds(lab.ctx, lab.ctx.seeds, lambda row_id: True)
    assert len(rows) == 6
    assert {states.shape for row in rows for states in row.hidden} == {(4, 32)}
    mixed = np.random.default_rng(0).normal(size=(40, 4, 50, 8)).astype(np.float32)
    marked = mixed + 9 * np.eye(8, dtype=np.float32)[:4, None, :]
    for states, expected in ((marked, 1.0), (mixed, 0.25)):
        answers = [SeedAnswers(str(n), rows[0].by_seed, list(states[n])) for n in range(40)]
        assert summarise_seeds(answers)["probe_accuracy"] == pytest.approx(expected, abs=0.03)
        assert summarise_seeds(answers)["probe_chance"] == 0.25


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("layout", [{}, {"share_prompts": False}, {"logprob_chunk_size": 3}])
def test_pooled_states_are_those_of_a_direct_forward_pass(
    lab: Evaluated, pooling: Pooling, layout: dict[str, Any]
) -> None:
    seeds = lab.ctx.seeds
    assert seeds is not None
    [row] = sample_rows(lab.ctx, seeds.generator, seeds.rows_by_seed[1][:1], 4)
    batching = dataclasses.replace(seeds.scorer.batching, **layout)
    scorer = dataclasses.replace(seeds.scorer, pooling=pooling, batching=batching)
    scores = score_samples(lab.ctx, dataclasses.replace(seeds, scorer=scorer), [row])
    assert scores.pooled_hidden is not None
    assert torch.allclose(scores.log_ratio_train, torch.zeros(4, dtype=torch.float64), atol=1e-9)
    prompt = lab.ctx.tokenizer(row.prompt, add_special_tokens=False)["input_ids"]
    for record, pooled in zip(row.records, scores.pooled_hidden, strict=True):
        with torch.no_grad():
            out = lab.model(input_ids=torch.tensor([prompt + record.token_ids]), output_hidden_states=True)
        states = out.hidden_states[-1][0, len(prompt) :]
        expected = states.mean(dim=0) if pooling is Pooling.mean else states[-1]
        assert torch.allclose(pooled, expected.float(), atol=1e-5)


def test_pass_at_1_and_coverage_over_seeds_by_hand(lab: Evaluated) -> None:
    assert lab.ctx.seeds is not None
    rows = answer_under_seeds(lab.ctx, lab.ctx.seeds, lambda row_id: True)
    figures = summarise_seeds(rows)
    by_seed = [sum(row.by_seed[seed].num_right for row in rows) / (6 * 4) for seed in range(4)]
    assert [figures[f"pass@1/{seed}"] for seed in range(4)] == pytest.approx(by_seed)
    assert figures["pass@1"] == pytest.approx(np.mean(by_seed))
    assert figures["pass@1_std"] == pytest.approx(np.std(by_seed))
    shares = []
    for row in rows:
        found = {
            text for part in row.by_seed for text, right in zip(part.completions, part.right, strict=True) if right
        }
        shares.append(len(found) / (row.by_seed[0].num_modes or 1))
    assert figures["coverage"] == pytest.approx(np.mean(shares))
