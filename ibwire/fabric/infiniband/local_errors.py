"""How a port counts the packets that its link has damaged."""

from __future__ import annotations

from ibwire.fabric.infiniband.subnet import Port


class LocalErrors:
    """The damaged packets of a port, against its LocalPhyErrors.

    Source: docs/reference/infiniband.md#traps.
    """

    __slots__ = ("more", "port")

    def __init__(self, port: Port) -> None:
        self.port = port
        self.more = 0
        """Damaged packets; each good one after them takes one off."""

    def count(self) -> bool:
        """Count a damaged packet; whether there are now more than the port may have."""
        self.more += 1
        if self.more <= self.port.local_phy_errors:
            return False
        self.more = 0
        self.port.counters.local_link_integrity_errors += 1
        return True
