"""What an evaluation needs, put together once: samplers of its own, the answers there are, and the prompts with seed tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from maxent_grpo.config.evaluation import MAX_EXACT_ANSWERS, SEED_MARK, EvaluationConfig, SeedEvaluationConfig
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.tasks.base import EnumerableTask, Task, TaskRow
from maxent_grpo.tasks.prompt_writer import prompt_token_ids
from maxent_grpo.tasks.tokenize import RenderedRows
from maxent_grpo.training.evaluation.exact import ExactEvaluation
from maxent_grpo.training.evaluation.seeds import SeedEvaluation
from maxent_grpo.training.samplers import pad_token_id
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.scoring.sharing import sharing_problem
from maxent_grpo.training.settings import evaluation_sampling
from maxent_grpo.training.types.choices import ExactFigures
from maxent_grpo.training.types.logging import LoggingHandles
from maxent_grpo.training.types.rewards import ValidationContext
from maxent_grpo.training.types.runtime import (
    EvaluationSettings,
    GenerationFn,
    GenerationSettings,
    RewardSpec,
    RuntimeHandles,
    ScoringSettings,
)

MakeGenerator = Callable[[GenerationSettings, int, str], GenerationFn]
"""From sampling settings, a seed and the name of a random stream to a sampler of the policy."""


@dataclass(frozen=True)
class EvaluationParts:
    """What is evaluated, and what the rest of the run lends to it."""

    task: Task
    rows: Sequence[TaskRow]
    """The task's rows among which ``evaluation.rows`` are, before they are rendered."""
    render: Callable[[Sequence[TaskRow]], RenderedRows]
    make_generator: MakeGenerator
    scorer: TokenScorer
    runtime: RuntimeHandles
    reward: RewardSpec
    generation: GenerationSettings
    """How training samples, from which evaluation departs where it says so."""
    evaluation: EvaluationSettings
    scoring: ScoringSettings
    logging: LoggingHandles
    eval_reward: RewardSpec | None = None
    """Grades evaluations; None takes ``reward``."""
    state: TrainerState = field(default_factory=TrainerState)
    """Where training stands, for rewards that ask."""


def build_validation(config: EvaluationConfig, parts: EvaluationParts) -> ValidationContext:
    """The evaluation that ``config`` asks for; what it must do without is said in a note.

    Raises:
        ConfigError: exact figures or seed tags were asked for and this task, model or tokenizer cannot have them.
    """
    sampling = evaluation_sampling(config, parts.generation)
    greedy = None
    if config.greedy:
        settings = replace(sampling, num_generations=1, gen_temperature=0.0)
        greedy = parts.make_generator(settings, config.seed, "evaluation/greedy")
    return ValidationContext(
        evaluation=parts.evaluation,
        accelerator=parts.runtime.accelerator,
        model=parts.runtime.model,
        tokenizer=parts.runtime.tokenizer,
        reward=parts.reward,
        generator=parts.make_generator(sampling, config.seed, "evaluation"),
        logging=parts.logging,
        eval_reward=parts.eval_reward,
        runtime=parts.runtime,
        generation=sampling,
        scoring=parts.scoring,
        greedy_generator=greedy,
        exact=_exact(config, parts),
        seeds=_seeds(config, parts, sampling) if config.seed_eval.enabled else None,
        state=parts.state,
    )


def _exact(config: EvaluationConfig, parts: EvaluationParts) -> ExactEvaluation | None:
    if config.exact is ExactFigures.never:
        return None
    task = parts.task
    missing = _missing_for_exact(config, parts)
    if missing is not None:
        if config.exact is ExactFigures.always:
            raise ConfigError(f"evaluation.exact=always: {missing}; use evaluation.exact=auto to do without")
        parts.logging.write_note(f"no exact evaluation: {missing}")
        return None
    assert isinstance(task, EnumerableTask)
    tokenizer, weighting = parts.runtime.tokenizer, parts.scoring.weighting
    if weighting.beta > 0 and parts.runtime.reference_model is None:
        parts.logging.write_note(
            f"exact evaluation without the divergence from the optimum: with scoring.weighting.beta={weighting.beta:g} that "
            "optimum depends on the reference, and this run keeps none; scoring.reference_logprobs_source=model keeps it"
        )
    eos = tokenizer.eos_token_id
    assert isinstance(eos, int)
    token_of = {letter: ids[0] for letter, ids in _alphabet_tokens(task, tokenizer).items()}
    return ExactEvaluation(
        list_answers=task.list_answers,
        token_of=token_of,
        eos_token_id=eos,
        pad_token_id=pad_token_id(parts.runtime.tokenizer),
        reference_moves=parts.scoring.reference_sync.every_n_steps > 0,
        head=parts.scorer.head,
        sampled_ids=_sampled_ids(parts, [*token_of.values(), eos]),
    )


def _sampled_ids(parts: EvaluationParts, of_answers: list[int]) -> Tensor | None:
    """Tokens that sampling is restricted to; None where it is not, or where they cannot write every answer, which is said."""
    allowed = parts.scorer.distribution.allowed
    if allowed is None:
        return None
    if not bool(allowed[of_answers].all()):
        parts.logging.write_note(
            "no exact figures of the policy that is sampled from: generation.allowed_tokens leaves out some of the answers' "
            "letters"
        )
        return None
    return allowed.nonzero().flatten().cpu()


def _missing_for_exact(config: EvaluationConfig, parts: EvaluationParts) -> str | None:
    """Why there can be no exact figures; None when there can."""
    task = parts.task
    if not isinstance(task, EnumerableTask) or task.answer_alphabet is None:
        return f"the answers of {task.name} problems cannot be listed"
    most = max(task.count_answers(row["answer"]) for row in parts.evaluation.rows)
    if config.exact is ExactFigures.auto and most > MAX_EXACT_ANSWERS:
        return (
            f"a problem has {most} answers, more than the {MAX_EXACT_ANSWERS} that evaluation.exact=auto enumerates "
            "(evaluation.exact=always enumerates any number)"
        )
    if not isinstance(parts.runtime.tokenizer.eos_token_id, int):
        return "the tokenizer has no end token to close an answer with"
    split = [letter for letter, ids in _alphabet_tokens(task, parts.runtime.tokenizer).items() if len(ids) != 1]
    if split:
        return f"{split} are not single tokens of this model's tokenizer"
    problem = sharing_problem(parts.runtime.model)
    return f"all answers of a problem are scored behind one prompt, and {problem}" if problem else None


def _alphabet_tokens(task: Task, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    return {letter: prompt_token_ids(tokenizer, letter) for letter in task.answer_alphabet or ""}


def _seeds(config: EvaluationConfig, parts: EvaluationParts, sampling: GenerationSettings) -> SeedEvaluation:
    seeds = config.seed_eval
    _check_tag_is_readable(seeds, parts.runtime.tokenizer)
    held_out = {row["row_id"] for row in parts.evaluation.rows}
    rows = [row for row in parts.rows if row.row_id in held_out]
    try:
        by_seed = [parts.render([tagged(row, seeds.template, seed) for row in rows]) for seed in range(seeds.num_seeds)]
    except DataError as error:
        raise ConfigError(f"evaluation.seed_eval.template={seeds.template}: with the tag, {error}") from error
    too_long = sum(rendered.num_dropped for rendered in by_seed)
    if too_long:
        raise ConfigError(
            f"evaluation.seed_eval.template={seeds.template}: {too_long} held-out prompts are longer than "
            f"generation.max_prompt_len={parts.generation.max_prompt_len} tokens with the tag; raise generation.max_prompt_len, "
            "or shorten the tag"
        )
    for prompts in zip(*([row["prompt"] for row in rendered.rows] for rendered in by_seed), strict=True):
        if len(set(prompts)) < seeds.num_seeds:
            raise ConfigError(
                f"evaluation.seed_eval.template={seeds.template}: the chat template leaves the prompt of a row the same under "
                "different seeds, so that there is nothing to tell apart; choose another tag"
            )
    return SeedEvaluation(
        rows_by_seed=[list(rendered.rows) for rendered in by_seed],
        generator=parts.make_generator(
            replace(sampling, num_generations=seeds.samples_per_seed), config.seed, "evaluation/seeds"
        ),
        scorer=replace(
            parts.scorer,
            distribution=replace(
                parts.scorer.distribution, temperature=sampling.gen_temperature, top_p=sampling.gen_top_p
            ),
            entropy=None,
            pooling=seeds.pooling,
            counters=type(parts.scorer.counters)(),
        ),
        pad_token_id=pad_token_id(parts.runtime.tokenizer),
    )


def tagged(row: TaskRow, template: str, seed: int) -> TaskRow:
    """The row with the seed's tag at the end of its last message; the chat template is applied after that."""
    *before, last = row.messages
    tag = template.replace(SEED_MARK, str(seed))
    return replace(row, messages=[*before, {**last, "content": last["content"] + tag}])


def _check_tag_is_readable(seeds: SeedEvaluationConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError where the tokenizer would read part of a tag as its unknown token."""
    unknown: Any = tokenizer.unk_token_id
    for seed in range(seeds.num_seeds):
        tag = seeds.template.replace(SEED_MARK, str(seed))
        if unknown is not None and unknown in prompt_token_ids(tokenizer, tag):
            raise ConfigError(
                f"evaluation.seed_eval.template={seeds.template}: this model's tokenizer does not know all characters of the "
                f"tag {tag!r}; write the tag in characters that it knows, such as ' [seed={SEED_MARK}]'"
            )
