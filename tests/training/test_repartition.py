"""Groups that wait in a checkpoint, shared out among other numbers of processes: none is lost, and each keeps what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.identical import assert_identical
from support.runs import checkpoint_of, only_reward, state_of, train

from maxent_grpo.training.checkpoint.per_process import fresh_generators
from maxent_grpo.training.checkpoint.run_state import RngState
from maxent_grpo.training.repartition import ahead_share, carried_share, rollout_share

State = dict[str, Any]
Share = Callable[[Sequence[State], int, int], State]

INSIDE = (
    *("scoring=dapo", *only_reward("mixed_on_half"), "data.num_train=11", "optimization.prompts_per_step=3"),
    *("optimization.minibatches=2", "optimization.num_iterations=2", "scoring.policy_entropy_bonus_coef=0.5"),
    *("scoring.kl_beta=0.1", "evaluation.enabled=false", "optimization.total_training_steps=5"),
    *("checkpoint.every_n_steps=1", "checkpoint.keep_last=0"),
)
AHEAD = (
    *("scoring=grpo", "generation.async_steps=1", "scoring.behavior_logprobs_source=sampler", "data.num_train=11"),
    *("optimization.minibatches=2", "scoring.mismatch.mode=token_truncate", "evaluation.enabled=false"),
    *("optimization.prompts_per_step=3", "optimization.total_training_steps=3", "checkpoint.every_n_steps=1"),
    "checkpoint.keep_last=0",
)


def states_after(run_dir: Path, step: int) -> dict[str, State]:
    return state_of(checkpoint_of(run_dir, step)).states


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("inside") / "run"
    train(run_dir, *INSIDE)
    return run_dir


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("ahead") / "run"
    train(run_dir, *AHEAD)
    return run_dir


def shared(share: Share, parts: Sequence[State], size: int) -> list[State]:
    return [share(parts, rank, size) for rank in range(size)]


def groups_of_portions(trees: Sequence[State]) -> list[list[tuple[str, Any, Any]]]:
    """Row, tokens and utilities of each portion's groups, of all processes, in an order of their own."""
    found: list[list[tuple[str, Any, Any]]] = [[] for _ in trees[0]["portions"]]
    for tree in trees:
        for number, (first, last) in enumerate(tree["portions"]):
            for group in range(first, last):
                rows = slice(4 * group, 4 * group + 4)
                found[number].append((tree["row_ids"][group], tree["token_ids"][rows], tree["utilities"][rows]))
    return [sorted(portion) for portion in found]


@pytest.mark.parametrize("sizes", [(2,), (3, 2), (2, 5), (4, 1, 3)])
def test_a_rollout_that_went_through_other_numbers_of_processes_is_the_same(
    inside: Path, ahead: Path, sizes: Sequence[int]
) -> None:
    whole = states_after(inside, 3)["rollout"]
    waiting = states_after(ahead, 1)["rollout_ahead"]
    assert whole["experience"]["old_logp"] is not None
    assert whole["experience"]["reference_logp"] is not None
    assert whole["experience"]["token_entropy_mean"] is not None
    assert waiting["rollout"] is not None
    for share, state, key in ((rollout_share, whole, "experience"), (ahead_share, waiting, "rollout")):
        parts = [state]
        for size in sizes:
            parts = shared(share, parts, size)
            assert groups_of_portions([part[key] for part in parts]) == groups_of_portions([state[key]])
        assert_identical(share(parts, 0, 1), state)


def test_the_groups_of_each_step_are_dealt_out_as_prompts_are(inside: Path) -> None:
    whole = states_after(inside, 3)["rollout"]
    tree = whole["experience"]
    assert tree["portions"] == [[0, 3], [3, 6]]
    first, second = shared(rollout_share, [whole], 2)
    assert first["experience"]["row_ids"] == [tree["row_ids"][at] for at in (0, 2, 3, 5)]
    assert first["experience"]["portions"] == [[0, 2], [2, 4]]
    assert second["experience"]["row_ids"] == [tree["row_ids"][at] for at in (1, 4)]
    assert second["experience"]["portions"] == [[0, 1], [1, 2]]
    for part in (first, second):
        lengths = [len(tokens) for tokens in part["experience"]["token_ids"]]
        assert part["experience"]["old_logp"].shape == (len(lengths), max(lengths))
        assert part["experience"]["reference_logp"].shape == (len(lengths), max(lengths))


def test_groups_sampled_by_older_weights_stay_first_and_keep_their_scores(inside: Path) -> None:
    carried = states_after(inside, 4)["carried_groups"]
    [group] = carried["groups"]
    waiting = {"groups": [{**group, "place": place} for place in range(5)]}
    parts = shared(carried_share, [waiting], 2)
    assert [[group["place"] for group in part["groups"]] for part in parts] == [[0, 2, 4], [1, 3]]
    assert_identical(carried_share(parts, 0, 1), waiting)

    mixed = states_after(inside, 5)["rollout"]
    assert len(mixed["experience"]["earlier_versions"]) == 1
    # the second process had nothing scored before its first pass: its rows are the ones without log-probs
    first, second = shared(rollout_share, [mixed], 2)
    second["experience"] |= {"old_logp": None, "old_known": None}
    joined = rollout_share([first, second], 0, 1)["experience"]
    unscored = [group[1] for portion in groups_of_portions([second["experience"]]) for group in portion]
    own = [joined["token_ids"][at : at + 4] not in unscored for at in range(0, len(joined["token_ids"]), 4)]
    assert joined["old_known"].tolist() == [is_known for is_known in own for _ in range(4)]
    assert torch.equal(joined["old_logp"][joined["old_known"]], mixed["experience"]["old_logp"][joined["old_known"]])
    assert not joined["old_logp"][~joined["old_known"]].any()
    again = shared(rollout_share, [{**mixed, "experience": joined}], 2)
    assert_identical(again[0]["experience"], first["experience"])
    assert again[1]["experience"]["old_logp"] is None


def test_what_samplers_and_rewards_counted_is_counted_once(ahead: Path) -> None:
    waiting = states_after(ahead, 1)["rollout_ahead"]
    waiting["rollout"]["counts"] |= {"dropped_groups": 3, "retry_rounds": 2}
    waiting["rollout"]["logged"] = {"rate": [0.25, 0.5]}
    parts = shared(ahead_share, shared(ahead_share, [waiting], 2), 3)
    assert [part["rollout"]["counts"]["dropped_groups"] for part in parts] == [3, 0, 0]
    for part in parts:  # all take part in a round that is asked again, and each counts it
        part["rollout"]["counts"]["retry_rounds"] = 2
    assert ahead_share(parts, 0, 1)["rollout"]["counts"]["retry_rounds"] == 2
    assert [part["rollout"]["logged"] for part in parts] == [{"rate": [0.25, 0.5]}, {"rate": []}, {"rate": []}]


def test_generators_of_further_processes_draw_other_numbers_each_time_the_same() -> None:
    rng = RngState()
    before = rng.state_dict()
    drawn: list[float] = []
    for seed, rank in ((0, 1), (0, 2), (1, 1), (0, 1)):
        rng.load_state_dict(fresh_generators(seed, rank))
        drawn.append(torch.rand(()).item())
    rng.load_state_dict(before)
    assert drawn[3] == drawn[0]
    assert len(set(drawn)) == 3
