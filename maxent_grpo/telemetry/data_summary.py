"""The data of a run in words, and in data.json: rows, prompt lengths, what was left out and why, one prompt as it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxent_grpo.config.secrets import redacted_tree
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import DATA_FILE

SHOWN = 600
"""Most characters of the example that are shown."""
Row = tuple[str, str]


def write_data_facts(run_dir: Path, facts: Mapping[str, Any]) -> None:
    """Keep what the data come to in the run directory, without secrets; that of an earlier part of the run is replaced."""
    text = json.dumps(redacted_tree(dict(facts)), indent=1, ensure_ascii=False) + "\n"
    write_atomically(run_dir / DATA_FILE, lambda file: file.write(text.encode("utf-8", "surrogatepass")))


def data_rows(facts: Mapping[str, Any]) -> list[Row]:
    """Lengths of the prompts, each reason for which rows were left out or cut, and a prompt as the model reads it."""
    train, held_out = facts["train"], facts["held_out"]
    rows: list[Row] = []
    if facts["mixture"] is not None:
        rows += [(f"rows of {label}", str(num)) for label, num in facts["mixture"].items()]
    rows += [("training lengths", _lengths(train)), ("held-out lengths", _lengths(held_out))]
    for label, part in (("training", train), ("held-out", held_out)):
        of = "" if part["sampled"] is None else f" of a sample of {part['sampled']}; others when they are drawn"
        if part["too_long"]:
            rows.append(("", f"{part['too_long']} {label} prompts are too long and dropped{of}"))
        if part["truncated"]:
            rows.append(("", f"{part['truncated']} {label} prompts are too long and cut{of}"))
    for name, what in (
        ("duplicates", "ask what an earlier one asks"),
        ("overlapping", "ask what a held-out one asks"),
    ):
        if train[name]["found"]:
            fate = "dropped" if train[name]["dropped"] else "kept"
            rows.append(("", f"{train[name]['found']} training prompts {what}: {fate}"))
    if facts["broken"]:
        rows.append(("", f"{facts['broken']} rows cannot be used and are left out"))
    return [*(row for row in rows if row[1]), *_example(facts)]


def _example(facts: Mapping[str, Any]) -> list[Row]:
    """One prompt as the model reads it, its middle left out where it is long."""
    example = facts["example"]
    if example is None:
        return []
    first, *others = _shortened(example["text"]).split("\n")
    return [("the first prompt", first), *(("", line) for line in others)]


def _lengths(part: Mapping[str, Any]) -> str:
    tokens = part["prompt_tokens"]
    if tokens is None:
        return ""
    of = "" if part["sampled"] is None else f", of a sample of {part['sampled']}"
    return f"{tokens['min']} to {tokens['max']} tokens, median {tokens['median']}, 95% have at most {tokens['p95']}{of}"


def _shortened(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
