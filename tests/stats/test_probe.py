"""The linear probe: what is separable is told apart, what is not is guessed."""

import numpy as np
import pytest

from maxent_grpo.stats import probe
from maxent_grpo.stats.probe import probe_accuracy


def classes(num_examples: int, num_classes: int) -> tuple[list[int], list[int]]:
    """Labels in turn, and the fold of each example: all classes of a prompt together."""
    labels = [n % num_classes for n in range(num_examples)]
    return labels, [(n // num_classes) % 2 for n in range(num_examples)]


@pytest.mark.parametrize("width", [8, 300])
def test_states_that_a_line_separates_are_all_told_apart(width: int) -> None:
    rng = np.random.default_rng(0)
    labels, fold = classes(120, 4)
    features = 0.3 * rng.normal(size=(120, width))
    features[np.arange(120), labels] += 5.0
    assert probe_accuracy(features, labels, fold) == 1.0


def test_shuffled_labels_are_guessed_about_as_often_as_by_chance() -> None:
    rng = np.random.default_rng(1)
    labels, fold = classes(1200, 4)
    features = rng.normal(size=(1200, 6))
    features[np.arange(1200), labels] += 5.0
    shuffled = rng.permutation(labels).tolist()
    assert abs(probe_accuracy(features, shuffled, fold) - 0.25) < 0.06
    assert probe_accuracy(features, labels, fold) == 1.0


def test_what_was_only_learnt_by_heart_does_not_count() -> None:
    """Noise of more dimensions than examples fits any labels, and tells nothing about others."""
    rng = np.random.default_rng(2)
    labels, fold = classes(400, 2)
    assert abs(probe_accuracy(rng.normal(size=(400, 600)), labels, fold) - 0.5) < 0.1


def test_both_forms_of_the_solution_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    labels, fold = classes(60, 3)
    features = rng.normal(size=(60, 20))
    features[np.arange(60), labels] += 2.0
    narrow = probe_accuracy(features, labels, fold)
    # three copies of every column make 60 unknowns instead of 20, and products three times as large
    monkeypatch.setattr(probe, "RIDGE", 3 * probe.RIDGE)
    assert probe_accuracy(np.concatenate([features] * 3, axis=1), labels, fold) == narrow
    assert 0.5 < narrow < 1.0


@pytest.mark.parametrize(
    ("features", "fold", "complaint"),
    [
        (np.zeros((2, 3)), [0, 0], "one fold leaves nothing"),
        (np.full((2, 3), np.nan), [0, 1], "NaN or infinities"),
        (np.zeros((3, 3)), [0, 1], "not aligned"),
    ],
)
def test_what_cannot_be_probed_is_refused(features: np.ndarray, fold: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        probe_accuracy(features, [0, 1], fold)
