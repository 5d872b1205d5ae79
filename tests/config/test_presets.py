"""Presets of language models: put together from parts, over which every method can be chosen."""

from itertools import product
from pathlib import Path

import pytest

from maxent_grpo.commands.explain_text import explain
from maxent_grpo.config.contradictions import warnings
from maxent_grpo.config.load import load_config
from maxent_grpo.config.provenance import compose_with_origins
from maxent_grpo.config.resolve import chosen_options
from maxent_grpo.errors import ConfigError

MODELS = ("qwen05b", "qwen15b", "qwen7b", "llama8b")
DATA = ("gsm8k", "math", "dapo17k", "countdown")
METHODS = ("grpo", "dr_grpo", "dapo", "maxent")
IN_TURN = [
    ("qwen05b", "gsm8k", "grpo"),
    ("llama8b", "math", "dapo"),
    ("qwen15b", "dapo17k", "maxent"),
    ("qwen05b", "countdown", "dr_grpo"),
    ("qwen7b", "countdown", "maxent"),
]
"""Every model, every data set and every method."""
REST = [each for each in product(MODELS, DATA, METHODS) if each not in IN_TURN]
FIFTH = {1024: 205, 3072: 614}


@pytest.mark.parametrize(
    ("model", "data", "method"),
    [*IN_TURN, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)],
)
def test_every_method_can_be_chosen_over_every_preset(model: str, data: str, method: str) -> None:
    """The method's own settings hold; what depends on the length of completions comes with it, and only with it."""
    config = load_config([f"experiment={model}_{data}", f"scoring={method}", "run.dir=nowhere"])
    assert warnings(config) == []
    assert chosen_options(config)["scoring"] == method
    scoring, limit = config.scoring, config.generation.max_completion_len
    assert scoring.weighting.tau == (0.25 if method == "maxent" else 0.1)
    assert scoring.shaping.overlong_buffer == (FIFTH[limit] if method == "dapo" else 0)
    assert scoring.clipping.clip_range_high == (0.28 if method == "dapo" else None)
    assert scoring.dynamic_sampling.enabled == (method == "dapo")
    assert config.model.lora.enabled == (model in ("qwen7b", "llama8b"))
    assert config.optimization.learning_rate == (1e-5 if config.model.lora.enabled else 1e-6)


def test_each_setting_is_traced_to_the_part_that_made_it() -> None:
    chosen = compose_with_origins(["experiment=qwen7b_math", "scoring=dapo", "seed=3"])
    assert chosen.who_set("scoring.shaping.overlong_buffer") == "preset conf/completions/with/up_to_3072_dapo.yaml"
    assert chosen.who_set("model.lora.rank") == "preset conf/recipe/model/qwen7b.yaml"
    assert chosen.who_set("model.gradient_checkpointing") == "preset conf/recipe/language_model.yaml"
    assert chosen.who_set("evaluation.exact") == "preset conf/recipe/language_model.yaml"
    assert chosen.who_set("seed") == "this command line: seed=3"
    assert chosen.who_chose("data") == "preset conf/recipe/data/math.yaml"
    default = compose_with_origins(["experiment=qwen7b_math"])
    assert default.who_set("scoring.weighting.tau") == "preset conf/completions/with/up_to_3072_maxent.yaml"


def test_a_preset_can_be_sampled_by_vllm() -> None:
    """What the limit of completions means for the local sampler comes with that sampler only."""
    served = ("generation=vllm", "generation.vllm.url=http://127.0.0.1:8000")
    config = load_config(["experiment=qwen7b_math", *served, "run.dir=nowhere"])
    assert chosen_options(config)["generation"] == "vllm"
    assert config.generation.max_completion_len == 3072
    here = compose_with_origins(["experiment=qwen7b_math"])
    assert here.who_set("generation.batch_size") == "preset conf/completions/sampled/up_to_3072_local.yaml"


def test_a_preset_is_explained_with_its_parts() -> None:
    lines = explain("experiment=qwen05b_gsm8k")
    assert lines[1] == "  python train.py experiment=qwen05b_gsm8k"
    assert "with conf/recipe/data/gsm8k.yaml" in lines
    assert "  optimization.prompts_per_step=128" in lines


def write(folder: Path, name: str, *lines: str) -> Path:
    file = folder / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["# @package _global_", *lines, ""]))
    return file


def test_parts_of_ones_own_are_put_together_like_the_projects(tmp_path: Path) -> None:
    write(tmp_path, "recipe/data/mine", "defaults:", "  - override /completions: up_to_3072", "seed: 4")
    write(tmp_path, "experiment/mine", "defaults:", "  - /recipe/data: mine", "  - override /scoring: dapo")
    config = load_config(["experiment=mine", "evaluation.exact=never"], config_dir=tmp_path)
    assert (config.seed, config.generation.max_completion_len, config.scoring.shaping.overlong_buffer) == (4, 3072, 614)


def test_a_mistake_in_a_part_is_named_with_the_parts_file(tmp_path: Path) -> None:
    part = write(tmp_path, "recipe/data/mine", "generation:", "  temprature: 1", "sede: 3")
    preset = write(tmp_path, "experiment/mine", "defaults:", "  - /recipe/data: mine", "  - /recipe/model: absent")
    with pytest.raises(ConfigError) as caught:
        load_config(["experiment=mine"], config_dir=tmp_path)
    assert caught.value.problems == [
        f"{preset}: includes recipe/model/absent, and there is no file recipe/model/absent.yaml",
        f"{part}: generation.temprature: no such setting; did you mean generation.temperature?",
        f"{part}: sede: no such setting; did you mean seed?",
    ]
