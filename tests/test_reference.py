from pathlib import Path

from ibwire.rc import reference
from ibwire_layers.reference import updated


def test_field_reference_is_what_the_descriptions_give() -> None:
    """`make docs` makes it anew."""
    document = Path(__file__).parents[1] / "layers" / "README.md"
    text = document.read_text(encoding="utf-8")

    assert updated(text) == text


def test_table_of_profiles_is_what_the_profiles_say() -> None:
    """`make docs` makes it anew."""
    document = Path(__file__).parents[1] / "docs" / "profiles.md"

    assert reference.table() == document.read_text(encoding="utf-8")


def test_every_field_of_a_profile_says_what_it_means() -> None:
    rows = [line.split("|") for line in reference.table().splitlines() if line.startswith("| `")]

    assert rows
    assert all(row[2].strip() for row in rows)
