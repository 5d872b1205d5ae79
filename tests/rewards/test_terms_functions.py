"""Functions written for TRL and for verl are called as they were written to be, and what they do wrong is said or counted."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from support import reward_functions as written

from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.rewards.batch import RewardBatch, TrainerState
from maxent_grpo.rewards.functions import convention_of, imported_function
from maxent_grpo.rewards.term_settings import FunctionStyle
from maxent_grpo.rewards.terms import MOST_ABANDONED, RewardTerm, TermVerdict, ask_terms

QUESTIONS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "red"}]


def batch_of(*texts: str, **columns: list[Any]) -> RewardBatch:
    """Completions whose prompts are a conversation that asks for "red", with columns of their rows."""
    number = len(texts)
    return RewardBatch(
        prompts=["red"] * number,
        completions=texts,
        completion_ids=[[7] * len(text) for text in texts],
        columns={"row_id": [f"r{n}" for n in range(number)], **columns},
        conversations=[QUESTIONS] * number,
        state=TrainerState(global_step=3, max_steps=12, epoch=1.0),
    )


def term(function: Any, **settings: Any) -> RewardTerm:
    return RewardTerm("mine", function, **settings)


def verdict_of(function: Any, batch: RewardBatch, **settings: Any) -> TermVerdict:
    return term(function, **settings).start(batch)()


def values(verdict: TermVerdict) -> list[float | None]:
    return [None if grade is None else grade.reward for grade in verdict.grades]


def test_a_column_is_passed_by_its_name() -> None:
    assert values(verdict_of(written.accuracy, batch_of("4", "5", solution=["4", "4"]))) == [1.0, 0.0]
    assert values(verdict_of(written.by_tokens, batch_of("abc", ""))) == [3.0, 0.0]
    assert values(verdict_of(written.scaled, batch_of("abc", ""))) == [1.5, 0.0]


def test_rows_of_another_kind_are_abstained_from() -> None:
    mixed = batch_of("12", "def f(): ...", "x", task=["math", "coding", "math"])
    assert values(verdict_of(written.math_only, mixed)) == [1.0, None, 0.0]
    assert values(verdict_of(written.coding_only, mixed)) == [None, 1.0, None]
    assert verdict_of(written.math_only, mixed).failures == ["", "", ""]


def test_completions_come_as_messages_where_the_function_says_so() -> None:
    texts = batch_of("<think>a</think>b", "b")
    assert values(verdict_of(written.think_format, texts)) == [1.0, 0.0]
    asked = batch_of("it is red", "it is blue")
    assert values(verdict_of(written.echoes_the_question, asked, style=FunctionStyle.messages)) == [1.0, 0.0]
    with pytest.raises(RewardError, match="raised TypeError"):
        verdict_of(written.echoes_the_question, asked)


def test_reward_functions_of_trl_itself_work_unchanged() -> None:
    from trl.rewards import accuracy_reward, get_repetition_penalty_reward, think_format_reward

    boxed = batch_of(r"\boxed{\frac{1}{2}}", r"\boxed{3}", solution=[r"\frac{1}{2}", r"\frac{1}{2}"])
    verdict = verdict_of(accuracy_reward, boxed)
    assert values(verdict) == [1.0, 0.0]
    assert verdict.columns["solution"] == [r"\frac{1}{2}"] * 2
    assert values(verdict_of(think_format_reward, batch_of("<think>a</think>", "a"))) == [1.0, 0.0]
    assert values(verdict_of(get_repetition_penalty_reward(2), batch_of("aaaaa"))) == [-0.75]


def test_asynchronous_functions_of_one_batch_wait_together() -> None:
    batch = batch_of("4", "55", solution=["4", "4"])
    terms = [RewardTerm("first", written.meets_the_second), RewardTerm("second", written.meets_the_first)]
    verdicts = ask_terms([*terms, RewardTerm("third", written.by_tokens)], batch)
    assert [values(verdict) for verdict in verdicts.values()] == [[1.0, 2.0], [1.0, 0.0], [1.0, 2.0]]
    assert written.arrived == ["first", "second"]


def test_what_trl_passes_besides_works() -> None:
    verdict = verdict_of(written.logs, batch_of("ab", "c"))
    assert verdict.columns == {"length": [2, 1]}
    assert verdict.metrics == {"share_done": [0.25]}
    perhaps = verdict_of(written.logs_if_it_can, batch_of("ab", "c"))
    assert (perhaps.columns, perhaps.metrics) == ({"upper": ["AB", "C"]}, {"count": [2.0]})


def test_what_is_logged_in_the_wrong_number_is_said() -> None:
    def once(completions: list[str], log_extra: Any) -> list[float]:
        log_extra("first", completions[:1])
        return [0.0 for _ in completions]

    with pytest.raises(RewardError, match="logged 1 values in the column 'first' for 2 completions"):
        verdict_of(once, batch_of("a", "b"))
    twice = [RewardTerm(name, written.logs_if_it_can) for name in ("one", "two")]
    with pytest.raises(RewardError, match="'one' and 'two' both logged the column 'upper'"):
        ask_terms(twice, batch_of("a"))


def test_a_number_that_has_no_mean_is_not_logged() -> None:
    def infinite(completions: list[str], log_metric: Any) -> list[float]:
        log_metric("x", math.inf)
        return [0.0 for _ in completions]

    with pytest.raises(RewardError, match=r"raised ValueError\(\"log_metric\('x', inf\): only finite numbers"):
        verdict_of(infinite, batch_of("a"))


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        RewardError, match=r"'mine' asks for solution, which the rows do not have; .* are answer, row_id"
    ):
        verdict_of(written.accuracy, batch_of("a", answer=["a"]), abstain_on_error=True)


def test_a_failing_completion_is_found_and_the_others_keep_what_they_were_given() -> None:
    def strict(completions: list[str], log_metric: Any, log_extra: Any) -> list[float]:
        log_metric("calls", 1.0)
        log_extra("size", [len(text) for text in completions])
        return [1.0 / len(text) for text in completions]

    batch = batch_of("ab", "", "a")
    verdict = verdict_of(strict, batch, abstain_on_error=True)
    assert values(verdict) == [0.5, None, 1.0]
    assert verdict.failures == ["", "error", ""]
    assert verdict.columns == {"size": [2, None, 1]}
    assert verdict.metrics == {"calls": [1.0, 1.0]}
    with pytest.raises(RewardError, match=r"'mine' on row r1, completion '', raised ZeroDivisionError"):
        verdict_of(strict, batch)


def test_a_score_in_verls_style_works_unchanged() -> None:
    batch = batch_of(
        "so #### 4", "5", "5",
        data_source=["openai/gsm8k", "with_details", "with_details"],
        reward_model=[{"style": "rule", "ground_truth": truth} for truth in ("4", "5", "6")],
        extra_info=[{"index": n} for n in range(3)],
    )  # fmt: skip
    verdict = verdict_of(written.compute_score, batch)
    assert values(verdict) == [1.0, 1.0, -1.0]
    assert verdict.columns == {"acc": [None, True, False], "pred": [None, "5", "5"]}


@pytest.mark.parametrize(
    ("columns", "right"),
    [
        ({"ground_truth": ["5"], "answer": ["no"]}, 1.0),
        ({"answer": ["5"]}, 1.0),
        ({"ground_truth": ["4"], "answer": ["5"]}, 0.0),
    ],
)
def test_verls_ground_truth_is_the_rows_or_its_answer(columns: dict[str, list[str]], right: float) -> None:
    assert values(verdict_of(written.compute_score_async, batch_of("5", **columns))) == [right]


def test_a_source_that_a_score_does_not_know_is_an_error_of_that_row() -> None:
    batch = batch_of("5", "5", answer=["5", "5"], data_source=["with_details", "elsewhere"])
    with pytest.raises(RewardError, match="on row r1, completion '5', raised NotImplementedError"):
        verdict_of(written.compute_score, batch)
    verdict = verdict_of(written.compute_score, batch, abstain_on_error=True)
    assert (values(verdict), verdict.failures) == ([1.0, None], ["", "error"])


def test_styles_are_told_by_parameters_and_can_be_said() -> None:
    styles = {
        written.accuracy: FunctionStyle.text,
        written.think_format: FunctionStyle.messages,
        written.compute_score: FunctionStyle.verl,
        written.scaled: FunctionStyle.text,
    }
    for function, style in styles.items():
        assert convention_of(function, FunctionStyle.auto).style is style
        assert convention_of(function, FunctionStyle.messages).style is FunctionStyle.messages


def test_a_call_beyond_its_limit_is_given_up() -> None:
    batch, began = batch_of("a", "b"), time.monotonic()
    verdict = verdict_of(written.hangs, batch, time_limit=0.05, abstain_on_error=True)
    assert time.monotonic() - began < 0.6
    assert (values(verdict), verdict.failures) == ([None, None], ["timeout", "timeout"])
    with pytest.raises(RewardError, match=r"'mine' on 2 completions took longer than reward.time_limits.mine=0.05 s"):
        verdict_of(written.sleeps, batch, time_limit=0.05)


def test_a_call_within_its_limit_is_as_without_one() -> None:
    batch = batch_of("ab", "")
    assert verdict_of(written.logs, batch, time_limit=5.0) == verdict_of(written.logs, batch)
    with pytest.raises(RewardError, match="raised LookupError"):
        verdict_of(refuses, batch, time_limit=5.0)


def refuses(completions: list[str]) -> list[float]:
    raise LookupError(f"no price for {completions}")


def test_in_verls_style_only_the_slow_completion_is_left_out() -> None:
    batch = batch_of("a", "slow", "b", answer=["a", "a", "a"])
    verdict = verdict_of(written.slow_on_some, batch, time_limit=0.1, abstain_on_error=True)
    assert (values(verdict), verdict.failures) == ([1.0, None, 0.0], ["", "timeout", ""])
    with pytest.raises(RewardError, match="on row r1, completion 'slow', took longer than"):
        verdict_of(written.slow_on_some, batch, time_limit=0.1)


def test_an_asynchronous_call_is_given_up_and_later_ones_still_run() -> None:
    batch, began = batch_of("ab"), time.monotonic()
    for hanging in (written.never_answers, written.blocks_the_loop):
        verdict = verdict_of(hanging, batch, time_limit=0.05, abstain_on_error=True)
        assert verdict.failures == ["timeout"]
    assert values(verdict_of(written.asks_a_service, batch)) == [2.0]
    assert time.monotonic() - began < 1.4


def test_calls_that_never_end_stop_the_run_in_the_end() -> None:
    hanging = term(written.sleeps, time_limit=0.001, abstain_on_error=True)
    for _ in range(MOST_ABANDONED):
        assert hanging.start(batch_of("a"))().failures == ["timeout"]
    with pytest.raises(RewardError, match=f"{MOST_ABANDONED + 1} calls that took longer .* are still running"):
        hanging.start(batch_of("a"))()


def test_a_function_comes_from_a_module_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my rewards.py"
    file.write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Kept:\n    calls: int = 0\n\n\nkept = Kept()\n\n\n"
        "def score(completions, **columns):\n    kept.calls += 1\n    return [float(kept.calls)] * len(completions)\n"
    )
    again = [imported_function("reward.functions.mine", f"{file}:score") for _ in range(2)]
    assert [values(verdict_of(function, batch_of("a"))) for function in again] == [[1.0], [2.0]]
    assert imported_function("s", "support.reward_functions:accuracy") is written.accuracy
    with pytest.raises(ConfigError, match=r"reward.functions.mine=.*: file .*my rewards.py has no function other"):
        imported_function("reward.functions.mine", f"{file}:other")
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.py"):
        imported_function("reward.functions.mine", "nowhere.py:score")
