"""A real headless browser that looks at a page: what it draws, what it says, and what it asks of the network."""

import html
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
    # nothing that the browser itself would ask leaves the machine either
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--no-proxy-server"),
)
DARK = "--blink-settings=preferredColorScheme=0"
OF_THE_BROWSER = "not an origin"
"""Initiator that the network log gives to requests that no page made."""

EARLY = """<script>
const seen = { errors: [], violations: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => seen.violations.push(event.blockedURI));
</script>"""
"""Goes first into the page, to see what goes wrong before anything else runs."""


@dataclass(frozen=True)
class Visit:
    """What a browser made of a page."""

    pixels: np.ndarray
    """The screenshot, [height, width, RGB]."""
    probe: Any
    """What the probe script returned."""
    console: list[str]
    """Lines of the page's console."""
    requests: list[str]
    """URLs that the page asked of the network."""


def find_browser() -> str:
    """The browser named by CHROMIUM, or one that is installed; a failed test without any."""
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [path for name in NAMES if (path := shutil.which(name))]
    found += [] if named else [path for path in APPLICATIONS if Path(path).is_file()]
    if not found:
        pytest.fail("no Chromium is installed to look at the report: `make browser`, or CHROMIUM=/path/to/chrome")
    return found[0]


def visit(page: str, folder: Path, probe: str, width: int, height: int, *flags: str) -> Visit:
    """Open the page in a window of that size, let the probe's expression answer, take a picture.

    A window cannot be narrower than 500 pixels, so the page is shown in a frame of its own width at the window's corner.
    """
    probed = page.replace("<head>", f"<head>{EARLY}", 1).replace(
        "</body>", f"<script>top.document.body.dataset.probe = JSON.stringify(({probe})());</script></body>", 1
    )
    frame = f'<iframe style="border:0;display:block;width:{width}px;height:{height}px" srcdoc="{html.escape(probed)}">'
    outer = folder / "outer.html"
    text = f'<!doctype html><html><head><link rel="icon" href="data:,"></head><body style="margin:0">{frame}</iframe></body></html>'
    outer.write_bytes(text.encode("utf-8", "backslashreplace"))
    picture, network = folder / "picture.png", folder / "network.json"
    command = [
        *(find_browser(), *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={network}"),
        *(f"--screenshot={picture}", "--dump-dom", f"--window-size={max(width, 500)},{height}", outer.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert picture.is_file(), f"the browser took no picture: {done.stderr[-2000:]}"
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))[:, :width]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Visit(pixels, _probe(done.stdout), console, _requests(network))


def _probe(dom: str) -> Any:
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for name, value in attrs if name == "data-probe" and tag == "body" and value)

    Reader().feed(dom)
    assert found, "the probe did not come to its end"
    return json.loads(found[0])


def _requests(network: Path) -> list[str]:
    events = json.loads(network.read_text())["events"]
    asked = [event["params"] for event in events if "initiator" in event.get("params", {})]
    return [params["url"] for params in asked if params["initiator"] != OF_THE_BROWSER]
