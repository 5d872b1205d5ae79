"""Signs in the metrics of a run that goes wrong: each is said once, with what to do, and again in a line at the run's end.

The table ``SIGNS`` is the only place that knows a threshold. A run that is resumed looks at what it sees itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from maxent_grpo.telemetry.stall import StallWatch

WINDOW = 50
"""Earlier steps that a spike is compared with [steps]."""
FEWEST = 20
"""Earlier steps below which nothing is compared [steps]."""
SPIKE = 10.0
"""How many times the median makes a spike."""
SILENT = 10
"""Steps in a row without a signal, and with every completion cut [steps]."""
COLLAPSED = 0.05
"""Share of the first token entropy below which it counts as collapsed."""
COLLAPSED_FOR = 10
"""Steps whose mean that is, at the start and now [steps]."""
EXPLODED = 2.0
"""KL to the reference per trained token above which it counts as exploded [nats]."""
EXPLODED_FOR = 3
"""Steps in a row of that [steps]."""

Line = Mapping[str, float]
Lines = Sequence[Line]
"""The lines of the steps so far, the newest last."""


@dataclass(frozen=True)
class Sign:
    """Something that a healthy run does not show."""

    name: str
    threshold: str
    """When it counts, in words."""
    shows: Callable[[Lines, Lines], bool]
    """Whether it shows, from the steps of the window and the first ones with a token entropy (none before there are later ones)."""
    cure: str


def _series(lines: Iterable[Line], name: str) -> list[float]:
    return [line[name] for line in lines if name in line]


def _in_a_row(lines: Lines, steps: int, holds: Callable[[Line], bool]) -> bool:
    return len(lines) >= steps and all(holds(line) for line in lines[-steps:])


def _spikes(lines: Lines, _beginning: Lines) -> bool:
    now, before = lines[-1], [line for line in lines[-WINDOW - 1 : -1] if line.get("optim/skipped") != 1.0]
    losses, norms = _series(before, "loss/total"), _series(before, "optim/gradient_norm")
    if min(len(losses), len(norms)) < FEWEST or not {"loss/total", "optim/gradient_norm"} <= now.keys():
        return False
    middle = median(losses)
    usual = median(abs(loss - middle) for loss in losses)
    return abs(now["loss/total"] - middle) > SPIKE * usual and now["optim/gradient_norm"] > SPIKE * median(norms)


def _collapses(lines: Lines, beginning: Lines) -> bool:
    newest = _series(lines, "policy/entropy")[-COLLAPSED_FOR:]
    return sum(newest) < COLLAPSED * sum(_series(beginning, "policy/entropy"))


SIGNS = (
    Sign(
        "loss spike",
        f"loss/total is more than {SPIKE:g} times its usual distance from the median of the last {WINDOW} steps (at least {FEWEST}), "
        f"and optim/gradient_norm more than {SPIKE:g} times its median",
        _spikes,
        "lower optimization.learning_rate or optimization.max_grad_norm, and look at the step's completions and rewards",
    ),
    Sign(
        "no signal",
        f"reward/equal_groups is 1 for {SILENT} steps in a row",
        lambda lines, _: _in_a_row(lines, SILENT, lambda line: line.get("reward/equal_groups") == 1.0),
        "all rewards of each group are equal, so that nothing is learnt: the problems are all solved, or all too hard for the "
        "model; choose others, raise generation.num_generations, or add a reward term that tells answers apart",
    ),
    Sign(
        "all truncated",
        f"completion/clipped_ratio is 1 for {SILENT} steps in a row",
        lambda lines, _: _in_a_row(lines, SILENT, lambda line: line.get("completion/clipped_ratio") == 1.0),
        "every completion is cut by the length limit: raise generation.max_completion_len, ask for shorter answers in the prompt, "
        "or check with completions.jsonl that the model ends its turns with an end token",
    ),
    Sign(
        "entropy collapse",
        f"the mean of policy/entropy over {COLLAPSED_FOR} steps is below {COLLAPSED:g} of that of the first {COLLAPSED_FOR}",
        _collapses,
        "the policy hardly varies any more, and groups will stop differing: raise scoring.weighting.tau or scoring.entropy_coef, "
        "widen scoring.clipping.clip_range_high, or lower optimization.learning_rate",
    ),
    Sign(
        "KL explosion",
        f"policy/kl_to_reference is above {EXPLODED:g} nats per token for {EXPLODED_FOR} steps in a row",
        lambda lines, _: _in_a_row(
            lines, EXPLODED_FOR, lambda line: line.get("policy/kl_to_reference", 0.0) > EXPLODED
        ),
        "the policy is far from its reference: raise scoring.kl_beta, hold it with controller=kl, or lower "
        "optimization.learning_rate",
    ),
)
"""Every sign, in the order in which the documentation lists them."""


@dataclass
class HealthWatch:
    """Looks at the line of every step; one watch belongs to one run."""

    stall: StallWatch = field(default_factory=StallWatch)
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """Steps that showed a sign, by its name."""
    first: dict[str, int] = field(default_factory=dict[str, int])
    """The first of them."""
    _lines: deque[Line] = field(default_factory=lambda: deque[Line](maxlen=WINDOW + 1))
    _beginning: list[Line] = field(default_factory=list[Line])
    """The first steps with a token entropy."""
    _num_later: int = 0
    """Steps with one after those."""

    def see(self, step: int, metrics: Line, max_completion_len: int) -> list[str]:
        """Take in the line of a step; the sentences to write, each once in a run."""
        said = self.stall.see(metrics, max_completion_len)
        sentences = [] if said is None else [said]
        kept = {name: metrics[name] for name in _READ if name in metrics}
        self._lines.append(kept)
        if "policy/entropy" in kept:
            if len(self._beginning) < COLLAPSED_FOR:
                self._beginning.append(kept)
            else:
                self._num_later += 1
        lines, beginning = list(self._lines), self._beginning if self._num_later >= COLLAPSED_FOR else []
        for sign in SIGNS:
            if not sign.shows(lines, beginning):
                continue
            self.counts[sign.name] = self.counts.get(sign.name, 0) + 1
            if sign.name in self.first:
                continue
            self.first[sign.name] = step
            if not self._is_explained(sign):
                sentences.append(f"{sign.name} at step {step} ({sign.threshold}): {sign.cure}")
        return sentences

    def summary(self) -> list[str]:
        """A line for every sign that was seen."""
        return [
            f"warning: {name}, first at step {self.first[name]}, in {count} step{'s' if count > 1 else ''}; docs/faults.md says "
            "what it means and what helps"
            for name, count in self.counts.items()
        ]

    def _is_explained(self, sign: Sign) -> bool:
        """Whether a stall that was told, completions that are all cut and nothing learnt, is the same and says more."""
        return sign.name in ("no signal", "all truncated") and bool(self.stall.said)


_READ = (
    *("loss/total", "optim/gradient_norm", "optim/skipped", "reward/equal_groups", "completion/clipped_ratio"),
    *("policy/entropy", "policy/kl_to_reference"),
)
"""Metrics that signs look at."""
