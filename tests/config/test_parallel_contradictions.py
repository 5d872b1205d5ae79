"""`optimization.parallel`: its contradictions, word for word, and what a machine may lack for it."""

from __future__ import annotations

import pytest

from maxent_grpo.config import preflight
from maxent_grpo.config.contradictions import contradictions
from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError

FSDP = "optimization.parallel.strategy=fsdp"

CASES = [
    (
        (FSDP, "model.lora.enabled=true"),
        "model.lora.enabled=true with optimization.parallel.strategy=fsdp: an adapter's gradients and optimiser are small, and its base "
        "would be cut in another type than it has; use optimization.parallel.strategy=ddp",
    ),
    (
        (FSDP, "model.compile=true"),
        "model.compile=true with optimization.parallel.strategy=fsdp: layers are compiled with their weights, which come and go; write "
        "model.compile=false, or use optimization.parallel.strategy=ddp",
    ),
    (
        (FSDP, "controller=meta"),
        "controller=meta with optimization.parallel.strategy=fsdp: meta-gradients differentiate the whole step in every process, and none "
        "holds all of it; use another controller, or use optimization.parallel.strategy=ddp",
    ),
    (
        (FSDP, "scoring.batching.logprob_chunk_size=8"),
        "scoring.batching.logprob_chunk_size=8 with optimization.parallel.strategy=fsdp: all processes make the same forward passes, one "
        "for each slice; write scoring.batching.logprob_chunk_size=0, and bound a slice with scoring.batching.max_tokens",
    ),
    (
        (FSDP, "optimization.parallel.fsdp.cpu_offload=true", "run.device=cpu"),
        "optimization.parallel.fsdp.cpu_offload=true with run.device=cpu: weights are in main memory already; write "
        "optimization.parallel.fsdp.cpu_offload=false",
    ),
    (
        ("optimization.parallel.fsdp.reshard_after_forward=false",),
        "optimization.parallel.fsdp.reshard_after_forward=false would not be looked at, since optimization.parallel.strategy=ddp: use "
        "optimization.parallel.strategy=fsdp, or leave it out",
    ),
    (
        (FSDP, "optimization.parallel.deepspeed.zero_stage=3", "optimization.parallel.deepspeed.overlap_comm=false"),
        "optimization.parallel.deepspeed.zero_stage=3, optimization.parallel.deepspeed.overlap_comm=false would not be looked at, since "
        "optimization.parallel.strategy=fsdp: use optimization.parallel.strategy=deepspeed, or leave it out",
    ),
]
ZERO_CASES = [
    (
        ("optimization.parallel.deepspeed.offload_parameters=true",),
        "optimization.parallel.deepspeed.offload_parameters=true with optimization.parallel.deepspeed.zero_stage=2, which leaves all "
        "weights in every process; use optimization.parallel.deepspeed.zero_stage=3",
    ),
    (
        ("model.dtype=float64",),
        "model.dtype=float64 with optimization.parallel.strategy=deepspeed, which trains in 32 or 16 bits: write model.dtype=float32",
    ),
    (
        ("run.device=cpu",),
        "run.device=cpu with optimization.parallel.strategy=deepspeed, which accelerate starts on GPUs only: use run.device=auto or "
        "optimization.parallel.strategy=fsdp",
    ),
]


@pytest.fixture(autouse=True)
def _deepspeed_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its own rules are looked at, wherever this runs."""
    known = preflight.find_module
    monkeypatch.setattr(preflight, "find_module", lambda name: object() if name == "deepspeed" else known(name))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [*CASES, *((("optimization.parallel.strategy=deepspeed", *more), sentence) for more, sentence in ZERO_CASES)],
)
def test_the_sentence_of_each_contradiction(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(["run.dir=nowhere", *overrides])
    assert sentence in str(raised.value)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed"])
def test_each_strategy_stands_by_itself(strategy: str) -> None:
    config = load_config([f"optimization.parallel.strategy={strategy}", "run.dir=nowhere"])
    assert not list(contradictions(config))


def test_a_missing_deepspeed_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_module", lambda _: None)
    with pytest.raises(ConfigError, match=r"DeepSpeed is not installed; pip install -e '\.\[deepspeed\]'"):
        load_config(["optimization.parallel.strategy=deepspeed", "run.dir=nowhere"])


@pytest.mark.parametrize("stage", [1, 4])
def test_other_stages_of_zero_are_out_of_range(stage: int) -> None:
    with pytest.raises(ConfigError, match=rf"zero_stage={stage}: must be at least 2 and at most 3"):
        load_config(
            [
                "optimization.parallel.strategy=deepspeed",
                f"optimization.parallel.deepspeed.zero_stage={stage}",
                "run.dir=nowhere",
            ]
        )
