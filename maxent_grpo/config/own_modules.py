"""Modules that make options of one's own known: which they are, what a run writes down of them, and how a command is told them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from maxent_grpo.errors import ConfigError
from maxent_grpo.report.read import IMPORT_FLAG, NOTEBOOK, import_flags

_added_by: dict[tuple[str, str], str] = {}
"""Group and option to the module that added it."""
_imported: list[str] = []


def remember(group: str, option: str, module: str | None = None) -> None:
    """Note that a module adds an option; None is the caller's, the nearest outside this package."""
    if module is not None:
        _added_by[group, option] = module
        return
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "maxent_grpo":
        frame = frame.f_back
    if frame is not None:
        _added_by[group, option] = _name_of(frame.f_globals)


def added_by() -> dict[tuple[str, str], str]:
    """Group and option to the module that added it in this process."""
    return dict(_added_by)


def modules_of(chosen: Mapping[str, str]) -> list[str]:
    """The modules that added those of the chosen options which are not the package's own, each once."""
    added = [_added_by[pair] for pair in chosen.items() if pair in _added_by]
    return list(dict.fromkeys(added))


def import_modules(names: Iterable[str]) -> None:
    """Import the modules of one's own that a command is told of; whatever one of them raises itself is passed on.

    Raises:
        ConfigError: some of them are not there to import.
    """
    problems: list[str] = []
    for name in names:
        if name == NOTEBOOK or name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            problems.append(f"{IMPORT_FLAG} {name}: is not the name of a module; write it as in an import, without .py")
            continue
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            problems.append(
                f"{IMPORT_FLAG} {name}: there is no module {name} to import; start the command in its folder, or install it"
            )
        else:
            _imported.append(name)
    if problems:
        raise ConfigError(problems)


def unknown_options(run: Path, strangers: Sequence[str], modules: Sequence[str]) -> str:
    """What to do about options (``group=option``) of a run that this process does not have.

    Args:
        run: the run's directory.
        strangers: the options.
        modules: what the run says added them.
    """
    what = f"{run} was made with {' '.join(strangers)}, which {'is no option' if len(strangers) == 1 else 'are no options'} here"
    if not modules:
        return f"{what}; use the version that the run was made with"
    names = [name for name in modules if name != NOTEBOOK]
    if not names:
        return (
            f"{what}: a notebook or session added it; put the call of add_option in a module of its own and import that"
        )
    added = f"module{'s' if len(names) > 1 else ''} {', '.join(names)}"
    if set(names) <= set(_imported):
        return f"{what}, and {added} did not add it on being imported: call add_option at the module's top level"
    flags = " ".join(import_flags(names))
    return f"{what}: {added} added it; write `python -m maxent_grpo {flags} COMMAND ...` where that can be imported"


def _name_of(module: Mapping[str, object]) -> str:
    name, file = str(module.get("__name__")), module.get("__file__")
    if name not in ("__main__", "__mp_main__"):
        return name
    spec = module.get("__spec__")
    if spec is not None:
        return str(getattr(spec, "name", name))
    return Path(str(file)).stem if file else NOTEBOOK
