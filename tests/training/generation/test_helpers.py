"""Every promise of the group bookkeeping, edge by edge."""

from __future__ import annotations

import pytest
from support.scripted import completion_record

from maxent_grpo.training.generation.helpers import (
    DEFAULT_RETRY_LIMIT,
    AggregatedGenerationState,
    append_completion_group,
    determine_retry_limit,
    drop_empty_prompt_groups,
    drop_incomplete_prompt_groups,
    flatten_prompt_completions,
    flatten_ref_metadata,
    pending_generation_indices,
    retry_incomplete_prompts,
    seed_generation_groups,
    truncate_to_expected_counts,
)
from maxent_grpo.training.types.rewards import GenerationBatch

Asked = tuple[list[str], int, list[int] | None]


class Replies:
    """A sampler that gives prepared replies in turn, the last one for ever."""

    def __init__(self, *replies):
        self.replies = replies
        self.asked: list[Asked] = []

    def __call__(self, prompts, num_samples, per_prompt_counts=None):
        self.asked.append((list(prompts), num_samples, per_prompt_counts))
        return self.replies[min(len(self.asked), len(self.replies)) - 1]


# seed_generation_groups


def test_seeding_with_nothing_gives_one_empty_group_per_prompt_and_no_metadata():
    assert seed_generation_groups(3, None, None) == ([[], [], []], None)


def test_seeded_empty_groups_are_separate_lists():
    completions, metadata = seed_generation_groups(2, None, [])
    completions[0].append("a")
    assert metadata is not None
    metadata[0].append("m")
    assert completions == [["a"], []]
    assert metadata == [["m"], []]


def test_seeding_with_fewer_groups_than_prompts_adds_empty_ones():
    assert seed_generation_groups(3, [["a", "b"]], [["m", "n"]]) == ([["a", "b"], [], []], [["m", "n"], [], []])


def test_seeding_cuts_surplus_prompts_from_both_buffers():
    assert seed_generation_groups(1, [["a"], ["b"]], [["m"], ["n"]]) == ([["a"]], [["m"]])


def test_seeding_pads_short_metadata_and_cuts_surplus_metadata():
    completions, metadata = seed_generation_groups(3, [["a", "b"], ["c"], ["d"]], [["m"], ["n", "surplus"]])
    assert completions == [["a", "b"], ["c"], ["d"]]
    assert metadata == [["m", None], ["n"], [None]]


def test_seeding_does_not_alias_its_inputs():
    given_comps, given_meta = [["a"], ["b"]], [["m"], ["n"]]
    completions, metadata = seed_generation_groups(2, given_comps, given_meta)
    assert metadata is not None
    completions[0].append("x")
    metadata[1].append("y")
    completions.append([])
    metadata.append([])
    assert given_comps == [["a"], ["b"]]
    assert given_meta == [["m"], ["n"]]


# append_completion_group


@pytest.mark.parametrize("nothing", [None, []])
@pytest.mark.parametrize("metadata", [None, [["m"], []]])
def test_appending_nothing_changes_nothing_even_with_metadata_beside_it(nothing, metadata):
    completions = [["a"], []]
    returned = append_completion_group(completions, metadata, 0, nothing, ["surplus"])
    assert completions == [["a"], []]
    assert returned is metadata
    assert metadata in (None, [["m"], []])


def test_appending_extends_the_named_group_of_both_buffers_in_place():
    completions, metadata = [["a"], ["b"]], [["m"], ["n"]]
    returned = append_completion_group(completions, metadata, 1, ["c", "d"], ["o", "p"])
    assert completions == [["a"], ["b", "c", "d"]]
    assert returned is metadata
    assert metadata == [["m"], ["n", "o", "p"]]


def test_appending_cuts_surplus_metadata_and_pads_missing_metadata():
    completions, metadata = [[], []], [[], []]
    append_completion_group(completions, metadata, 0, ["a"], ["m", "surplus"])
    append_completion_group(completions, metadata, 1, ["b", "c"], ["n"])
    append_completion_group(completions, metadata, 1, ["d"], None)
    assert metadata == [["m"], ["n", None, None]]


def test_metadata_that_never_arrives_stays_none():
    completions = [[]]
    assert append_completion_group(completions, None, 0, ["a"], None) is None
    assert append_completion_group(completions, None, 0, ["b"], []) is None
    assert completions == [["a", "b"]]


def test_metadata_first_seen_at_the_third_append_back_fills_the_earlier_groups_with_none():
    completions = [[], [], []]
    metadata = append_completion_group(completions, None, 0, ["a", "b"], None)
    metadata = append_completion_group(completions, metadata, 1, ["c"], None)
    metadata = append_completion_group(completions, metadata, 1, ["d"], ["m"])
    assert completions == [["a", "b"], ["c", "d"], []]
    assert metadata == [[None, None], [None, "m"], []]


# pending_generation_indices and determine_retry_limit


def test_pending_prompts_are_those_with_too_few_completions_in_ascending_order():
    assert pending_generation_indices([[], ["a", "b"], ["a"], ["a", "b", "c"], []], 2) == [0, 2, 4]


@pytest.mark.parametrize("expected", [0, -1])
def test_nothing_is_pending_when_nothing_is_expected(expected):
    assert pending_generation_indices([[], ["a"]], expected) == []


@pytest.mark.parametrize(
    ("expected", "configured", "limit"),
    [
        (8, 2, 2),
        (8, None, 8),
        (8, 0, 8),
        (8, -1, 8),
        (0, 5, 5),
        (0, None, 3),
        (-4, 0, 3),
        (None, None, 3),
        (None, -2, 3),
    ],
)
def test_the_retry_limit_is_the_setting_else_the_group_size_else_three(expected, configured, limit):
    assert determine_retry_limit(expected, configured) == limit
    assert DEFAULT_RETRY_LIMIT == 3


# retry_incomplete_prompts


def test_a_retry_asks_for_the_short_prompts_alone_each_with_its_deficit():
    sampler = Replies(([["b1"], ["c1", "c2"]], None))
    state = AggregatedGenerationState([["a0", "a1"], ["b0"], []])
    returned = retry_incomplete_prompts(["A", "B", "C"], sampler, 2, state, 5)
    assert returned is state
    assert sampler.asked == [(["B", "C"], 2, [1, 2])]
    assert state.completions == [["a0", "a1"], ["b0", "b1"], ["c1", "c2"]]
    assert state.metadata is None


def test_a_sampler_that_returns_too_few_is_asked_again_for_the_rest():
    sampler = Replies(([["a0"], []], None), ([["a1"], ["b0", "b1"]], None))
    state = retry_incomplete_prompts(["A", "B"], sampler, 2, AggregatedGenerationState([[], []]), 5)
    assert [(prompts, counts) for prompts, _, counts in sampler.asked] == [(["A", "B"], [2, 2]), (["A", "B"], [1, 2])]
    assert state.completions == [["a0", "a1"], ["b0", "b1"]]


def test_a_sampler_that_returns_too_many_leaves_the_surplus_to_the_caller():
    state = retry_incomplete_prompts(
        ["A"], Replies(([["a", "b", "c"]], [["m", "n", "o"]])), 2, AggregatedGenerationState([[]]), 5
    )
    assert state.completions == [["a", "b", "c"]]
    assert state.metadata == [["m", "n", "o"]]


@pytest.mark.parametrize("nothing", [([], None), (None, None), ([], []), ([[]], None), ([[]], [[]]), ([None], None)])
@pytest.mark.parametrize(("configured", "rounds"), [(4, 4), (0, 2), (None, 2)])
def test_a_sampler_that_never_delivers_stops_at_the_limit(nothing, configured, rounds):
    sampler = Replies(nothing)
    state = retry_incomplete_prompts(["A"], sampler, 2, AggregatedGenerationState([["a"]]), configured)
    assert len(sampler.asked) == rounds
    assert state.completions == [["a"]]
    assert state.metadata is None


def test_metadata_that_only_a_retry_delivers_is_back_filled_for_the_first_answer():
    sampler = Replies(([["a1"]], None), ([["a2"]], [["m"]]))
    state = retry_incomplete_prompts(["A", "B"], sampler, 3, AggregatedGenerationState([["a0"], ["b0"] * 3]), 5)
    assert state.completions == [["a0", "a1", "a2"], ["b0"] * 3]
    assert state.metadata == [[None, None, "m"], [None] * 3]


def test_metadata_missing_from_a_retry_is_padded_with_none():
    state = AggregatedGenerationState([["a0"]], [["m"]])
    retry_incomplete_prompts(["A"], Replies(([["a1"]], None)), 2, state, 5)
    assert state.metadata == [["m", None]]


@pytest.mark.parametrize("groups", [[["b"]], [["b"], ["c"], ["d"]]])
def test_a_retry_answer_with_another_number_of_groups_than_prompts_raises(groups):
    with pytest.raises(ValueError, match="zip"):
        retry_incomplete_prompts(["A", "B"], Replies((groups, None)), 1, AggregatedGenerationState([[], []]), 1)


def test_complete_prompts_are_not_asked_again():
    sampler = Replies(([], None))
    retry_incomplete_prompts(["A"], sampler, 1, AggregatedGenerationState([["a"]]), 5)
    assert sampler.asked == []


def test_two_processes_make_the_same_number_of_calls_when_only_one_is_short():
    complete, short = AggregatedGenerationState([["a"]]), AggregatedGenerationState([[]])
    is_anyone_short = [True, True, False]
    heard: dict[str, list[bool]] = {"complete": [], "short": []}

    def agree_as(process):
        def agree(is_short):
            heard[process].append(is_short)
            return is_anyone_short[len(heard[process]) - 1]

        return agree

    idle, busy = Replies(([], None)), Replies(([[]], None), ([["b"]], None))
    retry_incomplete_prompts(["A"], idle, 1, complete, 5, agree=agree_as("complete"))
    retry_incomplete_prompts(["B"], busy, 1, short, 5, agree=agree_as("short"))
    assert heard == {"complete": [False, False, False], "short": [True, True, False]}
    assert idle.asked == [([], 1, []), ([], 1, [])]
    assert [prompts for prompts, _, _ in busy.asked] == [["B"], ["B"]]
    assert complete.completions == [["a"]]
    assert short.completions == [["b"]]


# drop_empty_prompt_groups


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        ([[], ["b"], ["c"]], [1, 2]),
        ([["a"], [], ["c"]], [0, 2]),
        ([["a"], ["b"], []], [0, 1]),
        ([[], [], []], []),
        ([["a"], ["b"], ["c"]], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("tracked", [True, False])
def test_empty_prompts_leave_all_four_lists_together_and_are_counted(groups, kept, tracked):
    metadata = [[f"meta-{text}" for text in group] for group in groups] if tracked else None
    stats = {"dropped_prompts": 5}
    result = drop_empty_prompt_groups(["A", "B", "C"], ["1", "2", "3"], groups, metadata, stats)
    assert result == (
        ["ABC"[i] for i in kept],
        ["123"[i] for i in kept],
        [["abc"[i]] for i in kept],
        [["meta-" + "abc"[i]] for i in kept] if tracked else None,
    )
    assert stats == {"dropped_prompts": 5 + 3 - len(kept)}


def test_dropping_starts_the_counter_when_it_is_missing():
    stats: dict[str, int] = {}
    drop_empty_prompt_groups(["A"], ["1"], [[]], None, stats)
    assert stats == {"dropped_prompts": 1}


@pytest.mark.parametrize(
    ("prompts", "answers", "metadata"),
    [(["A"], ["1", "2"], None), (["A", "B"], ["1"], None), (["A", "B"], ["1", "2"], [["m"]])],
)
def test_lists_out_of_step_raise_when_prompts_are_dropped(prompts, answers, metadata):
    with pytest.raises(ValueError, match="zip"):
        drop_empty_prompt_groups(prompts, answers, [["a"], []], metadata, {})


# truncate_to_expected_counts


def test_truncation_trims_completions_and_metadata_and_counts_groups_that_stay_short():
    completions = [["a", "b", "c"], ["d"], [], ["e", "f"]]
    metadata = [["m", "n", "o"], ["p"], [], ["q", "r"]]
    returned_comps, returned_meta, num_short = truncate_to_expected_counts(completions, metadata, 2)
    assert returned_comps is completions
    assert returned_meta is metadata
    assert completions == [["a", "b"], ["d"], [], ["e", "f"]]
    assert metadata == [["m", "n"], ["p"], [], ["q", "r"]]
    assert num_short == 1  # the empty group is not counted


def test_truncation_works_without_metadata():
    assert truncate_to_expected_counts([["a", "b"]], None, 1) == ([["a"]], None, 0)


@pytest.mark.parametrize("expected", [0, -3])
def test_nothing_is_trimmed_when_nothing_is_expected(expected):
    assert truncate_to_expected_counts([["a", "b"], []], [["m", "n"], []], expected) == (
        [["a", "b"], []],
        [["m", "n"], []],
        0,
    )


def test_truncation_refuses_metadata_out_of_step():
    with pytest.raises(ValueError, match="zip"):
        truncate_to_expected_counts([["a"], ["b"]], [["m"]], 1)
    with pytest.raises(ValueError, match="2 completions but 1 metadata"):
        truncate_to_expected_counts([["a", "b"]], [["m"]], 1)


# drop_incomplete_prompt_groups


def test_dropping_a_middle_prompt_keeps_all_four_lists_aligned():
    stats = {"dropped_prompts": 0}
    prompts, answers, completions, metadata, num_dropped = drop_incomplete_prompt_groups(
        ["A", "B", "C"],
        ["1", "2", "3"],
        [["a0", "a1"], ["b0"], ["c0", "c1"]],
        [["ma0", "ma1"], ["mb0"], ["mc0", "mc1"]],
        2,
        stats,
    )
    assert prompts == ["A", "C"]
    assert answers == ["1", "3"]
    assert completions == [["a0", "a1"], ["c0", "c1"]]
    assert metadata == [["ma0", "ma1"], ["mc0", "mc1"]]
    assert num_dropped == 1
    assert stats == {"dropped_prompts": 1}


def test_an_over_full_group_is_dropped_like_a_short_one_and_the_fifth_value_counts_this_call_only():
    stats = {"dropped_prompts": 7}
    result = drop_incomplete_prompt_groups(["A", "B"], ["1", "2"], [["a", "b"], ["c", "d", "e"]], None, 2, stats)
    assert result == (["A"], ["1"], [["a", "b"]], None, 1)
    assert stats == {"dropped_prompts": 8}


def test_no_group_is_incomplete_when_nothing_is_expected():
    stats = {"dropped_prompts": 0}
    assert drop_incomplete_prompt_groups(["A"], ["1"], [["a"]], None, 0, stats) == (["A"], ["1"], [["a"]], None, 0)
    assert stats == {"dropped_prompts": 0}


def test_dropping_leaves_the_given_lists_as_they_were():
    prompts, answers, completions, metadata = ["A", "B"], ["1", "2"], [["a"], []], [["m"], []]
    drop_empty_prompt_groups(prompts, answers, completions, metadata, {})
    drop_incomplete_prompt_groups(prompts, answers, completions, metadata, 2, {})
    assert (prompts, answers, completions, metadata) == (["A", "B"], ["1", "2"], [["a"], []], [["m"], []])


# flatten_prompt_completions and flatten_ref_metadata


def test_flattening_repeats_prompt_and_answer_once_per_completion_for_groups_of_different_sizes():
    info = [[{"n": 0}, {"n": 1}], [], [{"n": 2}]]
    batch = GenerationBatch(["A", "B", "C"], ["1", "2", "3"], [["a0", "a1"], [], ["c0"]], None, info)
    pairs, answers = flatten_prompt_completions(batch)
    assert pairs.prompts == ["A", "A", "C"]
    assert pairs.completions == ["a0", "a1", "c0"]
    assert pairs.metadata == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert answers == ["1", "1", "3"]


def test_flattening_without_info_has_no_metadata():
    pairs, _ = flatten_prompt_completions(GenerationBatch(["A"], ["1"], [["a"]], None))
    assert pairs.metadata is None


def test_flattening_an_empty_batch_gives_empty_lists():
    pairs, answers = flatten_prompt_completions(GenerationBatch([], [], [], [], []))
    assert (pairs.prompts, pairs.completions, pairs.metadata, answers) == ([], [], [], [])
    assert flatten_ref_metadata([], []) == []


def test_flattened_metadata_converts_records_keeps_other_entries_and_fills_gaps_with_none():
    record = completion_record("row-1", "a")
    flat = flatten_ref_metadata([["a", "b"], [], ["c"]], [[record, None], [], [{"logprob": -1.0}]])
    assert flat == [record.to_trl_payload(), None, {"logprob": -1.0}]


def test_flattened_metadata_is_none_when_there_is_none_at_all():
    assert flatten_ref_metadata([["a"], ["b"]], None) is None


@pytest.mark.parametrize("metadata", [[["m"]], [["m"], []], [["m"], ["n", "o"]]])
def test_flattening_metadata_out_of_step_raises(metadata):
    with pytest.raises(ValueError, match="zip"):
        flatten_ref_metadata([["a"], ["b"]], metadata)
