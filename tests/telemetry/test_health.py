"""Signs of a run that goes wrong: told where they show, once, and not of a run that is well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import only_reward, train

from maxent_grpo.config.compose import config_directory
from maxent_grpo.report.read import read_metrics
from maxent_grpo.telemetry.health import SIGNS, HealthWatch

Line = dict[str, float]
PAGE = config_directory().parent / "docs" / "faults.md"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """The lines of a run that learns."""
    run_dir = tmp_path_factory.mktemp("healthy") / "run"
    train(
        run_dir,
        *("scoring=maxent", "optimization.total_training_steps=40", "evaluation.enabled=false"),
        *("scoring.policy_entropy=true", "scoring.reference_logprobs_source=model", "optimization.learning_rate=0.003"),
    )
    return read_metrics(run_dir)


def heard(lines: list[Line]) -> tuple[list[tuple[int, str]], HealthWatch]:
    """Place and sentence of everything that is said of a stream of lines."""
    watch = HealthWatch()
    said = [(place, text) for place, line in enumerate(lines) for text in watch.see(place, line, 16)]
    return said, watch


def spike(line: Line, before: list[Line]) -> Line:
    return line | {"loss/total": line["loss/total"] + 1e3, "optim/gradient_norm": 1e3}


def silent(line: Line, before: list[Line]) -> Line:
    return line | {"reward/equal_groups": 1.0}


def cut(line: Line, before: list[Line]) -> Line:
    return line | {"completion/clipped_ratio": 1.0, "reward/equal_groups": 0.5}


def collapsed(line: Line, before: list[Line]) -> Line:
    return line | {"policy/entropy": 0.02 * before[0]["policy/entropy"]}


def exploded(line: Line, before: list[Line]) -> Line:
    return line | {"policy/kl_to_reference": 2.5}


SICK: dict[str, tuple[Callable[[Line, list[Line]], Line], int]] = {
    "loss spike": (spike, 1),
    "no signal": (silent, 10),
    "all truncated": (cut, 10),
    "entropy collapse": (collapsed, 10),
    "KL explosion": (exploded, 3),
}
"""What a line then looks like, and how many of them make the sign."""


def test_a_run_that_is_well_is_told_nothing(healthy: list[Line]) -> None:
    assert len(healthy) == 40
    read = {"loss/total", "optim/gradient_norm", "policy/entropy", "policy/kl_to_reference", "reward/equal_groups"}
    assert read <= set(healthy[-1])
    said, watch = heard(healthy)
    assert (said, watch.summary()) == ([], [])


@pytest.mark.parametrize("name", SICK)
def test_a_sign_is_told_when_it_shows_once_and_with_its_cure(healthy: list[Line], name: str) -> None:
    make, needed = SICK[name]
    [sign] = [sign for sign in SIGNS if sign.name == name]
    sick = [make(line, healthy) for line in healthy[-needed:]]
    before = len(healthy)
    assert heard([*healthy, *sick[:-1], healthy[-1]])[0] == []
    said, watch = heard([*healthy, *sick, *healthy[-15:], *sick])
    assert said == [(before + needed - 1, f"{name} at step {before + needed - 1} ({sign.threshold}): {sign.cure}")]
    [line] = watch.summary()
    assert line.startswith(f"warning: {name}, first at step {before + needed - 1}, in ")


def test_steps_that_were_left_out_are_no_signs(healthy: list[Line]) -> None:
    left_out = {"optim/skipped": 1.0, "reward/equal_groups": 0.0}
    assert heard([*healthy, *[left_out] * 15, *healthy])[0] == []


def test_every_sign_is_tried_and_stands_in_the_documentation() -> None:
    assert [sign.name for sign in SIGNS] == list(SICK)
    page = PAGE.read_text(encoding="utf-8")
    assert [sign.name for sign in SIGNS if f"| {sign.name} | {sign.threshold} | {sign.cure} |" not in page] == []


def test_a_run_tells_what_it_saw_at_its_end(tmp_path: Path) -> None:
    steps = ("optimization.total_training_steps=11", "optimization.prompts_per_step=1", "generation.num_generations=2")
    train(tmp_path / "run", "scoring=dr_grpo", "evaluation.enabled=false", *steps, *only_reward("half"))
    log = [line.split(": ", 1)[1] for line in (tmp_path / "run" / "run.log").read_text().splitlines() if ": " in line]
    [said] = [
        place for place, line in enumerate(log) if line.startswith("no signal at step 10 (reward/equal_groups is 1 ")
    ]
    [told] = [
        place for place, line in enumerate(log) if line.startswith("warning: no signal, first at step 10, in 2 steps")
    ]
    assert said < told
