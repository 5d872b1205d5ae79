"""One run in a directory, and a lock that ends with its holder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maxent_grpo import folder_lock
from maxent_grpo.errors import ConfigError
from maxent_grpo.folder_lock import LOCK_FILE, lock_holder, locked

HOLD = """
import sys, time
from pathlib import Path
from maxent_grpo.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "PATIENCE", 0.1)


def test_a_lock_is_held_once_and_gone_afterwards(tmp_path: Path) -> None:
    with locked(tmp_path):
        holder = lock_holder(tmp_path)
        assert holder is not None
        assert f"process {os.getpid()} on " in holder
        with pytest.raises(ConfigError, match=r"a run is going on there \(process"), locked(tmp_path):
            pass
        assert lock_holder(tmp_path) == holder
    assert lock_holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        pass


def test_the_lock_of_a_process_that_was_killed_is_free_whoever_has_its_number(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        said = lock_holder(tmp_path)
        assert said is not None
        assert said.startswith(f"process {holder.pid} on ")
        with pytest.raises(ConfigError, match=f"process {holder.pid} on "), locked(tmp_path):
            pass
        holder.kill()
    file = tmp_path / LOCK_FILE
    file.write_text(file.read_text().replace(str(holder.pid), str(os.getpid())))
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        assert lock_holder(tmp_path) is not None


def test_looking_leaves_nothing_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    assert lock_holder(tmp_path / "nowhere") is None
    assert list(tmp_path.iterdir()) == []
