"""From a task to the rows of a run: their order, what is left of a mixture, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.many_rows import MadeRows, MadeTask, made_row, question
from support.runs import completion_lines, configured, inside_run, metric_lines, train
from support.tiny import tiny_tokenizer

from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import DataError
from maxent_grpo.models.build import LoadedModel
from maxent_grpo.models.demonstrations import tokenize_demonstration
from maxent_grpo.tasks.base import Demonstration
from maxent_grpo.tasks.measure import length_figures
from maxent_grpo.tasks.prompt_writer import prompt_token_ids
from maxent_grpo.telemetry.data_summary import data_rows
from maxent_grpo.training import setup
from maxent_grpo.training.prepared_rows import (
    data_facts,
    num_dropped,
    prompt_text,
    render_all,
    row_order,
    rows_per_epoch,
    sizes_left,
    style_identity,
    styled,
)
from maxent_grpo.training.preview import run as preview_run

LOADED = LoadedModel(model=None, tokenizer=tiny_tokenizer())  # pyright: ignore[reportArgumentType] - only its tokenizer


@dataclass(frozen=True)
class EveryThird:
    """A mixture whose epoch is every third row of its sources, backwards; shows what it was asked."""

    sizes: tuple[int, ...]
    num_rows: int
    labels: tuple[str, ...] = ("long", "short")

    def order(self, seed: int, epoch: int, *, shuffle: bool = True) -> Sequence[int]:
        assert (seed, shuffle) == (7, True)
        return [(3 * n + epoch) % sum(self.sizes) for n in range(self.num_rows)][::-1]


def small(tmp_path: Path, **settings: Any) -> RootConfig:
    paths = {name.replace("__", "."): value for name, value in settings.items()}
    return configured(tmp_path / "run", settings={"generation.max_prompt_len": 10, **paths})


def test_the_order_of_rows_has_a_seed_of_its_own(tmp_path: Path) -> None:
    task = MadeTask(MadeRows(30), MadeRows(3, name="held", ask=lambda n: f"h{n}"))
    train_rows, _ = render_all(small(tmp_path), task, LOADED)
    orders = {
        name: row_order(small(tmp_path, **settings), task, train_rows).order(1)
        for name, settings in {
            "run": {},
            "other run": {"seed": 1},
            "own": {"data__order_seed": 0},
            "own in another run": {"data__order_seed": 0, "seed": 1},
            "other": {"data__order_seed": 1},
        }.items()
    }
    assert orders["run"] == orders["own"] == orders["own in another run"]
    assert orders["other"] == orders["other run"] != orders["run"]


def test_a_mixture_orders_what_is_left_of_its_sources(tmp_path: Path) -> None:
    """Of 12 and 8 rows, every third is too long, row 1 is held out, and row 19 asks what row 2 asks."""
    rows = MadeRows(20, lambda n: question(2 if n == 19 else n))
    task = MadeTask(rows, [made_row(0, lambda _: "1", "held")], EveryThird((12, 8), 6))
    config = small(tmp_path, data__order_seed=7)
    train_rows, _ = render_all(config, task, LOADED)
    assert train_rows.places is not None
    assert list(train_rows.places) == [2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17]
    order = row_order(config, task, train_rows)
    assert (len(order), order.order(1)) == (6, [16 % 11, 13 % 11, 10, 7, 4, 1])
    assert rows_per_epoch(task, train_rows) == 6
    assert data_facts(config, task, LOADED, train_rows, render_all(config, task, LOADED)[1])["mixture"] == {
        "long": 7,
        "short": 4,
    }


def test_of_rows_that_are_rendered_when_drawn_a_mixture_knows_who_is_left(tmp_path: Path) -> None:
    rows = MadeRows(20, lambda n: question(2 if n == 19 else n))
    task = MadeTask(rows, [made_row(0, lambda _: "1", "held")], EveryThird((12, 8), 6))
    config = small(tmp_path, data__order_seed=7, data__render_ahead=0)
    train_rows, _ = render_all(config, task, LOADED)
    assert [row["number"] for row in train_rows.rows if row is not None] == [2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17]
    assert row_order(config, task, train_rows).order(0) == [15, 12, 9, 6, 3, 0]  # places among the 18 that are left


def test_a_source_without_a_row_left_is_refused() -> None:
    assert sizes_left((3, 2), None) == (3, 2)
    assert sizes_left((3, 2), [0, 2, 4]) == (2, 1)
    with pytest.raises(DataError, match=r"of the 3 sources of data.mixture, number 2 has no training row left"):
        sizes_left((3, 2, 1), [0, 5])


def test_an_order_of_another_length_than_an_epoch_is_refused(tmp_path: Path) -> None:
    task = MadeTask(MadeRows(30), [])
    train_rows, _ = render_all(small(tmp_path), task, LOADED)
    longer = replace(task, mixture=_Longer((30,), 4))
    with pytest.raises(ValueError, match="the order of epoch 0 has 5 rows, not 4"):
        list(row_order(small(tmp_path), longer, train_rows))


class _Longer(EveryThird):
    def order(self, seed: int, epoch: int, *, shuffle: bool = True) -> Sequence[int]:
        return range(self.num_rows + 1)


def test_lengths_are_described_by_lengths_that_occur() -> None:
    assert length_figures([]) is None
    assert length_figures([5]) == {"min": 5, "median": 5, "p95": 5, "max": 5}
    assert length_figures(range(100, 0, -1)) == {"min": 1, "median": 50, "p95": 95, "max": 100}


def test_the_summary_says_what_was_left_out_and_why(tmp_path: Path) -> None:
    rows = [made_row(n, question if n < 20 else lambda _: "Two") for n in range(24)]
    held_out = [made_row(n, lambda n: f"{n + 10}" if n else "x" * 20, "held") for n in range(3)]
    task = MadeTask(rows, held_out, num_skipped=4)
    config = small(tmp_path)
    prepared = render_all(config, task, LOADED)
    facts = data_facts(config, task, LOADED, *prepared)
    assert facts["train"] == {
        "rows": 13,
        "prompt_tokens": {"min": 4, "median": 5, "p95": 6, "max": 6},
        "too_long": 7,
        "truncated": 0,
        "sampled": None,
        "duplicates": {"found": 3, "dropped": True},
        "overlapping": {"found": 1, "dropped": True},
    }
    assert (facts["held_out"]["rows"], facts["held_out"]["too_long"], facts["broken"]) == (2, 1, 4)
    assert facts["example"] == {"row_id": "row-1", "text": "<bos><|user|>1<|assistant|>"}
    assert num_dropped(facts) == 7 + 3 + 1 + 1 + 4
    assert data_rows(facts) == [
        ("training lengths", "4 to 6 tokens, median 5, 95% have at most 6"),
        ("held-out lengths", "5 to 5 tokens, median 5, 95% have at most 5"),
        ("", "7 training prompts are too long and dropped"),
        ("", "1 held-out prompts are too long and dropped"),
        ("", "3 training prompts ask what an earlier one asks: dropped"),
        ("", "1 training prompts ask what a held-out one asks: dropped"),
        ("", "4 rows cannot be used and are left out"),
        ("the first prompt", "<bos><|user|>1<|assistant|>"),
    ]


def test_the_summary_of_a_sample_says_so_and_a_long_example_is_shortened_in_the_middle(tmp_path: Path) -> None:
    task = MadeTask(MadeRows(60, lambda n: question(n) + "\n" + "z" * 800), [])
    config = small(tmp_path, data__render_ahead=59, generation__max_prompt_len=807)
    facts = data_facts(config, task, LOADED, *render_all(config, task, LOADED))
    rows = data_rows(facts)
    assert rows[0] == ("training lengths", "805 to 806 tokens, median 806, 95% have at most 806, of a sample of 60")
    assert rows[1] == (
        "",
        "20 training prompts are too long and dropped of a sample of 60; others when they are drawn",
    )
    assert rows[2] == ("the first prompt", "<bos><|user|>1")
    shown = "\n".join(text for label, text in rows[2:])
    assert len(shown) < 650
    assert shown.endswith("zzz<|assistant|>")
    assert f"[... {len(facts['example']['text']) - 600} characters ...]" in shown


def test_a_run_keeps_and_prints_what_its_data_come_to(tmp_path: Path) -> None:
    settings = ("data.system_prompt=Add.", "data.assistant_prefix='= '", "scoring=dr_grpo", "evaluation.enabled=false")
    train(tmp_path / "run", *settings)
    facts = json.loads((tmp_path / "run" / "data.json").read_text())
    assert facts["train"]["rows"] == 12
    seen = facts["example"]["text"]
    assert seen.startswith("<bos><|system|>Add.<|user|>")
    assert seen.endswith("<|assistant|>= ")
    assert f"the first prompt  {seen}".strip() in (tmp_path / "run" / "run.log").read_text()
    assert {line["prompt"].endswith("= ") for line in completion_lines(tmp_path / "run")} == {True}
    described = preview_run.preview(configured(tmp_path / "dry", *settings, settings={"run.dry": True}))
    assert f"the first prompt  {seen}".strip() in described


def test_seed_tags_stand_in_the_question_before_prefix_and_template(tmp_path: Path) -> None:
    """The tag belongs to the last turn of a conversation of several; what the model sees under a seed differs only there."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]

    def several(task: Any) -> Any:
        return replace(task, eval_rows=[replace(row, messages=[*turns, *row.messages]) for row in task.eval_rows])

    build = setup.build_task
    config = configured(
        tmp_path / "run",
        *("evaluation.seed_eval.enabled=true", "evaluation.seed_eval.num_seeds=2", "data.num_eval=3"),
        *("data.prompt_template='Q: {prompt} A:'", "data.assistant_prefix='= '"),
    )
    with patch.object(setup, "build_task", lambda data: several(build(data))):
        by_seed = inside_run(config, lambda ctx, resources, parts: resources.validation_ctx.seeds.rows_by_seed)  # pyright: ignore
    for first, second in zip(*by_seed, strict=True):
        assert first["prompt"].startswith("<bos><|user|>Hi<|assistant|>Yes?<eos><|user|>Q: ")
        assert first["prompt"].endswith("0] A:<|assistant|>= ")
        assert second["prompt"] == first["prompt"].replace("0] A:", "1] A:")


def test_the_warm_start_asks_as_the_run_will_ask(tmp_path: Path) -> None:
    """In the same style, prefix included; what decides the style is part of what a kept warm start is known by."""
    style = {"data__system_prompt": "Add.", "data__prompt_template": "{prompt}?", "data__assistant_prefix": "= "}
    config = small(tmp_path, **style, generation__max_prompt_len=30)
    row, *_ = render_all(config, MadeTask([made_row(n) for n in range(1, 5)], []), LOADED)[0].rows
    [shown] = styled(config, [Demonstration("d", made_row(1).messages, ("G",), (1.0,))])
    named = small(tmp_path, data__prompt_template="{prompt} of {parts}?", generation__max_prompt_len=30)
    [with_parts] = styled(named, [Demonstration("d", made_row(1).messages, ("G",), (1.0,), {"parts": [3, 4]})])
    assert with_parts.messages[-1]["content"] == "1 of [3, 4]?"
    tokens = tokenize_demonstration(shown, tiny_tokenizer(), prompt_text(config, tiny_tokenizer()))
    assert tokens.prompt == prompt_token_ids(tiny_tokenizer(), row["prompt"])
    assert row["prompt"] == "<bos><|system|>Add.<|user|>1?<|assistant|>= "
    assert style_identity(small(tmp_path)) == {}
    assert style_identity(config) != style_identity(small(tmp_path, data__system_prompt="Add."))
    json.dumps(style_identity(config))


def test_rows_rendered_when_drawn_train_as_those_rendered_ahead(tmp_path: Path) -> None:
    lines = {}
    for ahead in (0, 100):
        train(
            tmp_path / str(ahead),
            "scoring=dr_grpo",
            f"data.render_ahead={ahead}",
            "optimization.total_training_steps=4",
        )
        lines[ahead] = metric_lines(tmp_path / str(ahead))
    assert [line.pop("data/dropped_prompts") for line in lines[0][1:]] == [0, 0, 0, 0]
    assert lines[0] == lines[100]
    assert completion_lines(tmp_path / "0") == completion_lines(tmp_path / "100")
