"""Make every table and figure of the study anew from results/: `python -m experiments.mode_coverage.analyse`.

Writes the sections of README.md that stand between its marks, summary.csv and figures/. The same records give the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.mode_coverage.effects import MEASURES, TERM, Results, read_results
from experiments.mode_coverage.figures import draw_figures
from experiments.mode_coverage.further import at_equal_cpu_time, ceiling, on_training_problems, since_start
from experiments.mode_coverage.table import HERE, read_study
from experiments.mode_coverage.tables import cost, differences, levels, middles
from experiments.mode_coverage.verdicts import verdicts

PAGE = HERE / "README.md"
FRONT = HERE.parents[1] / "README.md"
"""The project's first page."""
QUOTED = ("pass@1", "pass@8", "coverage@8", "H_valid")
PILOT_STEPS = 600
CAPTIONS = {
    "confirmatory_curves": "Colouring: coverage@8 and pass@1 against sampled tokens and CPU time, mean over pairs and one standard deviation about it",
    "confirmatory_others": "Colouring: pass@8, greedy accuracy, evenness among right answers and divergence from the optimum against the step",
    "confirmatory_effects": "Colouring: differences from dr_grpo with 95% intervals, and every pair's; what is left of the dotted line is more than 3 points",
    "confirmatory_passk": "Colouring: pass@k and coverage@k against k",
    "countdown_curves": "Countdown: coverage@8 and pass@1 against sampled tokens and CPU time, mean over pairs and one standard deviation about it",
    "countdown_effects": "Countdown: differences from dr_grpo with 95% intervals, and every pair's; what is left of the dotted line is more than 3 points",
    "countdown_passk": "Countdown: pass@k and coverage@k against k",
    "chat_curves": "SmolLM2: coverage@8 and pass@1 against sampled tokens and CPU time, mean over pairs and one standard deviation about it",
    "chat_passk": "SmolLM2: pass@k and coverage@k against k",
    "doses": "Coverage@8 and pass@1 against λ: bars are means, a thin line is a pair",
}
"""Figures that the page shows once their runs are there."""
MARKS = re.compile(r"(<!-- (?P<name>[a-z_-]+): begin -->\n).*?(<!-- (?P=name): end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write everything; 1 when the README asks for a section that there is not."""
    parser = argparse.ArgumentParser(prog="python -m experiments.mode_coverage.analyse", description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the records")
    parser.add_argument("--page", type=Path, default=PAGE, help="page whose sections are written")
    parser.add_argument(
        "--front", type=Path, help="page that quotes some of them; beside the study's own, the project's"
    )
    given = parser.parse_args(arguments)
    front = given.front or (FRONT if given.page == PAGE else None)
    results = read_results(read_study(), given.results)
    parts = sections(results)
    text = given.page.read_text(encoding="utf-8")
    unknown = {found["name"] for found in MARKS.finditer(text)} - set(parts)
    if unknown:
        print(f"{given.page} asks for {sorted(unknown)}: there are {', '.join(parts)}", file=sys.stderr)
        return 1
    for page in filter(None, (given.page, front)):
        write_sections(page, parts)
    write_summary(results, given.page.parent / "summary.csv")
    drawn = draw_figures(results, given.page.parent / "figures")
    print(f"{len(results.records)} runs: {given.page}, summary.csv, {len(drawn)} figures")
    return 0


def write_sections(page: Path, parts: Mapping[str, str]) -> None:
    """Write what stands between the marks of a page, of the sections that there are; other marks belong to others."""
    text = page.read_text(encoding="utf-8")
    written = MARKS.sub(
        lambda found: found[1] + parts[found["name"]] + found[3] if found["name"] in parts else found[0], text
    )
    page.write_text(written, encoding="utf-8")


def sections(results: Results) -> dict[str, str]:
    """Everything that the page can quote, by the name in its marks."""
    found = {"verdicts": "\n".join(verdicts(results)) + "\n", "cost": cost(results)}
    found["study-levels"] = levels(results, results.study.parts["confirmatory"], of=QUOTED)
    for name, caption in CAPTIONS.items():
        ran = any(of == name.partition("_")[0] for of, _, _ in results.records)
        found[f"figure-{name}"] = f"![{caption}](figures/{name}.png)" if ran else ""
    for name, part in results.study.parts.items():
        found[f"{name}-levels"] = levels(results, part)
        found[f"{name}-differences"] = differences(results, part)
        found[f"{name}-against-maxent"] = differences(results, part, against=TERM)
        found[f"{name}-iqm"] = middles(results, part)
        found[f"{name}-changes"] = since_start(results, part)
        found[f"{name}-equal-cost"] = at_equal_cpu_time(results, part)
        found[f"{name}-trained"] = on_training_problems(results, part)
        found[f"{name}-ceiling"] = ceiling(results, part)
        if part.steps > PILOT_STEPS:
            found[f"{name}-pilot-levels"] = levels(results, part, PILOT_STEPS)
            found[f"{name}-pilot-differences"] = differences(results, part, PILOT_STEPS)
    return {name: f"{text.rstrip()}\n" if text else "" for name, text in found.items()}


def write_summary(results: Results, path: Path) -> None:
    """A row for each run: its last evaluation."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "arm", "pair", "seed", "steps", "tokens", "cpu_seconds", *MEASURES])
        for (part, arm, pair), record in results.records.items():
            last = record["curve"][-1]
            figures = [last.get(name, "") for name in MEASURES]
            writer.writerow(
                [part, arm, pair, record["seed"], record["steps"], last["tokens"], record["cpu_seconds"], *figures]
            )


if __name__ == "__main__":
    sys.exit(main())
