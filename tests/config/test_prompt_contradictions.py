"""Settings of prompts that cannot stand: each with its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(list(overrides))
    return caught.value.problems


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["data.prompt_template='{prompt.__class__}'"],
            "data.prompt_template='{prompt.__class__}': {prompt.__class__} is not the plain name of a column; write the name "
            "of a column in braces, {prompt} for the question, and {{ or }} for a brace itself",
        ),
        (
            ["data.prompt_template='{prompt'"],
            "data.prompt_template='{prompt': expected '}' before end of string; write the name of a column in braces, {prompt} "
            "for the question, and {{ or }} for a brace itself",
        ),
        (
            ["data.prompt_template='Answer.'"],
            "data.prompt_template='Answer.' names no column, so that all rows would ask the same; write {prompt} where the "
            "question goes",
        ),
        (
            ["data.prompt_template='{prompt} {num_modes}'", "data.examples=[{question: a, answer: b}]"],
            "data.prompt_template names the columns num_modes, which data.examples do not have: write the examples with these "
            "columns into a file of JSON lines, and name it with data.examples_file",
        ),
        (
            ["data.examples=[{question: a, answer: b}, {question: a}]"],
            "data.examples[1] has no answer; write {question: ..., answer: ...}",
        ),
        (
            ["data.examples_file=nowhere.jsonl"],
            "data.examples_file=nowhere.jsonl: is not a file; name a file of JSON lines with question and answer",
        ),
        (
            ["data.answer_in=tags"],
            "data.answer_in=tags with model.warm_start.enabled=true: the warm start teaches bare answers, which the grader "
            "would not see; use data.answer_in=whole or model.warm_start.enabled=false",
        ),
        (
            ["data.answer_in=boxed", "model.warm_start.enabled=false", "evaluation.exact=always"],
            "data.answer_in=boxed with evaluation.exact=always: exact figures list the bare answers of a problem, which hold "
            "no such part; use evaluation.exact=never or data.answer_in=whole",
        ),
        (
            ["data.chat=false", "data.chat_template_kwargs={enable_thinking: false}"],
            "data.chat_template_kwargs={'enable_thinking': False} is for the model's chat template, which data.chat=false does "
            "without: use data.chat=true, or leave it out",
        ),
        (["data.order_seed=-1"], "data.order_seed=-1: must be at least 0 and below 4294967296"),
        (["data.render_ahead=-1"], "data.render_ahead=-1: must be at least 0"),
    ],
)
def test_a_contradiction_prints_its_sentence(overrides: list[str], sentence: str) -> None:
    assert problems(*overrides) == [sentence]


def test_an_unknown_part_of_an_example_is_refused() -> None:
    [sentence] = problems("data.examples=[{question: a, anser: b}]")
    assert sentence.startswith("data.examples=[{'question': 'a', 'anser': 'b'}]: must be a list")


def test_what_the_sentences_suggest_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"question": "a", "answer": "b", "num_modes": 2}\n')
    config = load_config(
        [
            "data.prompt_template='{prompt} {num_modes} {{}}'",
            f"data.examples_file={path}",
            "data.answer_in=tags",
            "model.warm_start.enabled=false",
            'data.assistant_prefix="<think>\n"',
        ]
    )
    assert config.data.assistant_prefix == "<think>\n"
