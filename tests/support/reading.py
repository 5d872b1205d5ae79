"""Which fields of the documented classes a running program reads, and which functions it calls."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

PACKAGE = "maxent_grpo."
CONFIGURATION = ("maxent_grpo.config", "maxent_grpo.telemetry")
"""These look at every setting there is, to check or to print it; that is no use of it."""
CONSTRUCTION = ("__init__", "__post_init__", "__eq__", "__repr__", "_plain")


@dataclass(frozen=True)
class DocumentedClass:
    """A class of the documented interface."""

    kind: type
    parameters: list[str]
    """Constructor parameters in order, ``name`` or ``name=default``."""
    properties: list[str]

    @property
    def names(self) -> list[str]:
        """Fields and properties."""
        return [parameter.split("=")[0] for parameter in self.parameters] + self.properties


@dataclass(frozen=True)
class Documented:
    """The documented interface, resolved to the objects that implement it."""

    classes: dict[str, DocumentedClass]
    functions: dict[str, Callable[..., Any]]
    parameters: dict[str, list[str]]
    """Positional parameters of each function."""


@dataclass
class Use:
    """What was read, as ``Class.field``, and what was called."""

    read: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)


def documented() -> Documented:
    """The interface that ``documented_api.json`` lists."""
    listed = json.loads((Path(__file__).parent / "documented_api.json").read_text())
    modules = {name: importlib.import_module(name) for name in listed}
    return Documented(
        classes={
            name: DocumentedClass(getattr(modules[module], name), **content)
            for module, part in listed.items()
            for name, content in part["classes"].items()
        },
        functions={
            name: getattr(modules[module], name)
            for module, part in listed.items()
            for name in part.get("functions", {})
        },
        parameters={name: given for part in listed.values() for name, given in part.get("functions", {}).items()},
    )


@contextmanager
def watched(api: Documented) -> Iterator[Use]:
    """Note, inside the block, every documented field that the package reads and every documented function it runs."""
    use = Use()
    codes = {function.__code__: name for name, function in api.functions.items()}
    before = sys.getprofile()
    with ExitStack() as stack:
        for name, documented_class in api.classes.items():
            recorder = _recorder(documented_class, name, use)
            stack.enter_context(patch.object(documented_class.kind, "__getattribute__", recorder))
        sys.setprofile(_call_recorder(codes, use))
        try:
            yield use
        finally:
            sys.setprofile(before)


def _recorder(documented_class: DocumentedClass, label: str, use: Use) -> Callable[[Any, str], Any]:
    names, original = frozenset(documented_class.names), documented_class.kind.__getattribute__

    def recorder(self: Any, name: str) -> Any:
        if name in names and _is_use(sys._getframe(1)):
            use.read.add(f"{label}.{name}")
        return original(self, name)  # pyright: ignore[reportCallIssue] - taken from the class, unbound

    return recorder


def _is_use(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return (
        module.startswith(PACKAGE) and not module.startswith(CONFIGURATION) and frame.f_code.co_name not in CONSTRUCTION
    )


def _call_recorder(codes: dict[CodeType, str], use: Use) -> Callable[[FrameType, str, Any], None]:
    def recorder(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes:
            use.called.add(codes[frame.f_code])

    return recorder
