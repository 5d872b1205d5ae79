"""Imported before TRL's trainer: TRL does not see vLLM, which it would load with every test and is never asked to sample with."""

from trl import import_utils


def _not_there(min_version: str | None = None) -> bool:
    return False


import_utils.is_vllm_available = _not_there
