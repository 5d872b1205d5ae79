"""vLLM inside this process, on the same device as the trainer."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from maxent_grpo.errors import GenerationError, MaxentGrpoError
from maxent_grpo.training.generation.vllm.ask import Answer, Ask, checked_logp, finish_reason
from maxent_grpo.training.generation.vllm.engine import Place
from maxent_grpo.training.generation.vllm.server_process import ServerOptions, computing_environment, engine_arguments
from maxent_grpo.training.generation.vllm.weights import Snapshots

HERE = "the engine in this process"


class InProcessEngine:
    """One engine; see ``Engine``. Between rollouts it can sleep, which gives a GPU's memory back to the trainer."""

    last_failure = ""
    """What is given up here raises."""

    def __init__(self, snapshots: Snapshots, options: ServerOptions, *, sleeps: bool) -> None:
        # one process: weights and errors need no way between two, and nothing is left behind when this one ends
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.update(computing_environment(options, os.environ))
        with _lent():
            from vllm import LLM  # pyright: ignore[reportAttributeAccessIssue]

            self._llm: Any = LLM(str(snapshots.any()), enable_sleep_mode=sleeps, **engine_arguments(options))
        self._snapshots, self._sleeps = snapshots, sleeps
        self._is_asleep = False
        self._version: int | None = None
        with _lent():
            self._rest()  # a run that goes on loads its optimiser next

    def complete(self, asks: Sequence[Ask], version: int, *, partly: bool = False) -> list[list[Answer] | None]:
        """The completions of each ask; see ``Engine``."""
        from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]
        from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

        if not asks:
            return []
        if self._version is not None and self._version != version:
            raise GenerationError(f"{HERE} has the weights of version {self._version}, not of {version}")
        parameters: list[Any] = []
        for ask in asks:
            given = dict(ask.parameters)
            if "structured_outputs" in given:
                given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
            if "logit_bias" in given:
                given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
            parameters.append(SamplingParams(**given))
        prompts = [{"prompt_token_ids": list(ask.prompt_ids)} for ask in asks]
        with _lent():
            self._wake()
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
            self._rest()
            return [
                [_answer(output, ask) for output in sorted(request.outputs, key=lambda output: output.index)]
                for ask, request in zip(asks, outputs, strict=True)
            ]

    def begin(self, asks: Sequence[Ask], version: int, *, partly: bool = False) -> list[Future[list[Answer] | None]]:
        """At once: nothing here runs beside the trainer; see ``Engine``."""
        return [_done(answers) for answers in self.complete(asks, version, partly=partly)]

    @property
    def place(self) -> Place:
        """Here; see ``Engine``."""
        return Place((HERE,), 0)

    def settle(self) -> None:
        """Nothing is left open between two calls; see ``Engine``."""

    def renew(self) -> Place:
        """There is no other process that could have ended; see ``Engine``."""
        return self.place

    def follow(self, place: Place) -> None:
        """It is here; see ``Engine``."""

    def load(self, version: int) -> None:
        """Take the weights through a snapshot; see ``Engine``."""
        folder = self._snapshots.write(version)
        with _lent():
            self._wake()
            self._version = None
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            self._llm.reset_prefix_cache()
        self._version = version

    def prompt_logp(self, token_ids: Sequence[int]) -> dict[str, list[float]]:
        """See ``Engine``."""
        from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]

        with _lent():
            self._wake()
            asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
            output = self._llm.generate([{"prompt_token_ids": list(token_ids)}], asked, use_tqdm=False)[0]
        given = output.prompt_logprobs[1:]
        return {HERE: [float(place[token].logprob) for place, token in zip(given, token_ids[1:], strict=True)]}

    def close(self) -> None:
        """Let go of the engine and its memory."""
        self._llm = None
        gc.collect()

    def _rest(self) -> None:
        if self._sleeps:
            self._llm.sleep(level=1)
            self._is_asleep = True

    def _wake(self) -> None:
        if self._is_asleep:
            self._llm.wake_up()
            self._is_asleep = False


def _done(answers: list[Answer] | None) -> Future[list[Answer] | None]:
    future: Future[list[Answer] | None] = Future()
    future.set_result(answers)
    return future


def _answer(output: Any, ask: Ask) -> Answer:
    token_ids = list(output.token_ids)
    logp = None
    if output.logprobs is not None:
        logp = [float(place[token].logprob) for place, token in zip(output.logprobs, token_ids, strict=True)]
    return Answer(
        token_ids,
        checked_logp(logp, len(token_ids)),
        finish_reason(output.finish_reason, token_ids[-1], ask.end_token_ids),
    )


@contextmanager
def _lent() -> Iterator[None]:
    """The engine sets torch's threads and seeds for itself; the trainer keeps its own, and hears of what fails as of any sampler.

    Raises:
        GenerationError: the engine failed, ran out of memory or gave no proper answer.
    """
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        yield
    except (MaxentGrpoError, ImportError):  # says itself what is wrong; without vLLM nothing else could be asked
        raise
    except _failures() as error:
        said = str(error).splitlines()
        raise GenerationError(f"{HERE} failed ({type(error).__name__}: {said[0] if said else 'no words'})") from error
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _failures() -> tuple[type[Exception], ...]:
    """What an engine raises when it fails; an exception of vLLM's own has no base among Python's but the widest."""
    from vllm.exceptions import VLLMError  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    return RuntimeError, ValueError, KeyError, IndexError, AssertionError, VLLMError
