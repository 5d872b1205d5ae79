import logging
import platform
from pathlib import Path

import pytest
import torch

from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.report.read import read_identity, read_versions
from maxent_grpo.telemetry.run_dir import RunLog, prepare_run_dir, remove_partials, write_config
from maxent_grpo.telemetry.versions import current_versions, write_versions


def test_a_missing_or_empty_folder_is_accepted(tmp_path: Path) -> None:
    run = prepare_run_dir(tmp_path / "a" / "b")
    assert run.is_dir()
    assert prepare_run_dir(str(run)) == run


@pytest.mark.parametrize("mark", ["metrics.jsonl", "completions.jsonl", "evaluations.jsonl", "checkpoints"])
def test_a_folder_with_a_run_is_refused_unless_it_is_the_one_resumed(tmp_path: Path, mark: str) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    if mark == "checkpoints":
        (run / mark / "step_4").mkdir(parents=True)
    else:
        run.mkdir()
        (run / mark).write_text('{"step": 0}\n')
    with pytest.raises(ConfigError, match=rf"already holds a run \({mark}\): .* checkpoint\.resume_from="):
        prepare_run_dir(run)
    with pytest.raises(ConfigError, match=r"not the run of checkpoint\.resume_from"):
        prepare_run_dir(run, resumed_from=other)
    assert prepare_run_dir(run, resumed_from=tmp_path / "other" / ".." / "run") == run
    assert prepare_run_dir(run, resumed_from=run / "checkpoints" / "step_4") == run
    assert prepare_run_dir(run, resumed_from="latest") == run


def test_what_a_start_that_failed_leaves_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("config.yaml", "overrides.json", "controller_state.json", "run.log"):
        (tmp_path / name).write_text("something")
    for name in ("metrics.jsonl", "completions.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints" / ".tmp-step_1-1").mkdir(parents=True)
    assert prepare_run_dir(tmp_path) == tmp_path


def test_work_in_progress_of_a_killed_process_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".config.yaml.17.partial", "metrics.jsonl", "partial"):
        (tmp_path / name).write_text("x")
    for name in (".model.partial-17", ".model.replaced-17", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text("x")
    remove_partials(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "partial", "model"}


def test_a_folder_that_cannot_be_made_is_a_configuration_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        prepare_run_dir(tmp_path / "file" / "run")


def test_the_configuration_is_headed_by_its_options(tmp_path: Path) -> None:
    path = write_config(tmp_path, "seed: 4\n", {"model": "tiny", "scoring": "maxent"})
    assert path.read_text() == "# options: model=tiny scoring=maxent\nseed: 4\n"
    assert (read_identity(tmp_path).method, read_identity(tmp_path).seed) == ("maxent", 4)
    assert write_config(tmp_path, "seed: 5\n").read_text() == "seed: 5\n"


def test_versions_are_those_of_what_is_installed(tmp_path: Path) -> None:
    write_versions(tmp_path)
    recorded = read_versions(tmp_path)
    assert recorded == current_versions()
    assert recorded is not None
    assert recorded["python"] == platform.python_version()
    assert recorded["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert len(bytes.fromhex(recorded["source"])) == 6
    assert read_versions(tmp_path / "elsewhere") is None
    (tmp_path / "versions.json").write_text("[1]")
    with pytest.raises(DataError, match=r"versions\.json is not a JSON object of versions"):
        read_versions(tmp_path)


def test_the_log_takes_the_package_and_notes_until_it_closes(tmp_path: Path) -> None:
    package = logging.getLogger("maxent_grpo")
    level, handlers = package.level, list(package.handlers)
    log = RunLog(tmp_path)
    logging.getLogger("maxent_grpo.training.loop").info("rollout %d", 3)
    logging.getLogger("elsewhere").warning("not ours")
    log.write_note("resumed at step 4")
    log.close()
    log.close()
    logging.getLogger("maxent_grpo.training.loop").error("after the end")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO    maxent_grpo.training.loop: rollout 3",
        "INFO    maxent_grpo: resumed at step 4",
    ]
    assert (package.level, package.handlers) == (level, handlers)
