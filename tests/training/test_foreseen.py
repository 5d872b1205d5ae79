"""Gradients formed in the forward pass: where the loss's slopes are foreseen, and that the step is the same either way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.laboratory import Laboratory, largest_difference
from support.runs import configured

from maxent_grpo.objective import fused_head

FORESEEN = {
    "clipped ratio": ("scoring=dr_grpo",),
    "entropy bonus": ("scoring=dr_grpo", "scoring.entropy_coef=0.1"),
    "ratio of sequences": ("scoring=gspo",),
    "weighted likelihood": ("scoring=cispo",),
    "soft gate": ("scoring=sapo",),
    "held tokens": ("scoring=kl_cov",),
    "slices": ("scoring=grpo", "scoring.batching.score_slice=5"),
    "truncated": ("scoring=grpo", "generation.top_p=0.9", "generation.temperature=0.8"),
}
DEPENDENT = {
    "listwise": ("scoring=maxent",),
    "token KL": ("scoring=grpo", "scoring.kl_beta=0.1"),
    "old log-probs": ("scoring=grpo", "optimization.num_iterations=2"),
    "several passes": ("scoring=grpo", "scoring.batching.logprob_chunk_size=3"),
}


SHORT = ("entropy bonus", "truncated", "listwise", "several passes")


@pytest.mark.parametrize(
    "case",
    [case if case in SHORT else pytest.param(case, marks=pytest.mark.slow) for case in (*FORESEEN, *DEPENDENT)],
)
def test_a_step_is_the_same_with_foreseen_slopes_recomputed_logits_and_the_models_own(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = FORESEEN.get(case) or DEPENDENT[case]
    lab = Laboratory(configured(tmp_path / "run", "model.dtype=float64", *chosen))
    scorer = lab.resources.scorer
    assert scorer is not None
    assert scorer.head is not None
    experience, recomputed = lab.rollout(), []
    real = fused_head._backward

    def counted(*args: Any) -> Any:
        recomputed.append(1)
        return real(*args)

    monkeypatch.setattr(fused_head, "_backward", counted)
    found = lab.step(experience)
    assert bool(recomputed) == (case in DEPENDENT)
    assert found.gradient
    lab.reset()
    lab.resources.scorer = replace(scorer, head=None)
    own = lab.step(experience)
    assert largest_difference(found.gradient, own.gradient) < 1e-12
    assert found.loss == pytest.approx(own.loss, abs=1e-12)
    assert {name: value for name, value in found.metrics.items() if "seconds" not in name} == pytest.approx(
        {name: value for name, value in own.metrics.items() if "seconds" not in name}, abs=1e-9, nan_ok=True
    )
