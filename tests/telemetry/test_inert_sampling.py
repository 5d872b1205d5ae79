"""Settings of `generation=vllm` without effect are named with the reason."""

from __future__ import annotations

import pytest
from support.settings import changed

from maxent_grpo.telemetry.inert import inert_settings

CASES = {
    ("generation.vllm_mode=colocate", "generation.vllm.timeout=5.0", "generation.max_in_flight=3"): [
        "generation.vllm.timeout=5.0: a colocated engine is called and not asked over HTTP",
        "generation.max_in_flight=3: a colocated engine is called and not asked over HTTP",
    ],
    ("generation.vllm.url=http://a:1", "generation.engine.kv_cache_gib=4", "generation.vllm.timeout=5.0"): [
        "generation.engine.kv_cache_gib=4: a server that is joined was started by its owner"
    ],
    ("generation.vllm.sync_weights=false", "generation.vllm.sync_interval=3", "generation.weight_transfer=auto"): [
        "generation.vllm.sync_interval=3: generation.vllm.sync_weights is false",
        "generation.weight_transfer=auto: generation.vllm.sync_weights is false",
    ],
    ("generation.vllm.top_k=3", "generation.penalty.gen_top_k=4", "generation.vllm.rounds_cfg=2",
     "generation.max_retry_rounds=5"): [
        "generation.vllm.top_k=3: generation.penalty.gen_top_k wins",
        "generation.max_retry_rounds=5: generation.vllm.rounds_cfg wins",
    ],
    ("generation.vllm.timeout=5.0", "generation.engine.kv_cache_gib=4"): [],
}  # fmt: skip


@pytest.mark.parametrize(("settings", "sentences"), CASES.items(), ids=lambda value: str(value)[:50])
def test_a_setting_without_effect_is_named(settings: tuple[str, ...], sentences: list[str]) -> None:
    named = inert_settings(changed("generation=vllm", *settings))
    assert [sentence for sentence in named if sentence.startswith("generation")] == sentences
