"""What reward terms cannot be combined with, each with its exact sentence, and what is only warned about."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from omegaconf import OmegaConf

from maxent_grpo.config.compose import compose_config
from maxent_grpo.config.contradictions import warnings
from maxent_grpo.config.contradictions_reward import REWARD_RULES
from maxent_grpo.config.load import load_config
from maxent_grpo.config.reward import MathRewardConfig, TermsRewardConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.rewards.term_settings import FormatStyle

NAMES = "task, format, exact, numeric, choice, math, regex, length, overlong, repetition"
TERM = "reward.normalize=term"

SENTENCES: dict[tuple[str, ...], list[str]] = {
    ("~reward.terms.task", "reward.terms.tsk=1"): [f"reward.terms.tsk: no such term; there are {NAMES}; did you mean task?"],
    ("reward.terms.task=nan",): ["reward.terms.task=nan: a weight must be finite"],
    ("reward.terms.task=0", "reward.on_error.format=stop"): [
        "reward.terms has no term with a weight other than 0, so every utility would be 0: set reward.terms.task=1",
        "reward.on_error.format=stop: reward.terms has no format; it has task",
    ],
    ("reward=terms",): [
        "reward.terms has no term with a weight other than 0, so every utility would be 0: set reward.terms.task=1"
    ],
    ("reward.time_limits.task=0", "reward.time_limits.math=2"): [
        "reward.time_limits.task=0.0: must be above 0 and finite",
        "reward.time_limits.math=2.0: reward.terms has no math; it has task",
    ],
    ("reward.functions.task=json:loads", "reward.functions.mine=json.loads", "reward.terms.mine=1",
     "reward.functions.idle=json:loads", "reward.styles.other=verl"): [
        "reward.functions.task: task is a built-in term; give your function another name",
        "reward.functions.mine=json.loads: write it as package.module:function or folder/file.py:function",
        "reward.functions.idle has no weight, so it would never be called: add reward.terms.idle=1",
        "reward.styles.other=verl: says how a function of yours is called, and reward.functions has no other; it has task, "
        "mine, idle",
    ],
    ("reward.functions.mine=nowhere/rewards.py:mine", "reward.terms.mine=1"): [
        "reward.functions.mine=nowhere/rewards.py:mine: there is no file nowhere/rewards.py; name one, relative to where the "
        "run is started"
    ],
    ("reward.terms.regex=1",): [
        "reward.terms.regex needs a pattern, and reward.regex.pattern has none: set it, or ~reward.terms.regex"
    ],
    ("reward.terms.regex=1", "reward.regex.pattern='[a'"): [
        "reward.regex.pattern=[a: is no pattern (unterminated character set at position 2); mend it"
    ],
    ("reward.terms.overlong=1", "reward.overlong.buffer=6"): [
        "reward.overlong.buffer=6 exceeds its limit of 5 tokens: no completion could be free of the punishment; use "
        "reward.overlong.buffer=5 or less"
    ],
    ("reward.terms.overlong=1", "reward.overlong.limit=20", "reward.overlong.buffer=4"): [
        "reward.overlong.limit=20 with a buffer of 4 punishes completions of more than 16 tokens, and "
        "generation.max_completion_len=5 samples none: use reward.overlong.limit=5 or null"
    ],
    ("reward.terms.overlong=0.5", "scoring.shaping.overlong_buffer=2"): [
        "reward.terms.overlong=0.5 together with scoring.shaping.overlong_buffer=2 punishes one length twice: use "
        "scoring.shaping.overlong_buffer=0, or ~reward.terms.overlong"
    ],
    ("scoring=passk", "reward.normalize=sum"): [
        "reward.normalize=sum changes how much a completion is worth, and this method looks only at which are right "
        "(scoring.advantage=pass_at_k, scoring.group_loss=cross_entropy): use reward.normalize=none, or "
        "scoring.advantage=group_mean"
    ],
    ("scoring=grpo", TERM): [
        "reward.normalize=term with scoring.advantage=group_std would divide by a deviation twice: use "
        "scoring.advantage=group_mean, or reward.normalize=none"
    ],
    ("scoring=uniqueness", TERM, "scoring.policy_entropy_bonus_coef=0.1", "scoring.shaping.overlong_buffer=2"): [
        "scoring.shaping.kind=uniqueness reshapes the sum of the terms by its sign and size, which reward.normalize=term never "
        "takes: use scoring.shaping.kind=none, or reward.normalize=sum",
        "scoring.shaping.overlong_buffer=2 is added to that sum, which reward.normalize=term never takes: use "
        "scoring.shaping.overlong_buffer=0, and reward.terms.overlong=1 for the punishment, or reward.normalize=sum",
        "scoring.policy_entropy_bonus_coef=0.1 is added to that sum, which reward.normalize=term never takes: use "
        "scoring.policy_entropy_bonus_coef=0.0, or reward.normalize=sum",
    ],
}  # fmt: skip


@pytest.mark.parametrize("overrides", SENTENCES, ids=lambda words: " ".join(words)[:60])
def test_rewards_that_cannot_work_are_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(list(overrides))
    assert caught.value.problems == SENTENCES[overrides]


def test_every_rule_about_rewards_speaks_above() -> None:
    silent = set(REWARD_RULES)
    for overrides in SENTENCES:
        root = cast(RootConfig, OmegaConf.to_object(compose_config(list(overrides)).config))
        silent -= {rule for rule in REWARD_RULES if list(rule(root))}
    assert silent == set()


@pytest.mark.parametrize(
    "overrides",
    [
        ("scoring=dr_grpo", TERM),
        ("scoring=maxent", TERM, "reward.normalize_by=batch"),
        ("scoring=maxent_listwise", "reward.normalize=sum"),
        ("scoring=uniqueness", "scoring.advantage=group_mean", "reward.normalize=sum"),
        ("scoring=rloo", TERM, "reward.terms.overlong=1"),
        ("reward.terms.regex=0.1", r"reward.regex.pattern='(?<=\d)[A-Z]++'"),
    ],
)
def test_rewards_that_can_work_are_not(overrides: tuple[str, ...]) -> None:
    assert load_config(list(overrides)) is not None


def test_drawing_groups_again_by_their_sums_is_warned_about() -> None:
    drawn = load_config(["scoring=dapo", "scoring.advantage=group_mean", TERM, "scoring.shaping.overlong_buffer=0"])
    assert [sentence for sentence in warnings(drawn) if TERM in sentence] == [
        "scoring.dynamic_sampling.enabled=true draws groups again whose weighted sums are equal, also where "
        "reward.normalize=term would tell their completions apart by single terms"
    ]


def test_the_math_rewards_are_equality_and_a_tenth_for_a_box() -> None:
    reward = load_config(["reward=math"]).reward
    assert isinstance(reward, MathRewardConfig)
    assert reward.terms == {"math": 1.0, "format": 0.1}
    assert reward.format.style is FormatStyle.boxed


def test_terms_of_ones_own_can_be_listed_and_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('a configuration imports nothing')\n")
    words = ["reward=terms", "reward.terms={exact: 1, mine: 0.5}", f"reward.functions.mine={file}:score"]
    reward = load_config([*words, "reward.styles.mine=verl", "reward.time_limits.mine=0.5"]).reward
    assert isinstance(reward, TermsRewardConfig)
    assert reward.terms == {"exact": 1.0, "mine": 0.5}
    assert (reward.styles["mine"], reward.time_limits["mine"]) == ("verl", 0.5)
