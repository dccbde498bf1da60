"""Other ports by which a switch may send a packet: adaptive routing.

A port is as good as that of the forwarding table if, by the tables, the destination is as many hops
away from the switch behind it. With each hop one fewer is left, so a packet never goes in a circle.
"""

from __future__ import annotations

from ibwire.fabric.infiniband.subnet import NO_PORT, Node

_NEVER = 1 << 30
"""Hops of a LID that does not arrive."""


class Alternatives:
    """The ports for each switch and LID, by the forwarding tables as they are now."""

    def __init__(self) -> None:
        self._hops: dict[tuple[Node, int], int] = {}
        self._ports: dict[tuple[Node, int], tuple[int, ...]] = {}

    def ports(self, node: Node, lid: int) -> tuple[int, ...]:
        """Ports for a LID, that of the table first; one only where the next hop is the last."""
        found = self._ports.get((node, lid))
        if found is None:
            found = self._ports[node, lid] = self._find(node, lid)
        return found

    def clear(self) -> None:
        """Forget everything: tables or links have changed."""
        self._hops.clear()
        self._ports.clear()

    def _find(self, node: Node, lid: int) -> tuple[int, ...]:
        out = node.route(lid)
        hops = self._count(node, lid)
        if hops == _NEVER or hops < 2:
            return (out,)
        others = [
            port.number
            for port in node.external_ports()
            if port.number != out
            and port.is_up
            and (peer := port.peer) is not None
            and peer.node.is_switch
            and self._count(peer.node, lid) == hops - 1
        ]
        return (out, *others)

    def _count(self, node: Node, lid: int) -> int:
        """Links from a switch to a LID by the tables."""
        way: list[Node] = []
        hops = _NEVER
        passed: set[Node] = set()
        while node not in passed:
            known = self._hops.get((node, lid))
            if known is not None:
                hops = known
                break
            passed.add(node)
            way.append(node)
            out = node.route(lid)
            if out == 0:
                hops = -1
                break
            if out == NO_PORT or out > node.num_ports:
                break
            port = node.ports[out]
            if port.peer is None or not port.is_up:
                break
            if not port.peer.node.is_switch:
                hops = 0
                break
            node = port.peer.node
        for each in reversed(way):
            hops = hops if hops == _NEVER else hops + 1
            self._hops[each, lid] = hops
        return self._hops.get((way[0], lid), hops) if way else hops
