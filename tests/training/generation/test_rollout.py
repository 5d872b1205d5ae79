"""A rollout holds complete groups only, each under its own row, and counts everything that went wrong."""

from __future__ import annotations

import logging

import pytest
from support.scripted import ScriptedGenerator, completion_record, numbered_text

from maxent_grpo.errors import DataError, GenerationError, NonFiniteError
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.generation.helpers import flatten_prompt_completions, flatten_ref_metadata
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.types.generation import GENERATION_COUNTERS, VLLMClientConfig
from maxent_grpo.training.types.runtime import GenerationSettings


def rows_of(*row_ids: str) -> list[dict[str, object]]:
    """Rows that all render to the same text, so that only the row identity tells them apart."""
    return [
        {"row_id": row_id, "prompt": RowPrompt("solve:", row_id), "answer": f"answer-{row_id}"} for row_id in row_ids
    ]


def settings_for(num_generations: int, max_retry_rounds: int = 0) -> GenerationSettings:
    return GenerationSettings(
        max_prompt_len=8,
        max_completion_len=8,
        gen_temperature=1.0,
        gen_top_p=1.0,
        use_vllm=False,
        vllm=VLLMClientConfig(),
        num_generations=num_generations,
        max_retry_rounds=max_retry_rounds,
    )


def counters(**expected: int) -> dict[str, int]:
    return dict.fromkeys(GENERATION_COUNTERS, 0) | expected


def row_ids(prompts: list[str]) -> list[str]:
    return [prompt.row_id for prompt in prompts if isinstance(prompt, RowPrompt)]


def test_a_sampler_that_delivers_at_once_is_asked_once_and_nothing_is_counted():
    generator, settings = ScriptedGenerator([{}]), settings_for(2)
    rows = rows_of("a", "b")
    batch = collect_rollout(rows, generator, settings)
    assert all(kept is row["prompt"] for kept, row in zip(batch.prompts, rows, strict=True))
    assert batch.answers == ["answer-a", "answer-b"]
    assert batch.grouped_completions == [["a#0", "a#1"], ["b#0", "b#1"]]
    records = [[completion_record(row, f"{row}#{serial}") for serial in range(2)] for row in "ab"]
    assert batch.grouped_ref_meta == records
    assert batch.grouped_completion_info == [[record.to_trl_payload() for record in group] for group in records]
    assert [(call.num_samples, call.per_prompt_counts) for call in generator.calls] == [(2, None)]
    assert settings.generation_stats == counters()


def test_short_prompts_are_asked_again_for_their_deficit_and_partial_prompts_and_rounds_are_counted():
    generator, settings = ScriptedGenerator([{"a": 1, "c": 0}, {"c": 2}, {}]), settings_for(3)
    batch = collect_rollout(rows_of("a", "b", "c"), generator, settings)
    assert batch.grouped_completions == [[f"{row}#{serial}" for serial in range(3)] for row in "abc"]
    assert [(call.row_ids, call.per_prompt_counts) for call in generator.calls] == [
        (["a", "b", "c"], None),
        (["a", "c"], [2, 3]),
        (["c"], [1]),
    ]
    assert settings.generation_stats == counters(partial_prompts=2, retry_rounds=2)


def test_surplus_completions_are_counted_and_cut_together_with_their_records():
    generator, settings = ScriptedGenerator([{"a": 5, "b": 1}, {"b": 3}]), settings_for(2)
    batch = collect_rollout(rows_of("a", "b"), generator, settings)
    assert batch.grouped_completions == [["a#0", "a#1"], ["b#0", "b#1"]]
    assert batch.grouped_ref_meta is not None
    assert batch.grouped_ref_meta[0] == [completion_record("a", "a#0"), completion_record("a", "a#1")]
    assert settings.generation_stats == counters(excess_completions=5, partial_prompts=1, retry_rounds=1)


def test_empty_and_incomplete_groups_are_dropped_counted_and_reported_while_the_others_keep_their_row(caplog):
    script = [{"a": 2, "b": 1, "c": 2, "d": 0, "e": 2}]
    generator, settings = ScriptedGenerator(script), settings_for(2, max_retry_rounds=3)
    with caplog.at_level(logging.WARNING):
        batch = collect_rollout(rows_of("a", "b", "c", "d", "e"), generator, settings)
    assert row_ids(batch.prompts) == ["a", "c", "e"]
    assert batch.answers == ["answer-a", "answer-c", "answer-e"]
    assert batch.grouped_completions == [[f"{row}#0", f"{row}#1"] for row in "ace"]
    assert batch.grouped_ref_meta is not None
    assert [[record.row_id for record in group if record] for group in batch.grouped_ref_meta] == [
        [row] * 2 for row in "ace"
    ]
    assert len(generator.calls) == 4
    assert settings.generation_stats == counters(dropped_prompts=2, partial_prompts=2, retry_rounds=3)
    assert "dropped 2 of 5 prompts after 3 retry rounds: 1 without any completion, 1 with fewer than 2" in caplog.text


def test_without_a_configured_limit_a_group_is_asked_again_as_often_as_it_has_completions():
    generator, settings = ScriptedGenerator([{"a": 4, "b": 3}]), settings_for(4)
    collect_rollout(rows_of("a", "b"), generator, settings)
    assert len(generator.calls) == 1 + 4
    assert settings.generation_stats["retry_rounds"] == 4


def test_a_sampler_without_metadata_gives_a_batch_without_metadata():
    generator, settings = ScriptedGenerator([{"a": 1}, {}], tracks=(False,)), settings_for(2)
    batch = collect_rollout(rows_of("a"), generator, settings)
    assert batch.grouped_completions == [["a#0", "a#1"]]
    assert batch.grouped_ref_meta is None
    assert batch.grouped_completion_info is None


def test_metadata_that_only_a_retry_brings_leaves_gaps_whose_info_names_the_row():
    generator = ScriptedGenerator([{"b": 1}, {}], tracks=(False, True))
    batch = collect_rollout(rows_of("a", "b"), generator, settings_for(2))
    assert batch.grouped_ref_meta == [[None, None], [None, completion_record("b", "b#1")]]
    assert batch.grouped_completion_info == [
        [{"row_id": "a"}, {"row_id": "a"}],
        [{"row_id": "b"}, completion_record("b", "b#1").to_trl_payload()],
    ]


def test_the_batch_flattens_into_pairs_answers_and_records_that_belong_together():
    generator = ScriptedGenerator([{"b": 0}])
    batch = collect_rollout(rows_of("a", "b", "c"), generator, settings_for(2, max_retry_rounds=1))
    pairs, answers = flatten_prompt_completions(batch)
    flat = flatten_ref_metadata(batch.grouped_completions, batch.grouped_ref_meta)
    assert row_ids(pairs.prompts) == ["a", "a", "c", "c"]
    assert pairs.completions == [numbered_text(row, serial) for row in "ac" for serial in range(2)]
    assert answers == ["answer-a", "answer-a", "answer-c", "answer-c"]
    assert pairs.metadata == flat
    assert flat == [completion_record(row, numbered_text(row, n)).to_trl_payload() for row in "ac" for n in range(2)]


def test_when_no_group_is_complete_the_error_says_how_many_were_asked_how_often_and_what_to_do():
    settings = settings_for(4, max_retry_rounds=2)
    with pytest.raises(GenerationError) as caught:
        collect_rollout(rows_of("a", "b", "c"), ScriptedGenerator([{"a": 3, "b": 0, "c": 1}]), settings)
    message = str(caught.value)
    assert "3 prompts were asked for 4 completions each" in message
    assert "after 2 retry rounds 1 had none and 2 had fewer than 4" in message
    assert "raise generation.max_retry_rounds" in message
    assert settings.generation_stats == counters(dropped_prompts=3, partial_prompts=3, retry_rounds=2)


def test_the_error_counts_the_rounds_of_this_rollout_only():
    settings = settings_for(1, max_retry_rounds=2)
    settings.generation_stats["retry_rounds"] = 40
    with pytest.raises(GenerationError, match="after 2 retry rounds"):
        collect_rollout(rows_of("a"), ScriptedGenerator([]), settings)


def test_a_process_without_a_complete_group_returns_an_empty_batch_while_another_has_one():
    generator, settings = ScriptedGenerator([{"a": 0}]), settings_for(2, max_retry_rounds=1)
    batch = collect_rollout(rows_of("a"), generator, settings, agree=lambda is_true: True)
    assert (batch.prompts, batch.answers, batch.grouped_completions) == ([], [], [])
    assert batch.grouped_ref_meta == []
    assert settings.generation_stats == counters(dropped_prompts=1, partial_prompts=1, retry_rounds=1)


def test_a_complete_process_keeps_asking_for_no_prompts_while_another_is_short():
    heard: list[bool] = []

    def agree(is_true: bool) -> bool:
        heard.append(is_true)
        return len(heard) <= 2 or is_true

    generator, settings = ScriptedGenerator([{}, {}, {}]), settings_for(1, max_retry_rounds=9)
    batch = collect_rollout(rows_of("a"), generator, settings, agree=agree)
    assert [call.row_ids for call in generator.calls] == [["a"], [], []]
    assert heard == [False, False, False, True]  # three rounds offered, then the check for any complete group
    assert batch.grouped_completions == [["a#0"]]
    assert settings.generation_stats["retry_rounds"] == 2
    assert settings.generation_stats["partial_prompts"] == 0


@pytest.mark.parametrize("error", [GenerationError("out of paper"), NonFiniteError("a logit is nan")])
def test_a_process_whose_sampler_gives_up_goes_the_way_of_the_others_until_all_are_told(error: Exception):
    heard: list[bool] = []
    told: list[Exception | None] = []

    def gives_up(*_: object) -> object:
        assert not heard, "once is enough"
        raise error

    def agree(is_true: bool) -> bool:
        heard.append(is_true)
        return True

    def tell(found: Exception | None) -> None:
        told.append(found)
        if found is not None:
            raise found

    settings = settings_for(1, max_retry_rounds=2)
    with pytest.raises(type(error), match=str(error)):
        collect_rollout(rows_of("a"), gives_up, settings, agree=agree, raise_together=tell)  # type: ignore[arg-type]
    assert heard == [True, True], "as many rounds as the others offer"
    assert told == [error]


@pytest.mark.parametrize(
    ("groups", "metadata", "what"),
    [
        ([["x"]], None, "1 groups of completions for 2 prompts"),
        ([["x"], ["y"], ["z"]], None, "3 groups of completions for 2 prompts"),
        ([["x"], ["y"]], [[None]], "1 groups of metadata for 2 prompts"),
    ],
)
def test_an_answer_with_another_number_of_groups_than_prompts_is_refused(groups, metadata, what):
    def misaligned(prompts, num_samples, per_prompt_counts=None):
        return groups, metadata

    with pytest.raises(GenerationError, match=what):
        collect_rollout(rows_of("a", "b"), misaligned, settings_for(1))


def test_records_of_another_row_than_the_prompts_are_refused():
    def swapped(prompts, num_samples, per_prompt_counts=None):
        texts, records = ScriptedGenerator([{}])(prompts, num_samples, per_prompt_counts)
        assert records is not None
        return texts[::-1], records[::-1]

    with pytest.raises(GenerationError, match="completion of row 'b' for the prompt of row 'a'"):
        collect_rollout(rows_of("a", "b"), swapped, settings_for(1))


@pytest.mark.parametrize("prompt", ["solve:", RowPrompt("solve:", "other")])
def test_a_prompt_that_does_not_carry_its_row_is_refused(prompt):
    with pytest.raises(DataError, match="prompt of row 'a' carries the row identity"):
        collect_rollout([{"row_id": "a", "prompt": prompt, "answer": "1"}], ScriptedGenerator([{}]), settings_for(1))
