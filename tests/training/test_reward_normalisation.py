"""Normalised rewards: the sum of the terms or every term by itself, by hand and through whole runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.peers import record
from support.runs import evaluation_lines, metric_lines, only_reward, train
from support.steps import settings_for

from maxent_grpo.rewards.terms import RewardTerm
from maxent_grpo.training.credit import ScoredTokens, assign_credit, grade_rollout
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.targets import group_evidence
from maxent_grpo.training.types.choices import NormalizeBy, RewardNormalization, ScoreMode, Truncation
from maxent_grpo.training.types.rewards import GenerationBatch, RewardComputation
from maxent_grpo.training.types.runtime import RewardSpec

Values = list[list[float | None]]

FIRST: Values = [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
SECOND: Values = [[0.0, 10.0, 0.0, 10.0], [10.0, 0.0, 0.0, 0.0]]
"""Two groups of two terms of very different size; with weights 1 and 0.5 the sums are [1, 6, 0, 5] and [5, 0, 0, 0]."""

WORKED: dict[tuple[str, str], list[list[float]]] = {
    # deviations of the sums: 2.94392 and 2.5 in the groups, 2.69590 over the batch
    ("sum", "group"): [[-0.67937, 1.01905, -1.01905, 0.67937], [1.5, -0.5, -0.5, -0.5]],
    ("sum", "batch"): [[-0.74187, 1.11280, -1.11280, 0.74187], [1.39100, -0.46367, -0.46367, -0.46367]],
    # first +-0.86603 and 0, second +-0.86603 and 1.5, -0.5; sums .43301, 1.29904 and .75, -.25 with deviation 0.80178
    ("term", "group"): [[0.54006, 1.62018, -1.62018, -0.54006], [0.93541, -0.31180, -0.31180, -0.31180]],
    # first +-1.08012 and 0, second +-0.96609 and 1.44914, -.48305; sums .59708, 1.56317 and .72457, -.24152 over 0.94868
    ("term", "batch"): [[0.62937, 1.64772, -1.64772, -0.62937], [0.76376, -0.25459, -0.25459, -0.25459]],
}


def credit_of(
    terms: Sequence[Values],
    normalize: str,
    by: str = "group",
    *,
    weights: Sequence[float] = (1.0, 0.5),
    method: str = "dr_grpo",
    **changes: Any,
) -> RewardComputation:
    """The credit of groups whose completions have these values of each term; None abstains."""
    groups, size = len(terms[0]), len(terms[0][0])
    names = [f"p{group}" for group in range(groups)]
    texts = [[f"{group} {row}" for row in range(size)] for group in range(groups)]
    batch = GenerationBatch(names, [""] * groups, texts, [[record(name) for _ in range(size)] for name in names])

    def term(number: int, values: Values) -> RewardTerm:
        def given(completions: Sequence[str]) -> list[float | None]:
            places = [map(int, text.split()) for text in completions]
            return [values[group][row] for group, row in places]

        return RewardTerm(f"term{number}", given)

    spec = RewardSpec(
        [term(number, values) for number, values in enumerate(terms)],
        list(weights[: len(terms)]),
        RewardNormalization(normalize),
        NormalizeBy(by),
    )
    settings = settings_for(method, **changes)
    resolved = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
    shape = (groups * size, 2)
    all_of_them = torch.ones(shape, dtype=torch.bool)
    tokens = ScoredTokens(all_of_them, all_of_them, -torch.ones(shape), all_of_them)
    graded = grade_rollout(batch, {name: {"row_id": name} for name in names}, spec)
    return assign_credit(graded, settings, resolved, tokens, reward=spec)


def close(actual: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], tolerance: float = 4e-4) -> None:
    """Up to the constant 1e-4 that is added to every deviation."""
    for got, wanted in zip(actual, expected, strict=True):
        assert list(got) == pytest.approx(list(wanted), abs=tolerance)


@pytest.mark.parametrize(("normalize", "by"), WORKED)
def test_normalised_rewards_are_the_worked_ones(normalize: str, by: str) -> None:
    credit = credit_of([FIRST, SECOND], normalize, by)
    close(credit.advantage.grouped, WORKED[normalize, by])
    assert credit.normalized_utils is not None
    assert credit.advantage.samples == pytest.approx(credit.normalized_utils, abs=1e-12)
    assert credit.total_utils == [1.0, 6.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0]
    assert credit.train_reward_mean == 17 / 8


def test_without_normalisation_nothing_changes() -> None:
    plain = credit_of([FIRST, SECOND], "none")
    assert plain.normalized_utils is None
    assert plain.credited_utils == plain.total_utils
    close(plain.advantage.grouped, [[-2.0, 3.0, -3.0, 2.0], [3.75, -1.25, -1.25, -1.25]], 1e-12)


def test_terms_that_cancel_in_the_sum_still_tell_completions_apart() -> None:
    """Two completions earn one of two terms each: equal sums, different signals. Only single terms see the difference."""
    easy: Values = [[1.0, 0.0, 0.0, 0.0]]
    hard: Values = [[0.0, 1.0, 1.0, 1.0]]
    assert credit_of([easy, hard], "sum", weights=(1.0, 1.0)).advantage.samples == [0.0] * 4
    weighted = credit_of([easy, hard], "term", weights=(1.0, 0.5)).advantage.samples
    assert weighted[0] > 0.5 > 0 > weighted[1] == weighted[2]


@pytest.mark.parametrize(("normalize", "by"), WORKED)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7, 0.95, 1e4])
def test_a_group_of_equal_values_gets_exactly_zero(normalize: str, by: str, value: float) -> None:
    """Whatever rounding the means of the others leave, and whatever the batch's deviation is."""
    flat: list[float | None] = [value] * 7
    mixed: list[float | None] = [0.1, 0.7, 1 / 3, 0.2, 0.9, 0.3, 0.6]
    terms = [[flat, mixed], [[0.3] * 7, [0.95] * 7]]
    credit = credit_of(terms, normalize, by, weights=(0.3, 0.7))
    assert credit.advantage.grouped[0] == [0.0] * 7
    assert max(map(abs, credit.advantage.grouped[1])) > 0
    assert credit.normalized_utils is not None
    assert credit.normalized_utils[:7] == [0.0] * 7
    nothing = credit_of([[flat, flat], [flat, flat]], normalize, by)
    assert nothing.advantage.samples == [0.0] * 14


def test_abstentions_are_left_out_of_means_and_deviations() -> None:
    """[1, 0, None, 1]: mean 2/3 and deviation .57735 of three values, so +-.57735 and -1.1547; with a 0 it would be .5."""
    some: Values = [[1.0, 0.0, None, 1.0]]
    close(credit_of([some], "sum").advantage.grouped, [[0.57735, -1.15470, 0.0, 0.57735]])
    never: Values = [[None] * 4]
    # over the three values the deviation of these is 1 already, so that scaling by the batch leaves them
    for by in ("group", "batch"):
        both = credit_of([some, never], "term", by)
        close(both.advantage.grouped, [[0.57735, -1.15470, 0.0, 0.57735]])
        assert math.isnan(both.total_utils[2])


def test_a_term_that_abstains_from_a_row_leaves_its_other_terms() -> None:
    first: Values = [[1.0, 0.0, 1.0, 0.0]]
    second: Values = [[None, None, 2.0, 4.0]]
    # first +-.86603, second -+.70711 on the last two; sums .86603, -.86603, .51247, -.51247 with deviation .82158
    close(credit_of([first, second], "term").advantage.grouped, [[1.05410, -1.05410, 0.62376, -0.62376]])


def test_truncated_rows_that_are_excluded_are_in_no_mean() -> None:
    credit = credit_of([[[1.0, 0.0, 1.0, 0.0]]], "term", truncation=Truncation.exclude)
    close(credit.advantage.grouped, [[0.86603, -0.86603, 0.86603, -0.86603]])


@pytest.mark.parametrize(("normalize", "by"), WORKED)
def test_the_order_of_groups_and_rows_does_not_matter(normalize: str, by: str) -> None:
    order = random.Random(7)
    terms: list[Values] = [
        [[order.random() if order.random() > 0.15 else None for _ in range(5)] for _ in range(4)] for _ in range(3)
    ]
    weights = (1.0, 0.2, -0.5)
    straight = credit_of(terms, normalize, by, weights=weights).advantage.grouped
    for _ in range(3):
        groups = order.sample(range(4), 4)
        rows = [order.sample(range(5), 5) for _ in groups]
        moved = [
            [[values[group][row] for row in places] for group, places in zip(groups, rows, strict=True)]
            for values in terms
        ]
        expected = [[straight[group][row] for row in places] for group, places in zip(groups, rows, strict=True)]
        close(credit_of(moved, normalize, by, weights=weights).advantage.grouped, expected, 1e-9)


@pytest.mark.parametrize("normalize", ["sum", "term"])
def test_the_size_of_a_term_does_not_matter_where_terms_are_normalised(normalize: str) -> None:
    """Points instead of shares: the second term times a thousand, and shifted."""
    grown: Values = [[1000 * value + 5 if value is not None else None for value in group] for group in SECOND]
    before = credit_of([FIRST, SECOND], normalize).advantage.samples
    after = credit_of([FIRST, grown], normalize).advantage.samples
    change = max(abs(left - right) for left, right in zip(before, after, strict=True))
    assert (change < 1e-3) is (normalize == "term")


def test_which_completions_are_right_is_told_from_the_rewards_themselves() -> None:
    """A right answer below the group's mean, and a wrong one above it, stay what they are."""
    right: Values = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.9, 0.0, 0.0]]
    for normalize in ("sum", "term"):
        credit = credit_of([right], normalize, method="maxent")
        valid = torch.ones(2, 4, dtype=torch.bool)
        weighting = settings_for("maxent").weighting
        evidence = group_evidence(credit, valid, valid, None, weighting)
        assert evidence.right.tolist() == [[True, False, True, True], [False] * 4]
        assert credit.normalized_utils is not None
        assert max(credit.normalized_utils[4:]) > max(credit.normalized_utils[:4])
        assert torch.equal(evidence.utilities.flatten(), torch.tensor(credit.normalized_utils, dtype=torch.float64))


def test_q_is_taken_from_utilities_in_units_of_a_deviation() -> None:
    """One right of four: deviation 1/2, so that the log-odds of q are 2 / T instead of 1 / T, and 1.73 / T for two of four."""
    for rewards, spread in (([1.0, 0.0, 0.0, 0.0], 0.5), ([1.0, 1.0, 0.0, 0.0], math.sqrt(1 / 3))):
        terms: list[Values] = [[list(rewards)]]
        for normalize, unit in (("none", 1.0), ("sum", spread)):
            credit = credit_of(terms, normalize, method="maxent_listwise")
            q = credit.q_grouped[0]
            temperature = settings_for("maxent_listwise").weighting.q_temperature
            assert math.log(q[0] / q[3]) == pytest.approx(1 / (temperature * unit), rel=1e-3)


QUICK = ("scoring=dr_grpo", "optimization.total_training_steps=1")


@pytest.mark.parametrize(("normalize", "by"), WORKED)
def test_groups_of_equal_rewards_have_no_gradient(tmp_path: Path, normalize: str, by: str) -> None:
    chosen = (f"reward.normalize={normalize}", f"reward.normalize_by={by}", "evaluation.enabled=false")
    train(tmp_path / "run", *QUICK, *only_reward("half"), *chosen)
    [line] = metric_lines(tmp_path / "run")
    assert (line["optim/gradient_norm"], line["optim/skipped"]) == (0.0, 1.0)
    assert (line["reward/mean"], line["reward/equal_groups"]) == (0.5, 1.0)


def test_logged_rewards_and_evaluations_are_not_normalised(tmp_path: Path) -> None:
    lines, evaluations = {}, {}
    for normalize in ("none", "sum", "term"):
        train(tmp_path / normalize, *QUICK, f"reward.normalize={normalize}")
        lines[normalize] = metric_lines(tmp_path / normalize)[-1]
        evaluations[normalize] = [line for line in evaluation_lines(tmp_path / normalize) if line["step"] == 0]
    plain = lines.pop("none")
    assert evaluations["none"]
    for normalize, line in lines.items():
        kept = [name for name in plain if name.startswith("reward/")]
        assert {name: line[name] for name in kept} == {name: plain[name] for name in kept}
        assert line["advantage/abs_mean"] != plain["advantage/abs_mean"]
        assert evaluations[normalize] == evaluations["none"]
