"""Character tokenizers with the habits of model families: how their chat templates write turns, and who writes the start token."""

from __future__ import annotations

from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from maxent_grpo.models.tokenizer import BOS, build_char_tokenizer

TURN, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}<|im_start|>\n\n"
    "{{ message['content'] | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_start|>\n\n{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|im_start|>{{ 'model' if message['role'] == 'assistant' else 'user' }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
SYSTEM_LEFT_OUT = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['content'] }}\n{% endif %}{% endfor %}"
)
INSTRUCTIONS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} {{ message['content'] }}{{ eos_token }}"
    "{% else %}[INST] {{ message['content'] }} [/INST]{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "no system": NO_SYSTEM, "instructions": INSTRUCTIONS}


def chat_tokenizer(
    template: str | None, *, adds_start: bool = False, start: str | None = BOS
) -> PreTrainedTokenizerFast:
    """The character tokenizer with another chat template.

    Args:
        template: the template; None for a tokenizer without one.
        adds_start: put the start token before every text that is encoded with special tokens.
        start: the start token; None for a tokenizer that has none.
    """
    tokenizer = build_char_tokenizer()
    tokenizer.add_tokens([TURN, END], special_tokens=True)
    tokenizer.chat_template = template  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.bos_token = start
    if adds_start:
        assert start is not None
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, tokenizer.convert_tokens_to_ids(start))]
        )
    return tokenizer
