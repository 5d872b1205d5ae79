"""A running vLLM for a run: joined, launched or made in this process, as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import requests
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm import transport
from maxent_grpo.training.generation.vllm.engine import Engine
from maxent_grpo.training.generation.vllm.http import HttpEngine, Server
from maxent_grpo.training.generation.vllm.in_process import InProcessEngine
from maxent_grpo.training.generation.vllm.sampler import EngineWeights
from maxent_grpo.training.generation.vllm.server_process import POLICY_NAME, ServerOptions, ServerProcess
from maxent_grpo.training.generation.vllm.weights import Snapshots, snapshot_root
from maxent_grpo.training.types.runtime import GenerationSettings

LOG = Path("vllm") / "server.log"
FIRST = 0


def start_engine(
    settings: GenerationSettings,
    options: ServerOptions,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    run_dir: Path,
    note: Callable[[str], None],
    *,
    weights_dir: str | None,
    max_in_flight: int,
    sleeps: bool,
) -> EngineWeights:
    """An engine that answers, with a folder for the weights that it will be given.

    Raises:
        GenerationError: no server answers, or it did not start.
    """
    snapshots = Snapshots(snapshot_root(run_dir, weights_dir), model, tokenizer)
    engine: Engine
    with ExitStack() as undo:
        undo.callback(snapshots.remove)
        if settings.vllm_mode == "colocate":
            note("vLLM: starting the engine in this process")
            engine = InProcessEngine(snapshots.write(FIRST), options, sleeps=sleeps)
        else:
            engine = _servers(settings, options, snapshots, run_dir, note, max_in_flight)
        undo.pop_all()
    return EngineWeights(engine, snapshots, model, settings)


def _servers(
    settings: GenerationSettings,
    options: ServerOptions,
    snapshots: Snapshots,
    run_dir: Path,
    note: Callable[[str], None],
    max_in_flight: int,
) -> HttpEngine:
    client = settings.vllm
    if client.url is not None:
        urls = [url.strip().rstrip("/") for url in client.url.split(",")]
        names = {url: _served_name(url, client.timeout) for url in urls}
        note(f"vLLM: {', '.join(f'{url} serves {name}' for url, name in names.items())}")
        servers = [Server(url, names[url]) for url in urls]
        return HttpEngine(servers, client, settings.generation_stats, max_in_flight=max_in_flight)
    log = run_dir / LOG
    launched = LaunchedServer(snapshots, options, log, note)
    with ExitStack() as undo:
        undo.callback(launched.close)  # at Ctrl-C while it starts, among others
        url = launched.start()
        undo.pop_all()
    return HttpEngine(
        [Server(url, POLICY_NAME, restart=launched.start)], client, settings.generation_stats,
        max_in_flight=max_in_flight, close=launched.close,
    )  # fmt: skip


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
