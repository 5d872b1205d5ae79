import json
import re
from pathlib import Path

import pytest

from maxent_grpo.commands.wandb_workspace import main
from maxent_grpo.telemetry.wandb_tracker import STEP, TABLE
from maxent_grpo.telemetry.workspace import SECTIONS, family_pattern
from maxent_grpo.training.metric_table import METRICS


def test_every_panel_draws_metrics_of_the_table() -> None:
    drawn = [name for section in SECTIONS for panel in section.panels for name in panel.metrics]
    machine = {"time/*": [name for name in METRICS if name.startswith("time/")]}
    assert [name for name in drawn if name not in METRICS and not machine.get(name)] == []
    assert len(drawn) == len({*drawn, *["time/step_seconds"]})
    assert all(len(panel.metrics) == 1 for section in SECTIONS for panel in section.panels if panel.family)


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
def test_the_definition_is_printed_without_a_key_or_a_network(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    main(["--print", "--project", "sums", "--entity", "team"])
    said = capsys.readouterr().out
    view = json.loads(said)
    assert (view["project"], view["entity"]) == ("sums", "team")
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == ["learning", "stability", "controller", "throughput", "samples"]
    plots = [
        panel for section in sections for panel in section["panels"] if panel["viewType"] == "Run History Line Plot"
    ]
    assert {plot["config"]["xAxis"] for plot in plots} == {STEP}
    specs = [panel for section in SECTIONS for panel in section.panels]
    for plot, panel in zip(plots, specs, strict=True):
        assert plot["config"]["chartTitle"] == panel.title
        if panel.family is None:
            assert plot["config"]["metrics"] == list(panel.metrics)
        else:
            assert plot["config"]["metricRegex"] == family_pattern(panel.family)
    table = sections[-1]["panels"][0]
    assert table["viewType"] == "Weave"
    assert TABLE in json.dumps(table)
    main(["--print", "--project", "sums", "--entity", "team"])
    assert capsys.readouterr().out == said


def test_a_familys_pattern_takes_its_metrics_and_no_others() -> None:
    pattern = family_pattern("eval/pass@*")
    assert re.search(pattern, "eval/pass@16")
    assert not re.search(pattern, "eval/exact/pass@16")
    assert not re.search(pattern, "eval/seed/pass@1/3")


def test_saving_needs_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "python -m maxent_grpo wandb-workspace: there is no W&B key, without which nothing can be saved: `wandb login`, or set "
        "WANDB_API_KEY; --print shows the definition\n"
    )
