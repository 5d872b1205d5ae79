"""`generation=vllm`: completions sampled by vLLM with the policy's weights.

``VllmGenerator`` decides when the engine gets new weights, what it is asked, and turns its answers into texts and records. In a run
of several processes each call of it is collective, as each may bring weights or have to be repeated by all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

from transformers import PreTrainedTokenizerBase

from maxent_grpo.errors import DataError, GenerationError
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.generation.texts import completion_texts
from maxent_grpo.training.generation.vllm.ask import Answer, Ask, ask_seed, sampling_parameters
from maxent_grpo.training.generation.vllm.engine_weights import EngineWeights
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import GenerationSettings

_Name = tuple[str, int, int]
"""Row, number of samples and seed: no two asks of a rollout share them."""


class VllmGenerator:
    """Samples completions with vLLM; implements ``GenerationFn``.

    Attributes:
        policy_version: optimiser step whose weights the trainer has; written by the loop.
    """

    def __init__(
        self,
        weights: EngineWeights,
        tokenizer: PreTrainedTokenizerBase,
        settings: GenerationSettings,
        prompt_cache_get: Callable[[str], PromptCacheEntry],
        *,
        seed: int,
        stream: str,
        eos_token_ids: Collection[int],
        sync_interval: int,
        local: LocalGenerator | None = None,
    ) -> None:
        """Keep what sampling needs; see ``LocalGenerator`` for the arguments.

        ``sync_interval``: bring new weights before every n-th rollout [rollouts]; evaluations take them each time.
        ``local``: samples what vLLM does not deliver; None makes that an error.
        """
        self.policy_version = 0
        self._weights, self._tokenizer, self._settings = weights, tokenizer, settings
        self._prompt_cache_get = prompt_cache_get
        self._seed, self._stream = seed, stream
        self._eos_token_ids = frozenset(eos_token_ids)
        self._sync_interval = sync_interval
        self._stops = settings.gen_stop_sequences or []
        self._local = local
        self._rollout = 0
        self._num_drawn: dict[str, int] = {}
        self._sent: dict[_Name, Future[list[Answer] | None]] = {}

    def begin_rollout(self, index: int, *, ahead: int = 0) -> None:
        """Start rollout ``index``, with the policy's weights as they are now when a sync is due.

        ``ahead``: optimiser steps that will be taken before it trains.

        Raises:
            GenerationError: the weights did not arrive, or would be too old by then.
        """
        self._rollout = index
        self._num_drawn.clear()
        self._sent.clear()
        if self._local is not None:
            self._local.begin_rollout(index)
        client = self._settings.vllm
        if client.sync_weights and (self._weights.version is None or index % self._sync_interval == 0):
            self._weights.bring(self.policy_version)
        age = self.policy_version + ahead - self._sampled_by
        if age > client.max_staleness:
            raise GenerationError(
                f"rollout {index} would be sampled by the weights of step {self._sampled_by}, {age} steps "
                f"{'before it trains' if ahead else 'ago'}, and generation.vllm.max_staleness={client.max_staleness}: lower "
                "generation.vllm.sync_interval or raise max_staleness"
            )

    def count_elsewhere(self, prompts: Sequence[str], num_samples: int) -> None:
        """Another process asks for the next ``num_samples`` completions of each prompt's row: what is asked here goes on behind."""
        for prompt in prompts:
            stream_id = getattr(prompt, "row_id", "") or f"text:{prompt}"
            self._num_drawn[stream_id] = self._num_drawn.get(stream_id, 0) + num_samples

    def send(self, prompts: list[str], num_samples: int) -> None:
        """Ask for ``num_samples`` completions of each prompt now; the call that asks for them first finds them on their way.

        Nothing else changes: a call for others is answered as ever.
        """
        asks = [self._ask(prompt, num_samples) for prompt in prompts]
        self._num_drawn.clear()  # the call counts them
        answers = self._weights.begin(asks, partly=self._local is not None)
        self._sent = {_name(ask): answer for ask, answer in zip(asks, answers, strict=True)}

    @property
    def _sampled_by(self) -> int:
        return self._weights.version or 0

    def __call__(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[CompletionRecord | None]]]:
        """Sample ``num_samples`` completions for each prompt, or ``per_prompt_counts[i]`` for prompt i; see ``LocalGenerator``.

        Raises:
            ValueError: the counts do not match the prompts or are negative.
            DataError: a prompt has no tokens.
            GenerationError: vLLM did not deliver within its retries.
        """
        counts = [num_samples] * len(prompts) if per_prompt_counts is None else per_prompt_counts
        if len(counts) != len(prompts) or any(count < 0 for count in counts):
            raise ValueError(f"{len(prompts)} prompts need as many counts, none negative; got {counts}")
        places = [place for place, count in enumerate(counts) if count > 0]
        asks = [self._ask(prompts[place], counts[place]) for place in places]
        texts: list[list[str]] = [[] for _ in prompts]
        records: list[list[CompletionRecord | None]] = [[] for _ in prompts]
        given = self._answers(asks)
        for place, ask, answers in zip(places, asks, given, strict=True):
            texts[place] = self._texts(answers or [])
            records[place] = [self._record(ask, answer) for answer in answers or []]
        lost = [place for place, answers in zip(places, given, strict=True) if answers is None]
        if lost:
            more = self.backfill([prompts[place] for place in lost], num_samples, [counts[place] for place in lost])
            for place, place_texts, place_records in zip(lost, *more, strict=True):
                texts[place], records[place] = place_texts, place_records
        return texts, records

    def _answers(self, asks: Sequence[Ask]) -> list[list[Answer] | None]:
        """Those of what was sent before, and those of the rest, which is sent now."""
        sent = [self._sent.pop(_name(ask), None) for ask in asks]
        return self._weights.complete(asks, sent, partly=self._local is not None)

    def backfill(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[CompletionRecord | None]]]:
        """The same from the trainer's own model, counted."""
        assert self._local is not None, "nothing is filled up unless generation.vllm.backfill_local is set"
        self._local.policy_version = self.policy_version  # the trainer's weights as they are now
        texts, records = self._local(prompts, num_samples, per_prompt_counts)
        self._settings.generation_stats["backfilled_completions"] += sum(len(group) for group in texts)
        return texts, records

    def _ask(self, prompt: str, num_samples: int) -> Ask:
        row_id = getattr(prompt, "row_id", "")
        prompt_ids = self._prompt_cache_get(prompt).input_ids
        if not prompt_ids:
            raise DataError(f"the prompt of row {row_id!r} has no tokens: there is nothing to continue; drop the row")
        stream_id = row_id or f"text:{prompt}"
        first = self._num_drawn.get(stream_id, 0)
        self._num_drawn[stream_id] = first + num_samples
        seed = ask_seed(self._seed, self._stream, self._rollout, stream_id, first)
        parameters = sampling_parameters(self._settings, num_samples, seed, self._eos_token_ids)
        return Ask(row_id, prompt_ids, num_samples, parameters, self._eos_token_ids)

    def _texts(self, answers: Sequence[Answer]) -> list[str]:
        return completion_texts(
            self._tokenizer, [(answer.token_ids, answer.finish_reason) for answer in answers], self._stops
        )

    def _record(self, ask: Ask, answer: Answer) -> CompletionRecord:
        return CompletionRecord(ask.row_id, answer.token_ids, answer.logp, answer.finish_reason, self._sampled_by)


def _name(ask: Ask) -> _Name:
    return ask.row_id, ask.num_samples, ask.parameters["seed"]
