"""What a run was made in, from its environment.json: code, machine, threads and command line, in words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import ENVIRONMENT_FILE

COMMIT_DIGITS = 12


def read_environment(run_dir: Path) -> dict[str, Any] | None:
    """What the run records of its surroundings; None for a run that does not.

    Raises:
        DataError: environment.json is not an object with the parts that it is made of.
    """
    path = run_dir / ENVIRONMENT_FILE
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        value = None
    parts = ("code", "machine", "threads")
    if not isinstance(value, dict) or not all(isinstance(value.get(name), dict) for name in parts):
        raise DataError(f"{path} does not describe a run's surroundings: it was changed by hand or damaged; delete it")
    return value


def environment_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """The surroundings in a few words each, by name; equal words in two runs mean that they cannot differ by them."""
    machine, threads = environment["machine"], environment["threads"]
    gpus = machine.get("gpus")
    names = [str(gpus[key]) for key in gpus if key.startswith("gpu_")] if isinstance(gpus, Mapping) else []
    return {
        "code": _code_text(environment["code"]),
        "processor": str(machine.get("processor")),
        "threads": str(threads.get("torch")),
        **({"GPUs": "; ".join(names)} if names else {}),
    }


def environment_html(environment: Mapping[str, Any] | None) -> str:
    """The surroundings as a list of facts; empty for a run that does not record them."""
    if environment is None:
        return ""
    facts = environment_facts(environment)
    command = environment.get("command")
    if isinstance(command, list):
        facts["started as"] = shlex.join(str(word) for word in command)
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f'<div class="config"><dl class="single">{items}</dl></div>'


def _code_text(code: Mapping[str, Any]) -> str:
    if not code.get("is_checkout"):
        return "an installed package"
    commit, changed, left_out = str(code.get("commit"))[:COMMIT_DIGITS], code.get("changed"), code.get("diff_left_out")
    if not changed:
        return f"commit {commit}"
    kept = f"kept in {code['diff']}" if code.get("diff") else "not kept"
    missing = f", without {', '.join(map(str, left_out))}" if code.get("diff") and left_out else ""
    return f"commit {commit} with changes that are {kept}{missing}"
