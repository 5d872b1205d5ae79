"""`generation=local`: completions sampled in this process from the transformers model that is being trained.

``LocalGenerator`` decides what is decoded together and with which random numbers, and turns tokens into texts and records;
the decode loop itself is in ``decode``. Neither the batch size nor the other prompts of a call change what a prompt
draws, up to rounding in the model's matrix products.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.errors import DataError, GenerationError
from maxent_grpo.models.attention import takes_layouts
from maxent_grpo.training.forward import evaluation_mode, uncompiled
from maxent_grpo.training.generation.decode import (
    DecodedTokens,
    DecodeJob,
    SamplingControls,
    StopCheck,
    decode,
)
from maxent_grpo.training.generation.prefix import Prefix, prefill
from maxent_grpo.training.generation.shared_prefix import layout_problem
from maxent_grpo.training.generation.streams import batch_uniforms
from maxent_grpo.training.generation.texts import completion_texts
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import GenerationSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Request:
    """One prompt of a call: what to run, how many completions, and which of its row's samples they are."""

    position: int
    """Place in the call's list of prompts."""
    row_id: str
    stream_id: str
    """What the random numbers are keyed by."""
    input_ids: Sequence[int]
    first_sample: int
    num_samples: int


class LocalGenerator:
    """Samples completions from a transformers model; implements ``GenerationFn``.

    Temperature 0 takes the most likely token; each log-probability is then 0, that of the greedy distribution.

    Attributes:
        policy_version: optimiser step whose weights the model has; written by the loop, copied into each record.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: GenerationSettings,
        prompt_cache_get: Callable[[str], PromptCacheEntry],
        *,
        seed: int,
        stream: str,
        pad_token_id: int,
        eos_token_ids: Collection[int],
    ) -> None:
        """Keep what sampling needs; nothing is copied, so that new weights and settings act at the next call.

        Args:
            model: causal language model with a transformers cache; its own generation_config is not read.
            tokenizer: decodes completions.
            settings: lengths, sampling controls and batch size.
            prompt_cache_get: the tokens of a prompt.
            seed: seed of every random number drawn here.
            stream: names this generator's random numbers, such as "train" or "eval".
            pad_token_id: fills prompts on the left; may be an end token, since masks come from lengths.
            eos_token_ids: tokens that end a completion; they may always be sampled. Empty: only length and stop strings end it.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.policy_version = 0
        self._prompt_cache_get = prompt_cache_get
        self._seed, self._stream = seed, stream
        self._pad_token_id = pad_token_id
        self._eos_token_ids = frozenset(eos_token_ids)
        self._rollout = 0
        self._num_drawn: dict[str, int] = {}
        self._lays_out: bool | None = None

    def begin_rollout(self, index: int, *, ahead: int = 0) -> None:
        """Start rollout ``index``: rows draw their samples 0, 1, ... of it; the same index draws the same samples again.

        Within a rollout a row that is asked again, as in a retry, goes on with the next samples. How far ``ahead`` of its training
        it is sampled changes nothing here.
        """
        self._rollout = index
        self._num_drawn.clear()

    def count_elsewhere(self, prompts: Sequence[str], num_samples: int) -> None:
        """Another process draws the next ``num_samples`` completions of each prompt's row: what is asked here goes on behind them."""
        for prompt in prompts:
            stream_id = getattr(prompt, "row_id", "") or f"text:{prompt}"
            self._num_drawn[stream_id] = self._num_drawn.get(stream_id, 0) + num_samples

    @torch.no_grad()
    def __call__(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[CompletionRecord | None]]]:
        """Sample ``num_samples`` completions for each prompt, or ``per_prompt_counts[i]`` for prompt i.

        Prompts are identified by their ``row_id`` attribute, or by their text where they have none.

        Returns:
            Texts grouped by prompt, without end token, special tokens, or anything from a stop string on; and one record
            per text, whose tokens include the end token or the one that completed the stop string.

        Raises:
            ValueError: the counts do not match the prompts or are negative.
            DataError: a prompt has no tokens.
            GenerationError: a token to allow or to end with is not in the model's vocabulary.
            NonFiniteError: the model gave a NaN or infinite logit.
        """
        requests = self._requests(prompts, num_samples, per_prompt_counts)
        texts: list[list[str]] = [[] for _ in prompts]
        records: list[list[CompletionRecord | None]] = [[] for _ in prompts]
        with evaluation_mode(self.model), uncompiled(self.model):
            for group in _groups(requests, self.settings.batch_size):
                owners, decoded = self._sample(group)
                for request, completion, text in zip(owners, decoded, self._texts(decoded), strict=True):
                    texts[request.position].append(text)
                    records[request.position].append(self._record(request, completion))
        return texts, records

    def _requests(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None) -> list[_Request]:
        counts = [num_samples] * len(prompts) if per_prompt_counts is None else per_prompt_counts
        if len(counts) != len(prompts) or any(count < 0 for count in counts):
            raise ValueError(f"{len(prompts)} prompts need as many counts, none negative; got {counts}")
        requests: list[_Request] = []
        for position, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            if count == 0:
                continue
            row_id = getattr(prompt, "row_id", "")
            input_ids = self._prompt_cache_get(prompt).input_ids
            if not input_ids:
                raise DataError(
                    f"the prompt of row {row_id!r} has no tokens: there is nothing to continue; drop the row"
                )
            stream_id = row_id or f"text:{prompt}"
            first = self._num_drawn.get(stream_id, 0)
            self._num_drawn[stream_id] = first + count
            requests.append(_Request(position, row_id, stream_id, input_ids, first, count))
        return requests

    def _sample(self, group: list[_Request]) -> tuple[list[_Request], list[DecodedTokens]]:
        """Prefill the group's prompts once and decode their completions, at most ``batch_size`` at a time."""
        device = next(self.model.parameters()).device
        prompts = [request.input_ids for request in group]
        prefix = prefill(self.model, prompts, self._pad_token_id, device, laid_out=self._takes_layouts(prompts[0]))
        is_end, allowed = self._token_masks(prefix)
        owners = [(row, request) for row, request in enumerate(group) for _ in range(request.num_samples)]
        samples = [
            (request.stream_id, request.first_sample + offset)
            for request in group
            for offset in range(request.num_samples)
        ]
        at_once = self.settings.batch_size or len(owners)
        decoded: list[DecodedTokens] = []
        for start in range(0, len(owners), at_once):
            piece = owners[start : start + at_once]
            job = DecodeJob(
                prompt_rows=torch.tensor([row for row, _ in piece], device=device),
                uniforms=self._uniforms(samples[start : start + at_once]).to(device),
                names=[request.row_id for _, request in piece],
            )
            controls = SamplingControls.from_settings(self.settings)
            decoded += decode(
                self.model, prefix, job, controls, is_end=is_end, allowed=allowed, holds_stop=self._stop_check()
            )
        return [request for _, request in owners], decoded

    def _takes_layouts(self, token_ids: Sequence[int]) -> bool:
        """Whether prompts and completions are laid out by us; the model is tried at the first call."""
        if self._lays_out is None:
            problem = layout_problem(self.model, token_ids) if takes_layouts(self.model) else ""
            if problem:
                logger.warning("sampling pads prompts and copies their keys for each completion: %s", problem)
            self._lays_out = takes_layouts(self.model) and not problem
        return self._lays_out

    def _uniforms(self, samples: list[tuple[str, int]]) -> Tensor:
        length = self.settings.max_completion_len
        return torch.from_numpy(batch_uniforms(self._seed, self._stream, self._rollout, samples, length))

    def _token_masks(self, prefix: Prefix) -> tuple[Tensor, Tensor | None]:
        """Which tokens end a completion, and which may be sampled."""
        vocab, device = prefix.logits.shape[-1], prefix.logits.device
        is_end = _token_mask(self._eos_token_ids, "end token", vocab, device)
        if self.settings.allowed_token_ids is None:
            return is_end, None
        return is_end, _token_mask(self.settings.allowed_token_ids, "allowed token", vocab, device) | is_end

    def _stop_check(self) -> StopCheck | None:
        stops = self.settings.gen_stop_sequences
        if not stops:
            return None

        def holds_stop(token_ids: list[list[int]]) -> list[bool]:
            texts = self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
            return [any(stop in text for stop in stops) for text in texts]

        return holds_stop

    def _texts(self, decoded: list[DecodedTokens]) -> list[str]:
        completions = [(completion.token_ids, completion.finish_reason) for completion in decoded]
        return completion_texts(self.tokenizer, completions, self.settings.gen_stop_sequences or [])

    def _record(self, request: _Request, completion: DecodedTokens) -> CompletionRecord:
        return CompletionRecord(
            row_id=request.row_id,
            token_ids=completion.token_ids,
            behaviour_logp=completion.logp,
            finish_reason=completion.finish_reason,
            policy_version=self.policy_version,
        )


def _groups(requests: list[_Request], batch_size: int) -> list[list[_Request]]:
    """Whole prompts that are prefilled together: as many as have at most ``batch_size`` completions, but at least one.

    Prompts of similar length share a group, so that little padding is run.
    """
    ordered = sorted(requests, key=lambda request: len(request.input_ids))
    if batch_size <= 0:
        return [ordered] if ordered else []
    groups: list[list[_Request]] = []
    size = 0
    for request in ordered:
        if groups and size + request.num_samples <= batch_size:
            groups[-1].append(request)
            size += request.num_samples
        else:
            groups.append([request])
            size = request.num_samples
    return groups


def _token_mask(token_ids: Collection[int], what: str, vocab: int, device: torch.device) -> Tensor:
    outside = sorted(token for token in token_ids if not 0 <= token < vocab)
    if outside:
        raise GenerationError(
            f"{what} ids {outside[:5]} are outside the model's vocabulary of {vocab}: they can never be sampled; "
            "check that the tokenizer belongs to the model"
        )
    mask = torch.zeros(vocab, dtype=torch.bool, device=device)
    mask[torch.tensor(sorted(token_ids), dtype=torch.long, device=device)] = True
    return mask
