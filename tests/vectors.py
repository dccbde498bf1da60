"""The golden frames with their expected fields.

`golden/README.md` tells where they come from. `IBWIRE_VECTORS=file` runs every
test that uses them on another file of the same form, such as the larger set
whose third-party frames may not be shipped.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "vectors.json"
ENVIRONMENT = "IBWIRE_VECTORS"

ETHERNET = 1
RAW_IP = 101
INFINIBAND = 247
LINK_PACKET = -1
"""A bare six-byte flow-control packet: no capture link type carries it alone."""

_LINK_TYPES = {
    "ethernet": ETHERNET,
    "raw_ip": RAW_IP,
    "infiniband": INFINIBAND,
    "infiniband_link": LINK_PACKET,
}

# Protocols of the larger set that ibwire does not read.
_OUT_OF_SCOPE = ("iwarp_", "lldp_", "tcpdump_lldp_", "uet_", "xdp2_uet_")


@dataclass(frozen=True, slots=True)
class Vector:
    """One frame and what independent readers say about it."""

    name: str
    frame: bytes
    link_type: int
    """A LINKTYPE number, or `LINK_PACKET`."""
    expected: dict[str, Any]
    """Values of a separate parser, by names close to Wireshark's."""
    icrc_verifies: bool | None
    """`None` for a frame without ICRC."""
    vcrc_verifies: bool | None
    """`None` for a frame without VCRC."""
    tshark: dict[str, str | list[str]]
    """Fields as tshark 4.0.17 prints them; a list where the field repeats."""

    def __str__(self) -> str:
        return self.name


def load(path: Path | None = None) -> list[Vector]:
    """Every vector in scope, from `path`, else from `IBWIRE_VECTORS`, else the shipped ones."""
    if path is None:
        path = Path(os.environ.get(ENVIRONMENT, GOLDEN))
    entries = json.loads(path.read_text(encoding="utf-8"))["vectors"]
    return [_vector(entry) for entry in entries if not entry["name"].startswith(_OUT_OF_SCOPE)]


def _vector(entry: dict[str, Any]) -> Vector:
    return Vector(
        name=entry["name"],
        frame=bytes.fromhex(entry["hex"]),
        link_type=_LINK_TYPES[entry["link_type"].split()[0]],
        expected=entry["expected"],
        icrc_verifies=entry.get("icrc_verifies"),
        vcrc_verifies=entry.get("vcrc_verifies"),
        tshark=entry["tshark_4_0"],
    )
