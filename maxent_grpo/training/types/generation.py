"""The parts that the sampling settings are made of: penalties, the vLLM client, counters. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from maxent_grpo.training.types.flops import Work, sampling_work


@dataclass(slots=True)
class GenerationPenaltyConfig:
    """Sampling controls beyond temperature and top-p; null leaves each off."""

    gen_top_k: int | None = None
    """Keep only the k most likely tokens."""
    gen_best_of: int | None = None
    """Sample this many and keep the best; refused by samplers that do not offer it."""
    gen_frequency_penalty: float | None = None
    """Subtract this times a token's count in the completion from its logit."""
    gen_presence_penalty: float | None = None
    """Subtract this from the logit of every token already in the completion."""
    gen_stop_sequences: list[str] | None = None
    """Strings that end a completion; the completion is cut after the token that completes one."""
    gen_min_p: float | None = None
    """Keep only tokens at least this fraction as likely as the most likely one."""
    gen_repetition_penalty: float | None = None
    """Divide positive (multiply negative) logits of tokens already in prompt or completion by this; 1 is off."""


@dataclass(slots=True)
class VLLMClientConfig:
    """How to talk to a vLLM server or engine. ``None`` leaves a sampling control to ``GenerationPenaltyConfig``."""

    url: str | None = None
    rounds_cfg: int = 0
    retry_sleep: float = 1.0
    backfill_local: bool = False
    request_logprobs: bool = True
    best_of: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    timeout: float = 120.0
    max_retries: int = 3
    backoff: float = 1.0
    backoff_multiplier: float = 2.0
    guided_json: str | None = None
    guided_regex: str | None = None
    logit_bias: dict[str, float] | None = None
    request_id_prefix: str | None = None
    sync_weights: bool = True
    launch: bool = True
    max_staleness: int = 0
    sync_interval: int = 1


@dataclass
class GenerationSamplingConfig:
    """The part of the sampling settings that every sampler shares."""

    max_prompt_len: int
    max_completion_len: int
    gen_temperature: float
    gen_top_p: float
    use_vllm: bool
    vllm: VLLMClientConfig
    vllm_mode: str = field(default="server", kw_only=True)


class GenerationPenaltyPassthrough:
    """Shows the penalties as properties of the settings that hold them."""

    penalty: GenerationPenaltyConfig

    @property
    def gen_top_k(self) -> int | None:
        """See ``GenerationPenaltyConfig.gen_top_k``."""
        return self.penalty.gen_top_k

    @property
    def gen_best_of(self) -> int | None:
        """See ``GenerationPenaltyConfig.gen_best_of``."""
        return self.penalty.gen_best_of

    @property
    def gen_frequency_penalty(self) -> float | None:
        """See ``GenerationPenaltyConfig.gen_frequency_penalty``."""
        return self.penalty.gen_frequency_penalty

    @property
    def gen_presence_penalty(self) -> float | None:
        """See ``GenerationPenaltyConfig.gen_presence_penalty``."""
        return self.penalty.gen_presence_penalty

    @property
    def gen_stop_sequences(self) -> list[str] | None:
        """See ``GenerationPenaltyConfig.gen_stop_sequences``."""
        return self.penalty.gen_stop_sequences

    @property
    def gen_min_p(self) -> float | None:
        """See ``GenerationPenaltyConfig.gen_min_p``."""
        return self.penalty.gen_min_p

    @property
    def gen_repetition_penalty(self) -> float | None:
        """See ``GenerationPenaltyConfig.gen_repetition_penalty``."""
        return self.penalty.gen_repetition_penalty


@dataclass(slots=True)
class SamplingCounters:
    """What sampling delivered since it was last asked."""

    tokens: int = 0
    """Completion tokens."""
    work: Work = field(default_factory=Work)
    """What they needed, each prompt once."""

    def add(self, prompt: int, completions: Sequence[int]) -> None:
        """Count completions of the given lengths behind a prompt [tokens]."""
        self.tokens += sum(completions)
        self.work += sampling_work(prompt, completions)

    def drain(self) -> SamplingCounters:
        """The counts so far; they start again at zero."""
        counted = SamplingCounters(self.tokens, self.work)
        self.tokens, self.work = 0, Work()
        return counted


GENERATION_COUNTERS = (
    "retry_rounds",
    "partial_prompts",
    "dropped_prompts",
    "excess_completions",
    "failed_requests",
    "weight_syncs",
    "weight_sync_failures",
)
"""Integer counters of ``GenerationSettings.generation_stats``, drained into the metrics once per step."""
