"""comparison.png: the curves and differences of arms at a glance, one picture a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from maxent_grpo.report.arms.figures import Findings
from maxent_grpo.report.comparison import MOST_ARMS, EffectPanel, comparison_figure
from maxent_grpo.report.style import save_figure

COMPARISON_PICTURE = "comparison.png"


def draw_arms(findings: Sequence[Findings], folder: Path) -> list[Path]:
    """Draw each task's arms, the first as ``comparison.png``; of more arms than a figure tells apart the first ones."""
    paths = []
    for place, each in enumerate(findings):
        arms = each.comparison.arms[:MOST_ARMS]
        runs = [run.run_dir for arm in arms for run in arm.runs]
        labels = [arm.name for arm in arms for _ in arm.runs]
        last_step = each.comparison.last_step
        figure = comparison_figure(
            runs, labels, last_step=last_step, effects=_effects(each, {arm.name for arm in arms})
        )
        name = COMPARISON_PICTURE if place == 0 else f"comparison-{place + 1}.png"
        paths.append(save_figure(figure, folder / name))
    return paths


def _effects(findings: Findings, names: set[str]) -> list[EffectPanel]:
    base = findings.comparison.baseline.name
    panels = []
    for measure in findings.measures:
        rows = {e.arm.name: e.mean for e in findings.effects if e.measure == measure and e.arm.name in names}
        if rows:
            panels.append(
                EffectPanel(f"effect/{measure}", f"Difference in {measure}", f"minus {base}, paired by seed", rows)
            )
    return panels
