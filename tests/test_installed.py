"""A wheel carries everything, and what it installs trains in a folder that knows nothing of the checkout."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from support.imports import HEAVY, imported

from maxent_grpo.config.compose import config_directory

ROOT = config_directory().parent
SOURCES = ("maxent_grpo", "conf", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "train.py")
SMALL = (
    "data.num_train=12",
    "data.num_eval=4",
    "generation.num_generations=4",
    "optimization.prompts_per_step=4",
    "optimization.total_training_steps=2",
    "optimization.warmup_steps=0",
    "model.num_layers=1",
    "model.warm_start.enabled=false",
    "evaluation.enabled=false",
    "logging.report=false",
)


def done(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command without what this process was told of the checkout."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**own, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing of an earlier build is in it and nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, source / name)
    built = done(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"),
        *("-w", folder, source),
        cwd=folder,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


def environment_with(folder: Path, *what: str | Path) -> Path:
    """The bin folder of an environment in which pip installed something, beside the dependencies of the running one."""
    venv.create(folder, with_pip=False, symlinks=True)
    scripts = folder / "bin"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # a path of its own, below which no file of an editable install of the checkout is read
    (own / "dependencies.pth").write_text(
        "\n".join(path for path in site.getsitepackages() if Path(path).is_dir()) + "\n"
    )
    added = done(
        *(sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--no-deps", "--no-index"),
        *("--no-build-isolation", "--force-reinstall", *what),
        cwd=folder,
    )
    assert added.returncode == 0, added.stderr
    return scripts


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel."""
    return environment_with(tmp_path_factory.mktemp("installed") / "env", wheel)


def test_the_wheel_holds_every_module_preset_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        [licence] = [name for name in names if name.endswith("/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    package = [path for path in (ROOT / "maxent_grpo").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    presets = [path for path in (ROOT / "conf").rglob("*") if path.is_file()]
    assert presets
    expected = {path.relative_to(ROOT).as_posix() for path in package}
    expected |= {f"maxent_grpo/{path.relative_to(ROOT).as_posix()}" for path in presets}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "License-Expression: Apache-2.0" in metadata
    assert "Author: The maxent_grpo authors" in metadata
    assert scripts.split("\n")[:2] == ["[console_scripts]", "maxent-grpo = maxent_grpo.commands.train:main"]


def test_an_installed_package_trains_far_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = done(installed / "python", "-c", "import maxent_grpo; print(maxent_grpo.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent), where.stderr
    preset = tmp_path / "mine" / "experiment" / "few.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ndefaults:\n  - override /scoring: grpo\nseed: 11\n")
    trained = done(installed / "maxent-grpo", "--config-dir", "mine", "experiment=few", *SMALL, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    [run_dir] = [path for path in (tmp_path / "outputs").glob("*/*") if path.parent.name[0] != "."]
    assert f"maxent-grpo checkpoint.resume_from={run_dir}" in trained.stdout
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert "seed: 11" in (run_dir / "config.yaml").read_text()
    code = json.loads((run_dir / "environment.json").read_text())["code"]
    assert code["is_checkout"] is False
    assert not (run_dir / "code.diff").exists()


def test_the_installed_commands_explain_themselves(installed: Path, tmp_path: Path) -> None:
    help_ = done(installed / "python", "-X", "importtime", installed / "maxent-grpo", "--help", cwd=tmp_path)
    assert help_.returncode == 0, help_.stderr
    assert HEAVY.isdisjoint(imported(help_.stderr))
    assert "usage: maxent-grpo [group=option ...]" in help_.stdout
    assert "tiny_dr_grpo" in help_.stdout
    wrong = done(installed / "maxent-grpo", "sede=3", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("maxent-grpo: 1 configuration problem:\n  - sede: no such setting")
    explained = done(installed / "python", "-m", "maxent_grpo", "explain", "experiment=tiny_dr_grpo", cwd=tmp_path)
    assert explained.returncode == 0, explained.stderr
    assert "(conf/experiment/tiny_dr_grpo.yaml)" in explained.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_source_archive_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = wheel.parent / "source"
    built = done(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", tmp_path),
        _source_archive(source, tmp_path),
        cwd=tmp_path,
    )
    assert built.returncode == 0, built.stderr
    [again] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {name: one.read(name) for name in one.namelist() if "dist-info" not in name} == {
            name: other.read(name) for name in other.namelist() if "dist-info" not in name
        }


def _source_archive(source: Path, folder: Path) -> Path:
    code = "import setuptools.build_meta as build, sys; build.build_sdist(sys.argv[1])"
    made = done(sys.executable, "-c", code, folder, cwd=source)
    assert made.returncode == 0, made.stderr
    [archive] = folder.glob("*.tar.gz")
    return archive


@pytest.mark.slow
def test_an_editable_install_reads_conf_where_it_stands(wheel: Path, tmp_path: Path) -> None:
    source = shutil.copytree(wheel.parent / "source", tmp_path / "source", ignore=shutil.ignore_patterns("build"))
    scripts = environment_with(tmp_path / "env", "-e", source)
    assert not list((tmp_path / "env").rglob("*.yaml"))
    code = "from maxent_grpo.config.presets import config_directory; print(config_directory())"
    shown = done(scripts / "python", "-c", code, cwd=tmp_path)
    assert Path(shown.stdout.strip()) == source.resolve() / "conf", shown.stderr
    helped = done(scripts / "maxent-grpo", "--cfg", "job", "experiment=tiny_grpo", "-p", "seed", cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
