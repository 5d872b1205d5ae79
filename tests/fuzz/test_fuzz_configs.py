"""Random command lines: each composes to a configuration, or is refused by sentences that name what they are about."""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from hypothesis import strategies as st
from support.fuzzing import cases, try_cases

from maxent_grpo.config.declared import all_settings, choices, declared_paths, groups, options
from maxent_grpo.config.load import load_config
from maxent_grpo.config.presets import PRESETS, config_directory
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError

KINDS = {setting.path: setting.kind for setting in all_settings()}
NAMES = [file.stem for file in (config_directory() / PRESETS).glob("*.yaml")]
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="/*"), max_size=12)
ODD = [
    *(
        "",
        "null",
        "true",
        "no",
        "0",
        "-1",
        "1e400",
        "nan",
        "-inf",
        "99999999999999999999999999",
        "0x10",
        "1_000",
        "-0.0",
    ),
    *("''", '""', "'", "[", "[]", "[1,2", "{}", "{a: 1}", "{a: {b: [1]}}", "{1: 2}", "[null]", "[[1]]", "a,b", "1,2"),
    *("${seed}", "${nope}", "${", "${run.dir}", "${seed", "???", "choice(1,2)", "range(3)", "interval(0,1)", "glob(*)"),
    *("a b", "a=b", "a.b", "é😀", "\u2028", "\\", "\\,", "x" * 3000, "~", "#", "@", "%s", "shuffle(1)", "int(3)"),
]
"""Values in which a parser, a type or an interpolation may trip."""


def fitting(kind: Any) -> st.SearchStrategy[str]:
    """Values as they are written on a command line, mostly of the type."""
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(st.just("null"), *(fitting(part) for part in get_args(kind) if part is not type(None)))
    if choices(kind):
        return st.sampled_from(choices(kind))
    if kind is bool:
        return st.sampled_from(["true", "false"])
    if kind is int:
        return st.one_of(st.integers(-2, 40), st.integers()).map(str)
    if kind is float:
        return st.one_of(st.floats(0, 1), st.floats(), st.integers(-2, 40)).map(str)
    if get_origin(kind) is list:
        return st.lists(fitting(get_args(kind)[0]), max_size=3).map(lambda entries: f"[{','.join(entries)}]")
    if get_origin(kind) is dict:
        entries = st.tuples(st.sampled_from(["task", "a", "b.c"]), fitting(get_args(kind)[1]))
        return st.lists(entries, max_size=2).map(lambda pairs: "{" + ",".join(f"{k}: {v}" for k, v in pairs) + "}")
    return st.one_of(st.sampled_from(["a", "exact", "a:b", "x.jsonl"]), WORDS)


VALUES = st.one_of(st.sampled_from(ODD), WORDS, st.floats().map(str), st.integers().map(str))
MARKS = st.sampled_from(["", "", "", "", "+", "++", "~"])


@st.composite
def override(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["option", "right", "right", "odd", "name", "mark", "below", "preset", "noise"]))
    group = draw(st.sampled_from(groups()))
    path = draw(st.sampled_from(list(KINDS)))
    if kind == "option":
        return f"{group}={draw(st.sampled_from([*options(group), 'nothing', 'null', '[]']))}"
    if kind == "right":
        return f"{path}={draw(fitting(KINDS[path]))}"
    if kind == "odd":
        return f"{path}={draw(VALUES)}"
    if kind == "name":
        at = draw(st.integers(0, len(path) - 1))
        return f"{draw(MARKS)}{path[:at]}{path[at + 1 :]}={draw(VALUES)}"
    if kind == "mark":
        return draw(MARKS) + draw(st.sampled_from([*declared_paths(), path])) + draw(st.sampled_from(["", "=", "=1"]))
    if kind == "below":
        return f"{draw(MARKS)}{path}.{draw(st.sampled_from(['a', 'task', '0', '', 'x.y']))}={draw(VALUES)}"
    if kind == "preset":
        return f"{PRESETS}={draw(st.sampled_from([*NAMES, 'tiny', 'null', '[tiny_grpo]', '../config']))}"
    return draw(WORDS)


COMMANDS = st.lists(override(), min_size=1, max_size=5)


def composes_or_names_the_mistake(overrides: list[str]) -> None:
    try:
        config = load_config(overrides)
    except ConfigError as error:
        words = {word for text in overrides for word in (text, repr(text), text.partition("=")[0].lstrip("+~"))} - {""}
        assert error.problems
        for problem in error.problems:
            assert problem.strip()
            assert "\n" not in problem.strip(), problem
            assert "Traceback" not in problem
            if all(overrides):  # an empty word has no name
                assert any(name in problem for name in {*words, *declared_paths()}), problem
    else:
        assert isinstance(config, RootConfig)


@cases(short=50, long=600)
def test_a_random_command_line_is_a_configuration_or_named_mistakes(
    num_cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of files are looked for here
    try_cases(num_cases, COMMANDS, composes_or_names_the_mistake, seconds=30)
    assert list(tmp_path.iterdir()) == []
