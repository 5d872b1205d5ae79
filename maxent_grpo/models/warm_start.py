"""The supervised stage before reinforcement learning: a small model learns to answer, imperfectly and with a preference.

Minimises, over problems x with right answers y and demonstrator probabilities w, the expected negative log-likelihood
``sum_y w(y | x) * -log pi(y, end | x)``. Each step estimates the inner sum from a few drawn answers, which stand behind one copy
of their problem, or takes it exactly. Results are cached by content.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional
from transformers import PreTrainedModel

from maxent_grpo.config.model import WarmStartConfig
from maxent_grpo.errors import ConfigError, DataError, NonFiniteError
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.models.demonstrations import (
    PackedDemonstration,
    TokenizedDemonstration,
    WeightedAnswers,
    WritePrompt,
    collate,
    draw_answers,
    pack,
    target_logits,
    tokenize_demonstration,
)
from maxent_grpo.models.weight_cache import read_weights, state_digest, write_weights

CODE_VERSION = 1
"""Raise when a change to this module or to demonstrations.py changes the trained weights."""
WARMUP_FRACTION = 0.1
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
SLICE_ROWS = 32
"""Rows of one forward pass. A step's rows are sorted by length first, so that short ones are not padded to the longest."""


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """What the supervised stage did."""

    cached: bool
    """The weights were read from the cache."""
    seconds: float
    """Wall-clock time, reading or training [s]."""
    final_loss: float
    """Mean loss of the last tenth of the steps, summed over an answer's tokens [nats per answer]."""
    num_steps: int
    """Optimiser steps behind the weights [steps]."""
    num_corrupted: int
    """Cache files that could not be trusted and were trained anew (0 or 1)."""
    path: Path
    """The cache file."""


def warm_start(
    loaded: LoadedModel,
    demonstrations: Sequence[WeightedAnswers],
    settings: WarmStartConfig,
    *,
    identity: Mapping[str, object],
    write: WritePrompt | None = None,
) -> WarmStartReport:
    """Train ``loaded.model`` in place on ``demonstrations``, or load the result of an earlier training on the same.

    The cache key covers the starting weights, the architecture, the tokenizer, every demonstration, the settings, the torch
    version, ``CODE_VERSION`` and ``identity`` (whatever else the caller holds to matter, such as what decides how ``write``
    writes a question; must be JSON). Weights of less than
    32 bits are trained as float32 and rounded at the end. No random state outside is read or changed, and equal inputs give
    equal bits on one machine with one number of threads.

    Raises:
        ConfigError: steps, batch size or learning rate leave nothing to train.
        DataError: there are no demonstrations, or one is malformed.
        NonFiniteError: the loss diverged.
    """
    _check(settings, demonstrations)
    started = time.perf_counter()
    key = cache_key(loaded, demonstrations, settings, identity)
    path = Path(settings.cache_dir) / f"warm-start-{key[:32]}.safetensors"
    stored = read_weights(path, loaded.model)
    if stored.final_loss is not None:
        seconds = time.perf_counter() - started
        return WarmStartReport(True, seconds, stored.final_loss, settings.steps, 0, path)
    tokenized = [tokenize_demonstration(demonstration, loaded.tokenizer, write) for demonstration in demonstrations]
    final_loss = _train(loaded.model, tokenized, settings)
    write_weights(path, loaded.model, final_loss)
    return WarmStartReport(
        False, time.perf_counter() - started, final_loss, settings.steps, int(stored.corrupted), path
    )


def cache_key(
    loaded: LoadedModel,
    demonstrations: Sequence[WeightedAnswers],
    settings: WarmStartConfig,
    identity: Mapping[str, object],
) -> str:
    """Hash of everything that the trained weights depend on; where the cache lies is not part of it."""
    digest = hashlib.sha256()
    choices = {name: value for name, value in asdict(settings).items() if name not in {"cache_dir", "enabled"}}
    parts = {
        "code": CODE_VERSION,
        "torch": torch.__version__,
        "identity": dict(identity),
        "settings": choices,
        "architecture": loaded.model.config.to_diff_dict(),
        "attention": loaded.model.config._attn_implementation,
        "tokenizer": loaded.tokenizer.get_vocab(),
        "template": loaded.tokenizer.chat_template,
    }
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    digest.update(state_digest(loaded.model.state_dict()).encode())
    for demonstration in demonstrations:
        content = [demonstration.messages, demonstration.answers, demonstration.weights]
        digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def demonstration_loss(model: PreTrainedModel, packed: Sequence[PackedDemonstration]) -> torch.Tensor:
    """Sum over rows of the weighted negative log-likelihood of their answers [nats], with gradient."""
    batch = collate(packed, next(model.parameters()).device)
    nll = functional.cross_entropy(target_logits(model, batch), batch.targets, reduction="none")
    return (nll * batch.weights).sum()


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Linear rise over the first tenth, then half a cosine towards 0; ``step`` counts from 0. Never 0 itself."""
    warmup = max(1.0, WARMUP_FRACTION * num_steps)
    if step < warmup:
        return min(1.0, (step + 1) / warmup)
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1.0, num_steps - warmup)))


def step_rows(
    tokenized: Sequence[TokenizedDemonstration], settings: WarmStartConfig
) -> Iterator[list[PackedDemonstration]]:
    """Each step's packed rows: reshuffled passes over all problems, cut into batches, with freshly drawn answers.

    The order of problems and the draws come from two streams of ``settings.seed``.
    """
    order, draws = (np.random.Generator(np.random.Philox(key=[settings.seed, stream])) for stream in (0, 1))
    waiting: list[int] = []
    for _ in range(settings.steps):
        while len(waiting) < settings.batch_size:
            waiting += order.permutation(len(tokenized)).tolist()
        chosen = [tokenized[index] for index in waiting[: settings.batch_size]]
        del waiting[: settings.batch_size]
        yield [pack(item, draw_answers(item, settings.answers_per_problem, draws)) for item in chosen]


def _train(model: PreTrainedModel, tokenized: list[TokenizedDemonstration], settings: WarmStartConfig) -> float:
    """Run the supervised steps in place; the mean loss of the last tenth of them."""
    dtype, was_training = next(model.parameters()).dtype, model.training
    if dtype.itemsize < torch.float32.itemsize:
        model.float()
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    losses: list[float] = []
    with _Display(settings.steps) as display:
        for step, rows in enumerate(step_rows(tokenized, settings)):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * learning_rate_factor(step, settings.steps)
            losses.append(_train_step(model, optimizer, rows, step))
            display.advance(losses[-1])
    model.to(dtype)  # pyright: ignore[reportArgumentType] - the wrapped signature loses dtype
    model.train(was_training)
    tail = losses[-max(1, settings.steps // 10) :]
    return math.fsum(tail) / len(tail)


def _train_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, rows: list[PackedDemonstration], step: int
) -> float:
    """One optimiser step on the mean loss over ``rows``, accumulated over slices of like length."""
    rows = sorted(rows, key=lambda row: len(row.token_ids))
    total = 0.0
    for start in range(0, len(rows), SLICE_ROWS):
        loss = demonstration_loss(model, rows[start : start + SLICE_ROWS]) / len(rows)
        loss.backward()
        total += loss.item()
    if not math.isfinite(total):
        raise NonFiniteError(
            f"the supervised loss is {total} at step {step}: the weights have diverged. "
            f"Lower model.warm_start.learning_rate."
        )
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def _check(settings: WarmStartConfig, demonstrations: Sequence[WeightedAnswers]) -> None:
    problems = [
        f"model.warm_start.{name}={value} must be greater than 0, or nothing is trained"
        for name, value in (
            ("steps", settings.steps),
            ("batch_size", settings.batch_size),
            ("learning_rate", settings.learning_rate),
        )
        if not value > 0
    ]
    problems += [
        f"model.warm_start.{name}={value} must not be negative"
        for name, value in (("seed", settings.seed), ("answers_per_problem", settings.answers_per_problem))
        if value < 0
    ]
    if problems:
        raise ConfigError(problems)
    if not demonstrations:
        raise DataError(
            "there are no demonstrations to train the warm start on. "
            "Set model.warm_start.num_problems above 0 or model.warm_start.enabled=false."
        )


class _Display:
    """Progress on stderr: a bar on a terminal, else one line at the start and one at the end."""

    def __init__(self, num_steps: int) -> None:
        self._console = Console(stderr=True)
        self._num_steps = num_steps
        self._loss = math.nan
        self._bar: Progress | None = None

    def __enter__(self) -> _Display:
        if self._console.is_terminal:
            columns = (
                TextColumn("warm start"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]:.3f}"),
            )
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("warm start", total=self._num_steps, loss=math.nan)
            self._bar.start()
        else:
            self._console.print(f"warm start: {self._num_steps} supervised steps (cached afterwards)", highlight=False)
        return self

    def advance(self, loss: float) -> None:
        """One step is done."""
        self._loss = loss
        if self._bar is not None:
            self._bar.update(self._task, advance=1, loss=loss)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._console.print(f"warm start: last loss {self._loss:.3f} nats per answer", highlight=False)
