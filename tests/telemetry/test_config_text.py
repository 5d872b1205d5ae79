"""Settings as text: what is read back is what was written, in the form that OmegaConf gives it."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from maxent_grpo.config.load import load_config
from maxent_grpo.telemetry.config_text import config_text
from maxent_grpo.training.resume import config_tree

RUNS = {
    "the default": ["run.dir=a/b"],
    "numbers as text": ["run.dir=1e5", "data.system_prompt='-3.5'", "data.assistant_prefix='yes'"],
    "odd text": ["run.dir=nowhere", r'data.system_prompt="# über: {x}\n\"no\" "', "data.prompt_template='{prompt}: '"],
    "names and lists": ["run.dir=nowhere", "evaluation.ks=[1,2]", "reward.terms.format=1e-7", "generation.top_p=0.25"],
    "problems of a library": [
        *("run.dir=nowhere", "data=reasoning_gym", "model.warm_start.enabled=false"),
        *("data.tasks.chain_sum=1", "data.task_settings.chain_sum.max_terms=2"),
    ],
}


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS.keys())
def test_settings_are_written_as_omegaconf_writes_them_and_read_back_as_they_were(overrides: list[str]) -> None:
    config = load_config(overrides)
    text = config_text(config_tree(config))
    assert text == OmegaConf.to_yaml(OmegaConf.structured(config))
    assert OmegaConf.to_container(OmegaConf.create(text)) == config_tree(config)
