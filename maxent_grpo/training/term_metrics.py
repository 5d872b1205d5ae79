"""The numbers of each reward term, of a step's completions."""

from __future__ import annotations

from collections import Counter

import torch

from maxent_grpo.objective.advantages import EQUAL_UTILITIES, group_spread
from maxent_grpo.rewards.terms import ERROR, TIMEOUT
from maxent_grpo.training.credit import GradedRollout

FAILURES = {ERROR: "reward/term_errors", TIMEOUT: "reward/term_timeouts"}


def term_metrics(graded: GradedRollout, rows: slice) -> dict[str, float]:
    """Mean of every term; how often it abstained or failed; what the functions logged; and with several terms their spread."""
    metrics: dict[str, float] = {}
    for name, values in graded.per_term.items():
        metrics |= _statistics(name, values[rows], graded.group_size, with_spread=len(graded.per_term) > 1)
    failures = Counter((name, why) for entry in graded.metadata[rows] for name, why in entry["failures"].items())
    metrics |= {f"{FAILURES[why]}/{name}": float(count) for (name, why), count in failures.items()}
    return metrics | {f"reward/extra/{name}": sum(given) / len(given) for name, given in graded.logged.items()}


def _statistics(name: str, values: list[float], group_size: int, *, with_spread: bool) -> dict[str, float]:
    term = torch.tensor(values, dtype=torch.float64)
    known = ~term.isnan()
    given = [value for value, is_known in zip(values, known.tolist(), strict=True) if is_known]
    metrics = {f"reward/term_abstained/{name}": 1.0 - len(given) / len(values)} if len(given) < len(values) else {}
    if not given:
        return metrics
    metrics[f"reward/term/{name}"] = sum(given) / len(given)
    if with_spread:
        by_group = (term.view(-1, group_size), known.view(-1, group_size))
        metrics[f"reward/term_std/{name}"] = float(term[known].std(correction=0))
        metrics[f"reward/term_equal_groups/{name}"] = float(
            (group_spread(*by_group) <= EQUAL_UTILITIES).double().mean()
        )
    return metrics
