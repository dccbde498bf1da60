"""InfiniBand topologies by name: those that are shipped, by a key, or a net or TOML file."""

from __future__ import annotations

import os
from errno import ENOENT
from pathlib import Path

from ibwire.base.toml import closest
from ibwire.fabric.infiniband.generated import generate, is_key, topology_keys
from ibwire.fabric.infiniband.netfile import read_topology
from ibwire.fabric.infiniband.subnet import Subnet
from ibwire.fabric.infiniband.tomlfile import SUFFIX, read_toml

_FOLDER = Path(__file__).parents[2] / "topologies"


def topology_names() -> list[str]:
    """Names of the shipped topologies."""
    return sorted(path.stem for path in _FOLDER.glob("*.net"))


def topology_path(name: str) -> Path:
    """The file of a shipped topology, or `name` itself as a path."""
    shipped = _FOLDER / f"{name}.net"
    return shipped if name in topology_names() else Path(name)


def proposal(name: str) -> str:
    """What to write instead of a name that is no file: a shipped one that is near, or all."""
    near = closest(name, topology_names())
    if near is not None:
        return f"; did you mean {near}?"
    keys = ", ".join(key.split(":")[0] for key in topology_keys())
    return f"; shipped are {', '.join(topology_names())}; keys are {keys}"


def find_topology(name: str) -> Subnet:
    """The subnet of a shipped topology, of a key like `ring:switches=8`, or of a file.

    Raises `OSError`, `EncodeError`, and `TopologyError` or `ScriptError` for a file that is none.
    """
    path = topology_path(name)
    if is_key(name) and not path.exists():
        return generate(name)
    if path.suffix == SUFFIX:
        if not path.exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        return read_toml(path, lambda base: _find_beside(base, path.parent))
    return read_topology(path)


def _find_beside(name: str, folder: Path) -> Subnet:
    """The subnet of a name in a file: a path is meant from the folder of that file."""
    beside = folder / name
    try:
        return find_topology(str(beside) if beside.is_file() else name)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"{error.strerror}{proposal(name)}") from None
