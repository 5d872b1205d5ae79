"""Reward functions of the user's: found by name or file, and called the way they were written for."""

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.rewards.batch import Notes, RewardBatch
from maxent_grpo.rewards.term_settings import FunctionStyle

RewardFunction = Callable[..., Any]
VERL_NAMES = frozenset({"solution_str", "ground_truth"})
"""Parameters that only a function in verl's style has."""


def imported_function(setting: str, path: str) -> Callable[..., Any]:
    """The function that a setting names as ``package.module:function`` or ``folder/file.py:function``.

    Raises:
        ConfigError: there is no such file, or it or the module has no such function.
    """
    source, _, attribute = path.rpartition(":")
    is_file = source.endswith(".py")
    if is_file and not Path(source).is_file():
        raise ConfigError(f"{setting}={path}: there is no file {source}")
    module = _module_of_file(Path(source).resolve()) if is_file else import_module(source)
    function = getattr(module, attribute, None)
    if not callable(function):
        what = f"file {source}" if is_file else f"module {source}"
        raise ConfigError(f"{setting}={path}: {what} has no function {attribute}")
    return cast(Callable[..., Any], function)


@cache
def _module_of_file(path: Path) -> ModuleType:
    name = f"reward_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints inside it look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass(frozen=True)
class Call:
    """One call of a function: its arguments, what it notes down, and the completions it is about."""

    arguments: dict[str, Any]
    notes: Notes
    rows: list[int]


@dataclass(frozen=True)
class Convention:
    """How a function is called."""

    style: FunctionStyle
    accepted: frozenset[str] | None
    """Names of its parameters; None where it takes whatever it is given."""
    required: frozenset[str]
    """Those without a default."""
    is_async: bool

    def calls(self, term: str, batch: RewardBatch, row: int | None = None) -> list[Call]:
        """The calls that reward a batch, or one of its completions: one for all in TRL's style, one each in verl's.

        Raises:
            RewardError: the function asks for something that the rows do not have.
        """
        if row is not None:
            (call,) = self.calls(term, batch.row(row))
            return [Call(call.arguments, call.notes, [row])]
        if self.style is FunctionStyle.verl:
            offers = [(_verl_arguments(batch, number), [number]) for number in range(len(batch))]
        else:
            offers = [(_trl_arguments(term, batch, self.style), list(range(len(batch))))]
        return [self._call(term, offered, rows, batch) for offered, rows in offers]

    def values(self, returned: Any, notes: Notes) -> list[Any]:
        """The value of each completion of a call, out of what it returned; further entries of a dict are noted down."""
        if self.style is not FunctionStyle.verl:
            if not isinstance(returned, Iterable):
                raise TypeError(f"it returned {returned!r}: return a list with one value for each completion")
            return list(cast(Iterable[Any], returned))
        if returned is None:
            raise TypeError("it returned None: a function in verl's style returns a number, or a dict with 'score'")
        if isinstance(returned, Mapping):
            entries = cast(Mapping[str, Any], returned)
            if "score" not in entries:
                raise TypeError(
                    f"it returned a dict with {', '.join(map(str, entries)) or 'nothing'}, but without 'score'"
                )
            for name in entries.keys() - {"score"}:
                notes.log_extra(name, [entries[name]])
            return [entries["score"]]
        return [returned[0] if isinstance(returned, tuple | list) else returned]

    def _call(self, term: str, offered: dict[str, Any], rows: list[int], batch: RewardBatch) -> Call:
        missing = sorted(self.required - offered.keys())
        if missing:
            near = {name: get_close_matches(name, offered, n=1) for name in missing}
            meant = ", ".join(f"{found[0]} for {name}" for name, found in near.items() if found)
            raise RewardError(
                f"reward term '{term}' asks for {', '.join(missing)}, which the rows do not have; their columns are "
                f"{', '.join(sorted(batch.columns))}. Name columns that exist{f' ({meant}?)' if meant else ''}, or give the "
                "parameter a default"
            )
        notes = Notes()
        given: dict[str, Any] = {**offered, "log_extra": notes.log_extra, "log_metric": notes.log_metric}
        if self.accepted is not None:
            given = {name: value for name, value in given.items() if name in self.accepted}
        return Call(given, notes, rows)


def convention_of(function: RewardFunction, style: FunctionStyle) -> Convention:
    """How a function is called; ``auto`` is settled by its parameters.

    It is verl's style where it takes ``solution_str`` and ``ground_truth``, that of messages where its parameter
    ``completions`` is annotated as lists of dictionaries, as TRL's own are, and that of texts otherwise.
    """
    parameters = inspect.signature(function).parameters.values()
    named = {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if style is FunctionStyle.auto:
        annotation = str(named["completions"].annotation).lower() if "completions" in named else ""
        if named.keys() >= VERL_NAMES:
            style = FunctionStyle.verl
        else:
            style = FunctionStyle.messages if "dict[" in annotation else FunctionStyle.text
    noted = {"log_extra", "log_metric"}
    return Convention(
        style=style,
        accepted=None if takes_all else frozenset(named),
        required=frozenset(name for name, p in named.items() if p.default is p.empty) - noted,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__),
    )


def _trl_arguments(term: str, batch: RewardBatch, style: FunctionStyle) -> dict[str, Any]:
    prompts: Sequence[Any] = batch.prompts
    completions: Sequence[Any] = batch.completions
    if style is FunctionStyle.messages:
        if batch.conversations is None:
            raise RewardError(
                f"reward term '{term}' asks for prompts as messages, and these rows have texts only: use "
                f"reward.styles.{term}=text"
            )
        prompts = [list(messages) for messages in batch.conversations]
        completions = [[{"role": "assistant", "content": text}] for text in batch.completions]
    return {
        **batch.columns,
        "prompts": prompts,
        "completions": completions,
        "completion_ids": batch.completion_ids,
        "trainer_state": batch.state,
    }


def _verl_arguments(batch: RewardBatch, number: int) -> dict[str, Any]:
    """What verl passes: ``ground_truth`` is the row's own, that of its ``reward_model``, or its answer."""
    row = {name: column[number] for name, column in batch.columns.items()}
    rule: object = row.get("reward_model")
    nested = cast(Mapping[str, Any], rule).get("ground_truth") if isinstance(rule, Mapping) else None
    known = (row.get("ground_truth"), nested, row.get("answer"))
    return {
        "data_source": row.get("data_source"),
        "solution_str": batch.completions[number],
        "ground_truth": next((value for value in known if value is not None), None),
        "extra_info": row.get("extra_info") or {},
    }
