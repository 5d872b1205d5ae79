"""Options of one's own in commands that did not add them: who added them is written down, said, and imported when asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.own_options import options_taken_back

from maxent_grpo.__main__ import main
from maxent_grpo.config import own_modules
from maxent_grpo.config.declared import options
from maxent_grpo.config.installed import program, train_command
from maxent_grpo.config.load import load_config
from maxent_grpo.config.recorded import recorded_config
from maxent_grpo.config.resumed import with_run_overrides, write_overrides
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.report.read import CONFIG_FILE, read_modules, read_options
from maxent_grpo.report.record import reproduce_command
from maxent_grpo.training.resume import describe_run

MODULE = "a_method_of_ones_own"
TEXT = """
from dataclasses import dataclass

import maxent_grpo
from maxent_grpo.config.scoring import DrGrpoScoringConfig


@dataclass(slots=True)
class MineScoringConfig(DrGrpoScoringConfig):
    entropy_coef: float = 0.125


maxent_grpo.add_option("scoring", "mine", MineScoringConfig)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module of one's own is."""
    (tmp_path / f"{MODULE}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@contextmanager
def forgotten() -> Iterator[None]:
    """After the block this process is like one that never imported the module."""
    with options_taken_back():
        yield
    sys.modules.pop(MODULE, None)


@pytest.fixture
def run_dir(folder: Path) -> Path:
    """What a run with the option leaves in its directory at its start, read by a process that does not know the option."""
    path = folder / "run"
    path.mkdir()
    with forgotten():
        own_modules.import_modules([MODULE])
        config = load_config(["scoring=mine"])
        assert config.scoring.entropy_coef == 0.125
        describe_run(config, path, ["scoring=mine"])
    return path


def test_a_run_writes_down_who_added_its_options(run_dir: Path) -> None:
    assert read_modules(run_dir) == [MODULE]
    assert read_options(run_dir)["scoring"] == "mine"
    assert reproduce_command(["scoring=mine", "run.dir=x"], read_modules(run_dir)) == (
        f"python -m maxent_grpo --import {MODULE} train scoring=mine"
    )


def test_a_run_without_such_options_says_nothing_of_modules(tmp_path: Path) -> None:
    describe_run(load_config(["scoring=maxent"]), tmp_path, ["scoring=maxent"])
    assert read_modules(tmp_path) == []
    assert "# modules" not in (tmp_path / CONFIG_FILE).read_text()
    for modules in ([], ["__main__"]):  # nothing that another process could import
        assert reproduce_command(["scoring=maxent"], modules) == "python train.py scoring=maxent"


def test_a_command_that_does_not_know_the_option_says_how_it_would(run_dir: Path) -> None:
    how = (
        f"{run_dir} was made with scoring=mine, which is no option here: module {MODULE} added it; write "
        f"`python -m maxent_grpo --import {MODULE} COMMAND ...` where that can be imported"
    )
    with pytest.raises(DataError) as caught:
        recorded_config(run_dir, {})
    assert str(caught.value) == how
    for place in (run_dir, run_dir / "checkpoints" / "step_1"):
        with pytest.raises(ConfigError) as refused:
            with_run_overrides([f"checkpoint.resume_from={place}"])
        assert refused.value.problems == [f"checkpoint.resume_from={place}: {how}"]
    # a name in quotes is the same name; another method in its place is the user's own decision
    write_overrides(run_dir, ["scoring='grpo'", "data='coloring'", "scoring={kl_beta: 0.1}"])
    assert len(with_run_overrides([f"checkpoint.resume_from={run_dir}"])) == 4
    assert with_run_overrides([f"checkpoint.resume_from={run_dir}", "scoring=grpo"])[-1] == "scoring=grpo"


def test_a_command_that_is_told_to_import_the_module_knows_the_option(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--import", MODULE], [f"--import={MODULE}"]):
        assert train_command() == "python train.py"
        with forgotten():
            main([*arguments, "explain", "scoring=mine"])
            assert "0.125" in capsys.readouterr().out
            assert recorded_config(run_dir, {}).scoring.entropy_coef == 0.125
            assert train_command() == f"python -m maxent_grpo --import {MODULE} train"
            assert program() == "train.py"


def test_a_module_that_is_not_there_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--import", "no_such_module", "--import", "nor.this", "doctor"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"  - --import {name}: there is no module {name} to import; start the command in its folder, or install it"
        for name in ("no_such_module", "nor.this")
    ]


def test_what_is_no_name_of_a_module_is_told_so_and_nothing_is_imported(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        own_modules.import_modules(["", f"{MODULE}.py", "__main__"])
    assert caught.value.problems == [
        f"--import {name}: is not the name of a module; write it as in an import, without .py"
        for name in ("", f"{MODULE}.py", "__main__")
    ]
    assert MODULE not in sys.modules


def test_what_a_module_cannot_import_itself_is_not_hidden(folder: Path) -> None:
    (folder / f"{MODULE}.py").write_text("import nothing_of_that_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        own_modules.import_modules([MODULE])


def test_a_module_that_adds_nothing_when_imported_is_told_so(run_dir: Path, folder: Path) -> None:
    (folder / f"{MODULE}.py").write_text("")
    with forgotten():
        own_modules.import_modules([MODULE])
        assert "mine" not in options("scoring")
        with pytest.raises(
            DataError, match=f"module {MODULE} did not add it on being imported: call add_option at the"
        ):
            recorded_config(run_dir, {})


def test_a_script_is_named_by_its_file_and_a_notebook_has_none(tmp_path: Path) -> None:
    names = own_modules._name_of  # pyright: ignore[reportPrivateUsage]
    assert names({"__name__": "package.module", "__file__": "/x/package/module.py"}) == "package.module"
    assert names({"__name__": "__main__", "__file__": "/x/own.py", "__spec__": None}) == "own"
    assert names({"__name__": "__main__"}) == "__main__"
    assert own_modules.unknown_options(tmp_path, ["scoring=mine"], ["__main__"]).endswith(
        "a notebook or session added it; put the call of add_option in a module of its own and import that"
    )
