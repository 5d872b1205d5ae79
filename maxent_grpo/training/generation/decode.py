"""The decode loop: one forward pass over prompts, then one token at a time for all of their completions that still run.

The loop belongs to this package: ``model.generate`` is not used and ``model.generation_config`` is never read, so nothing
but the given controls decides what is sampled. Every prompt is run once, whatever the number of its completions, and a
finished completion leaves the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from maxent_grpo.errors import NonFiniteError
from maxent_grpo.objective.sampling import draw_tokens, penalised_logits, sampled_logits
from maxent_grpo.training.generation.prefix import Prefix
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.runtime import GenerationSettings

StopCheck = Callable[[list[list[int]]], list[bool]]
"""Given the tokens of each running completion, says which of them hold a stop string."""


@dataclass(frozen=True, slots=True)
class SamplingControls:
    """What shapes the distribution of the next token."""

    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0

    @classmethod
    def from_settings(cls, settings: GenerationSettings) -> SamplingControls:
        """The controls of ``settings``; what is None there is off."""
        return cls(
            temperature=settings.gen_temperature,
            top_p=settings.gen_top_p,
            top_k=settings.gen_top_k,
            min_p=settings.gen_min_p,
            presence=settings.gen_presence_penalty or 0.0,
            frequency=settings.gen_frequency_penalty or 0.0,
            repetition=1.0 if settings.gen_repetition_penalty is None else settings.gen_repetition_penalty,
        )

    @property
    def count_tokens(self) -> bool:
        """Whether any control depends on the tokens used so far."""
        return (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """The completions that one call of ``decode`` samples; all lists and first axes are aligned."""

    prompt_rows: Tensor
    """Row of the prefix that each completion continues [N]."""
    uniforms: Tensor
    """Uniform random number of each token, float64 [N, T]; T is the length limit."""
    names: Sequence[str]
    """Dataset row of each completion, for error messages."""


@dataclass(frozen=True, slots=True)
class DecodedTokens:
    """One completion: its tokens, the log-probability of each under the sampled distribution [nats], and why it ended."""

    token_ids: list[int]
    logp: list[float]
    finish_reason: FinishReason


def decode(
    model: PreTrainedModel,
    prefix: Prefix,
    job: DecodeJob,
    controls: SamplingControls,
    *,
    is_end: Tensor,
    allowed: Tensor | None = None,
    holds_stop: StopCheck | None = None,
) -> list[DecodedTokens]:
    """Sample the completions of ``job``, each up to and including the token that ends it.

    Args:
        model: in evaluation mode.
        prefix: the prompts; it is left unchanged and can serve further jobs.
        job: which completions, and their random numbers.
        controls: the sampled distribution.
        is_end: marks end tokens, boolean [V].
        allowed: marks the tokens that may be sampled, boolean [V]; None allows all.
        holds_stop: tells which completions hold a stop string; None when there are none.

    Raises:
        NonFiniteError: the model gave a NaN or infinite logit.
    """
    running = _Running(prefix, job, controls.count_tokens)
    num, limit = job.uniforms.shape
    result = _Result(num, limit, job.uniforms.device)
    for step in range(limit):
        _check_finite(running.logits, running.index, job.names, step)
        tokens, logp = draw_tokens(_next_logits(running, controls, allowed), job.uniforms[running.index, step])
        result.write(step, running.index, tokens, logp)
        ended = is_end[tokens]
        stopped = torch.zeros_like(ended)
        if holds_stop is not None:
            so_far = result.token_ids[running.index, : step + 1].tolist()
            stopped = torch.tensor(holds_stop(so_far), device=ended.device)
        result.finish(step, running.index, ended, stopped)
        finished = ended | stopped
        num_finished = int(finished.sum())
        if step + 1 == limit or num_finished == len(finished):
            break
        running.count(tokens)
        if num_finished:
            tokens = tokens[running.drop(finished)]
        running.logits = running.completions.advance(model, tokens, step)
    return result.completions()


class _Running:
    """The completions that have not ended, and what the model needs to go on with them."""

    def __init__(self, prefix: Prefix, job: DecodeJob, count_tokens: bool) -> None:
        rows = job.prompt_rows
        self.index = torch.arange(rows.shape[0], device=rows.device)
        self.completions = prefix.states.continued(rows, job.uniforms.shape[1])
        self.logits = prefix.logits.index_select(0, rows)
        self.prompt_counts: Tensor | None = None
        self.completion_counts: Tensor | None = None
        if count_tokens:
            self.prompt_counts = prefix.token_counts().index_select(0, rows)
            self.completion_counts = torch.zeros_like(self.prompt_counts)

    def count(self, tokens: Tensor) -> None:
        """Note ``tokens`` for the penalties."""
        if self.completion_counts is not None:
            ones = torch.ones_like(tokens, dtype=self.completion_counts.dtype)
            self.completion_counts.scatter_add_(1, tokens.unsqueeze(1), ones.unsqueeze(1))

    def drop(self, finished: Tensor) -> Tensor:
        """Drop the completions that ``finished`` marks; returns the old places of the others, which change their order."""
        kept = self.completions.drop(finished)
        self.index = self.index[kept]
        if self.prompt_counts is not None and self.completion_counts is not None:
            self.prompt_counts, self.completion_counts = self.prompt_counts[kept], self.completion_counts[kept]
        return kept


class _Result:
    """What was sampled so far, in tensors; read out once at the end."""

    def __init__(self, num: int, limit: int, device: torch.device) -> None:
        self.token_ids = torch.zeros((num, limit), dtype=torch.long, device=device)
        self.logp = torch.zeros((num, limit), dtype=torch.float64, device=device)
        self.lengths = torch.full((num,), limit, device=device)
        self.ended = torch.zeros(num, dtype=torch.bool, device=device)
        self.stopped = torch.zeros(num, dtype=torch.bool, device=device)

    def write(self, step: int, index: Tensor, tokens: Tensor, logp: Tensor) -> None:
        self.token_ids[index, step] = tokens
        self.logp[index, step] = logp.double()

    def finish(self, step: int, index: Tensor, ended: Tensor, stopped: Tensor) -> None:
        self.ended[index], self.stopped[index] = ended, stopped
        self.lengths[index[ended | stopped]] = step + 1

    def completions(self) -> list[DecodedTokens]:
        columns = (self.token_ids, self.logp, self.lengths, self.ended, self.stopped)
        completions: list[DecodedTokens] = []
        for ids, logp, length, ended, stopped in zip(*(column.tolist() for column in columns), strict=True):
            reason = FinishReason.eos if ended else FinishReason.stop if stopped else FinishReason.length
            completions.append(DecodedTokens(ids[:length], logp[:length], reason))
        return completions


def _next_logits(running: _Running, controls: SamplingControls, allowed: Tensor | None) -> Tensor:
    logits = running.logits
    if running.prompt_counts is not None and running.completion_counts is not None:
        logits = penalised_logits(
            logits,
            running.prompt_counts,
            running.completion_counts,
            presence=controls.presence,
            frequency=controls.frequency,
            repetition=controls.repetition,
        )
    return sampled_logits(
        logits,
        temperature=controls.temperature,
        allowed=allowed,
        top_k=controls.top_k,
        top_p=controls.top_p,
        min_p=controls.min_p,
    )


def _check_finite(logits: Tensor, index: Tensor, names: Sequence[str], step: int) -> None:
    # two reductions cost far less than a mask over the vocabulary, and NaN shows in both
    if bool(torch.isfinite(logits.amin(dim=-1) + logits.amax(dim=-1)).all()):
        return
    finite = torch.isfinite(logits).all(dim=-1)
    if bool(finite.all()):
        return
    broken = [names[i] for i in index[~finite].tolist()]
    shown = ", ".join(repr(name) for name in list(dict.fromkeys(broken))[:5])
    raise NonFiniteError(
        f"the model's logits are NaN or infinite at completion token {step} for {len(broken)} of {len(index)} completions "
        f"(rows {shown}): nothing can be sampled from them. The weights are probably broken: look at loss and gradient "
        "norm of the steps before, and lower optimization.learning_rate or set optimization.max_grad_norm"
    )
