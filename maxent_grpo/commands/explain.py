"""`python -m maxent_grpo explain`: what a name means, which value it has in a command, and who set it."""

from __future__ import annotations

import argparse
import sys

from maxent_grpo.commands.explain_text import explain
from maxent_grpo.config.complain import complain
from maxent_grpo.config.secrets import redacted
from maxent_grpo.errors import ConfigError

DESCRIPTION = """\
Explain a setting, a group, an option, a preset or a metric.

For a setting: its meaning, type, range and default, the value that it has in the command made of the overrides that
follow, and who set it: the command line, the resumed run's command line, a preset, the chosen option, or its default.
Nothing is trained and torch is not loaded."""

EPILOG = """\
examples:
  python -m maxent_grpo explain scoring.weighting.tau
  python -m maxent_grpo explain listwise_coef scoring=dr_grpo       the last part of a name is enough where it is unique
  python -m maxent_grpo explain tau experiment=tiny_maxent scoring.weighting.tau=0.3
  python -m maxent_grpo explain seed checkpoint.resume_from=outputs/DAY/TIME
  python -m maxent_grpo explain scoring                             a group: its options and settings
  python -m maxent_grpo explain scoring=maxent                      an option: what it changes
  python -m maxent_grpo explain experiment=tiny_offpolicy           a preset
  python -m maxent_grpo explain policy/entropy                      a metric; policy/ lists all of its group

exit status: 0 explained; 2 nothing of that name, or the overrides cannot be composed."""


def main(arguments: list[str]) -> None:
    """Print the explanation; exits with status 2 where there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo explain",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="dotted path, group, group=option, experiment=preset or metric")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for `python train.py`")
    parser.add_argument("--config-dir", metavar="DIR", help="also look for presets in DIR/experiment")
    options = parser.parse_args(arguments)
    try:
        print(redacted("\n".join(explain(options.name, options.overrides, options.config_dir))))
    except ConfigError as error:
        complain("explain", error.problems[0] if len(error.problems) == 1 else error)
        sys.exit(2)
