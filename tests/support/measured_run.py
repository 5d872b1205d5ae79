"""`python measured_run.py ...`: train.py with one more model, the size of SmolLM2-135M; says at the end how much memory it used.

The vocabulary is as large as a real one and the tokenizer is the character tokenizer: ids beyond it are read as nothing.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

# in place of this folder, whose modules have names of the standard library
sys.path[0] = str(Path(__file__).parents[2])

from maxent_grpo.config import store  # noqa: E402
from maxent_grpo.config.model import ModelConfig  # noqa: E402
from maxent_grpo.telemetry.resident import peak_resident_bytes  # noqa: E402


@dataclass(slots=True)
class SmolSizedConfig(ModelConfig):
    """Random weights in the sizes of SmolLM2-135M."""


def build_smol_sized(config: ModelConfig, positions: int):
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    from maxent_grpo.models.build import LoadedModel
    from maxent_grpo.models.tiny import special_ids
    from maxent_grpo.models.tokenizer import build_char_tokenizer

    tokenizer = build_char_tokenizer()
    llama = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        tie_word_embeddings=True,
        **special_ids(tokenizer),
    )
    llama._attn_implementation = str(config.attention)
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama)
    model.generation_config = GenerationConfig(**special_ids(tokenizer))
    return LoadedModel(model, tokenizer)


if __name__ == "__main__":
    store.OPTIONS.append(("model", "smol_sized", SmolSizedConfig))
    if "model=smol_sized" in sys.argv:
        from maxent_grpo.models import build

        build._BUILDERS[SmolSizedConfig] = build_smol_sized
    from maxent_grpo.commands.train import main

    main(sys.argv[1:])
    print(f"peak memory {peak_resident_bytes()}")
