"""docs/architecture.md names what exists, and every package."""

import re
from pathlib import Path

from each_case import each_case
from test_imports import MODULES, RANKS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

CODE = re.findall(r"`([^`\n]+)`", PAGE)
TOPS = ("captures/", "docs/", "ibwire/", "layers/", "tests/")
PATHS = sorted({each for each in CODE if each.startswith(TOPS)})
NAMED = sorted(set(re.findall(r"`(\w+)` in `([\w/]+\.py)`", PAGE)))
DOTTED = sorted({each for each in CODE if re.fullmatch(r"ibwire(_layers)?(\.\w+)+", each)})


def test_every_path_on_the_page_exists() -> None:
    missing = [path for path in PATHS if not (ROOT / path).exists()]

    assert missing == []


@each_case("path", sorted({path for _, path in NAMED}))
def test_every_name_is_in_the_file_that_the_page_gives(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    definition = r"^ *(?:class |def )?{}\b *(?:[:=(\[]|$)"

    missing = [
        name
        for name, file in NAMED
        if file == path and not re.search(definition.format(name), text, re.MULTILINE)
    ]

    assert missing == []


def test_every_module_on_the_page_exists() -> None:
    assert [name for name in DOTTED if name not in MODULES] == []


def test_every_package_is_on_the_page() -> None:
    folders = {path.parent for path in (ROOT / "ibwire").glob("*/__init__.py")}
    packages = {f"{folder.relative_to(ROOT)}/" for folder in folders}

    assert packages <= set(PATHS)


def test_the_ranks_on_the_page_are_those_of_the_imports() -> None:
    section = PAGE.split("## Who may import whom")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d) \| (.*) \|$", section, re.MULTILINE)
    shown = {int(number): set(re.findall(r"`([\w.]+)`", cell)) for number, cell in rows}

    # Packages that are ranked and not written yet, and the two that contain the others.
    silent = {"ibwire", "ibwire.__main__"}
    expected = {
        number: {name for name in rank if name in MODULES} - silent
        for number, rank in enumerate(RANKS)
    }
    assert shown == expected
