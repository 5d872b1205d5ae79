"""What a reader must know before the numbers: how many seeds, what is unfinished, and what is not alike between the arms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.report.arms.figures import Findings
from maxent_grpo.report.arms.group import NOT_THE_METHOD, Arm, Comparison
from maxent_grpo.report.difference import differing
from maxent_grpo.report.read import DATA_FILE, read_versions
from maxent_grpo.report.record import RunRecord, status
from maxent_grpo.report.scale import short
from maxent_grpo.stats.seed_tests import RECOMMENDED_SEEDS, least_seeds, smallest_p

EVALUATION = "evaluation."
COUNTS = ("num_samples", "num_right", "mode_counts")
"""What equal weights give equally when they are asked the same problems with the same random numbers."""


def cautions(findings: Findings) -> list[str]:
    """Sentences in the order of their weight; plain text."""
    comparison = findings.comparison
    return [
        *_seeds(findings),
        *_unfinished(comparison),
        *_cut(findings),
        *_evaluated(findings),
        *_settings(comparison),
        *_starts(findings),
        *_unlike(comparison),
        *comparison.notes,
    ]


def _seeds(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    num_tests = max((effect.num_tests for effect in findings.effects), default=1)
    counts = {arm.name: len(arm.runs) for arm in comparison.arms}
    if max(counts.values()) == 1:
        yield (
            "One seed an arm: the curves show one run each. What differs between them may be the seed as well as the method, "
            "so there are no intervals over seeds and no p-values."
        )
        return
    least = min(counts.values())
    each = (
        f"{least} seeds an arm" if len({*counts.values()}) == 1 else ", ".join(f"{n}: {c}" for n, c in counts.items())
    )
    if least == 1:
        yield f"Seeds: {each}. An arm of one seed has no interval and no p-value."
    elif len(comparison.arms) > 1 and least < least_seeds(num_tests):
        many = "" if num_tests == 1 else f" after Holm's adjustment for the {num_tests} tests of a family"
        yield (
            f"Seeds: {each}. The smallest p that {least} seeds can give is {short(smallest_p(least))} for one test, whatever "
            f"their differences: .05{many} takes {least_seeds(num_tests)} seeds at the fewest; plan {max(RECOMMENDED_SEEDS, least_seeds(num_tests) + 1)} or more. "
            "Intervals from so few seeds are too narrow."
        )
    elif least < RECOMMENDED_SEEDS:
        yield f"Seeds: {each}. {RECOMMENDED_SEEDS} or more are better: with fewer, one seed decides, and intervals are too narrow."
    else:
        yield f"Seeds: {each}."
    base = comparison.baseline
    for arm in comparison.arms[1:]:
        lonely = {*arm.seeds} ^ {*base.seeds}
        if not {*arm.seeds} & {*base.seeds} - {None}:
            yield f"{arm.name} and {base.name} have no seed in common: nothing is paired, and there are no p-values."
        elif lonely:
            names = ", ".join(sorted(map(str, lonely)))
            yield f"{arm.name} is compared with {base.name} over the seeds that both have; left out there: {names}."


def _unfinished(comparison: Comparison) -> Iterator[str]:
    states = [(arm, run, *status(run)) for arm, run in comparison.runs]
    going = [
        f"{_run_name(arm, run)} ({sentence.partition(': ')[2]})" for arm, run, done, sentence in states if not done
    ]
    if going:
        yield f"Not finished: {_listed(going)}. Figures of a run that goes on are not final."


def _cut(findings: Findings) -> Iterator[str]:
    comparison = findings.comparison
    lengths = {run.last_step for _, run in comparison.runs}
    if len(lengths) > 1:
        short_runs = [_run_name(arm, run) for arm, run in comparison.runs if run.last_step == comparison.last_step]
        yield (
            f"The runs have {min(lengths)} to {max(lengths)} steps. All are cut at step {comparison.last_step}, the end of "
            f"{_listed(short_runs)}; leave {'it' if len(short_runs) == 1 else 'them'} out to compare the others further."
        )
    if findings.step is not None and findings.step < comparison.last_step:
        yield f"Held-out figures are of step {findings.step}, the last that every run evaluated."


def _evaluated(findings: Findings) -> Iterator[str]:
    if findings.step is None:
        yield "No step was evaluated by every run: there are no held-out figures to compare."
        return
    if findings.num_problems is None:
        yield "Each problem's counts are not there for all runs: intervals are over seeds alone, from the means in metrics.jsonl."
        return
    asked = [set(findings.problems(run, findings.step)) for _, run in findings.comparison.runs]
    if any(rows != asked[0] for rows in asked):
        yield (
            f"Not comparable as they are: the runs were asked different held-out problems ({min(map(len, asked))} to "
            f"{max(map(len, asked))}). Figures here are over the {findings.num_problems} that all were asked."
        )


def _settings(comparison: Comparison) -> Iterator[str]:
    """Settings of the evaluation itself that are not alike."""
    settings = [path for path in differing([arm.settings for arm in comparison.arms]) if path.startswith(EVALUATION)]
    if settings:
        yield f"Evaluated differently ({_listed(settings)}): held-out figures of the arms are not comparable."


def _starts(findings: Findings) -> Iterator[str]:
    """Whether all runs began from equal weights, judged by their evaluations before the first step."""
    comparison = findings.comparison
    starts: dict[str, list[str]] = {}
    for arm, run in comparison.runs:
        rows = findings.problems(run, 0)
        if not rows:
            return
        print_of = json.dumps(
            {row: [record.get(key) for key in COUNTS] for row, record in sorted(rows.items())}, sort_keys=True
        )
        starts.setdefault(print_of, []).append(arm.name)
    alike = len(starts) == 1
    if alike and len(list(comparison.runs)) > 1:
        more = any(len(arm.runs) > 1 for arm in comparison.arms)
        yield "All runs gave the same answers before training: they share one start." + (
            " Seeds differ in sampling and in the order of the data, and the intervals say nothing of other starts."
            if more
            else ""
        )
    of_arms = {
        name: {key for key, names in starts.items() if name in names} for names in starts.values() for name in names
    }
    if not alike and len({frozenset(keys) for keys in of_arms.values()}) > 1:
        yield "Not alike at the start: evaluations before training differ between arms, so a part of the difference was there before."


def _unlike(comparison: Comparison) -> Iterator[str]:
    """Data, versions and how the runs were made, as far as they are recorded and differ."""
    facts = [_data_facts(run.run_dir) for _, run in comparison.runs]
    if any(each != facts[0] for each in facts):
        yield f"The data differ between runs: {DATA_FILE} tells other rows, lengths or prompts."
    versions = [read_versions(run.run_dir) for _, run in comparison.runs]
    known = [each for each in versions if each is not None]
    if known and len(known) == len(versions):
        names = [name for name in known[0] if any(each.get(name) != known[0][name] for each in known)]
        if names:
            yield f"Made with different versions of {_listed(names)}."
    yield (
        "Runs are one arm when all settings but the seed are equal; "
        f"{', '.join(name + '*' for name in NOT_THE_METHOD)} do not count."
    )


def _data_facts(run_dir: Path) -> Mapping[str, Any] | None:
    path = run_dir / DATA_FILE
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}): it was changed by hand or damaged; delete it") from error
    return value if isinstance(value, dict) else None


def _run_name(arm: Arm, run: RunRecord) -> str:
    seed = run.identity.seed
    return f"{arm.name}{'' if seed is None else f', seed {seed}'}"


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{'; '.join(names[:most])}{more}"
