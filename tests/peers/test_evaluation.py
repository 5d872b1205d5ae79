"""Complaints about evaluation: how often each prompt is asked, what pass@k estimates, and when it may happen."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from support.runs import configured, inside_run, metric_lines, train

from maxent_grpo.stats.passk import pass_at_k
from maxent_grpo.training.evaluation.evaluate import evaluate
from maxent_grpo.training.types.logging import LoggingHandles
from maxent_grpo.training.types.rewards import ValidationContext


@pytest.mark.parametrize("samples", [1, 3])
def test_each_held_out_prompt_is_asked_exactly_k_times_whatever_the_batch(tmp_path: Path, samples: int) -> None:
    """huggingface/trl#3566, #3539, #2950, PR #4682: seven prompts in batches of two are neither padded nor repeated."""
    config = configured(
        tmp_path / "run",
        *("data.num_eval=7", "evaluation.batch_size=2", "evaluation.greedy=false", "evaluation.exact=never"),
        *(f"evaluation.num_samples={samples}", f"evaluation.ks=[{samples}]", "generation.num_generations=4"),
    )
    ctx, resources, _ = inside_run(config, lambda *parts: parts)
    validation = resources.validation_ctx
    assert isinstance(validation, ValidationContext)
    validation.logging = LoggingHandles(tmp_path)
    asked: Counter[str] = Counter()
    sampler = validation.generator

    def counted(prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None):
        assert len(prompts) <= 2
        assert per_prompt_counts is None
        asked.update({getattr(prompt, "row_id", prompt): num_samples for prompt in prompts})
        return sampler(prompts, num_samples)

    validation.generator = counted
    assert evaluate(validation, 0)["eval/rows"] == 7
    assert asked == {row["row_id"]: samples for row in ctx.evaluation.rows}


@pytest.mark.parametrize(
    ("samples", "right", "k", "value"), [(4, 1, 4, 1.0), (4, 1, 2, 0.5), (8, 3, 4, 0.9285714285714286)]
)
def test_pass_at_k_is_unbiased_and_not_a_bootstrap(samples: int, right: int, k: int, value: float) -> None:
    """verl-project/verl#7240, PR #1320, PR #1419: drawing k of the n samples with replacement is biased low."""
    assert pass_at_k(samples, right, k) == pytest.approx(value, abs=1e-12)
    assert 1 - math.comb(samples - right, k) / math.comb(samples, k) == pytest.approx(value)
    bootstrap = 1 - (1 - right / samples) ** k
    assert bootstrap < value - 0.05
    if (samples, k) == (4, 4):
        assert bootstrap == pytest.approx(0.684, abs=5e-4)


def test_an_evaluation_before_the_first_step_is_the_first_thing_that_happens(tmp_path: Path) -> None:
    """huggingface/trl#4669: nothing has been trained or logged yet, and the evaluation works all the same."""
    run = train(tmp_path / "run", "optimization.total_training_steps=1", "evaluation.every_n_steps=null").run_dir
    first, second = metric_lines(run)
    assert first["step"] == 0
    assert "eval/pass@1" in first
    assert not any(name.startswith(("reward/", "policy/")) for name in first)
    assert second["step"] == 1
