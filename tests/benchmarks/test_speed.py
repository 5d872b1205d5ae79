"""The quick form of the benchmark for real: at least half of every target, so that what becomes slow fails."""

from pathlib import Path

import pytest

from benchmarks.catalogue import Catalogue, Form
from benchmarks.results import results
from benchmarks.schedule import Store, measure
from benchmarks.targets import targets_of


class Failures:
    """A watcher that keeps what went wrong."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, label: str) -> None: ...

    def done(self, label: str, seconds: float | None) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", [measurement.name for measurement in Catalogue().chosen(Form.quick, [])])
def test_half_of_each_target_is_reached(name: str, tmp_path: Path) -> None:
    watcher = Failures()
    outcomes = measure(Catalogue().chosen(Form.quick, [name]), Form.quick, Store(tmp_path), watcher)
    assert watcher.said == []
    ratios = results(outcomes, {}, Form.quick)["ratios"]
    for target in targets_of(name):
        assert ratios[target.key] >= target.at_least / 2, (target, ratios)
