"""`python -m maxent_grpo plan`: runs on GPUs that are not here."""

import re

import pytest

from maxent_grpo.commands.plan import main
from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.preview.plan import Lengths, Machines, Plan, make_plan, outlook
from maxent_grpo.training.preview.run import preview

FEW = ("data.num_train=64", "data.num_eval=8")
VLLM = ("generation=vllm", "generation.vllm.url=http://127.0.0.1:8000")

pytestmark = pytest.mark.usefixtures("no_hub_and_no_gpu")


def planned(*overrides: str, machines: Machines, means: Lengths | None = None) -> Plan:
    return make_plan(outlook(load_config(["run.dry=true", "run.dir=nowhere", *overrides])), machines, means)


def sections(text: str, title: str) -> list[str]:
    found = re.search(rf"^{title}\n((?:  .*\n?)+)", text, flags=re.MULTILINE)
    assert found is not None, f"{title} is not in\n{text}"
    return [line.split("  ")[1] for line in found[1].splitlines()]


def test_a_plan_for_one_gpu_has_the_memory_of_the_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment=qwen05b_math"])
    said = capsys.readouterr().out
    dry = preview(load_config(["experiment=qwen05b_math", "run.dry=true", "run.dir=nowhere"]))
    for label in ("weights", "sampling", "training, backward", "peak", "prompts per step"):
        [line] = re.findall(rf"^  {label}  .*$", dry, flags=re.MULTILINE)
        assert line in said
    assert sections(said, "time of a step, estimated")[:4] == ["sampling", "forward", "backward", "update"]


def test_servers_take_their_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    spread = "generation.engine.tensor_parallel_size=2"
    main(["experiment=qwen05b_countdown", *VLLM, *FEW, spread, "--gpus", "8", "--servers", "2", "--gpu", "a100"])
    said = capsys.readouterr().out
    assert "plan: 8 x A100 SXM 80 GB" in said
    assert "trainers  4, each holds the whole model (ddp)" in said
    assert "sampling  2 vLLM servers, each over 2 GPUs, in turn with training" in said
    assert sections(said, "memory of a GPU that samples, estimated")[0] == "its share"
    assert "256 sequences together in an engine" in said  # of an A100 vLLM asks no more, whatever its memory
    assert "weight sync" in sections(said, "time of a step, estimated")


def test_shorter_completions_make_a_shorter_step_with_the_same_memory() -> None:
    machines = Machines(gpus=4)
    at_limit = planned("experiment=qwen05b_gsm8k", machines=machines)
    shorter = planned("experiment=qwen05b_gsm8k", machines=machines, means=Lengths(100, 250))
    assert shorter.memory == at_limit.memory
    assert shorter.step.total < at_limit.step.total
    assert (shorter.timing.load.prompt_tokens, shorter.timing.load.completion_tokens) == (100, 250)


def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"--servers 2 .* take 8 of --gpus 8, and one has to train"):
        planned(
            "experiment=qwen05b_math", *VLLM, "generation.engine.tensor_parallel_size=4",
            machines=Machines(gpus=8, servers=2),
        )  # fmt: skip
    for wrong in (["--mean-completion", "9000"], ["+sede=3"]):
        with pytest.raises(SystemExit) as left:
            main(["experiment=qwen05b_math", *wrong])
        assert left.value.code == 2
    said = capsys.readouterr().err
    assert "--mean-completion 9000 is more than generation.max_completion_len=3072" in said
    assert "sede: no such setting" in said


def test_trainers_hold_what_the_strategy_says() -> None:
    """Persistent bytes for each parameter: a bfloat16 model with its copy and moments, over four trainers."""
    bytes_each: dict[str, float] = {}
    for settings in ("ddp", "fsdp", "fsdp optimization.parallel.fsdp.cpu_offload=true", "deepspeed"):
        strategy, *more = settings.split()
        config = load_config(
            ["experiment=qwen05b_countdown", *FEW, "model.dtype=bfloat16", f"optimization.parallel.strategy={strategy}", *more],
            elsewhere=True,
        )  # fmt: skip
        memory = make_plan(outlook(config), Machines(gpus=4)).memory
        bytes_each[settings] = sum(part.size for part in memory.persistent) / 494_032_768
    assert list(bytes_each.values()) == pytest.approx([2 + 4 + 8 + 2, 3, 0, 2 + 3], abs=1e-6)
