"""The sizes of a model that its operations follow from."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from maxent_grpo.training.types.flops import ComputeShape

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Where a configuration says how many experts share the tokens."""


def compute_shape(model: PreTrainedModel) -> ComputeShape | None:
    """The sizes of a decoder with its adapter; None where each token passes only some of its matrices, or has no attention.

    Windows of attention are not known here: where a sequence is longer than them, operations are counted too high.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or any(getattr(config, name, None) for name in EXPERTS):
        return None
    head = model.get_output_embeddings()
    output = None if head is None else head.weight
    matrices = {
        id(module.weight): module.weight
        for module in model.modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module.weight is not output
    }
    return ComputeShape(
        body=sum(weight.numel() for weight in matrices.values()),
        trained=sum(weight.numel() for weight in matrices.values() if weight.requires_grad),
        head=0 if output is None else output.numel(),
        head_is_trained=output is not None and output.requires_grad,
        layers=int(config.num_hidden_layers),
        attention=heads * int(getattr(config, "head_dim", None) or config.hidden_size // heads),
    )
