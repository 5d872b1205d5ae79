"""The policy's weights as a folder that vLLM reads, and the check that it computes with what it was given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.errors import GenerationError
from maxent_grpo.models.adapter import merged_model
from maxent_grpo.training.forward import evaluation_mode, uncompiled
from maxent_grpo.training.generation.vllm import guard

PROBE_TOKENS = 16
"""Length of the sequence whose log-probabilities are compared [tokens]."""
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Mean difference of log-probabilities that is rounding [nats]."""
KEPT = 2
"""Snapshots that stay: the one in use, and the one before it, which a server may still be reading."""
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "maxent_grpo_"
"""Begins the names of folders with snapshots."""


def snapshot_root(run_dir: Path, chosen: str | None) -> Path:
    """A new folder for snapshots: in a chosen one, in memory that this machine's processes share, or in the run's folder.

    It is this run's alone, since it is removed with all that is in it when the run ends. In a chosen folder it can be read by
    servers of other users.
    """
    in_memory = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    parent = Path(chosen) if chosen is not None else SHARED_MEMORY if in_memory else run_dir / "vllm"
    parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}_", dir=parent))
    if chosen is not None:
        root.chmod(0o755)
    return root


class Snapshots:
    """Writes the policy into numbered folders, each of which appears whole or not at all."""

    def __init__(self, root: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._root, self._model, self._tokenizer = root, model, tokenizer
        # however this process ends, gigabytes of shared memory are not left behind
        self._guard = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, guard.REMOVE, str(root)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def write(self, version: int) -> Path:
        """The policy as it is now, an adapter merged into it, as a transformers folder; old ones go."""
        folder = self._root / f"version_{version}"
        working = self._root / f".version_{version}.partial"
        shutil.rmtree(working, ignore_errors=True)
        working.mkdir(parents=True)
        plain = merged_model(self._model, torch.device("cpu"))
        plain.save_pretrained(working)
        self._tokenizer.save_pretrained(working)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(working, folder)
        for old in sorted(self._root.glob("version_*"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    def any(self) -> Path:
        """The newest snapshot there is, or a first one, for a server that is given the right one when it is ready."""
        there = sorted(self._root.glob("version_*"), key=lambda path: path.stat().st_mtime)
        return there[-1] if there else self.write(0)

    def remove(self) -> None:
        """Remove every snapshot."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


@torch.no_grad()
def probe_tokens(model: PreTrainedModel) -> list[int]:
    """A token from the middle of the vocabulary and what the model finds most likely after it.

    Of unlikely tokens two correct engines disagree by far more: in bfloat16 a logit of 16 to 32 is a multiple of 0.125, and only
    where a token has most of the probability does its own rounding stand in the normaliser too.
    """
    weight = cast(torch.Tensor, model.get_input_embeddings().weight)
    ids = torch.tensor([[weight.shape[0] // 2]], device=next(model.parameters()).device)
    with evaluation_mode(model), uncompiled(model):
        for _ in range(PROBE_TOKENS - 1):
            following = model(input_ids=ids, use_cache=False).logits[:, -1].argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, following], dim=1)
    return ids[0].tolist()


@torch.no_grad()
def own_prompt_logp(model: PreTrainedModel, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of each token but the first given those before it, at temperature 1 [nats]."""
    ids = torch.tensor([list(token_ids)], device=next(model.parameters()).device)
    with evaluation_mode(model), uncompiled(model):
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:].unsqueeze(1)).squeeze(1).tolist()


def check_probe(own: Sequence[float], theirs: Sequence[float], version: int, where: str, dtype: torch.dtype) -> float:
    """The mean difference of two sets of log-probabilities of the same tokens [nats].

    Raises:
        GenerationError: it is more than rounding.
    """
    gap = sum(abs(a - b) for a, b in zip(own, theirs, strict=True)) / len(own)
    if not gap <= PROBE_TOLERANCE[dtype]:
        mean_own, mean_theirs = sum(own) / len(own), sum(theirs) / len(theirs)
        raise GenerationError(
            f"after taking the weights of version {version}, {where} gives a probe of {len(own) + 1} tokens the mean "
            f"log-probability {mean_theirs:.6f} and the trainer {mean_own:.6f} (mean difference per token {gap:.2g} nats, at most "
            f"{PROBE_TOLERANCE[dtype]:g}): it computes with other weights or another model, and nothing is trained on its completions"
        )
    return gap
