"""`python -m maxent_grpo scale-docs`: write the plans that docs/scale.md shows, as its own commands print them."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping

from maxent_grpo.commands.generated_page import page_file, write_page

PAGE = "scale.md"
COMMAND = "python -m maxent_grpo plan "
_SHOWN = re.compile(rf"(```bash\n({COMMAND}(?:[^\n]*\\\n)*[^\n]*)\n```\n\n```text\n).*?(?=\n```)", re.DOTALL)
_TABLE = re.compile(r"(<!-- plans -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
NOT_LOOKED_AT = "\n\nnot looked at here\n"


def main(arguments: list[str]) -> None:
    """Write docs/scale.md; with --check say whether it is up to date."""
    with tempfile.TemporaryDirectory() as empty:
        # a plan of the page is one that was made without hub and without its cache
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty}
        write_page(
            arguments, "scale-docs", PAGE, lambda: refreshed(page_file(PAGE).read_text(encoding="utf-8")),
            "Write the plans of docs/scale.md: each command that it shows is asked, as on a machine without hub and GPU.",
        )  # fmt: skip


def refreshed(page: str) -> str:
    """The page with what its commands print now, and the table of them."""
    page = _SHOWN.sub(lambda found: found[1] + printed(found[2]), page)
    return _TABLE.sub(lambda found: found[1] + table(page), page)


def printed(command: str) -> str:
    """What a command of the page prints, without what could not be looked at, which depends on the machine."""
    from maxent_grpo.commands.plan import parser, planned

    words = shlex.split(command.replace("\\\n", " ").removeprefix(COMMAND))
    return planned(parser().parse_intermixed_args(words)).partition(NOT_LOOKED_AT)[0]


def table(page: str) -> str:
    """A row for each plan of the page, under the heading that it stands under."""
    rows = ["| | trainers | sampling | a trainer's peak | a step | bottleneck |", "|---|---|---|---|---|---|"]
    for heading, said in _sections(page):
        cells = [heading, *(_value(said, label) for label in ("trainers", "sampling", "peak", "a step", "bottleneck"))]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _sections(page: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        found = _SHOWN.search(part)
        if found is not None:
            text = part[found.end(1) : part.index("\n```", found.end(1))]
            lines = re.findall(r"^  (\S[^\n]*?) {2,}([^\n]*)$", text, flags=re.MULTILINE)
            said: dict[str, str] = {}
            for label, value in lines:  # a part of a step may be called as one of the process is
                said.setdefault(label, value.strip())
            yield part.split("\n", 1)[0], said


def _value(said: Mapping[str, str], label: str) -> str:
    """The first words of a line: up to what is told beside them."""
    return re.split(r" {2,}|; |, (?!\d)", said[label])[0]
