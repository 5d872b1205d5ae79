import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.graders import spread
from support.runs import completion_lines, configured, train

from maxent_grpo.commands import replay as command
from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.recorded import recorded_config
from maxent_grpo.errors import DataError
from maxent_grpo.training.replay import first_difference, perform_replay, plan_replay
from maxent_grpo.training.resume import config_tree

ROOT = config_directory().parent
STEPS = 7
REUSED = (
    "scoring=maxent",
    "scoring.weighting.beta=0.1",
    "scoring.kl_beta=0.1",
    "scoring.reference_sync.every_n_steps=2",
    "data.num_train=10",
    "optimization.minibatches=2",
    "optimization.num_iterations=2",
    "optimization.lr_scheduler_type=cosine",
    f"optimization.total_training_steps={STEPS}",
    "evaluation.every_n_steps=2",
    "evaluation.num_samples=4",
    "evaluation.ks=[1]",
    "checkpoint.every_n_steps=3",
    "checkpoint.keep_last=0",
    "logging.completions_every=2",
    "logging.completions_per_step=12",
)
"""Four steps from each rollout, the epoch's last one smaller; checkpoints at 3, 6 and 7; 12 of 16 completions recorded."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("replay") / "run", *REUSED).run_dir


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def main(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("step", "sampled_at", "start"),
    [(1, 0, 0), (2, 0, 0), (4, 0, 0), (5, 4, 3), (6, 4, 3), (7, 6, 6)],
)
def test_a_replay_starts_at_the_nearest_checkpoint_before_the_rollout(
    run: Path, tmp_path: Path, step: int, sampled_at: int, start: int
) -> None:
    plan = plan_replay(run, step)
    assert (plan.sampled_at, plan.first_step) == (sampled_at, start)


@pytest.mark.parametrize("step", [2, 6])
def test_a_replayed_step_is_the_recorded_one_and_the_run_is_not_touched(run: Path, tmp_path: Path, step: int) -> None:
    before = snapshot(run)
    plan = plan_replay(run, step)
    replayed = perform_replay(plan, tmp_path)
    assert first_difference(plan, replayed) is None
    recorded = [row for row in completion_lines(run) if row["step"] == step]
    assert plan.recorded == recorded
    assert (len(recorded), len(replayed.completions)) == {2: (12, 16), 6: (8, 8)}[step]
    assert not (tmp_path / "checkpoints").exists()
    assert snapshot(run) == before


def test_a_step_without_recorded_completions_is_compared_by_its_metrics(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(run, 7, "--rows", 5) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "the metrics are identical to the record; it holds no completions of step 7"
    assert "... and" in said.out
    assert '"' in said.out


def test_the_command_prints_the_completions_and_the_verdict(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run, 6, "--json") == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    recorded = [row for row in completion_lines(run) if row["step"] == 6]
    assert rows[: len(recorded)] == recorded
    assert [row["rewards"]["spread"] for row in rows] == spread([row["completion"] for row in rows])
    assert said.err.splitlines()[0].endswith(f"replaying from {run}/checkpoints/step_3")
    assert said.err.splitlines()[-1] == (
        f"identical to the record: {len(recorded)} of {len(rows)} completions, and the metrics"
    )


@pytest.fixture
def changed(run: Path, tmp_path: Path) -> Iterator[Path]:
    """The run, with another weight in its record of step 6 and another torch."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    rows = completion_lines(copy)
    victim = next(row for row in rows if row["step"] == 6)
    victim["weight"] = 2.5
    (copy / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    versions = json.loads((copy / "versions.json").read_text()) | {"torch": "1.0"}
    (copy / "versions.json").write_text(json.dumps(versions))
    return copy


def test_the_first_difference_is_named(changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(changed, 6, "--rows", 0) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].startswith("made with other versions, so that the replay may differ: torch 1.0, here ")
    assert lines[-1].startswith("different from the record: completion 1 (")
    assert "): weight is 2.5 in the record and " in lines[-1]


def test_a_damaged_checkpoint_is_passed_over(changed: Path) -> None:
    (changed / "checkpoints" / "step_3" / "state" / "optimizer.json").unlink()
    assert plan_replay(changed, 7).first_step == 6
    assert plan_replay(changed, 6).checkpoint is None


def test_what_cannot_be_replayed_is_said_at_once(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run, 8) == 2
    assert capsys.readouterr().err == f"replay: {run} has no step 8: it recorded steps 1 to 7 (metrics.jsonl)\n"
    assert main(tmp_path, 1) == 2
    assert "is not a run directory (no config.yaml, no metrics.jsonl)" in capsys.readouterr().err


def test_the_recorded_configuration_is_the_one_that_ran(run: Path, tmp_path: Path) -> None:
    extra = ("~reward.terms.task", "reward.terms.spread=0.5", "scoring=grpo", "generation.allowed_tokens=[R,G]")
    train(tmp_path / "run", *extra)
    for folder, overrides in ((run, REUSED), (tmp_path / "run", extra)):
        there = recorded_config(folder, {"run.dir": str(tmp_path / "other")})
        assert config_tree(there) == config_tree(configured(tmp_path / "other", *overrides))
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("kl_beta:", "kl_gamma:"))
    with pytest.raises(DataError, match=r"settings that this version does not: scoring\.kl_gamma"):
        recorded_config(tmp_path / "run", {})


def test_errors_come_before_torch(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom maxent_grpo.commands.replay import main\n"
        "try:\n    main([sys.argv[1], '1'])\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    line = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
