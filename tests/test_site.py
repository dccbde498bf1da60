"""The site has every page in its navigation, and links of pages lead somewhere."""

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from each_case import each_case
from ibwire.cli import COMMANDS, main, reference

ROOT = Path(__file__).parents[1]
SITE = runpy.run_path(str(ROOT / "docs" / "tools" / "assemble.py"))
PLACES: dict[str, str] = SITE["all_pages"]()
PAGES = [source for source in PLACES if source.endswith(".md")]


def leaves(entry: Any) -> Iterator[str]:
    """The pages of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(each)


def test_navigation_has_every_page_once() -> None:
    with (ROOT / "zensical.toml").open("rb") as file:
        listed = list(leaves(tomllib.load(file)["project"]["nav"]))

    pages = {place for place in PLACES.values() if place.endswith(".md")} | {"commands.md"}
    assert sorted(listed) == sorted(pages)


@each_case("source", PAGES)
def test_links_of_a_page_lead_to_files(source: str) -> None:
    SITE["relinked"]((ROOT / source).read_text(encoding="utf-8"), source, PLACES)


def test_links_lead_to_the_places_of_pages_on_the_site() -> None:
    text = "[a](../../layers/README.md#x) [b](../../ibwire/cli/run.py) [flows.md](../flows.md)"

    found = SITE["relinked"](text, "docs/howto/capture.md", PLACES)

    assert found == "[a](../header-fields.md#x) b [Connections](../flows.md)"


def test_a_dead_link_is_an_error() -> None:
    with pytest.raises(SITE["DeadLink"], match="nothing"):
        SITE["relinked"]("[a](nothing.md)", "docs/tap.md", PLACES)


def test_the_page_of_commands_has_every_command_and_option() -> None:
    page = reference.page()

    assert [line for line in page.splitlines() if line.startswith("### ")] == [
        f"### `ibwire {name}`" for name in COMMANDS
    ]
    shown = CliRunner().invoke(main, ["inject", "--help"]).stdout
    options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
    assert options
    assert {each for each in options if each not in page} == set()
