"""InfiniBand topologies that are shipped, as net files of ibsim."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "topologies"


def topology_names() -> list[str]:
    """Names of the shipped topologies."""
    return sorted(path.stem for path in _FOLDER.glob("*.net"))


def topology_path(name: str) -> Path:
    """The file of a shipped topology, or `name` itself as a path."""
    shipped = _FOLDER / f"{name}.net"
    return shipped if name in topology_names() else Path(name)
