"""The quick form of the benchmark for real: at least half of every target, so that what becomes slow fails."""

from pathlib import Path

import pytest
from support.bench_watch import KeepsSaid

from benchmarks.catalogue import Catalogue, Form
from benchmarks.results import results
from benchmarks.schedule import Store, measure
from benchmarks.targets import targets_of


@pytest.mark.slow
@pytest.mark.parametrize("name", [measurement.name for measurement in Catalogue().chosen(Form.quick, [])])
def test_half_of_each_target_is_reached(name: str, tmp_path: Path) -> None:
    watcher = KeepsSaid()
    outcomes = measure(Catalogue().chosen(Form.quick, [name]), Form.quick, Store(tmp_path), watcher)
    assert watcher.said == []
    ratios = results(outcomes, {}, Form.quick)["ratios"]
    for target in targets_of(name):
        assert ratios[target.key] >= target.at_least / 2, (target, ratios)
