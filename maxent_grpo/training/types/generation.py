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
    """How vLLM is talked to; a sampling control that is null here is left to `penalty`."""

    url: str | None = None
    """Address of a running vLLM server, several separated by commas (on the command line in quotes); null launches one."""
    rounds_cfg: int = 0
    """How often prompts that came back short are asked again; 0 leaves it to `generation.max_retry_rounds` [rounds]."""
    retry_sleep: float = 1.0
    """Pause before prompts that came back short are asked again [s]."""
    backfill_local: bool = False
    """Sample with the trainer's own model what vLLM did not deliver within its retries."""
    request_logprobs: bool = True
    """Ask for the log-probability of each sampled token."""
    best_of: int | None = None
    """Sample this many and keep the best; refused, since vLLM has none."""
    frequency_penalty: float | None = None
    """See `penalty.gen_frequency_penalty`, which wins."""
    presence_penalty: float | None = None
    """See `penalty.gen_presence_penalty`, which wins."""
    top_k: int | None = None
    """See `penalty.gen_top_k`, which wins."""
    stop_sequences: list[str] | None = None
    """See `penalty.gen_stop_sequences`, which wins."""
    timeout: float = 120.0
    """Longest wait for an answer [s]."""
    max_retries: int = 3
    """How often a request that failed is sent again."""
    backoff: float = 1.0
    """Pause before a request is sent again [s]."""
    backoff_multiplier: float = 2.0
    """Factor by which that pause grows each time."""
    guided_json: str | None = None
    """JSON schema, as text, that completions must follow."""
    guided_regex: str | None = None
    """Regular expression that completions must match."""
    logit_bias: dict[str, float] = field(default_factory=dict)
    """Added to the logits of tokens, by their ids [nats]."""
    request_id_prefix: str | None = None
    """Begins the id of every request in the server's log."""
    sync_weights: bool = True
    """Bring the policy's weights to vLLM; false samples from the weights that it was started with."""
    launch: bool = True
    """Launch a server where url is null; false makes a missing url an error."""
    max_staleness: int = 0
    """Most optimiser steps between the weights that sample a rollout and those that it first trains [steps]."""
    sync_interval: int = 1
    """Bring the weights before every n-th rollout [rollouts]."""


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
    "backfilled_completions",
    "weight_syncs",
    "weight_sync_failures",
)
"""Integer counters of ``GenerationSettings.generation_stats``, drained into the metrics once per step."""

COUNTED_TOGETHER = ("retry_rounds", "weight_syncs", "weight_sync_failures")
"""Those of them that count what all processes do together; the others count what each did by itself."""


def counted(name: str, counts: Sequence[int]) -> int:
    """What processes counted under one name, where each counted its own; the largest where all took part in each."""
    return max(counts) if name in COUNTED_TOGETHER else sum(counts)
