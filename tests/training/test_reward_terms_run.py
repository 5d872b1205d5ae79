"""Whole runs whose rewards are functions of the user's and built-in terms: what is trained, logged and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.laboratory import Laboratory
from support.runs import completion_lines, configured, metric_lines, train

from maxent_grpo.errors import RewardError
from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.training.experience import trainer_state
from maxent_grpo.training.sampled_groups import groups_from_tree, groups_to_tree, join_groups, select_groups

QUICK = ("scoring=dr_grpo", "evaluation.enabled=false")
ALONE = ("~reward.terms.spread", "~reward.functions.spread")


def own(name: str, target: str, *settings: str) -> tuple[str, ...]:
    """Overrides that add a function of the user's with weight 1."""
    return (f"+reward.terms.{name}=1", f"+reward.functions.{name}={target}", *settings)


LOGS = own("logs_length", "support.graders:logs_length")
HALF = own("half", "support.graders:half_score")


def test_what_functions_log_is_a_metric_and_a_column(tmp_path: Path) -> None:
    train(tmp_path / "run", *QUICK, *LOGS, *HALF)
    lines, completions = metric_lines(tmp_path / "run"), completion_lines(tmp_path / "run")
    assert [line["reward/extra/step"] for line in lines] == [1.0, 2.0]
    for line in lines:
        step = [entry for entry in completions if entry["step"] == line["step"]]
        assert line["reward/extra/longest"] == max(len(entry["completion"]) for entry in step)
        assert [entry["extra"] for entry in step] == [
            {"length": len(entry["completion"]), "start": entry["completion"][:1]} for entry in step
        ]
    train(tmp_path / "plain", *QUICK)
    assert not [entry for entry in completion_lines(tmp_path / "plain") if "extra" in entry]


def test_a_term_has_its_own_statistics(tmp_path: Path) -> None:
    train(tmp_path / "run", *QUICK, *own("silent_on_green", "support.graders:silent_on_green"))
    for line in metric_lines(tmp_path / "run"):
        entries = [entry for entry in completion_lines(tmp_path / "run") if entry["step"] == line["step"]]
        values = [entry["rewards"]["silent_on_green"] for entry in entries]
        given = [value for value in values if value is not None]
        mean = sum(given) / len(given)
        assert line["reward/term/silent_on_green"] == pytest.approx(mean)
        deviation = (sum((value - mean) ** 2 for value in given) / len(given)) ** 0.5
        assert line["reward/term_std/silent_on_green"] == pytest.approx(deviation)
        assert line["reward/term_abstained/silent_on_green"] == pytest.approx(1 - len(given) / len(values))
        groups = [[entry["rewards"]["task"] for entry in entries[at : at + 4]] for at in range(0, 16, 4)]
        flat = sum(len(set(group)) == 1 for group in groups) / 4
        assert line["reward/term_equal_groups/task"] == flat
        assert "reward/term_abstained/task" not in line


def test_a_single_term_has_no_statistics_beside_the_utilitys(tmp_path: Path) -> None:
    train(tmp_path / "run", *QUICK, *ALONE)
    for line in metric_lines(tmp_path / "run"):
        assert {name for name in line if name.startswith("reward/term")} == {"reward/term/task"}


def test_failures_are_counted_by_term(tmp_path: Path) -> None:
    failing = own("refuses_green", "support.graders:refuses_green", "+reward.on_error.refuses_green=abstain")
    slow = ("+reward.on_error.slow_on_red=abstain", "+reward.time_limits.slow_on_red=0.05")
    train(tmp_path / "run", *QUICK, *failing, *own("slow_on_red", "support.graders:slow_on_red", *slow))
    for line in metric_lines(tmp_path / "run"):
        texts = [entry["completion"] for entry in completion_lines(tmp_path / "run") if entry["step"] == line["step"]]
        assert line["reward/term_errors/refuses_green"] == sum("G" in text for text in texts)
        assert line["reward/term_timeouts/slow_on_red"] >= sum(text.startswith("R") for text in texts) > 0
    with pytest.raises(RewardError, match=r"'slow_on_red' on row coloring-.* took longer than reward.time_limits"):
        train(tmp_path / "stop", *QUICK, *own("slow_on_red", "support.graders:slow_on_red", slow[1]))


def test_a_conversation_is_passed_as_messages(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def asks(prompts, completions, answer, **columns):\n"
        "    assert all(prompt[-1]['role'] == 'user' and prompt[-1]['content'] for prompt in prompts)\n"
        "    assert all(text[0]['role'] == 'assistant' for text in completions)\n"
        "    return [float(text[0]['content'].startswith('R')) for text in completions]\n"
    )
    words = (*QUICK, "reward.terms.task=0", *ALONE, *own("asks", f"{file}:asks"))
    train(tmp_path / "run", *words, "+reward.styles.asks=messages")
    for entry in completion_lines(tmp_path / "run"):
        assert entry["utility"] == float(entry["completion"].startswith("R"))
    with pytest.raises(RewardError, match=r"'asks' on row .* raised TypeError"):
        train(tmp_path / "texts", *words)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    failing = own("refuses_green", "support.graders:refuses_green", "+reward.on_error.refuses_green=abstain")
    return Laboratory(configured(tmp_path_factory.mktemp("run"), *QUICK, *LOGS, *HALF, *failing))


def test_what_terms_said_survives_a_checkpoint_and_a_choice_of_groups(lab: Laboratory) -> None:
    experience = lab.rollout()
    sampled = (experience.batch, experience.graded)
    assert any(entry["failures"] for entry in experience.graded.metadata)
    _, again = groups_from_tree(groups_to_tree(sampled))
    assert [entry["extra"] for entry in again.metadata] == [entry["extra"] for entry in experience.graded.metadata]
    assert [entry["failures"] for entry in again.metadata] == [e["failures"] for e in experience.graded.metadata]
    assert again.logged == experience.graded.logged
    _, chosen = join_groups([select_groups(sampled, [2]), select_groups(sampled, [0])])
    assert chosen.metadata == experience.graded.metadata[8:12] + experience.graded.metadata[:4]
    assert experience.graded.logged
    assert not chosen.logged


def test_functions_learn_where_training_stands(lab: Laboratory) -> None:
    assert trainer_state(lab.ctx, 1, 1) == TrainerState(global_step=1, max_steps=2, epoch=1.0)


def test_an_evaluation_says_at_which_step_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import collections\n\nseen = []\n\n\n"
        "def stands(completions, trainer_state):\n"
        "    seen.append((trainer_state.global_step, trainer_state.max_steps))\n"
        "    return [0.0 for _ in completions]\n"
    )
    steps = (
        "evaluation.every_n_steps=1",
        "evaluation.greedy=false",
        "evaluation.exact=never",
        "evaluation.batch_size=9",
    )
    train(tmp_path / "run", "scoring=dr_grpo", *steps, *own("stands", f"{file}:stands"))
    from maxent_grpo.rewards.functions import imported_function

    seen: list[Any] = imported_function("mine", f"{file}:stands").__globals__["seen"]
    assert seen == [(0, 2), (0, 2), (1, 2), (1, 2), (2, 2)]


def test_built_in_terms_train_together(tmp_path: Path) -> None:
    terms = ("format", "exact", "regex", "length", "overlong", "repetition")
    chosen = (f"+reward.terms.{name}=0.1" for name in terms)
    words = ("reward.regex.pattern='^R'", "reward.length.target=2", "reward.length.width=2")
    train(tmp_path / "run", *QUICK, *chosen, *words, "reward.normalize=term")
    for entry in completion_lines(tmp_path / "run"):
        assert set(entry["rewards"]) == {"task", "spread", *terms}
        expected = entry["rewards"]["task"] + 0.25 * entry["rewards"]["spread"]
        expected += 0.1 * sum(entry["rewards"][name] for name in terms)
        assert entry["utility"] == pytest.approx(expected)
        assert entry["rewards"]["regex"] == float(entry["completion"].startswith("R"))
        assert -1 <= entry["rewards"]["overlong"] <= 0
