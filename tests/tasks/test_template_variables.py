"""Variables of a chat template: what they make of a prompt, in rows and in the warm start, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chat_tokenizers import CHATML, chat_tokenizer
from support.checkpoints import save_checkpoint, small_tokenizer
from support.runs import completion_lines, train

from maxent_grpo.errors import ConfigError
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.conversation import PromptStyle
from maxent_grpo.tasks.prompt_writer import PromptWriter

THINKS = (
    "{% generation %}{% endgeneration %}"
    + CHATML
    + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
"""A template with the switch of Qwen3's."""
ROW = TaskRow("a-row", [{"role": "user", "content": "2+2?"}], "4", {})


def written(template: str | None, **variables: object) -> str:
    return PromptWriter(chat_tokenizer(template), PromptStyle(chat_template_kwargs=variables)).row_text(ROW)


def test_a_variable_reaches_the_template() -> None:
    plain = written(THINKS)
    assert written(THINKS, enable_thinking=True) == plain
    assert written(THINKS, enable_thinking=False) == plain + "<think>\n\n</think>\n\n"


def test_a_variable_that_the_template_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        written(THINKS, enable_thinkin=False, think=False, tools=[], bos_token="x", enable_thinking=False)
    assert caught.value.problems == [
        "data.chat_template_kwargs.enable_thinkin: the model's chat template does not read enable_thinkin, so that it would "
        "change nothing; correct the name or leave it out",
        "data.chat_template_kwargs.think: the model's chat template does not read think, so that it would change nothing; correct "
        "the name or leave it out",
        "data.chat_template_kwargs.tools: is no variable to choose, but belongs to the tokenizer or to how prompts are written; "
        "leave it out",
        "data.chat_template_kwargs.bos_token: is no variable to choose, but belongs to the tokenizer or to how prompts are "
        "written; leave it out",
    ]
    with pytest.raises(ConfigError, match="does not read enable_thinking"):
        written(CHATML, enable_thinking=False)


def test_a_run_asks_with_the_variables_and_its_model_card_says_so(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model", "llama", tokenizer=small_tokenizer(template=THINKS))
    words = (
        "model=hf",
        f"model.name={model}",
        "scoring=dr_grpo",
        "evaluation.enabled=false",
        "generation.max_prompt_len=80",
    )
    off = ("data.chat_template_kwargs.enable_thinking=false", "checkpoint.final_model=true")
    for name, more in (("plain", ()), ("off", off)):
        train(tmp_path / name, *words, *more)
        prompts = [line["prompt"] for line in completion_lines(tmp_path / name)]
        assert prompts
        assert {prompt.endswith("<think>\n\n</think>\n\n") for prompt in prompts} == {name == "off"}
    assert "return_dict=True, enable_thinking=False" in (tmp_path / "off" / "model" / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"chat_template_kwargs\.thinking: the model's chat template does not read"):
        train(tmp_path / "misspelt", *words, "data.chat_template_kwargs.thinking=false")
