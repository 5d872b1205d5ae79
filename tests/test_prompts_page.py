"""docs/prompts.md: every command gives the prompt that stands under it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from maxent_grpo.config.load import load_config
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.models.tokenizer import build_char_tokenizer
from maxent_grpo.tasks.build import build_task
from maxent_grpo.training.prepared_rows import render_all

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "prompts.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```shell\n(.*?)\n```\n\n```text\n(.*?)\n```", PAGE, flags=re.DOTALL)
FEW = ["data.num_train=16", "data.num_eval=4", "generation.max_prompt_len=200"]
"""Fewer rows, of which the first is the same; room for every prompt of the page."""


def test_the_page_shows_what_there_is() -> None:
    commands = [command for command, _ in SHOWN]
    assert len(commands) == PAGE.count("```shell") == 6
    settings = ("system_prompt", "prompt_template", "examples", "assistant_prefix", "chat")
    assert all(any(f"data.{name}=" in command for command in commands) for name in settings)


@pytest.mark.parametrize(("command", "prompt"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_gives_its_prompt(command: str, prompt: str) -> None:
    program, script, *overrides = shlex.split(command.replace("\\\n", " "))
    assert (program, script) == ("python", "train.py")
    config = load_config([*overrides, *FEW])
    loaded = LoadedModel(model=None, tokenizer=build_char_tokenizer())  # pyright: ignore[reportArgumentType]
    train, _ = render_all(config, build_task(config.data), loaded)
    assert train.rows[0]["prompt"] == prompt


def test_the_presets_are_read_as_they_stand(tmp_path: Path) -> None:
    texts = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "experiment").mkdir()
    prefix, variables = (tmp_path / "experiment" / f"{name}.yaml" for name in ("prefix", "variables"))
    for file, text in zip((prefix, variables), texts, strict=True):
        file.write_text(text)
    config = load_config(["experiment=prefix"], config_dir=tmp_path)
    assert config.data.assistant_prefix == OmegaConf.load(prefix).data.assistant_prefix == "<think>\n"
    assert load_config(["experiment=variables"], config_dir=tmp_path).data.chat_template_kwargs == {
        "enable_thinking": False
    }
