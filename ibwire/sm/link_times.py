"""How long MADs travel in a running fabric whose links have their real rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.lrh import DELIMITERS, VCRC_SIZE
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port, data_rate

Way = Sequence[tuple[Port, Time]]
"""The ports by which a packet leaves, and when it is whole at the other end of each link."""


def is_broken(way: Way, down: Port, now: Time) -> bool:
    """Whether a packet has still to leave by a port, or is on its link, which goes down now."""
    return any(leaving is down and passed > now for leaving, passed in way)


class LinkTimes:
    """The time of one MAD after the other: a link carries one packet at a time, at its rate.

    settings: delay of cables, latency of switches and of agents.
    """

    def __init__(self, settings: FabricSettings | None = None) -> None:
        self.clock: Callable[[], Time] | None = None
        """Gives the time at which a link goes down; without, that of the last `Management.run`."""
        self.now: Time = 0
        """When the packet that is followed is at its place."""
        self._passed: list[tuple[Port, Time]] = []
        self._settings = settings or FabricSettings()
        self._free: dict[Port, Time] = {}
        """When the last packet of a port has left."""

    def begin(self, now: Time) -> None:
        """Follow a packet that is sent now."""
        self.now = now
        self._passed = []

    def way(self) -> Way:
        """The way of the packet that is followed."""
        return self._passed

    def passes(self, leaving: Port, words: int) -> None:
        """The packet goes over a link; words: its PktLen."""
        rate = data_rate(leaving)
        if rate is None:
            return
        bits = 8 * (4 * words + VCRC_SIZE + DELIMITERS)
        settings, peer = self._settings, leaving.peer
        self.now = max(self.now, self._free.get(leaving, 0)) + bits * S // rate
        self._free[leaving] = self.now
        self.now += settings.delay
        self._passed.append((leaving, self.now))
        if peer is not None and peer.node.is_switch:
            self.now += settings.latency

    def answers(self) -> None:
        """The packet is a request, which an agent needs time for."""
        self.now += self._settings.agent_delay
