"""Time, rates, and the local ACK timeout.

A `Time` is an integer number of picoseconds from the start of a run: a byte lasts
a whole number of them at every Ethernet rate from 1 to 800 Gb/s, and the
InfiniBand timeout unit is exact. It is never a float and never wall-clock time.
"""

from __future__ import annotations

from typing import Final

Time = int
"""Picoseconds."""

NS: Final = 1_000
US: Final = 1_000 * NS
MS: Final = 1_000 * US
S: Final = 1_000 * MS

GBPS: Final = 10**9
"""Bits a second in a gigabit a second."""

ETHERNET_OVERHEAD: Final = 24
"""Bytes of line time that a frame costs besides its own: preamble and start delimiter 8,
FCS 4, inter-packet gap 12 (IEEE 802.3 3.1.1, 4.4.2)."""

ACK_TIMEOUT_UNIT: Time = 4_096 * NS
"""Local ACK timeouts are this, doubled `timeout` times (IBA 9.7.6.1.3)."""


def ack_timeout(code: int) -> Time | None:
    """The local ACK timeout of a code 0 to 31, `None` for code 0: no timeout (IBA 9.7.6.1.3)."""
    return ACK_TIMEOUT_UNIT << code if code else None
