"""Errors in the user's own functions name the user's own line, and functions that cannot be called are refused before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.runs import SMALL
from support.steps import plain_facts

from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.rewards.functions import imported_function
from maxent_grpo.rewards.raised import raised, shown
from maxent_grpo.rewards.terms import RewardTerm
from maxent_grpo.tasks.build import build_task
from maxent_grpo.training.credit_rules import own_advantages
from maxent_grpo.training.preview.run import preview
from maxent_grpo.training.reward_terms import build_rewards

TEXT = """
import json

import torch


def reads(completions):
    return [number_of(text) for text in completions]


def number_of(text):
    return json.loads(text)["n"]  # a line of ours


async def later(completions):
    return [1 / len(text) for text in completions]


@torch.no_grad()
def advantages(utilities, facts):
    return utilities[facts.nothing_of_that_name]


def singular(prompt, completion, answr):
    return 0.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(TEXT)
    return path


def graded(file: Path, name: str, *texts: str) -> str:
    term = RewardTerm(name, imported_function("reward.functions.mine", f"{file}:{name}"))
    with pytest.raises(RewardError) as caught:
        term([""] * len(texts), texts, [[] for _ in texts], {})
    return str(caught.value)


def test_the_line_is_the_users_innermost_and_not_a_librarys(file: Path) -> None:
    said = graded(file, "reads", '{"n": 1}', "x")
    assert "raised JSONDecodeError(" in said
    assert said.endswith(f'at {file}:12: `return json.loads(text)["n"]  # a line of ours`')


def test_an_asynchronous_functions_line_is_named(file: Path) -> None:
    assert graded(file, "later", "").endswith(f"at {file}:16: `return [1 / len(text) for text in completions]`")


def test_an_advantage_rules_line_is_named_and_not_its_decorators(file: Path) -> None:
    with pytest.raises(RewardError) as caught:
        own_advantages(f"{file}:advantages")(torch.zeros(1, 2), plain_facts(torch.ones(1, 2, dtype=torch.bool)))
    said = str(caught.value)
    assert said.startswith(f"scoring.advantage_function={file}:advantages raised AttributeError(")
    assert said.endswith(f"at {file}:21: `return utilities[facts.nothing_of_that_name]`")


def test_an_error_of_this_packages_own_has_no_line() -> None:
    assert raised(TypeError("it returned None"), shown) == "TypeError('it returned None')"
    term = RewardTerm("mine", lambda completions: None)
    with pytest.raises(RewardError, match=r"raised TypeError\('it returned None.*each completion'\)$"):
        term([""], ["a"], [[]], {})


def test_a_value_that_cannot_show_itself_is_shown_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Shy()) == "a Shy"
    assert len(shown("x" * 1000)) == 300


def words(file: Path, name: str) -> list[str]:
    return [*SMALL, "+reward.terms.mine=1", f"+reward.functions.mine={file}:{name}"]


def test_a_function_that_asks_for_what_no_row_has_is_refused_at_the_start(file: Path) -> None:
    config = load_config(words(file, "singular"))
    task = build_task(config.data)
    rows = [{"prompt": "?", "answer": "RG", "row_id": "a"}]
    with pytest.raises(ConfigError) as caught:
        build_rewards(config, task, rows)
    assert caught.value.problems == [
        f"reward.functions.mine={file}:singular: reward term 'mine' asks for answr, completion, prompt, which the rows do not "
        "have; their columns are answer, row_id. Name columns that exist (answer for answr, completions for completion, prompts "
        "for prompt?), or give the parameter a default"
    ]
    assert build_rewards(config, task).reward_funcs  # nothing is known of the rows
    assert build_rewards(load_config(words(file, "reads")), task, rows).reward_funcs


def test_a_column_of_the_second_source_of_a_mixture_may_be_asked_for(file: Path) -> None:
    file.write_text("def asks(completions, level):\n    return [0.0 for _ in completions]\n")
    config = load_config(words(file, "asks"))
    task = build_task(config.data)
    first, last = [{"row_id": f"a{n}"} for n in range(900)], [{"row_id": f"b{n}", "level": 3} for n in range(100)]
    assert build_rewards(config, task, [*first, *last]).reward_funcs
    assert build_rewards(config, task, [None, None]).reward_funcs  # rows that are dropped when they are drawn
    with pytest.raises(ConfigError, match="asks for level"):
        build_rewards(config, task, [None, *first])


def test_a_dry_run_refuses_it_as_well(file: Path, tmp_path: Path) -> None:
    config = load_config([*words(file, "singular"), "run.dry=true", f"run.dir={tmp_path}/run"])
    with pytest.raises(ConfigError, match="asks for answr, completion, prompt"):
        preview(config)
