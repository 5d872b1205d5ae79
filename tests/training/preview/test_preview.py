"""`run.dry=true`: what it says, what it refuses, and that nothing appears on the disk."""

import re
from pathlib import Path

import pytest
import torch
from support.called import called
from support.runs import SMALL, configured, overrides, train
from torch.utils._python_dispatch import TorchDispatchMode

import maxent_grpo
from maxent_grpo.commands.train import main
from maxent_grpo.errors import CheckpointError, ConfigError, DataError
from maxent_grpo.training.memory import Phase
from maxent_grpo.training.preview.run import preview, start, workload
from maxent_grpo.training.preview.sight import look, outline
from maxent_grpo.training.preview.sizes import memory_estimate, model_shape, parameter_counts
from maxent_grpo.training.setup import run_from_config


def value(text: str, label: str) -> str:
    found = re.search(rf"^  {label} {{2,}}(.*)$", text, flags=re.MULTILINE)
    assert found is not None, f"{label} is not in\n{text}"
    return found[1]


def test_a_dry_run_says_everything_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    done = called(main, ["run.dry=true", "model.warm_start.num_problems=8"], capsys)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    titles = [line.split(":")[0] for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert titles[:4] == ["method", "batch", "data", "run"]
    assert titles[-4:-1] == ["tokens", "length", "memory, estimated"]
    assert re.fullmatch(r"would write to outputs/[\d-]+/[\d-]+", done.stdout.splitlines()[-1])
    assert value(done.stdout, "training prompts").endswith("3500")
    assert "embedding 13,184, attention 196,608, feed-forward 589,824" in value(done.stdout, "weights")


def test_counts_are_those_of_the_run(tmp_path: Path) -> None:
    """3 vertices with 2 hidden make prompts of 7 tokens: start, role, one colour, three pairs, role."""
    text = preview(
        configured(
            tmp_path / "run", "optimization.total_training_steps=5", "optimization.minibatches=2",
            "evaluation.every_n_steps=2", "checkpoint.every_n_steps=2", "checkpoint.keep_last=2",
        )
    )  # fmt: skip
    assert (
        re.findall(r"^  (?:training|held-out) prompts +(7 to 7.*)$", text, flags=re.MULTILINE)
        == ["7 to 7 tokens, mean 7.0"] * 2
    )
    assert value(text, "a rollout") == "56 of prompts + at most 128 of completions"
    assert value(text, "a training step") == "28 of prompts + at most 64 of completions"
    assert value(text, "an evaluation") == "56 of prompts + at most 144 of completions"
    assert value(text, "the whole run") == "at most 1,812: sampled 552, trained 460, evaluated 800"
    assert value(text, "steps") == "5"
    assert value(text, "evaluations") == "4, at steps 0, 2, 4, 5"
    assert value(text, "checkpoints").startswith("3, of which 2 kept; ")
    assert "each rollout is also scored once without gradient" in text
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_has_the_size_that_is_said(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", "evaluation.enabled=false", "model.hidden_size=128", "model.num_heads=2")
    said = float(re.findall(r"([\d.]+) MiB each", preview(config))[0])
    run_from_config(config)
    files = (tmp_path / "run" / "checkpoints" / "step_2").rglob("*.safetensors")
    assert said == pytest.approx(sum(file.stat().st_size for file in files) / 2**20, rel=0.1)


class NoRealWeights(TorchDispatchMode):
    """Notes the largest tensor made outside the meta device."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type != "meta":
            self.largest = max(self.largest, result.numel())
        return result


def test_no_weights_are_made(tmp_path: Path) -> None:
    config = configured(tmp_path / "run")
    with NoRealWeights() as seen:
        model = outline(config).model
        preview(config)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert sum(parameter_counts(model).values()) == model.num_parameters() > 5000
    assert seen.largest < 200


def test_what_would_stop_a_run_stops_the_preview(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="12 training prompts are fewer"):
        preview(configured(tmp_path / "run", "optimization.prompts_per_step=13"))
    with pytest.raises(ConfigError, match="are not single tokens"):
        preview(configured(tmp_path / "run", "generation.allowed_tokens=[RG]"))
    train(tmp_path / "first", "evaluation.enabled=false")
    again = ("evaluation.enabled=false", "optimization.total_training_steps=4")
    text = preview(configured(tmp_path / "second", *again, resume_from=tmp_path / "first"))
    assert value(text, "steps") == "2 after the 2 of the checkpoint"
    assert value(text, "evaluations") == "none"
    with pytest.raises(CheckpointError, match=r"optimization.learning_rate: 0.01 in the checkpoint, 0.1 now"):
        preview(configured(tmp_path / "second", "optimization.learning_rate=0.1", resume_from=tmp_path / "first"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first"]


def test_a_wrong_dry_configuration_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("+sede=3", "generation.allowed_tokens=[RG]"):
        with pytest.raises(SystemExit) as left:
            main([*overrides(tmp_path / "run", "run.dry=true", wrong)])
        assert left.value.code == 2
    assert "sede: no such setting" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_each_job_of_a_sweep_describes_itself_where_it_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = [text for text in SMALL if not text.startswith("run.dir")]
    jobs = ["-m", *here, "run.dry=true", "scoring=grpo,maxent", "seed=4", f"hydra.sweep.dir={tmp_path}/sweep"]
    said = called(main, jobs, capsys).stdout
    assert re.findall(r"^method: (.*)$", said, flags=re.MULTILINE) == ["grpo", "maxent"]
    assert re.findall(r"^would write to (.*)$", said, flags=re.MULTILINE) == [
        f"{tmp_path}/sweep/0-scoring=grpo",
        f"{tmp_path}/sweep/1-scoring=maxent",
    ]
    with pytest.raises(SystemExit):
        main(["-m", *here, "run.dry=true,false", f"hydra.sweep.dir={tmp_path}/sweep"])
    assert "run.dry: some jobs of this sweep would be described and others run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_call_prints_the_preview(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = maxent_grpo.run(overrides(tmp_path / "run", "run.dry=true"))
    assert (result.global_step, result.run_dir) == (0, tmp_path / "run")
    assert capsys.readouterr().out.splitlines()[-1] == f"would write to {tmp_path / 'run'}"
    config = configured(tmp_path / "run", "run.dry=true")
    with pytest.raises(ValueError, match=r"run\.dry=true"):
        run_from_config(config)
    assert start(config).global_step == 0
    assert list(tmp_path.iterdir()) == []


def phases_of(*changes: str) -> dict[str, Phase]:
    config = configured(Path("nowhere"), *changes)
    sight = look(config)
    work = workload(config, sight)
    estimate = memory_estimate(config, work, model_shape(sight.model), process=0, on_gpu=False)
    return {phase.name: phase for phase in estimate.phases}


def test_settings_act_on_the_estimate() -> None:
    plain = phases_of()
    assert {"reference scoring", "scoring at rollout weights", "warm start, forward"} & set(plain) == set()
    assert "reference scoring" in phases_of("scoring.kl_beta=0.1")
    assert "scoring at rollout weights" in phases_of("optimization.num_iterations=2")
    warm = phases_of("model.warm_start.enabled=true", "model.warm_start.num_problems=8")
    assert "warm start, forward" in warm
    assert "evaluation" not in phases_of("evaluation.enabled=false")
    for change, phase in (
        ("scoring.batching.score_slice=4", "training, forward"),
        ("scoring.batching.max_tokens=30", "training, forward"),
        ("scoring.policy_entropy=false", "training, forward"),
        ("model.gradient_checkpointing=true", "training, forward"),
        ("generation.batch_size=4", "sampling"),
        ("evaluation.batch_size=2", "evaluation"),
    ):
        assert phases_of(change)[phase].size < plain[phase].size, change
    for change in ("model.attention=eager", "scoring.batching.share_prompts=false", "model.dtype=float64"):
        assert phases_of(change)["training, forward"].size > plain["training, forward"].size, change


def test_a_run_with_vllm_is_described_and_nothing_is_started(tmp_path: Path) -> None:
    described = {}
    for name, extra in {
        "local": (),
        "joined": ("generation=vllm", "generation.vllm.url=http://127.0.0.1:9"),
    }.items():
        described[name] = preview(configured(tmp_path / name, "scoring=dr_grpo", *extra))
    assert "sampling: vllm" not in described["local"]
    assert "\n  engine              servers at http://127.0.0.1:9\n" in described["joined"]
    assert "\n  weights             brought before each rollout, and before each evaluation\n" in described["joined"]
    assert "\n  what does not come  stops the run, which is saved\n" in described["joined"]
    # the caches of sampling are vLLM's
    assert "key-value cache" in described["local"]
    assert "key-value cache" not in described["joined"]
    assert "vLLM's own memory comes on top" in described["joined"]
    assert not (tmp_path / "joined").exists()
