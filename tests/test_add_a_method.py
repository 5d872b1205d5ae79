"""docs/add_a_method.md is executed block by block, in an empty folder, and does what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals
from support.own_options import options_taken_back
from support.pages import Ran, execute
from support.runs import configured
from support.steps import plain_facts
from torch import Tensor

import maxent_grpo
from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.declared import options
from maxent_grpo.config.scoring import DrGrpoScoringConfig
from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.training.credit_rules import GroupFacts, own_advantages
from maxent_grpo.training.types.choices import AdvantageKind

REPOSITORY = config_directory().parent
PAGE = REPOSITORY / "docs" / "add_a_method.md"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return execute(PAGE, tmp_path_factory.mktemp("page"))


@pytest.mark.slow
def test_every_python_block_prints_what_the_page_shows(ran: Ran) -> None:
    assert len(ran.outputs) >= 3
    assert any(expected for expected, _ in ran.outputs)
    for expected, printed in ran.outputs:
        assert printed == expected


@pytest.mark.slow
def test_the_page_shows_the_worked_example_of_the_method(ran: Ran) -> None:
    shown = json.loads(ran.outputs[0][1])[0]
    assert_equals(torch.tensor(shown, dtype=torch.float64), golden("adv.maxrl.R1"), tolerance=1e-6)


@pytest.mark.slow
def test_the_run_of_the_page_has_trained_by_the_new_rule(ran: Ran) -> None:
    lines = [json.loads(line) for line in (ran.folder / "first" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert "A = maxrl:advantages(r, facts) over the group" in (ran.folder / "first" / "run.log").read_text()
    groups: dict[tuple[int, str], list[dict[str, float]]] = {}
    for text in (ran.folder / "first" / "completions.jsonl").read_text().splitlines():
        entry = json.loads(text)
        groups.setdefault((entry["step"], entry["row_id"]), []).append(entry)
    compared = 0
    for group in groups.values():
        rewards = [entry["utility"] for entry in group]
        mean = sum(rewards) / len(rewards)
        for entry, reward in zip(group, rewards, strict=True):
            expected = (reward - mean) / (mean + 1e-6) if mean else 0.0
            if len(group) == 4:  # the whole group was recorded
                assert entry["advantage"] == pytest.approx(expected, abs=1e-9)
                compared += mean > 0
    assert compared or not any(entry["utility"] for group in groups.values() for entry in group)


@pytest.mark.slow
def test_the_preset_of_the_page_is_a_configuration(ran: Ran) -> None:
    assert "maxrl:advantages" in ran.shown[-1]


@pytest.fixture
def own_option() -> Iterator[None]:
    """Takes added options back."""
    with options_taken_back():
        yield


class Mine(DrGrpoScoringConfig):
    """Dr.GRPO by another name."""


def test_an_added_option_is_listed_and_cannot_take_a_name(own_option: None) -> None:
    maxent_grpo.add_option("scoring", "mine", Mine)
    maxent_grpo.add_option("scoring", "mine", Mine)
    assert options("scoring")["mine"] is Mine
    for group, name, node, sentence in (
        ("scoring", "grpo", Mine, "add_option('scoring', 'grpo', ...): scoring=grpo is GrpoScoringConfig already; choose another name"),
        ("scorng", "mine", Mine, "add_option('scorng', 'mine', ...): there is no group scorng; use one of model, data, generation, "
         "scoring, optimization, controller, reward, evaluation, logging, checkpoint, run"),
        ("data", "mine", Mine, f"add_option('data', 'mine', {Mine!r}): an option of data is a dataclass that extends DataConfig"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            maxent_grpo.add_option(group, name, node)
        assert caught.value.problems == [sentence]


def problems(tmp_path: Path, **settings: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, "scoring=dr_grpo", settings={f"scoring.{name}": value for name, value in settings.items()})
    return caught.value.problems


def test_the_rule_and_its_function_go_together(tmp_path: Path) -> None:
    assert problems(tmp_path, advantage=AdvantageKind.function) == [
        "scoring.advantage=function calls the rule that scoring.advantage_function names, which is null: write "
        "scoring.advantage_function=package.module:function, or choose another scoring.advantage"
    ]
    assert problems(tmp_path, advantage_function="support.peers:halves") == [
        "scoring.advantage_function=support.peers:halves is called with scoring.advantage=function only, and "
        "scoring.advantage=group_mean: set scoring.advantage=function or scoring.advantage_function=null"
    ]
    assert problems(tmp_path, advantage=AdvantageKind.function, advantage_function="halves") == [
        "scoring.advantage_function=halves: write it as package.module:function"
    ]
    assert problems(tmp_path, advantage=AdvantageKind.function, advantage_function="nowhere_at_all:halves") == [
        "scoring.advantage_function=nowhere_at_all:halves: there is no module nowhere_at_all to import; install it, or start "
        "the run where it can be imported"
    ]


def halves(utilities: Tensor, facts: GroupFacts) -> Tensor:
    return utilities / 2


def flat(utilities: Tensor, facts: GroupFacts) -> Tensor:
    return utilities.flatten()


def undefined(utilities: Tensor, facts: GroupFacts) -> Tensor:
    return utilities / 0.0


def test_what_a_rule_returns_is_checked() -> None:
    utilities = torch.tensor([[1.0, 0.5, torch.nan]], dtype=torch.float64)
    facts = plain_facts(torch.tensor([[True, True, False]]))
    module = __name__
    assert own_advantages(f"{module}:halves")(utilities, facts).tolist() == [[0.5, 0.25, 0.0]]
    with pytest.raises(
        ConfigError, match=f"scoring.advantage_function={module}:none: module {module} has no function none"
    ):
        own_advantages(f"{module}:none")
    with pytest.raises(RewardError) as caught:
        own_advantages(f"{module}:flat")(utilities, facts)
    assert str(caught.value) == (
        f"scoring.advantage_function={module}:flat returned a tensor of shape [3] for 1 groups of 3 completions: return a "
        "tensor of shape [1, 3]"
    )
    with pytest.raises(RewardError) as caught:
        own_advantages(f"{module}:undefined")(utilities, facts)
    assert str(caught.value) == (
        f"scoring.advantage_function={module}:undefined gave completion 0 of group 0, with utility 1, the advantage inf: "
        "return finite numbers, 0 where a group has no signal"
    )
