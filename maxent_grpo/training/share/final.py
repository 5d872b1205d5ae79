"""The trained model of a run, written when training ends or afterwards from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import CheckpointError
from maxent_grpo.models.adapter import has_adapter
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.models.published import license_files, published_name
from maxent_grpo.report.record import read_record
from maxent_grpo.training.checkpoint.weights import ADAPTER_FOLDER, MODEL_FOLDER
from maxent_grpo.training.share.card import Subject, model_card
from maxent_grpo.training.share.folder import write_adapter_folder, write_model_folder


def write_trained(config: RootConfig, loaded: LoadedModel, run_dir: Path, target: Path, step: int) -> list[Path]:
    """Write `model/`, and with an adapter `adapter/`, into ``target``; returns the folders.

    Raises:
        CheckpointError: the disk is full or cannot be written to.

    Args:
        config: the run's settings.
        loaded: its model with the weights of ``step``, and the tokenizer.
        run_dir: where the run's record is, from which the model card is made.
        target: the folder to write into; the run's own when training ends.
        step: the optimiser step that the weights come from.
    """
    record, licenses = read_record(run_dir), license_files(config.model)
    trained = sum(parameter.numel() for parameter in loaded.model.parameters() if parameter.requires_grad)
    total = loaded.model.num_parameters()
    whole = total - trained if has_adapter(loaded.model) else total
    subject = Subject(config, record, step, str(loaded.model.dtype).removeprefix("torch."), whole, trained)
    written: list[Path] = []
    try:
        if has_adapter(loaded.model):
            written.append(target / ADAPTER_FOLDER)
            card = model_card(subject, is_adapter=True)
            write_adapter_folder(
                written[-1], loaded.model, loaded.tokenizer, card, licenses, published_name(config.model)
            )
        written.append(target / MODEL_FOLDER)
        card = model_card(subject, is_adapter=False)
        write_model_folder(written[-1], loaded.model, loaded.tokenizer, card, licenses)
    except OSError as error:
        raise CheckpointError(
            f"{written[-1]} cannot be written ({error}); the checkpoints in {run_dir} are whole: make room, then write it with "
            f"`python -m maxent_grpo export run={run_dir} output=FOLDER`"
        ) from error
    return written
