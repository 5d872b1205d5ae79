"""Memory that a process has had."""

import subprocess
import sys

from maxent_grpo.telemetry.resident import peak_resident_bytes

MIB = 2**20
SAYS_PEAK = "from maxent_grpo.telemetry.resident import peak_resident_bytes; print(peak_resident_bytes())"
STARTS_IT = f"""
import subprocess, sys
kept = b"x" * (400 * {MIB})
print(subprocess.run([sys.executable, "-c", {SAYS_PEAK!r}], capture_output=True, text=True, check=True).stdout)
"""


def test_the_peak_stays_when_memory_is_given_back() -> None:
    before = peak_resident_bytes()
    assert len(b"x" * (before + 64 * MIB)) > 0
    assert peak_resident_bytes() >= before + 64 * MIB


def test_the_peak_is_not_that_of_the_process_which_started_this_one() -> None:
    """A service, a notebook or a test run with much in memory starts a training run."""
    said = subprocess.run([sys.executable, "-c", STARTS_IT], capture_output=True, text=True, check=True).stdout
    assert 0 < int(said) < 200 * MIB
