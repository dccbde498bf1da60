"""InfiniBand topologies by name: those that are shipped, by a key, or a file."""

from __future__ import annotations

from pathlib import Path

from ibwire.fabric.infiniband.generated import generate, is_key
from ibwire.fabric.infiniband.netfile import read_topology
from ibwire.fabric.infiniband.subnet import Subnet

_FOLDER = Path(__file__).parents[2] / "topologies"


def topology_names() -> list[str]:
    """Names of the shipped topologies."""
    return sorted(path.stem for path in _FOLDER.glob("*.net"))


def topology_path(name: str) -> Path:
    """The file of a shipped topology, or `name` itself as a path."""
    shipped = _FOLDER / f"{name}.net"
    return shipped if name in topology_names() else Path(name)


def find_topology(name: str) -> Subnet:
    """The subnet of a shipped topology, of a key like `ring:switches=8`, or of a file.

    Raises `OSError`, `EncodeError`, and `TopologyError` for a file that is none.
    """
    path = topology_path(name)
    if is_key(name) and not path.exists():
        return generate(name)
    return read_topology(path)
