"""Weights, gradients and optimiser cut over processes: the same training, saved and continued in any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from support.ranks import call_together
from support.runs import configured, state_of, weights_of
from support.sharded import one_run, spoiled_run
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from maxent_grpo.errors import ConfigError
from maxent_grpo.training.optim import shared_loss
from maxent_grpo.training.strategy import accelerator_arguments, deepspeed_plugin, fsdp_plugin, settle_strategy

FSDP = "optimization.parallel.strategy=fsdp"
COMMON = [
    "optimization.total_training_steps=2",
    "checkpoint.every_n_steps=1",
    "checkpoint.keep_last=0",
    "evaluation.every_n_steps=2",
    "scoring.kl_beta=0.1",
    "model.num_layers=2",
]
VARIANTS = {
    "weights kept between the passes": ["optimization.parallel.fsdp.reshard_after_forward=false"],
    "recomputed activations": ["model.gradient_checkpointing=true"],
    "slices that cut groups": ["scoring.batching.score_slice=3", "optimization.grad_accum_steps=2"],
    "prompts of their own": ["scoring.batching.share_prompts=false"],
    "masks for pairs": ["model.attention=eager"],
    "unequal shares": ["optimization.prompts_per_step=5", "scoring.weighting.beta=0.1"],
    "a moving reference": [
        "scoring.reference_sync.every_n_steps=1",
        "scoring.reference_sync.mixing=0.5",
        "optimization.num_iterations=2",
    ],
    "bfloat16": ["model.dtype=bfloat16"],
}
ROUNDING = {"bfloat16": 0.02}
"""Largest difference of weights where it is more than that of float32."""


@pytest.mark.slow
def test_cut_weights_train_as_whole_ones_do(tmp_path: Path) -> None:
    here = one_run(tmp_path / "here", [*COMMON, FSDP])  # one process, which holds everything
    cases = {
        "straight": {"overrides": [*COMMON, FSDP]},
        "again": {"overrides": [*COMMON, FSDP], "resume_from": str(tmp_path / "straight/checkpoints/step_1")},
        "from one": {"overrides": [*COMMON, FSDP], "resume_from": _step(here, 1)},
    }
    first, second = call_together("support.sharded:runs", str(tmp_path), cases)
    straight, again, from_one = (first[name] for name in cases)

    assert straight["norms"] == pytest.approx(here["norms"], rel=1e-5)
    assert straight["losses"] == pytest.approx(here["losses"], abs=1e-5)
    for there, elsewhere, expected in zip(
        *(run["evaluations"] for run in (straight, second["straight"], here)), strict=True
    ):
        assert there == elsewhere == pytest.approx(expected, abs=1e-5)
    assert _difference(straight, here) < 1e-5
    moved = _largest(weights_of(Path(_step(here, 1))), weights_of(Path(here["checkpoint"])))
    assert moved > 1e-3, "a step is far larger than the tolerance"

    whole, parts = here["held"], straight["held"]
    for name in ("weights", "moments"):
        assert parts[name] + second["straight"]["held"][name] < 1.02 * whole[name], "each holds a part, padded"
        assert parts[name] < 0.55 * whole[name]
    # putting the run together, two rollouts, two evaluations, two checkpoints; no group is cut, so that steps look at nothing before
    assert parts["gathered"] == 7
    assert parts["plain"] < 0.01 * whole["plain"], "the plain model has no weights between the blocks"

    assert _difference(again, straight) == 0.0, "continued by as many processes: the same bits"
    assert _difference(from_one, here) < 1e-5, "saved by one process, continued by two"
    back = one_run(tmp_path / "back", COMMON, resume_from=_step(straight, 1))
    assert _difference(back, straight) < 1e-5, "saved by two processes, continued by one"


@pytest.mark.slow
def test_cut_weights_train_as_whole_ones_do_under_every_way_to_score(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {}
    for number, extra in enumerate(VARIANTS.values()):
        cases[f"v{number}"] = {"overrides": [*COMMON, FSDP, *extra]}
        resumed = str(tmp_path / f"v{number}/checkpoints/step_1")
        cases[f"v{number}-again"] = {"overrides": [*COMMON, FSDP, *extra], "resume_from": resumed}
    first, _ = call_together("support.sharded:runs", str(tmp_path), cases, timeout=900.0)
    for number, (name, extra) in enumerate(VARIANTS.items()):
        here = one_run(tmp_path / f"here-{number}", [*COMMON, FSDP, *extra])
        straight, again = first[f"v{number}"], first[f"v{number}-again"]
        tolerance = ROUNDING.get(name, 1e-5)
        assert straight["norms"] == pytest.approx(here["norms"], rel=10 * tolerance), name
        assert _difference(straight, here) < tolerance, name
        assert _difference(again, straight) == 0.0, name


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_left_out_and_the_next_ones_are_right(tmp_path: Path) -> None:
    overrides = [
        *(*COMMON, FSDP, "optimization.total_training_steps=4", "run.on_nonfinite=skip"),
        *("scoring.batching.score_slice=3", "optimization.prompts_per_step=5", "evaluation.enabled=false"),
    ]
    here = spoiled_run(str(tmp_path / "here"), overrides)
    there, other = call_together("support.sharded:spoiled_run", str(tmp_path / "there"), overrides)
    assert [run["last"]["optim/skipped_nonfinite"] for run in (here, there, other)] == [1.0, 1.0, 1.0]
    assert _difference(there, here) < 1e-5


@pytest.mark.slow
def test_embeddings_that_are_tied_stay_one_matrix(tmp_path: Path) -> None:
    untied = one_run(tmp_path / "untied", COMMON)
    folder = Path(untied["checkpoint"]) / "model"
    configuration = AutoConfig.from_pretrained(folder)
    configuration.tie_word_embeddings = True
    AutoModelForCausalLM.from_config(configuration).save_pretrained(tmp_path / "tied")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "tied")
    tied = ["model=hf", f"model.name={tmp_path}/tied", FSDP, *(item for item in COMMON if "model." not in item)]
    here = one_run(tmp_path / "here", tied)
    cases = {
        "there": {"overrides": tied},
        "again": {"overrides": tied, "resume_from": str(tmp_path / "there/checkpoints/step_1")},
    }
    first, _ = call_together("support.sharded:runs", str(tmp_path), cases)
    assert "lm_head.weight" not in weights_of(Path(first["there"]["checkpoint"]))
    assert _difference(first["there"], here) < 1e-5
    assert _difference(first["again"], first["there"]) == 0.0


def test_the_settings_of_fsdp_are_those_of_accelerates_plugin(tmp_path: Path) -> None:
    plain = fsdp_plugin(configured(tmp_path, FSDP))
    assert (plain.fsdp_version, plain.reshard_after_forward, plain.mixed_precision_policy) == (2, True, None)
    assert type(plain.cpu_offload).__name__ == "OffloadPolicy"
    changed = configured(
        tmp_path,
        *(FSDP, "model.dtype=bfloat16", "run.device=auto"),
        *("optimization.parallel.fsdp.reshard_after_forward=false", "optimization.parallel.fsdp.cpu_offload=true"),
    )
    plugin = fsdp_plugin(changed)
    assert plugin.reshard_after_forward is False
    assert type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
    assert plugin.mixed_precision_policy is not None
    assert plugin.mixed_precision_policy.param_dtype is torch.bfloat16
    assert plugin.mixed_precision_policy.reduce_dtype is torch.float32


def test_a_launcher_that_asks_for_another_strategy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    whole = configured(tmp_path)
    with pytest.raises(
        ConfigError, match=r"strategy=ddp, but .* ACCELERATE_USE_FSDP=true.*use .*strategy=fsdp, or start"
    ):
        accelerator_arguments(whole, 2)
    assert "fsdp_plugin" not in accelerator_arguments(whole, 1)
    assert "fsdp_plugin" in accelerator_arguments(configured(tmp_path, FSDP), 2)


@pytest.mark.parametrize("stage", [2, 3])
def test_the_settings_of_zero_are_those_of_accelerates_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    monkeypatch.setattr("maxent_grpo.config.preflight.find_module", lambda _: object())
    config = configured(
        tmp_path,
        *("optimization.parallel.strategy=deepspeed", f"optimization.parallel.deepspeed.zero_stage={stage}"),
        *("optimization.parallel.deepspeed.offload_optimizer=true", "model.dtype=bfloat16", "run.device=auto"),
        *(("optimization.parallel.deepspeed.offload_parameters=true",) if stage == 3 else ()),
        *("optimization.parallel.deepspeed.overlap_comm=false", "optimization.max_grad_norm=0.5"),
    )
    plugin = deepspeed_plugin(config)
    weights = {"offload_param": {"device": "cpu"}, "stage3_gather_16bit_weights_on_model_save": True}
    assert plugin.zero_stage == stage
    assert plugin.deepspeed_config["zero_optimization"] == {
        "stage": stage,
        "overlap_comm": False,
        "offload_optimizer": {"device": "cpu"},
        **(weights if stage == 3 else {}),
    }
    assert plugin.deepspeed_config["gradient_clipping"] == plugin.gradient_clipping == 0.5
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == plugin.gradient_accumulation_steps == 1
    assert plugin.deepspeed_config["bf16"] == {"enabled": True}
    with pytest.raises(ConfigError, match=r"strategy=deepspeed: .* nothing here trains that way; use .*=fsdp"):
        settle_strategy(config, Accelerator(cpu=True))


def test_a_share_of_the_loss_is_made_up_for_the_mean_over_processes() -> None:
    class Several:
        num_processes = 4

    assert float(shared_loss(Several(), torch.tensor(0.25))) == 1.0  # type: ignore[arg-type]


def _step(run: dict[str, Any], step: int) -> str:
    return str(Path(run["checkpoint"]).parent / f"step_{step}")


def _difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest one of weights and of the optimiser's numbers in the last checkpoints of two runs."""
    folders = [Path(run["checkpoint"]) for run in (one, other)]
    weights = [weights_of(folder) for folder in folders]
    states = [dict(_numbers(state_of(folder).states["optimizer"])) for folder in folders]
    return max(_largest(*weights), _largest(*states))


def _largest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


def _numbers(tree: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(tree, dict):
        return [leaf for name, value in tree.items() for leaf in _numbers(value, f"{path}/{name}")]
    if isinstance(tree, (list, tuple)):
        return [leaf for place, value in enumerate(tree) for leaf in _numbers(value, f"{path}/{place}")]
    return [(path, torch.as_tensor(tree, dtype=torch.float64))] if isinstance(tree, (torch.Tensor, float, int)) else []
