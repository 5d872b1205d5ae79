"""Models and prompts that both sides are given: written once, into one folder, and read by every process.

The tiny models never stop early. One channel of their residual stream is the same for every token: embeddings set it and no
layer writes to it. The end token's row of the head is nothing but a large negative number at that channel, so that its
probability is exactly 0 under any sampler, and a completion has as many tokens as it may have.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxent_grpo.config.model import CACHE, SMOLLM2_FOLDER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SMOLLM2 = Path(CACHE) / SMOLLM2_FOLDER
SPECIAL = ("<pad>", "<unk>", "<eos>")
NEVER = -1e4
FILLER = ["Please", "think", "about", "the", "weather", "in", "the", "mountains", "today", "and", "tell", "me."]
ONE_TOKEN = "now"


def tiny_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Words `w3` … `w<vocabulary - 1>` and three special tokens, none to start with: a text of n words has n tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate((*SPECIAL, *(f"w{n}" for n in range(3, vocabulary))))}
    backend = Tokenizer(models.WordLevel(vocab=words, unk_token=SPECIAL[1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, unknown, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, unk_token=unknown, eos_token=eos, padding_side="left"
    )


def tiny_model_folder(root: Path, vocabulary: int, positions: int) -> Path:
    """A random Qwen2 (hidden size 128, 4 layers, 4 heads, float32), made unless it is there."""
    folder = root / f"qwen2-v{vocabulary}-n{positions}"
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=positions, tie_word_embeddings=False, **special,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(**special)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0.05
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter[0] = 0.0
        model.lm_head.weight[2] = 0.0
        model.lm_head.weight[2, 0] = NEVER
    model.save_pretrained(folder)
    return folder


def tiny_tokenizer_folder(root: Path, vocabulary: int) -> Path:
    """The tokenizer of the tiny models; a folder of its own, since beside a Qwen2 transformers would read it as Qwen2's."""
    folder = root / f"words-v{vocabulary}"
    if not (folder / "tokenizer.json").is_file():
        tiny_tokenizer(vocabulary).save_pretrained(folder)
    return folder


def word_prompts(number: int, length: int, vocabulary: int) -> list[str]:
    """Different prompts of ``length`` random words."""
    draw = random.Random(0)
    return [" ".join(f"w{draw.randrange(3, vocabulary)}" for _ in range(length)) for _ in range(number)]


def question_prompts(number: int, length: int, tokenizer: Any) -> list[str]:
    """Sums of reasoning-gym behind filler words, so that the chat prompt of each has ``length`` tokens."""
    import reasoning_gym

    rows = reasoning_gym.create_dataset("chain_sum", size=number, seed=1)
    return [_padded(row["question"], length, tokenizer) for row in rows]


def chat_ids(content: str, tokenizer: Any) -> list[int]:
    """Token ids of a conversation of one question, up to where the answer begins."""
    messages = [{"role": "user", "content": content}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def _padded(question: str, length: int, tokenizer: Any) -> str:
    filling: list[str] = []
    while True:
        longer = [*filling, FILLER[len(filling) % len(FILLER)]]
        if len(chat_ids(" ".join([*longer, question]), tokenizer)) > length:
            break
        filling = longer
    filling += [ONE_TOKEN] * (length - len(chat_ids(" ".join([*filling, question]), tokenizer)))
    content = " ".join([*filling, question])
    found = len(chat_ids(content, tokenizer))
    if found != length:
        raise ValueError(f"no filling of {question!r} makes {length} tokens; the nearest has {found}")
    return content


def write_rows(path: Path, prompts: list[str]) -> Path:
    """A table with a row for each prompt."""
    lines = [json.dumps({"prompt": prompt, "answer": "0"}) for prompt in prompts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
