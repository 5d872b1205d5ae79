"""Which tokens end a completion, and a generation configuration that says so and nothing untrue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

MARK = "answer0mark"
"""Stands for an assistant's turn; no template adds it by itself."""


def declared_ends(tokenizer: PreTrainedTokenizerBase, folder: Path) -> dict[int, list[str]]:
    """Token to who says that it ends a completion: tokenizer, generation_config.json, config.json, chat template.

    Only what is written in a file counts: an architecture's default (2 for Llama) is a token like any other elsewhere. An id of
    config.json, which is often older than the tokenizer beside it, counts only where this tokenizer has an added or special token.
    """
    added = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
    sources = {
        "the tokenizer": [tokenizer.eos_token_id],
        "generation_config.json": _listed(folder / "generation_config.json"),
        "config.json": [token for token in _listed(folder / "config.json") if token in added],
        "the chat template": [turn_end(tokenizer)],
    }
    ends: dict[int, list[str]] = {}
    for source, ids in sources.items():
        for token in ids:
            if isinstance(token, int) and 0 <= token < len(tokenizer):
                ends.setdefault(token, []).append(source)
    return ends


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template writes behind an assistant's turn; None where there is none."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": MARK}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except (TemplateError, ValueError, TypeError, KeyError):
        return None
    if MARK not in text:
        return None
    behind: list[int] = tokenizer(text.rsplit(MARK, 1)[1], add_special_tokens=False)["input_ids"]
    # not the padding: models are often given their turn's end as the padding token
    fillers = [tokenizer.bos_token_id, tokenizer.unk_token_id]
    special, eos = _special_ids(tokenizer), tokenizer.eos_token_id
    return next((token for token in behind if token in special and (token == eos or token not in fillers)), None)


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def describe_ends(ends: Mapping[int, Iterable[str]], tokenizer: PreTrainedTokenizerBase) -> str:
    """The end tokens with those who name them, in one line."""
    return "; ".join(
        f"{tokenizer.convert_ids_to_tokens(token)} ({', '.join(sources)})" for token, sources in ends.items()
    )


def settle_generation_config(model: PreTrainedModel, ends: Iterable[int]) -> list[str]:
    """Let the model's generation configuration list every end token, and be one that can be saved; returns what was changed.

    It goes with the saved model and is never read for sampling here.
    """
    listed = sorted(ends)
    config = model.generation_config or GenerationConfig()
    config.eos_token_id = listed if len(listed) > 1 else listed[0]
    changed: list[str] = []
    if not _valid(config):
        config.do_sample = True
        changed.append("do_sample=true, since it sets sampling controls")
    if not _valid(config):
        config = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        )
        changed = ["only its token ids are kept, since its other settings contradict each other"]
    model.generation_config = config
    return changed


def _valid(config: GenerationConfig) -> bool:
    try:
        config.validate(strict=True)
    except ValueError:
        return False
    return True


def _listed(file: Path) -> list[Any]:
    """The end tokens that a configuration file writes down."""
    if not file.is_file():
        return []
    written = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    return written if isinstance(written, list) else [written]
