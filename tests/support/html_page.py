"""A page of a report taken apart, for tests of what it holds."""

import json
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "path", "circle", "img", "br", "input"}


class Page(HTMLParser):
    """A page taken apart: every tag with its attributes, the text of elements, and whether the tags close as they open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def ids(self, tag: str) -> list[str]:
        """The ids of all such elements."""
        return [attributes["id"] for name, attributes in self.tags if name == tag and "id" in attributes]

    def points(self, key: str) -> dict:
        """What a chart's script reads."""
        found = next(attributes for _, attributes in self.tags if attributes.get("id") == f"chart-{key}")
        return json.loads(found["data-points"])

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", self.texts["body"][0])
