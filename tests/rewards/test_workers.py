"""Rewards given by processes beside the program are those that the program gives, and the processes end when they should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.runs import completion_lines, metric_lines, train

from maxent_grpo.errors import RewardError
from maxent_grpo.rewards.batch import RewardBatch
from maxent_grpo.rewards.coloring import grade_coloring
from maxent_grpo.rewards.registry import CallSettings, TermSettings, build_terms, term_recipes
from maxent_grpo.rewards.terms import TermVerdict, ask_terms
from maxent_grpo.rewards.workers import Asking, RewardWorkers, joined_verdicts, shares
from maxent_grpo.training.metric_table import UNREPRODUCED

OWN = {
    "scored": "support.reward_functions:compute_score",
    "place": "support.graders:place_in_the_batch",
    "refuses": "support.graders:refuses_green",
    "dies": "support.graders:ends_the_process",
}
CALLS = CallSettings(functions=OWN, abstaining=frozenset({"refuses"}))
WEIGHTS = dict.fromkeys(("math", "repetition", "scored", "place", "refuses"), 1.0)
TEXTS = ["4", r"\boxed{4}", "RG RG RG RG", "the answer is 5", "$2+2$", "", "G", "x=4", r"\frac{8}{2}", "4 4 4 4 4"]


def batch(texts: list[str] = TEXTS) -> RewardBatch:
    return RewardBatch(
        prompts=["2+2="] * len(texts),
        completions=texts,
        completion_ids=[list(text.encode()) for text in texts],
        columns={
            "row_id": [f"r{n}" for n in range(len(texts))],
            "answer": ["4"] * len(texts),
            "data_source": ["with_details"] * len(texts),
        },
    )


def workers_for(weights: dict[str, float], count: int = 2) -> RewardWorkers:
    return RewardWorkers(count, term_recipes(weights, CALLS, grade_coloring, TermSettings()))


@pytest.fixture(scope="module")
def workers() -> Iterator[RewardWorkers]:
    made = workers_for(WEIGHTS)
    yield made
    made.close()


def terms(weights: dict[str, float] = WEIGHTS) -> list[Any]:
    return build_terms(weights, CALLS, grade_coloring)


def test_verdicts_of_processes_are_those_of_the_program(workers: RewardWorkers) -> None:
    """Grades, failures, and what the functions noted down, of terms that are shared out and of those that are not."""
    here = ask_terms(terms(), batch())
    assert [term.is_separable for term in terms()] == [True, True, True, False, False]
    assert Asking(terms(), workers).verdicts(batch()) == here
    assert len(set(workers.pids)) == 2
    assert here["scored"].columns
    assert [grade.reward for grade in here["place"].grades if grade] == list(range(len(TEXTS)))


def test_parts_begun_before_the_rest_was_there_make_the_same_verdicts(workers: RewardWorkers) -> None:
    asking = Asking(terms(), workers)
    for first, last in ((0, 3), (3, 4), (4, len(TEXTS))):
        asking.add(batch().rows(first, last))
    assert asking.verdicts(batch()) == ask_terms(terms(), batch())


def test_an_error_in_a_process_is_the_error_of_the_program() -> None:
    stopping = CallSettings(functions={"refuses": OWN["refuses"]})
    [term] = build_terms({"refuses": 1.0}, stopping, grade_coloring)
    made = RewardWorkers(1, term_recipes({"refuses": 1.0}, stopping, None, TermSettings()))
    try:
        with pytest.raises(RewardError) as here:
            ask_terms([term], batch())
        with pytest.raises(RewardError) as there:
            Asking([term], made).verdicts(batch())
        assert str(there.value) == str(here.value)
        assert "on row r2" in str(here.value)
    finally:
        made.close()


def test_a_process_that_dies_is_told_of_rather_than_waited_for() -> None:
    weights = {"dies": 1.0}
    made = workers_for(weights, 1)
    try:
        for _ in range(2):
            with pytest.raises(RewardError, match=r"a process of reward.workers ended"):
                Asking(terms_of_dying(), made).verdicts(batch())
    finally:
        made.close()
    assert made.pids == []


def terms_of_dying() -> list[Any]:
    return build_terms({"dies": 1.0}, CALLS, grade_coloring)


def test_a_function_that_no_process_can_import_is_named() -> None:
    calls = CallSettings(functions={"gone": "support.graders:no_such_function"})
    made = RewardWorkers(1, term_recipes({"gone": 1.0}, calls, None, TermSettings()))
    [term] = terms({"repetition": 1.0})
    with pytest.raises(RewardError, match=r"(?s)reward.workers=1: a process did not start .*no_such_function"):
        made.start(term, batch())
    assert made.pids == []


def test_the_tasks_own_grader_stays_with_the_program_where_it_cannot_be_sent() -> None:
    names = [recipe.name for recipe in term_recipes({"task": 1.0, "math": 1.0}, CALLS, None, TermSettings())]
    assert names == ["math"]


def test_shares_are_nearly_equal_and_cover_everything_once() -> None:
    assert shares(10, 4) == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert shares(2, 4) == [(0, 1), (1, 2)]
    assert shares(0, 4) == []


def test_columns_that_some_shares_did_not_log_are_empty_there() -> None:
    parts = [TermVerdict([None], [""]), TermVerdict([None, None], ["", ""], {"seen": [1, 2]}, {"m": [0.5]})]
    whole = joined_verdicts([*parts, parts[0]])
    assert whole.columns == {"seen": [None, 1, 2, None]}
    assert whole.metrics == {"m": [0.5]}
    assert len(whole.grades) == len(whole.failures) == 4


ORPHANS = """
import os, signal, sys
from maxent_grpo.rewards.batch import RewardBatch
from maxent_grpo.rewards.registry import CallSettings, TermSettings, build_terms, term_recipes
from maxent_grpo.rewards.workers import Asking, RewardWorkers
calls = CallSettings(functions={"slow": "support.graders:takes_a_minute"})
made = RewardWorkers(2, term_recipes({"slow": 1.0}, calls, None, TermSettings()))
made.start(build_terms({"slow": 1.0}, calls, None)[0], RewardBatch(["a"], ["b"], [[1]], {}))
print(*made.pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_processes_end_with_a_program_that_is_killed() -> None:
    """Also one that is in the middle of a call."""
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_run_is_the_same_with_processes_that_reward_while_it_samples(tmp_path: Path) -> None:
    """Bit for bit, with two loader batches a step, and again when prompts are drawn until groups differ."""
    for number, method in enumerate(("scoring=maxent", "scoring=dapo")):
        asked = (method, "optimization.grad_accum_steps=2", "evaluation.num_samples=4", "evaluation.ks=[1]")
        seen = []
        for count in (0, 2):
            folder = tmp_path / f"{number}-{count}"
            train(folder, *asked, f"reward.workers={count}")
            lines = [
                {name: value for name, value in line.items() if not name.startswith(tuple(UNREPRODUCED))}
                for line in metric_lines(folder)
            ]
            seen.append((lines, completion_lines(folder)))
        assert seen[0] == seen[1]
