"""`generation`: how completions are sampled."""

from dataclasses import dataclass, field

from maxent_grpo.training.types.generation import GenerationPenaltyConfig

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


@dataclass(slots=True)
class LocalGenerationConfig(GenerationConfig):
    """Our own decode loop over the transformers model: each prompt is prefilled once for all of its completions."""

    batch_size: int = 0
    """Most sequences decoded together; 0 decodes the whole rollout together [sequences]."""
