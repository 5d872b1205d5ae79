"""The top of a report: what the run is, whether it came to its end, and its headline figures from start to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from maxent_grpo.report.read import headline_measures, metric_series
from maxent_grpo.report.record import RunRecord, status
from maxent_grpo.report.scale import duration
from maxent_grpo.report.series import drawn_series
from maxent_grpo.report.svg import sparkline

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Card:
    """One headline figure: where it started, where it ended, and its course."""

    name: str
    start: float
    end: float
    course: Sequence[float]
    note: str


def cards(rows: Rows) -> list[Card]:
    """pass@ the smallest and largest k, coverage@ the largest, greedy, and reward; those that were recorded."""
    found = []
    for name in [*headline_measures(rows), "greedy"]:
        steps, values = metric_series(rows, f"eval/{name}")
        if values:
            note = "held-out" if len(values) > 1 else f"held-out, once, at step {steps[0]}"
            found.append(Card(name, values[0], values[-1], values, note))
    steps, values = metric_series(rows, "reward/mean")
    if values:
        count = max(len(values) // 25, 1)
        note = f"training, mean of {count} steps" if count > 1 else "training"
        course = drawn_series(steps, values, is_noisy=True).middle.tolist()
        found.append(
            Card("reward", float(np.mean(values[:count])), float(np.mean(values[-count:])), course, note)
        )  # fmt: skip
    return found


def _card_html(card: Card, color: int) -> str:
    change = card.end - card.start
    kind = "flat" if abs(change) < 5e-4 else "up" if change > 0 else "down"
    moved = len(card.course) > 1
    delta = f'<span class="delta {kind}">{change:+.3f}</span>' if moved else ""
    span = f"{card.start:.3f} → {card.end:.3f}" if moved else "one value"
    return (
        f'<div class="card"><h3>{escape(card.name)}</h3><p class="figure-value">{card.end:.3f}{delta}</p>'
        f'<p class="span">{span}</p>{sparkline(card.course, color)}<p class="note">{escape(card.note)}</p></div>'
    )


def header_html(record: RunRecord) -> str:
    """Title, status, facts and cards."""
    is_finished, sentence = status(record)
    identity, options = record.identity, record.options
    facts = [("method", identity.method), ("seed", identity.seed)]
    facts += [(name, options.get(name)) for name in ("data", "model", "controller")]
    facts.append(("time in steps", duration(record.seconds) if record.seconds else None))
    tokens = metric_series(record.rows, "data/input_tokens_seen")[1]
    facts.append(("tokens seen", f"{tokens[-1]:,.0f}" if tokens else None))
    source = record.setting("checkpoint.resume_from")
    # `latest` is the run's own folder, also where the run began there
    facts.append(("resumed from", None if source == "latest" else source))
    items = "".join(
        f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts if value is not None
    )
    shown = "".join(_card_html(card, color % 5) for color, card in enumerate(cards(record.rows)))
    state = "finished" if is_finished else "unfinished"
    body = f'<div class="cards">{shown}</div>' if shown else '<p class="absent">No step was recorded yet.</p>'
    return (
        f'<header id="top"><p class="kind">maxent_grpo run report</p><h1>{escape(identity.label)}'
        f"<span>{escape(identity.folder)}</span></h1>"
        f'<p class="status {state}">{escape(sentence)}</p><dl class="facts">{items}</dl>{body}</header>'
    )
