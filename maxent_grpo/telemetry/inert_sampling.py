"""Settings of `generation=vllm` that have no effect where vLLM runs."""

from __future__ import annotations

from collections.abc import Iterator

from maxent_grpo.config.generation import VllmEngineConfig, VllmGenerationConfig, VllmMode
from maxent_grpo.config.root import RootConfig
from maxent_grpo.telemetry.inert_method import Rule, under

CLIENT = "generation.vllm"


def sampling_rules(config: RootConfig) -> Iterator[Rule]:
    """What a joined server, a colocated engine or weights that stay leave without effect."""
    generation = config.generation
    if not isinstance(generation, VllmGenerationConfig):
        return
    if generation.vllm_mode is VllmMode.colocate:
        asked = ("timeout", "max_retries", "backoff", "backoff_multiplier", "request_id_prefix")
        yield (
            "a colocated engine is called and not asked over HTTP",
            [
                *(f"{CLIENT}.{name}" for name in asked),
                "generation.max_in_flight",
                "generation.engine.startup_seconds",
            ],
        )
    elif generation.vllm.url is not None:
        started = [*under("generation.engine", VllmEngineConfig), f"{CLIENT}.launch"]
        yield "a server that is joined was started by its owner", started
    if not generation.vllm.sync_weights:
        yield "generation.vllm.sync_weights is false", [f"{CLIENT}.sync_interval", "generation.weight_transfer"]
    for name in ("frequency_penalty", "presence_penalty", "top_k", "stop_sequences"):
        if getattr(generation.penalty, f"gen_{name}") is not None:
            yield f"generation.penalty.gen_{name} wins", [f"{CLIENT}.{name}"]
    if generation.vllm.rounds_cfg > 0:
        yield "generation.vllm.rounds_cfg wins", ["generation.max_retry_rounds"]
