"""Real runs of two methods and two seeds, compared: what the page says of them is what they recorded themselves."""

from pathlib import Path

import pytest
from support.html_page import Page
from support.runs import metric_lines, train

from maxent_grpo.report.arms.cautions import cautions
from maxent_grpo.report.arms.figures import Findings, read_findings
from maxent_grpo.report.arms.page import comparison_page
from maxent_grpo.report.index.scan import scan


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    for method in ("maxent", "dr_grpo"):
        for seed in (0, 1):
            train(root / f"{method}-{seed}", f"scoring={method}", f"seed={seed}", "evaluation.ks=[1,4]")
    return root


@pytest.fixture(scope="module")
def findings(root: Path) -> Findings:
    found = read_findings([root / f"{method}-{seed}" for method in ("maxent", "dr_grpo") for seed in (0, 1)])
    assert len(found) == 1
    return found[0]


def test_figures_of_the_counts_are_those_that_the_run_recorded(findings: Findings) -> None:
    assert {"pass@1", "pass@4", "coverage@4"} <= {*findings.measures}
    for arm in findings.comparison.arms:
        for place, run in enumerate(arm.runs):
            recorded = metric_lines(run.run_dir)[-1]
            for name in findings.measures:
                mine = findings.figures[arm.name][name].per_seed[place]
                assert mine == pytest.approx(recorded[f"eval/{name}"], abs=1e-12), (arm.name, name)


def test_runs_of_one_model_are_seen_to_share_a_start_and_data(findings: Findings) -> None:
    assert [arm.name for arm in findings.comparison.arms] == ["scoring=maxent", "scoring=dr_grpo"]
    sentences = cautions(findings)
    assert sentences[1].startswith("All runs gave the same answers before training")
    assert len(sentences) == 3, "data, versions and lengths are alike"


def test_the_same_prompts_stand_beside_each_other(findings: Findings) -> None:
    page = Page(comparison_page([findings]))
    sides = [1 for tag, attributes in page.tags if attributes.get("class") == "side"]
    assert len(sides) >= 4
    assert "scoring.weighting.listwise_coef" in page.text


def test_the_table_of_runs_knows_them(root: Path) -> None:
    runs = {str(run.folder): run for run in scan(root)}
    assert len(runs) == 4
    run = runs["dr_grpo-1"]
    assert (run.method, run.task, run.seed, run.is_finished, run.last_step) == ("dr_grpo", "coloring", 1, True, 2)
    assert run.figures["pass@4"] == metric_lines(root / "dr_grpo-1")[-1]["eval/pass@4"]
