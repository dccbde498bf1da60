"""The switches of a subnet as a graph with numbers, as routing works on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ibwire.base.errors import IbwireError
from ibwire.fabric.infiniband.subnet import Port, Subnet

UNREACHED = 1 << 30
"""The distance of a switch that no path leads to."""


class RoutingError(IbwireError):
    """A subnet that cannot be routed as wanted."""


@dataclass(slots=True, frozen=True)
class EndPort:
    """A port with LIDs: of an adapter, or port 0 of a switch.

    out: the port of the switch that leads to it; 0 for the switch itself.
    """

    port: Port
    out: int
    lids: range


class SwitchGraph:
    """The switches of a subnet, numbered in its order, and the links between them that are up."""

    def __init__(self, subnet: Subnet) -> None:
        self.nodes = [node for node in subnet.nodes.values() if node.is_switch]
        self.number = {node: place for place, node in enumerate(self.nodes)}
        self.links: list[list[tuple[int, int]]] = []
        """By switch: output port and the switch there, in the order of the ports."""
        self.end_ports: list[list[EndPort]] = []
        """By switch: those with LIDs, port 0 of the switch first."""
        for node in self.nodes:
            links, ends = [], _end_port(node.ports[0], 0)
            for port in node.external_ports():
                peer = port.peer
                if peer is None or not (port.is_up and peer.is_up):
                    continue
                if peer.node.is_switch:
                    links.append((port.number, self.number[peer.node]))
                else:
                    ends += _end_port(peer, port.number)
            self.links.append(links)
            self.end_ports.append(ends)
        self.neighbours = [sorted({there for _, there in links}) for links in self.links]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def leaves(self) -> list[int]:
        """Switches with adapters."""
        return [
            place
            for place, node in enumerate(self.nodes)
            if any(
                port.peer is not None and not port.peer.node.is_switch and port.is_up
                for port in node.external_ports()
            )
        ]

    def distances(self, start: Iterable[int]) -> list[int]:
        """Hops of each switch from the nearest of some switches."""
        found = [UNREACHED] * len(self)
        waiting = deque(start)
        for place in waiting:
            found[place] = 0
        while waiting:
            place = waiting.popleft()
            further = found[place] + 1
            for there in self.neighbours[place]:
                if found[there] > further:
                    found[there] = further
                    waiting.append(there)
        return found

    def components(self) -> list[int]:
        """For each switch, the first switch of the part of the graph that it is in."""
        found = [-1] * len(self)
        for place in range(len(self)):
            if found[place] < 0:
                for there, hops in enumerate(self.distances((place,))):
                    if hops != UNREACHED:
                        found[there] = place
        return found

    def center(self, places: Sequence[int], candidates: Iterable[int]) -> int:
        """The candidate that is nearest to some switches on average; of two the smaller GUID."""
        totals = [0] * len(self)
        for place in places:
            for there, hops in enumerate(self.distances((place,))):
                totals[there] += hops
        return min(candidates, key=lambda place: (totals[place], self.nodes[place].guid))


def _end_port(port: Port, out: int) -> list[EndPort]:
    lid = port.lid
    return [EndPort(port, out, range(lid, lid + (1 << port.lmc)))] if lid else []
