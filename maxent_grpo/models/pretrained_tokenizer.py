"""The tokenizer of a pretrained model, checked to belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from jinja2 import TemplateError
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.errors import ConfigError


def read_tokenizer(
    setting: str, folder: Path, *, chat_template: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, padding on the left; ``setting`` (path=value) names it in messages.

    Raises:
        ConfigError: there is none that can be read, or it has no end token.
    """
    try:
        tokenizer = cast(
            PreTrainedTokenizerBase,
            AutoTokenizer.from_pretrained(folder, padding_side="left", trust_remote_code=trust_remote_code),
        )
    except (OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        detail = next(iter(str(error).splitlines()), type(error).__name__).strip()
        raise ConfigError(
            f"{setting}: it has no tokenizer that can be read ({detail}); save one there with tokenizer.save_pretrained, or "
            f"name another folder or hub id with model.tokenizer="
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"{setting}: its tokenizer has no end token (eos_token), so that no completion could end by itself; name it as "
            f'"eos_token" in tokenizer_config.json, or another tokenizer with model.tokenizer='
        )
    if chat_template is not None:
        tokenizer.chat_template = _template(tokenizer, chat_template)
    return tokenizer


def _template(tokenizer: PreTrainedTokenizerBase, file: str) -> str:
    template = Path(file).read_text(encoding="utf-8")
    turn = [{"role": "user", "content": "question"}]
    try:
        tokenizer.apply_chat_template(turn, chat_template=template, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigError(
            f"model.chat_template={file}: does not render a user's turn ({type(error).__name__}: {error}); correct the template"
        ) from error
    return template


def check_vocabulary(setting: str, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Refuse a tokenizer with ids that the model has no embedding for; a larger embedding is usual.

    Raises:
        ConfigError: the tokenizer's ids reach beyond the embedding.
    """
    rows = cast(Tensor, model.get_input_embeddings().weight).shape[0]
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:
        raise ConfigError(
            f"{setting}: the tokenizer has token ids up to {highest}, and the model's embedding has {rows} rows; name the "
            f"tokenizer that belongs to the model with model.tokenizer="
        )
