"""What `python -m maxent_grpo evaluate` is asked: its own arguments, and the settings that stand among them. No torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from maxent_grpo.config.compose import parse_override
from maxent_grpo.config.declared import all_settings, groups, nearest
from maxent_grpo.config.presets import PRESETS
from maxent_grpo.errors import ConfigError

LAST, BEST, START, FINAL = "last", "best", "start", "final"
WEIGHTS = (LAST, BEST, START, FINAL)
"""Weights of a run that have a name; others are numbers of steps."""
KS, NUM_SAMPLES = "evaluation.ks", "evaluation.num_samples"


class Split(StrEnum):
    """Which of the task's problems are asked."""

    eval = "eval"
    train = "train"


@dataclass(slots=True)
class Request:
    """The arguments of an evaluation, read and checked each on its own."""

    runs: list[str] = field(default_factory=list[str])
    """Runs, checkpoints, folders or hub ids to evaluate."""
    against: list[str] = field(default_factory=list[str])
    """What each of them is compared with, problem by problem."""
    checkpoint: str = LAST
    """Which weights of a run: `last`, `best`, `start`, `final` or the number of a step."""
    split: Split = Split.eval
    limit: int | None = None
    """Most problems, from the first on; None asks all [prompts]."""
    ks: list[int] | None = None
    output: str | None = None
    overrides: list[str] = field(default_factory=list[str])
    """Everything else: options and settings as a run takes them, with what `k` says of evaluation's."""


def read_request(arguments: Sequence[str]) -> Request:
    """Sort the arguments into the command's own and settings; settings are checked when they are composed.

    Raises:
        ConfigError: with every problem there is.
    """
    request, problems = Request(), list[str]()
    for text in arguments:
        key, equals, value = text.partition("=")
        try:
            if key in _OWN and equals:
                _OWN[key](request, value)
            else:
                problems += _stranger(text, key, has_value=bool(equals))
                request.overrides.append(text)
        except ConfigError as error:
            problems += error.problems
    problems += _ks_problems(request)
    if not problems and not request.runs and not any(_key(text) == "model" for text in request.overrides):
        problems.append(
            "nothing to evaluate: write run= and a run directory, a checkpoint, a transformers folder or a hub id; or model= "
            "and an option"
        )
    if problems:
        raise ConfigError(problems)
    if request.ks is not None:
        request.overrides.append(f"{KS}={request.ks}")
        if not any(_key(text) == NUM_SAMPLES for text in request.overrides):
            request.overrides.append(f"{NUM_SAMPLES}={max(request.ks)}")
    return request


def split_checkpoint(source: str, default: str) -> tuple[str, str]:
    """`RUN@best` as run and checkpoint; a name without such an ending has the default one."""
    name, at, ending = source.rpartition("@")
    if at and (ending in WEIGHTS or ending.isdigit()):
        return name, ending
    return source, default


def _ks_problems(request: Request) -> list[str]:
    if request.ks is None:
        return []
    given = [text.partition("=")[2] for text in request.overrides if _key(text) == NUM_SAMPLES]
    shown = f"k={request.ks}".replace(" ", "")
    found: list[str] = []
    if any(_key(text) == KS for text in request.overrides):
        found.append(f"{shown} and {KS}= say the same thing twice: write one of them")
    if given and given[-1].isdigit():
        large = [k for k in request.ks if k > int(given[-1])]
        if large:
            found.append(
                f"{shown}: {', '.join(map(str, large))} is more than {NUM_SAMPLES}={given[-1]}, and pass@k cannot be estimated "
                f"from fewer than k samples; draw {max(large)}, or leave {NUM_SAMPLES} out, which then is the largest k"
            )
    return found


def _stranger(text: str, key: str, *, has_value: bool) -> list[str]:
    """What is wrong with an argument that is not the command's own, as far as its name tells."""
    name = key.lstrip("+~")
    if not has_value and not key.startswith("~"):
        guess = next(iter(difflib.get_close_matches(name.lstrip("-"), [*_OWN, *groups()], n=1)), None)
        hint = f"; did you mean {guess}=?" if guess else ""
        return [f"{text}: arguments are written name=value{hint}"]
    if "." in name or "/" in name or name in (*groups(), PRESETS, "seed"):
        return []
    guess = next(iter(difflib.get_close_matches(name, list(_OWN), n=1)), None) or _setting(name)
    own = ", ".join(_OWN)
    return [f"{name}: no such argument; " + (f"did you mean {guess}?" if guess else f"there are {own}, and settings")]


def _setting(name: str) -> str | None:
    """The setting whose last name this is, those that matter to an evaluation first."""
    same = [setting.path for setting in all_settings() if setting.name == name]
    order = ("evaluation", "generation", "run", "model", "data")
    same.sort(key=lambda path: order.index(head) if (head := path.split(".")[0]) in order else len(order))
    return same[0] if same else nearest(name)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _listed(key: str, value: str) -> list[Any]:
    """The entries of `[a,b]`; of anything else, itself."""
    if not value.startswith("["):
        return [value]
    parsed = cast(object, parse_override(f"{key}={value}").value())
    if not isinstance(parsed, list) or not parsed:
        raise ConfigError(f"{key}={value}: takes one entry or a list, [a,b]")
    return cast(list[Any], parsed)


def _take_sources(key: str) -> Callable[[Request, str], None]:
    def take(request: Request, value: str) -> None:
        sources = [str(entry) for entry in _listed(key, value)]
        if not all(sources):
            raise ConfigError(f"{key}={value}: names nothing; write a run directory, a folder or a hub id")
        (request.runs if key == "run" else request.against).extend(sources)

    return take


def _take_ks(request: Request, value: str) -> None:
    entries = [str(entry) for entry in _listed("k", value)]
    if not all(entry.isdigit() and int(entry) > 0 for entry in entries):
        raise ConfigError(f"k={value}: takes numbers of samples from 1 on, such as k=[1,8,32]")
    request.ks = sorted({int(entry) for entry in entries})


def _take_limit(request: Request, value: str) -> None:
    if not (value.isdigit() and int(value) > 0):
        raise ConfigError(f"limit={value}: takes a number of problems from 1 on; leave it out to ask all")
    request.limit = int(value)


def _take_split(request: Request, value: str) -> None:
    if value not in list(Split):
        raise ConfigError(f"split={value}: is one of {', '.join(Split)}")
    request.split = Split(value)


def _take_checkpoint(request: Request, value: str) -> None:
    if value not in WEIGHTS and not value.isdigit():
        guess = next(iter(difflib.get_close_matches(value, WEIGHTS, n=1)), None)
        hint = f"; did you mean {guess}?" if guess else ""
        raise ConfigError(f"checkpoint={value}: is last, best, start, final or the number of a step{hint}")
    request.checkpoint = value


def _take_output(request: Request, value: str) -> None:
    if not value:
        raise ConfigError("output=: names no folder")
    request.output = value


_OWN: dict[str, Callable[[Request, str], None]] = {
    "run": _take_sources("run"),
    "against": _take_sources("against"),
    "checkpoint": _take_checkpoint,
    "split": _take_split,
    "limit": _take_limit,
    "k": _take_ks,
    "output": _take_output,
}
"""Arguments of the command itself; everything else is an option or a setting."""
