"""reasoning-gym's problems: made from settings alone, kept apart, and graded by the library without evaluating a model's text."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path

import pytest
from reasoning_gym.factory import DATASETS

from maxent_grpo.config.data import ReasoningGymDataConfig
from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.reasoning_gym import FORMULAS, LITERALS, UNGRADED, ReasoningGymTask, offered_families

TWO_TERMS = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}}
CHAIN_SUM = ReasoningGymDataConfig(tasks={"chain_sum": 1.0}, task_settings=TWO_TERMS, num_train=60, num_eval=20)


def made(
    tasks: dict[str, float], num_train: int = 12, num_eval: int = 3, seed: int = 0, **settings: dict
) -> ReasoningGymTask:
    config = ReasoningGymDataConfig(
        tasks=tasks, task_settings=settings, num_train=num_train, num_eval=num_eval, problem_seed=seed
    )
    return ReasoningGymTask(config)


def test_problems_depend_on_the_settings_alone_and_the_held_out_ones_not_on_how_many_are_trained() -> None:
    first, again = build_task(CHAIN_SUM), build_task(CHAIN_SUM)
    fewer = made({"chain_sum": 1.0}, num_train=10, num_eval=20, chain_sum=TWO_TERMS["chain_sum"])
    other = made({"chain_sum": 1.0}, num_train=10, num_eval=20, seed=1, chain_sum=TWO_TERMS["chain_sum"])
    assert list(first.train_rows) == list(again.train_rows)
    assert list(first.eval_rows) == list(fewer.eval_rows)
    assert list(other.eval_rows) != list(fewer.eval_rows)


def test_no_problem_occurs_twice_and_none_is_in_both_splits() -> None:
    task = made(
        {"chain_sum": 1.0}, 120, 60, chain_sum={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    )
    questions = [row.messages[0]["content"] for row in [*task.train_rows, *task.eval_rows]]
    assert len(set(questions)) == 180
    assert len({row.row_id for row in [*task.train_rows, *task.eval_rows]}) == 180


def test_too_few_different_problems_are_said_to_be_so() -> None:
    with pytest.raises(
        DataError, match=r"data.num_train asks for 300 different chain_sum problems, and only 1\d\d were found"
    ):
        made({"chain_sum": 1.0}, 300, 20, chain_sum={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def test_a_mixture_has_its_shares_evenly_spread() -> None:
    task = made({"chain_sum": 3.0, "n_queens": 1.0}, 40, 8)
    names = [row.columns["task"] for row in task.train_rows]
    assert Counter(names) == {"chain_sum": 30, "n_queens": 10}
    assert all(Counter(names[at : at + 4]) == {"chain_sum": 3, "n_queens": 1} for at in range(0, 40, 4))


def test_the_library_grades_its_own_answers_fully_and_numbers_by_value() -> None:
    task = build_task(CHAIN_SUM)
    for row in task.eval_rows:
        solution = row.columns["solution"]
        assert task.grade(f" {solution}\n", row.answer).reward == 1.0
        assert task.grade(f"{solution}.0", row.answer).mode == task.grade(solution, row.answer).mode == solution
        wrong = task.grade("none of it", row.answer)
        assert (wrong.reward, wrong.mode, wrong.key) == (0.0, None, "none of it")
        # part marks for an answer that stands within other text: the share of the text that it is
        assert 0 < task.grade(f"it is {solution} I think", row.answer).reward < 1
        assert task.grade("", row.answer).reason == "empty"


QUICK = (
    "n_queens",
    "countdown",
    "puzzle24",
    "spiral_matrix",
    "binary_matrix",
    "string_insertion",
    "gsm_symbolic",
    "leg_counting",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_familys_own_answer_earns_full_marks_where_it_has_one(name: str) -> None:
    task = made({name: 1.0}, 4, 2)
    for row in task.train_rows:
        if row.columns["solution"] not in (None, "None"):
            assert task.grade(row.columns["solution"], row.answer).reward == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(LITERALS | FORMULAS))
def test_a_text_aimed_at_the_evaluator_is_never_evaluated(name: str, tmp_path: Path) -> None:
    task = made({name: 1.0}, 1, 0)
    trace = tmp_path / "trace"
    for text in (f"__import__('pathlib').Path({str(trace)!r}).touch()", f"[open({str(trace)!r}, 'w')]"):
        grade = task.grade(text, task.train_rows[0].answer)
        assert (grade.reward, grade.reason) == (0.0, "not_plain")
    assert not trace.exists()


def test_every_family_whose_grader_evaluates_is_known() -> None:
    marks = ("eval(", "exec(", "parse_expr(", "sympify(")
    own_evaluators = {"propositional_logic"}  # its parse_expr is a parser of its own, which evaluates nothing
    found = {
        name
        for name, (family, _) in DATASETS.items()
        if any(mark in inspect.getsource(family.score_answer) for mark in marks)
    }
    known = LITERALS | FORMULAS | UNGRADED | own_evaluators
    # number_sorting evaluates its own answer, not the model's
    assert found - known <= {"number_sorting"}


def test_wrong_names_are_named_with_what_was_meant() -> None:
    with pytest.raises(DataError, match=r"no task 'chain_sums' that can be trained on, did you mean chain_sum\?"):
        made({"chain_sums": 1.0})
    with pytest.raises(DataError, match=r"data.task_settings.chain_sum.max_term: .* did you mean max_terms\?"):
        made({"chain_sum": 1.0}, chain_sum={"max_term": 2})
    with pytest.raises(DataError, match=r"reasoning-gym refuses it: max_terms must be >= min_terms"):
        made({"chain_sum": 1.0}, chain_sum={"max_terms": 1})
    with pytest.raises(ConfigError, match=r"data.tasks=\{\}: .*data.tasks=\{chain_sum: 1\}"):
        load_config(["data=reasoning_gym", "model.warm_start.enabled=false"])
    with pytest.raises(ConfigError, match=r"data.task_settings.n_queens: data.tasks has no n_queens"):
        load_config(["data=reasoning_gym", "data.tasks.chain_sum=1", "data.task_settings.n_queens.n=4"])
    with pytest.raises(ConfigError, match=r"data.tasks.chain_sum=0.0: a share must be above 0"):
        load_config(["data=reasoning_gym", "data.tasks.chain_sum=0"])
    assert "codeio" not in offered_families()
    assert len(offered_families()) > 90


def test_an_answer_addresses_its_problem() -> None:
    task = made({"chain_sum": 1.0, "gsm_symbolic": 1.0}, 6, 0)
    for row in task.train_rows:
        assert json.loads(row.answer)["task"] == row.columns["task"]


def test_a_formula_that_computer_algebra_never_finishes_costs_its_own_verdict_only() -> None:
    task = made({"simple_integration": 1.0}, 1, 0)
    endless = "(x+1)**100*(x+2)**100*sin(x)**90*tan(x)**80"
    grade = task.grade(endless, task.train_rows[0].answer)
    assert (grade.reward, grade.reason) == (0.0, "timeout")
    solution = task.train_rows[0].columns["solution"]
    assert task.grade(solution, task.train_rows[0].answer).reward == 1.0


def test_a_lone_word_is_a_text_and_no_variable() -> None:
    task = made({"string_insertion": 1.0}, 2, 0)
    for row in task.train_rows:
        assert task.grade("oracle_answer", row.answer).reward == 0.0
        assert task.grade("entry", row.answer).reward == 0.0
        assert task.grade(row.columns["solution"], row.answer).reward == 1.0
