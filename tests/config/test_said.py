"""A configuration made in Python is said as the overrides that compose to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runs import overrides as quick
from support.runs import weights_of

import maxent_grpo
from maxent_grpo.config.load import load_config
from maxent_grpo.config.said import as_overrides

CASES = [
    [],
    ["scoring=grpo", "seed=5"],
    ["experiment=qwen05b_math", "run.dir=nowhere", "run.device=auto"],
    ["generation=vllm", "generation.vllm.url=http://a:1", "+reward.terms.format=0.1", "~reward.terms.task"],
    ["evaluation.seed_eval.enabled=true", 'evaluation.seed_eval.template=" [seed={seed}]"'],
    ["data=reasoning_gym", "data.tasks={chain_sum: 1.5, gsm_symbolic: 2}", "model.warm_start.enabled=false"],
    ["generation.allowed_tokens=[]", "optimization.warmup_steps=2", "evaluation.ks=[1,2]"],
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_what_is_said_composes_to_the_configuration(words: list[str]) -> None:
    config = load_config([*words, "run.dir=nowhere"])
    said = as_overrides(config)
    assert load_config(said) == config
    assert as_overrides(load_config(said)) == said


def test_only_what_differs_is_said() -> None:
    config = load_config([])
    assert as_overrides(config) == []
    config.seed, config.scoring.clipping.clip_range = 5, 0.1
    assert as_overrides(config) == ["scoring.clipping.clip_range=0.1", "seed=5"]


def test_a_run_made_in_python_is_continued_by_its_command(tmp_path: Path) -> None:
    config = maxent_grpo.compose(*quick(tmp_path / "run"))
    config.seed, config.optimization.total_training_steps = 5, 1
    maxent_grpo.run(config)
    said = json.loads((tmp_path / "run" / "overrides.json").read_text())
    assert {"seed=5", "optimization.total_training_steps=1"} <= set(said)
    longer = maxent_grpo.run(
        [f"checkpoint.resume_from={tmp_path}/run", f"run.dir={tmp_path}/run", "optimization.total_training_steps=2"]
    )
    assert longer.global_step == 2
    assert weights_of(longer.run_dir / "checkpoints" / "step_2")
