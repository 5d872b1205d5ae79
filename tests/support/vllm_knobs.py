"""The settings of `generation=vllm`, each with the file and the test that show what it does."""

from __future__ import annotations

PARTS, REFUSED = "training/generation/test_vllm_parts.py", "config/test_vllm_contradictions.py"
SERVER = "with_vllm/test_server.py"
CONTRADICTION = (REFUSED, "test_the_sentence_of_each_contradiction")
COMMAND = (PARTS, "test_the_engine_settings_are_those_of_the_command_line")
MERGED = (PARTS, "test_controls_of_the_client_count_where_there_are_none")
GUIDED = (SERVER, "test_a_bias_moves_a_token_and_a_guide_is_followed")
PAUSES = (PARTS, "test_a_request_that_fails_is_sent_again_after_growing_pauses")
STALE = (SERVER, "test_weights_are_brought_as_often_as_asked")

VLLM_KNOBS: dict[str, tuple[str, str]] = {
    "generation.vllm_mode": ("with_vllm/test_colocate.py", "test_a_colocated_engine_trains"),
    "generation.weights_dir": (PARTS, "test_snapshots_lie_where_asked_and_go_with_their_owner"),
    "generation.max_in_flight": (SERVER, "test_servers_share_the_work_and_no_more_is_sent_than_allowed"),
    **{
        f"generation.engine.{name}": COMMAND
        for name in (
            *("max_model_len", "gpu_memory_utilization", "kv_cache_gib", "tensor_parallel_size", "enforce_eager"),
            "extra_args",
        )
    },
    "generation.engine.devices": (PARTS, "test_a_server_takes_the_gpus_it_is_told_of"),
    "generation.weight_transfer": (
        "training/generation/test_vllm_transfer.py",
        "test_auto_takes_the_nearest_way_and_says_why",
    ),
    "generation.engine.startup_seconds": (PARTS, "test_a_server_that_does_not_start_is_given_up_in_time"),
    "generation.engine.sleep": CONTRADICTION,
    "generation.vllm.url": (SERVER, "test_servers_share_the_work_and_no_more_is_sent_than_allowed"),
    "generation.vllm.launch": CONTRADICTION,
    "generation.vllm.best_of": CONTRADICTION,
    "generation.vllm.rounds_cfg": (SERVER, "test_what_does_not_come_is_sampled_here_when_that_is_asked_for"),
    "generation.vllm.backfill_local": (SERVER, "test_what_does_not_come_is_sampled_here_when_that_is_asked_for"),
    "generation.vllm.retry_sleep": (PARTS, "test_a_retry_round_waits_first"),
    "generation.vllm.request_logprobs": (SERVER, "test_what_a_request_says_of_itself"),
    "generation.vllm.request_id_prefix": (SERVER, "test_what_a_request_says_of_itself"),
    **{
        f"generation.vllm.{name}": MERGED
        for name in ("frequency_penalty", "presence_penalty", "top_k", "stop_sequences")
    },
    "generation.vllm.timeout": (SERVER, "test_a_server_that_hangs_is_given_up_in_time_and_asked_again"),
    "generation.vllm.max_retries": PAUSES,
    "generation.vllm.backoff": PAUSES,
    "generation.vllm.backoff_multiplier": PAUSES,
    "generation.vllm.guided_json": GUIDED,
    "generation.vllm.guided_regex": GUIDED,
    "generation.vllm.logit_bias": GUIDED,
    "generation.vllm.sync_weights": STALE,
    "generation.vllm.sync_interval": STALE,
    "generation.vllm.max_staleness": STALE,
}
