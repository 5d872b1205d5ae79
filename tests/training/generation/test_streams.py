"""Random numbers as a function of names."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from maxent_grpo.training.generation.streams import batch_uniforms, completion_uniforms

NAMES: dict[str, Any] = {"seed": 3, "stream": "train", "rollout": 5, "row_id": "row-9", "sample_index": 2}


def test_the_numbers_are_the_same_in_every_process_and_version() -> None:
    assert completion_uniforms(**NAMES, length=3).tolist() == [
        0.8120481873504606,
        0.9924403853887145,
        0.7615594504440245,
    ]


def test_the_numbers_are_those_of_a_philox_generator_with_the_hashed_key() -> None:
    digest = blake2b(b"3:5:5:train:2:row-9", digest_size=16).digest()
    philox = np.random.Philox(key=int.from_bytes(digest, "little"))
    assert completion_uniforms(**NAMES, length=9).tolist() == np.random.Generator(philox).random(9).tolist()


@pytest.mark.parametrize(
    "change",
    [{"seed": 4}, {"seed": -3}, {"stream": "eval"}, {"rollout": 6}, {"row_id": "row-8"}, {"sample_index": 3}],
    ids=str,
)
def test_a_change_in_any_name_changes_every_number(change: dict[str, Any]) -> None:
    before, after = completion_uniforms(**NAMES, length=50), completion_uniforms(**(NAMES | change), length=50)
    assert not (before == after).any()


def test_names_that_look_alike_when_joined_are_told_apart() -> None:
    alike = [
        {"stream": "a", "row_id": "b:c"},
        {"stream": "a:b", "row_id": "c"},
        {"stream": "a:b:c", "row_id": ""},
        {"stream": "", "row_id": "a:b:c"},
        {"rollout": 1, "sample_index": 12, "stream": "a"},
        {"rollout": 11, "sample_index": 2, "stream": "a"},
    ]
    drawn = {tuple(completion_uniforms(**(NAMES | names), length=2)) for names in alike}
    assert len(drawn) == len(alike)


def test_a_longer_sequence_continues_a_shorter_one() -> None:
    longer = completion_uniforms(**NAMES, length=40)
    for length in (0, 1, 4, 5, 39):
        assert completion_uniforms(**NAMES, length=length).tolist() == longer[:length].tolist()


def test_a_batch_holds_each_completion_as_if_it_were_alone() -> None:
    samples = [("a", 0), ("b", 7), ("a", 1), ("é\ud800", 0)]
    batch = batch_uniforms(1, "eval", 2, samples, 6)
    for row, (row_id, index) in zip(batch, samples, strict=True):
        assert row.tolist() == completion_uniforms(1, "eval", 2, row_id, index, 6).tolist()


def test_numbers_over_many_names_are_uniform_and_unrelated_to_their_neighbours() -> None:
    samples = [(f"row-{row}", index) for row in range(100) for index in range(40)]
    numbers = batch_uniforms(0, "train", 0, samples, 5)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    # 99.9 % points: chi-square with 19 degrees of freedom 43.8; a correlation of 4000 pairs 0.052
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 43.8
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.052
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.052
