"""Two machines with a cable between them: network namespaces of this one, which share its file system and nothing of its network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.launches import REPOSITORY, Launch

PORT = 29500
"""Nobody else listens in a namespace that was just made."""


@dataclass(frozen=True)
class Machine:
    """One of the two."""

    name: str
    address: str
    is_first: bool

    def launch(self, arguments: Sequence[str], folder: Path, meet_at: str) -> Launch:
        """Its part of a run, a process of its own, as `docs/scale.md` starts one over several machines."""
        agent = (
            *("ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d"),
            *("--rdzv_endpoint", f"{meet_at}:{PORT}", "--rdzv_id", "maxent"),
            # both have the same host name, by which machines are told apart otherwise
            *("--rdzv_conf", f"is_host={int(self.is_first)}", "--local_addr", self.address),
        )
        return Launch(agent, [*arguments], folder, REPOSITORY / "train.py", {"GLOO_SOCKET_IFNAME": "eth0"})

    def unplug(self) -> None:
        """Take the cable out: nothing arrives any more, and nobody is told."""
        _ip("netns", "exec", self.name, "ip", "link", "set", "eth0", "down")


def can_be_made() -> bool:
    """Whether this user may make network namespaces here."""
    if shutil.which("ip") is None:
        return False
    name = f"maxent-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode == 0:
        _ip("netns", "del", name)
    return made.returncode == 0


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two of them, gone afterwards."""
    pair = tuple(Machine(f"maxent-{os.getpid()}-{number}", f"10.77.0.{number}", number == 1) for number in (1, 2))
    first, second = pair
    try:
        for machine in pair:
            _ip("netns", "add", machine.name)
        _ip("link", "add", "eth0", "netns", first.name, "type", "veth", "peer", "name", "eth0", "netns", second.name)
        for machine in pair:
            for words in (f"addr add {machine.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                _ip("netns", "exec", machine.name, "ip", *words.split())
        yield first, second
    finally:
        for machine in pair:
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
