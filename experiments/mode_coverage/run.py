"""Run parts of the study: `python -m experiments.mode_coverage.run [PART ...]`, all of them without a name.

Each part is one sweep of `train.py -m`, two runs at a time on one thread each. Called again it goes on where it was stopped:
finished runs are left, interrupted ones continue from their last checkpoint. When a part ends, also early, its runs that finished or
diverged are written to results/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.mode_coverage.collect import collect
from experiments.mode_coverage.table import HERE, START, Arm, Choice, Part, Study, read_study

REPOSITORY = HERE.parents[1]
OUTPUTS = Path("outputs/mode_coverage")
"""Where sweeps go, below the repository."""
RESULTS = HERE / "results"
AT_ONCE = 2
START_PART = "start"
"""The sweep that makes a task's warm starts before any other run wants them."""
REDUCED = "reduced"
"""The kind of parts that only tests run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named parts in the table's order, then collect them; 1 when a part is not finished."""
    study = read_study()
    parser = argparse.ArgumentParser(prog="python -m experiments.mode_coverage.run", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(study.parts)}; none: all but the reduced one"
    )
    parser.add_argument("--outputs", type=Path, default=REPOSITORY / OUTPUTS, help="folder of the sweeps")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the collected runs")
    parser.add_argument("--jobs", type=int, default=AT_ONCE, help="runs at a time")
    parser.add_argument("--only-collect", action="store_true", help="train nothing")
    parser.add_argument("--show", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=VALUE", help="other settings, for a try")
    given = parser.parse_args(arguments)
    strangers = sorted(set(given.parts) - set(study.parts))
    if strangers:
        parser.error(f"no part {', '.join(strangers)}: there are {', '.join(study.parts)}")
    chosen = [
        part for name, part in study.parts.items() if name in given.parts or (not given.parts and part.kind != REDUCED)
    ]
    for part in chosen:
        status = 0
        for stage in (starts_of(study, part), part):
            command = sweep_command(study, stage, given.outputs, given.jobs, given.set)
            if given.show:
                print(" ".join(command))
            elif not given.only_collect:
                write_presets(study, stage, given.outputs)
                status = ended(command)
                if status:
                    break
        if given.show:
            continue
        said, is_whole = collect(study, part, given.outputs, given.results)
        print(said, flush=True)
        if status and not is_whole:  # a run that has diverged fails its sweep, and is a result
            return 1
    return 0


def starts_of(study: Study, part: Part) -> Part:
    """One step of the baseline from each start of the part's task, which leaves the start in the cache."""
    nothing_more = {"evaluation.enabled": False}
    arm = Arm("start", "one step from a start, which is cached", Choice({"scoring": "dr_grpo"}, nothing_more))
    if part.kind == REDUCED:
        return replace(part, name=f"{START_PART}-{part.name}", kind=START_PART, steps=1, arms=[arm])
    alike = [other for other in study.parts.values() if other.task == part.task and other.kind != REDUCED]
    pairs = sorted({pair for other in alike for pair in other.pairs})
    return replace(part, name=f"{START_PART}-{part.task}", kind=START_PART, pairs=pairs, steps=1, arms=[arm])


def write_presets(study: Study, part: Part, outputs: Path) -> Path:
    """The presets of a part's arms, written anew; the folder for `--config-dir`."""
    folder = _presets(outputs, part)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "experiment").mkdir(parents=True)
    for arm in part.arms:
        (folder / "experiment" / f"{arm.name}.yaml").write_text(study.preset(part, arm), encoding="utf-8")
    return folder


def sweep_command(study: Study, part: Part, outputs: Path, jobs: int, settings: Sequence[str] = ()) -> list[str]:
    """The command that starts or continues a part: all arms of one pair before the next pair, so that a part that is
    stopped has whole pairs."""
    return [
        *(sys.executable, str(REPOSITORY / "train.py"), "-m", "--config-dir", str(_presets(outputs, part))),
        f"{START}={','.join(map(str, part.pairs))}",
        f"experiment={','.join(arm.name for arm in part.arms)}",
        *settings,
        *("hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"),
        *(f"hydra.sweep.dir={outputs / part.name}", "run.sweep_resume=true"),
    ]


def ended(command: Sequence[str]) -> int:
    """The exit status of a sweep. Ctrl-C reaches it as well, and is waited for: it ends its runs and writes down how they stand."""
    sweep = subprocess.Popen(command, cwd=REPOSITORY, env=quiet_environment())
    while True:
        try:
            return sweep.wait()
        except KeyboardInterrupt:
            continue


def quiet_environment() -> dict[str, str]:
    """One thread for each run, whatever else wants to choose."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _presets(outputs: Path, part: Part) -> Path:
    return outputs / "presets" / part.name


if __name__ == "__main__":
    sys.exit(main())
