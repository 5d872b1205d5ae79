"""Contradictions among the settings of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from maxent_grpo.config.data import ColoringDataConfig
from maxent_grpo.config.evaluation import SEED_MARK
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.types.choices import ExactFigures

ENUMERABLE = (ColoringDataConfig,)
"""Data options whose task can list every answer."""


def _ks(config: RootConfig) -> Iterator[str]:
    evaluation = config.evaluation
    wrong = [k for k in evaluation.ks if not 1 <= k <= evaluation.num_samples]
    if wrong:
        yield (
            f"evaluation.ks={evaluation.ks}: {', '.join(map(str, wrong))} is not between 1 and "
            f"evaluation.num_samples={evaluation.num_samples}, so pass@k cannot be estimated; draw more samples or choose "
            f"smaller k"
        )


def _temperature(config: RootConfig) -> Iterator[str]:
    evaluation = config.evaluation
    if evaluation.temperature == 0 and evaluation.num_samples > 1:
        yield (
            f"evaluation.temperature={evaluation.temperature} would draw one and the same completion "
            f"evaluation.num_samples={evaluation.num_samples} times; evaluation.greedy=true takes it once: use a temperature "
            f"above 0, or evaluation.num_samples=1 with evaluation.ks=[1]"
        )


def _exact(config: RootConfig) -> Iterator[str]:
    if config.evaluation.exact is ExactFigures.always and not isinstance(config.data, ENUMERABLE):
        yield (
            "evaluation.exact=always needs a task that can list all of its answers, which only data=coloring can: use "
            "evaluation.exact=auto or data=coloring"
        )


def _seed_template(config: RootConfig) -> Iterator[str]:
    seeds = config.evaluation.seed_eval
    if seeds.enabled and SEED_MARK not in seeds.template:
        yield (
            f"evaluation.seed_eval.template={seeds.template} does not hold {SEED_MARK}: the prompt would be the same under "
            f"every seed, so that there is nothing to tell apart; write for example "
            f"'evaluation.seed_eval.template=\" [seed={SEED_MARK}]\"'"
        )


EVALUATION_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (_ks, _temperature, _exact, _seed_template)
"""Every rule of this file, in the order in which their sentences are printed."""
