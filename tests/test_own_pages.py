"""docs/add_a_task.md and docs/add_a_reward.md are executed block by block, in an empty folder, and do what they say."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.own_options import options_taken_back
from support.pages import REPOSITORY, Ran, execute, python_blocks

import maxent_grpo
from maxent_grpo.config.data import DataConfig
from maxent_grpo.config.declared import options
from maxent_grpo.errors import ConfigError
from maxent_grpo.tasks import build

PAGES = [REPOSITORY / "docs" / name for name in ("add_a_task.md", "add_a_reward.md")]


@pytest.fixture
def own_names() -> Iterator[None]:
    """Takes added options, tasks and modules back."""
    builders = dict(build._BUILDERS)
    with options_taken_back():
        yield
    build._BUILDERS.clear()
    build._BUILDERS.update(builders)
    for name in ("reverse", "my_rewards"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_blocks_print_what_the_page_shows(
    page: Path, own_names: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def printed(session: str) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(session, page.name, "exec"), {"__name__": "page"})
        return output.getvalue()

    blocks = python_blocks(page, tmp_path, printed)
    assert len(blocks) >= 2
    for expected, shown in blocks:
        assert expected
        assert shown == expected


@pytest.fixture(scope="module", params=PAGES, ids=lambda page: page.stem)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return execute(request.param, tmp_path_factory.mktemp("page"))


@pytest.mark.slow
def test_the_commands_of_the_page_train(ran: Ran) -> None:
    assert all(printed == expected for expected, printed in ran.outputs)
    lines = [json.loads(line) for line in (ran.folder / "first" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 2
    texts = [json.loads(line) for line in (ran.folder / "first" / "completions.jsonl").read_text().splitlines()]
    if (ran.folder / "reverse.py").exists():
        assert "data: reverse" in (ran.folder / "first" / "run.log").read_text()
        assert "eval/pass@1" in lines[-1]
        assert {text["prompt"].count("<|user|>") for text in texts} == {1}
    else:
        assert {"reward/term/varied", "reward/extra/share_empty"} <= lines[-1].keys()
        for text in texts:
            said = text["completion"]
            assert text["rewards"]["varied"] == (pytest.approx(len(set(said)) / len(said)) if said else None)


class Mine(DataConfig):
    """Problems by another name."""


def test_a_task_is_made_by_its_builder_and_cannot_take_a_name(own_names: None) -> None:
    made: list[DataConfig] = []

    def make(config: DataConfig) -> build.Task:
        made.append(config)
        raise LookupError("made")

    maxent_grpo.add_task("mine", Mine, make)
    assert options("data")["mine"] is Mine
    with pytest.raises(LookupError, match="made"):
        build.build_task(Mine())
    assert isinstance(made[0], Mine)
    with pytest.raises(ConfigError, match="data=coloring is ColoringDataConfig already; choose another name"):
        maxent_grpo.add_task("coloring", Mine, make)
