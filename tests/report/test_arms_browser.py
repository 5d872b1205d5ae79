"""Comparison and table of runs as a browser shows them: nothing overlaps, arms differ without colour, the script works."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import DARK, Visit, visit
from support.synthetic_arms import write_arms
from support.synthetic_run import HOSTILE, write_run

from maxent_grpo.report.arms.figures import read_findings
from maxent_grpo.report.arms.page import comparison_page
from maxent_grpo.report.index.page import index_page

PROBE = """() => {
  const box = (element) => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const figures = [...document.querySelectorAll("figure")];
  const shown = () => [...document.querySelectorAll(".step-panel")].filter((panel) => panel.offsetHeight > 0);
  const style = (element, name) => getComputedStyle(element)[name];
  const chart = document.querySelector("#chart-entropy"), svg = chart.querySelector("svg"), place = box(svg);
  const legend = () => [...chart.querySelectorAll(".legend b")].map((label) => label.textContent);
  const answer = {
    ...seen, title: document.title, width: innerWidth, overflow: document.documentElement.scrollWidth,
    boxes: Object.fromEntries(figures.map((figure) => [figure.id, box(figure.querySelector("svg"))])),
    texts: Object.fromEntries(figures.map((figure) => [figure.id, [...figure.querySelectorAll("text")].map(box)])),
    small: Math.min(...[...document.querySelectorAll("svg text")].map((text) => text.getBoundingClientRect().height)),
    dashes: [...chart.querySelectorAll(".line")].map((line) => style(line, "strokeDasharray")),
    colours: [...chart.querySelectorAll(".line")].map((line) => style(line, "stroke")),
    swatches: [...chart.querySelectorAll(".swatch")].map((each) => [each.offsetWidth, style(each, "backgroundImage")]),
    marks: [...document.querySelectorAll("#chart-final-pass-1 .mean")].map((mark) => mark.getAttribute("d")),
    wide: [...document.querySelectorAll("main *, header *")].filter((element) => box(element)[2] > innerWidth + 1
      && !element.closest(".table") && !element.closest("nav")).map((element) => element.className).slice(0, 4),
    resources: performance.getEntriesByType("resource").length, images: document.images.length,
    sides: [...document.querySelectorAll(".sides")].map((sides) => sides.children.length),
    started: shown().map((panel) => panel.dataset.step), before: legend(),
  };
  document.querySelector(".steps button").click();
  answer.clicked = shown().map((panel) => panel.dataset.step);
  svg.dispatchEvent(new PointerEvent("pointermove", { clientX: place[0] + 1 }));
  answer.during = [legend(), chart.querySelector(".at").textContent];
  return answer;
}"""
TABLE = """() => {
  const names = () => [...document.querySelectorAll("tbody tr")].filter((row) => row.offsetHeight > 0)
    .map((row) => row.cells[0].dataset.value);
  const head = (name) => [...document.querySelectorAll("thead button")].find((button) => button.textContent === name);
  const set = (id, value) => { const box = document.getElementById(id); box.value = value; box.dispatchEvent(new Event("input")); };
  const answer = { ...seen, overflow: document.documentElement.scrollWidth, width: innerWidth, started: names() };
  head("run").click(); answer.sorted = names();
  head("run").click(); answer.reversed = names();
  head("pass@8").click(); answer.byFigure = [names()[0], names().at(-1)];
  head("seed").click(); head("seed").click(); answer.bySeed = names()[0];
  set("words", "DR_ sweep"); answer.filtered = names(); answer.count = document.getElementById("count").textContent;
  set("words", ""); set("state", "unfinished"); answer.unfinished = names();
  set("state", ""); set("sweep", "some-sweep"); answer.ofSweep = names().length;
  return answer;
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    methods = ("maxent", "dr_grpo", "a_method_with_a_name_that_is_longer_than_a_chart_is_wide_" + "x" * 40)
    return comparison_page(read_findings(write_arms(tmp_path_factory.mktemp("sweep"), methods, (0, 1), text=HOSTILE)))


@pytest.fixture(scope="module")
def desktop(page: str, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(page, tmp_path_factory.mktemp("desktop"), PROBE, 1280, 9000)


@pytest.fixture(scope="module")
def phone(page: str, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(page, tmp_path_factory.mktemp("phone"), PROBE, 390, 19_000, DARK)


@pytest.fixture(params=["desktop", "phone"])
def seen(request: pytest.FixtureRequest) -> Visit:
    return request.getfixturevalue(request.param)


def test_no_text_of_a_drawing_lies_on_another_or_leaves_it(seen: Visit) -> None:
    assert len(seen.probe["texts"]) > 30
    for name, texts in seen.probe["texts"].items():
        left, top, right, bottom = seen.probe["boxes"][name]
        for a, b in itertools.combinations(texts, 2):
            apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 3 or b[3] <= a[1] + 3
            assert apart, f"{name}: {a} lies on {b}"
        for text in texts:
            assert text[0] >= left - 1, name
            assert text[2] <= right + 1, name
            assert text[1] >= top - 3, name
            assert text[3] <= bottom + 3, name


def test_every_figure_is_drawn_and_nothing_overflows(seen: Visit) -> None:
    for name, (left, top, right, bottom) in seen.probe["boxes"].items():
        region = seen.pixels[round(top) : round(bottom), round(left) : round(right)].astype(int)
        colourful = region.max(axis=-1) - region.min(axis=-1) > 60
        assert colourful.sum() > 30, name
        assert len(np.unique(region @ [65_536, 256, 1])) > 5, name
    assert seen.probe["overflow"] <= seen.probe["width"], seen.probe["wide"]
    assert seen.probe["small"] >= 9


def test_arms_are_told_apart_without_colour(seen: Visit) -> None:
    for looks in ("dashes", "colours", "marks"):
        assert len(seen.probe[looks]) == len({*seen.probe[looks]}) == 3, looks
    assert len({image for _, image in seen.probe["swatches"]}) == 3
    assert min(width for width, _ in seen.probe["swatches"]) >= 20


def test_no_error_and_no_request(seen: Visit) -> None:
    probe: Any = seen.probe
    assert (seen.console, probe["errors"], probe["violations"], probe["resources"], seen.requests) == (
        [],
        [],
        [],
        0,
        [],
    )
    assert probe["images"] == 0
    assert probe["title"] == "2 arms against scoring=maxent"


def test_steps_and_values_follow_the_reader(seen: Visit) -> None:
    probe: Any = seen.probe
    assert (probe["started"], probe["clicked"]) == (["20"], ["5"])
    assert {*probe["sides"]} == {3}
    values, step = probe["during"]
    assert step == "step 1"
    assert len(values) == 3
    assert all(a != b for a, b in zip(values, probe["before"], strict=True))


def test_the_page_follows_the_light(desktop: Visit, phone: Visit) -> None:
    assert desktop.pixels[2, 2].min() > 230
    assert phone.pixels[2, 2].max() < 40


def test_the_table_of_runs_sorts_and_filters(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    write_arms(root / "some-sweep", seeds=(0, 1))
    (root / "some-sweep" / "multirun.yaml").touch()
    write_run(root / "2-alone", 8, 4, seed=12)
    (root / "10-bare").mkdir()
    (root / "10-bare" / "metrics.jsonl").touch()
    seen = visit(index_page(root), tmp_path, TABLE, 1280, 700)
    probe: Any = seen.probe
    assert (seen.console, probe["errors"], seen.requests) == ([], [], [])
    assert probe["overflow"] <= probe["width"]
    assert len(probe["started"]) == 6
    assert probe["sorted"][:2] == ["2-alone", "10-bare"], "numbers in names by their value"
    assert probe["reversed"] == probe["sorted"][::-1]
    assert "dr_grpo" in probe["byFigure"][0]
    assert probe["byFigure"][1] == "10-bare", "what has no figure comes last"
    assert probe["bySeed"] == "2-alone"
    assert len(probe["filtered"]) == 2
    assert probe["count"] == "2 of 6 shown"
    assert sorted(probe["unfinished"]) == ["10-bare", "2-alone"]
    assert probe["ofSweep"] == 4
