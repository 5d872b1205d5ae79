"""`python -m maxent_grpo evaluate`: how good is a model at a task, with how much certainty, and is it better than another?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from maxent_grpo.commands.evaluate_text import AskedProblems, show_result
from maxent_grpo.commands.usage import helped
from maxent_grpo.config.complain import complain
from maxent_grpo.config.evaluated import read_request
from maxent_grpo.config.resolve import chosen_options
from maxent_grpo.errors import MaxentGrpoError, exit_status
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import EVALUATION_FILE, EVALUATIONS_FILE
from maxent_grpo.stats.compare import LEVEL, NUM_RESAMPLES
from maxent_grpo.telemetry.versions import current_versions
from maxent_grpo.training.evaluation_plan import EvaluationPlan, plan_evaluation

DESCRIPTION = """\
Sample a model's answers to problems and report greedy accuracy, mean@n, unbiased pass@k, maj@k, distinct@k, coverage@k, lengths and the
share cut by the length limit, each with a 95% bootstrap interval over problems; against another model, the paired difference.

arguments, written name=value:
  run=RUN          a run directory, a folder of a sweep, a checkpoint, a transformers folder or a hub id; [A,B,C] for several
  against=RUN      compare with this one, problem by problem: McNemar's exact test for greedy, a paired bootstrap else
  checkpoint=last  weights of a run: last, best, start (as training began), final (the model it wrote at its end) or a
                   step; RUN@best says it for one run alone
  k=[1,8,32]       the k; so many samples are drawn as the largest (default: the run's own evaluation)
  split=eval       or train
  limit=N          only the first N problems
  output=DIR       folder to write into (default: outputs/evaluations/NAME/TIME)
  group=option, group.setting=value
                   any setting, such as data=countdown, evaluation.num_samples=64, evaluation.temperature=0.6,
                   generation.max_completion_len=512; a run's own settings stand where nothing is said"""

EPILOG = """\
examples:
  python -m maxent_grpo evaluate run=outputs/DAY/TIME
  python -m maxent_grpo evaluate run=outputs/DAY/TIME against=outputs/DAY/TIME@start k=[1,8,32]
  python -m maxent_grpo evaluate run=some/model data=countdown k=[1,64] limit=200
  python -m maxent_grpo evaluate model=tiny

exit status: 0 evaluated; 1 it could not be done here; 2 an argument or a setting is wrong, or a run or checkpoint is not there."""


def main(arguments: list[str]) -> None:
    """Evaluate, print a table and write the folder; see the module's EPILOG for the exit status."""
    if helped(arguments, "evaluate", "run=RUN [name=value ...]", DESCRIPTION, EPILOG):
        return
    try:
        request = read_request(arguments)
        plan = plan_evaluation(request)
    except MaxentGrpoError as error:
        _fail(error, 2)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads
    try:
        _evaluate(plan, arguments)
    except MaxentGrpoError as error:
        _fail(error, exit_status(error))


def _fail(error: MaxentGrpoError, status: int) -> NoReturn:
    complain("evaluate", error)
    sys.exit(status)


def _evaluate(plan: EvaluationPlan, arguments: Sequence[str]) -> None:
    from maxent_grpo.training.evaluation_job import Watcher, curve_ks, perform_evaluation
    from maxent_grpo.training.evaluation_result import comparison_result, model_result

    def write_rows(rows: Sequence[Mapping[str, Any]]) -> None:
        # the folder appears with the first answers, so that what fails before them can be asked again
        plan.output.mkdir(parents=True, exist_ok=True)
        with (plan.output / EVALUATIONS_FILE).open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)

    with AskedProblems() as progress:
        answers = perform_evaluation(plan, Watcher(progress.start, progress.answered, write_rows))
    settings = plan.models[0].config.evaluation
    all_ks = curve_ks(settings.num_samples, settings.ks)
    num_models = len(plan.models)
    result = _facts(plan, arguments) | {
        "models": [model_result(each, settings.ks, all_ks) for each in answers],
        "comparisons": [
            comparison_result(each, other, settings.ks)
            for other in answers[num_models:]
            for each in answers[:num_models]
        ],
    }
    _write(plan.output, result)
    show_result(result, [plan.output / EVALUATIONS_FILE, plan.output / EVALUATION_FILE, *_draw(plan.output)])


def _facts(plan: EvaluationPlan, arguments: Sequence[str]) -> dict[str, Any]:
    """What was asked, and with what."""
    config = plan.models[0].config
    evaluation, generation = config.evaluation, config.generation
    temperature = generation.temperature if evaluation.temperature is None else evaluation.temperature
    return {
        "name": plan.name,
        "arguments": list(arguments),
        "data": chosen_options(config)["data"],
        "split": plan.split.value,
        "limit": plan.limit,
        "num_samples": evaluation.num_samples,
        "ks": list(evaluation.ks),
        "sampling": {
            "seed": evaluation.seed,
            "temperature": temperature,
            "top_p": generation.top_p if evaluation.top_p is None else evaluation.top_p,
            "max_completion_len": generation.max_completion_len,
        },
        "interval": {"level": LEVEL, "resamples": NUM_RESAMPLES, "over": "problems"},
        "versions": current_versions(),
    }


def _write(folder: Path, result: Mapping[str, Any]) -> None:
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / EVALUATION_FILE, lambda file: file.write(text.encode("utf-8")))


def _draw(folder: Path) -> list[Path]:
    # matplotlib takes about a second to load, which a usage error need not wait for
    from maxent_grpo.report.evaluation_figure import draw_evaluation

    return draw_evaluation(folder)
