"""Numbers in pages that count what is in the repository."""

import re
import tomllib
from pathlib import Path

import pytest

from laws_wire import ALL_LAWS

ROOT = Path(__file__).parents[1]


def scripts() -> int:
    return len(list((ROOT / "tests" / "conformance").rglob("*.drill")))


def mutants() -> int:
    text = (ROOT / "tests" / "mutants" / "table.toml").read_text(encoding="utf-8")
    return len(tomllib.loads(text)["mutant"])


def test_the_number_of_laws_is_right() -> None:
    for page in ("explanation/trust.md", "reliability.md"):
        (laws,) = re.findall(r"(\d+) laws over random", (ROOT / "docs" / page).read_text("utf-8"))
        assert int(laws) == len(ALL_LAWS), page


@pytest.mark.parametrize(
    ("page", "of_what", "count"),
    [
        ("tutorials/first-script.md", "scripts", scripts()),
        ("explanation/trust.md", "deliberate bugs", mutants()),
        ("reliability.md", "mutants", mutants()),
    ],
)
def test_more_than_so_many_is_true_and_not_far_off(page: str, of_what: str, count: int) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")

    (found,) = re.findall(rf"more than (\d+) {of_what}", text)

    assert int(found) < count < 1.25 * int(found)
