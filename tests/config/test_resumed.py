from pathlib import Path

import pytest

from maxent_grpo.config.resumed import OVERRIDES_FILE, with_run_overrides, write_overrides
from maxent_grpo.errors import ConfigError


def run_with(folder: Path, *overrides: str) -> Path:
    (folder / "checkpoints" / "step_2").mkdir(parents=True)
    write_overrides(folder, overrides)
    return folder


def test_the_runs_overrides_come_first_and_those_of_one_run_only_are_left_out(tmp_path: Path) -> None:
    run = run_with(
        tmp_path, "scoring=grpo", "seed=4", "run.dir=there", "hydra.sweep.dir=x", "controller.paths.state_path=y"
    )
    resume = f"checkpoint.resume_from={run}"
    assert with_run_overrides([resume, "seed=5"]) == ["scoring=grpo", resume, "seed=5"]


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step_2", "checkpoints/latest"])
def test_any_path_that_names_the_run_finds_its_overrides(tmp_path: Path, inside: str) -> None:
    run = run_with(tmp_path / "a=1,b", "seed=4")
    resume = f"checkpoint.resume_from='{run / inside}'"
    assert with_run_overrides([resume]) == ["seed=4", resume]


def test_an_added_key_is_still_added_before_it_is_changed(tmp_path: Path) -> None:
    resume = f"checkpoint.resume_from={run_with(tmp_path, '+reward.terms.q=1')}"
    assert with_run_overrides([resume, "reward.terms.q=2"]) == ["+reward.terms.q=1", resume, "reward.terms.q=2"]
    assert with_run_overrides([resume, "+reward.terms.q=2"]) == [resume, "+reward.terms.q=2"]


def test_nothing_is_added_without_a_run_to_resume(tmp_path: Path) -> None:
    write_overrides(tmp_path, ["seed=4"])
    for overrides in (
        ["seed=1"],
        ["checkpoint.resume_from=null"],
        [f"checkpoint.resume_from={tmp_path}/nowhere/deeper"],
    ):
        assert with_run_overrides(overrides) == overrides


@pytest.mark.parametrize("text", ["garbage", "[1]", '{"a": 1}', ""])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / OVERRIDES_FILE).write_text(text)
    with pytest.raises(ConfigError, match=r"overrides\.json is not a list of overrides"):
        with_run_overrides([f"checkpoint.resume_from={tmp_path}"])
