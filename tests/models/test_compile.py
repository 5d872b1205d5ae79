"""A compiled model computes what it computes as written, for all lengths by the same few graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.checkpoints import ARCHITECTURES, save_checkpoint
from support.runs import checkpoint_of, train, weights_of
from torch._dynamo.utils import counters

SETTINGS = (
    "model=hf",
    "generation.allowed_tokens=[]",
    "optimization.total_training_steps=3",
    "optimization.adam_epsilon=1e-3",
    "evaluation.every_n_steps=2",
    "scoring.weighting.beta=0.1",
)
"""With a reference, and evaluation between the steps."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
def test_a_compiled_run_is_the_run_as_written_up_to_rounding(kind: str, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "model", kind)
    torch._dynamo.reset()
    counters.clear()
    weights = []
    for compiles in (False, True):
        run_dir = tmp_path / str(compiles)
        train(
            run_dir, *SETTINGS, *ARCHITECTURES[kind].settings, f"model.name={checkpoint}", f"model.compile={compiles}"
        )
        weights.append(weights_of(checkpoint_of(run_dir)))
    plain, compiled = weights
    assert plain.keys() == compiled.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(compiled[name], tensor, atol=1e-3, rtol=0)
    # the policy and the reference, with and without gradient, in training and in evaluation mode
    assert counters["stats"]["unique_graphs"] <= 6
    assert sum(counters["graph_break"].values()) == 0
