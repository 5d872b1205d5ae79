"""Several trainers and one real server: who gives weights, who asks for what, and how they agree when something is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import call_together
from support.vllm_policy import HAS_VLLM, JOINS, NEEDS_VLLM, PROMPTS, Asked, moved
from support.vllm_team import sampled_alone

pytestmark = pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)


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
@pytest.mark.skipif(JOINS, reason="a server was started by somebody else, and this is about one of the run's own")
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
