import copy
import subprocess
import sys

import pytest

from maxent_grpo.config.controller import FixedControllerConfig
from maxent_grpo.config.data_sources import TableDataConfig
from maxent_grpo.config.generation import LocalGenerationConfig, VllmGenerationConfig
from maxent_grpo.config.model import SmolLM2ModelConfig, TinyModelConfig
from maxent_grpo.config.optimization import AdamWConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.compatibility import (
    ABSENT,
    CUTS,
    MAY_CHANGE,
    Difference,
    compare_for_resume,
    require_compatible,
)

CONFIG = {
    "model": {"hidden_size": 128, "warm_start": {"steps": 400, "cache_dir": "outputs/.cache"}},
    "data": {"num_train": 3500},
    "generation": {"batch_size": 0, "num_generations": 16, "allowed_tokens": ["@answer"]},
    "scoring": {
        "weighting": {"tau": 0.1, "score_mode": "auto"},
        "batching": {"score_slice": 0, "score_tail_tokens": None, "share_prompts": True, "max_tokens": 0},
    },
    "optimization": {
        "total_training_steps": 200,
        "num_epochs": 1,
        "learning_rate": 3e-4,
        "lr_scheduler_type": "cosine",
    },
    "controller": {"paths": {"state_path": None}},
    "reward": {"terms": {"task": 1.0}, "functions": {}},
    "evaluation": {"every_n_steps": 50, "ks": [1, 8]},
    "logging": {"console": "auto"},
    "checkpoint": {"keep_last": 2, "resume_from": None},
    "run": {"dir": "outputs/a", "device": "auto"},
    "seed": 0,
}


def changed(**values: object) -> dict[str, object]:
    config = copy.deepcopy(CONFIG)
    for dotted, value in values.items():
        *parents, last = dotted.split("__")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
    return config


@pytest.mark.parametrize("setting", CUTS)
def test_how_a_step_is_cut_is_part_of_the_objective_where_the_loss_is_a_mean_over_slices(setting: str) -> None:
    for reduction in ("token", "micro_batch"):
        saved = changed(scoring__reduction=reduction)
        current = copy.deepcopy(saved)
        current["scoring"]["batching"][setting.rpartition(".")[2]] = 64
        if reduction == "token":
            assert [difference.key for difference in require_compatible(saved, current)] == [setting]
        else:
            with pytest.raises(CheckpointError, match=f"{setting}: 0 in the checkpoint, 64 now"):
                require_compatible(saved, current)


def test_equal_configurations_have_no_differences() -> None:
    assert require_compatible(CONFIG, copy.deepcopy(CONFIG)) == []
    assert compare_for_resume({"a": (1, 2.0), "b": float("nan")}, {"a": [1.0, 2], "b": float("nan")}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"run__dir": "elsewhere"},
        {"run__num_threads": 2},
        {"logging__console": "plain"},
        {"checkpoint__resume_from": "outputs/a"},
        {"evaluation__ks": [1, 4]},
        {"controller__paths__state_path": "x.json"},
        {"optimization__total_training_steps": 400},
        {"optimization__num_epochs": 2},
        {"scoring__batching__logprob_chunk_size": 8},
        {"scoring__batching__score_slice": 16},
        {"scoring__batching__max_tokens": 512},
        {"scoring__batching__slice_prefetch": 1},
        {"scoring__batching__prompt_cache_size": 0},
        {"scoring__batching__share_prompts": False},
        {"generation__batch_size": 4},
        {"model__warm_start__cache_dir": "cache"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_change_of_place_length_or_path_is_allowed_and_explained(values: dict[str, object]) -> None:
    [difference] = require_compatible(CONFIG, changed(**values))
    assert difference.key == next(iter(values)).replace("__", ".")
    assert difference.current == next(iter(values.values()))
    assert difference.meaning in MAY_CHANGE.values()


def test_a_longer_run_says_what_becomes_of_the_learning_rate() -> None:
    [difference] = require_compatible(CONFIG, changed(optimization__total_training_steps=400))
    assert str(difference) == "optimization.total_training_steps: 200 in the checkpoint, 400 now"
    assert difference.meaning == (
        "extends or shortens the run; a learning-rate schedule that depends on the length, such as cosine or linear, "
        "follows the new length's curve from here on"
    )


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 1},
        {"model__hidden_size": 64},
        {"model__warm_start__steps": 10},
        {"data__num_train": 10},
        {"generation__num_generations": 8},
        {"generation__allowed_tokens": []},
        {"scoring__weighting__tau": 0.25},
        {"scoring__batching__score_tail_tokens": 2},
        {"optimization__learning_rate": 1e-4},
        {"optimization__lr_scheduler_type": "linear"},
        {"reward__terms": {"task": 1.0, "format": 0.1}},
        {"reward__functions": {"mine": "package:function"}},
        {"runs": {"dir": "not the group run"}},
        {"controller__gain": 0.5},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_change_of_objective_or_data_is_refused_either_way(values: dict[str, object]) -> None:
    for saved, current in [(CONFIG, changed(**values)), (changed(**values), CONFIG)]:
        with pytest.raises(CheckpointError, match=next(iter(values)).replace("__", ".")):
            require_compatible(saved, current)


def test_one_and_true_differ_but_one_and_one_point_zero_do_not() -> None:
    assert compare_for_resume({"a": 1, "b": 1}, {"a": True, "b": 1.0}) == [Difference("a", 1, True)]


def test_keys_of_one_side_are_differences_leaf_by_leaf() -> None:
    assert compare_for_resume({"a": {"x": 1, "y": {"z": 2}}}, {"b": None}) == [
        Difference("a.x", 1, ABSENT),
        Difference("a.y.z", 2, ABSENT),
        Difference("b", ABSENT, None),
    ]


def test_the_refusal_names_every_changed_key_with_both_values_and_what_may_change() -> None:
    current = changed(
        seed=1, scoring__weighting__tau=0.25, run__dir="elsewhere", reward__terms={"task": 1.0, "format": 0.1}
    )
    with pytest.raises(CheckpointError) as caught:
        require_compatible(CONFIG, current)
    path = "a path setting: the same loss up to rounding, not bit-equal"
    horizon = (
        "extends or shortens the run; a learning-rate schedule that depends on the length, such as cosine or linear, "
        "follows the new length's curve from here on"
    )
    assert str(caught.value).splitlines() == [
        "cannot resume: 3 settings of the objective or the data changed, so this would not be the same run:",
        "  - reward.terms.format: absent in the checkpoint, 0.1 now",
        "  - scoring.weighting.tau: 0.1 in the checkpoint, 0.25 now",
        "  - seed: 0 in the checkpoint, 1 now",
        "set back what changed, or start a new run without checkpoint.resume_from; these may change on resume:",
        "  - run.*: where the run goes and what it runs on; another device or number of threads is equal up to rounding, not bit-equal",
        "  - logging.*: what is shown and recorded from here on",
        "  - checkpoint.*: what is saved and kept from here on; another best_metric or best_goal starts the search for the best anew",
        "  - evaluation.*: evaluation figures are those of the new settings from here on",
        "  - controller.paths.*: where controller state is kept",
        f"  - optimization.total_training_steps: {horizon}",
        f"  - optimization.num_epochs: {horizon}",
        "  - optimization.parallel.*: how the run is spread over processes: the same loss up to rounding, not bit-equal",
        f"  - scoring.batching.logprob_chunk_size: {path}",
        f"  - scoring.batching.score_slice: {path}",
        f"  - scoring.batching.max_tokens: {path}",
        f"  - scoring.batching.slice_prefetch: {path}",
        f"  - scoring.batching.skip_zero_signal: {path}",
        f"  - scoring.batching.prompt_cache_size: {path}",
        f"  - scoring.batching.share_prompts: {path}",
        f"  - generation.batch_size: {path}",
        *(
            f"  - generation.{name}: how vLLM is run, reached and asked again: the same completions up to rounding"
            for name in (
                *(
                    "vllm_mode",
                    "engine.*",
                    "weights_dir",
                    "weight_transfer",
                    "max_in_flight",
                    "vllm.url",
                    "vllm.launch",
                    "vllm.timeout",
                ),
                *("vllm.max_retries", "vllm.backoff", "vllm.backoff_multiplier", "vllm.retry_sleep"),
                "vllm.request_id_prefix",
            )
        ),
        f"  - model.attention: {path}",
        f"  - model.gradient_checkpointing: {path}",
        f"  - model.compile: {path}",
        "  - model.cache_dir: where the converted model is kept; the weights come from the checkpoint",
        "  - model.lora.adapter: where the starting adapter lies; its weights must be those that the run began with",
        "  - model.warm_start.cache_dir: where warm starts are cached; the weights come from the checkpoint",
        "  - data.cache_dir: where files made of the data are kept; the rows are the same",
    ]


def test_a_single_change_is_counted_as_one_setting() -> None:
    with pytest.raises(CheckpointError, match="cannot resume: 1 setting of the objective"):
        require_compatible(CONFIG, changed(seed=1))


def test_every_setting_that_may_change_exists_in_the_configuration() -> None:
    groups = {
        "model": TinyModelConfig(),
        "data": TableDataConfig(),
        "generation": LocalGenerationConfig(),
        "scoring": ScoringConfig(),
        "optimization": AdamWConfig(),
        "controller": FixedControllerConfig(),
    }
    for pattern in MAY_CHANGE:
        group, *rest = pattern.removesuffix(".*").split(".")
        assert group in RootConfig.__dataclass_fields__
        node = SmolLM2ModelConfig() if pattern == "model.cache_dir" else groups.get(group)
        if group == "generation" and rest != ["batch_size"]:
            node = VllmGenerationConfig()
        for name in rest:
            node = getattr(node, name)


def test_store_and_compatibility_import_no_torch() -> None:
    modules = ["store", "compatibility", "manifest", "best"]
    imports = "; ".join(f"import maxent_grpo.training.checkpoint.{name}" for name in modules)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
