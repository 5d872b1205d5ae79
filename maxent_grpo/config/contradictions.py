"""Gate 3, second half: settings that are each in range but exclude each other.

A rule is a small generator of sentences: which settings with which values, why they cannot stand together, what to write
instead. No rule changes a value, and none speaks about a value that ``ranges.py`` refuses. Rules about the method stand in
``contradictions_method.py`` and ``contradictions_credit.py``, those about the problems in ``contradictions_data.py`` and
``contradictions_sources.py``, those about controllers in ``contradictions_controller.py``, those about evaluation in
``contradictions_evaluation.py``, those about reward terms in ``contradictions_reward.py``, those about the model in
``contradictions_model.py``, those about adapters in ``contradictions_lora.py``, those about processes in
``contradictions_parallel.py``, those about vLLM in ``contradictions_generation.py``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from maxent_grpo.config.checkpoint import LATEST
from maxent_grpo.config.contradictions_controller import CONTROLLER_RULES, controller_warnings
from maxent_grpo.config.contradictions_credit import CREDIT_RULES, credit_warnings
from maxent_grpo.config.contradictions_data import DATA_RULES
from maxent_grpo.config.contradictions_evaluation import EVALUATION_RULES
from maxent_grpo.config.contradictions_generation import vllm_rules
from maxent_grpo.config.contradictions_lora import LORA_RULES
from maxent_grpo.config.contradictions_meta import meta_rules, meta_warnings
from maxent_grpo.config.contradictions_method import METHOD_RULES
from maxent_grpo.config.contradictions_model import MODEL_RULES
from maxent_grpo.config.contradictions_parallel import PARALLEL_RULES
from maxent_grpo.config.contradictions_reward import REWARD_RULES, reward_warnings
from maxent_grpo.config.contradictions_sources import SOURCE_RULES
from maxent_grpo.config.generation import GenerationConfig, LocalGenerationConfig
from maxent_grpo.config.model import TinyModelConfig
from maxent_grpo.config.optimization import AdamWConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import Requeue
from maxent_grpo.config.schedules import LR_SCHEDULES, LR_SCHEDULES_LEFT_OUT


def contradictions(config: RootConfig) -> Iterator[str]:
    """The sentence of every contradiction in the configuration."""
    for rule in RULES:
        yield from rule(config)


def warnings(config: RootConfig) -> list[str]:
    """What is allowed but probably not meant."""
    steps = config.optimization.total_training_steps
    found: list[str] = []
    every = config.evaluation.every_n_steps if config.evaluation.enabled else None
    for path, interval, instead in (
        ("evaluation.every_n_steps", every, "evaluates only before and after training"),
        ("checkpoint.every_n_steps", config.checkpoint.every_n_steps, "saves only the last step"),
    ):
        if interval is not None and 0 < steps < interval:
            found.append(
                f"{path}={interval} is longer than optimization.total_training_steps={steps}: the run {instead}"
            )
    return (
        found
        + _small_defaults(config)
        + credit_warnings(config)
        + controller_warnings(config)
        + meta_warnings(config)
        + reward_warnings(config)
    )


def _small_defaults(config: RootConfig) -> list[str]:
    """Defaults that are for the model that is made here and its short answers, left as they are for a pretrained one."""
    if isinstance(config.model, TinyModelConfig):
        return []
    length, rate = GenerationConfig().max_completion_len, AdamWConfig().learning_rate
    found: list[str] = []
    if config.generation.max_completion_len == length:
        found.append(
            f"generation.max_completion_len={length} is the default, for answers of the built-in problems: a pretrained model is cut "
            f"off there; set what an answer of yours takes, such as 512"
        )
    if config.optimization.learning_rate == rate and not config.model.lora.enabled:
        found.append(
            f"optimization.learning_rate={rate:g} is the default, for a model made from nothing: for all weights of a pretrained one "
            f"1e-6 to 2e-5 is usual"
        )
    return found


def _group_size(config: RootConfig) -> Iterator[str]:
    if config.generation.num_generations != 1:
        return
    if config.scoring.advantage == "none":
        yield "generation.num_generations=1 gives every completion the weight 1 in its group: use at least 2"
    else:
        yield "generation.num_generations=1 gives every completion the advantage 0: use at least 2"


def _greedy(config: RootConfig) -> Iterator[str]:
    generation = config.generation
    if generation.temperature == 0 and generation.num_generations > 1:
        yield (
            f"generation.temperature={generation.temperature} is greedy: the {generation.num_generations} completions of a "
            f"prompt (generation.num_generations) would be equal and teach nothing; use generation.temperature=1"
        )


def _sampling(config: RootConfig) -> Iterator[str]:
    penalty = config.generation.penalty
    if isinstance(config.generation, LocalGenerationConfig) and penalty.gen_best_of is not None:
        yield (
            f"generation.penalty.gen_best_of={penalty.gen_best_of}: generation=local does not sample more than it keeps; "
            f"write generation.penalty.gen_best_of=null"
        )
    for path, entries, off in (
        ("generation.allowed_tokens", config.generation.allowed_tokens, "[]"),
        ("generation.penalty.gen_stop_sequences", penalty.gen_stop_sequences or [], "null"),
    ):
        if "" in entries:
            yield f"{path}={entries} holds an empty text, which stands for no token: remove it, or write {path}={off}"


def _length_of_training(config: RootConfig) -> Iterator[str]:
    schedule = config.optimization
    steps = schedule.total_training_steps
    if steps == 0 and schedule.num_epochs == 0:
        yield (
            "optimization.total_training_steps=0 leaves the length to optimization.num_epochs=0, so nothing would be "
            "trained: set one of them above 0"
        )
    if 0 < steps <= schedule.warmup_steps:
        yield (
            f"optimization.warmup_steps={schedule.warmup_steps} is not below optimization.total_training_steps={steps}: the "
            f"learning rate would never reach its peak; use optimization.warmup_steps={steps - 1} or less"
        )


def _schedule(config: RootConfig) -> Iterator[str]:
    name = config.optimization.lr_scheduler_type
    if name in LR_SCHEDULES:
        return
    guess = difflib.get_close_matches(name, LR_SCHEDULES, n=1)
    if name in LR_SCHEDULES_LEFT_OUT:
        why = f"this schedule {LR_SCHEDULES_LEFT_OUT[name]}"
    else:
        why = f"no such schedule{f', did you mean {guess[0]}?' if guess else ''}"
    yield f"optimization.lr_scheduler_type={name}: {why}; choose one of {', '.join(LR_SCHEDULES)}"


def _profile(config: RootConfig) -> Iterator[str]:
    run, steps = config.run, config.optimization.total_training_steps
    shown = f"run.profile_steps=[{','.join(map(str, run.profile_steps))}]"
    if any(step < 1 for step in run.profile_steps):
        yield f"{shown}: steps are counted from 1"
    elif run.profile and not run.profile_steps:
        yield f"run.profile=true with {shown} would profile nothing: name steps, such as run.profile_steps=[2,3]"
    elif run.profile and 0 < steps < max(run.profile_steps):
        yield (
            f"run.profile=true with {shown}: the run ends after optimization.total_training_steps={steps}; name earlier steps"
        )


def _requeue(config: RootConfig) -> Iterator[str]:
    requeue, source = config.run.requeue, config.checkpoint.resume_from
    if requeue is not Requeue.never and source != LATEST:
        said = "null" if source is None else source
        yield (
            f"run.requeue={requeue} with checkpoint.resume_from={said}: the job that is queued again would not go on with the "
            f"run; use checkpoint.resume_from={LATEST}"
        )


def _best_checkpoint(config: RootConfig) -> Iterator[str]:
    checkpoint = config.checkpoint
    metric = checkpoint.best_metric
    if metric is None:
        if checkpoint.early_stop_patience is not None:
            yield (
                f"checkpoint.early_stop_patience={checkpoint.early_stop_patience} needs a metric to watch: set "
                f"checkpoint.best_metric=eval/pass@1, or checkpoint.early_stop_patience=null"
            )
        return
    if not re.fullmatch(r"eval/\S+", metric):
        yield (
            f"checkpoint.best_metric={metric}: only evaluation metrics, named eval/..., choose the best checkpoint; write "
            f"for example checkpoint.best_metric=eval/pass@1"
        )
    at = re.fullmatch(r"eval/(?:pass|maj|distinct|coverage)@(\d+)", metric)
    if at is not None and int(at[1]) not in config.evaluation.ks:
        yield (
            f"checkpoint.best_metric={metric}: evaluation.ks={config.evaluation.ks} does not have {at[1]}; add it there, or choose "
            f"one of these"
        )
    if not config.evaluation.enabled:
        yield (
            f"checkpoint.best_metric={metric} is measured by evaluations, which evaluation.enabled=false switches off: set "
            f"evaluation.enabled=true or checkpoint.best_metric=null"
        )


def _resume(config: RootConfig) -> Iterator[str]:
    everything, controllers = config.checkpoint.resume_from, config.controller.paths.resume_from
    if everything is not None and controllers is not None:
        yield (
            f"controller.paths.resume_from={controllers} together with checkpoint.resume_from={everything}: a checkpoint "
            f"restores the controllers too; leave one of them null"
        )


def _single_run(config: RootConfig) -> Iterator[str]:
    if config.run.sweep_resume:
        yield (
            "run.sweep_resume=true continues a sweep, and must stand on its command line: add -m, or continue a single run with "
            "checkpoint.resume_from=RUN"
        )


RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    *METHOD_RULES,
    *CREDIT_RULES,
    *CONTROLLER_RULES,
    meta_rules,
    _group_size,
    _greedy,
    _sampling,
    vllm_rules,
    *MODEL_RULES,
    *LORA_RULES,
    *PARALLEL_RULES,
    *DATA_RULES,
    *SOURCE_RULES,
    _length_of_training,
    _schedule,
    *EVALUATION_RULES,
    _best_checkpoint,
    _profile,
    _requeue,
    _resume,
    _single_run,
    *REWARD_RULES,
)
"""Every rule, in the order in which their sentences are printed."""
