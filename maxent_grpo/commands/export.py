"""`python -m maxent_grpo export`: the model of a checkpoint, as a folder that others load."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from maxent_grpo.commands.usage import helped
from maxent_grpo.config.complain import complain
from maxent_grpo.errors import ConfigError, MaxentGrpoError, exit_status

DESCRIPTION = """\
Write the model of one of a run's checkpoints as a transformers folder, with tokenizer, generation settings and model card. A run
does this by itself when it ends, with its last weights, unless checkpoint.final_model=false.

arguments, written name=value:
  run=RUN          the run's directory
  checkpoint=last  last, best or the number of a step
  output=FOLDER    where model/ is written to, and adapter/ too if the run trained one"""

EPILOG = """\
example:
  python -m maxent_grpo export run=outputs/DAY/TIME checkpoint=best output=shared/mine

exit status: 0 written; 1 it could not be done here; 2 an argument is wrong, or the run or checkpoint is not there."""
NAMES = ("run", "checkpoint", "output")


def main(arguments: list[str]) -> None:
    """Write the folders and print where they are; see the module's EPILOG for the exit status."""
    if helped(arguments, "export", "run=RUN output=FOLDER [checkpoint=last]", DESCRIPTION, EPILOG):
        return
    try:
        given = _read(arguments)
        # loads torch and transformers, for which help and a wrong argument need not wait
        from maxent_grpo.training.export import LAST, export

        for folder in export(Path(given["run"]), given.get("checkpoint", LAST), Path(given["output"])):
            print(folder)
    except MaxentGrpoError as error:
        complain("export", error)
        sys.exit(exit_status(error))


def _read(arguments: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    problems: list[str] = []
    for text in arguments:
        name, equals, value = text.partition("=")
        if name in NAMES and equals and value:
            given[name] = value
            continue
        near = difflib.get_close_matches(name.lstrip("-"), NAMES, n=1)
        hint = f"; did you mean {near[0]}=...?" if near else f"; there are {', '.join(NAMES)}"
        problems.append(f"{text}: arguments are written name=value{hint}")
    problems += [f"{name}= is missing" for name in ("run", "output") if name not in given and not problems]
    if not problems and not Path(given["run"]).is_dir():
        problems.append(f"run={given['run']}: is not the directory of a run")
    if problems:
        raise ConfigError(problems)
    return given
