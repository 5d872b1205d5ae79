import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.imports import HEAVY

import maxent_grpo
from maxent_grpo.config import preflight_model
from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.declared import declared_paths, groups, kind_at, nearest, options
from maxent_grpo.config.load import load_config
from maxent_grpo.config.names_elsewhere import NAMES, known_elsewhere
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.store import OPTIONS
from maxent_grpo.errors import ConfigError

PRESETS = sorted((config_directory() / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the packaged model had been prepared, which only its users need."""
    (tmp_path / "config.json").touch()
    monkeypatch.setattr(preflight_model, "SMOLLM2_FOLDER", tmp_path)


@cache
def loaded(*overrides: str) -> RootConfig:
    return load_config(list(overrides))


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


COLD = "model.warm_start.enabled=false"
ALONGSIDE = {
    "countdown": ("generation.max_completion_len=11",),
    "table": (f"data.path={Path(__file__).parents[1]}/support/tables/sums.jsonl", COLD),
    "hub": ("data.path=openai/gsm8k", COLD),
    "reasoning_gym": ("data.tasks.chain_sum=1", COLD),
    "hf": ("model.name=org/model",),
    "kl": ("controller.law=additive",),
    "terms": ("reward.terms.exact=1",),
    "vllm": ("generation.vllm.url=http://127.0.0.1:8000",),
}
"""What an option cannot do without."""


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, name, _ in OPTIONS])
def test_every_option_loads_as_its_dataclass(group: str, name: str) -> None:
    is_default = type(getattr(loaded(), group)) is options(group)[name]
    config = loaded() if is_default else loaded(f"{group}={name}", *ALONGSIDE.get(name, ()))
    assert type(getattr(config, group)) is options(group)[name]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda file: file.stem)
def test_every_preset_loads_and_states_its_command_and_claim(preset: Path) -> None:
    config = loaded(f"experiment={preset.stem}")
    lines = preset.read_text().splitlines()
    assert type(config) is RootConfig
    assert lines[0] == "# @package _global_"
    assert lines[1] == f"# python train.py experiment={preset.stem}"
    assert lines[2].startswith("# claim: ")


def test_the_default_preset_is_the_default_run() -> None:
    default, preset = loaded(), loaded("experiment=tiny_maxent")
    assert replace(preset, run=default.run) == default


def test_the_comparison_presets_have_the_same_budget() -> None:
    names = ["tiny_maxent", "tiny_dr_grpo", "tiny_grpo", "tiny_maxent_listwise"]
    configs = [loaded(f"experiment={name}") for name in names]
    budgets = {
        (
            config.optimization.total_training_steps,
            config.optimization.prompts_per_step,
            config.generation.num_generations,
        )
        for config in configs
    }
    assert len(budgets) == 1


def test_the_command_line_wins_over_a_preset() -> None:
    config = load_config(["experiment=tiny_offpolicy", "scoring=grpo", "optimization.minibatches=4"])
    assert (config.optimization.minibatches, config.optimization.num_iterations) == (4, 2)
    assert type(config.scoring) is options("scoring")["grpo"]


def test_no_yaml_file_shadows_a_stored_option() -> None:
    stored = {f"{group}/{name}" for group, name, _ in OPTIONS}
    files = {str(file.relative_to(config_directory()).with_suffix("")) for file in config_directory().rglob("*.yaml")}
    assert files & stored == set()


def write_preset(folder: Path, text: str) -> Path:
    file = folder / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(text)
    return file


def test_a_preset_of_another_folder_is_found(tmp_path: Path) -> None:
    write_preset(tmp_path, "# @package _global_\ndefaults:\n  - override /scoring: grpo\nseed: 11\n")
    config = load_config(["experiment=mine", f"hydra.searchpath=[file://{tmp_path}]"])
    assert config.seed == 11
    config = load_config(["experiment=mine", "hydra.searchpath=[pkg://maxent_grpo]"], config_dir=tmp_path)
    assert (config.seed, type(config.scoring)) == (11, options("scoring")["grpo"])


def test_a_missing_folder_of_presets_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--config-dir {tmp_path}/none: is not a folder"):
        load_config([], config_dir=tmp_path / "none")


def test_every_mistake_in_a_preset_is_named_with_its_file(tmp_path: Path) -> None:
    text = (
        "# @package _global_\ndefaults:\n  - override /scoring: grp\n"
        "sede: 3\nscoring:\n  clipping:\n    clip_rnge: 0.3\n  kl_beta: abc\n"
    )
    file = write_preset(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(["experiment=mine", "tau=1"], config_dir=tmp_path)
    assert caught.value.problems == [
        f"{file}: scoring=grp: no such option; scoring has {', '.join(options('scoring'))}; did you mean scoring=grpo?",
        f"{file}: sede: no such setting; did you mean seed?",
        f"{file}: scoring.clipping.clip_rnge: no such setting; did you mean scoring.clipping.clip_range?",
        f"{file}: scoring.kl_beta=abc: must be a number",
        "tau: no such setting; did you mean scoring.weighting.tau?",
    ]


def test_a_preset_must_say_that_it_is_global(tmp_path: Path) -> None:
    file = write_preset(tmp_path, "seed: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(["experiment=mine"], config_dir=tmp_path)
    assert caught.value.problems == [f"{file}: must begin with the line `# @package _global_`"]


def test_a_preset_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    file = write_preset(tmp_path, "# @package _global_\nseed: [3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(["experiment=mine"], config_dir=tmp_path)
    assert [problem.split(" (")[0] for problem in caught.value.problems] == [f"{file}: is not valid YAML"]


def test_a_name_that_is_a_number_is_written_into_the_path() -> None:
    words = ["generation=vllm", "scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate"]
    config = load_config([*words, "generation.vllm.logit_bias.5=-1.0", "generation.vllm.url=http://a:1"])
    assert config.generation.vllm.logit_bias == {"5": -1.0}  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError) as refusal:
        load_config([*words, "generation.vllm.logit_bias={5: -1.0}"])
    assert refusal.value.problems == [
        "generation.vllm.logit_bias={5: -1.0}: must be names with values, {name: value}, each a number; a name that is a "
        "number is written into the path, generation.vllm.logit_bias.5=..."
    ]


def test_what_stands_for_a_name_of_another_trainer_is_there() -> None:
    for end, (_, here) in NAMES.items():
        named = re.findall(r"[a-z_]+(?:\.[a-z_]+)+|[a-z]+=\w+", here)
        assert named, end
        for each in named:
            path, _, value = each.partition("=")
            assert path in declared_paths(), (end, each)
            if value and path in groups():
                assert value in options(path), (end, each)
        assert known_elsewhere(end)
        assert known_elsewhere(f"algorithm.{end}") == known_elsewhere(end)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "beta=0.04",
            "beta: no such setting; TRL's beta is here scoring.kl_beta; scoring.weighting.beta is another, the listwise one",
        ),
        (
            "scoring.loss_type=grpo",
            "scoring.loss_type: no such setting; TRL's loss_type is here the option itself: scoring=grpo,",
        ),
        (
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.rollout.n: no such setting; verl's rollout.n is here generation.num_generations",
        ),
        ("seedd=8", "seedd: no such setting; did you mean seed?"),
    ],
)
def test_a_name_of_another_trainer_is_answered_with_ours(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config([override])
    [problem] = refusal.value.problems
    assert problem.startswith(sentence)


def test_reward_terms_have_free_names() -> None:
    config = load_config(["+reward.terms.format=0.1", "~reward.terms.task"])
    assert config.reward.terms == {"format": 0.1}


def test_declared_paths_reach_into_nested_settings() -> None:
    paths = declared_paths()
    assert {"scoring", "scoring.clipping.clip_range", "generation.penalty.gen_min_p", "seed"} <= set(paths)
    assert len(paths) == len(set(paths))
    assert kind_at("reward.terms.anything", {"reward": options("reward")["task"]}) is float


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("clip_range", "scoring.clipping.clip_range"),
        ("scoring.tau", "scoring.weighting.tau"),
        ("optimization.lerning_rate", "optimization.learning_rate"),
        ("generation.clipping.clip_range", "scoring.clipping.clip_range"),
        ("qqqqq", None),
    ],
)
def test_the_nearest_declared_path_is_the_one_meant(written: str, meant: str | None) -> None:
    assert nearest(written) == meant


def test_importing_the_package_imports_neither_torch_nor_hydra() -> None:
    code = "import json, maxent_grpo, sys; print(json.dumps([name for name in sys.modules if '.' not in name]))"
    assert (HEAVY | {"hydra", "omegaconf"}).isdisjoint(json.loads(in_new_process(code)))


def test_loading_a_configuration_does_not_import_torch() -> None:
    code = "import maxent_grpo, sys; maxent_grpo.compose('scoring=grpo'); print('torch' in sys.modules)"
    assert in_new_process(code) == "False"


def test_a_wrong_configuration_ends_soon() -> None:
    code = (
        "import json, resource, sys\n"
        "def used():\n    now = resource.getrusage(resource.RUSAGE_SELF)\n    return now.ru_utime + now.ru_stime\n"
        "import hydra\nloaded = used()\nimport maxent_grpo\n"
        "try:\n    maxent_grpo.compose('+scoring.clipping.clip_rnge=0.3', 'sede=3')\n"
        "except maxent_grpo.config.load.ConfigError as error:\n    count = len(error.problems)\n"
        "print(json.dumps([count, loaded, used(), [name for name in sys.modules if '.' not in name]]))"
    )
    runs = [json.loads(in_new_process(code)) for _ in range(2)]
    assert [count for count, *_ in runs] == [2, 2]
    assert all(HEAVY.isdisjoint(names) for *_, names in runs)
    # loading Hydra takes less than 0.3 s of processor time; a machine on which it takes more is as much slower in all else
    assert min(seconds / max(1.0, loaded / 0.3) for _, loaded, seconds, _ in runs) < 1.5


def test_a_configuration_changed_in_python_is_checked_again() -> None:
    config = maxent_grpo.compose("scoring=grpo")
    config.scoring.clipping.clip_range = 7.0
    with pytest.raises(ConfigError, match=r"scoring\.clipping\.clip_range=7\.0: must be above 0 and below 1"):
        maxent_grpo.run(config)
    config.scoring.clipping.clip_range = "wide"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="'wide' of type 'str' could not be converted to Float"):
        maxent_grpo.run(config)


def test_run_refuses_wrong_overrides_and_a_bare_text() -> None:
    with pytest.raises(ConfigError, match="sede: no such setting; did you mean seed"):
        maxent_grpo.run(["+sede=3"])
    with pytest.raises(TypeError, match=r"write run\(\['seed=3'\]\)"):
        maxent_grpo.run("seed=3")
