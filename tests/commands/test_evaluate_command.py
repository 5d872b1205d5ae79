"""`python -m maxent_grpo evaluate` end to end on small runs: the run's own figures, weights, k, pairs, files, refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import SMALL_COLORING, SMALL_RUN, evaluation_lines, metric_lines, train

from maxent_grpo.commands import evaluate as command
from maxent_grpo.config.compose import config_directory
from maxent_grpo.report.evaluation_figure import evaluation_figure, read_evaluation
from maxent_grpo.stats.compare import mcnemar
from maxent_grpo.stats.passk import coverage_at_k, pass_at_k

ROOT = config_directory().parent
LEARNT = (
    "data.num_eval=7",
    "model.init_seed=3",
    "optimization.learning_rate=0.02",
    "optimization.total_training_steps=4",
    "evaluation.every_n_steps=2",
    "evaluation.ks=[1,4]",
    "evaluation.seed_eval.enabled=true",
    "checkpoint.every_n_steps=1",
    "checkpoint.keep_last=0",
    "checkpoint.best_metric=eval/pass@4",
    "generation.allowed_tokens=[R,G,B]",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("evaluate") / "run", *LEARNT).run_dir


def evaluated(output: Path, *arguments: object) -> dict[str, Any]:
    command.main([*map(str, arguments), f"output={output}"])
    return read_evaluation(output)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def recorded(run: Path, step: int) -> dict[str, float]:
    """The figures of the run's own evaluation after a step."""
    line = next(line for line in metric_lines(run) if line["step"] == step)
    return {name.removeprefix("eval/"): value for name, value in line.items() if name.startswith("eval/")}


def means(model: dict[str, Any]) -> dict[str, float]:
    return {name: figure["mean"] for name, figure in model["figures"].items()} | model["others"]


@pytest.mark.parametrize(
    ("arguments", "step"), [((), 4), (("checkpoint=start",), 0), (("checkpoint=2", "evaluation.batch_size=3"), 2)]
)
def test_an_evaluation_of_a_run_gives_the_figures_that_the_run_recorded_itself(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], step: int
) -> None:
    result = evaluated(tmp_path / "out", f"run={run}", *arguments)
    own, (model,) = recorded(run, step), result["models"]
    assert (model["step"], model["rows"], own.pop("rows")) == (step, 7, 7)
    assert means(model) == pytest.approx(own, rel=1e-12, abs=1e-12)
    assert means(model).keys() == own.keys()
    lines = [line for line in evaluation_lines(run) if line["step"] == step]
    for ours, theirs in zip(evaluation_lines(tmp_path / "out"), lines, strict=True):
        exact = ours.pop("exact"), theirs.pop("exact")
        assert exact[0] == pytest.approx(exact[1], abs=1e-9)
        assert theirs.items() <= ours.items()


def test_k_decides_how_many_samples_are_drawn_and_more_samples_begin_with_the_same_ones(
    run: Path, tmp_path: Path
) -> None:
    few = evaluated(tmp_path / "few", f"run={run}", "k=[3,1]", "limit=4")
    evaluated(tmp_path / "many", f"run={run}", "k=2", "evaluation.num_samples=6", "limit=4")
    assert (few["num_samples"], few["ks"]) == (3, [1, 3])
    short, long = evaluation_lines(tmp_path / "few"), evaluation_lines(tmp_path / "many")
    assert len(short) == 4
    for few_line, many_line in zip(short, long, strict=True):
        assert few_line["completions"] == many_line["completions"][:3]
        assert few_line["num_right"] == sum(few_line["right"])
        assert len(many_line["completions"]) == 6
    curve = few["models"][0]["curves"]
    assert curve["pass"]["k"] == [1, 2, 3]
    for place, k in enumerate(curve["pass"]["k"]):
        expected = [pass_at_k(3, line["num_right"], k) for line in short]
        assert curve["pass"]["mean"][place] == pytest.approx(sum(expected) / 4)
        assert curve["pass"]["low"][place] <= curve["pass"]["mean"][place] <= curve["pass"]["high"][place]
        found = [coverage_at_k(list(line["mode_counts"].values()), 3, k, line["num_modes"]) for line in short]
        assert curve["coverage"]["mean"][place] == pytest.approx(sum(found) / 4)


def test_two_models_are_compared_problem_by_problem(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(tmp_path / "out", f"run={run}@2", f"against={run}", "k=4", "evaluation.exact=never")
    (better, worse), (comparison,) = result["models"], result["comparisons"]
    lines = evaluation_lines(tmp_path / "out")
    pairs = list(zip(lines[:7], lines[7:], strict=True))
    assert all(left["row_id"] == right["row_id"] for left, right in pairs)
    won = sum(left["greedy_right"] and not right["greedy_right"] for left, right in pairs)
    lost = sum(right["greedy_right"] and not left["greedy_right"] for left, right in pairs)
    greedy = comparison["figures"]["greedy"]
    assert won + lost > 0
    assert (greedy["only_model_right"], greedy["only_against_right"]) == (won, lost)
    assert greedy["p"] == mcnemar(won, lost)
    assert greedy["difference"] == pytest.approx((won - lost) / 7)
    for name, found in comparison["figures"].items():
        change = better["figures"][name]["mean"] - worse["figures"][name]["mean"]
        assert found["difference"] == pytest.approx(change, abs=1e-12)
        assert found["low"] <= found["difference"] <= found["high"]
    assert (comparison["rows"], comparison["left_out"]) == (7, 0)
    printed = capsys.readouterr().out
    assert f"step 2 minus step 4, 7 problems\n{'':<15}" in printed
    assert f"McNemar, exact: {won} won, {lost} lost" in printed


def test_runs_of_a_sweep_stand_in_one_table_and_a_model_alone_is_evaluated_as_it_starts(
    run: Path, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    for name in ("10-seed=1", "9-seed=0"):
        (sweep / name).symlink_to(run)
    asked = (f"run={sweep}@2", f"run={run}", "k=[1]", "limit=2", "evaluation.greedy=false", "evaluation.exact=never")
    result = evaluated(tmp_path / "out", *asked, "evaluation.seed_eval.enabled=false", "split=train")
    assert [Path(model["source"]).name for model in result["models"]] == ["9-seed=0@2", "10-seed=1@2", "run"]
    assert [model["step"] for model in result["models"]] == [2, 2, 4]
    assert result["models"][0]["figures"] == result["models"][1]["figures"]
    assert "greedy" not in result["models"][0]["figures"]
    assert len({line["row_id"] for line in evaluation_lines(tmp_path / "out")}) == 2

    alone = evaluated(
        tmp_path / "alone", "model=tiny", "model.warm_start.enabled=false", "k=1", "limit=1", "run.device=cpu"
    )
    (model,) = alone["models"]
    assert (model["source"], model["step"], model["rows"]) == ("model=tiny", None, 1)
    assert model["figures"]["pass@1"]["low"] is None, "one problem has no interval"


def test_a_transformers_folder_and_a_checkpoint_are_evaluated_like_the_run_they_come_from(
    run: Path, tmp_path: Path
) -> None:
    folder = run / "checkpoints/step_2/model"
    as_trained = [text for text in (*SMALL_RUN, *SMALL_COLORING, *LEARNT) if not text.startswith("model.")]
    model = evaluated(tmp_path / "folder", f"run={folder}", *as_trained)["models"][0]
    assert (model["label"], model["step"]) == ("model", None)
    own = recorded(run, 2)
    assert own.pop("rows") == 7
    assert means(model) == pytest.approx(own, rel=1e-5, abs=1e-6)
    ended = tmp_path / "ended"
    shutil.copytree(run, ended, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(run / "checkpoints/step_4/model", ended / "model")
    for which in ("last", "final"):
        final = evaluated(tmp_path / which, f"run={ended}", f"checkpoint={which}")["models"][0]
        assert (final["step"], final["checkpoint"]) == (4, str(ended / "model"))
        assert {"rows": 7.0, **means(final)} == pytest.approx(recorded(run, 4), rel=1e-12, abs=1e-12)
    checkpoint = evaluated(tmp_path / "checkpoint", f"run={folder.parent}")["models"][0]
    assert checkpoint["step"] == 2
    assert means(checkpoint) == pytest.approx(means(model), rel=1e-5, abs=1e-6)


def test_the_figure_draws_every_curve_with_its_band_and_greedy(run: Path, tmp_path: Path) -> None:
    result = evaluated(tmp_path / "out", f"run={run}", f"against={run}@1", "evaluation.exact=never")
    figure = evaluation_figure(result)
    assert [axes.get_label() for axes in figure.axes] == ["pass", "maj", "coverage"]
    for axes in figure.axes:
        drawn = {tuple(np.asarray(line.get_ydata()).tolist()) for line in axes.lines}
        assert drawn == {tuple(model["curves"][axes.get_label()]["mean"]) for model in result["models"]}
        kinds = [type(part).__name__ for part in axes.collections]
        assert kinds.count("FillBetweenPolyCollection") == 2
        assert kinds.count("LineCollection") == (0 if axes.get_label() == "coverage" else 2)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "evaluation.json",
        "evaluation.png",
        "evaluation.svg",
        "evaluations.jsonl",
    }
    assert "share of problems solved by one of k samples" in (tmp_path / "out/evaluation.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run={run}", "limt=3"], "limt: no such argument; did you mean limit?"),
        (["run={run}", "temperature=1"], "temperature: no such argument; did you mean evaluation.temperature?"),
        (["run={run}", "evaluation.tempertaure=1"], "no such setting; did you mean evaluation.temperature?"),
        (["run={run}", "data=colouring"], "data=colouring: no such option; data has coloring, countdown"),
        (["run={run}", "k"], "k: arguments are written name=value; did you mean k=?"),
        (["run={run}", "k=[1,0]"], "k=[1,0]: takes numbers of samples from 1 on"),
        (["run={run}", "k=[1,9]", "evaluation.num_samples=8"], "k=[1,9]: 9 is more than evaluation.num_samples=8"),
        (["run={run}", "evaluation.ks=[9]"], "evaluation.ks=[9]: 9 is not between 1 and evaluation.num_samples=8"),
        (["run={run}", "k=1", "evaluation.ks=[1]"], "k=[1] and evaluation.ks= say the same thing twice"),
        (["run={run}", "limit=0"], "limit=0: takes a number of problems from 1 on"),
        (["run={run}", "split=test"], "split=test: is one of eval, train"),
        (["run={run}", "checkpoint=bst"], "did you mean best?"),
        (["run={run}", "checkpoint=9"], "has no checkpoint of step 9: there are steps 1, 2, 3, 4, and start"),
        (["run={run}", "experiment=tiny_grpo"], "a run keeps the settings it was made with"),
        (["run={run}", "data=countdown"], "generation.max_completion_len=4 is too short for data.num_numbers=3"),
        (["run={run}", "output={run}"], "already holds a run or an evaluation; name another folder"),
        (["run={run}/checkpoints"], "is neither a run (it has no config.yaml), nor a checkpoint"),
        (["run={run}/nowhere"], "does not exist; name a run directory, a transformers folder or a hub id"),
        (["k=1"], "nothing to evaluate: write run="),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written = [text.format(run=run) for text in arguments]
    if not any(text.startswith("output=") for text in written):
        written.append(f"output={tmp_path / 'out'}")
    assert sentence in refused(capsys, *written)
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_best_checkpoint_and_a_damaged_one_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = train(tmp_path / "other", "evaluation.enabled=false", "optimization.total_training_steps=1").run_dir
    assert "keeps no best checkpoint, for which checkpoint.best_metric must be set" in refused(
        capsys, f"run={other}@best"
    )
    weights = other / "checkpoints/step_1/model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "is damaged: model/model.safetensors has" in refused(capsys, f"run={other}/checkpoints/step_1")


def test_an_evaluation_that_cannot_be_done_leaves_no_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([f"run={run}", "generation.max_prompt_len=1", f"output={tmp_path / 'out'}"])
    assert ended.value.code == 1
    assert "prompts are longer than generation.max_prompt_len=1 tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_wrong_argument_is_said_before_torch_is_loaded() -> None:
    code = (
        "import sys\nfrom maxent_grpo.__main__ import main\n"
        "try:\n    main(['evaluate', 'model=tiny', 'evaluation.nmu_samples=3'])\n"
        "except SystemExit as ended:\n    print(ended.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("2 False\n", 0)
    assert "did you mean evaluation.num_samples?" in done.stderr
    assert "Traceback" not in done.stderr


def test_evaluation_json_records_what_was_asked(run: Path, tmp_path: Path) -> None:
    asked = (f"run={run}", "evaluation.temperature=0.5", "evaluation.seed=3", "evaluation.exact=never", "limit=2")
    result = evaluated(tmp_path / "out", *asked, "evaluation.seed_eval.enabled=false")
    assert result["arguments"] == [*asked, "evaluation.seed_eval.enabled=false", f"output={tmp_path / 'out'}"]
    assert result["sampling"] == {"seed": 3, "temperature": 0.5, "top_p": 1.0, "max_completion_len": 4}
    assert (result["data"], result["split"], result["limit"], result["num_samples"]) == ("coloring", "eval", 2, 8)
    assert result["versions"]["torch"]
    assert json.loads((tmp_path / "out/evaluation.json").read_text()) == result
