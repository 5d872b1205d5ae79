"""`model`: which network is trained and how it starts."""

from dataclasses import dataclass, field
from enum import StrEnum

from omegaconf import MISSING

CACHE = "outputs/.cache"
"""Folder of what is made once and used by many runs."""
SMOLLM2_FOLDER = "smollm2-135m-instruct"
"""Folder of the converted model in it."""


class Dtype(StrEnum):
    """Floating-point type of the weights."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"


class Attention(StrEnum):
    """Attention implementation of transformers."""

    sdpa = "sdpa"
    eager = "eager"
    flash_attention_2 = "flash_attention_2"


@dataclass(slots=True)
class WarmStartConfig:
    """Supervised stage before reinforcement learning; cached by content, so that it is trained once."""

    enabled: bool = True
    """Train every weight on the task's demonstrations first; false starts from random weights, or from the published ones of a pretrained model."""
    steps: int = 112
    """Supervised optimiser steps [steps]."""
    batch_size: int = 64
    """Problems in one supervised step [prompts]."""
    answers_per_problem: int = 2
    """Answers drawn from the demonstrator for each problem of a step; 0 takes all right answers, weighted exactly [answers]."""
    learning_rate: float = 3e-3
    """Peak learning rate of the supervised stage."""
    num_problems: int = 4096
    """Size of the demonstration pool, disjoint from the evaluation rows [prompts]."""
    mode_skew: float = 1.0
    """Demonstrators choose the right answer of rank j (in lexicographic order) with probability proportional to exp(-mode_skew * j)."""
    seed: int = 0
    """Seed of the demonstrations and of their order; separate from the run's seed so that runs share one start."""
    cache_dir: str = CACHE
    """Folder of cached warm starts."""


def start_of_pretrained() -> WarmStartConfig:
    """The same for a model that already speaks: off, since it needs a task that has demonstrations, and at a rate that keeps
    what the model knows."""
    return WarmStartConfig(enabled=False, learning_rate=1e-4)


ALL_LINEAR = "all-linear"
"""Stands for every linear layer but the output head."""


@dataclass(slots=True)
class LoraConfig:
    """Low-rank adapters: the base stays as it is, and beside its linear layers two thin matrices B A are trained."""

    enabled: bool = False
    """Train low-rank adapters and leave the base as it is; false trains every weight."""
    rank: int | None = None
    """Width r of the two matrices of a layer; null is 16, or the rank of `adapter`."""
    alpha: float | None = None
    """The product B A is multiplied by alpha / rank; null is twice the rank, or the alpha of `adapter`."""
    use_rslora: bool | None = None
    """Multiply by alpha / sqrt(rank) instead, which keeps the size of updates alike at every rank; null is false, or as `adapter`."""
    dropout: float = 0.0
    """Dropout in front of the matrices; only 0 is accepted, since sampling and training must see one policy."""
    target_modules: list[str] | None = None
    """Names of the linear layers that get matrices, such as [q_proj,v_proj]; [all-linear] is every one but the output head; null is [all-linear], or the layers of `adapter`."""
    adapter: str | None = None
    """Folder or hub id of an adapter in peft's format to start from; it is also the reference, as it was at the start. null starts from the base itself."""


@dataclass(slots=True)
class ModelConfig:
    """Fields that every model option has."""

    dtype: Dtype = Dtype.float32
    """Type of the weights and activations; what is trained in bfloat16 is a float32 copy that the weights are rounded from, except adapters, which have 32 bits themselves."""
    attention: Attention = Attention.sdpa
    """Attention implementation; sharing a prompt among its completions needs `sdpa` or `eager`. `flash_attention_2` needs a GPU, bfloat16 and the package flash-attn."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    compile: bool = False
    """Compile the layers' forward and backward passes in training with torch.compile; the output head is left as it is, and so is sampling, whose shapes change with every token."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    warm_start: WarmStartConfig = field(default_factory=start_of_pretrained)


@dataclass(slots=True)
class TinyModelConfig(ModelConfig):
    """A Llama-architecture transformer of about one million parameters with a tokenizer built in code; needs no download."""

    hidden_size: int = 128
    """Width of the residual stream; hidden_size / num_heads must be 32 or 64."""
    num_layers: int = 3
    """Transformer layers."""
    num_heads: int = 4
    """Attention heads."""
    intermediate_size: int = 512
    """Width of the gated feed-forward layer."""
    init_seed: int = 0
    """Seed of the random initial weights."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)


@dataclass(slots=True)
class PretrainedModelConfig(ModelConfig):
    """Fields of models that come with trained weights."""


@dataclass(slots=True)
class SmolLM2ModelConfig(PretrainedModelConfig):
    """SmolLM2-135M-Instruct, a chat model that two CPU cores can train; `make smollm2` fetches and converts it once."""

    cache_dir: str = CACHE
    """Folder that `make smollm2` keeps the converted model in."""


@dataclass(slots=True)
class HfModelConfig(PretrainedModelConfig):
    """A causal language model of the Hugging Face hub or of a local folder."""

    name: str = MISSING
    """Hub id such as Qwen/Qwen2.5-0.5B-Instruct, or a local folder."""
    revision: str | None = None
    """Branch, tag or commit of a hub model; null is its main branch."""
    trust_remote_code: bool = False
    """Run Python code that the model's repository brings along; false refuses models that need it."""
    tokenizer: str | None = None
    """Hub id or local folder of the tokenizer; null is the model's own."""
    chat_template: str | None = None
    """File with a Jinja chat template to use instead of the tokenizer's; null keeps the tokenizer's."""
