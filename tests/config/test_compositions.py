"""Composing in two parts gives what Hydra gives in one, and follows what it depends on."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config import compositions
from maxent_grpo.config.compose import hydra_session
from maxent_grpo.config.compositions import CONFIG_NAME, compose_parts
from maxent_grpo.config.scoring import GrpoScoringConfig
from maxent_grpo.config.store import OPTIONS, register


def shown(config: DictConfig) -> tuple[object, object]:
    """Everything that the gates read: the values with their interpolations, and the classes behind the groups."""
    return OmegaConf.to_container(config), [OmegaConf.get_type(config, str(name)) for name in config]


def outcome(make: object, *arguments: object) -> object:
    with hydra_session():
        try:
            config = make(*arguments)  # type: ignore[operator]
        except Exception as error:  # whatever it is, both ways must raise the same
            return type(error), str(error), str(error.__cause__)
    return shown(config)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["seed=3", "scoring=grpo", "scoring.clipping.clip_range=0.1", "scoring.clipping.clip_range=0.3"],
        ["experiment=tiny_countdown", "optimization.learning_rate=1e-3", "data=coloring", "data.num_train=64"],
        ["experiment=qwen7b_math", "scoring=dapo", "generation.max_completion_len=7"],
        ["+reward.terms.format=0.1", "~reward.terms.task"],
        ["++reward.terms={format: 0.5}", "evaluation={seed: 4}"],
        ["hydra.searchpath=[file:///nowhere]", "seed=1"],
        ["model.warm_start.steps=many"],
        ["optimization.learning_rat=1"],
        ["scoring=grop", "seed=1"],
        ["seed=1,2"],
        ["optimization.learning_rate@x=1"],
        ["~seed"],
        ["nothing=1"],
        ["seed=["],
    ],
)
def test_both_ways_give_the_same(overrides: list[str]) -> None:
    register()
    assert outcome(compose_parts, overrides) == outcome(compose, CONFIG_NAME, overrides)


def test_what_is_kept_is_not_changed_by_its_users() -> None:
    register()
    with hydra_session():
        first = compose_parts(["seed=4"])
        first.seed = 5
        OmegaConf.to_container(first, resolve=True)
        assert shown(compose_parts([])) == shown(compose(CONFIG_NAME, []))


def test_a_changed_file_and_a_new_option_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    folder = shutil.copytree(compositions.config_directory(), tmp_path / "conf")
    monkeypatch.setattr("maxent_grpo.config.compose.config_directory", lambda: folder)
    monkeypatch.setattr(compositions, "config_directory", lambda: folder)
    preset = folder / "experiment" / "mine.yaml"
    with hydra_session():
        for seed in (7, 11):
            preset.write_text(f"# @package _global_\nseed: {seed}\n")
            assert compose_parts(["experiment=mine"]).seed == seed
    other = dataclasses.make_dataclass("Other", [("extra", int, 2)], bases=(GrpoScoringConfig,))
    monkeypatch.setattr("maxent_grpo.config.store.OPTIONS", OPTIONS)
    OPTIONS.append(("scoring", "other", other))
    register.cache_clear()
    try:
        register()
        with hydra_session():
            assert compose_parts(["scoring=other", "scoring.extra=3"]).scoring.extra == 3
    finally:
        OPTIONS.pop()
        register.cache_clear()
