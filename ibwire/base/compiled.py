"""Whether this ibwire is pure Python, or has compiled modules."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**options: Any) -> Any:
        """A decorator that only the compiler reads; see mypyc's documentation."""
        return lambda decorated: decorated


PACKAGE = Path(__file__).parents[1]


def compiled_modules(package: Path = PACKAGE) -> int:
    """How many modules of a package are compiled."""
    return sum(path.name.endswith(tuple(EXTENSION_SUFFIXES)) for path in package.rglob("*.*"))


def describe_build(package: Path = PACKAGE) -> str:
    """Pure Python, or how many modules are compiled."""
    count = compiled_modules(package)
    if not count:
        return "pure Python"
    return f"{count} module{'s' if count > 1 else ''} compiled"
