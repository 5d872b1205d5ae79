"""The report as a browser shows it: a real headless Chromium at desktop and phone width, and what is on its screenshot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import DARK, Visit, visit
from support.synthetic_run import HOSTILE, write_rich_run

from maxent_grpo.report.page import report_page

PROBE = """() => {
  const box = (element) => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const boxes = Object.fromEntries([...document.querySelectorAll("figure")].map((figure) =>
    [figure.id, box(figure.querySelector("svg, .bar"))]));
  const shown = () => [...document.querySelectorAll(".step-panel")].filter((panel) => panel.offsetHeight > 0);
  const items = () => [...document.querySelectorAll(".group li")].filter((item) => item.offsetHeight > 0).length;
  const answer = {
    ...seen, boxes, title: document.title, width: innerWidth, overflow: document.documentElement.scrollWidth,
    tick: Math.min(...[...document.querySelectorAll(".tick")].map((text) => text.getBoundingClientRect().height)),
    resources: performance.getEntriesByType("resource").length, images: document.images.length,
    texts: [...document.querySelectorAll(".group .text code")].map((code) => code.textContent),
    started: shown().map((panel) => panel.dataset.step), items: {},
  };
  const buttons = [...document.querySelectorAll(".steps button")];
  buttons[0].click();
  answer.clicked = [buttons[0].dataset.step, shown().map((panel) => panel.dataset.step)];
  buttons[buttons.length - 1].click();
  const filter = document.querySelector(".filter select");
  for (const kind of ["all", "top", "rest"]) {
    filter.value = kind; filter.dispatchEvent(new Event("change")); answer.items[kind] = items();
  }
  filter.value = "all"; filter.dispatchEvent(new Event("change"));
  const chart = document.querySelector("#chart-pass"), svg = chart.querySelector("svg"), place = box(svg);
  const legend = () => chart.querySelector(".legend").textContent.replace(/\\s+/g, " ").trim();
  answer.before = legend();
  svg.dispatchEvent(new PointerEvent("pointermove", { clientX: place[0] + 1 }));
  answer.during = legend();
  svg.dispatchEvent(new PointerEvent("pointerleave"));
  answer.after = legend();
  return answer;
}"""
LATER = """() => ({ ...seen, asked: document.images.length })"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page(write_rich_run(tmp_path_factory.mktemp("run") / "rich"))


@pytest.fixture(scope="module")
def desktop(page: str, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(page, tmp_path_factory.mktemp("desktop"), PROBE, 1280, 6400)


@pytest.fixture(scope="module")
def phone(page: str, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(page, tmp_path_factory.mktemp("phone"), PROBE, 390, 13000, DARK)


@pytest.fixture(params=["desktop", "phone"])
def seen(request: pytest.FixtureRequest) -> Visit:
    return request.getfixturevalue(request.param)


def colourful(pixels: np.ndarray) -> np.ndarray:
    """Where a pixel is a colour of a line rather than a grey of text, grid or paper."""
    return pixels.max(axis=-1).astype(int) - pixels.min(axis=-1) > 60


def test_every_figure_is_on_the_screenshot(seen: Visit) -> None:
    assert len(seen.probe["boxes"]) > 25
    for name, (left, top, right, bottom) in seen.probe["boxes"].items():
        region = seen.pixels[round(top) : round(bottom), round(left) : round(right)]
        height, width = region.shape[:2]
        assert width > 280, name
        assert height > (15 if name == "chart-shares" else 130), name
        columns = colourful(region).any(axis=0)
        assert columns.mean() > 0.8, f"the line of {name} does not run through its chart"
        assert len(np.unique(region.reshape(-1, 3), axis=0)) > 5, name


def test_nothing_overflows_and_text_is_legible(seen: Visit) -> None:
    assert seen.probe["overflow"] <= seen.probe["width"]
    assert seen.probe["width"] == seen.pixels.shape[1]
    assert seen.probe["tick"] >= 9


def test_no_error_and_no_request(seen: Visit) -> None:
    assert seen.console == []
    assert seen.probe["errors"] == []
    assert seen.probe["violations"] == []
    assert seen.probe["resources"] == 0
    assert seen.requests == []


def test_the_page_follows_the_light(desktop: Visit, phone: Visit) -> None:
    assert desktop.pixels[2, 2].min() > 230
    assert phone.pixels[2, 2].max() < 40


def test_a_hostile_completion_is_text(seen: Visit) -> None:
    assert seen.probe["title"] == "dr_grpo, run rich"
    assert seen.probe["images"] == 0
    shown = HOSTILE.replace("\ud800", "\\ud800").replace("\x00", "\u2400")
    assert shown in seen.probe["texts"]


def test_a_step_can_be_chosen_and_rewards_filtered(seen: Visit) -> None:
    probe: Any = seen.probe
    assert probe["started"] == ["120"]
    first, shown = probe["clicked"]
    assert (first, shown) == ("10", ["10"])
    assert probe["items"] == {"all": 16, "top": 8, "rest": 8}


def test_pointing_at_a_chart_shows_its_values(seen: Visit) -> None:
    assert seen.probe["before"] == seen.probe["after"]
    assert seen.probe["during"] == "pass@1 0.562pass@8 0.887step 0"


def test_the_look_would_notice_an_error_and_a_request(tmp_path: Path) -> None:
    bad = (
        '<!doctype html><html><head></head><body><img src="http://image.example/a.png">'
        "<script>undefinedName()</script></body></html>"
    )
    seen = visit(bad, tmp_path, LATER, 600, 300)
    assert seen.probe["errors"] == ["Uncaught ReferenceError: undefinedName is not defined"]
    assert any("undefinedName" in line for line in seen.console)
    assert seen.requests == ["http://image.example/a.png"]
