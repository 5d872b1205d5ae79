"""Gate 3, second half: what vLLM does not offer, and settings of `generation=vllm` that exclude each other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from maxent_grpo.config.contradictions_method import has_ratio
from maxent_grpo.config.generation import VllmGenerationConfig, VllmMode, WeightTransfer
from maxent_grpo.config.model import Dtype
from maxent_grpo.config.ranges import VLLM_PENALTY
from maxent_grpo.config.resolve import longest_sequence
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice
from maxent_grpo.training.types.choices import BehaviorSource

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2
"""vLLM raises lower temperatures above 0 to the first, and refuses higher ones than the second."""
MOST_TOKENS = 1024
"""vLLM's buffer on a GPU for the tokens that a request names, as allowed or as biased."""
_HERE = ("localhost", "127.0.0.1", "::1")
_URL = re.compile(r"https?://[^/\s,]+(:\d+)?")

Rule = Callable[[RootConfig, VllmGenerationConfig], Iterator[str]]


def _where(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    client, engine = generation.vllm, generation.engine
    colocated = generation.vllm_mode is VllmMode.colocate
    if colocated and client.url is not None:
        yield (
            f"generation.vllm_mode=colocate with generation.vllm.url={client.url}: a colocated engine runs in this process and "
            f"asks no server; write generation.vllm_mode=server or generation.vllm.url=null"
        )
    if not colocated and client.url is None and not client.launch:
        yield (
            "generation.vllm.launch=false with generation.vllm.url=null: there is no server to ask and none may be started; "
            "name one with generation.vllm.url, or write generation.vllm.launch=true"
        )
    if engine.sleep and not colocated:
        yield (
            "generation.engine.sleep=true with generation.vllm_mode=server: a server keeps the memory of its own GPU; write "
            "generation.vllm_mode=colocate or generation.engine.sleep=false"
        )
    elif engine.sleep and config.run.device is DeviceChoice.cpu:
        yield (
            "generation.engine.sleep=true with run.device=cpu: sleeping gives back the memory of a GPU; write "
            "generation.engine.sleep=false"
        )
    if colocated and engine.extra_args:
        yield (
            f"generation.engine.extra_args={engine.extra_args} are of a server's command line, and "
            f"generation.vllm_mode=colocate starts none; write generation.engine.extra_args=[]"
        )
    if any(argument.split("=")[0] == "--api-key" for argument in engine.extra_args):
        yield (
            "generation.engine.extra_args holds --api-key: a server of the run's own listens on loopback and the run sends no "
            "key, which would stand in its log; leave it out"
        )


def _transfer(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    """How weights go to servers, and which GPUs these have."""
    way, engine, url = generation.weight_transfer, generation.engine, generation.vllm.url
    said = f"generation.weight_transfer={way}"
    colocated = generation.vllm_mode is VllmMode.colocate
    if engine.devices and (colocated or url is not None):
        yield (
            f"generation.engine.devices={engine.devices} with "
            f"{'generation.vllm_mode=colocate' if colocated else f'generation.vllm.url={url}'}: these are the GPUs of a server that "
            f"the run launches; write generation.engine.devices=[]"
        )
    elif engine.devices:
        different = {device for device in engine.devices if device >= 0}
        if len(different) < max(engine.tensor_parallel_size, len(engine.devices)):
            yield (
                f"generation.engine.devices={engine.devices} with generation.engine.tensor_parallel_size="
                f"{engine.tensor_parallel_size}: an engine is spread over that many different GPUs, numbered from 0; name each once"
            )
    if way not in (WeightTransfer.nccl, WeightTransfer.ipc):
        return
    if config.run.device is DeviceChoice.cpu:
        yield f"{said} with run.device=cpu: it goes from GPU to GPU; write generation.weight_transfer=reload"
    if colocated:
        yield (
            f"{said} with generation.vllm_mode=colocate: it goes from one process to another, and the engine is in this one; write "
            f"generation.weight_transfer=reload or generation.vllm_mode=server"
        )
        return
    for path, value in (
        ("generation.async_steps", generation.async_steps),
        ("generation.vllm.sync_interval", generation.vllm.sync_interval - 1),
    ):
        if value:
            shown = value + (path == "generation.vllm.sync_interval")
            yield (
                f"{said} with {path}={shown}: a server that is started anew while it samples needs the weights of its rollout, "
                f"which the trainer no longer has by then and only a snapshot keeps; write generation.weight_transfer=reload or "
                f"{path}={shown - value}"
            )
    if way is WeightTransfer.nccl and url is None and not engine.devices:
        yield (
            f"{said} with generation.engine.devices=[]: the server that is launched would take the trainer's GPU, and NCCL goes "
            f"between two; name others with generation.engine.devices=[1], or write generation.weight_transfer=ipc"
        )
    if way is WeightTransfer.ipc:
        yield from _one_gpu(said, generation)


def _one_gpu(said: str, generation: VllmGenerationConfig) -> Iterator[str]:
    """CUDA IPC lends memory of one GPU to another process on it."""
    engine, url = generation.engine, generation.vllm.url
    if engine.devices:
        yield (
            f"{said} with generation.engine.devices={engine.devices}: the server has to share the trainer's GPU; write "
            f"generation.engine.devices=[] or generation.weight_transfer=nccl"
        )
    if engine.tensor_parallel_size > 1 and url is None:
        yield (
            f"{said} with generation.engine.tensor_parallel_size={engine.tensor_parallel_size}: only one of these GPUs is the "
            f"trainer's; write generation.engine.tensor_parallel_size=1 or generation.weight_transfer=nccl"
        )
    far = [part for part in (url or "").split(",") if part and urlsplit(part.strip()).hostname not in _HERE]
    if far:
        yield (
            f"{said} with generation.vllm.url={url}: {far[0].strip()} is not on this machine, let alone on the trainer's GPU; write "
            f"generation.weight_transfer=nccl or reload"
        )


def _url(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    url = generation.vllm.url
    if url is None:
        return
    parts = [part.strip().rstrip("/") for part in url.split(",")]
    for part in parts:
        if not _URL.fullmatch(part):
            yield (
                f"generation.vllm.url={url}: {part or 'an empty address'} is not the address of a server; write "
                f"http://host:port, without /v1, and commas between several"
            )
    if len(set(parts)) < len(parts):
        yield f"generation.vllm.url={url}: names a server twice, which would be given twice its share; name each once"


def _best_of(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    for path, value in (
        ("generation.penalty.gen_best_of", generation.penalty.gen_best_of),
        ("generation.vllm.best_of", generation.vllm.best_of),
    ):
        if value is not None:
            yield (
                f"{path}={value}: vLLM samples no more than it returns, and training needs every completion that was "
                f"drawn; write {path}=null, and generation.num_generations={value} for larger groups"
            )


def _limits(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    """What vLLM refuses, or changes without being asked."""
    for path, value in (
        ("generation.penalty.gen_presence_penalty", generation.penalty.gen_presence_penalty),
        ("generation.penalty.gen_frequency_penalty", generation.penalty.gen_frequency_penalty),
    ):
        if value is not None and abs(value) > VLLM_PENALTY.high:
            yield (
                f"{path}={value}: vLLM takes penalties from {VLLM_PENALTY.low:g} to {VLLM_PENALTY.high:g}; use one of these, or "
                f"generation=local"
            )
    for path, value in (
        ("generation.temperature", generation.temperature),
        ("evaluation.temperature", config.evaluation.temperature),
    ):
        if value is not None and 0 < value < LEAST_TEMPERATURE:
            yield (
                f"{path}={value}: vLLM would sample at {LEAST_TEMPERATURE} instead, another distribution than scoring sees; use "
                f"{path}={LEAST_TEMPERATURE} or more"
            )
        if value is not None and value > MOST_TEMPERATURE:
            yield f"{path}={value}: vLLM takes temperatures up to {MOST_TEMPERATURE}; use one of these, or generation=local"
    if generation.penalty.gen_min_p and generation.top_p < 1:
        yield (
            f"generation.penalty.gen_min_p={generation.penalty.gen_min_p} with generation.top_p={generation.top_p}: vLLM cuts by "
            f"min-p before top-p and scoring after it, so that they see different distributions; use "
            f"generation.penalty.gen_min_p=null or generation.top_p=1"
        )
    if len(generation.allowed_tokens) + 1 > MOST_TOKENS:
        yield (
            f"generation.allowed_tokens names {len(generation.allowed_tokens)} tokens: with the end token vLLM takes {MOST_TOKENS} on a "
            f"GPU, and its engine ends at more; name at most {MOST_TOKENS - 1}, or use generation=local"
        )
    biased = len(generation.vllm.logit_bias)
    if biased > MOST_TOKENS:
        yield (
            f"generation.vllm.logit_bias has {biased} tokens: vLLM takes {MOST_TOKENS} on a GPU, and its engine ends at "
            f"more; name at most {MOST_TOKENS}, or use generation=local"
        )
    if config.model.dtype is Dtype.float64:
        yield (
            "model.dtype=float64: vLLM computes in at most 32 bits, so that its log-probabilities would not be the policy's; use "
            "model.dtype=float32, or generation=local"
        )
    longest, engine = longest_sequence(config), generation.engine
    if engine.max_model_len is not None and engine.max_model_len < longest:
        yield (
            f"generation.engine.max_model_len={engine.max_model_len} is less than generation.max_prompt_len + "
            f"generation.max_completion_len = {longest}: long prompts would be refused; use {longest} or more, or null"
        )


def _guided(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    client = generation.vllm
    if client.guided_json is not None and client.guided_regex is not None:
        yield (
            f"generation.vllm.guided_json={client.guided_json} with generation.vllm.guided_regex={client.guided_regex}: vLLM "
            f"follows one guide at a time; write null for one of them"
        )
    if client.guided_json is not None and not _is_json_object(client.guided_json):
        yield (
            f"generation.vllm.guided_json={client.guided_json}: is not a JSON schema as text; write one such as "
            f'\'{{"type": "object"}}\''
        )
    if client.guided_regex == "":
        yield "generation.vllm.guided_regex is empty, which no completion could match; write null"
    if "" in (client.stop_sequences or []):
        yield (
            f"generation.vllm.stop_sequences={client.stop_sequences} holds an empty text, which stands for no token: remove "
            f"it, or write generation.vllm.stop_sequences=null"
        )
    for token, bias in client.logit_bias.items():
        if not token.isdecimal() or not math.isfinite(bias):
            yield (
                f"generation.vllm.logit_bias.{token}={bias}: a bias is a finite number under the id of a token; write for "
                f"example generation.vllm.logit_bias.5=-1.0"
            )


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _changed_distribution(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    """The rule for penalties (``contradictions_method``) holds for vLLM's other means as well."""
    if not has_ratio(config.scoring) or corrects(config):
        return
    client = generation.vllm
    for name, value, off in (
        ("presence_penalty", client.presence_penalty or None, "null"),
        ("frequency_penalty", client.frequency_penalty or None, "null"),
        ("logit_bias", client.logit_bias or None, "{}"),
        ("guided_regex", client.guided_regex, "null"),
        ("guided_json", client.guided_json, "null"),
    ):
        if value is not None:
            yield (
                f"generation.vllm.{name}={value} samples from another distribution than scoring sees, so the importance "
                f"ratio would be wrong: set scoring.behavior_logprobs_source=sampler with "
                f"scoring.mismatch.mode=token_truncate, or generation.vllm.{name}={off}"
            )


def corrects(config: RootConfig) -> bool:
    """Whether the difference between the sampler's distribution and scoring's is corrected."""
    scoring = config.scoring
    return scoring.behavior_logprobs_source is not BehaviorSource.model and scoring.mismatch.mode.value != "bypass"


def _truncation(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    top_k, schedule = generation.vllm.top_k, config.optimization
    if top_k is None or generation.penalty.gen_top_k is not None or not has_ratio(config.scoring):
        return
    if generation.async_steps and schedule.minibatches * schedule.num_iterations == 1:
        yield (
            f"generation.vllm.top_k={top_k} with generation.async_steps={generation.async_steps}: an update moves the weights before "
            f"a rollout trains, and truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; "
            f"use generation.vllm.top_k=null, or generation.async_steps=0"
        )
    if schedule.minibatches * schedule.num_iterations > 1:
        yield (
            f"generation.vllm.top_k={top_k} with optimization.minibatches={schedule.minibatches} and "
            f"optimization.num_iterations={schedule.num_iterations}: once an update has moved the weights, truncation keeps "
            f"other tokens than it did in sampling, so the importance ratio would be biased; use generation.vllm.top_k=null, "
            f"or 1 for both"
        )


def _log_probs(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    source = config.scoring.behavior_logprobs_source
    if not generation.vllm.request_logprobs and source is not BehaviorSource.model:
        yield (
            f"generation.vllm.request_logprobs=false with scoring.behavior_logprobs_source={source}: the log-probabilities that "
            f"training would use are not asked for; write generation.vllm.request_logprobs=true, or "
            f"scoring.behavior_logprobs_source=model"
        )


def _staleness(config: RootConfig, generation: VllmGenerationConfig) -> Iterator[str]:
    client = generation.vllm
    age = oldest_weights(config, generation)
    if age > client.max_staleness:
        if client.sync_weights and client.sync_interval == 1:
            cause, cure = f"generation.async_steps={generation.async_steps}", "generation.async_steps=0"
        elif client.sync_weights:
            cause = f"generation.vllm.sync_interval={client.sync_interval}"
            cure = "generation.vllm.sync_interval=1"
            if generation.async_steps:
                cause += f" with generation.async_steps={generation.async_steps}"
                cure += " with generation.async_steps=0"
        else:
            cause, cure = "generation.vllm.sync_weights=false", "generation.vllm.sync_weights=true"
        shown = f"up to {age:g} optimiser steps" if math.isfinite(age) else "ever more optimiser steps"
        raised = f", or generation.vllm.max_staleness={age:g}" if math.isfinite(age) else ""
        yield (
            f"{cause} samples from weights that are {shown} old, and generation.vllm.max_staleness={client.max_staleness} "
            f"refuses such samples; write {cure}{raised}"
        )
    elif (
        age > 0
        and not generation.async_steps
        and has_ratio(config.scoring)
        and config.scoring.behavior_logprobs_source is BehaviorSource.model
    ):
        yield (
            f"generation.vllm.max_staleness={client.max_staleness} trains on completions of older weights, whose importance ratio "
            f"scoring.behavior_logprobs_source=model would take for 1; write scoring.behavior_logprobs_source=sampler"
        )


def oldest_weights(config: RootConfig, generation: VllmGenerationConfig) -> float:
    """Most optimiser steps between the weights that sample a rollout and those it first trains; infinite if the run's length is open."""
    schedule, client = config.optimization, generation.vllm
    per_rollout = schedule.minibatches * schedule.num_iterations
    rollouts = math.ceil(schedule.total_training_steps / per_rollout) if schedule.total_training_steps else math.inf
    interval = client.sync_interval if client.sync_weights else math.inf
    behind = min(interval, rollouts) - 1
    if generation.async_steps and rollouts >= 2 * interval:
        behind += 1  # weights are brought one rollout early, but for those of the first, which are no older then
    return behind * per_rollout


VLLM_RULES: tuple[Rule, ...] = (
    _where, _transfer, _url, _best_of, _limits, _guided, _changed_distribution, _truncation, _log_probs, _staleness,
)  # fmt: skip
"""Every rule of this file, in the order in which their sentences are printed."""


def vllm_rules(config: RootConfig) -> Iterator[str]:
    """The sentences about `generation=vllm`; none about another sampler."""
    if isinstance(config.generation, VllmGenerationConfig):
        for rule in VLLM_RULES:
            yield from rule(config, config.generation)
