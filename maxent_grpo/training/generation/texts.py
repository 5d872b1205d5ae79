"""The text of a completion, from its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from maxent_grpo.training.types.choices import FinishReason


def completion_texts(
    tokenizer: PreTrainedTokenizerBase,
    completions: Sequence[tuple[Sequence[int], FinishReason]],
    stops: Sequence[str],
) -> list[str]:
    """Texts without end token, special tokens, or anything from a stop string on."""
    if not completions:
        return []  # a tokenizer makes one empty text of no sequences
    visible = [list(ids[:-1]) if reason is FinishReason.eos else list(ids) for ids, reason in completions]
    texts: list[str] = tokenizer.batch_decode(visible, skip_special_tokens=True)
    return [
        _before_stop(text, stops) if reason is FinishReason.stop else text
        for text, (_, reason) in zip(texts, completions, strict=True)
    ]


def _before_stop(text: str, stops: Sequence[str]) -> str:
    """``text`` up to the stop string that begins first; all of it where another decoder saw one that is not there."""
    found = [text.find(stop) for stop in stops]
    return text[: min((place for place in found if place >= 0), default=len(text))]
