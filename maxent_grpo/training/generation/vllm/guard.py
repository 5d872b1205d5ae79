"""Keeps a server, or a folder, no longer than the process that wants it: run as a script, with the standard library alone.

Given ``--remove FOLDER`` it waits until its standard input closes, which happens however the parent ends, and removes the folder.
Otherwise it starts the server in a process group of its own, and when its standard input closes ends the whole group: by
SIGTERM, and after a grace by SIGKILL. It ends with the server's exit status.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.2
REMOVE = "--remove"


def main(command: list[str]) -> int:
    """Run ``command`` until it ends or the parent is gone."""
    # signals that a terminal sends to the whole job reach the parent, which closes the pipe when it is ready
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if command[0] == REMOVE:
        while os.read(sys.stdin.fileno(), 1):
            pass
        shutil.rmtree(command[1], ignore_errors=True)
        return 0
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 1):
            _end_group(server, signal.SIGTERM, GRACE_SECONDS)
            break
    # workers of a server that has ended are left behind in its group
    _end_group(server, signal.SIGKILL, GRACE_SECONDS)
    return server.wait()


def _end_group(server: subprocess.Popen[bytes], number: int, grace: float) -> None:
    """Send a signal to every process of the server's group, and wait until none is left or the grace is over."""
    until = time.monotonic() + grace
    try:
        os.killpg(server.pid, number)
        while time.monotonic() < until:
            server.poll()  # takes the leader's status, without which it would stay in the group
            os.killpg(server.pid, 0)
            time.sleep(POLL_SECONDS / 4)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
