"""Every rule of the gates, by the sentence it prints."""

from functools import cache

import pytest
from omegaconf import DictConfig, OmegaConf
from support.rule_sentences import RULE_SENTENCES
from support.settings import changed, checked

from maxent_grpo.config.compose import compose_config
from maxent_grpo.config.contradictions import RULES, contradictions, warnings
from maxent_grpo.config.contradictions_controller import CONTROLLER_RULES
from maxent_grpo.config.contradictions_credit import CREDIT_RULES
from maxent_grpo.config.contradictions_generation import vllm_rules
from maxent_grpo.config.contradictions_meta import meta_rules
from maxent_grpo.config.contradictions_parallel import PARALLEL_RULES
from maxent_grpo.config.contradictions_prompts import PROMPT_RULES
from maxent_grpo.config.contradictions_reward import REWARD_RULES
from maxent_grpo.config.contradictions_sources import SOURCE_RULES
from maxent_grpo.config.data import DataConfig
from maxent_grpo.config.load import check, load_config
from maxent_grpo.config.presets import config_directory
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


PRESETS = ", ".join(sorted(file.stem for file in (config_directory() / "experiment").glob("*.yaml")))
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
        f"experiment=tiny_gpo: no such option; experiment has {PRESETS}; did you mean experiment=tiny_grpo?"
    ],
    ("+scoring=grpo", "+seed=3"): [
        "scoring is chosen already; write scoring=grpo without the +",
        "seed is set already; write seed=3 without the +",
    ],
    ("reward.terms.format=much",): ["reward.terms.format=much: must be a number"],
    ("run.dir=~/mine",): [
        "run.dir=~/mine: cannot be read as setting=value (token recognition error at: '~'); the shell leaves ~ as it is behind a =: "
        "write run.dir=$HOME/mine"
    ],
    ("checkpoint.resume_from=runs/0-scoring=maxent",): [
        "checkpoint.resume_from=runs/0-scoring=maxent: cannot be read as setting=value (mismatched input '=' expecting <EOF>); a value "
        "with such characters is put in quotes twice: 'checkpoint.resume_from=\"runs/0-scoring=maxent\"'"
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


@pytest.mark.parametrize(("settings", "scoring", "sentences"), RULE_SENTENCES, ids=lambda value: str(value)[:60])
def test_a_contradiction_prints_its_sentence(settings: dict[str, object], scoring: str, sentences: list[str]) -> None:
    assert problems_of(settings, scoring) == sentences


@pytest.mark.parametrize(
    "scoring",
    # that every option passes the gates is also what test_every_option_loads_as_its_dataclass shows, on the command line
    [pytest.param(name, marks=() if at % 9 == 0 else pytest.mark.slow) for at, name in enumerate(METHODS.split(", "))],
)
def test_the_defaults_contradict_nothing(scoring: str) -> None:
    assert problems_of({}, scoring) == []


def test_every_rule_speaks_in_some_case_above() -> None:
    elsewhere = {
        *CREDIT_RULES,
        *CONTROLLER_RULES,
        *PARALLEL_RULES,
        *PROMPT_RULES,
        *REWARD_RULES,
        *SOURCE_RULES,
        meta_rules,
        vllm_rules,
    }  # in files of their own
    silent = {rule.__name__ for rule in RULES if rule not in elsewhere}
    # have tests of their own: they need files, packages or other data
    silent -= {"_resume", "_exact", "_advantage_function", "_flash_attention"}
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


def test_defaults_of_the_small_model_are_warned_about_where_a_model_is_pretrained() -> None:
    words = ["model=hf", "model.name=somebody/model", "data=reasoning_gym"]
    length, rate = (
        "generation.max_completion_len=5 is the default, for answers of the built-in problems: a pretrained model is cut off there; "
        "set what an answer of yours takes, such as 512",
        "optimization.learning_rate=0.0005 is the default, for a model made from nothing: for all weights of a pretrained one 1e-6 to "
        "2e-5 is usual",
    )
    said = [
        warnings(changed(*words, *more))
        for more in ((), ("optimization.learning_rate=1e-5",), ("model.lora.enabled=true",))
    ]
    assert said == [[length, rate], [length], [length]]
    assert warnings(changed(*words, "generation.max_completion_len=64", "optimization.learning_rate=1e-5")) == []


def test_a_metric_to_watch_is_one_that_evaluations_take() -> None:
    assert problems_of({"checkpoint.best_metric": "eval/pass@3"}) == [
        "checkpoint.best_metric=eval/pass@3: evaluation.ks=[1, 8] does not have 3; add it there, or choose one of these"
    ]


def test_without_evaluations_none_is_said_to_come_too_seldom() -> None:
    assert (
        warnings(
            checked("evaluation.enabled=false", "optimization.total_training_steps=20", "checkpoint.every_n_steps=5")
        )
        == []
    )


def test_intervals_longer_than_the_run_are_warned_about() -> None:
    config = composed("maxent").copy()
    OmegaConf.update(config, "optimization.total_training_steps", 20)
    OmegaConf.update(config, "checkpoint.every_n_steps", 30)
    assert warnings(check(config)) == [
        "evaluation.every_n_steps=50 is longer than optimization.total_training_steps=20: the run evaluates only before and "
        "after training",
        "checkpoint.every_n_steps=30 is longer than optimization.total_training_steps=20: the run saves only the last step",
    ]
