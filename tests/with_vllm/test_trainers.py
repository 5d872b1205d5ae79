"""Several trainers and one real server: who gives weights, who asks for what, and how they agree when something is missing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.faulting_proxy import faulting
from support.launches import DEADLINE, TORCHRUN, Launch
from support.ranks import call_together
from support.runs import completion_lines, evaluation_lines, metric_lines, overrides, train
from support.vllm_policy import HAS_VLLM, JOINS, NEEDS_VLLM, PROMPTS, Asked, moved
from support.vllm_runs import JOINED, joined, leftovers, sampled, servers, until
from support.vllm_team import sampled_alone

pytestmark = pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)
OWN = pytest.mark.skipif(JOINS, reason="a server was started by somebody else, and this is about one of the run's own")


def of_case(told: list[list[dict[str, Any]]], case: str) -> list[dict[str, Any]]:
    """What each process says of a case."""
    return [next(result for result in mine if result["case"] == case) for mine in told]


def drawn(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Each row's completions; a row is one process's alone."""
    joined: dict[str, Any] = {}
    for result in results:
        assert result["error"] is None
        assert not joined.keys() & result["drawn"].keys()
        joined |= result["drawn"]
    return joined


RUN = (
    *JOINED,
    *("optimization.total_training_steps=3", "optimization.learning_rate=0.02", "generation.max_in_flight=4"),
    *("run.num_threads=1", "logging.console=plain"),
)


def num_lines(run_dir: Path) -> int:
    """Steps that a run has recorded."""
    path = run_dir / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def assert_same_training(two: Path, one: Path, steps: int) -> None:
    """Two processes and one drew the same completions, and end with the same weights up to rounding."""
    drawn = Counter(sampled(two))
    assert drawn.total() == steps * 4 * 4
    assert drawn == Counter(sampled(one))
    files = [next((run_dir / "checkpoints" / f"step_{steps}").rglob("model*.safetensors")) for run_dir in (one, two)]
    weights = [load_file(file) for file in files]
    largest = max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0])
    # an update moves a weight by up to 0.02, and the rounding of one adds to that of the next
    assert largest < 1e-5 * steps


@pytest.mark.slow
def test_two_trainers_draw_what_one_draws_and_stop_together(asked: Asked, url: str, tmp_path: Path) -> None:
    version = 1 + (asked.weights.version or 0)
    moved(asked.loaded, 3)
    asked.weights.bring(version)
    alone = sampled_alone(asked)
    told = call_together("support.vllm_team:sampled_together", url, str(tmp_path), ["", "idle", "lost"])
    plain = of_case(told, "")
    assert drawn(plain) == alone
    assert list(plain[0]["drawn"]) == [prompt.row_id for prompt in PROMPTS[::2]]
    idle = of_case(told, "idle")
    assert drawn(idle) == {row: tokens for row, tokens in alone.items() if row in plain[0]["drawn"]}
    # one gives the weights, once each time
    assert [[result["weight_syncs"] for result in mine] for mine in told] == [[1, 2, 3], [0, 0, 0]]
    first, second = of_case(told, "lost")
    assert first["error"] == second["error"]
    assert first["error"].startswith("process 1: vLLM did not deliver the completions of row")
    assert (first["failed_requests"], second["failed_requests"] > 0) == (0, True)


@pytest.mark.slow
@OWN
def test_a_server_killed_under_two_trainers_is_started_anew_by_the_first_and_followed_by_the_other(
    tmp_path: Path,
) -> None:
    told = call_together("support.vllm_team:sampled_together", None, str(tmp_path), ["", "killed", "idle"], timeout=580)
    plain, killed, later = (of_case(told, case) for case in ("", "killed", "idle"))
    assert drawn(killed) == drawn(plain)
    assert [result["moved"] for result in killed] == [True, True]
    assert killed[0]["urls"] == killed[1]["urls"] == later[1]["urls"] != plain[0]["urls"]
    assert all(result["failed_requests"] >= 1 for result in killed)
    assert later[0]["drawn"] == plain[0]["drawn"]
    assert [later[rank]["weight_syncs"] for rank in (0, 1)] == [3, 0]


@pytest.mark.slow
def test_a_run_of_two_trainers_is_that_of_one(url: str, tmp_path: Path) -> None:
    with faulting(url, lambda number: "500" if number == 5 else None) as proxy:
        ended = Launch(TORCHRUN, overrides(tmp_path / "two", *RUN, joined(proxy)), tmp_path).wait(DEADLINE)
        assert ended.status == 0, ended.err
        # four prompts a step are asked for once each, whoever asks, and one of them twice; weights come once a step
        assert proxy.seen["samples"] == 3 * 4 + 1
        assert proxy.seen["/collective_rpc"] == 3
        assert proxy.most_in_flight <= 4
    lines = metric_lines(tmp_path / "two")
    assert [line["generation/weight_syncs"] for line in lines] == [1, 1, 1]
    assert {line["generation/staleness"] for line in lines} == {0}
    assert max(line["generation/logprob_gap"] for line in lines if "generation/logprob_gap" in line) < 1e-3
    assert {(line["step"], line["policy_version"]) for line in completion_lines(tmp_path / "two")} == {
        (1, 0),
        (2, 1),
        (3, 2),
    }
    train(tmp_path / "one", *RUN, f"generation.vllm.url={url}")
    assert_same_training(tmp_path / "two", tmp_path / "one", 3)


@pytest.mark.slow
def test_two_trainers_with_unequal_shares_of_held_out_rows_evaluate_as_one_does(url: str, tmp_path: Path) -> None:
    """Three rows in batches of one: the second trainer has nothing to ask while the first asks for the last."""
    evaluated = (*RUN, "evaluation.enabled=true", "evaluation.batch_size=1", "evaluation.every_n_steps=1")
    evaluated = (*evaluated, "data.num_eval=3", f"generation.vllm.url={url}")
    ended = Launch(TORCHRUN, overrides(tmp_path / "two", *evaluated), tmp_path).wait(DEADLINE)
    assert ended.status == 0, ended.err
    train(tmp_path / "one", *evaluated)
    figures = [
        [(line["step"], line["row_id"], line["num_right"], line["mean_length"]) for line in evaluation_lines(run_dir)]
        for run_dir in (tmp_path / "two", tmp_path / "one")
    ]
    assert len(figures[0]) == 4 * 3
    assert figures[0] == figures[1]


@pytest.mark.slow
@OWN
def test_a_run_of_two_trainers_goes_on_when_its_server_is_killed(tmp_path: Path) -> None:
    longer = (
        *RUN,
        "optimization.total_training_steps=6",
        "generation.max_completion_len=60",
        "generation.vllm.timeout=20",
    )
    launch = Launch(TORCHRUN, overrides(tmp_path / "two", *longer), tmp_path)
    try:
        assert until(lambda: num_lines(tmp_path / "two") >= 2 or launch.process.poll() is not None, DEADLINE)
        main = launch.workers()[0]
        [first] = servers(main)
        for process in (first, *first.children(recursive=True)):
            process.kill()
        ended = launch.wait(DEADLINE)
    finally:
        launch.kill() if launch.process.poll() is None else None
    assert ended.status == 0, ended.err
    assert ended.out.count("vLLM: starting a server") == 2
    assert until(lambda: not leftovers(main), 30)
    train(tmp_path / "one", *longer)
    assert_same_training(tmp_path / "two", tmp_path / "one", 6)
