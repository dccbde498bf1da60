"""No function is longer than 60 lines, unless its `def` line gives a reason: `# long: reason`.

Complexity is checked by ruff (C901, at most 20), where an exception reads `# noqa: C901 - reason`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from outlines import outline

ROOT = Path(__file__).parents[1]

LIMIT = 60

TOO_LONG: set[str] = set()
"""Functions still to be divided. Nothing is added here; a reason belongs on the `def` line."""


@cache
def long_functions() -> set[str]:
    """Functions of more lines than the limit that give no reason, decorators not counted."""
    return set(_long_functions())


def _long_functions() -> Iterator[str]:
    for path in sorted([*(ROOT / "ibwire").rglob("*.py"), *(ROOT / "layers").rglob("*.py")]):
        lines = path.read_text(encoding="utf-8").splitlines()
        for name, first, last in outline(path).functions:
            if last - first + 1 > LIMIT and not re.search(r"# long: \w", lines[first - 1]):
                yield f"{path.relative_to(ROOT).as_posix()}:{name}"


def test_no_function_is_too_long_without_a_reason() -> None:
    assert sorted(long_functions() - TOO_LONG) == []


def test_functions_that_were_divided_are_removed_from_the_table() -> None:
    assert sorted(TOO_LONG - long_functions()) == []


def test_each_exception_of_complexity_gives_a_reason() -> None:
    bare = [
        f"{path.relative_to(ROOT).as_posix()}:{number}"
        for top in ("ibwire", "layers")
        for path in sorted((ROOT / top).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"noqa:.*C901", line) and not re.search(r"C901\b.* - \w", line)
    ]

    assert bare == []
