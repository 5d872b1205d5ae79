"""`python -m maxent_grpo replay`: the completions of one step again, exactly."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maxent_grpo.commands.run_argument import require_run
from maxent_grpo.config.complain import complain
from maxent_grpo.errors import MaxentGrpoError
from maxent_grpo.report.read import read_versions
from maxent_grpo.telemetry.quiet import QuietWriter
from maxent_grpo.telemetry.run_dir import PACKAGE_LOGGER
from maxent_grpo.telemetry.versions import current_versions
from maxent_grpo.training.replay import Replayed, ReplayPlan, first_difference, perform_replay, plan_replay

DESCRIPTION = """\
Sample the rollout that one optimiser step of a run trained on again, with the weights it was sampled with, take the step, and
print its completions with rewards, advantages and weights. The run is continued in a temporary folder from its nearest
checkpoint, or from its start, and is itself not touched. What the run recorded of the step, completions and metrics, is
compared with the replay bit for bit; on the CPU, with the same versions and number of threads, they are equal."""

EPILOG = """\
examples:
  python -m maxent_grpo replay outputs/DAY/TIME 120
  python -m maxent_grpo replay outputs/DAY/TIME 120 --json > step_120.jsonl

A run with checkpoint.every_n_steps=N and checkpoint.keep_last=0 replays any step within N steps.

exit status: 0 replayed, and equal to the record where there is one; 1 different from the record, or the run cannot be made
again here; 2 not a run, or no such step."""

SECONDS_BETWEEN_LINES = 2.0


class _Steps(QuietWriter):
    """Shows on standard error how far the replay is: one line redrawn on a terminal, else a line every two seconds."""

    def __init__(self, plan: ReplayPlan) -> None:
        self._plan = plan
        self._shown_at = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the step."""
        now, done = time.monotonic(), step >= self._plan.step
        if self._is_terminal:
            end = "\n" if done else ""
            print(f"\rreplaying step {step} of {self._plan.step}", end=end, file=sys.stderr, flush=True)
        elif now - self._shown_at >= SECONDS_BETWEEN_LINES:
            self._shown_at = now
            print(f"replaying step {step} of {self._plan.step}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    """Replay a step and print it; see the module's EPILOG for the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo replay",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("step", type=int, metavar="STEP", help="an optimiser step of the run, from 1")
    parser.add_argument("--rows", type=int, default=32, metavar="N", help="most completions to print (default: 32)")
    parser.add_argument(
        "--json", action="store_true", help="print every completion as a line of JSON, and nothing else"
    )
    options = parser.parse_args(arguments)
    require_run(parser, options.run)
    with _warnings():
        _replay(options)


def _replay(options: argparse.Namespace) -> None:
    try:
        plan = plan_replay(options.run, options.step)
    except MaxentGrpoError as error:
        complain("replay", error)
        sys.exit(2)
    _say(_origin(plan))
    for line in _versions(plan):
        _say(line)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads
    try:
        with tempfile.TemporaryDirectory(prefix="replay-") as folder:
            replayed = perform_replay(plan, Path(folder), [_Steps(plan)])
    except MaxentGrpoError as error:
        complain("replay", error)
        sys.exit(1)
    for line in _json_lines(replayed) if options.json else _table(replayed, options.rows):
        print(line)
    difference = first_difference(plan, replayed)
    _say(_verdict(plan, replayed, difference))
    sys.exit(difference is not None)


@contextmanager
def _warnings() -> Iterator[None]:
    """Show the package's warnings, such as a checkpoint passed over, as sentences of this command."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("replay: %(message)s"))
    logging.getLogger(PACKAGE_LOGGER).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(PACKAGE_LOGGER).removeHandler(handler)


def _say(sentence: str) -> None:
    """Sentences go to standard error, so that standard output holds completions only."""
    print(sentence, file=sys.stderr)


def _origin(plan: ReplayPlan) -> str:
    start = "the run's start" if plan.checkpoint is None else str(plan.checkpoint)
    weights = "the first weights" if plan.sampled_at == 0 else f"the weights after step {plan.sampled_at}"
    return f"step {plan.step} trains on a rollout sampled with {weights}; replaying from {start}"


def _versions(plan: ReplayPlan) -> list[str]:
    recorded = read_versions(plan.run_dir)
    if recorded is None:
        return ["the run does not record its versions; with others than these the replay may differ"]
    here = current_versions()
    changed = [
        f"{name} {value}, here {here.get(name, 'none')}" for name, value in recorded.items() if here.get(name) != value
    ]
    return [f"made with other versions, so that the replay may differ: {'; '.join(changed)}"] if changed else []


def _verdict(plan: ReplayPlan, replayed: Replayed, difference: str | None) -> str:
    if difference is not None:
        return f"different from the record: {difference}"
    if not plan.recorded:
        return f"the metrics are identical to the record; it holds no completions of step {plan.step}"
    return f"identical to the record: {len(plan.recorded)} of {len(replayed.completions)} completions, and the metrics"


def _json_lines(replayed: Replayed) -> list[str]:
    return [json.dumps(row) for row in replayed.completions]


def _table(replayed: Replayed, num_rows: int) -> list[str]:
    """Completions under their prompts: utility, each reward term, advantage, weight, and the text as a JSON string."""
    shown = replayed.completions[: max(num_rows, 0)]
    terms = sorted({name for row in shown for name in row["rewards"]})
    heads = ["utility", *terms, "advantage", "weight"]
    cells = [[_number(row["utility"]), *(_number(row["rewards"].get(name)) for name in terms),
              _number(row["advantage"], "+.4f"), _number(row["weight"])] for row in shown]  # fmt: skip
    widths = [max([len(head), *(len(line[place]) for line in cells)]) for place, head in enumerate(heads)]
    lines: list[str] = []
    prompt: tuple[str, str] | None = None
    for row, line in zip(shown, cells, strict=True):
        if (row["row_id"], row["prompt"]) != prompt:
            prompt = (row["row_id"], row["prompt"])
            lines += [*([""] if lines else []), f"{row['row_id']}  {json.dumps(row['prompt'], ensure_ascii=False)}"]
            lines.append(
                "  ".join(["", *(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)), "completion"])
            )
        numbers = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)]
        lines.append("  ".join(["", *numbers, json.dumps(row["completion"], ensure_ascii=False)]))
    left = len(replayed.completions) - len(shown)
    return [*lines, *([f"... and {left} more; --rows {len(replayed.completions)} shows them all"] if left else [])]


def _number(value: Any, spec: str = ".4f") -> str:
    return "-" if value is None else format(value, spec)
