"""Makes ``tests/support`` importable, and keeps the suite quick beside other work: one thread, no waiting for the disk."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COSTLIEST = (
    *("with_vllm/test_server.py", "training/test_knobs.py", "with_vllm/test_colocate.py", "test_train_end_to_end.py"),
    *("distributed/test_step_equal.py", "distributed/test_whole_runs.py", "distributed/test_failures.py"),
    *("training/test_killed.py", "commands/test_sweep_resume.py", "test_same_command_twice.py", "test_installed.py"),
    *("commands/test_sweep_search.py", "commands/test_sweep_launchers.py", "training/test_rollouts_ahead.py"),
    *(
        "training/test_resume_exact.py",
        "config/test_compose.py",
        "report/test_browser.py",
        "telemetry/test_trackers.py",
    ),
    *("commands/test_evaluate_command.py", "training/test_dynamic_sampling.py", "training/generation/test_local.py"),
    *("rewards/test_math_process.py", "training/test_metric_names.py", "training/preview/test_preview.py"),
    *("training/test_controller_runs.py", "models/test_architectures.py", "training/evaluation/test_evaluate.py"),
    *("commands/test_doctor.py", "training/test_api_alive.py", "training/preview/test_out_of_reach.py"),
)
"""Files that take five seconds and more, first those that take longest: none of them is begun when all else is done."""

sys.path.insert(0, str(HERE))
# for the processes that tests start; two of theirs share two cores already
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the costliest files first; ``--no-loadscope-reorder`` hands files to workers in this order."""
    for name in COSTLIEST:
        assert (HERE / name).is_file(), f"tests/conftest.py names tests/{name}, which is not there"
    places = {HERE / name: place for place, name in enumerate(COSTLIEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))  # the order of all else stays


def pytest_collection_finish() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture
def no_hub_and_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub can be reached, nothing of it is kept here, and torch sees no GPU."""
    import torch
    from datasets import config as datasets_config
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets_config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets_config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="session", autouse=True)
def files_need_not_outlive_the_machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leaves out ``os.fsync`` in the short form.

    A small run asks for it some thirty times, which on a usual disk takes as long as all that it computes. What it protects
    from is a machine that stops; a process that is killed, as in the tests of checkpoints, loses nothing that it has written.
    """
    if "not slow" not in request.config.option.markexpr:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
