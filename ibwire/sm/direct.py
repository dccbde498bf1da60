"""Get and Set of subnet management by directed route, answered without a packet for each hop.

They are nearly all that a subnet manager sends in a sweep. `Management` carries any MAD from port
to port; here the ports that a path leads to are kept, as a tree whose nodes are the beginnings of
paths, so that a request costs the time of its agent only. Answers and counters are the same. Other
cases, from a wrong M_Key to a port without a link, are left to `Management`.
"""

from __future__ import annotations

from collections.abc import Callable

from ibwire.fabric.infiniband.subnet import Node, Port, Subnet
from ibwire.sm.mads import (
    ATTRIBUTE,
    DIRECTION,
    DR_DLID,
    DR_SLID,
    HOP_COUNT,
    INITIAL_PATH,
    MAXIMUM_HOPS,
    METHOD,
    MGMT_CLASS,
    MKEY,
    MODIFIER,
    PACKET_WORDS,
    PERMISSIVE,
    RETURN_PATH,
    SMP_DATA,
    TID,
)
from ibwire.sm.sma import HANDLERS, SMA, Handler, takes_link_down
from ibwire_layers.attributes import PortState, SMAttribute
from ibwire_layers.mad import Method, MgmtClass

MAXIMUM_PLACES = 1 << 15
"""Paths that are kept; when there are more, all are removed and found again."""

_INIT = int(PortState.INIT)
_GET_RESP = int(Method.GET_RESP)
# A compiled module slices bytes by numbers only.
_LOW_TID = TID.start + 4
_ATTRIBUTE, _AFTER_ATTRIBUTE = ATTRIBUTE.start, ATTRIBUTE.stop
_MODIFIER, _MKEY = MODIFIER.start, MKEY.start
_LIDS, _AFTER_LIDS = DR_SLID.start, DR_DLID.stop
_DATA = SMP_DATA.start
_BOTH_PERMISSIVE = PERMISSIVE + PERMISSIVE
_FIRST_HOP, _FIRST_RETURN = INITIAL_PATH + 1, RETURN_PATH + 1
_REQUESTS = {
    bytes((MgmtClass.SUBN_DIRECTED_ROUTE, 1, method, 0, 0, 0)): method is Method.SET
    for method in (Method.GET, Method.SET)
}
"""Requests at the first node of their path, and whether they are a Set: class, version, method,
status and hop pointer."""


class Place:
    """Where a path leads."""

    __slots__ = ("arrived", "before", "head", "leaving", "node", "port", "returns", "uses")

    def __init__(self, before: Place | None, leaving: Port, arrived: Port, hops: int) -> None:
        self.before = before
        """The path without its last hop, and the ports of that hop."""
        self.leaving = leaving
        self.arrived = arrived
        self.node: Node = arrived.node
        self.port = arrived.management
        """The port whose M_Key counts."""
        self.head = _HEADS[hops]
        """Of a response without an error: method, status, hop pointer, hop count."""
        self.returns: bytes = (before.returns if before is not None else b"") + bytes(
            (arrived.number,)
        )
        """The return path."""
        self.uses = 0
        """Requests that the ports on the way have not counted yet."""


class DirectRequests:
    """Answers requests of a subnet's programs.

    Ports on the way count them when `settle` is called, which calls `on_settled` with their number.
    """

    def __init__(self, subnet: Subnet, sma: SMA, on_settled: Callable[[int], None]) -> None:
        self._subnet = subnet
        self._sma = sma
        self._on_settled = on_settled
        self._changes = subnet.changes
        self._starts: dict[Port, dict[bytes, Place]] = {}
        """Places by path, and by the port of the program."""
        self._places = 0
        self._used: list[Place] = []
        """Places with uses."""

    def answer(self, start: Port, mad: bytes, hi_tid: bytes) -> bytes | None:
        """The response to a MAD of 256 bytes that a program sends; `None` if it is not for here.

        hi_tid: the upper half of the transaction id of the request, in place of its own.
        """
        is_set = _REQUESTS.get(mad[MGMT_CLASS:HOP_COUNT])
        if is_set is None or mad[_LIDS:_AFTER_LIDS] != _BOTH_PERMISSIVE:
            return None
        handler = _HANDLERS.get(mad[_ATTRIBUTE:_AFTER_ATTRIBUTE])
        if handler is None or self._sma.leases:
            return None
        if self._changes != self._subnet.changes:
            self._forget()
        hops = mad[HOP_COUNT]
        places = self._starts.get(start)
        place = None if places is None else places.get(mad[_FIRST_HOP : _FIRST_HOP + hops])
        if place is None:
            place = self._find(start, mad[_FIRST_HOP : _FIRST_HOP + hops])
            if place is None:
                return None
        key = place.port.info[:_MKEY_SIZE]
        if key != _NO_KEY and key != mad[_MKEY : _MKEY + _MKEY_SIZE]:
            return None
        data = None
        if is_set:
            data = mad[_DATA:INITIAL_PATH]
            if handler is _PORT_INFO and (data[:_MKEY_SIZE] != key or takes_link_down(data)):
                return None
        status, found = handler(
            self._sma, place.node, place.arrived.number, _number(mad[_MODIFIER:_MKEY], "big"), data
        )
        if place.uses == 0:
            self._used.append(place)
        place.uses += 1
        head = place.head
        if status:
            head = bytes((_GET_RESP, DIRECTION | status >> 8, status & 0xFF, 0, hops))
        return b"".join(
            (
                mad[:METHOD],
                head,
                hi_tid,
                mad[_LOW_TID:_DATA],
                found,
                mad[INITIAL_PATH:_FIRST_RETURN],
                place.returns,
                mad[_FIRST_RETURN + hops :],
            )
        )

    def settle(self) -> None:
        """Let the ports on the way count what has passed them."""
        used = self._used
        if not used:
            return
        total = 0
        for last in used:
            uses, last.uses = last.uses, 0
            total += uses
            words = uses * PACKET_WORDS
            place: Place | None = last
            while place is not None:
                # There, and back.
                for port in (place.leaving, place.arrived):
                    counters = port.counters
                    counters.port_xmit_pkts += uses
                    counters.port_xmit_data += words
                    counters.port_rcv_pkts += uses
                    counters.port_rcv_data += words
                place = place.before
        used.clear()
        self._on_settled(total)

    def _find(self, start: Port, path: bytes) -> Place | None:
        """The place of a path that is not known yet; `None` if it leads nowhere."""
        if not 0 < len(path) <= MAXIMUM_HOPS:
            return None
        if self._places >= MAXIMUM_PLACES:
            self._forget()
        places = self._starts.setdefault(start, {})
        hops = len(path)
        known = hops - 1
        while known and path[:known] not in places:
            known -= 1
        place = places[path[:known]] if known else None
        for count in range(known + 1, hops + 1):
            place = self._next(start, place, path[count - 1], count)
            if place is None:
                return None
            places[path[:count]] = place
            self._places += 1
        return place

    def _next(self, start: Port, place: Place | None, out: int, hops: int) -> Place | None:
        """The place one hop behind another, or behind the port of a program."""
        node = start.node if place is None else place.node
        # An adapter sends by the port that the program has opened, and forwards nothing.
        if not node.is_switch and (place is not None or out != start.number):
            return None
        if not 0 < out < len(node.ports):
            return None
        leaving = node.ports[out]
        peer = leaving.peer
        if peer is None or not (leaving.carries(_INIT) and peer.carries(_INIT)):
            return None
        return Place(place, leaving, peer, hops)

    def _forget(self) -> None:
        """Find all places anew: a link has come up or gone down."""
        self.settle()
        self._starts.clear()
        self._places = 0
        self._changes = self._subnet.changes


_number = int.from_bytes
_MKEY_SIZE = 8
"""Bytes of M_Key, the first field of PortInfo."""
_NO_KEY = bytes(_MKEY_SIZE)
_HEADS = [bytes((_GET_RESP, DIRECTION, 0, 0, hops)) for hops in range(MAXIMUM_HOPS + 1)]

_HANDLERS: dict[bytes, Handler] = {
    attribute.to_bytes(2, "big"): handler for attribute, handler in HANDLERS.items()
}
_PORT_INFO = HANDLERS[SMAttribute.PORT_INFO]
