"""The colouring problems: exact, deterministic, disjoint, and complete in their answers."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from maxent_grpo.config.data import ColoringDataConfig, DataConfig
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.rewards.coloring import ColoringSpec, parse_spec
from maxent_grpo.tasks.base import EnumerableTask, Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.coloring import (
    LETTERS,
    MAX_VERTICES,
    PAIR_SYMBOLS,
    build_coloring,
    prompt_text,
    right_answers,
)

SMALL = ColoringDataConfig(num_train=60, num_eval=20)


@pytest.fixture(scope="module")
def task() -> Task:
    return build_task(SMALL)


def test_all_listed_answers_are_right_and_all_others_wrong(task: Task) -> None:
    for row in [*task.train_rows, *task.eval_rows]:
        modes = set()
        for letters in itertools.product(LETTERS, repeat=SMALL.num_hidden):
            grade = task.grade("".join(letters), row.answer)
            assert grade.reward == float(grade.mode is not None)
            assert grade.reason == ""
            if grade.mode is not None:
                modes.add(grade.mode)
        assert sorted(modes) == row.columns["modes"]
        assert len(modes) == row.columns["num_modes"]
        assert SMALL.min_modes <= len(modes) <= SMALL.max_modes


def test_the_prompt_says_what_the_answer_is_graded_against(task: Task) -> None:
    for row in task.eval_rows:
        spec = parse_spec(row.answer)
        (message,) = row.messages
        colors, edges = message["content"][:2], message["content"][2:]
        pairs = itertools.combinations(range(SMALL.num_vertices), 2)
        shown = [pair for pair, symbol in zip(pairs, edges, strict=True) if symbol != "."]
        assert message["role"] == "user"
        assert colors + "????" == spec.colors
        assert tuple(shown) == spec.edges
        assert spec.hidden == (2, 3, 4, 5)


def test_the_documented_example_reads_as_documented() -> None:
    path = ColoringSpec(edges=((0, 1), (1, 2)), colors="R??", letters="RGB")
    assert prompt_text(path) == "Ra.c"
    assert right_answers(path) == ["BG", "BR", "GB", "GR"]
    assert right_answers(path, limit=3) == ["BG", "BR", "GB"]


def test_every_pair_of_the_largest_graph_has_a_symbol_of_its_own() -> None:
    assert len(set(PAIR_SYMBOLS)) == len(PAIR_SYMBOLS) == math.comb(MAX_VERTICES, 2)
    assert not set(PAIR_SYMBOLS) & set("RGB.?<|> ")
    complete = ColoringSpec(tuple(itertools.combinations(range(12), 2)), "?" * 12, "RGB")
    assert prompt_text(complete) == PAIR_SYMBOLS


def test_training_evaluation_and_demonstrations_share_no_held_out_problem() -> None:
    # four vertices allow 123 problems, so the three draws would collide if nothing kept them apart
    task = build_task(replace(SMALL, num_vertices=4, num_hidden=3, num_train=60, num_eval=40))
    held_out = {row.row_id for row in task.eval_rows}
    train = {row.row_id for row in task.train_rows}
    demonstrated = {item.row_id for item in task.demonstrations(80, 1.0, 0)}
    assert (len(held_out), len(train), len(demonstrated)) == (40, 60, 80)
    assert not held_out & train
    assert not held_out & demonstrated
    assert train & demonstrated
    questions = [{row.messages[0]["content"] for row in rows} for rows in (task.eval_rows, task.train_rows)]
    assert not questions[0] & questions[1]


def test_held_out_problems_do_not_depend_on_how_many_are_trained_on(task: Task) -> None:
    assert build_task(replace(SMALL, num_train=5)).eval_rows == task.eval_rows
    assert build_task(replace(SMALL, num_train=5)).train_rows == task.train_rows[:5]
    assert build_task(replace(SMALL, problem_seed=1)).eval_rows != task.eval_rows


def test_demonstrations_prefer_the_lexicographically_first_answer(task: Task) -> None:
    for item in task.demonstrations(20, 1.0, 0):
        assert list(item.answers) == sorted(item.answers)
        assert math.fsum(item.weights) == pytest.approx(1.0, abs=1e-15)
        for first, second in itertools.pairwise(item.weights):
            assert second / first == pytest.approx(math.exp(-1.0), rel=1e-12)
    for item in task.demonstrations(20, 0.0, 0):
        assert item.weights == pytest.approx([1 / len(item.answers)] * len(item.answers))
    assert task.demonstrations(20, 1.0, 0) != task.demonstrations(20, 1.0, 1)


def fingerprint(task: Task) -> str:
    rows = [[row.row_id, row.messages, row.answer, row.columns] for row in [*task.train_rows, *task.eval_rows]]
    shown = [[item.row_id, item.answers] for item in task.demonstrations(20, 1.0, 0)]
    return hashlib.sha256(json.dumps([rows, shown]).encode()).hexdigest()


def test_problems_are_the_same_in_every_process_whatever_the_hash_seed(task: Task) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_coloring_task as module; "
        "print(module.fingerprint(module.build_task(module.SMALL)))"
    )
    for seed in ("0", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == fingerprint(task)


def test_the_first_problem_of_seed_0_is_this_one(task: Task) -> None:
    row = task.train_rows[0]
    assert row.row_id == "coloring-23167530cee45100"
    assert row.messages == [{"role": "user", "content": "RR.b......ijkl..o"}]
    assert row.columns == {"num_modes": 4, "modes": ["BGRG", "BRRG", "GBRB", "GRRB"]}
    assert json.loads(row.answer)["edges"] == [[0, 2], [1, 5], [2, 3], [2, 4], [2, 5], [4, 5]]


def test_a_space_that_is_too_small_is_reported_with_both_numbers() -> None:
    # three vertices, all hidden: 2 to 10 right answers leave 1 triangle (6 answers) only; paths have 12
    with pytest.raises(DataError, match=r"asked for 5 .* only 1 exist"):
        build_coloring(replace(SMALL, num_vertices=3, num_hidden=3, num_train=5, num_eval=0))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_vertices": 1}, "num_vertices=1 "),
        ({"num_vertices": 13}, "num_vertices=13 "),
        ({"num_hidden": 7}, "num_hidden=7 "),
        ({"num_hidden": 0}, "num_hidden=0 "),
        ({"edge_probability": math.nan}, "edge_probability=nan "),
        ({"edge_probability": 1.1}, "edge_probability=1.1 "),
        ({"min_modes": 0}, "min_modes=0 "),
        ({"min_modes": 11}, "max_modes=10 "),
        ({"min_modes": 82, "max_modes": 90}, "exceeds the 81 "),
        ({"num_train": 0}, "num_train=0 "),
        ({"num_eval": -1}, "num_eval=-1 "),
    ],
)
def test_impossible_settings_are_refused_by_name(change: dict[str, float], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        build_coloring(replace(SMALL, **change))  # pyright: ignore[reportArgumentType]


def test_a_data_option_without_a_builder_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="DataConfig"):
        build_task(DataConfig())


def test_the_answer_space_is_listed_whole_and_holds_every_right_answer(task: Task) -> None:
    assert isinstance(task, EnumerableTask)
    for row in task.eval_rows[:5]:
        answers = task.list_answers(row.answer)
        assert len(answers) == len(set(answers)) == task.count_answers(row.answer) == 3**SMALL.num_hidden
        assert [text for text in answers if task.grade(text, row.answer).reward == 1.0] == row.columns["modes"]
