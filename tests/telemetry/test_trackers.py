"""Runs with both trackers on, interrupted and continued: what W&B and TensorBoard have of them afterwards."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, weights_of
from support.same_run import assert_same_run
from support.wandb_run import OFFLINE, OfflinePart, offline_parts, tracked, write_steps
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from maxent_grpo.config.logging import LoggingConfig, TrackerName, WandbConfig, WandbMode
from maxent_grpo.errors import ConfigError, GenerationError
from maxent_grpo.report.read import read_metrics
from maxent_grpo.telemetry import wandb_tracker
from maxent_grpo.telemetry.history import adopt_history
from maxent_grpo.telemetry.tensorboard_tracker import TensorBoardTracker
from maxent_grpo.telemetry.wandb_tracker import MOST_PARTS, WandbTracker, chosen_mode
from maxent_grpo.telemetry.writers import build_logging, build_trackers
from maxent_grpo.training.metric_goals import HIGHER_IS_BETTER, LOWER_IS_BETTER
from maxent_grpo.training.metric_table import METRICS
from maxent_grpo.training.setup import run_from_config

SECRETS = {
    "WANDB_API_KEY": "5f0e1d2c3b4a59687786958493a2b1c0d9e8f7a6",
    "HF_TOKEN": "hf_NotARealTokenOfAnyone12",
    "VLLM_API_KEY": "vllm-not-a-real-key",
    "OPENAI_API_KEY": "sk-proj-NotARealKeyOfAnyone34",
    "AWS_SECRET_ACCESS_KEY": "wJalrNotARealKeyOfAnyone56",
}
PASSWORD = "pass-word-of-nobody"
SETTINGS = (
    *("logging=wandb", "logging.trackers=[wandb,tensorboard]", "logging.wandb.mode=offline"),
    *("evaluation.every_n_steps=2", "checkpoint.every_n_steps=2", "optimization.total_training_steps=5"),
    f"logging.wandb.tags=[mine,{SECRETS['HF_TOKEN']},'http://me:{PASSWORD}@host']",
)
OVERRIDES = [*SETTINGS, "scoring=maxent", "seed=0", f"data.cache_dir=http://me:{PASSWORD}@host"]
FAILING = ("generation=vllm", f"generation.vllm.url=http://user:{PASSWORD}@127.0.0.1:9")


@dataclass
class Runs:
    """A run left at step 3, whose last checkpoint is of step 2; continued to step 5 in another folder and then to step 4
    in its own; and the same run undisturbed, without trackers."""

    folder: Path
    first: OfflinePart
    elsewhere: OfflinePart
    in_place: OfflinePart

    @property
    def left(self) -> Path:
        return self.folder / "left"

    @property
    def continued(self) -> Path:
        return self.folder / "continued"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("tracked")
    left, continued = folder / "left", folder / "continued"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        patch.setattr("sys.argv", ["train.py", f"key={SECRETS['OPENAI_API_KEY']}"])
        run_from_config(configured(left, *SETTINGS), OVERRIDES, until=3)
        [first] = offline_parts(left)
        checkpoint = left / "checkpoints" / "step_2"
        run_from_config(configured(continued, *SETTINGS, "logging.report=true", resume_from=checkpoint), OVERRIDES)
        [elsewhere] = offline_parts(continued)
        run_from_config(configured(left, *SETTINGS, resume_from=checkpoint), OVERRIDES, until=4)
        [_, in_place] = offline_parts(left)
        run_from_config(configured(folder / "plain", *SETTINGS, "logging.trackers=[]"), OVERRIDES)
        with pytest.raises(GenerationError, match="no vLLM server answers there"):
            run_from_config(configured(folder / "failed", *SETTINGS, *FAILING), [*OVERRIDES, *FAILING])
    yield Runs(folder, first, elsewhere, in_place)
    wandb.teardown()


def lines_without_tables(part: OfflinePart) -> list[dict[str, Any]]:
    """W&B's lines without what it adds to them."""
    own = ("_step", "_timestamp", "_runtime")
    return [
        {name: value for name, value in line.items() if name not in own and not isinstance(value, dict)}
        for line in part.history
    ]


def test_every_metric_stands_in_wandb_with_its_value_under_its_step(runs: Runs) -> None:
    recorded = read_metrics(runs.continued)
    # of step 3 W&B has what was measured first, with other times
    assert lines_without_tables(runs.first)[:3] == recorded[:3]
    assert lines_without_tables(runs.elsewhere) == recorded[4:]
    for part in (runs.first, runs.elsewhere, runs.in_place):
        assert [line["_step"] for line in part.history] == part.steps


def test_a_resumed_run_keeps_its_id_and_its_steps_go_on_where_they_ended(runs: Runs) -> None:
    parts = (runs.first, runs.elsewhere, runs.in_place)
    assert len({part.id for part in parts}) == 1
    assert len({part.name for part in parts}) == 1
    assert [part.steps for part in parts] == [[0, 1, 2, 3], [4, 5], [4]]
    assert [part.exit_code for part in parts] == [0, 0, 0]


def test_every_metric_is_drawn_against_the_optimiser_step_and_summarised_by_what_is_better(runs: Runs) -> None:
    logged = {name for line in runs.first.history for name in line if not name.startswith("_")} - {
        "step",
        "completions",
    }
    assert logged <= runs.first.defined.keys()
    assert {runs.first.defined[name][0] for name in logged} == {"step"}
    defined = {name: wanted for name, (_, wanted) in runs.first.defined.items()}
    assert defined["eval/pass@1"] == {"max", "last"}
    assert defined["eval/exact/kl_to_optimum"] == {"min", "last"}
    assert defined["policy/entropy"] == set()
    best = max(line["eval/pass@1"] for line in runs.first.history if "eval/pass@1" in line)
    assert runs.first.summary["eval/pass@1"]["max"] == best


def test_what_is_better_is_said_of_entries_of_the_table() -> None:
    assert {*HIGHER_IS_BETTER, *LOWER_IS_BETTER} <= METRICS.keys()
    assert not {*HIGHER_IS_BETTER} & {*LOWER_IS_BETTER}


def test_the_completions_of_every_step_stay_readable(runs: Runs) -> None:
    first, later = runs.first.tables(), runs.elsewhere.tables()
    assert (set(first), set(later)) == ({"completions"}, {"completions_from_4"})
    rows = [*first["completions"], *later["completions_from_4"]]
    recorded = completion_lines(runs.continued)
    assert [row["step"] for row in rows] == [line["step"] for line in recorded]
    for row, line in zip(rows, recorded, strict=True):
        for name in ("prompt", "completion", "utility", "advantage", "weight", "row_id", "finish_reason", "num_tokens"):
            assert row[name] == line[name], name
        assert {name: row[f"reward/{name}"] for name in line["rewards"]} == line["rewards"]


def test_settings_controller_system_and_report_are_there(runs: Runs) -> None:
    config = runs.elsewhere.config
    assert config["scoring"]["weighting"]["tau"] == 0.1
    assert config["seed"] == 0
    assert config["options"]["scoring"] == "maxent"
    assert config["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert {"mine", "scoring=maxent", "seed=0", "optimization.total_training_steps=5"} <= set(runs.first.tags)
    assert not any(tag.startswith("logging") for tag in runs.first.tags)
    state = json.loads((runs.continued / "controller_state.json").read_text())
    assert runs.elsewhere.summary["controller_state"] == {"step": 5, "state": state["state"]}
    assert "stats" in runs.first.kinds
    assert not {"environment", "output", "output_raw"} & runs.first.kinds
    [report] = [files for kind, files in runs.elsewhere.artifacts if kind == "report"]
    assert {name: path.read_bytes() for name, path in report.items()} == {
        name: (runs.continued / name).read_bytes() for name in ("report.html", "report.png")
    }


def events(run_dir: Path) -> EventAccumulator:
    found = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def text_of(found: EventAccumulator, tag: str) -> dict[int, str]:
    return {event.step: event.tensor_proto.string_val[0].decode() for event in found.Tensors(f"{tag}/text_summary")}


def test_tensorboard_has_every_metric_and_text_once(runs: Runs) -> None:
    for run_dir, last in ((runs.continued, 5), (runs.left, 4)):
        found = events(run_dir)
        recorded = read_metrics(run_dir)
        names = {name for line in recorded for name in line} - {"step"}
        # the name of what was taken back is still known
        assert names <= set(found.Tags()["scalars"])
        for name in found.Tags()["scalars"]:
            expected = [(line["step"], line[name]) for line in recorded if name in line]
            seen = [(event.step, event.value) for event in found.Scalars(name)]
            assert [step for step, _ in seen] == [step for step, _ in expected], name
            assert [value for _, value in seen] == pytest.approx([value for _, value in expected], rel=1e-6), name
        texts = text_of(found, "completions")
        assert sorted(texts) == list(range(1, last + 1))
        for line in completion_lines(run_dir):
            assert f"`{line['row_id']}`" in texts[line["step"]]
        assert "tau: 0.1" in next(iter(text_of(found, "config").values()))


def test_a_tracked_run_is_the_run_without(runs: Runs) -> None:
    assert_same_run(runs.folder / "plain", runs.continued)
    weights = [weights_of(checkpoint_of(runs.folder / name)) for name in ("plain", "continued")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert metric_lines(runs.left) == metric_lines(runs.continued)[:5]


def test_no_secret_is_in_any_file_of_a_run_that_ended_or_failed(runs: Runs) -> None:
    files = [path for path in runs.folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"config.yaml", "overrides.json", "run.log", "report.html", "wandb.json", "debug.log"} <= names
    secrets = [value.encode() for value in (*SECRETS.values(), PASSWORD)]
    found = {
        (str(path.relative_to(runs.folder)), secret)
        for path in files
        for secret in secrets
        if secret in path.read_bytes()
    }
    assert found == set()
    assert "url: http://*secret*@127.0.0.1:9" in (runs.folder / "failed" / "config.yaml").read_text()
    assert "http://*secret*@127.0.0.1:9: no vLLM server answers" in (runs.folder / "failed" / "run.log").read_text()


def test_what_wandb_lost_or_never_had_is_logged_from_the_record(runs: Runs, tmp_path: Path) -> None:
    """A machine that stops takes along what W&B's process had not written yet."""
    run = tmp_path / "run"
    write_steps(tracked(run), 1, 40)
    [part] = offline_parts(run)
    file = next(part.folder.glob("*.wandb"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    identity = json.loads((run / "wandb.json").read_text())
    assert identity["logged"] == 40
    (run / "wandb.json").write_text(json.dumps(identity | {"logged": -1}))  # as it is until a run ends
    [torn] = offline_parts(run, torn=1)
    assert 0 < len(torn.steps) < 40
    write_steps(tracked(run, resumed_from=run), 41, 42)
    [_, later] = offline_parts(run, torn=1)
    assert later.id == torn.id
    assert [*torn.steps, *later.steps] == list(range(1, 43))
    rows = [row for part in (torn, later) for table in part.tables().values() for row in table]
    assert [row["completion"] for row in rows] == [str(step) for step in range(1, 43)]
    # a third part knows of what the first logged, though it only sees the second's folder
    third = tmp_path / "third"
    for name in ("metrics.jsonl", "completions.jsonl", "wandb.json"):
        (third / name).parent.mkdir(exist_ok=True)
        shutil.copy(run / name, third / name)
    write_steps(tracked(third, resumed_from=run), 43, 43)
    assert [part.steps for part in offline_parts(third)] == [[43]]


KILLED = """
import os, signal, sys
from pathlib import Path
from support.wandb_run import write_steps, tracked
from maxent_grpo.telemetry.wandb_tracker import WandbTracker
WandbTracker.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)
write_steps(tracked(Path(sys.argv[1])), 1, 30)
"""


@pytest.mark.slow
def test_a_killed_run_loses_no_line(runs: Runs, tmp_path: Path) -> None:
    """A process that is killed at step 30, and goes on from a checkpoint of step 20."""
    run = tmp_path / "run"
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    environment.pop("WANDB_SERVICE", None)  # a W&B process of its own
    done = subprocess.run([sys.executable, "-c", KILLED, str(run)], env=environment, timeout=120)
    assert done.returncode == -signal.SIGKILL
    time.sleep(2)  # W&B's process ends when it sees that its parent is gone
    adopt_history(run, run, 20)
    write_steps(tracked(run, resumed_from=run), 21, 35)
    killed, later = offline_parts(run, torn=1)
    assert 20 < killed.steps[-1] <= 30
    assert [*killed.steps, *later.steps] == list(range(1, 36))
    rows = [row for part in (killed, later) for table in part.tables().values() for row in table]
    assert [row["completion"] for row in rows] == [str(step) for step in range(1, 36)]


def test_a_branch_begins_a_run_of_its_own(runs: Runs, tmp_path: Path) -> None:
    for change in (
        WandbConfig(mode=WandbMode.offline, continue_run=False),
        WandbConfig(project="other", mode=WandbMode.offline),
    ):
        run = tmp_path / change.project
        shutil.copytree(runs.continued, run, ignore=shutil.ignore_patterns("wandb*", "checkpoints", "tensorboard"))
        tracker = WandbTracker(change, tracked(run, resumed_from=runs.continued), lambda _: None)
        tracker.start(5, 5)
        tracker.close()
        [part] = offline_parts(run)
        assert part.id != runs.first.id
        assert part.steps == [0, 1, 2, 3, 4, 5]  # with all of the history that it begins with


@pytest.mark.parametrize("name", ["0-seed=1", "grpo/0-seed=1"])
def test_a_sweeps_jobs_are_a_group_and_named_after_what_differs(runs: Runs, tmp_path: Path, name: str) -> None:
    job = tmp_path / "22-00-00-sweep" / name
    job.mkdir(parents=True)
    (tmp_path / "22-00-00-sweep" / "multirun.yaml").touch()
    tracker = WandbTracker(OFFLINE, tracked(job), lambda _: None)
    tracker.start(1, 0)
    tracker.write_metrics(1, {"reward/mean": 0.0})
    tracker.close()
    [part] = offline_parts(job)
    assert (part.group, part.name) == ("22-00-00-sweep", name)
    assert (runs.first.group, runs.first.name) == ("", "maxent, seed 0, left")


def test_a_sweeps_long_names_are_cut_to_what_wandb_takes(runs: Runs, tmp_path: Path) -> None:
    job = tmp_path / f"{'s' * 140}-sweep" / f"0-seed=1,{'x' * 200}"
    job.mkdir(parents=True)
    (job.parent / "sweep.json").touch()
    tracker = WandbTracker(OFFLINE, tracked(job), lambda _: None)
    tracker.start(1, 0)
    tracker.close()
    [part] = offline_parts(job)
    assert (part.group, part.name) == ("s" * 128, job.name[:128])


def test_tensorboard_forgets_what_a_run_had_before_it_began_anew(runs: Runs, tmp_path: Path) -> None:
    run = tracked(tmp_path / "run")
    for values in ({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.4, 1: 0.5}):
        tracker = TensorBoardTracker(run)
        tracker.start(2, 0)
        for step, value in values.items():
            tracker.write_metrics(step, {"reward/mean": value})
        tracker.close()
    seen = [(event.step, event.value) for event in events(run.run_dir).Scalars("reward/mean")]
    assert seen == [(0, pytest.approx(0.4)), (1, pytest.approx(0.5))]


def test_a_run_that_failed_says_so(runs: Runs, tmp_path: Path) -> None:
    run = tracked(tmp_path / "run")
    tracker = WandbTracker(OFFLINE, run, lambda _: None)
    tracker.start(1, 0)
    run.failed = True
    tracker.close()
    assert [part.exit_code for part in offline_parts(run.run_dir)] == [1]


def test_a_tracker_that_cannot_work_is_told_once_and_costs_nothing(
    runs: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked(tmp_path / "run")
    for name in ("wandb", "tensorboard"):
        (run.run_dir / name).write_text("in the way")
    said: list[str] = []
    config = LoggingConfig(trackers=[TrackerName.wandb, TrackerName.tensorboard], wandb=OFFLINE)
    with caplog.at_level(logging.WARNING, "maxent_grpo"):
        for tracker in build_trackers(config, run, said.append):
            tracker.start(2, 0)
            for step in (1, 2):
                tracker.write_metrics(step, {"reward/mean": 0.5})
                tracker.write_completions(step, [{"row_id": "a"}])
            tracker.flush()
            tracker.close()
            tracker.close()
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("maxent_grpo")]
    assert len(messages) == 2
    assert messages[0].startswith("W&B failed (")
    assert messages[1].startswith("TensorBoard failed (")
    assert all(message.endswith("nothing more is logged there, and the run goes on") for message in messages)


def test_a_long_table_goes_on_in_another(runs: Runs, tmp_path: Path) -> None:
    """W&B shows the last hundred parts of a table that grows."""
    run = tracked(tmp_path / "run")
    write_steps(run, 1, MOST_PARTS + 2)
    [part] = offline_parts(run.run_dir)
    tables = part.tables()
    assert {key: [row["step"] for row in rows] for key, rows in tables.items()} == {
        "completions": list(range(1, MOST_PARTS + 1)),
        f"completions_from_{MOST_PARTS + 1}": [MOST_PARTS + 1, MOST_PARTS + 2],
    }


def test_a_server_that_is_not_there_leaves_the_run_offline(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["WANDB_API_KEY"])
    monkeypatch.setattr(wandb_tracker, "SECONDS_TO_BEGIN", 1.0)
    said: list[str] = []
    wandb.teardown()  # the environment is read when W&B's process starts
    tracker = WandbTracker(WandbConfig(), tracked(tmp_path / "run"), said.append)
    tracker.start(1, 0)
    tracker.write_metrics(1, {"reward/mean": 0.5})
    tracker.close()
    assert said[0].startswith("W&B cannot be reached: the run is kept offline (")
    [part] = offline_parts(tmp_path / "run", "offline-run-*")
    assert part.steps == [1]
    wandb.teardown()


def test_only_the_main_process_has_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LoggingConfig(console="silent", report=False, trackers=[*TrackerName], wandb=OFFLINE)
    for rank, expected in (("0", 2), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        handles = build_logging(config, tmp_path, tracked(tmp_path))
        found = [writer for writer in handles.writers if isinstance(writer, WandbTracker | TensorBoardTracker)]
        assert len(found) == expected
        assert bool(handles.writers) is (rank == "0")
        handles.close()
    assert not (tmp_path / "wandb").exists()


def test_without_a_key_a_run_is_offline_and_never_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert chosen_mode(WandbMode.auto) is WandbMode.offline
    with pytest.raises(ConfigError, match=r"logging\.wandb\.mode=online: there is no W&B key here; run `wandb login`"):
        configured(tmp_path / "run", "logging=wandb", "logging.wandb.mode=online")
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password 0\n")
    assert chosen_mode(WandbMode.auto) is WandbMode.online
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert chosen_mode(WandbMode.auto) is WandbMode.offline
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert chosen_mode(WandbMode.auto) is WandbMode.online
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert chosen_mode(WandbMode.auto) is WandbMode.offline
