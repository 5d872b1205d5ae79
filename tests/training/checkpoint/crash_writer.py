"""A process that saves checkpoints until it is killed; run by the crash tests, imports no torch.

``loop RUN``: save steps 1, 2, 3, 1, 2, ... for ever, each with contents that tell whether they are whole.
``each RUN OUT``: for k = 1, 2, ..., copy RUN to OUT/k and, in a forked child, save step 2 again as the best, dying at the
k-th file operation; ends with the first child that survives.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from maxent_grpo.training.checkpoint.store import CheckpointStore

FILE_OPERATIONS = {
    *("open", "os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree"),
}


def write(folder: Path, version: int) -> None:
    (folder / "model").mkdir()
    for name in ("model/weights.bin", "state.bin", "more.bin"):
        (folder / name).write_bytes(f"{version};".encode() * 2_000)


def loop(run_dir: Path) -> None:
    store = CheckpointStore(run_dir, keep_last=2)
    version = 0
    while True:
        version += 1
        store.save(version % 3 + 1, lambda folder, version=version: write(folder, version), is_best=version % 4 == 0)
        print(version, flush=True)


def die_at(count: int) -> None:
    seen = 0

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in FILE_OPERATIONS:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def each(run_dir: Path, out: Path) -> None:
    for count in range(1, 1000):
        target = out / str(count)
        shutil.copytree(run_dir, target)
        child = os.fork()
        if child == 0:
            store = CheckpointStore(target, keep_last=2)
            die_at(count)
            store.save(2, lambda folder: write(folder, 99), is_best=True)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return


if __name__ == "__main__":
    {"loop": loop, "each": each}[sys.argv[1]](*map(Path, sys.argv[2:]))
