"""What a run says of its surroundings: the checkout with its changes, seeds, machine, and no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import train

from maxent_grpo.config.secrets import MARK, holds_secret, redacted_word
from maxent_grpo.errors import DataError
from maxent_grpo.report.configuration import configuration_html
from maxent_grpo.report.environment import environment_facts, read_environment
from maxent_grpo.report.record import read_record
from maxent_grpo.telemetry import checkout
from maxent_grpo.telemetry.checkout import MAX_DIFF, MAX_NAMES, Checkout, current_checkout, read_checkout
from maxent_grpo.telemetry.environment import environment


def git(folder: Path, *arguments: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=own | who, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with a package, a file of bytes and a file for keys, all committed."""
    root = tmp_path / "checkout"
    (root / "package").mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch", "work")
    (root / "package" / "__init__.py").write_text("")
    (root / "package" / "grüße.py").write_text("x = 1\n")
    (root / "picture.png").write_bytes(bytes(range(256)))
    (root / "settings.py").write_text("a = 1\n")
    (root / ".env").write_text("A=1\n")
    git(root, "remote", "add", "origin", "https://someone:hunter2hunter2@example.com/x.git")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def test_the_difference_makes_the_same_working_tree_again(repository: Path, tmp_path: Path) -> None:
    found = read_checkout(repository / "package")
    assert found.diff == b""
    assert found.facts == {
        "is_checkout": True,
        "commit": git(repository, "rev-parse", "HEAD").strip(),
        "branch": "work",
        "changed": [],
        "untracked": [],
        "diff_left_out": {},
    }
    (repository / "package" / "grüße.py").write_bytes("x = 2  # né\ndiff --git a/no b/no\r\n\xff".encode("latin-1"))
    (repository / "settings.py").unlink()
    (repository / "new.py").write_text("y = 1\n")
    git(repository, "add", "new.py")
    (repository / "notes é.txt").write_text("mine")
    found = read_checkout(repository / "package")
    assert found.facts["changed"] == ["new.py", "package/grüße.py", "settings.py"]
    assert found.facts["untracked"] == ["notes é.txt"]
    assert found.facts["diff_left_out"] == {}
    again = tmp_path / "again"
    git(tmp_path, "clone", "--quiet", str(repository), str(again))
    (tmp_path / "code.diff").write_bytes(found.diff)
    git(again, "apply", str(tmp_path / "code.diff"))
    assert (again / "package" / "grüße.py").read_bytes() == (repository / "package" / "grüße.py").read_bytes()
    assert (again / "new.py").read_text() == "y = 1\n"
    assert not (again / "settings.py").exists()


def test_what_must_not_or_cannot_be_kept_is_left_out_with_its_reason(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "zebra-crossing")
    (repository / ".env").write_text("A=2\n")
    (repository / "picture.png").write_bytes(bytes(255))
    (repository / "settings.py").write_text("url = 'https://me:swordfish@example.com'\n")
    (repository / "package" / "grüße.py").write_text("x = 'a zebra-crossing'\n")
    (repository / "package" / "__init__.py").write_text("kept = 1\n")
    found = read_checkout(repository / "package")
    assert found.facts["diff_left_out"] == {
        ".env": "a file of this name holds keys",
        "package/grüße.py": "something in it looks like a key or a password",
        "picture.png": "binary",
        "settings.py": "something in it looks like a key or a password",
    }
    assert found.diff.decode().count("diff --git") == 1
    assert "+kept = 1" in found.diff.decode()
    for secret in ("hunter2", "swordfish", "zebra"):
        assert secret not in found.diff.decode() + json.dumps(found.facts)


def test_a_difference_above_the_cap_is_left_out_whole(repository: Path) -> None:
    (repository / "settings.py").write_text("a = 2  # much\n" * (MAX_DIFF // 14 + 1))
    for number in range(MAX_NAMES + 3):
        (repository / f"{number:03d}.txt").touch()
    found = read_checkout(repository / "package")
    assert found.diff == b""
    assert found.facts["changed"] == ["settings.py"]
    assert found.facts["diff_left_out"] == {"(all)": f"the difference is larger than {MAX_DIFF} bytes"}
    assert found.facts["untracked"][-2:] == [f"{MAX_NAMES - 1:03d}.txt", "... and 3 more"]


def test_an_installed_package_is_no_checkout(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = repository / ".venv" / "site-packages" / "package"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    assert read_checkout(inside).facts["is_checkout"] is False, "the repository around it is somebody's else"
    (tmp_path / "plain").mkdir()
    found = read_checkout(tmp_path / "plain").facts
    assert found["is_checkout"] is False
    assert "not a git repository" in found["reason"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_checkout(repository / "package").facts == {
        "is_checkout": False,
        "reason": "git cannot be started (No such file or directory)",
    }


def test_git_that_does_not_answer_is_given_up(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(checkout, "SECONDS", 0.2)
    found = read_checkout(repository / "package").facts
    assert found == {"is_checkout": False, "reason": "git ls-files took longer than 0.2 s"}


SECRET_WORDS = [
    "model.token=hf_abcdefghijklmnopqrstuv",
    "generation.vllm.url=http://me:swordfish1@localhost:8000",
    "x.api_key=swordfish1",
    "a='swordfish1 b'",
]


@pytest.mark.parametrize("word", SECRET_WORDS)
def test_secrets_of_the_command_line_are_hidden(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "swordfish1")
    hidden = redacted_word(word)
    assert MARK in hidden
    assert not any(secret in hidden for secret in ("swordfish1", "abcdefghij"))


@pytest.mark.parametrize("word", ["scoring.batching.max_tokens=4096", "data.path=a@b.jsonl", "-m"])
def test_ordinary_words_stay(word: str) -> None:
    assert redacted_word(word) == word
    assert not holds_secret(word)


def test_code_that_says_a_password_holds_a_secret() -> None:
    assert holds_secret('password = "correct horse"')
    assert not holds_secret('password = "short"')


def test_a_run_records_what_it_was_made_in(tmp_path: Path) -> None:
    train(tmp_path / "run", "seed=7", "data.order_seed=11", "evaluation.enabled=false", "run.num_threads=1")
    recorded = read_environment(tmp_path / "run")
    assert recorded is not None
    assert recorded["command"][0] == sys.orig_argv[0]
    assert recorded["directory"] == str(Path.cwd())
    assert recorded["seeds"]["seed"] == 7
    assert {"data.order_seed": 11, "model.init_seed": 0}.items() <= recorded["seeds"].items()
    assert recorded["threads"]["torch"] == 1
    assert recorded["machine"]["memory_gib"]["total"] > 0
    assert recorded["machine"]["processor"]
    facts = current_checkout().facts
    assert {**facts, "diff": recorded["code"]["diff"]} == recorded["code"]
    assert (tmp_path / "run" / "code.diff").is_file() == bool(current_checkout().diff) == bool(recorded["code"]["diff"])
    page = configuration_html(read_record(tmp_path / "run"))
    assert environment_facts(recorded)["code"] in page
    assert recorded["machine"]["processor"] in page


def test_a_part_of_a_run_replaces_what_an_earlier_one_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from maxent_grpo.telemetry import environment as written

    for diff in (b"diff --git a/x b/x\n", b""):
        monkeypatch.setattr(written, "current_checkout", lambda diff=diff: Checkout({"is_checkout": True}, diff))
        written.write_environment(tmp_path, {"seed": 1}, num_threads=None, on_gpu=False)
        assert (tmp_path / "code.diff").exists() == bool(diff)
        code = json.loads((tmp_path / "environment.json").read_text())["code"]
        assert code["diff"] == ("code.diff" if diff else None)


@pytest.mark.parametrize(
    ("facts", "diff", "words"),
    [
        ({"is_checkout": False, "reason": "r"}, b"", "an installed package"),
        ({"is_checkout": True, "commit": "0123456789abcdef", "changed": []}, b"", "commit 0123456789ab"),
        (
            {
                "is_checkout": True,
                "commit": "0123456789abcdef",
                "changed": ["a", "b"],
                "diff_left_out": {"b": "binary"},
            },
            b"x",
            "commit 0123456789ab with changes that are kept in code.diff, without b",
        ),
        (
            {"is_checkout": True, "commit": "0123456789abcdef", "changed": ["a"], "diff_left_out": {"(all)": "large"}},
            b"",
            "commit 0123456789ab with changes that are not kept",
        ),
    ],
)
def test_code_is_named_in_words(facts: dict[str, object], diff: bytes, words: str) -> None:
    made = environment({"seed": 1}, Checkout(facts, diff), num_threads=None, on_gpu=False)
    assert environment_facts(made)["code"] == words


def test_damaged_surroundings_are_refused(tmp_path: Path) -> None:
    assert read_environment(tmp_path) is None
    for text in ("", "[1]", "{}", '{"code": 1, "machine": {}, "threads": {}}', "[" * 10_000):
        (tmp_path / "environment.json").write_text(text)
        with pytest.raises(DataError, match=r"environment\.json does not describe a run's surroundings"):
            read_environment(tmp_path)
