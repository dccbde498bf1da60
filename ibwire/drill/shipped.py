"""The conformance scripts that are part of ibwire, by the name `conformance`."""

from __future__ import annotations

from pathlib import Path

NAME = "conformance"

_PACKAGE = Path(__file__).parents[1]


def directory() -> Path:
    """Where the scripts are: in the installed package, or in the repository."""
    installed = _PACKAGE / NAME
    return installed if installed.is_dir() else _PACKAGE.parent / "tests" / NAME


def shipped_path(path: Path) -> Path | None:
    """What `conformance` or `conformance/PART` stands for, `None` for another path."""
    if path.parts[:1] != (NAME,) or ".." in path.parts:
        return None
    found = directory().joinpath(*path.parts[1:])
    return found if found.exists() else None


def parts() -> list[str]:
    """The names of the folders: subjects of the scripts."""
    return sorted(each.name for each in directory().iterdir() if each.is_dir())
