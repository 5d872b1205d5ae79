"""The supervised stage: what it minimises, that it is reproducible, and its cache."""

from __future__ import annotations

import logging
import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maxent_grpo.config.data import ColoringDataConfig
from maxent_grpo.config.model import Attention, Dtype, TinyModelConfig, WarmStartConfig
from maxent_grpo.errors import ConfigError, DataError, NonFiniteError
from maxent_grpo.models import warm_start as module
from maxent_grpo.models.build import LoadedModel, build_model
from maxent_grpo.models.demonstrations import collate, draw_answers, pack, tokenize_demonstration
from maxent_grpo.models.warm_start import cache_key, demonstration_loss, learning_rate_factor, step_rows, warm_start
from maxent_grpo.models.weight_cache import read_weights, state_digest, write_weights
from maxent_grpo.tasks.base import Demonstration
from maxent_grpo.tasks.coloring import build_coloring

MODEL = TinyModelConfig(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=96)
DEMONSTRATIONS = build_coloring(ColoringDataConfig(num_train=1, num_eval=1)).demonstrations(24, 1.0, 0)
UNEVEN = Demonstration("uneven", [{"role": "user", "content": "?"}], ("R", "GBR"), (0.25, 0.75))


def settings(tmp_path: Path, **changes: Any) -> WarmStartConfig:
    base = WarmStartConfig(steps=6, batch_size=8, learning_rate=3e-3, cache_dir=str(tmp_path / "cache"))
    return replace(base, **changes)


def started(config: WarmStartConfig, model: TinyModelConfig = MODEL) -> tuple[LoadedModel, module.WarmStartReport]:
    loaded = build_model(model)
    return loaded, warm_start(loaded, DEMONSTRATIONS, config, identity={"task": "test"})


def full_loss(loaded: LoadedModel) -> float:
    tokenized = [tokenize_demonstration(item, loaded.tokenizer) for item in DEMONSTRATIONS]
    with torch.no_grad():
        return demonstration_loss(loaded.model, [pack(item, item.weights) for item in tokenized]).item() / len(
            tokenized
        )


@pytest.mark.parametrize("attention", [Attention.sdpa, Attention.eager])
def test_packed_loss_equals_each_answer_alone_behind_its_prompt(attention: Attention) -> None:
    loaded = build_model(replace(MODEL, dtype=Dtype.float64, attention=attention))
    items = [*DEMONSTRATIONS[:3], UNEVEN]
    alone = 0.0
    for item in items:
        prompt = loaded.tokenizer.apply_chat_template(item.messages, tokenize=False, add_generation_prompt=True)
        prompt_ids = loaded.tokenizer(str(prompt), add_special_tokens=False)["input_ids"]
        for answer, weight in zip(item.answers, item.weights, strict=True):
            ids = [*prompt_ids, *loaded.tokenizer(answer, add_special_tokens=False)["input_ids"], 2]
            with torch.no_grad():
                logp = loaded.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            for position in range(len(prompt_ids), len(ids)):
                alone -= weight * logp[position - 1, ids[position]].item()
    tokenized = [tokenize_demonstration(item, loaded.tokenizer) for item in items]
    packed = demonstration_loss(loaded.model, [pack(item, item.weights) for item in tokenized]).item()
    # weights travel as float32, which bounds the agreement
    assert packed == pytest.approx(alone, rel=1e-7)


def test_a_packed_row_is_laid_out_as_documented() -> None:
    tokenizer = build_model(MODEL).tokenizer
    item = tokenize_demonstration(UNEVEN, tokenizer)
    row = pack(item, item.weights)
    red, green, blue = (tokenizer.convert_tokens_to_ids(letter) for letter in "RGB")
    assert item.prompt == [1, 4, tokenizer.convert_tokens_to_ids("?"), 5]
    assert row.token_ids == [*item.prompt, red, green, blue, red]
    assert row.position_ids == [0, 1, 2, 3, 4, 4, 5, 6]
    assert row.segments == [0, 0, 0, 0, 1, 2, 2, 2]
    assert row.source == [3, 4, 3, 5, 6, 7]
    assert row.targets == [red, 2, green, blue, red, 2]
    assert row.weights == [0.25, 0.25, 0.75, 0.75, 0.75, 0.75]
    mask = collate([row]).mask[0, 0].int().tolist()
    assert mask[3] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert mask[4] == [1, 1, 1, 1, 1, 0, 0, 0]
    assert mask[6] == [1, 1, 1, 1, 0, 1, 1, 0]


def test_drawn_answers_follow_the_demonstrator() -> None:
    item = tokenize_demonstration(UNEVEN, build_model(MODEL).tokenizer)
    generator = np.random.default_rng(0)
    shares = np.mean([draw_answers(item, 2, generator) for _ in range(4000)], axis=0)
    assert shares == pytest.approx([0.25, 0.75], abs=0.02)
    assert draw_answers(item, 0, generator).tolist() == [0.25, 0.75]
    assert sorted(set(draw_answers(item, 1, generator))) == [0.0, 1.0]
    assert pack(item, np.array([0.0, 1.0])).segments == [0, 0, 0, 0, 1, 1, 1]


def test_every_problem_is_visited_once_in_each_pass(tmp_path: Path) -> None:
    tokenizer = build_model(MODEL).tokenizer
    tokenized = [tokenize_demonstration(item, tokenizer) for item in DEMONSTRATIONS]
    seen = [tuple(row.token_ids[:25]) for rows in step_rows(tokenized, settings(tmp_path)) for row in rows]
    prompts = {tuple(item.prompt) for item in tokenized}
    passes = [[tuple(row[: len(tokenized[0].prompt)]) for row in seen[start : start + 24]] for start in (0, 24)]
    assert all(set(visited) == prompts for visited in passes)
    assert passes[0] != passes[1]


def test_training_lowers_the_loss_and_leaves_all_random_state_untouched(tmp_path: Path) -> None:
    before = full_loss(build_model(MODEL))
    torch.manual_seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    loaded, report = started(settings(tmp_path, steps=20))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert full_loss(loaded) < before - 3
    assert not report.cached
    assert report.num_steps == 20
    assert report.seconds > 0
    assert report.final_loss < before
    assert loaded.model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in loaded.model.parameters())


def test_two_trainings_are_equal_to_the_bit_with_two_threads_as_well(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        digests = {
            state_digest(started(settings(tmp_path / name, steps=3))[0].model.state_dict())
            for name in ("first", "second")
        }
    finally:
        torch.set_num_threads(threads)
    assert len(digests) == 1


def test_the_second_start_reads_the_same_weights_from_the_cache(tmp_path: Path) -> None:
    trained, first = started(settings(tmp_path))
    read, second = started(settings(tmp_path))
    assert (first.cached, second.cached) == (False, True)
    assert second.final_loss == first.final_loss
    assert second.path == first.path
    assert state_digest(read.model.state_dict()) == state_digest(trained.model.state_dict())
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [first.path.name]


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "weights.safetensors"
    models = [build_model(replace(MODEL, init_seed=seed)).model for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write_weights, path, model, float(seed)) for seed, model in enumerate(models * 3)]:
            done.result()
    target = build_model(replace(MODEL, init_seed=9)).model
    stored = read_weights(path, target)
    assert stored.final_loss is not None
    assert state_digest(target.state_dict()) == state_digest(models[int(stored.final_loss) % 4].state_dict())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "foreign"])
def test_a_damaged_cache_file_is_noticed_and_trained_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained, first = started(settings(tmp_path))
    content = bytearray(first.path.read_bytes())
    if damage == "flipped":
        content[-5] ^= 1
    first.path.write_bytes(
        {"flipped": content, "truncated": content[:-100], "empty": b"", "foreign": b"not tensors" * 50}[damage]
    )
    with caplog.at_level(logging.WARNING):
        again, second = started(settings(tmp_path))
    assert (second.cached, second.num_corrupted) == (False, 1)
    assert str(first.path) in caplog.text
    assert state_digest(again.model.state_dict()) == state_digest(trained.model.state_dict())
    _, third = started(settings(tmp_path))
    assert (third.cached, third.num_corrupted) == (True, 0)


def test_the_cache_key_covers_what_the_weights_depend_on(tmp_path: Path) -> None:
    config, loaded = settings(tmp_path), build_model(MODEL)
    key = cache_key(loaded, DEMONSTRATIONS, config, {})
    assert cache_key(build_model(MODEL), DEMONSTRATIONS, config, {}) == key
    assert cache_key(loaded, DEMONSTRATIONS, replace(config, cache_dir="elsewhere"), {}) == key
    others = [
        cache_key(build_model(replace(MODEL, init_seed=1)), DEMONSTRATIONS, config, {}),
        cache_key(build_model(replace(MODEL, dtype=Dtype.bfloat16)), DEMONSTRATIONS, config, {}),
        cache_key(build_model(replace(MODEL, attention=Attention.eager)), DEMONSTRATIONS, config, {}),
        cache_key(loaded, DEMONSTRATIONS[1:], config, {}),
        cache_key(loaded, [replace(DEMONSTRATIONS[0], answers=("RRRR",)), *DEMONSTRATIONS[1:]], config, {}),
        cache_key(loaded, DEMONSTRATIONS, replace(config, steps=7), {}),
        cache_key(loaded, DEMONSTRATIONS, replace(config, seed=7), {}),
        cache_key(loaded, DEMONSTRATIONS, config, {"task": "other"}),
    ]
    assert len({key, *others}) == 1 + len(others)


def test_low_precision_weights_are_trained_as_float32_and_rounded_once(tmp_path: Path) -> None:
    loaded, _ = started(settings(tmp_path), replace(MODEL, dtype=Dtype.bfloat16))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert math.isfinite(full_loss(loaded))


def test_the_learning_rate_rises_for_a_tenth_and_falls_along_a_cosine() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert factors[55] == pytest.approx(0.5)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert 0 < factors[-1] < 1e-3
    assert learning_rate_factor(0, 1) == 1.0


def test_a_diverging_training_stops_before_it_stores_anything(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"learning_rate"):
        started(settings(tmp_path, learning_rate=1e30))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"steps": 0}, "steps=0"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"answers_per_problem": -2}, "answers_per_problem=-2"),
    ],
)
def test_settings_that_train_nothing_are_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        started(settings(tmp_path, **change))


def test_missing_or_malformed_demonstrations_are_refused(tmp_path: Path) -> None:
    loaded = build_model(MODEL)
    with pytest.raises(DataError, match="no demonstrations"):
        warm_start(loaded, [], settings(tmp_path), identity={})
    for broken in (replace(UNEVEN, weights=(1.0,)), replace(UNEVEN, answers=("R", "")), replace(UNEVEN, answers=())):
        with pytest.raises(DataError, match="one weight for each"):
            warm_start(loaded, [broken], settings(tmp_path), identity={})
