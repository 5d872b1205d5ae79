"""Gate 3, second half: prompts that cannot be written, and answers that the task's grader could not be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from maxent_grpo.config.contradictions_evaluation import ENUMERABLE
from maxent_grpo.config.declared import shown
from maxent_grpo.config.prompt_template import QUESTION, fields_of
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.types.choices import AnswerPart, ExactFigures


def _template(config: RootConfig) -> Iterator[str]:
    template = config.data.prompt_template
    if template is None:
        return
    try:
        fields = fields_of(template)
    except ValueError as error:
        yield (
            f"data.prompt_template={template!r}: {error}; write the name of a column in braces, {{{QUESTION}}} for the "
            "question, and {{ or }} for a brace itself"
        )
        return
    if not fields:
        yield (
            f"data.prompt_template={template!r} names no column, so that all rows would ask the same; write "
            f"{{{QUESTION}}} where the question goes"
        )
    others = [name for name in fields if name != QUESTION]
    if others and config.data.examples:
        yield (
            f"data.prompt_template names the columns {', '.join(others)}, which data.examples do not have: write the examples "
            "with these columns into a file of JSON lines, and name it with data.examples_file"
        )


def _examples(config: RootConfig) -> Iterator[str]:
    for place, example in enumerate(config.data.examples):
        for part in ("question", "answer"):
            if not getattr(example, part).strip():
                yield f"data.examples[{place}] has no {part}; write {{question: ..., answer: ...}}"
    path = config.data.examples_file
    if path is not None and not Path(path).is_file():
        yield f"data.examples_file={path}: is not a file; name a file of JSON lines with question and answer"


def _answer_part(config: RootConfig) -> Iterator[str]:
    data, part = config.data, config.data.answer_in
    if part is AnswerPart.whole:
        return
    if config.evaluation.exact is ExactFigures.always and isinstance(data, ENUMERABLE):
        yield (
            f"data.answer_in={part} with evaluation.exact=always: exact figures list the bare answers of a problem, which hold "
            "no such part; use evaluation.exact=never or data.answer_in=whole"
        )
    model = config.model
    if model.warm_start.enabled:
        yield (
            f"data.answer_in={part} with model.warm_start.enabled=true: the warm start teaches bare answers, which the grader "
            "would not see; use data.answer_in=whole or model.warm_start.enabled=false"
        )


def _template_variables(config: RootConfig) -> Iterator[str]:
    if config.data.chat_template_kwargs and not config.data.chat:
        yield (
            f"data.chat_template_kwargs={shown(dict(config.data.chat_template_kwargs))} is for the model's chat template, which "
            "data.chat=false does without: use data.chat=true, or leave it out"
        )


PROMPT_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _template,
    _examples,
    _answer_part,
    _template_variables,
)
"""Every rule about prompts and the parts of answers."""
