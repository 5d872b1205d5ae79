"""The texts of `python train.py --help` and `--version`."""

from __future__ import annotations

import itertools

from maxent_grpo.config.declared import groups, options
from maxent_grpo.config.installed import installed_version
from maxent_grpo.config.presets import PRESETS, config_directory, default_option

COMMAND = "python train.py"
HEAD = """\
Train a language model by group-relative policy optimisation.

usage: python train.py [group=option ...] [group.setting=value ...]

A run is put together from one option of each group; * marks the one taken if nothing is said."""

TAIL = """\
Settings: docs/config.md explains every one. `python train.py --cfg job` prints a run's settings and starts nothing.

examples:
  python train.py                                            the default run: no network, no GPU, a few minutes
  python train.py scoring=grpo seed=3                        another method, another seed
  python train.py scoring.weighting.tau=0.25 optimization.total_training_steps=50
  python train.py experiment=tiny_dr_grpo                    a preset
  python train.py -m scoring=maxent,dr_grpo seed=0,1,2       a sweep of six runs
  python train.py -m scoring=maxent,dr_grpo seed=0,1,2 run.sweep_resume=true    go on with the newest sweep of these jobs
  python train.py checkpoint.resume_from=outputs/DAY/TIME    go on from a run's last checkpoint

options:
  -h, --help           this text
  -m, --multirun       run every combination of comma-separated values; a bad one fails alone
  --cfg job            print the composed settings (--resolve: with interpolations replaced)
  --config-dir DIR     also look for presets in DIR/experiment
  --info               how Hydra put the settings together
  --hydra-help         Hydra's own flags"""


def help_text(command: str = COMMAND) -> str:
    """Every group with its options, a line each from the option's docstring, the presets, and examples of the ``command``."""
    presets = sorted((config_directory() / PRESETS).glob("*.yaml"))
    width = max(
        len(name) for name in [*(name for group in groups() for name in options(group)), *(p.stem for p in presets)]
    )
    lines = [HEAD, ""]
    for group in groups():
        lines.append(group)
        for name, node in options(group).items():
            mark = "*" if default_option(group) == name else " "
            lines.append(f" {mark} {name:<{width}}  {_first_line(node)}")
    lines += ["", f"{PRESETS} (conf/{PRESETS}/)"]
    for file in presets:
        lines.append(f"   {file.stem:<{width}}  {claim_of(file.read_text(encoding='utf-8'))}")
    return "\n".join([*lines, "", TAIL]).replace(COMMAND, command)


def version_text() -> str:
    """This package's version and those of the packages that decide a run's numbers, found out without importing them."""
    found = {name: installed_version(name) for name in ("maxent-grpo", "torch", "transformers")}
    return "\n".join(f"{name} {version or '(not installed)'}" for name, version in found.items())


def _first_line(node: type) -> str:
    return (node.__doc__ or "").strip().splitlines()[0]


def claim_of(preset: str) -> str:
    """What follows `# claim:` in a preset, up to an empty comment or the end of the header; empty where it states none."""
    _, _, rest = preset.partition("# claim:")
    first, *others = rest.splitlines() or [""]
    lines = [first, *itertools.takewhile(lambda line: line.startswith("# "), others)]
    return " ".join(line.removeprefix("#").strip() for line in lines)
