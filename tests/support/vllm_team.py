"""What each of several processes does with one server, for ``support.ranks.call_together``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from support.ranks import free_port
from support.vllm_policy import PROMPTS, Asked, moved, policy, server_processes, settings, token_lists

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm.engine import Place
from maxent_grpo.training.generation.vllm.team import Team

SEED, GROUP, LENGTH = 3, 4, 40


def sampled_alone(asked: Asked) -> dict[str, Any]:
    """Each row's completions in a run of one process."""
    drawn = asked.sampler(settings(length=LENGTH), seed=SEED)(list(PROMPTS), GROUP)[1]
    return {prompt.row_id: tokens for prompt, tokens in zip(PROMPTS, token_lists(drawn), strict=True)}


def sampled_together(url: str | None, run_dir: str, cases: list[str]) -> list[dict[str, Any]]:
    """By case, this process's completions of its part of the prompts, and what it counted.

    Cases: "" (nothing happens), ``idle`` (process 1 has no prompt), ``lost`` (process 1 asks where nobody listens, and the others do
    not), ``killed`` (process 1 kills the server, which process 0 started, while both wait for completions).
    """
    team = Team(Accelerator(cpu=True), per_node=url is None)
    asked = Asked.start(
        policy(), Path(run_dir) / str(team.rank), team=team, url=url, max_retries=2, backoff=0.05, timeout=60
    )
    told: list[dict[str, Any]] = []
    try:
        for version, case in enumerate(cases, start=1):
            moved(asked.loaded, 3)
            asked.weights.bring(version)
            before = asked.weights.engine.place
            sampler = asked.sampler(settings(length=LENGTH), seed=SEED)
            mine = PROMPTS[team.rank :: team.size] if case != "idle" or team.rank == 0 else []
            if team.rank == 1 and case == "lost":
                asked.weights.engine.follow(Place((nobody(),), 0))
            if case == "killed":
                # it answers nobody from here on, so that both wait for it when it dies
                if team.rank == 1:
                    send(before.urls[0], signal.SIGSTOP)
                team.exchange(None)
                if team.rank == 1:
                    threading.Timer(1.0, send, (before.urls[0], signal.SIGKILL)).start()
            result: dict[str, Any] = {"case": case, "error": None}
            try:
                drawn = token_lists(sampler(list(mine), GROUP)[1])
                result["drawn"] = {prompt.row_id: tokens for prompt, tokens in zip(mine, drawn, strict=True)}
            except GenerationError as error:
                result["error"] = str(error)
            result |= {
                "moved": asked.weights.engine.place.urls != before.urls,
                "urls": list(asked.weights.engine.place.urls),
                **{name: asked.weights.settings.generation_stats[name] for name in ("weight_syncs", "failed_requests")},
            }
            told.append(result)
    finally:
        team.exchange(None)
        asked.weights.close()
    return told


def nobody() -> str:
    """An address of this machine where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


def send(url: str, number: signal.Signals) -> None:
    """A signal to the server that listens there, and to all that it started."""
    for process in server_processes(url):
        process.send_signal(number)
