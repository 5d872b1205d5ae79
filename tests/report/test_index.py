"""The table of all runs: found, read and linked whatever else lies there, and quick."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from support.html_page import Page
from support.synthetic_arms import write_arms
from support.synthetic_run import write_run

from maxent_grpo.report.index.page import index_page, write_index
from maxent_grpo.report.index.scan import IndexedRun, scan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sweep of four runs, one of them broken off; runs in all states; and what is none of ours."""
    sweep = tmp_path / "day" / "12-00-00-sweep"
    runs = write_arms(sweep, seeds=(0, 1))
    (sweep / "multirun.yaml").write_text("hydra: {}\n")
    for run in runs:
        (run / "config.yaml").write_text((run / "config.yaml").read_text() + "# end\n")
    rows = (runs[3] / "metrics.jsonl").read_bytes()
    (runs[3] / "metrics.jsonl").write_bytes(rows[: len(rows) // 2])
    alone = write_run(tmp_path / "day" / "13-00-00", 300, 50, "rloo", 7)
    with (alone / "metrics.jsonl").open("a") as file:
        file.write('[1]\nnot json\n{"step": 301, "reward/mean": 9')
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("# options: scoring=grpo data=countdown\nseed: 3\n")
    for name, file, text in (("site", "config.yaml", "title: a site\n"), (".cache", "metrics.jsonl", "{}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "metrics.jsonl").write_bytes(b"\xff\xfe\n\x00\n{}\n")
    (tmp_path / "odd" / "config.yaml").write_bytes(b"\xff# options: scoring=x\nseed: three\n")
    (alone / "report.html").write_text("there")
    return tmp_path


def by_name(root: Path) -> dict[str, IndexedRun]:
    return {run.folder.as_posix(): run for run in scan(root)}


def test_every_run_is_found_and_nothing_else(root: Path) -> None:
    runs = by_name(root)
    assert sorted(runs) == [
        "begun",
        "day/12-00-00-sweep/0-scoring=maxent,seed=0",
        "day/12-00-00-sweep/1-scoring=maxent,seed=1",
        "day/12-00-00-sweep/2-scoring=dr_grpo,seed=0",
        "day/12-00-00-sweep/3-scoring=dr_grpo,seed=1",
        "day/13-00-00",
        "odd",
    ]
    sweep = runs["day/12-00-00-sweep/0-scoring=maxent,seed=0"]
    assert (sweep.sweep, sweep.method, sweep.task, sweep.model, sweep.seed) == (
        "day/12-00-00-sweep", "maxent", "coloring", "tiny", 0,
    )  # fmt: skip
    assert (sweep.is_finished, sweep.last_step) == (True, 20)
    assert not runs["day/12-00-00-sweep/3-scoring=dr_grpo,seed=1"].is_finished
    assert runs["day/12-00-00-sweep/3-scoring=dr_grpo,seed=1"].last_step < 20


def test_figures_are_the_newest_ones_of_a_long_run(root: Path) -> None:
    run = by_name(root)["day/13-00-00"]
    rows = [json.loads(line) for line in (root / "day/13-00-00/metrics.jsonl").read_text().splitlines()[:301]]
    assert run.last_step == 300
    assert run.figures["pass@8"] == rows[-1]["eval/pass@8"]
    assert list(run.course) == [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    assert run.figures["reward"] == pytest.approx(sum(row["reward/mean"] for row in rows[-3:]) / 3, abs=0.1)
    assert "2 damaged lines of metrics.jsonl not read" in run.state


def test_what_is_not_known_is_left_open(root: Path) -> None:
    runs = by_name(root)
    assert (runs["begun"].seed, runs["begun"].last_step, runs["begun"].figures) == (3, 0, {})
    assert (runs["odd"].method, runs["odd"].seed) == ("", None)


def test_the_page_links_reports_that_are_there(root: Path) -> None:
    page = Page(index_page(root))
    links = [
        attributes["href"] for tag, attributes in page.tags if tag == "a" and not attributes["href"].startswith("#")
    ]
    assert links == ["./day/13-00-00/report.html"]
    assert "3 of 4 runs finished; dr_grpo, maxent" in page.text
    assert f"python -m maxent_grpo report {root}/day/12-00-00-sweep" in page.text
    (root / "day" / "12-00-00-sweep" / "comparison.html").write_text("there")
    again = Page(write_index(root).read_text())
    assert "./day/12-00-00-sweep/comparison.html" in [a.get("href") for tag, a in again.tags if tag == "a"]
    assert "7 runs, 3 finished" in again.text


def test_names_of_folders_are_escaped_and_quoted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "javascript:a<b>&'#?", 4, 2)
    (run / "report.html").touch()
    page = Page(index_page(tmp_path))
    assert [a["href"] for tag, a in page.tags if tag == "a"][-1] == "./javascript%3Aa%3Cb%3E%26%27%23%3F/report.html"
    assert "javascript:a<b>&'#?" in page.text


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert "No run lies below this folder." in Page(index_page(tmp_path)).text


def test_two_hundred_runs_take_seconds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", 200, 25)
    settings = "\n".join(f"  a{number}: {number}" for number in range(300))
    (run / "config.yaml").write_text(f"# options: scoring=maxent\nother:\n{settings}\nseed: 1\n")
    for place in range(1, 200):
        shutil.copytree(run, tmp_path / str(place), copy_function=os.link)
    begun = time.process_time()
    page = index_page(tmp_path)
    assert time.process_time() - begun < 4
    assert page.count("<tr data-state") == 200
    assert len(page) < 400_000
