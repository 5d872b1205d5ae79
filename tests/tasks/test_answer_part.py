"""A grader that sees one part of a completion."""

from __future__ import annotations

import pytest
from support.many_rows import MadeTask, made_row

from maxent_grpo.config.data import ColoringDataConfig
from maxent_grpo.tasks.answer_part import PartTask, graded_by_part
from maxent_grpo.tasks.base import EnumerableTask
from maxent_grpo.tasks.build import build_task
from maxent_grpo.training.types.choices import AnswerPart

TASK = MadeTask([made_row(1)], [made_row(2)], mixture="mixed", num_skipped=3)
RIGHT = "G"


@pytest.mark.parametrize(
    ("part", "completion", "reward", "reason"),
    [
        (AnswerPart.tags, f"<think>R</think><answer> {RIGHT} </answer>", 1.0, ""),
        (AnswerPart.tags, "<answer>R</answer>", 0.0, ""),
        (AnswerPart.tags, RIGHT, 0.0, "no_answer"),
        (AnswerPart.tags, f"<answer>{RIGHT}</answer><answer>B</answer>", 0.0, "several"),
        (AnswerPart.boxed, f"It is $\\boxed{{{RIGHT}}}$.", 1.0, ""),
        (AnswerPart.boxed, f"<answer>{RIGHT}</answer>", 0.0, "no_answer"),
        (AnswerPart.whole, RIGHT, 1.0, ""),
    ],
)
def test_a_part_is_graded_and_nothing_else(part: AnswerPart, completion: str, reward: float, reason: str) -> None:
    grade = graded_by_part(TASK, part).grade(completion, made_row(1).answer)
    assert (grade.reward, grade.reason, grade.mode is not None) == (reward, reason, reward == 1.0)


@pytest.mark.parametrize(
    ("begun", "completion", "reward", "reason"),
    [
        ("<answer>", f"{RIGHT}</answer>", 1.0, ""),
        ("<think>\n", f"R <answer>{RIGHT}</answer>", 0.0, "no_answer"),  # the reasoning never ends
        ("<think>\n", f"R</think><answer>{RIGHT}</answer>", 1.0, ""),
    ],
)
def test_a_part_may_begin_in_what_the_prompt_begins_the_answer_with(
    begun: str, completion: str, reward: float, reason: str
) -> None:
    config = ColoringDataConfig(num_train=1, num_eval=1, answer_in=AnswerPart.tags, assistant_prefix=begun)
    task = build_task(config)
    assert isinstance(task, PartTask)
    grade = PartTask(TASK, task.part, task.begun).grade(completion, made_row(1).answer)
    assert (grade.reward, grade.reason) == (reward, reason)


def test_everything_but_the_grader_is_the_tasks() -> None:
    task = graded_by_part(TASK, AnswerPart.tags)
    assert isinstance(task, PartTask)
    assert (task.name, task.train_rows, task.eval_rows) == ("made", TASK.train_rows, TASK.eval_rows)
    assert (task.mixture, task.num_skipped, task.demonstrations(1, 1.0, 0)) == ("mixed", 3, [])
    assert graded_by_part(TASK, AnswerPart.whole) is TASK


def test_answers_with_something_around_them_can_neither_be_listed_nor_spelt_in_the_tasks_letters() -> None:
    whole, tags = (
        build_task(ColoringDataConfig(num_train=1, num_eval=1, answer_in=part))
        for part in (AnswerPart.whole, AnswerPart.tags)
    )
    assert isinstance(whole, EnumerableTask)
    assert not isinstance(tags, EnumerableTask)
    assert (whole.answer_alphabet, tags.answer_alphabet) == ("RGB", None)
