"""The study's table: its arms are settings that can run, its pairs share a start, and every arm samples the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.mode_coverage.run import main, starts_of, sweep_command, write_presets
from experiments.mode_coverage.table import START, Part, read_study
from maxent_grpo.config.load import load_config
from maxent_grpo.config.model import SmolLM2ModelConfig
from maxent_grpo.config.root import RootConfig

STUDY = read_study()


def composed(part: Part, arm: str, pair: int, folder: Path) -> RootConfig:
    """The settings of one run, through the gates; what it needs need not be on this machine."""
    overrides = [f"experiment={arm}", f"{START}={pair}"]
    return load_config(overrides, config_dir=write_presets(STUDY, part, folder), elsewhere=True)


def test_runs_of_a_pair_share_a_start_and_only_the_second_baseline_has_other_seeds(tmp_path: Path) -> None:
    part = STUDY.parts["confirmatory"]
    arms = ("dr_grpo", "dr_grpo_again", "maxent_pilot")
    first, again, maxent = (composed(part, arm, 3, tmp_path) for arm in arms)
    assert first.model == again.model == maxent.model
    assert (first.model.init_seed, first.model.warm_start.seed) == (3, 3)
    assert (first.seed, again.seed, maxent.seed) == (3, 103, 3)
    assert first.scoring == again.scoring
    # the pilot's 0.3 was against the sum over tokens; here the policy term is divided by the length limit
    assert maxent.scoring.weighting.listwise_coef * maxent.generation.max_completion_len == pytest.approx(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDY.parts)
def test_every_arm_can_run_and_samples_the_same_number_of_completions(name: str, tmp_path: Path) -> None:
    part = STUDY.parts[name]
    for stage in (starts_of(STUDY, part), part):
        for arm in stage.arms:
            config = composed(stage, arm.name, 0, tmp_path)
            optimization = config.optimization
            rollouts = optimization.total_training_steps / optimization.num_iterations
            sampled = rollouts * optimization.prompts_per_step * config.generation.num_generations
            assert sampled == stage.steps * STUDY.completions_of_a_step(stage), arm
            rate = 2e-5 if part.task == "chat" else 3e-4
            assert (optimization.learning_rate, optimization.minibatches) == (rate, 1), arm


def test_a_task_with_another_model_takes_no_setting_of_the_small_one(tmp_path: Path) -> None:
    """A pretrained model has no width to set; what a step samples is the task's own."""
    part = STUDY.parts["chat"]
    config = composed(part, "maxent", 2, tmp_path)
    assert isinstance(config.model, SmolLM2ModelConfig)
    assert (config.model.warm_start.enabled, config.model.warm_start.seed, config.seed) == (True, 2, 2)
    assert config.model.warm_start.mode_skew == 1.0
    assert [STUDY.completions_of_a_step(STUDY.parts[name]) for name in ("confirmatory", "chat")] == [256, 128]


def test_a_part_is_one_sweep_with_whole_pairs_in_turn_that_goes_on_where_it_was(tmp_path: Path) -> None:
    command = sweep_command(STUDY, STUDY.parts["confirmatory"], tmp_path, 2)
    varied = [word for word in command if "," in word]
    assert varied == [
        "model.warm_start.seed=0,1,2,3,4,5,6,7",
        "experiment=dr_grpo,dr_grpo_again,dr_grpo_hot,maxent,maxent_pilot,soft,uniqueness",
    ]
    assert "run.sweep_resume=true" in command


def test_starts_are_made_once_for_all_parts_of_a_task() -> None:
    first, *others = (starts_of(STUDY, STUDY.parts[name]) for name in ("confirmatory", "exploratory", "doses", "pull"))
    assert (first.name, first.pairs) == ("start-coloring", list(range(8)))
    assert all(other == first for other in others)


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["confirmatry"])
    assert stop.value.code == 2
    assert "no part confirmatry: there are confirmatory, " in capsys.readouterr().err
