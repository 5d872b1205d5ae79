import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config import preflight
from maxent_grpo.config.compose import compose_config
from maxent_grpo.config.load import check, load_config
from maxent_grpo.config.preflight import find_module
from maxent_grpo.errors import ConfigError


@cache
def composed() -> DictConfig:
    return compose_config([]).config


def problems_of(folder: Path, **settings: str) -> list[str]:
    config = composed().copy()
    OmegaConf.update(config, "run.dir", str(folder / "run"))
    for path, value in settings.items():
        OmegaConf.update(config, path.replace("__", "."), value, force_add=True)
    try:
        check(config)
    except ConfigError as error:
        return error.problems
    return []


def save_checkpoint(run: Path) -> Path:
    folder = run / "checkpoints" / "step_4"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (run / "checkpoints" / "latest").write_text("step_4")
    return folder


def test_a_new_folder_below_a_writable_one_passes(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == []
    assert not (tmp_path / "run").exists()


def test_of_several_processes_only_the_main_one_looks_at_the_folder_that_it_begins_to_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert problems_of(tmp_path) == []
    monkeypatch.setenv("RANK", "0")
    assert "already holds a run" in problems_of(tmp_path)[0]


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    assert problems_of(tmp_path, checkpoint__resume_from="nowhere") == [
        "checkpoint.resume_from=nowhere: does not exist; name a run directory, or one of its checkpoints/step_N folders"
    ]
    (tmp_path / "empty").mkdir()
    assert problems_of(tmp_path, checkpoint__resume_from=f"{tmp_path}/empty") == [
        f"checkpoint.resume_from={tmp_path}/empty: holds no checkpoint; name a run directory that has saved one, or one of "
        f"its checkpoints/step_N folders"
    ]


@pytest.mark.parametrize("part", ["", "checkpoints", "checkpoints/step_4", "checkpoints/latest"])
def test_every_way_to_name_a_checkpoint_passes(tmp_path: Path, part: str) -> None:
    save_checkpoint(tmp_path / "old")
    assert problems_of(tmp_path, checkpoint__resume_from=str(tmp_path / "old" / part)) == []


def test_a_folder_that_holds_a_run_is_refused_unless_that_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save_checkpoint(run)
    save_checkpoint(tmp_path / "other")
    (run / "metrics.jsonl").write_text("{}\n")
    refusal = [
        f"run.dir={run}: already holds a run; name another folder, or continue that run with checkpoint.resume_from={run}"
    ]
    assert problems_of(tmp_path) == refusal
    assert problems_of(tmp_path, checkpoint__resume_from=str(tmp_path / "other")) == refusal
    assert problems_of(tmp_path, checkpoint__resume_from=str(run)) == []
    assert problems_of(tmp_path, checkpoint__resume_from=str(run / "checkpoints" / "step_4")) == []


def test_a_file_in_the_way_of_the_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert problems_of(tmp_path) == [f"run.dir={tmp_path}/run: {tmp_path}/run is a file; name another folder"]


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """For root every folder is writable: take another real user, by which access is judged, and come back."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 0, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with as_an_ordinary_user():
        assert problems_of(tmp_path) == [f"run.dir={tmp_path}/run: {tmp_path} is not writable; name another folder"]


def test_controller_states_are_looked_for(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    assert problems_of(tmp_path, controller__paths__resume_from=str(state)) == [
        f"controller.paths.resume_from={state}: is not a file; name the controller_state.json of another run"
    ]
    state.write_text("{}")
    assert problems_of(tmp_path, controller__paths__resume_from=str(state)) == []
    assert problems_of(tmp_path, controller__paths__state_path=str(state)) == [
        f"controller.paths.state_path={state}: holds the state of another run; name another file, or set "
        f"controller.paths.overwrite_existing=true to replace it"
    ]


def test_controllers_are_resumed_in_one_way_only(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "old")
    state = tmp_path / "state.json"
    state.write_text("{}")
    settings = {"checkpoint__resume_from": str(tmp_path / "old"), "controller__paths__resume_from": str(state)}
    assert problems_of(tmp_path, **settings) == [
        f"controller.paths.resume_from={state} together with checkpoint.resume_from={tmp_path}/old: a checkpoint restores "
        f"the controllers too; leave one of them null"
    ]


def test_the_module_of_a_reward_function_is_looked_for(tmp_path: Path) -> None:
    settings = {"reward__functions": {"mine": "no_such_package.rewards:mine"}, "reward__terms__mine": 1.0}
    assert problems_of(tmp_path, **settings) == [
        "reward.functions.mine=no_such_package.rewards:mine: there is no module no_such_package.rewards to import; install "
        "it, or start the run where it can be imported"
    ]


def test_a_module_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "loud_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "rewards.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_module("loud_package.rewards") is not None
    assert find_module("loud_package.missing") is None


def test_a_start_that_made_no_checkpoint_is_not_said_to_be_continued(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n', encoding="utf-8")
    with pytest.raises(
        ConfigError, match="already holds a run; it has no checkpoint to continue from: remove the folder"
    ):
        load_config([f"run.dir={tmp_path}"])


def test_tensorboard_must_be_installed_to_track_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = preflight.find_module
    monkeypatch.setattr(preflight, "find_module", lambda name: None if name == "tensorboard" else find(name))
    with pytest.raises(ConfigError) as caught:
        load_config(["logging=tensorboard", "run.dir=nowhere"])
    assert caught.value.problems == [
        "logging.trackers=[tensorboard]: TensorBoard is not installed; pip install -e '.[tensorboard]'"
    ]
    load_config(["logging=wandb", "run.dir=nowhere"])
