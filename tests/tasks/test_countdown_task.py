"""The countdown problems: exact, deterministic, disjoint, and complete in their solutions; and a run on them."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import SMALL_COUNTDOWN, SMALL_RUN, completion_lines, configured, metric_lines

import maxent_grpo
from maxent_grpo.config.contradictions_data import TEMPLATE_TOKENS
from maxent_grpo.config.data import ColoringDataConfig, CountdownDataConfig
from maxent_grpo.config.model import TinyModelConfig, WarmStartConfig
from maxent_grpo.errors import DataError
from maxent_grpo.models.build import build_model
from maxent_grpo.models.warm_start import cache_key
from maxent_grpo.rewards.countdown import ALPHABET, CountdownSpec, longest_answer, parse_spec
from maxent_grpo.rewards.expressions import solutions
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.countdown import build_countdown, prompt_text
from maxent_grpo.tasks.tokenize import prompt_token_ids

ROOT = Path(__file__).parent.parent.parent
SMALL = CountdownDataConfig(max_number=9, num_train=60, num_eval=20)
FOUR = CountdownDataConfig(
    num_numbers=4, min_number=2, max_number=5, max_target=40, max_modes=6, num_train=30, num_eval=10
)


@pytest.fixture(scope="module")
def task() -> Task:
    return build_task(SMALL)


@pytest.mark.parametrize("config", [SMALL, FOUR], ids=["three", "four"])
def test_rows_hold_all_solutions_and_each_is_right(config: CountdownDataConfig) -> None:
    task = build_task(config)
    for row in [*task.train_rows, *task.eval_rows]:
        spec = parse_spec(row.answer)
        assert len(spec.numbers) == config.num_numbers
        assert config.min_number <= min(spec.numbers) <= max(spec.numbers) <= config.max_number
        assert config.min_target <= spec.target <= config.max_target
        assert row.columns["modes"] == list(solutions(spec.numbers, spec.target)[spec.target])
        assert row.columns["num_modes"] == len(row.columns["modes"])
        assert config.min_modes <= row.columns["num_modes"] <= config.max_modes
        for text in row.columns["modes"]:
            assert task.grade(text, row.answer).mode == text
            assert set(text) <= set(ALPHABET)
            assert len(text) <= longest_answer(config.num_numbers, config.max_number)


def test_the_prompt_says_what_the_answer_is_graded_against(task: Task) -> None:
    assert prompt_text(CountdownSpec((3, 4, 5), 35)) == "3,4,5=35"
    for row in task.eval_rows:
        (message,) = row.messages
        numbers, target = message["content"].split("=")
        assert message["role"] == "user"
        assert parse_spec(row.answer) == CountdownSpec(tuple(map(int, numbers.split(","))), int(target))


def test_training_evaluation_and_demonstrations_share_no_held_out_problem() -> None:
    # numbers up to 6 allow about 160 problems, so the draws would collide if nothing kept them apart
    task = build_task(replace(SMALL, max_number=6, num_train=90, num_eval=50))
    held_out = {row.row_id for row in task.eval_rows}
    train_ids = {row.row_id for row in task.train_rows}
    demonstrated = {item.row_id for item in task.demonstrations(300, 1.0, 0)}
    assert (len(held_out), len(train_ids), len(demonstrated)) == (50, 90, 300)
    assert not held_out & train_ids
    assert not held_out & demonstrated
    assert train_ids & demonstrated
    questions = [{row.answer for row in rows} for rows in (task.eval_rows, task.train_rows)]
    assert not questions[0] & questions[1]


def test_held_out_problems_do_not_depend_on_how_many_are_trained_on(task: Task) -> None:
    assert build_task(replace(SMALL, num_train=5)).eval_rows == task.eval_rows
    assert build_task(replace(SMALL, num_train=5)).train_rows == task.train_rows[:5]
    assert build_task(replace(SMALL, problem_seed=1)).eval_rows != task.eval_rows
    assert len(build_task(replace(SMALL, num_eval=7)).eval_rows) == 7


def test_the_bounds_on_solutions_are_kept() -> None:
    for least, most in ((1, 1), (3, 4), (5, 10)):
        task = build_task(replace(SMALL, min_modes=least, max_modes=most, num_train=10, num_eval=2))
        assert all(least <= row.columns["num_modes"] <= most for row in [*task.train_rows, *task.eval_rows])


def test_demonstrations_prefer_the_lexicographically_first_answer(task: Task) -> None:
    demonstrations = task.demonstrations(60, 1.0, 0)
    for item in demonstrations:
        assert list(item.answers) == sorted(item.answers)
        assert list(item.weights) == pytest.approx(
            [math.exp(-rank) / sum(math.exp(-j) for j in range(len(item.answers))) for rank in range(len(item.answers))]
        )
    counts = Counter(len(item.answers) for item in demonstrations)
    assert counts[1] > 0
    assert sum(counts[number] for number in counts if number > 1) > 0
    for item in task.demonstrations(20, 0.0, 0):
        assert item.weights == pytest.approx([1 / len(item.answers)] * len(item.answers))
    assert task.demonstrations(20, 1.0, 0) != task.demonstrations(20, 1.0, 1)


def test_the_longest_question_fits_the_length_that_the_rule_demands() -> None:
    tokenizer = build_model(TinyModelConfig(hidden_size=32, num_layers=1, num_heads=1, intermediate_size=32)).tokenizer
    messages = [{"role": "user", "content": prompt_text(CountdownSpec((10, 11, 12), 100))}]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    assert len(prompt_token_ids(tokenizer, text)) == 3 * (2 + 1) + 3 + TEMPLATE_TOKENS


def fingerprint(task: Task) -> str:
    rows = [[row.row_id, row.messages, row.answer, row.columns] for row in [*task.train_rows, *task.eval_rows]]
    shown = [[item.row_id, item.answers] for item in task.demonstrations(20, 1.0, 0)]
    return hashlib.sha256(json.dumps([rows, shown]).encode()).hexdigest()


def test_problems_are_the_same_in_every_process_whatever_the_hash_seed(task: Task) -> None:
    imports = (
        "import hashlib, json; from maxent_grpo.config.data import CountdownDataConfig; "
        "from maxent_grpo.tasks.base import Task; from maxent_grpo.tasks.build import build_task"
    )
    config = re.sub(r"<\w+\.\w+: ('\w+')>", r"\1", repr(SMALL))  # choices by their values
    code = f"{imports}\n{inspect.getsource(fingerprint)}\nprint(fingerprint(build_task({config})))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint(task)


def test_a_space_that_is_too_small_is_reported_with_all_its_numbers() -> None:
    tight = replace(SMALL, min_number=2, max_number=3, max_target=10, num_train=50, num_eval=1)
    with pytest.raises(DataError) as caught:
        build_countdown(tight)
    found = sum(
        len(keys) >= 2
        for numbers in ((2, 2, 2), (2, 2, 3), (2, 3, 3), (3, 3, 3))
        for keys in solutions(numbers, 10).values()
    )
    assert str(caught.value) == (
        f"data.num_train=50 asks for more different countdown problems than there are: {found - 1} with 3 numbers from 2 to 3, "
        "a target from 1 to 10 and 2 to 10 solutions (1 held out). Ask for fewer, or widen data.max_number or data.max_target."
    )
    with pytest.raises(DataError, match=r"model\.warm_start\.num_problems=500 asks for more .* 1 to 10 solutions"):
        build_countdown(replace(tight, num_train=1)).demonstrations(500, 1.0, 0)
    with pytest.raises(DataError, match=r"data\.num_eval=40 asks for more"):
        build_countdown(replace(tight, num_eval=40))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_numbers": 2}, "num_numbers=2 "),
        ({"num_numbers": 5}, "num_numbers=5 "),
        ({"min_number": 0}, "min_number=0 "),
        ({"min_number": 10}, "max_number=9 "),
        ({"max_number": 10**6 + 1}, "max_number=1000001 "),
        ({"min_target": 0}, "min_target=0 "),
        ({"min_target": 101}, "min_target=101 "),
        ({"min_modes": 0}, "min_modes=0 "),
        ({"min_modes": 11}, "max_modes=10 "),
        ({"num_train": 0}, "num_train=0 "),
        ({"num_eval": -1}, "num_eval=-1 "),
    ],
)
def test_impossible_settings_are_refused_by_name(change: dict[str, int], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        build_countdown(replace(SMALL, **change))


def test_no_two_tasks_or_settings_share_a_cached_warm_start() -> None:
    loaded = build_model(TinyModelConfig(hidden_size=32, num_layers=1, num_heads=1, intermediate_size=32))
    changes = [{}, {"max_number": 8}, {"max_target": 50}, {"min_target": 2}, {"max_modes": 2}, {"problem_seed": 1}]
    tasks: list[Task] = [build_task(replace(SMALL, **change)) for change in changes]
    tasks.append(build_task(ColoringDataConfig(num_train=60, num_eval=20)))
    settings = WarmStartConfig()
    keys = [cache_key(loaded, task.demonstrations(100, 1.0, 0), settings, {"task": task.name}) for task in tasks]
    assert len(set(keys)) == len(keys)
    again = build_task(replace(SMALL, num_train=5)).demonstrations(100, 1.0, 0)
    assert cache_key(loaded, again, settings, {"task": "countdown"}) == keys[0]


def test_a_run_counts_why_completions_were_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = ("data=countdown", *SMALL_RUN, *SMALL_COUNTDOWN, f"run.dir={run_dir}")
    warm = ("model.warm_start.enabled=true", "model.warm_start.steps=2", "model.warm_start.num_problems=8")
    maxent_grpo.run([*words, *warm, f"model.warm_start.cache_dir={tmp_path}/cache"])
    lines = [line for line in metric_lines(run_dir) if line["step"] > 0]
    assert [line["step"] for line in lines] == [1, 2]
    assert {"eval/pass@1", "eval/coverage@8"} <= lines[-1].keys()
    task = build_task(configured(tmp_path / "again", "data=countdown").data)
    answers = {row.row_id: row.answer for row in task.train_rows}
    for line in lines:
        written = [entry for entry in completion_lines(run_dir) if entry["step"] == line["step"]]
        graded = [task.grade(entry["completion"], answers[entry["row_id"]]) for entry in written]
        assert len(written) == 16
        reasons = Counter(f"reward/rejected/{grade.reason}" for grade in graded if grade.reason)
        assert sum(reasons.values()) > 8
        assert {name: value for name, value in line.items() if name.startswith("reward/rejected/") and value} == reasons
        assert all(set(entry["completion"]) <= set(ALPHABET) for entry in written)
