"""`python -m maxent_grpo doctor` as typed, and its judgements on numbers that this machine may not have."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path

import pytest
from support.called import Said

from maxent_grpo.commands.doctor import main
from maxent_grpo.commands.machine import (
    OPTIONAL,
    REQUIRED,
    Diagnosis,
    Problem,
    missing,
    others_at_work,
    slow_bfloat16,
    too_many_threads,
)
from maxent_grpo.config.compose import config_directory
from maxent_grpo.telemetry.hardware import cpu_quota, memory_limit, usable_cores

SECRET = "c0ffee" * 6 + "beef"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """The command's answer as text, typed, and as JSON, called here; with secrets in its environment, from an empty folder."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "netrc").write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    environment = {
        "WANDB_API_KEY": SECRET,
        "HF_TOKEN": SECRET,
        "WANDB_MODE": SECRET,
        "NETRC": str(folder / "netrc"),
        "HF_HOME": str(folder / "hub"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": str(config_directory().parent),
    }
    command = [sys.executable, "-m", "maxent_grpo", "doctor"]
    typed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, cwd=folder)
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        main(["--json"])
    done = {"text": Said(typed.returncode, typed.stdout, typed.stderr), "json": Said(0, out.getvalue(), err.getvalue())}
    left = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    assert left == ["netrc", "outputs/.cache/matmul_peaks.json"]
    peaks = json.loads((folder / left[1]).read_text())
    assert [name.split(", ")[-2] for name in peaks] == ["float32", "bfloat16"], "what a run compares its own speed with"
    return done


def test_every_part_is_in_the_json(spoken: dict[str, Said]) -> None:
    done = spoken["json"]
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == [field.name for field in fields(Diagnosis)]
    assert set(REQUIRED) | {"python", "maxent-grpo"} <= set(found["versions"])
    assert set(found["optional"]) == set(OPTIONAL)
    assert found["cores"]["logical"] == os.cpu_count()
    assert 0 < found["memory_gib"]["available"] <= found["memory_gib"]["total"]
    assert found["disk_gib"]["folder"].endswith("outputs")
    assert all(speed > 0 for speed in found["matmul_gflops"].values())
    assert set(found["matmul_gflops"]) == {"float32", "bfloat16"}
    assert found["threads"]["torch"] == 1
    assert found["threads"]["OMP_NUM_THREADS"] == "1"
    assert set(found["services"]) == {"chromium", "wandb", "vllm"}


def test_piped_text_is_plain_and_says_what_is_missing(spoken: dict[str, Said]) -> None:
    done = spoken["text"]
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "multiplying matrices of float32 for 1 s ...\n" in done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split() == ["python", sys.version.split()[0]] for line in lines)
    assert "disk [GiB]" in lines
    for package in OPTIONAL:
        assert any(line.startswith(f"  {package} ") and line.split()[1:] for line in lines)
    assert any("not there yet" in line for line in lines if "warm starts" in line)


def test_no_secret_of_the_environment_is_repeated(spoken: dict[str, Said]) -> None:
    for done in spoken.values():
        assert SECRET not in done.stdout + done.stderr


def test_limits_of_control_groups_are_read_in_both_versions(tmp_path: Path) -> None:
    second = tmp_path / "v2" / "slice" / "job"
    second.mkdir(parents=True)
    (second / "cpu.max").write_text("150000 100000\n")
    (second / "memory.max").write_text("max\n")
    (second.parent / "memory.max").write_text("1073741824\n")
    assert cpu_quota(tmp_path / "v2", "0::/slice/job") == 1.5
    assert memory_limit(tmp_path / "v2", "0::/slice/job") == 2**30
    first = tmp_path / "v1"
    for controller, file, text in (
        ("cpu", "cpu.cfs_quota_us", "-1"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("memory", "memory.limit_in_bytes", "9223372036854771712"),
    ):
        (first / controller).mkdir(parents=True, exist_ok=True)
        (first / controller / file).write_text(text)
    membership = "2:cpu,cpuacct:/\n1:memory:/\n0::/"
    assert cpu_quota(first, membership) is None
    assert memory_limit(first, membership) is None
    (first / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    assert cpu_quota(first, membership) == 0.5


def test_what_stands_in_the_way_is_said_with_what_to_do() -> None:
    assert usable_cores({"logical": 8, "affinity": 4, "cgroup_limit": 1.0}) == 1
    assert list(too_many_threads(2, 1.0)) == [
        Problem(
            "torch uses 2 threads but the process may use 1 core",
            "set OMP_NUM_THREADS=1 or run.num_threads=1",
        )
    ]
    assert list(too_many_threads(2, 2)) == []
    present = dict.fromkeys(REQUIRED, "1.0")
    assert list(missing(present)) == []
    assert list(missing(present | {"torch": None})) == [
        Problem("torch is not installed", "pip install torch", blocks=True)
    ]
    [slow] = slow_bfloat16({"float32": 100.0, "bfloat16": 0.5})
    assert slow.what == "bfloat16 runs at 0.5 GFLOP/s here and float32 at 100.0"
    assert list(slow_bfloat16({"float32": 100.0, "bfloat16": 60.0})) == []
    [busy] = others_at_work(3.2, 4)
    assert busy.what == "other programs kept 3.2 of 4 cores busy in the last minute, so the speeds above are too low"
    assert [*others_at_work(0.4, 4), *others_at_work(None, 4), *others_at_work(1.0, None)] == []
