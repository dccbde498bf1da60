"""Loads scenarios: from a file, or one of those shipped with ibwire."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from ibwire.base.errors import ScriptError
from ibwire.base.toml import hint, read_content
from ibwire.base.toml_settings import Setting
from ibwire.scenario.model import read_scenario
from ibwire.scenario.specs import Scenario

_SUFFIX = ".toml"


def shipped() -> dict[str, Scenario]:
    """The scenarios of this package by name, in alphabetical order."""
    return {name: _read(file) for name, file in sorted(_files().items())}


def load(name: str, settings: Iterable[Setting] = ()) -> Scenario:
    """The scenario in a file, or the one of that name that is shipped when it has no suffix.

    settings: values in place of those in the file. Raises `ScriptError`, also for a file that
    cannot be read.
    """
    return _read(find(name), settings)


def find(name: str) -> Traversable:
    """The file of a scenario, or of the one of that name that is shipped; raises `ScriptError`."""
    path = Path(name)
    if path.suffix == _SUFFIX or path.exists():
        return path
    found = _files().get(name)
    if found is None:
        raise ScriptError(name, None, None, _missing(path))
    return found


def _missing(path: Path) -> str:
    """Why there is no such scenario, with what may be meant."""
    other = path.with_suffix(_SUFFIX) if path.name else path
    if path.suffix or len(path.parts) > 1:
        near = f"; did you mean {other}?" if other.is_file() else ""
        return f"no such file{near}"
    if other.is_file():
        return f"no such scenario; did you mean the file {other}?"
    return f"no such scenario{hint(str(path), _files())}"


def _files() -> dict[str, Traversable]:
    folder = files("ibwire") / "scenarios"
    return {
        file.name.removesuffix(_SUFFIX): file
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    }


def _read(file: Traversable, settings: Iterable[Setting] = ()) -> Scenario:
    return read_scenario(read_content(file), str(file), settings)
