"""Tables of a port as they are after power-on, before a subnet manager writes them."""

from __future__ import annotations

_SIZE = 64

DEFAULT_SL_TO_VL = bytes.fromhex("0123456701234567")
"""SL to VL mapping after power-on, with eight lanes."""

_LOW = b"".join(bytes((vl, 4 if vl else 0)) for vl in range(8)).ljust(_SIZE, b"\0")
_HIGH = b"".join(bytes((vl, 0 if vl else 4)) for vl in range(8)).ljust(_SIZE, b"\0")
DEFAULT_ARBITRATION = {1: _LOW, 2: bytes(_SIZE), 3: _HIGH, 4: bytes(_SIZE)}
"""VL arbitration after power-on: lane 0 with high priority, the others share the rest."""
