"""docs/from_trl.md: every name on it exists on its side, no option of TRL is left out, and the preset is TRL's default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from support.parity import Given, step_outcome, training_settings
from support.parity_case import ADVANTAGES, BATCH, assert_same
from support.trl_peer import generation_inputs, trainer_for, window_outcome
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments
from trl import GRPOConfig

from maxent_grpo.config.declared import declared_paths, options
from maxent_grpo.config.load import load_config

PAGE = (Path(__file__).parents[2] / "docs" / "from_trl.md").read_text(encoding="utf-8")
NAME = re.compile(r"`([a-z][a-z_0-9]*(?:\.[a-z][a-z_0-9]*)*)[^`]*`")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table beneath a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_options_of_both_sides_exist() -> None:
    theirs = {field.name for field in dataclasses.fields(GRPOConfig)}
    ours = set(declared_paths())
    cells = rows("Options") + rows("Models, vLLM and records")
    named = [(NAME.findall(left), NAME.findall(right)) for left, right in cells]
    assert len(named) > 35
    for left, right in named:
        assert left
        assert set(left) <= theirs
        paths = [name for name in right if "." in name and name != "completions.jsonl"]
        assert set(paths) <= ours
        assert paths or left in (["log_completions", "num_completions_to_print"], ["use_vllm"])


def test_the_methods_of_both_sides_exist() -> None:
    for left, right, _ in rows("Loss types"):
        (method,) = re.findall(r"`scoring=([a-z_]+)`", right)
        assert method in options("scoring")
        assert NAME.findall(left)[0] in ("dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo")


def test_every_option_of_trls_is_on_the_page() -> None:
    own = {field.name for field in dataclasses.fields(GRPOConfig)} - {
        field.name for field in dataclasses.fields(TrainingArguments)
    }
    assert own <= set(NAME.findall(PAGE))


def test_the_preset_is_trls_trainer_without_options(policy: PreTrainedModel, folder: Path, old_logp: Tensor) -> None:
    config = load_config(["experiment=trl_defaults"])
    trainer = trainer_for(policy, BATCH, folder)
    theirs, optimization, scoring = trainer.args, config.optimization, config.scoring
    assert (theirs.epsilon, theirs.epsilon_high) == (scoring.clipping.clip_range, scoring.clipping.clip_range_high)
    assert (theirs.beta, theirs.use_bias_correction_kl) == (scoring.kl_beta, scoring.kl_estimator == "k3_is")
    assert (theirs.temperature, theirs.top_p) == (config.generation.temperature, config.generation.top_p)
    assert GRPOConfig.num_generations == config.generation.num_generations
    for name in ("num_iterations", "max_grad_norm", "warmup_steps", "adam_beta2", "adam_beta1", "weight_decay"):
        assert getattr(theirs, name) == getattr(optimization, name), name
    assert theirs.lr_scheduler_type == optimization.lr_scheduler_type
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES, "old_per_token_logps": old_logp}
    settings = training_settings(scoring, max_length=BATCH.max_length)
    assert_same(step_outcome(policy, BATCH, settings, Given(ADVANTAGES, old_logp)), window_outcome(trainer, [inputs]))
