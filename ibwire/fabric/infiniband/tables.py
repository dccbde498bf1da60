"""Tables of ports and switches: what they are after power-on, and where a switch sends a LID."""

from __future__ import annotations

from typing import Final

_SIZE = 64

DEFAULT_SL_TO_VL = bytes.fromhex("0123456701234567")
"""SL to VL mapping after power-on, with eight lanes."""

_LOW = b"".join(bytes((vl, 4 if vl else 0)) for vl in range(8)).ljust(_SIZE, b"\0")
_HIGH = b"".join(bytes((vl, 0 if vl else 4)) for vl in range(8)).ljust(_SIZE, b"\0")
DEFAULT_ARBITRATION = {1: _LOW, 2: bytes(_SIZE), 3: _HIGH, 4: bytes(_SIZE)}
"""VL arbitration after power-on: lane 0 with high priority, the others share the rest."""

NO_PORT: Final = 0xFF
"""Entry of a linear forwarding table that drops."""

TOP_AT: Final = 6
"""Offset of LinearFDBTop in SwitchInfo, two bytes."""


def output_port(info: bytearray, lft: bytearray, lid: int) -> int:
    """The output port of a LID by SwitchInfo and the linear forwarding table, or `NO_PORT`."""
    if lid >= len(lft) or lid > info[TOP_AT] << 8 | info[TOP_AT + 1]:
        return NO_PORT
    return lft[lid]
