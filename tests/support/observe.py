"""What can be seen of a run from outside: weights, records, files, and how often its parts were called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.runs import checkpoint_of, metric_lines, weights_of
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaMLP

from maxent_grpo.config.root import RootConfig
from maxent_grpo.rewards.workers import RewardWorkers
from maxent_grpo.tasks.tokenize import PromptCache
from maxent_grpo.training.generation import local
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.setup import run_from_config


@dataclass
class Seen:
    """A finished run."""

    run_dir: Path
    steps: int
    weights: dict[str, Tensor]
    lines: list[dict[str, float]]
    counts: Counter[str]

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """Step and evaluation figures of every line that has some."""
        found = [
            {name: line[name] for name in line if name.startswith("eval/")} | {"step": line["step"]}
            for line in self.lines
        ]
        return [line for line in found if len(line) > 1]

    def series(self, name: str) -> list[float | None]:
        """A metric, step by step."""
        return [line.get(name) for line in self.lines if line["step"] > 0]

    @property
    def files(self) -> set[str]:
        """Names in the run directory and its checkpoints."""
        return {
            str(path.relative_to(self.run_dir))
            for pattern in ("*", "checkpoints/*", "profile/*")
            for path in self.run_dir.glob(pattern)
        }


def observe(config: RootConfig) -> Seen:
    """Run to the end and look at what happened; the number of threads is put back."""
    threads = torch.get_num_threads()
    try:
        with _counting() as counts:
            result = run_from_config(config)
            counts["threads"] = torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    lines = metric_lines(result.run_dir)
    for name in ("forward_passes", "fed_tokens"):
        counts[name] = int(sum(line.get(f"scoring/{name}", 0) for line in lines))
    return Seen(result.run_dir, result.global_step, weights_of(checkpoint_of(result.run_dir)), lines, counts)


def _spied(owner: Any, name: str, note: Callable[..., None]) -> Any:
    original = getattr(owner, name)

    def spy(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # a count would be a guard of the graph, and each call another graph
            note(*args, **kwargs)
        return original(*args, **kwargs)

    return patch.object(owner, name, spy)


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    caches: list[PromptCache] = []

    def count(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: counts.update([name])

    def assembled(*args: Any) -> None:
        counts["slices"] += 1
        counts["slices ahead"] += threading.current_thread() is not threading.main_thread()

    with ExitStack() as spies:
        for spy in (
            _spied(TokenScorer, "assemble", assembled),
            _spied(local, "decode", count("decodes")),
            _spied(RewardWorkers, "start", count("shares rewarded elsewhere")),
            _spied(local.LocalGenerator, "__call__", count("sampler calls")),
            _spied(PromptCache, "__init__", lambda cache, *args: caches.append(cache)),
            _spied(LlamaMLP, "forward", count("layer passes")),
            _spied(torch.nn.functional, "scaled_dot_product_attention", count("fused attentions")),
        ):
            spies.enter_context(spy)
        yield counts
    counts["cache hits"] = sum(cache.hits for cache in caches)
