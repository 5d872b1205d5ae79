"""docs/scale.md: what its plans print, what its commands ask for, and the launchers that it names."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig
from hydra.core.override_parser.overrides_parser import OverridesParser

from maxent_grpo.commands.generated_page import page_file
from maxent_grpo.commands.scale_docs import PAGE, refreshed
from maxent_grpo.config.compose import hydra_session
from maxent_grpo.config.load import load_config
from maxent_grpo.sweeps import launchers
from maxent_grpo.sweeps.command_line import sort_command

TEXT = page_file(PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.usefixtures("no_hub_and_no_gpu")
def test_the_plans_are_what_their_commands_print() -> None:
    said = refreshed(TEXT)
    assert len(re.findall(r"^plan: ", said, flags=re.MULTILINE)) == 3
    assert said == TEXT, "write them anew: python -m maxent_grpo scale-docs"


def test_what_is_started_has_the_settings_that_it_says() -> None:
    """Of one process or several, every command starts train.py with settings that there are."""
    found = 0
    for _, block in (each for each in BLOCKS if each[0] == "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "train.py" in words:
                settings = [word for word in words[words.index("train.py") + 1 :] if "=" in word]
                own = [word for word in settings if not word.startswith(("hydra", "scoring=maxent,", "seed=0,"))]
                assert load_config([*own, "run.dir=nowhere"], elsewhere=True).run is not None
                found += 1
    assert found == 6


def test_scripts_and_configuration_files_can_be_read(tmp_path: Path) -> None:
    [script] = [block for kind, block in BLOCKS if kind == "bash" and "#SBATCH" in block]
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).returncode == 0
    [file] = [block for kind, block in BLOCKS if kind == "yaml"]
    config = ClusterConfig(**yaml.safe_load(file), use_cpu=False, debug=False)
    assert (config.num_processes, str(config.distributed_type)) == (8, "DistributedType.MULTI_GPU")


@pytest.mark.parametrize(("name", "gpus", "cores"), [("slurm", 1, 8), ("slurm_server", 2, 16)])
def test_launchers_of_slurm(name: str, gpus: int, cores: int) -> None:
    command = sort_command(["seed=0,1", f"hydra/launcher={name}"], None)
    with hydra_session() as hydra:
        launcher = command.master(hydra).hydra.launcher
    assert launcher._target_.endswith(".SlurmLauncher")
    assert (launcher.gpus_per_node, launcher.cpus_per_task, launcher.tasks_per_node) == (gpus, cores, 1)
    assert (launcher.timeout_min, launcher.max_num_timeout) == (1440, 3)


def test_every_launcher_of_the_page_is_one_whose_plugin_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "find_module", lambda name: None)
    named = sorted(set(re.findall(r"hydra/launcher=\w+", TEXT)))
    sentences = list(launchers.missing_plugins(OverridesParser.create().parse_overrides(named)))
    assert [sentence.partition(":")[0] for sentence in sentences] == named
    assert (
        "hydra/launcher=ray_cluster: hydra-ray-launcher is not installed; pip install hydra-ray-launcher" in sentences
    )
