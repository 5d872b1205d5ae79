from dataclasses import dataclass

from maxent_grpo.commands.config_docs import reference_file
from maxent_grpo.config.declared import all_settings, groups, options
from maxent_grpo.config.reference import entries, field_docs, reference


def test_docs_config_md_is_up_to_date() -> None:
    assert reference_file().read_text(encoding="utf-8") == reference(), "run: python -m maxent_grpo config-docs"


def test_every_setting_has_a_docstring() -> None:
    bare = {
        f"{setting.owner.__name__}.{setting.name}"
        for setting in all_settings()
        if not field_docs(setting.owner).get(setting.name)
    }
    assert sorted(bare) == []


def test_every_option_has_a_docstring() -> None:
    # a dataclass without one gets its signature instead
    bare = [
        name for group in groups() for name, node in options(group).items() if node.__doc__.startswith(node.__name__)
    ]
    assert bare == []


@dataclass
class Base:
    """A group."""

    rate: float = 3e-4
    """How fast; 0 is off [per step]."""
    names: list[str] | None = None
    """What to call it."""


@dataclass
class Option(Base):
    """An option."""

    rate: float = 1.0
    flag: bool = True
    """Whether it is on."""


def test_a_row_holds_type_default_unit_and_meaning() -> None:
    rate, names = entries(Base, "group.")
    assert (rate.path, rate.kind, rate.default, rate.unit, rate.meaning) == (
        "group.rate",
        "number",
        "`0.0003`",
        "per step",
        "How fast; 0 is off.",
    )
    assert (names.kind, names.default) == ("list of text or null", "`null`")


def test_an_option_keeps_the_meaning_of_a_setting_it_only_gives_another_default() -> None:
    changed, same, added = entries(Option, "group.")
    assert (changed.default, changed.meaning) == ("`1.0`", "How fast; 0 is off.")
    assert same in entries(Base, "group.")
    assert (added.path, added.kind, added.default) == ("group.flag", "true or false", "`true`")


def test_an_option_lists_only_what_differs_from_its_group() -> None:
    section = reference().split("### `scoring=grpo`")[1].split("###")[0]
    assert "`scoring.advantage`" in section
    assert "`scoring.reduction`" in section
    assert "`scoring.kl_beta`" not in section
