"""Settings whose effect two plain runs do not show: each has a test of its own, named in ``test_knobs``."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import wandb
from support.checkpoints import save_checkpoint, small_tokenizer
from support.knob_effects import trains
from support.observe import observe
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, only_reward, small, train
from support.source_knobs import (
    SUMS,
)
from support.stops import Sends
from support.sweep_jobs import note
from support.wandb_run import offline_parts, tracked, write_steps
from torch._dynamo.utils import counters

from maxent_grpo.commands.sweep import run_sweep
from maxent_grpo.commands.train import hydra_main
from maxent_grpo.config.data_sources import TableDataConfig
from maxent_grpo.config.load import load_config
from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.errors import ConfigError, DataError, NonFiniteError, RewardError
from maxent_grpo.models import build, hub
from maxent_grpo.models.build import build_model
from maxent_grpo.sweeps.record import read_jobs, read_sweep
from maxent_grpo.sweeps.table import in_order
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.training import samplers, setup
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.preview.run import start
from maxent_grpo.training.reward_terms import build_rewards
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.stopping import StopCause
from maxent_grpo.training.types.choices import GraderName

QUICK = ("scoring=dr_grpo", "evaluation.enabled=false")


def test_a_model_of_ones_own_is_read_with_its_tokenizer_and_template(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model", "llama")
    small_tokenizer(template="{{ messages[0]['content'] }}!").save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "chat.jinja").write_text("{{ messages[0]['content'] }}?")
    prompts = []
    for extra in ((), (f"model.tokenizer={tmp_path}/tokenizer",), (f"model.chat_template={tmp_path}/chat.jinja",)):
        config = configured(tmp_path / "run", "model=hf", f"model.name={model}", *extra)
        loaded = build_model(config.model)
        prompts.append(loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False))
    assert prompts == ["<bos><|user|>hi", "hi!", "hi?"]


def test_a_version_of_a_hub_model_is_asked_for() -> None:
    asked: list[tuple[object, ...]] = []

    def fetch(name: str, *, revision: str | None, **_: object) -> str:
        asked.append((name, revision))
        raise OSError

    with patch.object(hub, "snapshot_download", fetch), pytest.raises(ConfigError, match="cannot be reached"):
        build_model(HfModelConfig(name="owner/name", revision="v2"))
    assert asked == [("owner/name", "v2")]


def test_code_of_a_model_is_run_only_when_it_is_trusted(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model", "llama")
    described = json.loads((model / "config.json").read_text()) | {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.C"},
    }
    (model / "config.json").write_text(json.dumps(described))
    (model / "mine.py").write_text(
        "from transformers import LlamaConfig\n\n\nclass C(LlamaConfig):\n    model_type = 'mine'\n"
    )
    with pytest.raises(ConfigError, match="is Python code in its repository"):
        build_model(HfModelConfig(name=str(model)))
    # trusted, it is read; as it brings a configuration only, there is no model to it
    with pytest.raises(ConfigError, match="is no language model that writes text"):
        build_model(HfModelConfig(name=str(model), trust_remote_code=True))


def test_the_packaged_model_is_looked_for_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no converted model in {tmp_path}/smollm2-135m-instruct"):
        configured(tmp_path / "run", "model=smollm2", f"model.cache_dir={tmp_path}")


def test_compiling_changes_how_training_runs_and_not_what_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Traced as for a compiler; test_compile.py compiles. A graph with gradient and one without, for all lengths."""
    monkeypatch.setattr(build, "COMPILE_BACKEND", "eager")
    caplog.set_level("WARNING", "torch.__trace")  # every step of the tracer would be kept
    counters["stats"].clear()
    plain, compiled = (
        observe(configured(tmp_path / str(compiles), *QUICK, f"model.compile={compiles}")) for compiles in (False, True)
    )
    assert counters["stats"]["unique_graphs"] == 2
    assert plain.lines == compiled.lines
    assert plain.weights.keys() == compiled.weights.keys()
    assert all(torch.equal(plain.weights[name], compiled.weights[name]) for name in plain.weights)


def test_best_of_is_refused_by_a_sampler_that_does_not_offer_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="generation=local does not sample more than it keeps"):
        configured(tmp_path / "run", *QUICK, "generation.penalty.gen_best_of=8")


class OneAtATime(LocalGenerator):
    """Delivers a single completion of each prompt whenever it is asked."""

    def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
        return super().__call__(prompts, num_samples, [1] * len(prompts))


def test_retry_rounds_decide_whether_a_slow_sampler_loses_prompts(tmp_path: Path) -> None:
    """Three completions take two retry rounds; 0 allows as many as the group is large."""
    slow = (*QUICK, "generation.num_generations=3", "optimization.total_training_steps=1")
    with patch.object(samplers, "LocalGenerator", OneAtATime):
        for rounds, expected in ((0, 2.0), (2, 2.0)):
            train(tmp_path / str(rounds), *slow, f"generation.max_retry_rounds={rounds}")
            [line] = metric_lines(tmp_path / str(rounds))
            assert line["generation/retry_rounds"] == expected
            assert (line["generation/partial_prompts"], line["generation/dropped_prompts"]) == (4.0, 0.0)
        with pytest.raises(Exception, match="after 1 retry rounds 0 had none and 4 had fewer than 3"):
            train(tmp_path / "1", *slow, "generation.max_retry_rounds=1")


def with_long_prompts(task: Task) -> Task:
    """The task with a longer question in every third training row."""
    rows = [
        replace(row, messages=[{"role": "user", "content": "Please. " + row.messages[0]["content"]}])
        if n % 3 == 0
        else row
        for n, row in enumerate(task.train_rows)
    ]
    kept = {name: getattr(task, name) for name in ("name", "eval_rows", "answer_alphabet", "grade", "demonstrations")}
    return cast(Task, SimpleNamespace(train_rows=rows, **kept))


def test_long_prompts_are_dropped_or_cut(tmp_path: Path) -> None:
    shortened = (*QUICK, "generation.max_prompt_len=10", "data.shuffle=false", "optimization.total_training_steps=3")
    build = setup.build_task
    with patch.object(setup, "build_task", lambda config: with_long_prompts(build(config))):
        for choice in ("drop", "truncate_left"):
            train(tmp_path / choice, *shortened, f"data.long_prompts={choice}")
    seen = {choice: completion_lines(tmp_path / choice) for choice in ("drop", "truncate_left")}
    assert re.search(r"dropped prompts +4", (tmp_path / "drop" / "run.log").read_text())
    assert len({line["row_id"] for line in seen["drop"]}) == 8
    assert not [line for line in seen["drop"] if "<bos>" not in line["prompt"]]
    assert re.search(r"dropped prompts +0", (tmp_path / "truncate_left" / "run.log").read_text())
    cut = {line["prompt"] for line in seen["truncate_left"] if "<bos>" not in line["prompt"]}
    assert len({line["row_id"] for line in seen["truncate_left"]}) == 12
    assert len(cut) == 4
    assert all(prompt.startswith("ase. ") and prompt.endswith("<|assistant|>") for prompt in cut)


def test_examples_of_a_file_are_shown_before_the_question(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"question": "RG.", "answer": "B"}\n')
    train(tmp_path / "run", *QUICK, f"data.examples_file={path}", "optimization.total_training_steps=1")
    prompts = {line["prompt"] for line in completion_lines(tmp_path / "run")}
    assert {prompt.startswith("<bos><|user|>RG.<|assistant|>B<eos><|user|>") for prompt in prompts} == {True}


def test_a_warm_start_is_kept_in_its_folder_and_read_from_it(tmp_path: Path) -> None:
    warm = ("model.warm_start.enabled=true", "model.warm_start.steps=2", "model.warm_start.num_problems=8")
    for name, cached in (("first", "trained in"), ("second", "read from the cache")):
        train(tmp_path / name, *QUICK, *warm, f"model.warm_start.cache_dir={tmp_path / 'cache'}")
        assert cached in (tmp_path / name / "run.log").read_text()
        assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".safetensors"]


def test_a_pretrained_model_is_taught_before_it_is_trained(tmp_path: Path) -> None:
    """A checkpoint read from its folder begins where demonstrations, in the run's own words for a question, brought it."""
    model = save_checkpoint(tmp_path / "model", "llama")
    asked = ("data=countdown", "data.prompt_template='{numbers}={target}'", "data.num_train=8", "data.num_eval=4")
    taught = (
        "model.warm_start.steps=3",
        "model.warm_start.num_problems=8",
        f"model.warm_start.cache_dir={tmp_path}/cache",
    )
    starts = []
    for name, enabled in (("published", "false"), ("taught", "true")):
        settings = ("model=hf", f"model.name={model}", f"model.warm_start.enabled={enabled}", *asked, *taught)
        starts.append(observe(configured(tmp_path / name, *QUICK, *settings, "generation.max_prompt_len=32")))
    published, after = starts
    trains(published, after)
    assert "warm start: 3 supervised steps" in (after.run_dir / "run.log").read_text()
    assert "warm start" not in (published.run_dir / "run.log").read_text()


def test_dropout_beside_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.lora\.dropout=0\.1: training would score completions under another policy"
    ):
        configured(tmp_path / "run", *QUICK, "model.lora.enabled=true", "model.lora.dropout=0.1")


def test_a_run_starts_from_the_adapter_that_it_is_given(tmp_path: Path) -> None:
    lora = (*QUICK, "model.lora.enabled=true")
    first = observe(configured(tmp_path / "first", *lora))
    adapter = checkpoint_of(first.run_dir) / "adapter"
    second = observe(configured(tmp_path / "second", *lora, f"model.lora.adapter={adapter}"))
    trains(first, second)
    assert second.series("reward/mean")[0] != first.series("reward/mean")[0]


def test_the_console_speaks_or_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = {}
    for console in ("silent", "plain"):
        train(tmp_path / console, *QUICK, f"logging.console={console}")
        said[console] = "".join(capfd.readouterr())
    assert said["silent"] == ""
    assert "method: dr_grpo" in said["plain"]


def test_settings_of_wandb_name_and_place_the_run(tmp_path: Path) -> None:
    changes = ("project=sums", "entity=team", "name=mine", "group=ours", "tags=[a,b]", "mode=offline")
    config = configured(tmp_path / "none", "logging=wandb", *(f"logging.wandb.{change}" for change in changes)).logging
    write_steps(tracked(tmp_path / "first"), 1, 1)
    write_steps(tracked(tmp_path / "second"), 1, 1, config.wandb)
    write_steps(tracked(tmp_path / "third", resumed_from=tmp_path / "second"), 2, 2, config.wandb)
    branch = replace(config.wandb, continue_run=False)
    write_steps(tracked(tmp_path / "branch", resumed_from=tmp_path / "second"), 2, 2, branch)
    wandb.teardown()
    [first], [second], [third], [other] = (
        offline_parts(tmp_path / name) for name in ("first", "second", "third", "branch")
    )
    assert (first.project, first.entity, first.name, first.group) == ("maxent_grpo", "", "grpo, seed 3, first", "")
    assert first.tags == ["scoring=grpo"]
    assert (second.project, second.entity, second.name, second.group) == ("sums", "team", "mine", "ours")
    assert second.tags == ["a", "b", "scoring=grpo"]
    assert second.folder.name.startswith("offline-run-")
    assert (first.id == second.id, second.id == third.id, second.id == other.id) == (False, True, False)


def test_resuming_takes_over_the_steps_already_made(tmp_path: Path) -> None:
    train(tmp_path / "first", *QUICK)
    result = train(tmp_path / "second", *QUICK, "optimization.total_training_steps=3", resume_from=tmp_path / "first")
    assert result.global_step == 3
    assert [line["step"] for line in metric_lines(tmp_path / "second")] == [1, 2, 3]
    assert metric_lines(tmp_path / "second")[:2] == metric_lines(tmp_path / "first")


def test_controller_state_is_written_where_asked_and_not_over_another_run(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    placed = (*QUICK, f"controller.paths.state_path={kept}")
    train(tmp_path / "first", *placed)
    assert json.loads(kept.read_text())["step"] == 2
    assert not (tmp_path / "first" / "controller_state.json").exists()
    with pytest.raises(ConfigError, match=f"controller.paths.state_path={kept}: holds the state of another run"):
        configured(tmp_path / "second", *placed)
    train(tmp_path / "second", *placed, "controller.paths.overwrite_existing=true")
    assert json.loads(kept.read_text())["run_dir"] == str(tmp_path / "second")


def test_controllers_alone_can_continue_from_another_run(tmp_path: Path) -> None:
    maxent = ("scoring=maxent", "evaluation.enabled=false")
    train(tmp_path / "flat", *maxent, "scoring.weighting.tau=2.0")
    state = tmp_path / "flat" / "controller_state.json"
    plain = observe(configured(tmp_path / "plain", *maxent))
    taken = observe(configured(tmp_path / "taken", *maxent, f"controller.paths.resume_from={state}"))
    assert plain.series("controller/tau") == [0.1, 0.1]
    assert taken.series("controller/tau") == [2.0, 2.0]
    trains(plain, taken)


def test_a_failing_term_stops_the_run_or_abstains(tmp_path: Path) -> None:
    failing = (*QUICK, *only_reward("refuses_green"))
    with pytest.raises(RewardError, match=r"reward term 'refuses_green' on row .* raised LookupError"):
        train(tmp_path / "stop", *failing)
    train(tmp_path / "abstain", *failing, "+reward.on_error.refuses_green=abstain")
    assert all(line["reward/abstained"] > 0 for line in metric_lines(tmp_path / "abstain"))


def test_families_and_their_settings_decide_the_problems() -> None:
    def asked(*changes: str) -> list[str]:
        small = ("data=reasoning_gym", "data.num_train=4", "data.num_eval=1", "run.dir=nowhere")
        config = load_config(["model.warm_start.enabled=false", *small, *changes])
        return [row.messages[0]["content"] for row in build_task(config.data).train_rows]

    plain = asked("data.tasks.chain_sum=1")
    assert asked("data.tasks.leg_counting=1") != plain
    assert asked("data.tasks.chain_sum=1", "data.task_settings.chain_sum.min_terms=6") != plain


def test_a_number_may_be_off_by_its_tolerance(tmp_path: Path) -> None:
    """The small task has no numbers: its reward terms are put together as for a run, and asked."""
    for field, tolerance, expected in (("absolute", 0.0, 0.0), ("absolute", 1.0, 1.0), ("relative", 0.02, 1.0)):
        config = configured(tmp_path / "run", "+reward.terms.numeric=1", f"reward.numeric.{field}={tolerance}")
        numeric = build_rewards(config, build_task(config.data)).reward_funcs[-1]
        [grade] = numeric(["?"], ["101"], [[1]], {"answer": ["100"]})
        assert grade.reward == expected


def test_a_search_is_given_its_time(tmp_path: Path) -> None:
    """Twelve letters are searched within 10 seconds, sixty are left after a thousandth."""
    pattern = ("+reward.terms.regex=1", "reward.regex.pattern='(a|aa)+$'")
    for seconds, length, reason in ((10.0, 12, ""), (0.001, 60, "too_slow")):
        config = configured(tmp_path / "run", *pattern, f"reward.regex.time_limit={seconds}")
        term = build_rewards(config, build_task(config.data)).reward_funcs[-1]
        [grade] = term(["?"], ["a" * length + "c"], [[1]], {})
        assert grade.reason == reason


def test_broken_rows_stop_the_run_or_are_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(SUMS.read_text() + '{"prompt": "3+3="}\n')
    small = (*QUICK, "data=table", f"data.path={broken}", "data.num_train=null", "data.grader=exact")
    with pytest.raises(DataError, match=r"broken\.jsonl, line 25: there is no column answer"):
        train(tmp_path / "stop", *small)
    train(tmp_path / "skip", *small, "data.on_bad_row=skip")
    assert "1 record left out" in (tmp_path / "skip" / "run.log").read_text()
    asked = {line["prompt"] for line in completion_lines(tmp_path / "skip")}
    assert len(asked) == 8
    assert all(re.fullmatch(r"<bos><\|user\|>\d\+\d=<\|assistant\|>", prompt) for prompt in asked)


def test_answers_are_shown_to_the_grader_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "one"}\n' * 4)
    config = TableDataConfig(path=str(tmp_path / "a.jsonl"), grader=GraderName.numeric)
    with pytest.raises(DataError, match="4 records cannot be used"):
        build_task(config)
    assert len(build_task(replace(config, check_answers=0)).train_rows) == 4


def test_files_made_of_the_data_are_kept_in_their_folder(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "answer": 1}] * 4), tmp_path / "a.parquet")
    build_task(TableDataConfig(path=str(tmp_path / "a.parquet"), cache_dir=str(tmp_path / "kept")))
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".arrow"]


def test_a_dry_run_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for dry, left in ((True, []), (False, ["run"])):
        start(configured(tmp_path / "run", *QUICK, settings={"run.dry": dry}))
        assert [path.name for path in tmp_path.iterdir()] == left
        assert ("would write to" in capsys.readouterr().out) is dry


def test_a_sweep_goes_on_only_where_that_is_asked(tmp_path: Path) -> None:
    arguments = ["seed=3", f"hydra.sweep.dir={tmp_path}/sweep"]
    run_sweep(arguments, note)
    with pytest.raises(ConfigError, match="already holds a sweep"):
        run_sweep([*arguments, "run.sweep_resume=false"], note)
    run_sweep([*arguments, "run.sweep_resume=true"], note)


def test_the_best_job_of_a_sweep_stands_first(tmp_path: Path) -> None:
    sweep = [*small(()), *QUICK, "optimization.total_training_steps=1", "seed=0,1", "run.objective=reward/mean"]
    found: dict[str, list[float]] = {}
    for goal in ("max", "min"):
        run_sweep([*sweep, f"run.objective_goal={goal}", f"hydra.sweep.dir={tmp_path}/{goal}"], hydra_main)
        jobs = in_order(read_jobs(tmp_path / goal), read_sweep(tmp_path / goal))
        found[goal] = [job.metrics["reward/mean"] for job in jobs]
    low, high = found["min"]
    assert low < high
    assert found["max"] == [high, low]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_not_replaced_in_silence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.device=cuda"):
        train(tmp_path / "run", *QUICK, "run.device=cuda")


def test_a_run_has_its_time(tmp_path: Path) -> None:
    result = run_from_config(configured(tmp_path / "run", *QUICK, settings={"run.max_hours": 1e-9}))
    assert (result.global_step, result.stopped) == (0, StopCause.time_limit)


def test_a_job_that_is_out_of_time_is_queued_again_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "scontrol"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name, choice in (("never", {}), ("asked for", {"run.requeue": "out_of_time"})):
        settings = {"checkpoint.resume_from": "latest", **choice}
        config = configured(tmp_path / name, *QUICK, settings=settings)
        assert run_from_config(config, watchers=[Sends(1, signal.SIGUSR1)]).stopped is StopCause.notice
        assert (tmp_path / "asked").exists() == (name == "asked for")
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_a_step_that_is_not_finite_stops_the_run_or_is_left_out(tmp_path: Path) -> None:
    overflowing = (*QUICK, *only_reward("overflows"))
    with pytest.raises(NonFiniteError, match="step 1, process 0: loss is"):
        train(tmp_path / "stop", *overflowing)
    left_out = {"run.on_nonfinite": "skip", "run.max_nonfinite": 2}
    assert run_from_config(configured(tmp_path / "skip", *overflowing, settings=left_out)).global_step == 2
    fewer = {**left_out, "run.max_nonfinite": 1}
    with pytest.raises(NonFiniteError, match=r"2nd step in a row.* run\.max_nonfinite=1 may be left out"):
        run_from_config(configured(tmp_path / "fewer", *overflowing, settings=fewer))
