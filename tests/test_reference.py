import re
import runpy
from html import unescape
from pathlib import Path

from ibwire.rc import reference
from ibwire_layers.reference import updated

ROOT = Path(__file__).parents[1]


def test_field_reference_is_what_the_descriptions_give() -> None:
    """`make docs` makes it anew."""
    document = ROOT / "layers" / "README.md"
    text = document.read_text(encoding="utf-8")

    assert updated(text) == text


def test_table_of_profiles_is_what_the_profiles_say() -> None:
    """`make docs` makes it anew."""
    document = ROOT / "docs" / "profiles.md"

    assert reference.table() == document.read_text(encoding="utf-8")


def words_of(picture: str) -> list[str]:
    """What is to be read in an SVG; its sizes depend on the version of rich."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return unescape(" ".join(texts)).replace("\xa0", " ").split()


def test_pictures_show_what_the_commands_print() -> None:
    """`make docs` makes them anew."""
    tool = runpy.run_path(str(ROOT / "docs" / "tools" / "picture.py"))

    assert tool["PICTURES"]
    for name, command in tool["PICTURES"].items():
        words = words_of((ROOT / name).read_text(encoding="utf-8"))
        assert len(words) > 50, name
        assert words_of(tool["picture"](command)) == words, name


def test_every_field_of_a_profile_says_what_it_means() -> None:
    rows = [line.split("|") for line in reference.table().splitlines() if line.startswith("| `")]

    assert rows
    assert all(row[2].strip() for row in rows)
