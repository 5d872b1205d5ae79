"""Options of your own: a configuration dataclass beside the built-in ones, chosen, checked and explained like them."""

from __future__ import annotations

from dataclasses import is_dataclass

from maxent_grpo.config.declared import field_types, forget_options, groups, options
from maxent_grpo.config.own_modules import remember
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.store import OPTIONS, register
from maxent_grpo.errors import ConfigError


def add_option(group: str, name: str, node: type, *, module: str | None = None) -> None:
    """Make ``group=name`` an option in this process, with the settings and defaults of a dataclass.

    The dataclass extends the one that all options of the group extend, such as ``ScoringConfig``; a setting that it adds has
    a docstring beneath it. Adding the same dataclass again changes nothing. ``module`` is the one that another process would
    import to have the option, by default the caller's.

    Raises:
        ConfigError: there is no such group, the dataclass is not of its kind, or the name is taken.
    """
    if group not in groups():
        raise ConfigError(
            f"add_option({group!r}, {name!r}, ...): there is no group {group}; use one of {', '.join(groups())}"
        )
    kind: type = field_types(RootConfig)[group]
    if not (is_dataclass(node) and issubclass(node, kind)):
        raise ConfigError(
            f"add_option({group!r}, {name!r}, {node!r}): an option of {group} is a dataclass that extends {kind.__name__}"
        )
    taken = options(group).get(name)
    if taken is node:
        return
    if taken is not None:
        raise ConfigError(
            f"add_option({group!r}, {name!r}, ...): {group}={name} is {taken.__name__} already; choose another name"
        )
    OPTIONS.append((group, name, node))
    remember(group, name, module)
    register.cache_clear()
    forget_options()
