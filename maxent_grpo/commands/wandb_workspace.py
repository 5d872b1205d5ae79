"""`python -m maxent_grpo wandb-workspace`: the dashboard at W&B, made from code."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from maxent_grpo.config.complain import complain
from maxent_grpo.config.installed import find_module, has_wandb_key
from maxent_grpo.config.logging import WandbConfig
from maxent_grpo.telemetry.workspace import SECTIONS, STEP, TABLE, PanelSpec, family_pattern

PROGRAM = "python -m maxent_grpo wandb-workspace"
NAME = "maxent_grpo"
EXTRA = "pip install -e '.[wandb-workspace]'"
DESCRIPTION = """\
Save a view of a W&B project with five sections: learning, stability, controller, throughput and samples. Every panel draws
metrics of docs/metrics.md over the optimiser step. Metrics without a panel of their own get one from W&B below."""
EPILOG = f"""\
examples:
  {PROGRAM}                                 into the key's own project {WandbConfig().project}
  {PROGRAM} --project sums --entity my-team
  {PROGRAM} --print                         the definition as JSON, without a key or a network

Saving again makes another view. Exit status 2: there is no key, or wandb-workspaces is not installed; 1: W&B refused."""


def main(arguments: list[str]) -> None:
    """Save the view, or print its definition.

    Exits with status 2 and one sentence without a key, and 1 when the view could not be saved.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--project", default=WandbConfig().project, help="W&B project (default: %(default)s)")
    parser.add_argument("--entity", help="user or team (default: the key's own)")
    parser.add_argument("--print", action="store_true", dest="prints", help="print the definition as JSON instead")
    options = parser.parse_args(arguments)
    if find_module("wandb_workspaces") is None:
        _refuse(f"wandb-workspaces is not installed; {EXTRA}", 2)
    if options.prints:
        print(json.dumps(definition(options.project, options.entity or ""), indent=1))
        return
    if not has_wandb_key():
        _refuse(
            "there is no W&B key, without which nothing can be saved: `wandb login`, or set WANDB_API_KEY; --print shows the "
            "definition",
            2,
        )
    try:
        saved = _workspace(options.project, options.entity or _own_entity()).save()
        print(f"saved {saved.url}")
    except Exception as error:
        # a server and a library of others may raise anything; what they say is all there is to know
        _refuse(f"the view could not be saved ({type(error).__name__}: {error})", 1)


def definition(project: str, entity: str) -> dict[str, Any]:
    """The view as W&B is sent it, but for the random names of its panels."""
    spec = _workspace(project, entity)._to_model().spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    bank = spec["section"]["panelBankConfig"]
    for section in bank["sections"]:
        for panel in section["panels"]:
            panel.pop("__id__", None)
    return {"project": project, "entity": entity, "name": NAME, "spec": spec}


def _workspace(project: str, entity: str) -> Any:
    # both libraries take about a second to load, which a usage error need not wait for
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    sections = [
        workspaces.Section(
            name=section.name,
            is_open=True,
            panels=[
                *([reports.WeavePanelSummaryTable(table_name=TABLE)] if section.has_table else []),
                *(_panel(reports, panel) for panel in section.panels),
            ],
        )
        for section in SECTIONS
    ]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis=STEP),
        auto_generate_panels=True,
    )


def _panel(reports: Any, panel: PanelSpec) -> Any:
    drawn: dict[str, Any] = {"y": list(panel.metrics)}
    if panel.family is not None:
        drawn = {"metric_regex": family_pattern(panel.family)}
    return reports.LinePlot(title=panel.title, x=STEP, title_y=panel.unit or None, log_y=panel.log or None, **drawn)


def _own_entity() -> str:
    import wandb

    return str(wandb.Api().default_entity)


def _refuse(sentence: str, status: int) -> None:
    complain(PROGRAM, sentence)
    sys.exit(status)
