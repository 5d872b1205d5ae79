"""What vLLM is asked and what it answers, as plain data: the same for a server and for an engine in this process.

Nothing is sent here. An answer is checked field by field before anything of it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from maxent_grpo.errors import MaxentGrpoError
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.runtime import GenerationSettings

SEED_BITS = 62
"""vLLM takes a signed 64-bit seed and adds the sample's number to it."""


class BadAnswerError(MaxentGrpoError, ValueError):
    """An answer that is no answer to what was asked; it is thrown away and asked for again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Some completions of one prompt."""

    row_id: str
    prompt_ids: Sequence[int]
    num_samples: int
    parameters: Mapping[str, Any]
    """What ``sampling_parameters`` makes of the settings."""
    end_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion as the engine gave it."""

    token_ids: list[int]
    logp: list[float | None] | None
    """Log-probability of each token under the distribution it was drawn from [nats]; None if the engine gave none."""
    finish_reason: FinishReason


def ask_seed(seed: int, stream: str, rollout: int, stream_id: str, first_sample: int) -> int:
    """The engine's seed of a prompt's samples: a function of names alone, so that a request can be sent again, anywhere."""
    name = f"{seed}:{rollout}:{first_sample}:{len(stream)}:{stream}:{stream_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") >> (64 - SEED_BITS)


def sampling_parameters(
    settings: GenerationSettings, num_samples: int, seed: int, end_token_ids: Collection[int]
) -> dict[str, Any]:
    """The engine's sampling parameters under its own names, which the server's completion requests share.

    End tokens are named, and the engine's own are ignored, so that it ends exactly where scoring says that a completion ends.
    """
    client = settings.vllm
    parameters: dict[str, Any] = {
        "n": num_samples,
        "max_tokens": settings.max_completion_len,
        "temperature": settings.gen_temperature,
        "top_p": settings.gen_top_p,
        "seed": seed,
        "ignore_eos": True,
        "stop_token_ids": sorted(end_token_ids),
        "top_k": settings.gen_top_k or 0,
        "min_p": settings.gen_min_p or 0.0,
        "presence_penalty": settings.gen_presence_penalty or 0.0,
        "frequency_penalty": settings.gen_frequency_penalty or 0.0,
        "repetition_penalty": settings.gen_repetition_penalty or 1.0,
        "skip_special_tokens": True,  # the names of special tokens hold no stop string
    }
    if settings.gen_stop_sequences:
        parameters["stop"] = list(settings.gen_stop_sequences)
    if client.request_logprobs:
        parameters["logprobs"] = 0  # of the sampled token alone
    if settings.allowed_token_ids is not None:
        parameters["allowed_token_ids"] = sorted({*settings.allowed_token_ids, *end_token_ids})
    if client.logit_bias:
        parameters["logit_bias"] = dict(client.logit_bias)
    guide = {"regex": client.guided_regex, "json": client.guided_json}
    chosen = {name: value for name, value in guide.items() if value is not None}
    if chosen:
        parameters["structured_outputs"] = chosen
    return parameters


def read_answers(body: object, ask: Ask) -> list[Answer]:
    """The completions in a server's JSON answer, in the order of their numbers; fewer than asked for are given as they are.

    Raises:
        BadAnswerError: the answer has not the form of one, or is about another prompt.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list):
        raise BadAnswerError("the answer has no list of choices")
    numbered: dict[int, Answer] = {}
    for choice in choices:
        if not isinstance(choice, Mapping):
            raise BadAnswerError("a choice is not an object")
        number = choice.get("index")
        if not isinstance(number, int) or not 0 <= number < ask.num_samples or number in numbered:
            raise BadAnswerError(f"a choice has the index {number!r} of {ask.num_samples}")
        prompt = choice.get("prompt_token_ids")
        if prompt is not None and list(prompt) != list(ask.prompt_ids):
            raise BadAnswerError("the completions continue another prompt than the one that was sent")
        numbered[number] = _answer(choice, ask.end_token_ids)
    return [numbered[number] for number in sorted(numbered)]


def _answer(choice: Mapping[str, Any], end_token_ids: Collection[int]) -> Answer:
    token_ids = choice.get("token_ids")
    if not isinstance(token_ids, list) or not token_ids or not all(type(token) is int for token in token_ids):
        raise BadAnswerError("a completion has no token ids")
    given = choice.get("logprobs")
    logp = given.get("token_logprobs") if isinstance(given, Mapping) else None
    return Answer(
        list(token_ids),
        checked_logp(logp, len(token_ids)),
        finish_reason(choice.get("finish_reason"), token_ids[-1], end_token_ids),
    )


def checked_logp(logp: object, num_tokens: int) -> list[float | None] | None:
    """Log-probs as the engine gave them; a value that is not finite counts as not known.

    Raises:
        BadAnswerError: there are some, but not one for each token, or one that is not a number.
    """
    if logp is None:
        return None
    if not isinstance(logp, list) or len(logp) != num_tokens:
        raise BadAnswerError(f"a completion of {num_tokens} tokens has no log-probability for each")
    if not all(value is None or isinstance(value, int | float) for value in logp):
        raise BadAnswerError("a log-probability is not a number")
    return [None if value is None or not math.isfinite(value) else float(value) for value in logp]


def finish_reason(reason: object, last_token: int, end_token_ids: Collection[int]) -> FinishReason:
    """Why a completion ended, told by its last token where that is an end token.

    Raises:
        BadAnswerError: the engine broke it off.
    """
    if last_token in end_token_ids:
        return FinishReason.eos
    if reason == "stop":
        return FinishReason.stop
    if reason == "length":
        return FinishReason.length
    raise BadAnswerError(f"a completion ended for the reason {reason!r}")
