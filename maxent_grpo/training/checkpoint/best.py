"""Which evaluation was the best so far, and whether training should stop because none got better."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from maxent_grpo.config.checkpoint import MetricGoal
from maxent_grpo.errors import ConfigError

EVAL_PREFIX = "eval/"

logger = logging.getLogger(__name__)


class BestTracker:
    """Follows one evaluation metric; stops after ``patience`` evaluations in a row that are not strictly better.

    Without a metric it finds nothing best and never stops. NaN is never better.
    """

    def __init__(self, metric: str | None, goal: MetricGoal = MetricGoal.max, patience: int | None = None) -> None:
        if patience is not None and patience < 1:
            raise ConfigError(f"checkpoint.early_stop_patience={patience} must be at least 1; null never stops early")
        if patience is not None and metric is None:
            raise ConfigError(
                f"checkpoint.early_stop_patience={patience} has no metric to watch: set checkpoint.best_metric"
            )
        self.metric = metric
        self.goal = MetricGoal(goal)
        self.patience = patience
        self.best: float | None = None
        self.num_evaluations_without_better = 0

    def update(self, metrics: Mapping[str, float]) -> tuple[bool, bool]:
        """Take in one evaluation; returns whether it is the best so far, and whether training should stop.

        Raises:
            ConfigError: the evaluation has no such metric; names those it has.
        """
        if self.metric is None:
            return False, False
        if self.metric not in metrics:
            available = ", ".join(sorted(name for name in metrics if name.startswith(EVAL_PREFIX))) or "none at all"
            raise ConfigError(
                f"checkpoint.best_metric={self.metric} is not among the evaluation metrics, so no checkpoint can be the "
                f"best; available: {available}"
            )
        value = float(metrics[self.metric])
        is_best = self._is_better(value)
        if is_best:
            self.best = value
            self.num_evaluations_without_better = 0
        else:
            self.num_evaluations_without_better += 1
        if self.out_of_patience:
            logger.info("early stop: no better %s in %d evaluations", self.metric, self.num_evaluations_without_better)
        return is_best, self.out_of_patience

    @property
    def out_of_patience(self) -> bool:
        """Whether as many evaluations as ``patience`` allows were not better."""
        return self.patience is not None and self.num_evaluations_without_better >= self.patience

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)
        return value > self.best if self.goal is MetricGoal.max else value < self.best

    def state_dict(self) -> dict[str, object]:
        """The best value, the count towards the patience, and what they are measured in."""
        return {
            "metric": self.metric,
            "goal": self.goal.value,
            "best": self.best,
            "num_evaluations_without_better": self.num_evaluations_without_better,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a saved state; one of another metric or goal says nothing here and is left out, which is logged."""
        if (state["metric"], state["goal"]) != (self.metric, self.goal.value):
            logger.warning(
                "the checkpoint tracked best_metric=%s (%s); the search for the best %s (%s) starts anew",
                *(state["metric"], state["goal"], self.metric, self.goal.value),
            )
            return
        best, count = state["best"], state["num_evaluations_without_better"]
        if not (best is None or isinstance(best, float | int)) or not isinstance(count, int):
            raise TypeError(f"the saved best {best!r} and count {count!r} must be numbers")
        self.best = best
        self.num_evaluations_without_better = count
