"""What two processes do at once: each samples its share of the same rows, and learns what all of them sampled."""

from __future__ import annotations

from accelerate import Accelerator
from support.tiny import prompt_entries, sampling_settings, tiny_llama, tiny_tokenizer

from maxent_grpo.distributed import gather_all
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.generation.local import LocalGenerator

ROWS = [RowPrompt("1+1=", row_id) for row_id in ("a", "b", "c", "d")]
"""Four rows that ask the same."""


def sampled(rows: list[RowPrompt]) -> dict[str, list[list[int]]]:
    """Row to the tokens of its completions."""
    import torch

    tokenizer = tiny_tokenizer()
    generator = LocalGenerator(
        tiny_llama(torch.float32), tokenizer, sampling_settings(max_completion_len=8), prompt_entries(tokenizer),
        seed=0, stream="train", pad_token_id=0, eos_token_ids=(2,),
    )  # fmt: skip
    _, records = generator(list(rows), 4)
    assert records is not None
    return {record.row_id: [other.token_ids for other in group] for group in records for record in group[:1]}


def sampled_by_all() -> list[dict[str, list[list[int]]]]:
    """What each process sampled of its share."""
    accelerator = Accelerator(cpu=True)
    everywhere = gather_all(accelerator, sampled(ROWS[accelerator.process_index :: accelerator.num_processes]))
    accelerator.end_training()
    return everywhere
