"""One of several processes of a test, started as `python -m support.<module> RANK WORLD PORT`."""

from __future__ import annotations

import os

from accelerate import Accelerator


def joined(rank: str, world: str, port: str) -> Accelerator:
    """This process's place among ``world`` processes that meet at a port of this machine."""
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return Accelerator(cpu=True)
