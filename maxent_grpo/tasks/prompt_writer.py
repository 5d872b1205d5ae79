"""A conversation as the text that a model continues: by its chat template, or plainly. One start token, whoever writes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, meta
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.conversation import Conversation, PromptStyle, conversation_of

PARAGRAPH = "\n\n"
PROBE = "1+1"
"""A question that is only asked to see what a template makes of it."""


def prompt_token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Token ids of rendered text, in which all special tokens are written already."""
    return list(tokenizer(str(prompt), add_special_tokens=False)["input_ids"])


class PromptWriter:
    """Writes rows down for one model in one style.

    The text of a chat is what the tokenizer's ``apply_chat_template`` gives with its generation prompt, followed by the
    assistant prefix; its tokens are those of ``apply_chat_template(tokenize=True)``. A start token that the tokenizer puts
    before every text, but the template does not write, is put before it.

    Raises:
        ConfigError: there is no chat template, it does not take a system turn, or does not read a variable that it is given.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, style: PromptStyle) -> None:
        self._tokenizer, self._style = tokenizer, style
        self._start = _start_text(tokenizer, always=not style.chat)
        self._unwritten = _unwritten_start(tokenizer)
        if style.chat:
            self._check_template()

    def row_text(self, row: TaskRow) -> str:
        """The prompt of a row.

        Raises:
            DataError: its turns are no conversation, or none that the chat template takes.
        """
        turns = conversation_of(row, self._style)
        try:
            return self.text(turns)
        except TemplateError as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise DataError(
                f"row {row.row_id}: the model's chat template refuses its conversation ({error}); its turns are {roles}"
            ) from error

    def text(self, turns: Conversation) -> str:
        """The prompt of a conversation, the assistant prefix at its end."""
        body = self._templated(turns) if self._style.chat else plain_text(turns)
        body += self._style.assistant_prefix
        if self._unwritten:
            return body.removeprefix(self._unwritten)
        return body if body.startswith(self._start) else self._start + body

    def _templated(self, turns: Conversation) -> str:
        given = self._style.chat_template_kwargs
        return str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **given))

    def _check_template(self) -> None:
        if not self._tokenizer.chat_template:
            raise ConfigError(
                "data.chat=true: the model's tokenizer has no chat template to write prompts with; use data.chat=false for "
                "plain text, or give one with model.chat_template=..."
            )
        problems = list(_unread(self._tokenizer, self._style.chat_template_kwargs))
        if problems:
            raise ConfigError(problems)
        system = self._style.system_prompt
        if system is None:
            return
        turns = [{"role": "system", "content": system}, {"role": "user", "content": PROBE}]
        try:
            kept, why = system.strip() in self._templated(turns), "leaves it out"
        except TemplateError as error:
            kept, why = False, f"refuses a system turn ({error})"
        if not kept:
            raise ConfigError(
                f"data.system_prompt={_opening(system)!r}: the model's chat template {why}; use data.system_prompt=null and say "
                "it in the question, as in data.prompt_template='... {prompt}'"
            )


def _unread(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for every variable that the template would take no notice of, or that is not the user's to give."""
    if not given:
        return
    read = _variables(tokenizer.get_chat_template())
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages", *tokenizer.special_tokens_map}
    for name in given:
        said = f"data.chat_template_kwargs.{name}"
        if name in taken:
            yield f"{said}: is no variable to choose, but belongs to the tokenizer or to how prompts are written; leave it out"
        elif name not in read:
            yield f"{said}: the model's chat template does not read {name}, so that it would change nothing; correct the name or leave it out"


def _variables(template: str) -> set[str]:
    """The names that a chat template reads and does not set itself."""
    # a tag of transformers' own, around what the assistant says, which stands for nothing here
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    return meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain))


def plain_text(turns: Conversation) -> str:
    """The turns as paragraphs; an answer stands behind its question on the same line."""
    text = ""
    for place, turn in enumerate(turns):
        joint = PARAGRAPH if place else ""
        if place and turn["role"] == "assistant":
            joint = "" if text[-1:].isspace() or turn["content"][:1].isspace() else " "
        text += joint + turn["content"]
    return text


def _start_text(tokenizer: PreTrainedTokenizerBase, *, always: bool) -> str:
    """The start token to begin with: in plain text whenever there is one, in a chat where the tokenizer itself puts it."""
    if tokenizer.bos_token_id is None:
        return ""
    return str(tokenizer.bos_token) if always or _begins_with_start(tokenizer, tokenizer(PROBE)["input_ids"]) else ""


def _unwritten_start(tokenizer: PreTrainedTokenizerBase) -> str:
    """The start token of a tokenizer that puts it before every text, asked or not: it must not be written as well."""
    if tokenizer.bos_token_id is None:
        return ""
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    return str(tokenizer.bos_token) if _begins_with_start(tokenizer, ids) else ""


def _begins_with_start(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bool:
    return list(ids[:1]) == [tokenizer.bos_token_id]


def _opening(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
