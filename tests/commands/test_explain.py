import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.called import called
from support.each import each_of

from maxent_grpo.__main__ import main as package
from maxent_grpo.commands import explain_text
from maxent_grpo.commands.explain_text import explain, explain_path
from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.declared import all_settings, declared_paths, groups
from maxent_grpo.config.load import check
from maxent_grpo.config.provenance import compose_with_origins, named_together
from maxent_grpo.config.store import OPTIONS
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.metric_table import METRICS

REPOSITORY = config_directory().parent
TAU = "scoring.weighting.tau"


def row(lines: list[str], label: str) -> str:
    """The text beside a label; empty where there is none. Wrapped text goes on in lines without label."""
    found: list[str] = []
    for line in lines:
        if line.startswith(f"  {label} "):
            found.append(line.removeprefix(f"  {label} ").strip())
        elif found and line.startswith(" " * 15):
            found.append(line.strip())
        elif found:
            break
    return " ".join(found)


def test_a_setting_is_explained_in_full() -> None:
    lines = explain(TAU, ["scoring.weighting.tau=0.3"])
    assert lines[0] == TAU
    assert " ".join(lines[1:3]).split()[:4] == ["Temperature", "of", "the", "target:"]
    assert (row(lines, "type"), row(lines, "allowed"), row(lines, "default")) == ("number", "at least 0", "0.1")
    assert (row(lines, "here"), row(lines, "set by")) == ("0.3", "this command line: scoring.weighting.tau=0.3")
    assert row(lines, "on resume") == "may not change: the run would be another one"
    assert row(lines, "see also") == (
        "scoring.advantage, scoring.weighting.beta, scoring.weighting.listwise_coef, controller.beta_min"
    )


@pytest.mark.parametrize(
    ("path", "overrides", "value", "who"),
    [
        (TAU, [], 0.1, "default, in WeightingSettings"),
        ("seed", [], 0, "default, in RootConfig"),
        (
            "scoring.reduction",
            ["scoring=grpo"],
            "sequence",
            "option scoring=grpo, chosen by this command line: scoring=grpo",
        ),
        ("scoring.weighting.listwise_coef", [], 0.3, "option scoring=maxent, chosen by conf/config.yaml"),
        (
            "scoring.reduction",
            ["experiment=tiny_grpo"],
            "sequence",
            "option scoring=grpo, chosen by preset conf/experiment/tiny_grpo.yaml",
        ),
        ("optimization.minibatches", ["experiment=tiny_offpolicy"], 2, "preset conf/experiment/tiny_offpolicy.yaml"),
        (
            "optimization.minibatches",
            ["experiment=tiny_offpolicy", "optimization.minibatches=4"],
            4,
            "this command line: optimization.minibatches=4",
        ),
        ("seed", ["seed=1", "seed=2"], 2, "this command line: seed=2"),
        (TAU, ["scoring.weighting={tau:0.7}"], 0.7, "this command line: scoring.weighting={tau:0.7}"),
        ("reward.terms.task", [], 1.0, "option reward=task, chosen by conf/config.yaml"),
        ("reward.terms.exact", ["+reward.terms.exact=0.5"], 0.5, "this command line: +reward.terms.exact=0.5"),
    ],
)
def test_who_set_a_value(path: str, overrides: list[str], value: object, who: str) -> None:
    composed = compose_with_origins(overrides)
    assert (composed.value(path), composed.who_set(path)) == (value, who)


def test_a_resumed_run_speaks_for_its_settings(tmp_path: Path) -> None:
    (tmp_path / "overrides.json").write_text('["scoring=grpo", "seed=7", "scoring.kl_beta=0.1"]')
    composed = compose_with_origins([f"checkpoint.resume_from={tmp_path}", "scoring.kl_beta=0.2"])
    assert (composed.value("seed"), composed.who_set("seed")) == (7, "the command line of the resumed run: seed=7")
    assert composed.who_set("scoring.kl_beta") == "this command line: scoring.kl_beta=0.2"
    assert composed.who_chose("scoring") == "the command line of the resumed run: scoring=grpo"


def test_a_preset_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\n# python train.py experiment=mine\nscoring:\n  weighting:\n    tau: 0.4\n")
    lines = explain(TAU, ["experiment=mine"], str(tmp_path))
    assert (row(lines, "here"), row(lines, "set by")) == ("0.4", f"preset {file}")
    assert explain("experiment=mine", config_dir=str(tmp_path))[-1] == "  scoring.weighting.tau=0.4"


def test_the_last_part_of_a_name_is_enough_where_it_is_unique() -> None:
    assert explain("listwise_coef")[0] == "scoring.weighting.listwise_coef"
    with pytest.raises(ConfigError, match=r"every_n_steps: several settings end so: .*, evaluation\.every_n_steps, "):
        explain("every_n_steps")


def test_a_value_that_is_refused_or_idle_says_so() -> None:
    assert row(explain(f"{TAU}=-1"), "refused") == "scoring.weighting.tau=-1.0: must be at least 0"
    assert row(explain("clip_range"), "no effect") == "with one update per rollout the ratio is 1"
    assert row(explain("clip_range", ["optimization.num_iterations=2"]), "no effect") == ""


def test_every_setting_and_group_can_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    default = compose_with_origins([])
    checked = check(default.config)
    # the same settings are checked and the same rules read for each path
    monkeypatch.setattr(explain_text, "check", lambda _: checked)
    monkeypatch.setattr(inspect, "getsource", cache(inspect.getsource))
    chosen = {f"{group}={name}" for group, name in default.chosen.items()}

    def explained(path: str) -> None:
        lines = explain_path(path, default)
        if path in groups():
            options = [name for group, name, _ in OPTIONS if group == path]
            assert [name for name in options if any(line[4:].startswith(f"{name} ") for line in lines)] == options
        else:
            assert row(lines, "default")
            owners = {f"{each.group}={each.option}" for each in all_settings() if each.path == path}
            assert bool(row(lines, "set by")) == bool(owners & {*chosen, "="})

    assert len(declared_paths()) > 200
    each_of(declared_paths(), explained)


def test_every_metric_can_be_explained() -> None:
    def explained(metric: str) -> None:
        lines = explain(metric)
        assert METRICS[metric].meaning.split()[0] in lines[1]
        assert row(lines, "measured by").startswith("maxent_grpo.training.")
        assert row(explain(metric.replace("*", "one")), "unit") == row(lines, "unit")

    each_of(METRICS, explained)


def test_an_option_shows_what_it_changes() -> None:
    lines = [" ".join(line.split()) for line in explain("scoring=maxent_listwise")]
    assert "scoring.advantage group_mean -> none" in lines
    assert "scoring.weighting.listwise_coef 0.0 -> 1.0" in lines
    assert "chosen no, here it is scoring=maxent" in lines
    assert "chosen yes, by this command line: scoring=grpo" in [
        " ".join(line.split()) for line in explain("scoring=grpo", ["scoring=grpo"])
    ]


def test_rules_name_what_belongs_together() -> None:
    assert "scoring.mismatch.cap" in named_together("scoring.mismatch.floor")
    assert named_together("logging.report") == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("clip_rnge", "scoring.clipping.clip_range"),
        ("scoring.wieghting.tau", TAU),
        ("policy/entrpy", "policy/entropy"),
        ("scoring=maxnt", "scoring=maxent"),
        ("experiment=tiny_maxnt", "experiment=tiny_maxent"),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        explain(name)
    assert refusal.value.problems == [f"{name}: nothing of that name; did you mean {meant}?"]


def test_the_command_does_not_wait_for_torch() -> None:
    script = (
        "import sys; from maxent_grpo.commands.explain import main; main(['seed']); sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False, capture_output=True).returncode == 0
    )


def test_overrides_that_cannot_be_composed_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "exit status" in called(package, ("explain", "--help"), capsys).stdout
    done = called(package, ("explain", "seed", "+sede=3"), capsys)
    assert (done.returncode, done.stderr) == (2, "explain: sede: no such setting; did you mean seed?\n")
