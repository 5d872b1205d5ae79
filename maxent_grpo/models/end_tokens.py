"""Which tokens end a completion."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that end a completion: the tokenizer's, and those of the model's generation configuration."""
    declared = model.generation_config.eos_token_id if model.generation_config else None
    listed = declared if isinstance(declared, list) else [declared]
    return sorted({token for token in [*listed, tokenizer.eos_token_id] if isinstance(token, int)})
