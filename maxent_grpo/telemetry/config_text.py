"""A run's settings as YAML, quickly: what OmegaConf writes, character for character, without its typed containers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import yaml

# in C where PyYAML was built with libyaml, as its wheels are
_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_BOOLEANS = frozenset({"y", "yes", "n", "no", "true", "false", "on", "off"})


class _Dumper(_Base):
    """Quotes text that would be read back as a number or as true or false."""


def _text(dumper: Any, value: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if _reads_otherwise(value) else None)


def _reads_otherwise(value: str) -> bool:
    if value.lower() in _BOOLEANS:
        return True
    with contextlib.suppress(ValueError):
        float(value)
        return True
    return False


_Dumper.add_representer(str, _text)


def config_text(tree: Mapping[str, Any]) -> str:
    """Nested plain values as YAML, in their order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
