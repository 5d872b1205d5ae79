from copy import deepcopy
from dataclasses import fields
from functools import reduce

import pytest

from maxent_grpo.config.checkpoint import CheckpointConfig, MetricGoal
from maxent_grpo.config.controller import (
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    FixedControllerConfig,
    KlControllerConfig,
    TargetScheduleConfig,
)
from maxent_grpo.config.data import ColoringDataConfig
from maxent_grpo.config.evaluation import EvaluationConfig
from maxent_grpo.config.generation import LocalGenerationConfig
from maxent_grpo.config.logging import LoggingConfig
from maxent_grpo.config.model import TinyModelConfig
from maxent_grpo.config.optimization import AdamWConfig
from maxent_grpo.config.resolve import (
    batch_plan,
    chosen_options,
    has_unit_ratio,
    reference_source,
    resolve_score_mode,
)
from maxent_grpo.config.reward import TaskRewardConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import RunConfig
from maxent_grpo.config.scoring import (
    DrGrpoScoringConfig,
    GrpoScoringConfig,
    MaxEntListwiseScoringConfig,
    MaxEntScoringConfig,
)
from maxent_grpo.config.scoring_methods import SoftScoringConfig
from maxent_grpo.telemetry.inert import inert_settings
from maxent_grpo.telemetry.method_summary import loss_formula
from maxent_grpo.telemetry.summary import startup_summary
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    EntropyMode,
    KlEstimator,
    KlLaw,
    KlTarget,
    MismatchMode,
    NeutralGroups,
    RatioLevel,
    Reduction,
    ReferenceSource,
    ScoreMode,
    TargetSchedule,
)

METHODS = (GrpoScoringConfig, DrGrpoScoringConfig, MaxEntScoringConfig, MaxEntListwiseScoringConfig)


def config_with(method: type = MaxEntScoringConfig, **settings: object) -> RootConfig:
    """The default run with a method and settings by path, dots written as two underscores."""
    config = RootConfig(
        model=TinyModelConfig(),
        data=ColoringDataConfig(),
        generation=LocalGenerationConfig(),
        scoring=method(),
        optimization=AdamWConfig(),
        controller=FixedControllerConfig(),
        reward=TaskRewardConfig(),
        evaluation=EvaluationConfig(),
        logging=LoggingConfig(),
        checkpoint=CheckpointConfig(),
        run=RunConfig(),
    )
    for path, value in deepcopy(settings).items():
        *groups, name = path.split("__")
        node = reduce(getattr, groups, config)
        assert hasattr(node, name), path
        setattr(node, name, value)
    return config


def idle(method: type = MaxEntScoringConfig, **settings: object) -> dict[str, str]:
    """Settings without effect, each with its reason."""
    return dict(sentence.split(": ", 1) for sentence in inert_settings(config_with(method, **settings)))


def test_auto_scores_short_completions_by_sums() -> None:
    assert [resolve_score_mode(ScoreMode.auto, length) for length in (5, 32, 33)] == ["sum", "sum", "const"]
    assert resolve_score_mode(ScoreMode.mean, 5) is ScoreMode.mean


def test_auto_keeps_a_reference_only_for_a_coefficient() -> None:
    def source(method: type = DrGrpoScoringConfig, **settings: object) -> ReferenceSource:
        return reference_source(config_with(method, **settings))

    assert source() is ReferenceSource.none
    assert source(scoring__kl_beta=0.1) is ReferenceSource.model
    assert source(MaxEntScoringConfig, scoring__weighting__beta=0.1) is ReferenceSource.model
    assert source(scoring__reference_logprobs_source=ReferenceSource.model) is ReferenceSource.model
    assert source(scoring__reference_logprobs_source=ReferenceSource.none, scoring__kl_beta=0.1) is ReferenceSource.none


def test_a_listwise_beta_counts_only_with_its_term() -> None:
    assert reference_source(config_with(MaxEntScoringConfig, scoring__weighting__beta=0.1)) == "model"
    assert reference_source(config_with(DrGrpoScoringConfig, scoring__weighting__beta=0.1)) == "none"


def test_the_regularised_reward_needs_the_reference_for_its_beta() -> None:
    assert reference_source(config_with(SoftScoringConfig, scoring__weighting__beta=0.1)) == "model"
    assert reference_source(config_with(SoftScoringConfig)) == "none"


def test_a_coefficient_that_a_controller_moves_needs_the_reference_also_at_zero() -> None:
    held, listwise = KlControllerConfig(), KlControllerConfig(target=KlTarget.listwise_beta)
    assert reference_source(config_with(DrGrpoScoringConfig, controller=held)) == "model"
    assert reference_source(config_with(MaxEntScoringConfig, controller=listwise)) == "model"
    assert reference_source(config_with(DrGrpoScoringConfig, controller=listwise)) == "none"
    assert reference_source(config_with(MaxEntScoringConfig, controller=EntropyControllerConfig())) == "none"


def test_options_are_named_as_they_are_chosen() -> None:
    options = chosen_options(config_with(GrpoScoringConfig))
    assert list(options) == [field.name for field in fields(RootConfig) if field.name != "seed"]
    assert (options["scoring"], options["model"], options["generation"]) == ("grpo", "tiny", "local")


def test_the_ratio_is_one_with_a_single_update_unless_the_sampler_stands_below() -> None:
    sampler = {"scoring__behavior_logprobs_source": BehaviorSource.sampler}
    assert has_unit_ratio(config_with())
    assert not has_unit_ratio(config_with(optimization__minibatches=2))
    assert not has_unit_ratio(config_with(optimization__num_iterations=2))
    assert not has_unit_ratio(config_with(**sampler))
    assert has_unit_ratio(config_with(**sampler, scoring__mismatch__mode=MismatchMode.token_truncate))


def test_the_worked_example_of_the_batch_arithmetic() -> None:
    config = config_with(
        optimization__prompts_per_step=8, optimization__minibatches=2, generation__num_generations=8,
        scoring__batching__score_slice=16, scoring__batching__max_tokens=0,
    )  # fmt: skip
    plan = batch_plan(config, num_train_prompts=100, num_processes=2)
    assert (plan.prompts_per_rollout, plan.steps_per_rollout) == (16, 2)
    assert (plan.sequences_per_step, plan.slices_per_step) == (64, 2)
    assert (plan.steps_per_epoch, plan.total_steps) == (13, 200)


def test_sizes_that_do_not_divide_make_a_smaller_last_part() -> None:
    config = config_with(
        optimization__prompts_per_step=10, optimization__grad_accum_steps=4, generation__num_generations=4,
        optimization__total_training_steps=0, optimization__num_epochs=3, scoring__batching__score_slice=5,
        scoring__batching__max_tokens=0,
    )  # fmt: skip
    plan = batch_plan(config, num_train_prompts=25)
    assert plan.loader_batches_per_step == 4, "3 + 3 + 3 + 1 prompts"
    assert plan.slices_per_step == 3 + 3 + 3 + 1, "12, 12, 12 and 4 sequences in slices of 5"
    assert (plan.steps_per_epoch, plan.total_steps) == (3, 9)


def test_a_token_budget_leaves_the_number_of_slices_open() -> None:
    assert batch_plan(config_with(scoring__batching__max_tokens=1024), 10).slices_per_step is None
    assert batch_plan(config_with(scoring__batching__max_tokens=16 * (256 + 16 * 5)), 10).slices_per_step == 1
    assert batch_plan(config_with(scoring__batching__max_tokens=16 * (256 + 16 * 5) - 1), 10).slices_per_step is None


def test_the_loss_is_written_with_the_terms_that_are_on() -> None:
    written = [loss_formula(method(), 5) for method in METHODS]
    assert written == [
        "L = - sum 1/(N_seq T_i) min(rho A, clip(rho) A)",
        "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A)",
        "L = - sum 1/(N_seq T_max) min(rho A, clip(rho) A) + 0.3 (1/5) mean_groups CE(w, softmax(s))",
        "L = mean_groups CE(w, softmax(s))",
    ]
    scoring = config_with(
        scoring__kl_beta=0.04, scoring__entropy_coef=0.01, scoring__clipping__use_clip_objective=False,
        scoring__ratio_level=RatioLevel.sequence, scoring__reduction=Reduction.token,
    ).scoring  # fmt: skip
    assert loss_formula(scoring, 512) == (
        "L = - sum 1/N_tok rho_seq A + 0.3 mean_groups CE(w, softmax(s)) + 0.04 sum 1/N_tok KL_k3(pi, pi_ref)"
        " - 0.01 sum 1/N_tok H"
    )
    assert "0.3 (256/512) mean_groups" in loss_formula(MaxEntScoringConfig(), 512)


def test_the_default_run_says_only_that_the_clip_is_idle() -> None:
    reason = "with one update per rollout the ratio is 1"
    for method in (GrpoScoringConfig, DrGrpoScoringConfig, MaxEntScoringConfig):
        assert idle(method) == {"scoring.clipping.clip_range=0.2": reason}
    off = "scoring.clipping.use_clip_objective is false, so that nothing is clipped"
    assert idle(MaxEntListwiseScoringConfig) == {"scoring.clipping.clip_range=0.2": off}


def test_several_updates_per_rollout_make_the_clip_act() -> None:
    assert idle(optimization__num_iterations=2, scoring__clipping__clip_range_high=0.3) == {}
    one = idle(scoring__clipping__clip_range_high=0.3, scoring__clipping__clip_delta=4.0)
    assert set(one) == {
        "scoring.clipping.clip_range=0.2", "scoring.clipping.clip_range_high=0.3", "scoring.clipping.clip_delta=4.0",
    }  # fmt: skip


LINEAR = TargetScheduleConfig(kind=TargetSchedule.linear)
CLIP_OFF = {"scoring__clipping__use_clip_objective": False}
SAMPLER = {"scoring__behavior_logprobs_source": BehaviorSource.sampler}
MOVING = {"scoring__reference_sync__every_n_steps": 10, "scoring__kl_beta": 0.1}
NO_LISTWISE = {"scoring__weighting__listwise_coef": 0.0}


@pytest.mark.parametrize(
    ("cause", "setting", "value", "reason"),
    [
        (CLIP_OFF, "scoring__clipping__clip_objective_coef", 2.0, "use_clip_objective is false"),
        (CLIP_OFF, "scoring__clipping__clip_delta", 4.0, "use_clip_objective is false"),
        ({}, "scoring__clipping__clip_adv_baseline", 0.1, "only the clipped term of listwise methods"),
        ({}, "scoring__kl_estimator", KlEstimator.k1, "scoring.kl_beta is 0"),
        (NO_LISTWISE, "scoring__weighting__tau", 0.5, "listwise_coef is 0"),
        (NO_LISTWISE, "scoring__weighting__beta", 0.5, "listwise_coef is 0"),
        (NO_LISTWISE, "scoring__weighting__neutral_groups", NeutralGroups.keep, "listwise_coef is 0"),
        (NO_LISTWISE, "scoring__weighting__score_length", 64, "listwise_coef is 0"),
        ({}, "scoring__weighting__score_length", 64, "only score_mode=const divides by it, and the mode is sum"),
        ({"scoring__policy_entropy": False}, "scoring__policy_entropy_mode", EntropyMode.sample, "no entropy bonus"),
        ({"scoring__advantage": AdvantageKind.none}, "scoring__ratio_level", RatioLevel.sequence, "no advantage term"),
        ({"scoring__advantage": AdvantageKind.none}, "scoring__reduction", Reduction.token, "no token-wise term"),
        ({}, "scoring__reference_sync__every_n_steps", 10, "no coefficient pulls towards a reference"),
        ({}, "scoring__allow_stale_reference_logprobs", True, "no coefficient pulls towards a reference"),
        ({"scoring__kl_beta": 0.1}, "scoring__allow_stale_reference_logprobs", True, "the reference is frozen"),
        ({"scoring__kl_beta": 0.1}, "scoring__reference_sync__mixing", 0.5, "the reference is frozen"),
        (MOVING, "scoring__allow_stale_reference_logprobs", True, "with one update per rollout"),
        ({}, "scoring__mismatch__mode", MismatchMode.token_mask, "behavior_logprobs_source=model"),
        ({}, "scoring__mismatch__cap", 3.0, "behavior_logprobs_source=model"),
        (SAMPLER, "scoring__mismatch__cap", 3.0, "mode=bypass"),
        (
            SAMPLER | {"scoring__mismatch__mode": MismatchMode.sequence_truncate},
            "scoring__mismatch__floor", 0.1, "mode=sequence_truncate only caps",
        ),
        (
            SAMPLER | {"scoring__advantage": AdvantageKind.none, "scoring__mismatch__mode": MismatchMode.token_mask},
            "scoring__mismatch__cap", 3.0, "only the advantage term is corrected",
        ),
        ({"scoring__batching__max_tokens": 0}, "scoring__batching__slice_prefetch", 2, "a single slice"),
        (
            {"scoring__trl_reference_scoring": True},
            "scoring__batching__share_prompts", False, "scoring.trl_reference_scoring=true pads every sequence",
        ),
        ({"controller": KlControllerConfig()}, "controller__learning_rate", 0.5, "law=multiplicative does not use it"),
        ({"controller": KlControllerConfig(law=KlLaw.halving)}, "controller__clip", 0.5, "law=halving does not use it"),
        ({"controller": EntropyControllerConfig()}, "controller__schedule__final", 0.6, "schedule.kind=constant"),
        ({"controller": EntropyControllerConfig(schedule=LINEAR)}, "controller__schedule__peak_step", 9, "kind=linear"),
        ({}, "optimization__num_epochs", 3, "total_training_steps=200 decides"),
        ({"optimization__lr_scheduler_type": "constant"}, "optimization__warmup_steps", 50, "no warm-up"),
        ({"evaluation__enabled": False}, "evaluation__num_samples", 64, "evaluation.enabled is false"),
        ({"evaluation__enabled": False}, "evaluation__ks", [1], "evaluation.enabled is false"),
        ({"evaluation__enabled": False}, "evaluation__greedy", False, "evaluation.enabled is false"),
        ({"evaluation__enabled": False}, "evaluation__seed_eval__enabled", True, "evaluation.enabled is false"),
        ({}, "evaluation__seed_eval__num_seeds", 2, "evaluation.seed_eval.enabled is false"),
        ({}, "checkpoint__best_goal", MetricGoal.min, "checkpoint.best_metric is not set"),
        ({}, "checkpoint__early_stop_patience", 3, "checkpoint.best_metric is not set"),
        ({"logging__completions_every": 0}, "logging__completions_per_step", 8, "none is recorded"),
        ({}, "run__profile_steps", [4], "run.profile is false"),
        ({"data__shuffle": False}, "data__order_seed", 3, "rows keep their order"),
        ({"model__warm_start__enabled": False}, "model__warm_start__steps", 10, "warm_start.enabled is false"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_named_with_its_reason(
    cause: dict[str, object], setting: str, value: object, reason: str
) -> None:
    path = setting.replace("__", ".")
    found = idle(**cause, **{setting: value})
    assert reason in found.get(f"{path}={value}", "not named"), found
    assert not [sentence for sentence in idle(**cause) if sentence.startswith(f"{path}=")], "only when it was changed"


@pytest.mark.parametrize(
    ("cause", "setting", "value"),
    [
        ({"scoring__kl_beta": 0.1}, "scoring__kl_estimator", KlEstimator.k1),
        ({"generation__max_completion_len": 512}, "scoring__weighting__score_length", 64),
        ({}, "scoring__weighting__right_threshold", 0.5),
        (NO_LISTWISE, "scoring__weighting__right_threshold", 0.5),
        ({}, "scoring__weighting__tau", 0.5),
        ({"controller": KlControllerConfig()}, "scoring__kl_estimator", KlEstimator.k1),
        ({"controller": KlControllerConfig()}, "controller__clip", 0.1),
        ({"controller": KlControllerConfig(law=KlLaw.pi)}, "controller__gain", 0.1),
        ({"controller": EntropyControllerConfig(schedule=LINEAR)}, "controller__schedule__final", 0.6),
        ({"scoring__entropy_coef": 0.1, "scoring__policy_entropy": False}, "scoring__policy_entropy_mode", EntropyMode.sample),
        ({}, "scoring__ratio_level", RatioLevel.sequence),
        ({"scoring__advantage": AdvantageKind.none, "scoring__kl_beta": 0.1}, "scoring__reduction", Reduction.token),
        (MOVING, "scoring__reference_sync__mixing", 0.5),
        (MOVING | {"optimization__minibatches": 2}, "scoring__allow_stale_reference_logprobs", True),
        (SAMPLER | {"scoring__mismatch__mode": MismatchMode.token_mask}, "scoring__mismatch__floor", 0.1),
        ({}, "scoring__batching__score_slice", 16),
        ({}, "scoring__batching__slice_prefetch", 2),
        ({}, "scoring__batching__share_prompts", False),
        ({"scoring__batching__score_slice": 16}, "scoring__batching__slice_prefetch", 2),
        ({"optimization__total_training_steps": 0}, "optimization__num_epochs", 3),
        ({}, "optimization__warmup_steps", 50),
        ({}, "evaluation__num_samples", 64),
        ({}, "evaluation__temperature", 0.5),
        ({"evaluation__seed_eval__enabled": True}, "evaluation__seed_eval__num_seeds", 2),
        ({"checkpoint__best_metric": "eval/pass@1"}, "checkpoint__best_goal", MetricGoal.min),
        ({}, "logging__completions_per_step", 8),
        ({}, "model__warm_start__steps", 10),
    ],
)  # fmt: skip
def test_a_setting_that_acts_is_not_named(cause: dict[str, object], setting: str, value: object) -> None:
    path = setting.replace("__", ".")
    assert not [sentence for sentence in idle(**cause, **{setting: value}) if sentence.startswith(f"{path}=")]


def test_the_summary_tells_what_will_run() -> None:
    config = config_with(scoring__kl_estimator=KlEstimator.k1)
    facts = {"train_rows": 3500, "eval_rows": 96, "dropped_prompts": 4, "device": "cpu", "run_dir": "outputs/x"}
    lines = [" ".join(line.split()) for line in startup_summary(config, facts).splitlines()]
    for expected in (
        "method: maxent",
        "credit A = r - mean(r) over the group",
        "ratio and clip per token, clipped to [1 - 0.2, 1 + 0.2]; behaviour log-probs from model",
        "sequence score sum: s = sum of log-probs, from auto with max_completion_len=5",
        "reference none, from auto",
        "prompts per step 16",
        "sequences per step 256",
        "steps per epoch 219",
        "steps in all 200",
        "slices per step by token budget: max_tokens=768",
        "training prompts 3500",
        "held-out prompts 96",
        "dropped prompts 4",
        "run: model tiny, seed 0",
        "device cpu",
        "has no effect:",
        "scoring.kl_estimator=k1: scoring.kl_beta is 0, so that no KL is added to the loss",
    ):
        assert expected in lines


@pytest.mark.parametrize("method", METHODS)
def test_columns_of_a_section_are_aligned(method: type) -> None:
    text = startup_summary(config_with(method, scoring__batching__max_tokens=0), {"train_rows": 10, "eval_rows": 2})
    batch = text[text.index("batch") :].split("\n\n")[0].splitlines()[1:]
    assert len({len(line) for line in batch}) == 1


def test_a_fact_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="fact train_rows is a str"):
        startup_summary(config_with(), {"train_rows": "many"})


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        (FixedControllerConfig(), []),
        (
            EntropyControllerConfig(schedule=TargetScheduleConfig(kind=TargetSchedule.peak)),
            [
                "controller: entropy",
                "moves scoring.weighting.tau from 0.1, in [0.001, 10]",
                "target mean entropy of the target weights = low + f (high - low), f = 0.5 to 0.8 at step 50, to 0.3 at step 200",
                "law log tau += 0.05 (target - average at rate 0.9), after 20 steps of warm-up",
            ],
        ),
        (
            EffectiveSizeControllerConfig(target_size=6.0),
            [
                "controller: effective_size",
                "moves scoring.weighting.tau from 0.1, in [0.001, 10]",
                "target mean exp(entropy of the target weights) = 6 completions",
                "law tau solved for each step's groups",
            ],
        ),
        (
            KlControllerConfig(law=KlLaw.additive),
            [
                "controller: kl",
                "moves scoring.kl_beta from 0, in [0, 10]",
                "target mean token KL to the reference = 0.05 nats",
                "law additive",
            ],
        ),
    ],
    ids=["fixed", "entropy", "effective_size", "kl"],
)
def test_the_summary_says_what_is_adapted_and_to_what(controller: FixedControllerConfig, expected: list[str]) -> None:
    text = startup_summary(config_with(controller=controller), {"train_rows": 10, "eval_rows": 2})
    sections = [part.splitlines() for part in text.split("\n\n")]
    found = [section for section in sections if section[0].startswith("controller:")]
    assert [" ".join(line.split()) for section in found for line in section] == expected
    assert ("+ kl_beta sum" in text) == isinstance(controller, KlControllerConfig)
