"""The character tokenizer: exact round trips, one BOS, stable ids."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from maxent_grpo.models.tokenizer import ALPHABET, SPECIAL_TOKENS, build_char_tokenizer

TOKENIZER = build_char_tokenizer()
# text in which no special token is spelt out
PLAIN = st.text(alphabet=[character for character in ALPHABET if character != "<"])


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


@given(PLAIN)
def test_text_over_the_alphabet_survives_the_round_trip_one_token_a_character(text: str) -> None:
    ids = ids_of(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


@given(st.text())
def test_every_other_character_is_one_unknown_token(text: str) -> None:
    text = text.replace("<", "")
    ids = ids_of(text)
    assert len(ids) == len(text)
    assert [index == TOKENIZER.unk_token_id for index in ids] == [character not in ALPHABET for character in text]


def test_the_alphabet_is_printable_ascii_and_the_newline() -> None:
    assert set(ALPHABET) == (set(string.printable) - set("\t\r\v\f"))
    assert len(TOKENIZER) == len(ALPHABET) + len(SPECIAL_TOKENS) == 103


def test_special_tokens_have_fixed_and_different_ids() -> None:
    ids = [TOKENIZER.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS]
    assert ids == list(range(7))
    special = (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id)
    assert special == (0, 1, 2, 3)
    assert TOKENIZER.decode([1, 4, ids_of("a")[0], 2], skip_special_tokens=True) == "a"


def test_the_template_writes_one_bos_and_the_generation_prompt() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": " hi\n"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "so?"},
    ]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><|system|>be brief<|user|> hi\n<|assistant|>yo<eos><|user|>so?<|assistant|>"
    ids = ids_of(str(text))
    assert ids.count(TOKENIZER.bos_token_id) == 1
    assert ids[0] == TOKENIZER.bos_token_id
    assert len(ids) == 1 + 4 + 1 + len("be brief hi\nyoso?") + 1
    assert TOKENIZER.apply_chat_template(messages[1:2], tokenize=False) == "<bos><|user|> hi\n"


def test_the_template_refuses_a_role_it_does_not_know() -> None:
    with pytest.raises(Exception, match="unknown role tool"):
        TOKENIZER.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_saving_and_loading_keeps_ids_template_and_decoding(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    text = "<bos><|user|> a  ,. it's n't !\n~<|assistant|>\u00e9"
    ids = ids_of(text)
    assert loaded(text, add_special_tokens=False)["input_ids"] == ids
    assert loaded.decode(ids) == TOKENIZER.decode(ids)
    assert loaded.get_vocab() == TOKENIZER.get_vocab()
    assert loaded.chat_template == TOKENIZER.chat_template
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
