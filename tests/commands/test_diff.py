import shutil
from pathlib import Path

import pytest
from support.runs import train

from maxent_grpo.commands import diff as command
from maxent_grpo.report.difference import changed_settings, changed_versions, outcomes, parting
from maxent_grpo.training.metric_table import UNREPRODUCED

SHORT = ("evaluation.num_samples=4", "evaluation.ks=[1]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run, the same for longer with evaluations between, and one of another method."""
    folder = tmp_path_factory.mktemp("diff")
    train(folder / "a", *SHORT)
    train(folder / "longer", *SHORT, "optimization.total_training_steps=3")
    train(folder / "other", *SHORT, "scoring=dr_grpo", "seed=1", "+reward.terms.exact=0.5")
    return folder


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    command.main([str(argument) for argument in arguments])
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_only_what_differs_is_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, runs / "a", runs / "other")
    table = lines[lines.index("settings A B") + 1 : lines.index("newest values A, step 2 B, step 2 B - A") - 1]
    assert table == [
        "scoring= maxent dr_grpo",
        "scoring.weighting.listwise_coef 0.3 0.0",
        "seed 0 1",
        "reward.terms.exact (not there) 0.5",
    ]
    assert lines[-1].startswith("identical up to step 0; different from step 1 on: ")
    assert lines[:2] == [f"A {runs / 'a'}", f"B {runs / 'other'}"]


def test_the_outcome_stands_side_by_side(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {outcome.name: outcome for outcome in outcomes(runs / "a", runs / "other", ignored=UNREPRODUCED)}
    reward = found["reward/mean"]
    assert reward.left is not None
    assert reward.right is not None
    assert reward.difference == reward.right[1] - reward.left[1]
    assert next(iter(found)) == "eval/pass@1"
    lines = shown(capsys, runs / "a", runs / "other")
    expected = f"reward/mean {reward.left[1]:.5g} {reward.right[1]:.5g} {reward.difference:+.3g}"
    assert expected in lines
    assert not any(line.startswith("data/") for line in lines)
    everything = shown(capsys, "--all", runs / "a", runs / "other")
    assert any(line.startswith("data/input_tokens_seen ") for line in everything)
    assert not any(line.startswith(UNREPRODUCED) for line in everything)


def test_a_longer_run_is_identical_as_far_as_the_shorter_one_goes(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, runs / "a", runs / "longer")
    assert "optimization.total_training_steps 2 3" in lines
    assert lines[-1] == "identical up to step 2"
    assert shown(capsys, runs / "a", runs / "a")[3] == "no setting differs"


def test_the_first_difference_is_exact() -> None:
    left = [{"step": 1, "x": 0.1, "time/step_seconds": 1.0}, {"step": 2, "x": 0.3, "y": 1}, {"step": 3, "x": 9.0}]
    right = [{"step": 1, "x": 0.1, "time/step_seconds": 2.0}, {"step": 2, "x": 0.1 + 0.2, "eval/a": 1}]
    found = parting(left, right, ignored=UNREPRODUCED)
    assert (found.identical_to, found.first, found.names) == (1, 2, ("x", "y"))
    assert parting(left, [], ignored=()).identical_to is None
    assert parting(left[:1], right[:1], ignored=()).names == ("time/step_seconds",)


def test_other_versions_are_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "a", copy)
    assert changed_versions(runs / "a", copy) == []
    text = (copy / "versions.json").read_text()
    (copy / "versions.json").write_text(text.replace('"maxent-grpo": "', '"maxent-grpo": "9'))
    [change] = changed_versions(runs / "a", copy) or []
    assert (change.key, change.right) == ("maxent-grpo", f"9{change.left}")
    assert f"maxent-grpo {change.left} {change.right}" in shown(capsys, runs / "a", copy)
    (copy / "versions.json").unlink()
    assert "versions: not recorded by both runs" in shown(capsys, runs / "a", copy)
    assert changed_settings(runs / "a", copy) == []


def test_runs_without_a_step_differ_in_their_settings(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "other"):
        shutil.copytree(runs / name, tmp_path / name)
        (tmp_path / name / "metrics.jsonl").write_text("")
    lines = shown(capsys, tmp_path / "a", tmp_path / "other")
    assert any(line.startswith("seed") for line in lines)
    assert "no metrics" in lines


def test_a_folder_that_is_no_run_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([str(runs / "a"), str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"diff: {tmp_path} is not a run directory (no config.yaml, no metrics.jsonl)\n"


def test_a_terminal_gets_a_drawn_table(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    lines = shown(capsys, runs / "a", runs / "other")
    assert any("━" in line for line in lines)
    assert any("scoring.weighting.listwise_coef" in line and "0.3" in line for line in lines)
