"""Conversations as text: the tokenizer's own chat, one start token, prefix, plain text, and what a template refuses."""

from __future__ import annotations

import itertools

import pytest
from support.chat_tokenizers import CHATML, HEADERS, NO_SYSTEM, SYSTEM_LEFT_OUT, TEMPLATES, TURN, chat_tokenizer
from tokenizers import normalizers

from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.models.tokenizer import BOS
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.conversation import PromptStyle
from maxent_grpo.tasks.prompt_writer import PromptWriter, plain_text, prompt_token_ids

ASKED = [{"role": "user", "content": "2+2?"}]
TURNS = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
]


def row(messages: list[dict[str, str]]) -> TaskRow:
    return TaskRow("a-row", messages, "4", {})


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("turns", [ASKED, TURNS], ids=["one turn", "several turns"])
def test_the_tokens_of_a_chat_are_the_tokenizers_own(template: str, turns: list[dict[str, str]]) -> None:
    tokenizer = chat_tokenizer(TEMPLATES[template])
    text = PromptWriter(tokenizer, PromptStyle()).row_text(row(turns))
    own = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert prompt_token_ids(tokenizer, text) == own


@pytest.mark.parametrize("template", ["chatml", "headers", "no system"])
@pytest.mark.parametrize("prefix", ["<think>\n", "The answer is", "[\n"])
def test_the_assistant_prefix_continues_a_final_message(template: str, prefix: str) -> None:
    """Byte for byte what transformers' ``continue_final_message`` gives for a conversation that ends with the prefix."""
    tokenizer = chat_tokenizer(TEMPLATES[template])
    text = PromptWriter(tokenizer, PromptStyle(assistant_prefix=prefix)).row_text(row(TURNS))
    begun = [*TURNS, {"role": "assistant", "content": prefix}]
    own = str(tokenizer.apply_chat_template(begun, tokenize=False, continue_final_message=True))
    assert text.rstrip() == own.rstrip()  # a template may trim the end of what it is given; ours is kept
    assert text.endswith(prefix)


@pytest.mark.parametrize(("writes", "adds"), list(itertools.product([True, False], repeat=2)))
def test_a_chat_begins_with_the_one_start_token_that_template_or_tokenizer_put(writes: bool, adds: bool) -> None:
    tokenizer = chat_tokenizer(HEADERS if writes else CHATML, adds_start=adds)
    ids = prompt_token_ids(tokenizer, PromptWriter(tokenizer, PromptStyle()).row_text(row(TURNS)))
    if writes or adds:
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1
    else:  # a model whose template and tokenizer both do without has never seen one in a chat
        assert tokenizer.bos_token_id not in ids


def test_a_start_token_that_also_opens_turns_is_not_doubled() -> None:
    tokenizer = chat_tokenizer(CHATML, adds_start=True, start=TURN)
    text = PromptWriter(tokenizer, PromptStyle()).row_text(row(ASKED))
    assert text == f"{TURN}user\n2+2?<|im_end|>\n{TURN}assistant\n"


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("template", [HEADERS, None])
def test_plain_text_stands_behind_one_start_token(adds: bool, template: str | None) -> None:
    tokenizer = chat_tokenizer(template, adds_start=adds)
    text = PromptWriter(tokenizer, PromptStyle(chat=False)).row_text(row(ASKED))
    assert text == f"{BOS}2+2?"
    assert prompt_token_ids(tokenizer, text).count(tokenizer.bos_token_id) == 1


def test_plain_text_without_a_start_token_is_only_the_text() -> None:
    tokenizer = chat_tokenizer(None, start=None)
    assert PromptWriter(tokenizer, PromptStyle(chat=False)).row_text(row(ASKED)) == "2+2?"


def test_a_tokenizer_that_cannot_leave_the_start_token_out_gets_texts_without() -> None:
    tokenizer = chat_tokenizer(HEADERS)
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(BOS)  # it is there whatever add_special_tokens says
    text = PromptWriter(tokenizer, PromptStyle()).row_text(row(ASKED))
    assert prompt_token_ids(tokenizer, text)[0] == tokenizer.bos_token_id
    assert prompt_token_ids(tokenizer, text).count(tokenizer.bos_token_id) == 1


def test_plain_turns_are_paragraphs_and_answers_stand_behind_their_questions() -> None:
    system = {"role": "system", "content": "Add."}
    assert plain_text([system, *TURNS]) == "Add.\n\n1+1? 2\n\nAnd 2+2?"
    asked = [{"role": "user", "content": "Q: 1+1\nA:\n"}, {"role": "assistant", "content": "2"}]
    assert plain_text(asked) == "Q: 1+1\nA:\n2"


def test_a_tokenizer_without_a_chat_template_is_refused_for_chats() -> None:
    with pytest.raises(
        ConfigError, match=r"data.chat=true: .* no chat template .* data.chat=false .* model.chat_template="
    ):
        PromptWriter(chat_tokenizer(None), PromptStyle())


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (NO_SYSTEM, r"refuses a system turn \(System role not supported\)"),
        (SYSTEM_LEFT_OUT, "leaves it out"),
    ],
)
def test_a_system_prompt_that_the_template_does_not_take_is_refused(template: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"data.system_prompt='Be brief.': the model's chat template {why}"):
        PromptWriter(chat_tokenizer(template), PromptStyle(system_prompt="Be brief."))


def test_a_conversation_that_the_template_refuses_is_named_by_its_row() -> None:
    writer = PromptWriter(chat_tokenizer(NO_SYSTEM), PromptStyle())
    with pytest.raises(DataError, match=r"row a-row: .*System role not supported.* its turns are system, user"):
        writer.row_text(row([{"role": "system", "content": "Add."}, *ASKED]))
    with pytest.raises(DataError, match=r"row a-row: .*must alternate"):
        writer.row_text(row([*ASKED, *ASKED]))
