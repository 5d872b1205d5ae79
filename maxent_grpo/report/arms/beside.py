"""Completions of the arms beside each other: the same prompts at the same steps, under one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from maxent_grpo.report.arms.group import Arm, Comparison
from maxent_grpo.report.arms.result import swatch
from maxent_grpo.report.record import RunRecord
from maxent_grpo.report.samples import (
    best_first,
    chosen_steps,
    group_facts,
    group_items_html,
    groups_at,
    recorded_steps,
    step_panels_html,
    text_html,
    utilities_of,
)

MOST_STEPS, MOST_PROMPTS, MOST_COMPLETIONS = 5, 3, 5
TEXT_LIMIT = 3_000
"""Most characters of one completion."""

Groups = Mapping[int, Mapping[str, Sequence[Mapping[str, Any]]]]


def beside_html(comparison: Comparison) -> str:
    """Panels of steps, or a sentence that says why nothing can stand beside each other."""
    chosen = _runs_of_one_seed(comparison)
    if chosen is None:
        return '<p class="absent">No seed is common to all arms: their prompts at a step are not the same.</p>'
    seed, runs = chosen
    steps = [set(recorded_steps(run.run_dir)) for run in runs]
    common = sorted(step for step in set.intersection(*steps) if step <= comparison.last_step)
    if not common:
        return '<p class="absent">No step was recorded by all arms: logging.completions_every=0, or at different steps.</p>'
    at = chosen_steps(common, MOST_STEPS)
    groups = [groups_at(run.run_dir, at) for run in runs]
    shared = {step: [row for row in groups[0][step] if all(row in each[step] for each in groups)] for step in at}
    if not any(shared.values()):
        return '<p class="absent">At no recorded step did all arms sample the same prompts.</p>'
    shown = {step: rows[:MOST_PROMPTS] for step, rows in shared.items() if rows}
    utilities = sorted(
        {
            value
            for each in groups
            for step, rows in shown.items()
            for row in rows
            for value in utilities_of(each[step][row])
        }
    )
    top = utilities[-1] if utilities else None
    panels = {
        step: "".join(_prompt_html(comparison.arms, groups, step, row, top) for row in rows)
        for step, rows in shown.items()
    }
    seed_words = "" if seed is None else f" of seed {seed}"
    lead = (
        f"The same prompts at the same steps, runs{seed_words}: up to {MOST_PROMPTS} prompts a step and {MOST_COMPLETIONS} "
        "completions an arm, largest weight first; facts are of the whole group."
    )
    return f'<p class="lead">{escape(lead)}</p>{step_panels_html(panels, utilities)}'


def _runs_of_one_seed(comparison: Comparison) -> tuple[int | None, list[RunRecord]] | None:
    """The lowest seed that every arm has, and its run in each."""
    if len(comparison.arms) == 1:
        return comparison.arms[0].seeds[0], [comparison.arms[0].runs[0]]
    common = set.intersection(*({seed for seed in arm.seeds if seed is not None} for arm in comparison.arms))
    if not common:
        return None
    seed = min(common)
    return seed, [arm.runs[arm.seeds.index(seed)] for arm in comparison.arms]


def _prompt_html(arms: Sequence[Arm], groups: Sequence[Groups], step: int, row: str, top: float | None) -> str:
    prompt = str(groups[0][step][row][0].get("prompt", ""))
    sides = "".join(
        f'<div class="side"><h4>{swatch(arm)}<span class="facts">{escape(group_facts(each[step][row]))}</span></h4>'
        f"<ol>{group_items_html(best_first(each[step][row], MOST_COMPLETIONS), TEXT_LIMIT, top)}</ol></div>"
        for arm, each in zip(arms, groups, strict=True)
    )
    return (
        f'<article class="group"><header><span class="prompt">{text_html(prompt, TEXT_LIMIT)}</span>'
        f'<span class="row-id">{escape(row)}</span></header><div class="sides">{sides}</div></article>'
    )
