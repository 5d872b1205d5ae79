"""Models of the hub: described before their weights are fetched, and one sentence for each way not to get them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from support.checkpoints import refusal, save_checkpoint

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.models.build import build_model


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(folder / "llama", "llama")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, checkpoints: Path, tmp_path: Path) -> Iterator[list[str]]:
    """A hub on this machine with one model, owner/llama; to other names it answers by what they say. Gives what is fetched."""
    fetched: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = checkpoints / "llama"
            if self.path.startswith("/api/models/owner/llama/revision/"):
                self._send(200, json.dumps({"id": "owner/llama", "sha": "a" * 40}).encode())
            elif self.path.startswith("/api/models/owner/llama/tree/"):
                names = [*(path.name for path in files.iterdir()), "pickle.bin"]
                listed = [
                    {"type": "file", "path": name, "size": size_of(files / name), "oid": "b" * 40} for name in names
                ]
                self._send(200, json.dumps(listed).encode())
            elif self.path.startswith(f"/owner/llama/resolve/{'a' * 40}/"):
                content = (files / self.path.rsplit("/", 1)[1]).read_bytes()
                if self.command == "GET":
                    fetched.append(self.path.rsplit("/", 1)[1])
                self._send(200, content, ETag=f'"{len(fetched)}{len(content)}"', **{"X-Repo-Commit": "a" * 40})
            else:
                codes = {"gated": (403, "GatedRepo"), "versioned": (404, "RevisionNotFound")}
                found = (answer for name, answer in codes.items() if name in self.path)
                code, error = next(found, (404, "RepoNotFound"))
                self._send(code, b"", **{"X-Error-Code": error})

        do_HEAD = do_GET

        def _send(self, code: int, content: bytes, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    urls = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", urls)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield fetched
    server.shutdown()
    server.server_close()
    thread.join()


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 1


def test_a_hub_model_is_described_before_its_weights_are_fetched_and_pickles_never(
    hub: list[str], monkeypatch: pytest.MonkeyPatch, checkpoints: Path
) -> None:
    assert "has 512 positions" in refusal("owner/llama", positions=1000)
    assert "config.json" in hub
    assert "model.safetensors" not in hub
    loaded = build_model(HfModelConfig(name="owner/llama"))
    local = build_model(HfModelConfig(name=str(checkpoints / "llama")))
    ids = torch.arange(8, 20).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, local.model(ids).logits)
    assert loaded.notes == local.notes
    assert sorted(set(hub)) == sorted(path.name for path in (checkpoints / "llama").iterdir())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert build_model(HfModelConfig(name="owner/llama")).notes == local.notes


@pytest.mark.usefixtures("hub")
def test_each_answer_of_the_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is gated: its owner gives it to those who have accepted its terms" in refusal("owner/gated")
    assert "the hub has no model of that name that you may see; check the spelling" in refusal("owner/unknown")
    assert "has no model.revision=v9; name a branch, tag or commit" in refusal("owner/versioned", revision="v9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "the hub cannot be reached (or HF_HUB_OFFLINE is set) while its cache here does not have it" in refusal(
        "owner/far"
    )
