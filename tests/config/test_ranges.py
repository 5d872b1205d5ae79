import math

import pytest
from support.each import each_of
from transformers.trainer_utils import SchedulerType

from maxent_grpo.config.declared import all_settings
from maxent_grpo.config.ranges import RANGES, out_of_range
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.schedules import LR_SCHEDULES, LR_SCHEDULES_LEFT_OUT
from maxent_grpo.config.store import OPTIONS


def default_root(path: str = "") -> RootConfig:
    """The last option of each group with its defaults, and of the group of ``path`` the last that has such a setting."""
    chosen = {group: node for group, _, node in OPTIONS}
    owners = {setting.option for setting in all_settings() if setting.path == path}
    chosen |= {group: node for group, name, node in OPTIONS if group == path.split(".")[0] and name in owners}
    return RootConfig(**{group: node() for group, node in chosen.items()})


def sentence_for(path: str, value: float) -> str | None:
    root = default_root(path)
    *parents, name = path.split(".")
    owner: object = root
    for parent in parents:
        owner = getattr(owner, parent)
    setattr(owner, name, value)
    return dict(out_of_range(root)).get(path)


def is_number(kind: object) -> bool:
    return kind in (int, float, int | None, float | None)


def test_every_number_that_can_be_set_has_a_range() -> None:
    numbers = {setting.path for setting in all_settings() if is_number(setting.kind)}
    assert numbers == set(RANGES)


def test_the_defaults_are_in_range() -> None:
    assert {path: found for path in RANGES if (found := list(out_of_range(default_root(path))))} == {}


def test_nan_and_infinities_are_out_of_every_range() -> None:
    def refused(path: str) -> None:
        for value in (math.nan, math.inf, -math.inf):
            sentence = sentence_for(path, value)
            assert sentence is not None
            assert sentence.startswith(f"{path}={value}: must be ")

    each_of(RANGES, refused)


OUTSIDE = {
    "at least 1": (0, ["generation.num_generations", "optimization.prompts_per_step", "optimization.minibatches"]),
    "at least 1 ": (0, ["optimization.num_iterations", "optimization.grad_accum_steps", "evaluation.every_n_steps"]),
    "at least 1  ": (0, ["scoring.batching.score_tail_tokens", "generation.penalty.gen_top_k"]),
    "at least 0": (-1, ["scoring.reference_sync.every_n_steps", "scoring.kl_beta", "scoring.weighting.beta"]),
    "above 0": (0.0, ["optimization.learning_rate", "scoring.clipping.clip_range_high", "scoring.mismatch.cap"]),
    "above 0 and below 1": (1.0, ["scoring.clipping.clip_range", "controller.target_fraction", "controller.clip"]),
    "above 1": (1.0, ["controller.target_size"]),
    "above 0 and at most 1": (0.0, ["generation.top_p", "scoring.reference_sync.mixing"]),
    "at least 0 and below 1": (1.0, ["generation.penalty.gen_min_p", "optimization.adam_beta1"]),
    "at least 0 and at most 1": (1.5, ["data.edge_probability"]),
    "at least 2": (1, ["evaluation.seed_eval.num_seeds"]),
    "at least 2 and at most 12": (1, ["data.num_vertices"]),
    "at least 3 and at most 4": (5, ["data.num_numbers"]),
    "at least 1 and at most 1000000": (0, ["data.max_number"]),
    "at least 1 and at most 1024": (100_000, ["run.num_threads"]),
    "at least 1 and at most 1048576": (1_000_000_000, ["generation.max_completion_len"]),
    "at least 0 and below 4294967296": (-1, ["seed", "evaluation.seed"]),
    "finite": (math.inf, ["scoring.clipping.clip_adv_baseline"]),
}


@pytest.mark.parametrize("bounds", OUTSIDE)
def test_a_number_outside_its_range_prints_the_range(bounds: str) -> None:
    value, paths = OUTSIDE[bounds]
    for path in paths:
        assert sentence_for(path, value) == f"{path}={value}: must be {bounds.strip()}"


def test_an_infinite_number_is_told_to_be_finite() -> None:
    assert sentence_for("optimization.learning_rate", math.inf) == (
        "optimization.learning_rate=inf: must be above 0 and finite"
    )


def test_the_schedule_names_are_those_of_transformers() -> None:
    assert {*LR_SCHEDULES, *LR_SCHEDULES_LEFT_OUT} == {member.value for member in SchedulerType}
