"""What a newcomer types: the command line, presets, a sweep, the notebook call; and what they find afterwards."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread
from support.imports import UNUSED, imported
from support.runs import SMALL, completion_lines, metric_lines, train
from transformers import AutoModelForCausalLM, AutoTokenizer

import maxent_grpo
from maxent_grpo.training.metric_table import metric_info

ROOT = Path(__file__).parent.parent
PRESETS = sorted(
    path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml") if "override /model: tiny" in path.read_text()
)
"""Those that need no download and no GPU; the others are looked at by ``training/preview/test_out_of_reach.py``."""


def run_command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``python train.py`` as typed, on one thread, with the tests' graders in reach."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests"), **variables}
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_command_line_run_leaves_a_directory_that_a_person_understands(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = run_command(
        *SMALL,
        f"run.dir={run_dir}",
        "logging.console=plain",
        "logging.report=true",
        "checkpoint.final_model=true",
        "optimization.total_training_steps=3",
        "model.warm_start.enabled=true",
        "model.warm_start.steps=3",
        "model.warm_start.num_problems=8",
        f"model.warm_start.cache_dir={tmp_path}/cache",
        PYTHONPROFILEIMPORTTIME="1",
    )
    assert done.returncode == 0, done.stderr
    assert "torch" in imported(done.stderr)
    assert UNUSED.isdisjoint(imported(done.stderr))
    assert "method: maxent" in done.stdout
    assert "sequences per step" in done.stdout
    assert "has no effect" in done.stdout
    assert f"trained model  {run_dir / 'model'}" in done.stdout
    assert f"continue it    python train.py checkpoint.resume_from={run_dir}" in done.stdout
    # a checkout with changes leaves code.diff as well
    assert sorted(path.name for path in run_dir.iterdir() if path.name != "code.diff") == [
        "checkpoints",
        "completions.jsonl",
        "config.yaml",
        "controller_state.json",
        "data.json",
        "environment.json",
        "evaluations.jsonl",
        "metrics.jsonl",
        "model",
        "overrides.json",
        "report.html",
        "report.png",
        "run.log",
        "versions.json",
    ]
    lines = metric_lines(run_dir)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    for line in lines:
        for name, value in line.items():
            assert math.isfinite(value), name
            if name != "step":
                metric_info(name)
    assert {"eval/pass@1", "eval/coverage@8"} <= lines[0].keys() & lines[-1].keys()
    sample = completion_lines(run_dir)[0]
    assert sample.keys() >= {"step", "prompt", "completion", "rewards", "advantage", "weight", "mode"}
    assert imread(run_dir / "report.png").std() > 0.01
    assert f"open           {run_dir / 'report.html'}" in done.stdout
    assert "finished: 3 of 3 steps" in (run_dir / "report.html").read_text()
    assert json.loads((run_dir / "controller_state.json").read_text())["step"] == 3
    assert (run_dir / "checkpoints" / "latest").read_text().strip() == "step_3"
    for folder in (run_dir / "checkpoints" / "step_3" / "model", run_dir / "model"):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_for_two_steps(preset: str, tmp_path: Path) -> None:
    result = train(tmp_path / preset, f"experiment={preset}")
    assert result.global_step == 2
    assert metric_lines(tmp_path / preset)[-1]["step"] == 2


@pytest.mark.slow
def test_resuming_takes_over_what_the_runs_own_command_line_said(tmp_path: Path) -> None:
    run_dir, longer = tmp_path / "a=1", tmp_path / "longer"
    first = run_command(*SMALL, "scoring=grpo", "seed=4", f"run.dir='{run_dir}'")
    assert first.returncode == 0, first.stderr
    more = run_command(
        f"checkpoint.resume_from='{run_dir}'", "optimization.total_training_steps=3", f"run.dir={longer}"
    )
    assert more.returncode == 0, more.stderr
    assert [line["step"] for line in metric_lines(longer)] == [0, 1, 2, 3]
    assert "scoring=grpo" in (longer / "config.yaml").read_text()
    shown = run_command("--cfg", "job", f"checkpoint.resume_from='{run_dir}/checkpoints/step_2'")
    assert "advantage: group_std" in shown.stdout
    assert "seed: 4" in shown.stdout
    changed = run_command(f"checkpoint.resume_from='{run_dir}'", "seed=5", f"run.dir={tmp_path}/changed")
    assert changed.returncode == 1
    assert "seed" in changed.stderr
    assert "Traceback" not in changed.stderr


@pytest.mark.slow
def test_an_error_in_a_reward_is_one_message_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    words = [word for word in SMALL if "spread" not in word]
    done = run_command(
        *words, f"run.dir={tmp_path}/run", "+reward.functions.broken=support.graders:broken", "+reward.terms.broken=1"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("train.py: reward term 'broken' on row ")
    assert "Traceback" not in done.stderr
    assert "Error executing job" not in done.stderr
    assert "Traceback" in (tmp_path / "run" / "run.log").read_text()


def test_the_printed_settings_are_resolved() -> None:
    done = run_command("--cfg", "job")
    assert done.returncode == 0
    assert "clip_range: 0.2" in done.stdout
    assert "${" not in done.stdout


def test_completions_are_recorded_at_every_due_step_of_a_reused_rollout(tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        "optimization.num_iterations=2",
        "optimization.total_training_steps=4",
        "logging.completions_every=2",
    )
    assert {line["step"] for line in completion_lines(tmp_path / "run")} == {2, 4}


@pytest.mark.slow
def test_a_sweep_trains_the_good_jobs_and_names_the_bad_one(tmp_path: Path) -> None:
    done = run_command(
        "-m",
        *SMALL,
        "scoring.weighting.tau=0.1,0",
        "optimization.total_training_steps=1",
        f"hydra.sweep.dir={tmp_path}",
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "1 of 2 jobs failed" in done.stderr
    assert "scoring.weighting.tau + scoring.weighting.beta > 0" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if (path / "metrics.jsonl").exists()] == [
        "0-scoring.weighting.tau=0.1"
    ]


def test_a_notebook_call_runs_the_same_program(tmp_path: Path) -> None:
    settings = [*SMALL, "seed=3"]
    by_words = maxent_grpo.run([*settings, f"run.dir={tmp_path}/words"])
    config = maxent_grpo.compose(*settings, f"run.dir={tmp_path}/object")
    by_object = maxent_grpo.run(config)
    assert by_words.global_step == by_object.global_step == 2
    assert metric_lines(tmp_path / "words") == metric_lines(tmp_path / "object")


def test_two_equal_commands_give_equal_files_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tmp_path / name, f"seed={seed}")
    files = {name: [metric_lines(tmp_path / name), completion_lines(tmp_path / name)] for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"][1] != files["c"][1]
