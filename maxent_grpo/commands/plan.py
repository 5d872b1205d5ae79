"""`python -m maxent_grpo plan`: memory, batch and time of a run on GPUs that need not be here."""

from __future__ import annotations

import argparse
import sys

from maxent_grpo.config.complain import complain
from maxent_grpo.config.load import load_config, warnings
from maxent_grpo.errors import MaxentGrpoError, exit_status

DESCRIPTION = """\
Say what a run would be on a number of GPUs: who trains and who samples, the batch of each process, what its GPU has to hold,
how long a step takes and what holds it up. Needs no GPU, no weights and no hub: memory is that of `run.dry=true`, time
follows from operations, bytes and data sheets. Takes the settings of a run, as `python train.py` does."""

EPILOG = """\
examples:
  python -m maxent_grpo plan experiment=qwen05b_math
  python -m maxent_grpo plan --gpus 8 --gpu a100 experiment=qwen7b_math
  python -m maxent_grpo plan --gpus 8 --servers 2 --mean-completion 900 experiment=qwen7b_math generation=vllm

exit status: 0, or 2 when the settings or the GPUs are wrong"""


def main(arguments: list[str]) -> None:
    """Print the plan; exit status 2 for wrong settings."""
    try:
        print(planned(parser().parse_intermixed_args(arguments)))
    except MaxentGrpoError as error:
        complain("plan", error)
        sys.exit(exit_status(error))


def parser() -> argparse.ArgumentParser:
    """The command line of a plan."""
    from maxent_grpo.training.hardware import GPUS

    made = argparse.ArgumentParser(
        prog="python -m maxent_grpo plan", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument(
        "overrides", nargs="*", metavar="SETTING", help="settings of the run, such as experiment=qwen7b_math"
    )
    made.add_argument("--gpus", type=_count, default=1, metavar="N", help="GPUs in all (default: 1)")
    made.add_argument("--per-node", type=_count, default=8, metavar="N", help="GPUs of a node (default: 8)")
    made.add_argument("--gpu", choices=list(GPUS), default="h100", help="which (default: h100)")
    made.add_argument(
        "--servers", type=_count, default=1, metavar="N",
        help="with generation=vllm: servers, each on generation.engine.tensor_parallel_size of the GPUs (default: 1)",
    )  # fmt: skip
    for name, what, default in (
        ("prompt", "prompt", "as in the data, or the limit"),
        ("completion", "completion", "the limit"),
    ):
        made.add_argument(
            f"--mean-{name}", type=_count, default=0, metavar="N",
            help=f"mean tokens of a {what}, for the time; memory is that of the limit (default: {default})",
        )  # fmt: skip
    made.add_argument("--config-dir", metavar="DIR", help="a further folder with presets")
    return made


def planned(options: argparse.Namespace) -> str:
    """The text of the plan that the options ask for."""
    config = load_config([*options.overrides, "run.dry=true"], config_dir=options.config_dir, elsewhere=True)
    for sentence in warnings(config):
        complain("plan", f"warning: {sentence}")
    from maxent_grpo.training.preview.plan import Lengths, Machines, make_plan, outlook
    from maxent_grpo.training.preview.plan_text import plan_text

    machines = Machines(options.gpu, options.gpus, options.per_node, options.servers)
    return plan_text(
        config, make_plan(outlook(config), machines, Lengths(options.mean_prompt, options.mean_completion))
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")
    return number
