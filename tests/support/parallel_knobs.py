"""The settings of `optimization.parallel`, each with the file and the test that show what it does."""

from __future__ import annotations

SHARDED = "distributed/test_sharded.py"
ZERO = (SHARDED, "test_the_settings_of_zero_are_those_of_accelerates_plugin")

PARALLEL_KNOBS: dict[str, tuple[str, str]] = {
    "optimization.parallel.strategy": (SHARDED, "test_cut_weights_train_as_whole_ones_do"),
    "optimization.parallel.fsdp.reshard_after_forward": (
        SHARDED,
        "test_the_settings_of_fsdp_are_those_of_accelerates_plugin",
    ),
    "optimization.parallel.fsdp.cpu_offload": (SHARDED, "test_the_settings_of_fsdp_are_those_of_accelerates_plugin"),
    **{
        f"optimization.parallel.deepspeed.{name}": ZERO
        for name in ("zero_stage", "offload_optimizer", "offload_parameters", "overlap_comm")
    },
}
"""Setting to test file below `tests` and test function."""
