"""Sample completions: some groups at some steps, chosen evenly over the run, and how they are shown.

Completions and prompts are untrusted text: everything passes ``escape``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import COMPLETIONS_FILE, iterate_jsonl
from maxent_grpo.report.scale import short

MAX_STEPS, MAX_GROUPS, MAX_PER_GROUP = 8, 4, 16
SHORT_TEXT = 240
"""Characters shown before a reader asks for more."""

ALL_TEXT = 1_500_000
"""Characters of all texts in one report together."""

CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
"""Characters that no page can show, to the sign that stands for each."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """Groups of recorded completions by step, and how many were left out."""

    steps: Mapping[int, Sequence[Sequence[Record]]]
    num_recorded: int
    num_steps_recorded: int

    @property
    def num_shown(self) -> int:
        """Completions in all groups."""
        return sum(len(group) for groups in self.steps.values() for group in groups)


def read_samples(run_dir: Path) -> Samples | None:
    """Completions of the first, the last and evenly chosen steps between; None when none were recorded.

    Raises:
        DataError: a whole line of completions.jsonl is not a JSON object with a step.
    """
    per_step = recorded_steps(run_dir)
    if not per_step:
        return None
    groups = groups_at(run_dir, chosen_steps(sorted(per_step)), MAX_GROUPS)
    shown = {step: [best_first(group) for group in of_step.values()] for step, of_step in groups.items()}
    return Samples(shown, sum(per_step.values()), len(per_step))


def recorded_steps(run_dir: Path) -> dict[int, int]:
    """The steps of a run's completions.jsonl with the number of completions of each; empty where there is none.

    Raises:
        DataError: a whole line is not a JSON object with a step.
    """
    path = run_dir / COMPLETIONS_FILE
    per_step: dict[int, int] = {}
    for _, record in iterate_jsonl(path) if path.is_file() else ():
        step = record.get("step")
        if not isinstance(step, int):
            raise DataError(f"{path} has a line without a whole-numbered step: it is not a record of completions")
        per_step[step] = per_step.get(step, 0) + 1
    return per_step


def groups_at(run_dir: Path, steps: Sequence[int], most: int | None = None) -> dict[int, dict[str, list[Record]]]:
    """The completions of each of the steps by row, the first ``most`` rows of each; the run has recorded completions."""
    groups: dict[int, dict[str, list[Record]]] = {step: {} for step in steps}
    for _, record in iterate_jsonl(run_dir / COMPLETIONS_FILE):
        if record["step"] in groups:
            of_step = groups[record["step"]]
            row_id = str(record.get("row_id"))
            if row_id in of_step or most is None or len(of_step) < most:
                of_step.setdefault(row_id, []).append(record)
    return groups


def chosen_steps(steps: Sequence[int], most: int = MAX_STEPS) -> list[int]:
    """At most ``most`` of the ascending steps, evenly spread, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)]


def best_first(group: Sequence[Record], most: int = MAX_PER_GROUP) -> list[Record]:
    """The completions of a group by weight, the largest first, at most so many."""
    return sorted(group, key=lambda record: -(record.get("weight") or 0.0))[:most]


def samples_html(samples: Samples) -> str:
    """The step buttons, the filter, and every group; without a script all steps stand beneath each other."""
    utilities = sorted({u for groups in samples.steps.values() for group in groups for u in utilities_of(group)})
    limit = max(ALL_TEXT // max(samples.num_shown, 1), SHORT_TEXT)
    panels = {
        step: "".join(_group_html(group, limit, utilities) for group in groups)
        for step, groups in samples.steps.items()
    }
    return f'<p class="lead">{escape(_summary(samples, limit))}</p>{step_panels_html(panels, utilities)}'


def step_panels_html(panels: Mapping[int, str], utilities: Sequence[float]) -> str:
    """A panel for each step, the buttons that choose one, and the filter by reward."""
    buttons = "".join(f'<button type="button" data-step="{step}">step {step}</button>' for step in panels)
    content = "".join(
        f'<div class="step-panel" data-step="{step}"><h3>Step {step}</h3>{groups}</div>'
        for step, groups in panels.items()
    )
    return (
        f'<div class="controls"><div class="steps">{buttons}</div>{_filter_html(utilities)}</div>{content}'
        '<p class="empty" hidden>No completion of this step passes the filter.</p>'
    )


def _summary(samples: Samples, limit: int) -> str:
    text = (
        f"{samples.num_shown} of {samples.num_recorded} recorded completions, of {len(samples.steps)} of "
        f"{samples.num_steps_recorded} recorded steps; up to {MAX_GROUPS} prompts a step and {MAX_PER_GROUP} completions a "
        "prompt, largest weight first."
    )
    longest = max((len(str(r.get("completion"))) for gs in samples.steps.values() for g in gs for r in g), default=0)
    return f"{text} Texts are cut after {limit:,} characters." if longest > limit else text


def utilities_of(group: Sequence[Record]) -> list[float]:
    """The rewards of the completions that have one."""
    return [float(record["utility"]) for record in group if record.get("utility") is not None]


def _filter_html(utilities: Sequence[float]) -> str:
    if len(utilities) < 2:
        return ""
    top = escape(short(utilities[-1]))
    return (
        '<label class="filter">reward <select><option value="all">any</option>'
        f'<option value="top">{top}, the highest</option><option value="rest">below {top}</option></select></label>'
    )


def _group_html(group: Sequence[Record], limit: int, utilities: Sequence[float]) -> str:
    items = group_items_html(group, limit, utilities[-1] if utilities else None)
    return (
        f'<article class="group"><header><span class="prompt">{text_html(str(group[0].get("prompt", "")), limit)}</span>'
        f'<span class="facts">{escape(group_facts(group))}</span>'
        f'<span class="row-id">{escape(str(group[0].get("row_id")))}</span></header><ol>{items}</ol></article>'
    )


def group_facts(group: Sequence[Record]) -> str:
    """How many completions, their mean reward, right answers and effective size."""
    known = utilities_of(group)
    weights = [float(record["weight"]) for record in group if record.get("weight")]
    modes = {record["mode"] for record in group if record.get("mode") is not None}
    facts = [f"{len(group)} completions"]
    if known:
        facts.append(f"mean reward {short(sum(known) / len(known))}")
    if modes:
        facts.append(f"{len(modes)} different right answer{'' if len(modes) == 1 else 's'}")
    if weights:
        facts.append(f"effective size {short(math.exp(-sum(w * math.log(w) for w in weights)))}")
    return " · ".join(facts)


def group_items_html(group: Sequence[Record], limit: int, top: float | None) -> str:
    """A list item for each completion; ``top`` is the highest reward of all that are shown."""
    widest = max((float(record["weight"]) for record in group if record.get("weight")), default=1.0)
    return "".join(_completion_html(record, limit, top, widest) for record in group)


def _completion_html(record: Record, limit: int, top: float | None, widest: float) -> str:
    utility, weight, advantage = record.get("utility"), record.get("weight"), record.get("advantage")
    rank = "none" if utility is None else "top" if utility == top else "rest"
    parts = [_number_html("reward", utility), _number_html("A", advantage, signed=True)]
    if weight is not None:
        width = 100 * float(weight) / widest if widest else 0.0
        parts.append(
            f'<span class="weight" title="weight {float(weight):.6g}"><i><b style="width:{width:.1f}%"></b></i>'
            f"{escape(f'{float(weight):.3f}')}</span>"
        )
    rewards = record.get("rewards")
    if isinstance(rewards, Mapping) and (len(rewards) > 1 or list(rewards.values()) != [utility]):
        parts += [_number_html(str(name), value) for name, value in rewards.items()]
    return (
        f'<li data-rank="{rank}"><div class="text">{text_html(str(record.get("completion", "")), limit)}</div>'
        f'<div class="numbers">{"".join(parts)}{_tags_html(record)}</div></li>'
    )


def _tags_html(record: Record) -> str:
    tags = []
    mode = record.get("mode")
    if mode is not None:
        shown = "right" if mode == record.get("completion") else f"right: {str(mode)[:40]}"
        tags.append(f'<span class="tag good" title="mode {escape(str(mode))}">{escape(shown)}</span>')
    if record.get("reason"):
        tags.append(f'<span class="tag bad">{escape(str(record["reason"]))}</span>')
    if record.get("finish_reason") is not None:
        tokens = "" if record.get("num_tokens") is None else f" · {record['num_tokens']} tokens"
        tags.append(f'<span class="tag">{escape(str(record["finish_reason"]) + tokens)}</span>')
    return "".join(tags)


def _number_html(label: str, value: Any, signed: bool = False) -> str:
    if value is None:
        return f'<span class="number">{escape(label)} <b>–</b></span>'
    number = float(value)
    sign = "" if not signed or number == 0 else (" up" if number > 0 else " down")
    text = ("+" if signed and number > 0 else "") + short(number)
    return f'<span class="number{sign}">{escape(label)} <b>{escape(text)}</b></span>'


def text_html(text: str, limit: int) -> str:
    """A text, its beginning alone until the reader asks for the rest; an empty one is named."""
    if not text:
        return '<em class="nothing">empty</em>'
    text = text.translate(CONTROL_PICTURES)
    if len(text) <= SHORT_TEXT:
        return f"<code>{escape(text)}</code>"
    cut = f'<em class="nothing">cut: {len(text) - limit:,} more characters</em>' if len(text) > limit else ""
    return (
        f'<details class="long"><summary><code>{escape(text[:SHORT_TEXT])}</code><em>… {len(text):,} characters</em></summary>'
        f"<code>{escape(text[:limit])}</code>{cut}</details>"
    )
