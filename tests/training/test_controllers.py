"""Controllers on made-up groups and measurements: what they do with each, and what their state holds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from support.steps import random_step, reference_scores, reward_computation, settings_for

from maxent_grpo.config.controller import (
    ControllerConfig,
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    FixedControllerConfig,
    KlControllerConfig,
    TargetScheduleConfig,
)
from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.control.base import Controller, InformativeGroups, StepMeasurement
from maxent_grpo.training.control.build import build_controller
from maxent_grpo.training.control.measure import step_measurement
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.targets import group_evidence
from maxent_grpo.training.types.choices import KlLaw, KlTarget, NeutralGroups, ScoreMode, TargetSchedule
from maxent_grpo.training.types.entropy import TokenEntropy, WeightEntropy
from maxent_grpo.training.types.weighting import ControllerValues, WeightingSettings

NO_WARMUP = EntropyControllerConfig(warmup_steps=0)
CONFIGS: dict[str, ControllerConfig] = {
    "fixed": FixedControllerConfig(),
    "entropy": NO_WARMUP,
    "effective_size": EffectiveSizeControllerConfig(target_size=2.0),
    "kl": KlControllerConfig(law=KlLaw.pi),
}


def controller_of(config: ControllerConfig, *, tau: float = 0.3, beta: float = 0.1, kl_beta: float = 0.2) -> Controller:
    return build_controller(config, settings_for("maxent", weighting=WeightingSettings(tau, beta), kl_beta=kl_beta))


def measured(entropy: float | None = 0.9, **others: Any) -> StepMeasurement:
    """A step whose reachable weight entropies go from log 1 to log 4."""
    if entropy is None:
        return StepMeasurement(0, **others)
    return StepMeasurement(3, WeightEntropy(entropy), WeightEntropy(0.0), WeightEntropy(math.log(4)), **others)


def groups_of(*utilities: list[float]) -> InformativeGroups:
    log_q = torch.log_softmax(torch.tensor(utilities, dtype=torch.float64), dim=-1)
    return InformativeGroups(log_q, None, torch.ones_like(log_q, dtype=torch.bool))


def drive(controller: Controller, steps: int) -> None:
    """A sequence of steps of every kind: measured, unmeasured, beyond a bound."""
    for step in range(steps):
        groups = groups_of([1.0, 0.0, 0.2, 0.5 + 0.01 * step])
        controller.prepare(lambda groups=groups: groups)
        entropy = None if step % 4 == 3 else 0.3 + 0.2 * (step % 3)
        controller.update(measured(entropy, token_kl=0.02 * step, group_kl=0.01 * step))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_state_continues_bit_for_bit_through_json(name: str) -> None:
    whole, first, second = (controller_of(CONFIGS[name]) for _ in range(3))
    drive(whole, 7)
    drive(first, 7)
    saved = json.dumps(first.state_dict(), allow_nan=False)
    second.load_state_dict(json.loads(saved))
    assert second.state_dict() == first.state_dict()
    for controller in (whole, second):
        drive(controller, 5)
    assert second.state_dict() == whole.state_dict()
    assert second.values == whole.values
    assert second.metrics() == whole.metrics()


@pytest.mark.parametrize("name", CONFIGS)
def test_another_controllers_state_is_refused(name: str) -> None:
    controller = controller_of(CONFIGS[name])
    own = controller.state_dict()
    assert own["kind"] == name
    for harm, words in (
        ({"kind": "adaptive"}, f"of kind 'adaptive', controller={name} cannot continue it"),
        ({"version": 0}, "of version 0, this program reads version 1"),
        ({"tau": "0.3"}, "is damaged"),
        ({"beta": math.nan}, "is damaged"),
        ({"kl_beta": -1.0}, "is damaged"),
        ({"num_updates": None}, "is damaged"),
        ({"extra": 1}, r"has \['extra'\] besides"),
    ):
        with pytest.raises(CheckpointError, match=words):
            controller.load_state_dict({**own, **harm})
    del own["num_updates"]
    with pytest.raises(CheckpointError, match=r"it lacks \['num_updates'\]"):
        controller.load_state_dict(own)


@pytest.mark.parametrize("name", ["entropy", "effective_size", "kl"])
def test_coefficients_outside_the_bounds_are_not_taken_over(name: str) -> None:
    state = controller_of(CONFIGS[name]).state_dict() | {"tau": 50.0, "kl_beta": 50.0}
    with pytest.raises(CheckpointError, match=r"has (tau|kl_beta)=50.0, outside this run's bounds"):
        controller_of(CONFIGS[name]).load_state_dict(state)


@pytest.mark.parametrize("name", ["entropy", "kl"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_cannot_be_learnt_from_changes_nothing_and_is_counted(name: str, value: float | None) -> None:
    controller = controller_of(CONFIGS[name])
    drive(controller, 3)
    before, values = controller.state_dict(), controller.values
    controller.update(measured(value, token_kl=value))
    after = controller.state_dict()
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"num_updates", "num_skipped"}
    assert after["num_skipped"] == before["num_skipped"] + 1
    assert controller.values == values
    assert "controller/measured" not in controller.metrics()


def test_the_target_is_a_share_of_what_tau_can_reach() -> None:
    """Two best completions of four: at fraction 1/2 the target lies between log 2 and log 4, and log 2 is below it."""
    controller = controller_of(NO_WARMUP)
    low, high = WeightEntropy(math.log(2)), WeightEntropy(math.log(4))
    controller.update(StepMeasurement(1, WeightEntropy(0.8), low, high))
    assert controller.metrics()["controller/target"] == pytest.approx(1.5 * math.log(2))
    assert controller.values.tau > 0.3


def test_the_warm_up_measures_and_waits() -> None:
    controller = controller_of(EntropyControllerConfig(warmup_steps=2, learning_rate=1.0))
    taus = []
    for entropy in (0.2, 0.2, 0.2):
        controller.update(measured(entropy))
        taus.append(controller.values.tau)
    assert taus[0] == taus[1] == 0.3 < taus[2]
    assert controller.state_dict()["smoothed"] == pytest.approx(0.2)


def test_the_schedule_counts_optimiser_steps_skipped_ones_too() -> None:
    schedule = TargetScheduleConfig(kind=TargetSchedule.linear, final=0.9, horizon=4)
    controller = controller_of(EntropyControllerConfig(target_fraction=0.5, schedule=schedule))
    targets = []
    for entropy in (1.0, None, 1.0, 1.0, 1.0, 1.0):
        controller.update(measured(entropy))
        targets.append(controller.metrics().get("controller/target"))
    shares = [None if target is None else target / math.log(4) for target in targets]
    assert shares == [pytest.approx(0.5), None, *(pytest.approx(share) for share in (0.7, 0.8, 0.9, 0.9))]


def prepared(config: EffectiveSizeControllerConfig, groups: InformativeGroups, beta: float = 0.0) -> Controller:
    controller = controller_of(config, beta=beta)
    controller.prepare(lambda: groups)
    return controller


@pytest.mark.parametrize("size", [1.6, 2.0, 3.5])
@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_tau_is_solved_for_the_mean_effective_size(size: float, beta: float) -> None:
    groups = groups_of([1.0, 0.0, 0.2, 0.5], [0.3, 0.9, 0.1, 0.0])
    controller = prepared(EffectiveSizeControllerConfig(target_size=size), groups, beta)
    w = torch.softmax(groups.log_q / (controller.values.tau + beta), dim=-1)
    sizes = (-(w * w.log()).sum(dim=-1)).exp()
    assert float(sizes.mean()) == pytest.approx(size, abs=1e-8)
    figures = controller.metrics()
    assert figures["controller/measured"] == pytest.approx(size, abs=1e-8)
    assert (figures["controller/infeasible"], figures["controller/saturated"]) == (0, 0)
    again = controller.values.tau
    controller.prepare(lambda: groups)
    assert controller.values.tau == again, "the same groups give the same tau"


def test_sizes_that_no_tau_gives_are_clipped_and_counted() -> None:
    ties = groups_of([1.0, 1.0, 1.0, 0.0])
    low = prepared(EffectiveSizeControllerConfig(target_size=2.0), ties)
    assert low.values.tau == 1e-3
    assert low.metrics()["controller/measured"] == pytest.approx(3.0)
    high = prepared(EffectiveSizeControllerConfig(target_size=4.5), ties)
    assert high.values.tau == 10.0
    held = prepared(EffectiveSizeControllerConfig(target_size=3.9, tau_max=0.1), ties)
    assert held.values.tau == 0.1
    counts = [
        (controller.metrics()["controller/infeasible"], controller.metrics()["controller/saturated"])
        for controller in (low, high, held)
    ]
    assert counts == [(1, 1), (1, 1), (0, 1)], "the last one is within reach, but not within the bounds"


def test_a_step_without_informative_groups_keeps_tau() -> None:
    controller = prepared(EffectiveSizeControllerConfig(target_size=2.0), groups_of([1.0, 0.0, 0.2, 0.5]))
    before = controller.values
    nothing = groups_of([1.0, 0.0])
    controller.prepare(lambda: InformativeGroups(nothing.log_q[:0], None, nothing.valid[:0]))
    assert controller.values == before
    assert controller.metrics()["controller/skipped"] == 1


@pytest.mark.parametrize(
    ("target", "moved", "kept"), [(KlTarget.kl_beta, "kl_beta", "beta"), (KlTarget.listwise_beta, "beta", "kl_beta")]
)
@pytest.mark.parametrize("law", list(KlLaw))
def test_a_divergence_above_its_target_raises_its_own_coefficient(
    target: KlTarget, moved: str, kept: str, law: KlLaw
) -> None:
    for high in (True, False):
        controller = controller_of(KlControllerConfig(target=target, law=law, target_kl=0.1))
        before = controller.values
        token, group = (0.3, 0.01) if high == (target is KlTarget.kl_beta) else (0.01, 0.3)
        controller.update(measured(token_kl=token, group_kl=group))
        assert (getattr(controller.values, moved) > getattr(before, moved)) == high
        assert getattr(controller.values, kept) == getattr(before, kept)
        assert controller.values.tau == before.tau


def test_bounds_hold_and_are_counted() -> None:
    controller = controller_of(KlControllerConfig(law=KlLaw.halving, target_kl=0.1, beta_min=0.15, beta_max=0.5))
    betas = []
    for kl in (1.0, 1.0, 1.0, 0.0, 0.0, 0.0):
        controller.update(measured(token_kl=kl))
        betas.append(controller.values.kl_beta)
    assert betas == [0.4, 0.5, 0.5, 0.25, 0.15, 0.15]
    assert controller.metrics()["controller/saturated"] == 4


def _evidence(neutral: NeutralGroups) -> tuple[InformativeGroups, torch.Tensor]:
    """The informative groups of a step with mixed, all-right and all-wrong groups, and its utilities."""
    step, weighting = random_step(), WeightingSettings(neutral_groups=neutral)
    method = resolve_method(settings_for("maxent"), score_mode=ScoreMode.sum, max_completion_len=8)
    rewards = reward_computation(step, method, weighting)
    reference = reference_scores(step, weighting, ScoreMode.sum)
    evidence = group_evidence(rewards, step.valid, step.complete, reference, weighting)
    return evidence.informative(0, 4), step.utilities


def test_neutral_groups_are_not_measured() -> None:
    """Groups 1 and 2 are all right and all wrong: they count in no measurement, even where they take part in the loss."""
    kept, utilities = _evidence(NeutralGroups.keep)
    skipped, _ = _evidence(NeutralGroups.skip)
    assert torch.equal(kept.log_q, skipped.log_q)
    rows = [row for row in range(4) if row not in (1, 2) and len(set(utilities[row].nan_to_num(9).tolist())) > 1]
    assert 1 <= len(kept) <= len(rows)


def test_the_measurement_is_the_mean_over_informative_groups() -> None:
    groups, _ = _evidence(NeutralGroups.keep)
    values = ControllerValues(tau=0.4, beta=0.2, kl_beta=0.0)
    found = step_measurement(Accelerator(cpu=True), groups, values, token_kl=0.3, token_entropy=1.1)
    entropies, lowest, highest, divergences = [], [], [], []
    assert groups.log_reference is not None
    for log_q, log_p, valid in zip(groups.log_q, groups.log_reference, groups.valid, strict=True):
        q, p = log_q[valid], log_p[valid]
        w = torch.softmax((q + 0.2 * p) / 0.6, dim=-1)
        zero = torch.softmax((q + 0.2 * p) / 0.2, dim=-1)
        entropies.append(-(w * w.log()).sum())
        lowest.append(-(zero * zero.log()).sum())
        highest.append(math.log(int(valid.sum())))
        divergences.append((w * (w.log() - torch.log_softmax(p, dim=-1))).sum())

    def mean(values: list[Any]) -> float:
        return float(sum(values) / len(values))

    assert found.num_informative == len(groups) > 0
    assert found.weight_entropy is not None
    assert found.weight_entropy.nats == pytest.approx(mean(entropies))
    assert found.lowest_weight_entropy == WeightEntropy(pytest.approx(mean(lowest)))
    assert found.highest_weight_entropy == WeightEntropy(pytest.approx(mean(highest)))
    assert found.group_kl == pytest.approx(mean(divergences))
    assert (found.token_kl, found.token_entropy) == (0.3, TokenEntropy(1.1))


def test_without_informative_groups_or_a_reference_nothing_is_made_up() -> None:
    groups, _ = _evidence(NeutralGroups.keep)
    values, accelerator = ControllerValues(0.4, 0.0, 0.0), Accelerator(cpu=True)
    none = InformativeGroups(groups.log_q[:0], None, groups.valid[:0])
    found = step_measurement(accelerator, none, values, token_kl=None, token_entropy=None)
    assert found == StepMeasurement(0)
    flat = InformativeGroups(groups.log_q, None, groups.valid)
    assert step_measurement(accelerator, flat, values, token_kl=None, token_entropy=None).group_kl is None


SNIPPET = """
from maxent_grpo.training.control.entropy import target_entropy
from maxent_grpo.training.types.entropy import TokenEntropy, WeightEntropy

target_entropy(0.5, WeightEntropy(0.0), WeightEntropy(1.0))
target_entropy(0.5, WeightEntropy(0.0), TokenEntropy(1.0))
"""


def test_a_token_entropy_is_no_weight_entropy(tmp_path: Path) -> None:
    """The type checker refuses one for the other, and so do comparisons."""
    assert TokenEntropy(0.5) != WeightEntropy(0.5)
    root = Path(__file__).parents[2]
    (tmp_path / "mixed.py").write_text(SNIPPET)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(root)]}))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "mixed.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [(entry["rule"], entry["range"]["start"]["line"]) for entry in found] == [("reportArgumentType", 5)]
    assert '"TokenEntropy" is not assignable to "WeightEntropy"' in found[0]["message"]
