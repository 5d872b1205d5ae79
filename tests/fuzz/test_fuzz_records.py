"""Damaged run directories: a report and a comparison come of them, or a DataError that names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from support.fuzzing import JSON_VALUES, cases, try_cases
from support.runs import train

from maxent_grpo.errors import DataError
from maxent_grpo.report.difference import changed_settings, changed_versions, outcomes, parting
from maxent_grpo.report.page import report_page
from maxent_grpo.report.read import read_metrics

READ = ["metrics.jsonl", "completions.jsonl", "evaluations.jsonl", "config.yaml", "overrides.json", "versions.json",
        "environment.json", "run.log"]  # fmt: skip
"""What readers of a run directory open."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run; damaged copies are made of it."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train(folder)
    return folder


NUMBERS = st.integers(0, 10**6)
DAMAGE = st.one_of(
    st.tuples(st.just("cut"), NUMBERS, st.none()),
    st.tuples(st.just("bytes"), NUMBERS, st.binary(max_size=12)),
    st.tuples(st.just("line"), NUMBERS, st.one_of(JSON_VALUES, st.dictionaries(st.sampled_from(["step", "eval/pass@1"]), JSON_VALUES))),
    st.tuples(st.just("value"), NUMBERS, JSON_VALUES),
    st.tuples(st.just("drop"), NUMBERS, st.none()),
    st.tuples(st.just("twice"), NUMBERS, st.none()),
    st.tuples(st.just("gone"), NUMBERS, st.none()),
    st.tuples(st.just("text"), NUMBERS, st.sampled_from(["NaN", "Infinity", "1e999", "-0", "{", "[" * 2000, "null", "\ud800", "9" * 5000])),
)  # fmt: skip
CASES = st.lists(
    st.tuples(st.sampled_from([*READ, "metrics.jsonl", "completions.jsonl"]), DAMAGE), min_size=1, max_size=2
)


def damage(path: Path, kind: str, number: int, value: Any) -> None:
    """Spoil a file: cut it, put bytes, a line or a value into it, take a line away, write one twice, delete it."""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True) or [b""]
    at, line = number % (len(content) + 1), number % len(lines)
    if kind == "cut":
        path.write_bytes(content[:at])
    elif kind == "bytes":
        path.write_bytes(content[:at] + value + content[at + len(value) :])
    elif kind == "line":
        lines.insert(line, json.dumps(value).encode() + b"\n")
    elif kind == "value":
        lines[line] = _other_value(lines[line], number, value)
    elif kind == "drop":
        del lines[line]
    elif kind == "twice":
        lines.insert(line, lines[line])
    elif kind == "text":
        lines.insert(line, b'{"step": 1, "reward/mean": ' + value.encode("utf-8", "surrogatepass") + b"}\n")
    if kind == "gone":
        path.unlink()
    elif kind not in ("cut", "bytes"):
        path.write_bytes(b"".join(lines))


def _other_value(line: bytes, number: int, value: Any) -> bytes:
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not content:
        return json.dumps(value).encode() + b"\n"
    content[list(content)[number % len(content)]] = value
    return json.dumps(content).encode() + b"\n"


def reports_or_names_the_file(run_dir: Path, copy: Path, case: list[tuple[str, tuple[str, int, Any]]]) -> None:
    names = {name for name, _ in case}
    for name in names:
        shutil.copy(run_dir / name, copy / name)
    for name, (kind, number, value) in case:
        if (copy / name).is_file():
            damage(copy / name, kind, number, value)
    try:
        for ask in (report_page, read_metrics, lambda folder: changed_settings(run_dir, folder),
                    lambda folder: changed_versions(run_dir, folder),
                    lambda folder: outcomes(run_dir, folder, ignored=()),
                    lambda folder: parting(read_metrics(run_dir), read_metrics(folder), ignored=())):  # fmt: skip
            try:
                ask(copy)
            except DataError as error:
                assert any(name in str(error) for name in names), str(error)
                assert len(str(error)) < 1000
    finally:
        for name in names:
            shutil.copy(run_dir / name, copy / name)


@cases(short=40, long=500)
def test_a_damaged_run_directory_is_reported_or_its_file_is_named(
    num_cases: int, run_dir: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    try_cases(num_cases, CASES, lambda case: reports_or_names_the_file(run_dir, copy, case), seconds=30)
