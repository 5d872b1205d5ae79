"""The numbers of each reward term, of a step's completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from maxent_grpo.objective.advantages import EQUAL_UTILITIES, group_spread
from maxent_grpo.rewards.terms import ERROR, TIMEOUT

FAILURES = {ERROR: "reward/term_errors", TIMEOUT: "reward/term_timeouts"}


def term_metrics(
    terms: Mapping[str, Tensor], failures: Mapping[tuple[str, str], int], logged: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Mean of every term; how often it abstained or failed; what the functions logged; and with several terms their spread.

    Args:
        terms: values [P, G] of each term, nan where it abstained.
        failures: values missing because a term failed, by term and how.
        logged: numbers by the name that a function logged them under.
    """
    metrics: dict[str, float] = {}
    for name, values in terms.items():
        metrics |= _statistics(name, values, with_spread=len(terms) > 1)
    metrics |= {f"{FAILURES[why]}/{name}": float(count) for (name, why), count in failures.items()}
    return metrics | {f"reward/extra/{name}": sum(given) / len(given) for name, given in logged.items()}


def _statistics(name: str, term: Tensor, *, with_spread: bool) -> dict[str, float]:
    known = ~term.isnan()
    given, count = term[known].tolist(), term.numel()
    metrics = {f"reward/term_abstained/{name}": 1.0 - len(given) / count} if len(given) < count else {}
    if not given:
        return metrics
    metrics[f"reward/term/{name}"] = sum(given) / len(given)
    if with_spread:
        metrics[f"reward/term_std/{name}"] = float(term[known].std(correction=0))
        metrics[f"reward/term_equal_groups/{name}"] = float(
            (group_spread(term, known) <= EQUAL_UTILITIES).double().mean()
        )
    return metrics
