"""The command line as a user meets it, up to the point where training would begin.

Most of it is called in this process; the interpreter itself starts where a status, a stream or an import is what counts.
"""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from support.called import Said, called
from support.imports import HEAVY, imported

from maxent_grpo.__main__ import main as package
from maxent_grpo.commands.help import claim_of
from maxent_grpo.commands.train import main
from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.declared import groups, options
from maxent_grpo.config.store import OPTIONS

REPOSITORY = config_directory().parent


Train = Callable[..., Said]


def train_as_typed(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "train.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Train:
    """The command in this process; what it sets for Hydra is put back."""

    def call(*arguments: str, cwd: Path | None = None) -> Said:
        monkeypatch.setattr(sys, "argv", sys.argv)
        for name in ("OMP_WAIT_POLICY", "HYDRA_FULL_ERROR"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        if cwd is not None:
            monkeypatch.chdir(cwd)
        return called(main, arguments, capsys)

    return call


def test_all_problems_are_printed_at_once_without_a_traceback(tmp_path: Path) -> None:
    done = train_as_typed("+scoring.clipping.clip_rnge=0.3", "+sede=3", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "train.py: 2 configuration problems:\n"
        "  - scoring.clipping.clip_rnge: no such setting; did you mean scoring.clipping.clip_range?\n"
        "  - sede: no such setting; did you mean seed?\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_contradictions_are_printed_the_same_way(train: Train) -> None:
    done = train("scoring=maxent", "scoring.weighting.tau=0", "generation.num_generations=1")
    assert done.returncode == 2
    assert done.stderr == (
        "train.py: 2 configuration problems:\n"
        "  - scoring=maxent needs scoring.weighting.tau + scoring.weighting.beta > 0 (got 0.0 + 0.0): the weight exponent "
        "1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective\n"
        "  - generation.num_generations=1 gives every completion the advantage 0: use at least 2\n"
    )


def test_a_mistake_in_a_preset_names_the_file(train: Train, tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\nscoring:\n  clipping:\n    clip_rnge: 0.3\n")
    done = train("--config-dir", str(tmp_path), "experiment=mine")
    assert done.returncode == 2
    assert done.stderr == (
        "train.py: 1 configuration problem:\n"
        f"  - {file}: scoring.clipping.clip_rnge: no such setting; did you mean scoring.clipping.clip_range?\n"
    )


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can make another")
@pytest.mark.parametrize("folder", ["/proc/none", "/proc/none/inner"])
def test_a_folder_that_cannot_be_made_is_told_without_a_traceback(train: Train, folder: str) -> None:
    done = train(f"run.dir={folder}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"  - run.dir={folder}: cannot be made (No such file or directory); name another folder"
    )


def test_another_root_configuration_is_refused_in_one_message(train: Train, tmp_path: Path) -> None:
    done = train("--config-name", "misspelt", "--config-path", str(tmp_path), "-m", "seed=1,2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "train.py: 2 configuration problems:\n"
        "  - --config-name misspelt: every run starts from conf/config.yaml; a preset is chosen with experiment=NAME\n"
        f"  - --config-path {tmp_path}: every run starts from conf/config.yaml; presets of your own are found with "
        "--config-dir DIR and chosen with experiment=NAME, the file being DIR/experiment/NAME.yaml\n"
    )
    near = train("--config-name=tiny_grp", "--cfg", "job")
    assert near.returncode == 2
    assert near.stderr.splitlines()[1].endswith("; did you mean experiment=tiny_grpo?")
    assert train("--config-name", "config", "--cfg", "job", "-p", "seed").returncode == 0


def test_cfg_prints_the_composed_settings(train: Train, tmp_path: Path) -> None:
    done = train("--cfg", "job", "--resolve", "-p", "scoring.clipping", "scoring.clipping.clip_range=0.3", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "clip_range: 0.3\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_cfg_shows_a_contradictory_configuration_but_not_an_undeclared_one(train: Train) -> None:
    assert train("--cfg", "job", "-p", "generation", "generation.num_generations=1").returncode == 0
    done = train("--cfg", "job", "+sede=3")
    assert (done.returncode, done.stderr.splitlines()[1]) == (2, "  - sede: no such setting; did you mean seed?")


def test_info_prints_how_the_settings_were_put_together(train: Train) -> None:
    done = train("--info", "defaults")
    assert done.returncode == 0
    assert "scoring/maxent" in done.stdout


def test_help_lists_every_group_option_and_preset() -> None:
    command = [sys.executable, "-X", "importtime", str(REPOSITORY / "train.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "omegaconf" in imported(done.stderr)
    assert HEAVY.isdisjoint(imported(done.stderr))
    assert done.returncode == 0
    assert all(line.startswith("import time:") for line in done.stderr.splitlines())
    lines = done.stdout.splitlines()
    assert set(groups()) <= set(lines)
    for _, name, node in OPTIONS:
        meaning = (node.__doc__ or "").splitlines()[0]
        assert any(line[3:].startswith(f"{name} ") and line.endswith(meaning) for line in lines)
    for preset in (REPOSITORY / "conf" / "experiment").glob("*.yaml"):
        assert any(line.strip().startswith(f"{preset.stem} ") for line in lines)


def test_the_version_is_this_packages_and_not_hydras(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    said = train("--version").stdout
    assert said.splitlines() == [f"{name} {version(name)}" for name in ("maxent-grpo", "torch", "transformers")]
    package(["--version"])
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("preset", "claim"),
    [
        (
            "# @package _global_\n# claim: it learns,\n# and forgets nothing\n#\n# by way of\nmodel: {}\n",
            "it learns, and forgets nothing",
        ),
        ("# claim: it learns\nmodel: {}\n", "it learns"),
        ("# claim:", ""),
        ("model: {}\n", ""),
        ("", ""),
    ],
)
def test_help_gives_the_claim_of_a_preset_where_it_states_one(preset: str, claim: str) -> None:
    assert claim_of(preset) == claim


def test_a_sweep_of_bad_jobs_names_each_and_fails(tmp_path: Path) -> None:
    done = train_as_typed("-m", "scoring=bogus,maxnt", "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "train.py: 2 of 2 jobs failed:\n"
        "  - scoring=bogus\n"
        f"      scoring=bogus: no such option; scoring has {', '.join(options('scoring'))}\n"
        "  - scoring=maxnt\n"
        f"      scoring=maxnt: no such option; scoring has {', '.join(options('scoring'))}; did you mean scoring=maxent?\n"
    )


@pytest.mark.parametrize("arguments", [("--help",), ()])
def test_the_package_lists_its_commands(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    done = called(package, arguments, capsys)
    assert done.returncode == 0
    assert "config-docs" in done.stdout
    assert "train " in done.stdout


def test_the_package_is_run_by_its_name() -> None:
    command = [sys.executable, "-m", "maxent_grpo", "metrics-docs", "--check"]
    assert subprocess.run(command, capture_output=True, check=False, cwd=REPOSITORY).returncode == 0


@pytest.mark.parametrize("docs", ["config-docs", "metrics-docs"])
def test_docs_are_written_and_checked(tmp_path: Path, docs: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (docs, "--output", str(tmp_path / "docs.md"))
    missing = called(package, (*arguments, "--check"), capsys)
    assert missing.returncode == 1
    assert missing.stderr == f"{tmp_path}/docs.md is out of date: run python -m maxent_grpo {docs}\n"
    assert called(package, arguments, capsys).returncode == 0
    assert called(package, (*arguments, "--check"), capsys).returncode == 0
