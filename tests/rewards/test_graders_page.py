"""The page about the graders shows cases of the tables, with their verdicts."""

from __future__ import annotations

import re
from pathlib import Path

from rewards.cases import choice, exact, math, numeric

from maxent_grpo.rewards.graders import GRADERS

PAGE = (Path(__file__).parents[2] / "docs" / "rewards_graders.md").read_text()
TABLES = {"exact": exact, "numeric": numeric, "choice": choice, "math": math}
ROW = re.compile(r"^\| `(.*)` \| `(.*)` \| (\w+) \| (.*) \|$", re.MULTILINE)


def test_every_example_of_the_page_is_a_case_with_that_verdict() -> None:
    for name, table in TABLES.items():
        section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
        rows = ROW.findall(section)
        cases = {tuple(case) for case in (*table.PLAIN, *table.ADVERSARIAL)}
        assert len(rows) >= 3
        assert len(rows) == section.count("\n| `")
        for text, answer, verdict, why in rows:
            assert (text.replace("\\n", "\n"), answer, verdict, why) in cases


def test_the_page_names_every_grader() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| [^|]* \|$", PAGE, re.MULTILINE)) == set(GRADERS)
