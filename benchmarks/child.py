"""One measurement in a process of its own: `python -m benchmarks.child` with a request in JSON on its input."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.process import one_thread


def sample(request: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Measure what is asked for.

    Args:
        request: `kind`, `side`, `work` (fields of the kind's ``Work``), `root` (folder of models and prompts), and for
            TRL's steps `first`, our first step.
        scratch: an empty folder.
    """
    kind, side, fields = request["kind"], request["side"], request["work"]
    if kind == "step":
        from benchmarks import steps

        work, root = steps.Work(**fields), Path(request["root"])
        _one_thread()
        root.mkdir(parents=True, exist_ok=True)
        if side == "ours":
            return steps.ours(work, root, scratch / "run")
        return steps.trl(work, root, scratch / "run", request.get("first"))
    if kind == "head":
        from benchmarks import head

        work = head.Work(**fields)
        _one_thread()
        return head.measure(side, work)
    if kind == "sampling":
        from benchmarks import sampling

        work = sampling.Work(**fields)
        _one_thread()
        return sampling.measure(side, work)
    if kind == "scoring":
        from benchmarks import scoring

        work = scoring.Work(**fields)
        _one_thread()
        return scoring.measure(side, work)
    if kind == "run":
        from benchmarks import long_run

        _one_thread()
        return long_run.measure(long_run.Work(**fields), Path(request["root"]), scratch / "run")
    if kind == "launch":
        from benchmarks import launched_run

        Path(request["root"]).mkdir(parents=True, exist_ok=True)
        return launched_run.measure(launched_run.Work(**fields), Path(request["root"]), scratch / "run")
    raise ValueError(f"no measurement of kind {kind}")


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Read the request, measure, and write the sample to the file that the request names."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        found = sample(request, Path(folder))
    target = Path(request["target"])
    part = target.with_suffix(".part")
    part.write_text(json.dumps(found) + "\n", encoding="utf-8")
    part.replace(target)


if __name__ == "__main__":
    os.environ.update(one_thread(dict(os.environ)))
    main()
