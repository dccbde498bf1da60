"""Get and Set of subnet management by directed route, answered without a packet for each hop.

They are nearly all that a subnet manager sends in a sweep. `Management` carries any MAD from port
to port; here the ports that a path leads to are kept, as a tree whose nodes are the beginnings of
paths, and requests are cut from what a program writes without an object for each: one costs the
time of its agent only. Answers and counters are the same. Other cases, from a wrong M_Key to a port
without a link, are left to `Management`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from functools import lru_cache

from ibwire.fabric.infiniband.states import INIT
from ibwire.fabric.infiniband.subnet import Node, Port, Subnet
from ibwire.sm.mads import (
    ATTRIBUTE,
    DIRECTION,
    HOP_COUNT,
    INITIAL_PATH,
    MAXIMUM_HOPS,
    METHOD,
    MGMT_CLASS,
    MKEY,
    PACKET_WORDS,
    PERMISSIVE,
    RETURN_PATH,
    SMP_DATA,
    STATUS_BYTE,
    TID,
)
from ibwire.sm.sma import HANDLERS, SMA, Handler, takes_link_down
from ibwire_layers.attributes import SMAttribute
from ibwire_layers.mad import MAD_SIZE, Method, MgmtClass

MAXIMUM_PLACES = 1 << 15
"""Paths that are kept; when there are more, all are removed and found again."""
_MOST_BEGINNINGS = 256
"""Beginnings of requests that a stream remembers."""

_GET_RESP = int(Method.GET_RESP)
_DIRECTED_ROUTE = int(MgmtClass.SUBN_DIRECTED_ROUTE)
_HEAD = HOP_COUNT + 1
"""Bytes of a MAD up to its hop count."""
_AFTER_HEAD = "4s4s8s8s32s64s64s64s"
"""The parts behind: the halves of the transaction id, AttributeID and modifier, M_Key, the LIDs of
the route and what is reserved, the attribute, the paths."""
_LIDS = (PERMISSIVE + PERMISSIVE).ljust(SMP_DATA.start - MKEY.stop, b"\0")
"""The part behind the M_Key, if the route has no part by LID."""
_REQUESTS = {
    bytes((MgmtClass.SUBN_DIRECTED_ROUTE, 1, method, 0, 0, 0)): method is Method.SET
    for method in (Method.GET, Method.SET)
}
"""Requests at the first node of their path, and whether they are a Set: class, version, method,
status and hop pointer."""
assert struct.calcsize(_AFTER_HEAD) == MAD_SIZE - _HEAD
assert (TID.start, ATTRIBUTE.start, MKEY.start) == (_HEAD, _HEAD + 8, _HEAD + 16)
assert (INITIAL_PATH, RETURN_PATH) == (_HEAD + 120, _HEAD + 184)


class Place:
    """Where a path leads."""

    __slots__ = (
        "arrived",
        "back",
        "before",
        "info",
        "leaving",
        "node",
        "number",
        "returns",
        "uses",
    )

    def __init__(self, before: Place | None, leaving: Port, arrived: Port) -> None:
        self.before = before
        """The path without its last hop, and the ports of that hop."""
        self.leaving = leaving
        self.arrived = arrived
        self.node: Node = arrived.node
        self.number = arrived.number
        self.info = arrived.management.info
        """PortInfo of the port whose M_Key counts."""
        self.returns: bytes = (before.returns if before is not None else b"") + bytes(
            (arrived.number,)
        )
        """The return path from hop 1 on."""
        self.back = (b"\0" + self.returns).ljust(len(_NO_PATH), b"\0")
        """The return path, if nothing else was in its place."""
        self.uses = 0
        """Requests that the ports on the way have not counted yet."""


class DirectRequests:
    """The directed routes of a subnet.

    Ports on the way count requests when `settle` is called, which calls `on_settled` with their
    number.
    """

    def __init__(self, subnet: Subnet, sma: SMA, on_settled: Callable[[int], None]) -> None:
        self.sma = sma
        self._subnet = subnet
        self._on_settled = on_settled
        self._changes = subnet.changes
        self._starts: dict[Port, dict[bytes, Place]] = {}
        """Places by path, and by the port of the program."""
        self._places = 0
        self.used: list[Place] = []
        """Places with uses."""

    def places(self, start: Port) -> dict[bytes, Place]:
        """The known places by path from a port."""
        if self._changes != self._subnet.changes:
            self._forget()
        found = self._starts.get(start)
        if found is None:
            found = self._starts[start] = {}
        return found

    def find(self, start: Port, path: bytes) -> Place | None:
        """The place of a path that is not known yet; `None` if it leads nowhere."""
        if not 0 < len(path) <= MAXIMUM_HOPS:
            return None
        if self._places >= MAXIMUM_PLACES:
            self._forget()
        places = self.places(start)
        hops = len(path)
        known = hops - 1
        while known and path[:known] not in places:
            known -= 1
        place = places[path[:known]] if known else None
        for count in range(known + 1, hops + 1):
            place = self._next(start, place, path[count - 1])
            if place is None:
                return None
            places[path[:count]] = place
            self._places += 1
        return place

    def settle(self) -> None:
        """Let the ports on the way count what has passed them."""
        used = self.used
        if not used:
            return
        total = 0
        levels: list[list[Place]] = [[] for _ in range(MAXIMUM_HOPS + 1)]
        """By the number of hops, as what has passed the last one has passed those before."""
        for place in used:
            total += place.uses
            levels[len(place.returns)].append(place)
        used.clear()
        for places in reversed(levels):
            for place in places:
                uses, place.uses = place.uses, 0
                words = uses * PACKET_WORDS
                # There, and back.
                for port in (place.leaving, place.arrived):
                    counters = port.counters
                    counters.port_xmit_pkts += uses
                    counters.port_xmit_data += words
                    counters.port_rcv_pkts += uses
                    counters.port_rcv_data += words
                before = place.before
                if before is not None:
                    if before.uses == 0:
                        levels[len(before.returns)].append(before)
                    before.uses += uses
        self._on_settled(total)

    def _next(self, start: Port, place: Place | None, out: int) -> Place | None:
        """The place one hop behind another, or behind the port of a program."""
        node = start.node if place is None else place.node
        # An adapter sends by the port that the program has opened, and forwards nothing.
        if not node.is_switch and (place is not None or out != start.number):
            return None
        if not 0 < out < len(node.ports):
            return None
        leaving = node.ports[out]
        peer = leaving.peer
        if peer is None or not (leaving.carries(INIT) and peer.carries(INIT)):
            return None
        return Place(place, leaving, peer)

    def _forget(self) -> None:
        """Find all places anew: a link has come up or gone down."""
        self.settle()
        for places in self._starts.values():
            places.clear()
        self._places = 0
        self._changes = self._subnet.changes


class Stream:
    """Requests that a program writes at a port, one behind the other.

    direct: the routes. start: the port. size: bytes before each MAD. reply: what stands before the
    response instead, by what stands before the request, and the upper half of its transaction id,
    which is kept if empty; `None` if such a request is not for here.
    """

    def __init__(
        self,
        direct: DirectRequests,
        start: Port,
        size: int,
        reply: Callable[[bytes], tuple[bytes, bytes] | None],
    ) -> None:
        self._direct = direct
        self._start = start
        self._size = size
        self._reply = reply
        self._parts = struct.Struct(f"{size + _HEAD}s{_AFTER_HEAD}")
        self._beginnings: dict[bytes, _Beginning | None] = {}

    def forget(self) -> None:
        """Ask for all replies anew."""
        self._beginnings.clear()

    def answer(self, data: bytes, pending: Container[tuple[bytes, int]] = ()) -> tuple[int, bytes]:
        """The responses to the requests at the beginning of `data`: their number, and all of them.

        pending: transaction ids and classes of requests that are not for here.
        """
        size = self._parts.size
        direct, start, beginnings = self._direct, self._start, self._beginnings
        sma, used = direct.sma, direct.used
        count = 0
        responses: list[bytes] = []
        if sma.leases or len(data) < size:
            return 0, b""
        places = direct.places(start)
        whole = len(data) // size * size
        requests = data if len(data) == whole else data[:whole]
        for begin, high, low, asked, key, lids, value, path, back in self._parts.iter_unpack(
            requests
        ):
            known = beginnings[begin] if begin in beginnings else self._begins(begin)
            target = _target(asked)
            if known is None or target is None or lids != _LIDS:
                break
            is_set, head, upper, after = known
            tid = upper or high
            if pending and (tid + low, _DIRECTED_ROUTE) in pending:
                break
            way = path[1:after]
            place = places[way] if way in places else direct.find(start, way)
            if place is None:
                break
            info = place.info
            if not info.startswith(key) and not info.startswith(_NO_KEY):
                break
            handler, modifier = target
            if is_set:
                if handler is _PORT_INFO and (
                    not info.startswith(value[:_MKEY_SIZE]) or takes_link_down(value)
                ):
                    break
                status, found = handler(sma, place.node, place.number, modifier, value)
            else:
                status, found = handler(sma, place.node, place.number, modifier, None)
            if place.uses == 0:
                used.append(place)
            place.uses += 1
            if status:
                head = _with(head, status)
            back = place.back if back == _NO_PATH else back[:1] + place.returns + back[after:]
            responses += (head, tid, low, asked, key, lids, found, path, back)
            count += 1
        return count, b"".join(responses)

    def _begins(self, begin: bytes) -> _Beginning | None:
        """What follows from the bytes of a request up to its hop count."""
        if len(self._beginnings) >= _MOST_BEGINNINGS:
            self._beginnings.clear()
        before, head = begin[: self._size], begin[self._size :]
        is_set = _REQUESTS.get(head[MGMT_CLASS:HOP_COUNT])
        if head[HOP_COUNT] > MAXIMUM_HOPS:  # the path in the MAD ends before it
            is_set = None
        reply = self._reply(before) if is_set is not None else None
        found: _Beginning | None = None
        if is_set is not None and reply is not None:
            response = head[:METHOD] + bytes((_GET_RESP, DIRECTION, 0, 0, head[HOP_COUNT]))
            found = is_set, reply[0] + response, reply[1], 1 + head[HOP_COUNT]
        self._beginnings[begin] = found
        return found


_Beginning = tuple[bool, bytes, bytes, int]
"""Whether it is a Set, the beginning of the response, the upper half of its transaction id, where
the path ends."""


@lru_cache(4096)
def _target(asked: bytes) -> tuple[Handler, int] | None:
    """What answers an attribute, and its modifier; `None` if nothing here does."""
    handler = HANDLERS.get(int.from_bytes(asked[:2], "big"))
    return None if handler is None else (handler, int.from_bytes(asked[4:], "big"))


def _with(head: bytes, status: int) -> bytes:
    """The beginning of a response with an error."""
    at = len(head) - _HEAD + STATUS_BYTE
    return head[:at] + (DIRECTION << 8 | status).to_bytes(2, "big") + head[at + 2 :]


_MKEY_SIZE = 8
"""Bytes of M_Key, the first field of PortInfo."""
_NO_KEY = bytes(_MKEY_SIZE)
_NO_PATH = bytes(MAXIMUM_HOPS + 1)
_PORT_INFO = HANDLERS[SMAttribute.PORT_INFO]
