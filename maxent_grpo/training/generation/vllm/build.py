"""A running vLLM for a run: joined, launched or made in this process, as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import requests
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.config.generation import WeightTransfer
from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm import transport
from maxent_grpo.training.generation.vllm.carriers import Carrier, Reload
from maxent_grpo.training.generation.vllm.engine_weights import EngineWeights
from maxent_grpo.training.generation.vllm.http import HttpEngine, Server
from maxent_grpo.training.generation.vllm.in_process import InProcessEngine
from maxent_grpo.training.generation.vllm.server_process import POLICY_NAME, ServerOptions, ServerProcess, is_healthy
from maxent_grpo.training.generation.vllm.team import Team
from maxent_grpo.training.generation.vllm.transfer import Transfer
from maxent_grpo.training.generation.vllm.weights import Snapshots, snapshot_root
from maxent_grpo.training.types.runtime import GenerationSettings

LOG = Path("vllm") / "server.log"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """How the weights get to an engine, and how much it is asked at a time."""

    weights_dir: str | None = None
    transfer: WeightTransfer = WeightTransfer.reload
    max_in_flight: int = 64
    """Of all processes together."""
    sleeps: bool = False


def start_engine(
    settings: GenerationSettings,
    options: ServerOptions,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    run_dir: Path,
    note: Callable[[str], None],
    choice: EngineChoice,
    team: Team,
) -> EngineWeights:
    """An engine that answers, and whoever leads has a folder for the weights that it will be given.

    Raises:
        GenerationError: no server answers, or it did not start; on every process.
    """
    with ExitStack() as undo:
        snapshots = None
        if team.leads:
            snapshots = Snapshots(snapshot_root(run_dir, choice.weights_dir), model, tokenizer)
            undo.callback(snapshots.remove)
        if settings.vllm_mode == "colocate":
            assert snapshots is not None, "an engine in the process is its own"
            note("vLLM: starting the engine in this process")
            engine = InProcessEngine(snapshots, options, sleeps=choice.sleeps)
        else:
            launched = None
            if snapshots is not None and settings.vllm.url is None:
                log = run_dir / (LOG if team.rank == 0 else LOG.with_stem(f"server_{team.rank}"))
                launched = LaunchedServer(snapshots, options, log, note)
                undo.callback(launched.close)  # at Ctrl-C while it starts, among others
            run, servers = _servers(settings, launched, team, note)
            engine = HttpEngine(
                servers, settings.vllm, settings.generation_stats,
                carrier=_carrier(settings, snapshots, model, choice), run=run,
                max_in_flight=max(choice.max_in_flight // team.size, 1),
                close=_nothing if launched is None else launched.close,
            )  # fmt: skip
        undo.pop_all()
    return EngineWeights(engine, snapshots, model, settings, team)


def _carrier(
    settings: GenerationSettings, snapshots: Snapshots | None, model: PreTrainedModel, choice: EngineChoice
) -> Carrier | None:
    if snapshots is None:
        return None
    if choice.transfer is WeightTransfer.reload:
        return Reload(snapshots)
    return Transfer(choice.transfer, model, snapshots, timeout=settings.vllm.timeout)


def _servers(
    settings: GenerationSettings, launched: LaunchedServer | None, team: Team, note: Callable[[str], None]
) -> tuple[str, list[Server]]:
    """A name for the run, and the servers; the leader starts or finds them, and tells the others."""
    client = settings.vllm

    def found() -> tuple[str, list[tuple[str, str]]]:
        run = uuid4().hex[:8]
        if launched is not None:
            return run, [(launched.start(), POLICY_NAME)]
        assert client.url is not None
        urls = [url.strip().rstrip("/") for url in client.url.split(",")]
        names = [(url, _served_name(url, client.timeout)) for url in urls]
        note(f"vLLM: {', '.join(f'{url} serves {name}' for url, name in names)}")
        return run, names

    run, names = team.lead(found)[team.rank]
    # each process begins with another server, so that few requests are spread as well
    servers = [Server(url, name, turn=(place - team.rank) % len(names)) for place, (url, name) in enumerate(names)]
    if client.url is None:
        for server in servers:
            server.restart = partial(_still_there, server, team.leader) if launched is None else launched.start
    return run, servers


def _still_there(server: Server, leader: int) -> str:
    """Where a server listens that another process started, and starts anew once all have met.

    Raises:
        GenerationError: it does not answer.
    """
    if not is_healthy(server.url):
        raise GenerationError(f"{server.url}, the server that process {leader} started, does not answer")
    return server.url


def _nothing() -> None:
    """Nothing was started."""


class LaunchedServer:
    """The server that this run started, started anew when it has ended."""

    def __init__(self, snapshots: Snapshots, options: ServerOptions, log: Path, note: Callable[[str], None]) -> None:
        self._snapshots, self._options, self._log, self._note = snapshots, options, log, note
        self._process: ServerProcess | None = None
        self._is_closed = False

    def start(self) -> str:
        """Where the server listens, which is started if it is not running or does not answer."""
        if self._process is not None and self._process.is_running and self._process.is_healthy:
            return self._process.url
        if self._is_closed:
            raise GenerationError("the vLLM server was stopped, since the run is ending")
        again = self._process is not None
        if self._process is not None:
            self._process.close()
        self._note(f"vLLM: starting a server{' anew' if again else ''}, its log is {self._log}")
        self._process = ServerProcess(self._snapshots.any(), self._options, self._log)
        if self._is_closed:
            self._process.close()
        self._process.wait_until_ready(self._note)
        return self._process.url

    def close(self) -> None:
        """End it, and never start it again."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()


def _served_name(url: str, timeout: float) -> str:
    try:
        response = transport.get(f"{url}/v1/models", timeout=timeout)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (requests.RequestException, KeyError, IndexError, TypeError, ValueError) as error:
        raise GenerationError(
            f"generation.vllm.url={url}: no vLLM server answers there ({type(error).__name__}); start one, or leave "
            "generation.vllm.url=null to have one started"
        ) from error
