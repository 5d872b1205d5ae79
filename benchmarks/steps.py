"""One training step of both sides: what it is made of, our run and TRL's, each in its own process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import material
from benchmarks.process import Lap
from benchmarks.rewards import RECORD, spread

LEARNING_RATE, BETA2 = 1e-6, 0.95
MOST_STEPS = 12
OUR_METRICS = {"loss": "loss/total", "gradient_norm": "optim/gradient_norm", "entropy": "policy/entropy"}
TRL_METRICS = {
    "gradient_norm": "grad_norm",
    "entropy": "entropy",
    "mean_length": "completions/mean_length",
    "tokens_seen": "num_tokens",
}
"""Our name of a number of a step -> its name in each side's log."""


@dataclass(frozen=True)
class Work:
    """A step: prompts of ``prompt_length`` tokens, each with ``group`` completions of at most ``completion`` tokens."""

    model: str = "tiny"
    """`tiny` or `smollm2`."""
    vocabulary: int = 2048
    """Of a tiny model."""
    prompt_length: int = 32
    completion: int = 64
    group: int = 8
    prompts: int = 2
    at_once: int = 0
    """Completions that we sample at once; 0 is all of a step."""
    steps: int = 3
    """Steps that a process takes."""
    drop: int = 1
    """First steps that are not counted: TRL's first is the one that it repeats from us, without sampling."""

    @property
    def sequences(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group


@dataclass(frozen=True)
class Prepared:
    """What lies on the disk for a step."""

    folder: Path
    tokenizer: Path
    table: Path
    texts: list[str]


def prepare(work: Work, root: Path) -> Prepared:
    """Write the model and the prompts of a step unless they are there."""
    number = work.prompts * MOST_STEPS  # the same rows however many steps are taken
    if work.model == "smollm2":
        from transformers import AutoTokenizer

        folder = tokenizer = material.SMOLLM2
        texts = material.question_prompts(number, work.prompt_length, AutoTokenizer.from_pretrained(folder))
    else:
        folder = material.tiny_model_folder(root, work.vocabulary, max(2048, work.prompt_length) + work.completion)
        tokenizer = material.tiny_tokenizer_folder(root, work.vocabulary)
        texts = material.word_prompts(number, work.prompt_length, work.vocabulary)
    name = f"{work.model}-{work.vocabulary}-{work.prompt_length}-{number}.jsonl"
    return Prepared(folder, tokenizer, material.write_rows(root / name, texts), texts)


def overrides(work: Work, prepared: Prepared, run_dir: Path) -> list[str]:
    """Our run of a step, as it would be typed."""
    chosen = (
        ["model=smollm2", "data.chat=true"]
        if work.model == "smollm2"
        else ["model=hf", f"model.name={prepared.folder}", f"model.tokenizer={prepared.tokenizer}", "data.chat=false"]
    )
    return [
        *chosen, "scoring=dr_grpo", "data=table", f"data.path={prepared.table}", "data.grader=exact",
        "data.eval_fraction=0", "data.shuffle=false", "evaluation.enabled=false",
        f"generation.max_prompt_len={work.prompt_length}", f"generation.max_completion_len={work.completion}",
        f"generation.num_generations={work.group}", f"generation.batch_size={work.at_once}",
        "generation.allowed_tokens=[]",
        f"optimization.prompts_per_step={work.prompts}", f"optimization.total_training_steps={work.steps}",
        f"optimization.learning_rate={LEARNING_RATE}", f"optimization.adam_beta2={BETA2}",
        "optimization.warmup_steps=0", "optimization.lr_scheduler_type=constant",
        "reward=terms", "+reward.terms.spread=1.0", "+reward.functions.spread=benchmarks.rewards:spread",
        "logging.console=silent", "logging.report=false", "logging.completions_every=0",
        "checkpoint.final_model=false", "run.device=cpu", f"run.dir={run_dir}",
    ]  # fmt: skip


class StepWatch:
    """A writer of our run that notes what every step cost; the checkpoint at the end comes after its last line."""

    def __init__(self) -> None:
        self.lap = Lap()
        self.metrics: list[dict[str, float]] = []

    def start(self, total_steps: int, first_step: int) -> None:
        self.lap.start()

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if step:
            self.lap.stop()
            self.metrics.append(dict(metrics))

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None: ...

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def write_note(self, message: str) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def ours(work: Work, root: Path, run_dir: Path) -> dict[str, Any]:
    """Our run, from its configuration to its last step; ``first`` of what it returns is the first step, for TRL to repeat."""
    from maxent_grpo.config.load import load_config
    from maxent_grpo.training.setup import run_from_config

    typed, watch, record = overrides(work, prepare(work, root), run_dir), StepWatch(), run_dir.with_suffix(".rollouts")
    os.environ[RECORD] = str(record)
    run_from_config(load_config(typed), typed, watchers=[watch])
    lines = watch.metrics
    rollout: list[list[int]] = []
    for call in record.read_text(encoding="utf-8").splitlines():
        rollout += json.loads(call)
    lengths = [line["completion/mean_length"] * work.sequences for line in lines]
    seen = [0.0, *(line["data/input_tokens_seen"] for line in lines)]
    steps = [{name: line[metric] for name, metric in OUR_METRICS.items()} for line in lines]
    return watch.lap.as_sample(
        completion_tokens=lengths,
        prompt_tokens=[after - before - here for before, after, here in zip(seen, seen[1:], lengths, strict=False)],
        drop=work.drop,
        first={**steps[0], "tokens": seen[1], "completions": rollout[: work.sequences]},
        steps=steps,
    )


class DisagreementError(RuntimeError):
    """The two sides do not do the same work; nothing is timed."""


def agree(ours_first: Mapping[str, Any], theirs: Mapping[str, float]) -> None:
    """Tokens, loss, gradient norm and mean token entropy of one step on the same completions.

    Raises:
        DisagreementError: the tokens differ, or a number by more than rounding.
    """
    if round(ours_first["tokens"]) != round(theirs["tokens_seen"]):
        raise DisagreementError(
            f"on the same completions we count {ours_first['tokens']:.0f} tokens and TRL {theirs['tokens_seen']:.0f}"
        )
    for name, absolute, relative in (("loss", 2e-5, 1e-3), ("gradient_norm", 1e-6, 1e-3), ("entropy", 1e-5, 1e-3)):
        here, there = float(ours_first[name]), float(theirs[name])
        if not abs(here - there) <= absolute + relative * abs(here):
            raise DisagreementError(f"on the same completions our {name} is {here:.7g} and TRL's {there:.7g}")


def trl(work: Work, root: Path, run_dir: Path, first: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """TRL's trainer on the same step.

    Args:
        work: the step.
        root: folder of models and prompts.
        run_dir: where the trainer may write.
        first: our first step. TRL's first step trains on the same completions and must come to the same numbers; from the
            second step on it samples.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    prepared, lap, lines, losses = prepare(work, root), Lap(), [], []

    class Watch(TrainerCallback):
        """Notes what every step cost."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            lap.start()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            if logs and "grad_norm" in logs:
                lap.stop()
                lines.append(_told(logs, losses[-1]))
                if first is not None and trainer.rollout_func is not None:
                    trainer.rollout_func = None
                    agree(first, lines[0])

    class Trainer(GRPOTrainer):
        """TRL's own, whose loss is kept before it is rounded for the log."""

        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **named)
            losses.append(float(loss.detach()))
            return loss

    conversations = work.model == "smollm2"
    prompts = [[{"role": "user", "content": text}] if conversations else text for text in prepared.texts]
    trainer = Trainer(
        model=str(prepared.folder),
        reward_funcs=spread,
        args=_trl_arguments(work, run_dir),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(prepared.tokenizer),
        callbacks=[Watch()],
        **({} if first is None else {"rollout_func": _handing_out(first["completions"])}),
    )
    trainer.train()
    lengths = [line["mean_length"] * work.sequences for line in lines]
    seen = [0.0, *(line["tokens_seen"] for line in lines)]
    return lap.as_sample(
        completion_tokens=lengths,
        # as ours, TRL counts a prompt once for each of its completions
        prompt_tokens=[after - before - here for before, after, here in zip(seen, seen[1:], lengths, strict=False)],
        drop=work.drop,
        steps=lines,
        agreed=first is not None,
    )


def _trl_arguments(work: Work, run_dir: Path) -> Any:
    """TRL's settings for the step, where they are not its own defaults."""
    from trl.trainer.grpo_config import GRPOConfig

    return GRPOConfig(
        output_dir=str(run_dir),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        max_steps=work.steps,
        shuffle_dataset=False,
        per_device_train_batch_size=work.sequences,
        num_generations=work.group,
        max_completion_length=work.completion,
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        learning_rate=LEARNING_RATE,
        adam_beta2=BETA2,
        lr_scheduler_type="constant",
        warmup_steps=0,
        model_init_kwargs={"dtype": "float32"},
    )


def _told(logs: Mapping[str, float], loss: float) -> dict[str, float]:
    """A step's numbers from TRL's log, under our names."""
    named = {name: float(logs[theirs]) for name, theirs in TRL_METRICS.items()}
    return {"loss": loss, **named}


def _handing_out(completions: Sequence[Sequence[int]]) -> Any:
    """A `rollout_func` that samples nothing: it returns the completions that it was given."""

    def rollout(asked: list[Any], trainer: Any) -> dict[str, Any]:
        if len(asked) != len(completions):
            raise DisagreementError(f"TRL asks for {len(asked)} completions in a step, and ours had {len(completions)}")
        tokenizer = trainer.processing_class
        ids = [
            tokenizer.encode(prompt) if isinstance(prompt, str) else material.chat_ids(prompt[0]["content"], tokenizer)
            for prompt in asked
        ]
        return {
            "prompt_ids": ids,
            "completion_ids": [list(completion) for completion in completions],
            "logprobs": [[0.0] * len(completion) for completion in completions],
        }

    return rollout
