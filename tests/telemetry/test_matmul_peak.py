"""The rate of matrix products: measured once, kept under what it belongs to, and only ever raised."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from maxent_grpo.telemetry import matmul_peak
from maxent_grpo.telemetry.matmul_peak import PEAKS_FILE, keep_peak, kept_peak, known_peak, machine_key

CPU = torch.device("cpu")


def test_a_peak_is_measured_once_and_said_to_be(tmp_path: Path) -> None:
    with patch.object(matmul_peak, "BRIEFLY", 0.02):
        peak, note = known_peak("float32", CPU, tmp_path / "cache")
        assert peak > 0
        assert note.startswith(f"matrix products of float32: {peak:,.1f} GFLOP/s, measured for 0.02 s")
        assert known_peak("float32", CPU, tmp_path / "cache") == (peak, "")
        other, note = known_peak("float64", CPU, tmp_path / "cache")
        assert note
    assert kept_peak(machine_key("float64", CPU), tmp_path / "cache") == other
    assert kept_peak(machine_key("float32", CPU), tmp_path / "cache") == peak


def test_a_busy_machine_does_not_lower_a_peak(tmp_path: Path) -> None:
    assert keep_peak("here", 50.0, tmp_path) == 50.0
    assert keep_peak("here", 20.0, tmp_path) == 50.0
    assert keep_peak("there", 10.0, tmp_path) == 10.0
    assert keep_peak("here", 60.0, tmp_path) == 60.0
    assert (kept_peak("here", tmp_path), kept_peak("there", tmp_path)) == (60.0, 10.0)
    assert [path.name for path in tmp_path.iterdir()] == [PEAKS_FILE]


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"here": "fast"}', '{"here": 0}', "\xff"])
def test_a_damaged_file_keeps_nothing_and_is_replaced(content: str, tmp_path: Path) -> None:
    (tmp_path / PEAKS_FILE).write_bytes(content.encode("latin-1"))
    assert kept_peak("here", tmp_path) is None
    assert keep_peak("here", 5.0, tmp_path) == 5.0
    assert kept_peak("here", tmp_path) == 5.0


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert keep_peak("here", 5.0, tmp_path / "file") == 5.0
    assert kept_peak("here", tmp_path / "file") is None


def test_a_peak_belongs_to_threads_and_type() -> None:
    key = machine_key("float32", CPU)
    assert torch.__version__ in key
    assert machine_key("bfloat16", CPU) != key
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert machine_key("float32", CPU) != key
    finally:
        torch.set_num_threads(threads)
