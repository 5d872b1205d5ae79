"""`generation`: how completions are sampled."""

from dataclasses import dataclass, field
from enum import StrEnum

from maxent_grpo.training.types.generation import GenerationPenaltyConfig, VLLMClientConfig

ANSWER_ALPHABET = "@answer"
"""Entry of `generation.allowed_tokens` that stands for the task's own answer alphabet."""


@dataclass(slots=True)
class GenerationConfig:
    """Fields that every sampler has."""

    num_generations: int = 16
    """Completions sampled for each prompt: the group size G [completions]."""
    max_prompt_len: int = 256
    """Longest prompt; longer ones follow data.long_prompts [tokens]."""
    max_completion_len: int = 5
    """Longest completion, the end token included; also the constant T_max of `scoring.reduction=constant` [tokens]."""
    temperature: float = 1.0
    """Sampling temperature; scoring divides logits by it too. 0 would make a group's completions all alike and is refused."""
    top_p: float = 1.0
    """Nucleus sampling: keep the smallest set of tokens with at least this probability; 1 is off."""
    penalty: GenerationPenaltyConfig = field(default_factory=GenerationPenaltyConfig)
    allowed_tokens: list[str] = field(default_factory=lambda: [ANSWER_ALPHABET])
    """Restrict sampling (and scoring) to these tokens and the end token; `@answer` stands for the task's answer alphabet, and a task without one allows all; an empty list allows all."""
    max_retry_rounds: int = 0
    """How often prompts that came back short are asked again; 0 means as often as num_generations [rounds]."""
    async_steps: int = 0
    """Rollouts sampled ahead of the one that trains: with 1 the next one is sampled by the weights that this one begins to train with, while it trains where vLLM samples, and the importance correction must be on; 0 trains every rollout at the weights that sampled it [rollouts]."""


@dataclass(slots=True)
class LocalGenerationConfig(GenerationConfig):
    """Our own decode loop over the transformers model: each prompt is prefilled once for all of its completions."""

    batch_size: int = 0
    """Most sequences decoded together; 0 decodes the whole rollout together [sequences]."""


class VllmMode(StrEnum):
    """Where vLLM runs."""

    server = "server"
    colocate = "colocate"


class WeightTransfer(StrEnum):
    """How the policy's weights get to vLLM."""

    reload = "reload"
    nccl = "nccl"
    ipc = "ipc"
    auto = "auto"


@dataclass(slots=True)
class VllmEngineConfig:
    """How vLLM is started, by `vllm_mode=colocate` or where a server is launched; a server that is joined was started by its owner."""

    max_model_len: int | None = None
    """Longest prompt with its completion; null is max_prompt_len + max_completion_len [tokens]."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that vLLM takes; null is 0.4 of the trainer's GPU, 0.6 of it with sleep=true, and 0.92, vLLM's own choice, of others."""
    kv_cache_gib: int = 1
    """Memory for keys and values on a CPU [GiB]."""
    tensor_parallel_size: int = 1
    """GPUs that one engine is spread over."""
    devices: list[int] = field(default_factory=list[int])
    """GPUs of a launched server, by their numbers among those that the run sees, such as [1]; empty leaves it the first."""
    enforce_eager: bool = True
    """Run the model as it is written; false compiles it and captures CUDA graphs, which takes minutes once and samples faster."""
    sleep: bool = False
    """Colocated on a GPU: give vLLM's memory back to the trainer between rollouts."""
    startup_seconds: float = 600.0
    """How long an engine may take until it answers [s]."""
    extra_args: list[str] = field(default_factory=list[str])
    """Further arguments of a server's command line, as in [--enable-prefix-caching], which is a list of one."""


@dataclass(slots=True)
class VllmGenerationConfig(GenerationConfig):
    """vLLM, with the policy's weights brought to it before a rollout."""

    vllm_mode: VllmMode = VllmMode.server
    """`server` asks servers over HTTP, joined at vllm.url or launched here; `colocate` runs the engine in this process."""
    vllm: VLLMClientConfig = field(default_factory=VLLMClientConfig)
    engine: VllmEngineConfig = field(default_factory=VllmEngineConfig)
    weight_transfer: WeightTransfer = WeightTransfer.reload
    """`reload` lets vLLM read a snapshot, on every device; `nccl` sends from GPU to GPU; `ipc` lends the memory of the one GPU that trainer and server share; `auto` takes one of these and says which."""
    weights_dir: str | None = None
    """Folder through which servers read new weights; null is this machine's shared memory. Servers elsewhere need one that they see under the same path."""
    max_in_flight: int = 64
    """Most requests, each a prompt with all its completions, sent and not answered at a time [requests]."""
