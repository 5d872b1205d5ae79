"""What a run says of itself at its start that its configuration does not know."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from maxent_grpo.config.root import RootConfig
from maxent_grpo.models.adapter import parameters_text
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.tokenize import RenderedRows
from maxent_grpo.training.checkpoint.weights import MODEL_FOLDER
from maxent_grpo.training.prepared_rows import data_facts, num_dropped, rows_per_epoch


def facts(
    config: RootConfig,
    accelerator: Accelerator,
    task: Task,
    loaded: LoadedModel,
    train: RenderedRows,
    held_out: RenderedRows,
) -> dict[str, Any]:
    """What only the run knows, for the start-up summary."""
    data = data_facts(config, task, loaded, train, held_out)
    return {
        "train_rows": rows_per_epoch(task, train),
        "eval_rows": len(held_out.rows),
        "dropped_prompts": num_dropped(data),
        "data": data,
        "num_processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "truncated_prompts": train.num_truncated + held_out.num_truncated,
        "parameters": parameters_text(loaded.model),
        "directory": config.run.dir,
        "trained_model": f"{MODEL_FOLDER}/ in it when training ends"
        if config.checkpoint.final_model
        else "not written",
    }
