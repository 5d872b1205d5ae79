"""Every rule of the gates, by the sentence it prints."""

from functools import cache

import pytest
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config.compose import compose_config
from maxent_grpo.config.contradictions import RULES, contradictions, warnings
from maxent_grpo.config.contradictions_controller import CONTROLLER_RULES
from maxent_grpo.config.contradictions_credit import CREDIT_RULES
from maxent_grpo.config.contradictions_meta import meta_rules
from maxent_grpo.config.contradictions_sources import SOURCE_RULES
from maxent_grpo.config.data import DataConfig
from maxent_grpo.config.load import check, load_config
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.types.choices import ExactFigures


@cache
def composed(scoring: str) -> DictConfig:
    """The defaults under a scoring option; further overrides may follow its name, after a space."""
    return compose_config(f"scoring={scoring}".split()).config


def problems_of(settings: dict[str, object], scoring: str = "maxent") -> list[str]:
    """The sentences for the default configuration with these settings changed."""
    config = composed(scoring).copy()
    for path, value in settings.items():
        OmegaConf.update(config, path, value, force_add=True)
    try:
        check(config)
    except ConfigError as error:
        return error.problems
    return []


def problems_on_the_command_line(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(list(overrides))
    return caught.value.problems


METHODS = (
    "grpo, dr_grpo, maxent, maxent_listwise, bnpo, dapo, rloo, reinforce_pp, gspo, cispo, sapo, maxent_centered, maxent_is, "
    "maxent_cond, soft, gvpo, xdr, dr_grpo_scaled, seed_grpo, token_maxent, uniqueness, unlikeliness, passk, clip_cov, kl_cov, "
    "high_entropy_tokens"
)

COMMAND_LINE = {
    ("+scoring.clipping.clip_rnge=0.3", "+sede=3"): [
        "scoring.clipping.clip_rnge: no such setting; did you mean scoring.clipping.clip_range?",
        "sede: no such setting; did you mean seed?",
    ],
    ("scoring.clipping.clip_rnge=0.3", "sede=3", "scoring=maxnt", "scoring.clipping.clip_range=abc", "seed"): [
        f"scoring=maxnt: no such option; scoring has {METHODS}; did you mean scoring=maxent?",
        "seed: cannot be read as setting=value (missing EQUAL at '<EOF>')",
        "scoring.clipping.clip_rnge: no such setting; did you mean scoring.clipping.clip_range?",
        "sede: no such setting; did you mean seed?",
        "scoring.clipping.clip_range=abc: must be a number",
    ],
    ("scoring.kl_beta.foo=1", "learnig_rate=1", "zzz=1"): [
        "scoring.kl_beta.foo: no such setting; did you mean scoring.kl_beta?",
        "learnig_rate: no such setting; did you mean optimization.learning_rate?",
        "zzz: no such setting; docs/config.md lists them all",
    ],
    ("scoring.reduction=tokn", "data.num_train=null", "data.num_eval=3.5", "logging.report=7.5", "evaluation.ks=3"): [
        "scoring.reduction=tokn: must be one of token, sequence, constant, micro_batch; did you mean token?",
        "data.num_train=null: must be an integer",
        "data.num_eval=3.5: must be an integer",
        "logging.report=7.5: must be true or false",
        "evaluation.ks=3: must be a list, [...], each entry an integer",
    ],
    ("experiment=tiny_gpo",): [
        "experiment=tiny_gpo: no such option; experiment has tiny_countdown, tiny_dr_grpo, tiny_grpo, tiny_maxent, tiny_maxent_listwise, "
        "tiny_offpolicy, trl_defaults; did you mean experiment=tiny_grpo?"
    ],
    ("+scoring=grpo", "+seed=3"): [
        "scoring is chosen already; write scoring=grpo without the +",
        "seed is set already; write seed=3 without the +",
    ],
    ("reward.terms.format=0.1",): [
        "reward.terms.format: reward.terms has no entry of that name yet; add one with +reward.terms.format=0.1"
    ],
    ("seed=1,2",): ["seed=1,2: several values make a sweep, which needs -m; a list is written [a,b]"],
    ("~scoring",): [f"scoring: no option is chosen; write scoring= and one of {METHODS}"],
    ("~seed",): ["seed: was removed; a setting can be changed, not removed"],
    ("seed=???",): ["seed: has no default and is not set; write seed=..."],
    ("run.dir=${nope}",): ["run.dir: cannot be resolved (Interpolation key 'nope' not found)"],
    ("scoring=maxent", "scoring.weighting.tau=0", "scoring.weighting.beta=0", "generation.num_generations=1"): [
        "scoring=maxent needs scoring.weighting.tau + scoring.weighting.beta > 0 (got 0.0 + 0.0): the weight exponent "
        "1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective",
        "generation.num_generations=1 gives every completion the advantage 0: use at least 2",
    ],
}


@pytest.mark.parametrize("overrides", COMMAND_LINE, ids=" ".join)
def test_every_bad_override_gets_its_sentence(overrides: tuple[str, ...]) -> None:
    assert problems_on_the_command_line(*overrides) == COMMAND_LINE[overrides]


RULE_SENTENCES: list[tuple[dict[str, object], str, list[str]]] = [
    (
        {"scoring.weighting.tau": 0.0, "scoring.weighting.listwise_coef": 0.3},
        "grpo",
        [
            "scoring=grpo with scoring.weighting.listwise_coef=0.3 needs scoring.weighting.tau + scoring.weighting.beta > 0 "
            "(got 0.0 + 0.0): the weight exponent 1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective"
        ],
    ),
    (
        {"scoring.weighting.q_epsilon": 0.125},
        "maxent",
        [
            "scoring.weighting.q_epsilon=0.125 with generation.num_generations=16: the floors of a group add up to 2, which "
            "leaves nothing of q; use scoring.weighting.q_epsilon below 0.0625"
        ],
    ),
    (
        {"scoring.advantage": "none"},
        "grpo",
        [
            "scoring.advantage=none with scoring.weighting.listwise_coef=0.0 leaves no term that follows the reward: set "
            "scoring.weighting.listwise_coef above 0 or scoring.advantage=group_mean"
        ],
    ),
    (
        {"scoring.weighting.score_mode": "mean"},
        "maxent",
        [
            "scoring.weighting.score_mode=mean with scoring.weighting.listwise_coef=0.3 and scoring.advantage=group_mean: a "
            "mean over tokens changes the balance of the two terms with each completion's length; use "
            "scoring.weighting.score_mode=const"
        ],
    ),
    (
        {"scoring.clipping.clip_range_high": 0.1},
        "grpo",
        [
            "scoring.clipping.clip_range_high=0.1 is below scoring.clipping.clip_range=0.2: the upper distance must not be "
            "the smaller one; use scoring.clipping.clip_range_high=0.2 or more, or null for the same"
        ],
    ),
    (
        {"scoring.clipping.clip_delta": 1.2},
        "grpo",
        [
            "scoring.clipping.clip_delta=1.2 caps ratios inside the clip range, which ends at 1.2; use "
            "scoring.clipping.clip_delta above 1.2, or null"
        ],
    ),
    (
        {"scoring.clipping.clip_objective_coef": 0.5},
        "maxent_listwise",
        [
            "scoring.clipping.clip_objective_coef=0.5 is the factor of the clipped term, which "
            "scoring.clipping.use_clip_objective=false leaves out: set scoring.clipping.use_clip_objective=true or "
            "scoring.clipping.clip_objective_coef=1"
        ],
    ),
    (
        {"scoring.reference_logprobs_source": "none", "scoring.kl_beta": 0.1, "scoring.weighting.beta": 0.2},
        "maxent",
        [
            "scoring.kl_beta=0.1 needs reference log-probabilities, which scoring.reference_logprobs_source=none leaves out: "
            "use scoring.reference_logprobs_source=model or scoring.kl_beta=0",
            "scoring.weighting.beta=0.2 needs reference log-probabilities, which scoring.reference_logprobs_source=none "
            "leaves out: use scoring.reference_logprobs_source=model or scoring.weighting.beta=0",
        ],
    ),
    (
        {"scoring.policy_entropy": False, "scoring.entropy_coef": 0.1, "scoring.policy_entropy_bonus_coef": 0.2},
        "grpo",
        [
            "scoring.entropy_coef=0.1 rewards an entropy that scoring.policy_entropy=false does not measure: set "
            "scoring.policy_entropy=true or scoring.entropy_coef=0",
            "scoring.policy_entropy_bonus_coef=0.2 rewards an entropy that scoring.policy_entropy=false does not measure: "
            "set scoring.policy_entropy=true or scoring.policy_entropy_bonus_coef=0",
        ],
    ),
    (
        {"scoring.policy_entropy_mode": "sample", "scoring.entropy_coef": 0.1},
        "grpo",
        [
            "scoring.entropy_coef=0.1 with scoring.policy_entropy_mode=sample: the drawn token's log-probability has no "
            "entropy gradient; use scoring.policy_entropy_mode=exact"
        ],
    ),
    (
        {"scoring.mismatch.floor": 3.0},
        "grpo",
        [
            "scoring.mismatch.floor=3.0 exceeds scoring.mismatch.cap=2.0: no weight lies between; use "
            "scoring.mismatch.floor=2.0 or less"
        ],
    ),
    (
        {"scoring.mismatch.mode": "token_mask"},
        "grpo",
        [
            "scoring.mismatch.mode=token_mask corrects the sampler's log-probabilities, which "
            "scoring.behavior_logprobs_source=model does not use: set scoring.behavior_logprobs_source=sampler or "
            "scoring.mismatch.mode=bypass"
        ],
    ),
    (
        {
            "generation.penalty.gen_presence_penalty": 0.5,
            "generation.penalty.gen_frequency_penalty": 0.25,
            "generation.penalty.gen_repetition_penalty": 1.5,
        },
        "grpo",
        [
            f"generation.penalty.{name}={value} samples from another distribution than scoring sees, so the importance ratio "
            f"would be wrong: set scoring.behavior_logprobs_source=sampler with scoring.mismatch.mode=token_truncate, or "
            f"generation.penalty.{name}=null"
            for name, value in (
                ("gen_presence_penalty", 0.5),
                ("gen_frequency_penalty", 0.25),
                ("gen_repetition_penalty", 1.5),
            )
        ],
    ),
    (
        {"generation.top_p": 0.9, "optimization.num_iterations": 2},
        "grpo",
        [
            "generation.top_p=0.9 with optimization.minibatches=1 and optimization.num_iterations=2: once an update has moved "
            "the weights, truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
            "generation.top_p=1, or 1 for both"
        ],
    ),
    (
        {"generation.num_generations": 1},
        "maxent_listwise",
        ["generation.num_generations=1 gives every completion the weight 1 in its group: use at least 2"],
    ),
    (
        {"generation.temperature": 0.0},
        "grpo",
        [
            "generation.temperature=0.0 is greedy: the 16 completions of a prompt (generation.num_generations) would be "
            "equal and teach nothing; use generation.temperature=1"
        ],
    ),
    (
        {"generation.penalty.gen_best_of": 4},
        "grpo",
        [
            "generation.penalty.gen_best_of=4: generation=local does not sample more than it keeps; write "
            "generation.penalty.gen_best_of=null"
        ],
    ),
    (
        {"generation.allowed_tokens": ["R", ""], "generation.penalty.gen_stop_sequences": [""]},
        "grpo",
        [
            "generation.allowed_tokens=['R', ''] holds an empty text, which stands for no token: remove it, or write "
            "generation.allowed_tokens=[]",
            "generation.penalty.gen_stop_sequences=[''] holds an empty text, which stands for no token: remove it, or write "
            "generation.penalty.gen_stop_sequences=null",
        ],
    ),
    (
        {"model.hidden_size": 100},
        "grpo",
        [
            "model.hidden_size=100 with model.num_heads=4: an attention head must be 32 or 64 wide; use "
            "model.hidden_size=128 or model.hidden_size=256"
        ],
    ),
    (
        {"data.num_vertices": 3, "data.num_hidden": 4},
        "grpo",
        [
            "data.num_hidden=4 exceeds data.num_vertices=3: only vertices of the graph can be hidden; use "
            "data.num_hidden=3 or less"
        ],
    ),
    (
        {"data.min_modes": 11},
        "grpo",
        ["data.min_modes=11 exceeds data.max_modes=10: no problem could be kept; use data.min_modes=10 or less"],
    ),
    (
        {"data.max_modes": 82},
        "grpo",
        [
            "data.max_modes=82 exceeds the 81 answers there are with data.num_hidden=4; use data.max_modes=81 or less",
        ],
    ),
    (
        {"generation.max_completion_len": 4},
        "grpo",
        [
            "generation.max_completion_len=4 is too short for data.num_hidden=4: an answer is one token for each hidden "
            "vertex and the end token, so none could finish; use generation.max_completion_len=5 or more"
        ],
    ),
    (
        {"data.min_number": 13, "data.min_target": 101, "data.min_modes": 11, "generation.max_completion_len": 11},
        "grpo data=countdown",
        [
            "data.min_number=13 exceeds data.max_number=12: no numbers are left to draw from; use data.min_number=12 or less",
            "data.min_target=101 exceeds data.max_target=100: no targets are left to draw from; use data.min_target=100 or "
            "less",
            "data.min_modes=11 exceeds data.max_modes=10: no problems are left to draw from; use data.min_modes=10 or less",
        ],
    ),
    (
        {},
        "grpo data=countdown",
        [
            "generation.max_completion_len=5 is too short for data.num_numbers=3 and data.max_number=12: the longest answer "
            "takes 11 tokens, the end token included; use generation.max_completion_len=11 or more, as "
            "experiment=tiny_countdown does"
        ],
    ),
    (
        {"data.num_numbers": 4, "generation.max_completion_len": 16, "generation.max_prompt_len": 17},
        "grpo data=countdown",
        [
            "generation.max_prompt_len=17 is too short for data.num_numbers=4 and data.max_number=12: the longest question "
            "takes 18 tokens, and without one of its numbers it has no answer; use generation.max_prompt_len=18 or more"
        ],
    ),
    (
        {"optimization.total_training_steps": 0, "optimization.num_epochs": 0},
        "grpo",
        [
            "optimization.total_training_steps=0 leaves the length to optimization.num_epochs=0, so nothing would be "
            "trained: set one of them above 0"
        ],
    ),
    (
        {"optimization.total_training_steps": 5, "evaluation.every_n_steps": 5},
        "grpo",
        [
            "optimization.warmup_steps=5 is not below optimization.total_training_steps=5: the learning rate would never "
            "reach its peak; use optimization.warmup_steps=4 or less"
        ],
    ),
    (
        {"optimization.lr_scheduler_type": "cosin"},
        "grpo",
        [
            "optimization.lr_scheduler_type=cosin: no such schedule, did you mean cosine?; choose one of linear, cosine, "
            "cosine_with_restarts, polynomial, constant, constant_with_warmup, inverse_sqrt"
        ],
    ),
    (
        {"optimization.lr_scheduler_type": "reduce_lr_on_plateau"},
        "grpo",
        [
            "optimization.lr_scheduler_type=reduce_lr_on_plateau: this schedule needs a measured value at each step; choose "
            "one of linear, cosine, cosine_with_restarts, polynomial, constant, constant_with_warmup, inverse_sqrt"
        ],
    ),
    (
        {"evaluation.ks": [0, 1, 64]},
        "grpo",
        [
            "evaluation.ks=[0, 1, 64]: 0, 64 is not between 1 and evaluation.num_samples=32, so pass@k cannot be estimated; "
            "draw more samples or choose smaller k"
        ],
    ),
    (
        {"evaluation.temperature": 0.0},
        "grpo",
        [
            "evaluation.temperature=0.0 would draw one and the same completion evaluation.num_samples=32 times; "
            "evaluation.greedy=true takes it once: use a temperature above 0, or evaluation.num_samples=1 with "
            "evaluation.ks=[1]"
        ],
    ),
    (
        {"evaluation.seed_eval.enabled": True, "evaluation.seed_eval.template": " [seed]"},
        "grpo",
        [
            "evaluation.seed_eval.template= [seed] does not hold {seed}: the prompt would be the same under every seed, so "
            "that there is nothing to tell apart; write for example 'evaluation.seed_eval.template=\" [seed={seed}]\"'"
        ],
    ),
    (
        {"checkpoint.early_stop_patience": 3},
        "grpo",
        [
            "checkpoint.early_stop_patience=3 needs a metric to watch: set checkpoint.best_metric=eval/pass@1, or "
            "checkpoint.early_stop_patience=null"
        ],
    ),
    (
        {"checkpoint.best_metric": "reward/mean"},
        "grpo",
        [
            "checkpoint.best_metric=reward/mean: only evaluation metrics, named eval/..., choose the best checkpoint; write "
            "for example checkpoint.best_metric=eval/pass@1"
        ],
    ),
    (
        {"checkpoint.best_metric": "eval/pass@1", "evaluation.enabled": False},
        "grpo",
        [
            "checkpoint.best_metric=eval/pass@1 is measured by evaluations, which evaluation.enabled=false switches off: set "
            "evaluation.enabled=true or checkpoint.best_metric=null"
        ],
    ),
    (
        {"reward.terms": {"tsk": 1.0}},
        "grpo",
        ["reward.terms.tsk: no such term; there are task, format, exact; did you mean task?"],
    ),
    (
        {"reward.terms": {"task": float("nan")}},
        "grpo",
        ["reward.terms.task=nan: a weight must be finite"],
    ),
    (
        {"reward.terms": {"task": 0.0}, "reward.on_error": {"format": "stop"}},
        "grpo",
        [
            "reward.terms has no term with a weight other than 0, so every utility would be 0: set reward.terms.task=1",
            "reward.on_error.format=stop: reward.terms has no format; it has task",
        ],
    ),
    (
        {
            "reward.functions": {"task": "json:loads", "mine": "json.loads", "idle": "json:loads"},
            "reward.terms.mine": 1.0,
        },
        "grpo",
        [
            "reward.functions.task: task is a built-in term; give your function another name",
            "reward.functions.mine=json.loads: write it as package.module:function",
            "reward.functions.idle has no weight, so it would never be called: add +reward.terms.idle=1",
        ],
    ),
]


@pytest.mark.parametrize(("settings", "scoring", "sentences"), RULE_SENTENCES, ids=lambda value: str(value)[:60])
def test_a_contradiction_prints_its_sentence(settings: dict[str, object], scoring: str, sentences: list[str]) -> None:
    assert problems_of(settings, scoring) == sentences


@pytest.mark.parametrize("scoring", METHODS.split(", "))
def test_the_defaults_contradict_nothing(scoring: str) -> None:
    assert problems_of({}, scoring) == []


def test_every_rule_speaks_in_some_case_above() -> None:
    elsewhere = {*CREDIT_RULES, *CONTROLLER_RULES, *SOURCE_RULES, meta_rules}  # in files of their own
    silent = {rule.__name__ for rule in RULES if rule not in elsewhere}
    silent -= {"_resume", "_exact", "_advantage_function"}  # have tests of their own: they need files and other data
    for settings, scoring, _ in RULE_SENTENCES:
        config = composed(scoring).copy()
        for path, value in settings.items():
            OmegaConf.update(config, path, value, force_add=True)
        root = OmegaConf.to_object(config)
        silent -= {rule.__name__ for rule in RULES if list(rule(root))}
    assert silent == set()


@pytest.mark.parametrize(
    "settings",
    [
        {"scoring.behavior_logprobs_source": "sampler", "scoring.mismatch.mode": "token_truncate"},
        {"generation.penalty.gen_presence_penalty": 0.0},
        {
            "scoring.advantage": "none",
            "scoring.weighting.listwise_coef": 1.0,
            "scoring.clipping.use_clip_objective": False,
        },
    ],
)
def test_penalties_are_allowed_where_no_ratio_is_spoilt(settings: dict[str, object]) -> None:
    assert problems_of({"generation.penalty.gen_presence_penalty": 0.5, **settings}, "grpo") == []


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation.temperature": 0.0, "evaluation.num_samples": 1, "evaluation.ks": [1]},
        {"evaluation.seed_eval.template": "no mark, but switched off"},
        {"evaluation.exact": "always"},
    ],
)
def test_evaluations_that_can_be_made_are_allowed(settings: dict[str, object]) -> None:
    assert problems_of(settings) == []


def test_exact_figures_need_a_task_that_lists_its_answers() -> None:
    root = check(composed("maxent"))
    root.data = DataConfig()
    root.evaluation.exact = ExactFigures.always
    assert [sentence for sentence in contradictions(root) if "evaluation" in sentence] == [
        "evaluation.exact=always needs a task that can list all of its answers, which only data=coloring can: use "
        "evaluation.exact=auto or data=coloring"
    ]


def test_the_command_that_a_missing_seed_mark_suggests_is_accepted() -> None:
    root = load_config(["evaluation.seed_eval.enabled=true", 'evaluation.seed_eval.template=" [seed={seed}]"'])
    assert root.evaluation.seed_eval.template == " [seed={seed}]"


def test_a_value_out_of_range_is_named_once() -> None:
    assert problems_of({"scoring.weighting.tau": float("nan"), "scoring.clipping.clip_range": 7.0}) == [
        "scoring.weighting.tau=nan: must be at least 0",
        "scoring.clipping.clip_range=7.0: must be above 0 and below 1",
    ]


def test_intervals_longer_than_the_run_are_warned_about() -> None:
    config = composed("maxent").copy()
    OmegaConf.update(config, "optimization.total_training_steps", 20)
    OmegaConf.update(config, "checkpoint.every_n_steps", 30)
    assert warnings(check(config)) == [
        "evaluation.every_n_steps=50 is longer than optimization.total_training_steps=20: the run evaluates only before and "
        "after training",
        "checkpoint.every_n_steps=30 is longer than optimization.total_training_steps=20: the run saves only the last step",
    ]
