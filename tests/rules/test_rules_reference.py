from pathlib import Path

from ibwire.rc.profile import PROFILES as EMULATED
from ibwire.rules import reference
from ibwire.rules.catalogue import RULES
from ibwire.rules.findings import ANY, PROFILES


def test_page_of_rules_is_what_the_catalogue_says() -> None:
    """`make docs` makes it anew."""
    document = Path(__file__).parents[2] / "docs" / "rules.md"

    assert reference.page() == document.read_text(encoding="utf-8")


def test_every_rule_names_an_entry_of_the_reference() -> None:
    assert not [rule.id for rule in RULES.values() if not rule.reference]


def test_profiles_to_judge_by_are_those_of_the_emulator() -> None:
    assert set(PROFILES) - {ANY} == set(EMULATED)
