"""A character-level tokenizer built in code, for models that are trained from scratch here.

Every printable ASCII character and the newline is one token; any other character becomes ``<unk>``. Decoding concatenates
characters and changes nothing, so text over the alphabet survives a round trip exactly.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
ROLE_TOKENS = {"user": "<|user|>", "assistant": "<|assistant|>", "system": "<|system|>"}
SPECIAL_TOKENS = (PAD, BOS, EOS, UNK, *ROLE_TOKENS.values())
ALPHABET = ("\n", *(chr(code) for code in range(0x20, 0x7F)))

# The role token alone separates turns: with one token per character every separator would cost a position.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('unknown role ' + message['role'] + ': use user, assistant or system') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_char_tokenizer() -> PreTrainedTokenizerFast:
    """The character-level tokenizer: 7 special tokens, then newline and printable ASCII (103 tokens).

    The chat template writes the one BOS itself, so rendered text is tokenised with ``add_special_tokens=False``. It renders
    ``[{"role": "user", "content": "hi"}]`` with a generation prompt as ``<bos><|user|>hi<|assistant|>``, and ends each
    assistant turn with ``<eos>``. A special token's name inside a message is read as that token.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *ALPHABET))}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNK))
    # a dot would not match a newline; each character is a word of its own and spaces are words like any other
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=list(ROLE_TOKENS.values()),
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
