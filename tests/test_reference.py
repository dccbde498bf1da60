from pathlib import Path

from ibwire_layers.reference import updated


def test_field_reference_is_what_the_descriptions_give() -> None:
    """`make docs` makes it anew."""
    document = Path(__file__).parents[1] / "layers" / "README.md"
    text = document.read_text(encoding="utf-8")

    assert updated(text) == text
