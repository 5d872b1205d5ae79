from pathlib import Path

import pytest
from support.runs import configured

from maxent_grpo.__main__ import main
from maxent_grpo.config.resumed import with_run_overrides, write_overrides
from maxent_grpo.config.secrets import MARK, redacted, redacted_tree
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.setup import run_from_config


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("http://user:pa@ss@host:1/v1,https://me:x@other", f"http://{MARK}@host:1/v1,https://{MARK}@other"),
        ("hf_abcdefghijklmnop and sk-proj-abcdefghijkl", f"{MARK} and {MARK}"),
        ("AKIAABCDEFGHIJKLMNOP, ghp_abcdefghijklmnop", f"{MARK}, {MARK}"),
        ("a=sesame-open-1 b=sesame-open-12", f"a={MARK} b={MARK}2"),
        ("wandb_v1_abcdefghijklmnop", MARK),
    ],
)
def test_secrets_are_left_out(text: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_API_KEY", "sesame-open-1")
    assert redacted(text) == kept
    assert redacted_tree({"a": [text, {"b": text}], "c": 1}) == {"a": [kept, {"b": kept}], "c": 1}


@pytest.mark.parametrize(
    "text",
    [
        *("http://127.0.0.1:8000/v1", "https://arxiv.org/abs/2503.20783", "me@example.org", "Qwen/Qwen2.5-0.5B"),
        *("hf-internal-testing/tiny-random-LlamaForCausalLM", "task-abcdefghijklmnop", "['http://a', 'b@c']", "short"),
    ],
)
def test_what_is_no_secret_stays(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "short")  # too short to be one
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "Qwen/Qwen2.5-0.5B")
    assert redacted(text) == text


def test_a_resumed_run_is_told_its_secrets_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    url = "generation.vllm.url=http://user:password@127.0.0.1:8000"
    write_overrides(run, ["generation=vllm", url])
    resume = f"checkpoint.resume_from={run}"
    with pytest.raises(ConfigError) as caught:
        with_run_overrides([resume])
    assert caught.value.problems == [
        f"generation.vllm.url=http://{MARK}@127.0.0.1:8000: a run's files keep no secrets, and {MARK} stands for one; write "
        "generation.vllm.url=... with it"
    ]
    assert with_run_overrides([resume, url]) == ["generation=vllm", resume, url]


def test_settings_that_lost_a_secret_are_not_run_with(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", "generation=vllm", f"generation.vllm.url=http://{MARK}@127.0.0.1:9")
    with pytest.raises(ConfigError, match="a run's files keep no secrets"):
        run_from_config(config)
    assert not (tmp_path / "run").exists()


ADDRESSED = ("generation=vllm", "generation.vllm.url='http://user:password@host,nowhere'")


@pytest.mark.parametrize(
    "typed",
    [("train", *ADDRESSED), ("plan", *ADDRESSED)],
    ids=lambda typed: typed[0],
)
def test_messages_on_the_terminal_hold_no_secret(typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(list(typed))
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"generation.vllm.url=http://{MARK}@host,nowhere: nowhere is not the address of a server" in said
    assert "password" not in said


def test_a_setting_is_explained_without_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "generation.vllm.url", *ADDRESSED])
    said = capsys.readouterr().out
    assert f"http://{MARK}@host,nowhere" in said
    assert "password" not in said


@pytest.mark.parametrize("command", ["evaluate", "export", "report"])
def test_a_path_with_a_key_in_it_is_not_repeated(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = "outputs/hf_abcdefghijklmnop"
    typed = {"evaluate": [f"run={path}"], "export": [f"run={path}", "output=there"], "report": [path]}
    with pytest.raises(SystemExit):
        main([command, *typed[command]])
    said = capsys.readouterr().err
    assert f"outputs/{MARK}" in said
    assert "abcdefghijklmnop" not in said
