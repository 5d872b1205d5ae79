"""What the gates say about records of one's own: contradictions, and paths that this machine does not have."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from support.source_knobs import SUMS

from maxent_grpo.config.compose import compose_config
from maxent_grpo.config.contradictions_sources import SOURCE_RULES
from maxent_grpo.config.data_sources import HubDataConfig, TableDataConfig, TableSource, settled_sources
from maxent_grpo.config.load import check, load_config
from maxent_grpo.errors import ConfigError

COLD = ("model.warm_start.enabled=false", "run.dir=nowhere")


@cache
def composed(option: str) -> DictConfig:
    return compose_config([f"data={option}", *COLD]).config


def problems_of(option: str, settings: dict[str, Any], **others: Any) -> list[str]:
    config = composed(option).copy()
    for name, value in settings.items():
        OmegaConf.update(config, f"data.{name}", value, force_add=True)
    for path, value in others.items():
        OmegaConf.update(config, path.replace("__", "."), value)
    try:
        check(config)
    except ConfigError as error:
        return error.problems
    return []


def problems_on_the_command_line(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config([*COLD, *overrides])
    return caught.value.problems


TABLE = {"path": str(SUMS)}
HUB = {"path": "openai/gsm8k"}
SENTENCES: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "table",
        {},
        [
            "data=table is not told which data: write data.path=problems.jsonl, or several with their weights as "
            "data.mixture={...}"
        ],
    ),
    (
        "hub",
        {},
        [
            "data=hub is not told which data: write data.path=openai/gsm8k, or several with their weights as "
            "data.mixture={...}"
        ],
    ),
    (
        "hub",
        {**HUB, "mixture": {"b/c": 1.0}},
        [
            "data.path=openai/gsm8k together with data.mixture=[b/c]: both say where the rows come from; write data.path=null, "
            "or make it one of the mixture"
        ],
    ),
    (
        "hub",
        {"mixture": {"b/c": 0.0}, "sources": {"d": {"path": "e/f"}}},
        [
            "data.mixture.b/c=0.0: a weight must be above 0 and finite; leave out what is not to be used",
            "data.sources.d explains a source that data.mixture=[b/c] does not have; add it with data.mixture.d=1",
        ],
    ),
    (
        "table",
        {**TABLE, "answer_after": "####", "answer_boxed": True},
        [
            "data.answer_after=#### together with data.answer_boxed=true: an answer stands in one place; choose one of them",
        ],
    ),
    (
        "table",
        {**TABLE, "columns": ["prompt", "level", "level"]},
        [
            "data.columns=[prompt, level, level]: reward functions get prompt in any case; leave it out",
            "data.columns=[prompt, level, level]: names level more than once",
        ],
    ),
    (
        "table",
        {**TABLE, "prompt_column": None},
        [
            "data.prompt_column=null leaves rows without a question; name its column, or make it of others with "
            "data.prompt_template='... {column} ...'"
        ],
    ),
    (
        "table",
        {**TABLE, "eval_path": str(SUMS)},
        [
            f"data.eval_path={SUMS} is data.path too: every held-out row would be trained on; name another file, or write "
            "data.eval_path=null to hold out data.eval_fraction of the rows"
        ],
    ),
    (
        "hub",
        {**HUB, "eval_split": "train"},
        [
            "data.eval_split=train is data.split too: every held-out row would be trained on; name another split, or write "
            "data.eval_split=null to hold out data.eval_fraction of the rows"
        ],
    ),
    (
        "hub",
        {**HUB, "eval_path": HUB["path"]},
        [
            f"data.eval_path={HUB['path']} with the split train is trained on too, every held-out row of it; name another data "
            "set, or another split with data.eval_split"
        ],
    ),
    (
        "hub",
        {**HUB, "eval_fraction": 0.0},
        [
            "data.eval_fraction=0.0 holds out no rows, and data.eval_split names none, but evaluation.enabled=true needs some; "
            "set one of them, or evaluation.enabled=false"
        ],
    ),
    (
        "hub",
        {**HUB, "streaming": True},
        [
            "data.streaming=true needs data.num_train (got null): a stream is read only as far as that many rows; set it, or "
            "use data.streaming=false to fetch everything"
        ],
    ),
    (
        "hub",
        {**HUB, "path": "my data"},
        ["data.path=my data: is neither a folder here nor a hub id, such as openai/gsm8k"],
    ),
    ("hub", {**HUB, "path": str(SUMS)}, [f"data.path={SUMS}: is a file; files are read with data=table"]),
]


@pytest.mark.parametrize(("option", "settings", "sentences"), SENTENCES)
def test_what_cannot_be_is_said(option: str, settings: dict[str, Any], sentences: list[str]) -> None:
    assert problems_of(option, settings) == sentences


def test_a_supervised_start_has_nothing_to_learn_from_records() -> None:
    assert problems_of("table", TABLE, model__warm_start__enabled=True) == [
        "model.warm_start.enabled=true with data=table: such data holds questions and answers but no demonstrations for a "
        "supervised start; use a pretrained model (model=hf or model=smollm2), or model.warm_start.enabled=false"
    ]


def test_every_rule_about_records_speaks_in_some_case_above() -> None:
    silent = {rule.__name__ for rule in SOURCE_RULES} - {"_demonstrations"}
    for option, settings, _ in SENTENCES:
        config = composed(option).copy()
        for name, value in settings.items():
            OmegaConf.update(config, f"data.{name}", value, force_add=True)
        root: Any = OmegaConf.to_object(config)
        silent -= {rule.__name__ for rule in SOURCE_RULES if list(rule(root))}
    assert silent == set()


def test_settings_that_agree_pass() -> None:
    assert problems_of("table", TABLE) == []
    assert problems_of("hub", {**HUB, "name": "main", "eval_split": "test", "answer_after": "####"}) == []
    assert (
        problems_of("hub", {**HUB, "streaming": True, "num_train": 5, "eval_fraction": 0.0, "eval_split": "test"}) == []
    )
    assert problems_of("table", {**TABLE, "eval_fraction": 0.0}, evaluation__enabled=False) == []


def test_a_path_that_names_no_table_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    for name in ("train.jsonl", "notes.txt", "data.json", "packed.jsonl.gz"):
        (tmp_path / name).write_text("")
    (tmp_path / "empty").mkdir()
    endings = ".jsonl, .ndjson, .csv, .tsv, .parquet"
    expected = {
        "trian.jsonl": f"no such file or folder; did you mean {tmp_path}/train.jsonl?",
        "elsewhere/x.csv": "no such file or folder",
        "*.csv": "no file matches this pattern",
        "empty": f"is a folder without a table; tables end in {endings}",
        "data.json": f"data.json ends in .json; tables end in {endings}; write one record a line into a .jsonl file",
        "*.gz": f"packed.jsonl.gz ends in .gz; tables end in {endings}; unpack it: rows are read at random places",
    }
    for name, sentence in expected.items():
        assert problems_of("table", {"path": f"{tmp_path}/{name}"}) == [f"data.path={tmp_path}/{name}: {sentence}"]
    missing = f"{tmp_path}/x.csv"
    assert problems_of("table", {"mixture": {missing: 1.0}}) == [
        f"data.mixture names {missing}: no such file or folder"
    ]
    explained = {"mixture": {"mine": 1.0}, "sources": {"mine": {"path": missing}}}
    assert problems_of("table", explained) == [f"data.sources.mine.path={missing}: no such file or folder"]
    assert problems_of("table", {**TABLE, "eval_path": missing}) == [
        f"data.eval_path={missing}: no such file or folder"
    ]
    for good in ("train.jsonl", "*.jsonl", "", "**/train.jsonl"):
        assert problems_of("table", {"path": f"{tmp_path}/{good}"}) == []


def test_a_mixture_is_written_with_paths_as_names_or_with_names_that_are_explained() -> None:
    by_path = load_config([*COLD, "data=table", f"data.mixture={{{SUMS}: 3, tests/support/tables: 1}}"])
    assert by_path.data.mixture == {str(SUMS): 3.0, "tests/support/tables": 1.0}
    explained = "data.sources={gsm: {path: openai/gsm8k, name: main, answer_after: '####'}, math: {answer_boxed: true}}"
    by_name = load_config(
        [*COLD, "data=hub", "data.mixture={gsm: 1, math: 2}", explained, "data.answer_column=solution"]
    )
    assert isinstance(by_name.data, HubDataConfig)
    gsm, other = settled_sources(by_name.data)
    assert (gsm.path, gsm.name, gsm.answer_after, gsm.answer_boxed) == ("openai/gsm8k", "main", "####", False)
    assert (other.path, other.name, other.answer_after, other.answer_boxed) == ("math", None, None, True)
    assert (gsm.answer_column, other.weight, other.split) == ("solution", 2.0, "train")


def test_a_source_can_be_explained_setting_by_setting() -> None:
    words = [f"data.sources.sums.path={SUMS}", "data.sources.sums.answer_after='####'", "data.mixture.sums=2"]
    config = load_config([*COLD, "data=table", *words, "data.sources.sums.prompt_column=question"])
    assert isinstance(config.data, TableDataConfig)
    assert config.data.sources == {"sums": TableSource(str(SUMS), "question", answer_after="####")}


def test_a_source_says_for_itself_where_its_answer_stands() -> None:
    boxed, plain = TableSource(answer_boxed=True), TableSource()
    config = TableDataConfig(mixture={"a": 1.0, "b": 1.0}, sources={"a": boxed, "b": plain}, answer_after="####")
    places = [(source.answer_after, source.answer_boxed) for source in settled_sources(config)]
    assert places == [(None, True), ("####", False)]
    config = TableDataConfig(mixture={"a": 1.0}, sources={"a": TableSource(answer_after="=")}, answer_boxed=True)
    assert [(source.answer_after, source.answer_boxed) for source in settled_sources(config)] == [("=", False)]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["data.mixture={a.jsonl: x}"],
            "data.mixture={'a.jsonl': 'x'}: must be names with values, {name: value}, each a number",
        ),
        (["data.sources={gsm: {pth: a.jsonl}}"], "data.sources.gsm.pth: no such setting; did you mean data.sources?"),
        (["data.sources.gsm.pth=a.jsonl"], "data.sources.gsm.pth: no such setting; did you mean data.sources?"),
        (["data.sources.gsm.answer_boxed=7.5"], "data.sources.gsm.answer_boxed=7.5: must be true or false or null"),
        (["data.mixture={a.jsonl: 3}", "sede=3"], "sede: no such setting; did you mean seed?"),
    ],
)
def test_a_mixture_that_is_written_wrongly_is_told_how(overrides: list[str], problem: str) -> None:
    assert problem in problems_on_the_command_line("data=table", *overrides)
