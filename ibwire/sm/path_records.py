"""PathRecords: what a packet meets between two ports, by the tables that were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

from ibwire.fabric.infiniband.speeds import Speed, Width
from ibwire.fabric.infiniband.subnet import NO_PORT, Node, Port, rate_of
from ibwire.sm.discovery import View
from ibwire_layers.records import PathRecord

LIFE_TIME = 18
EXACTLY = 2
"""Selector of MTU, rate and lifetime in an answer."""
MAXIMUM_HOPS = 64
NO_LIMIT = 1 << 14
"""Paths between two ports: one for each pair of their LIDs, 128 at most."""
PARTIAL = 2
"""Preference of a path that shares an end with others."""

DGID, SGID, DLID, SLID, NUMB_PATH, PKEY, SL = 2, 3, 4, 5, 12, 13, 15
MTU_SELECTOR, MTU, RATE_SELECTOR, RATE, LIFE_SELECTOR, LIFE = 16, 17, 18, 19, 20, 21
"""Bits of the component mask (IBA 15.2.5.16)."""

RATES = {
    2: Fraction("2"),
    5: Fraction("4"),
    3: Fraction("8"),
    6: Fraction("16"),
    4: Fraction("24"),
    7: Fraction("32"),
    8: Fraction("48"),
    9: Fraction("64"),
    10: Fraction("96"),
    11: Fraction("13.6"),
    19: Fraction("27.2"),
    12: Fraction("54.5"),
    13: Fraction("109"),
    14: Fraction("163.6"),
    15: Fraction("25"),
    20: Fraction("50"),
    16: Fraction("100"),
    17: Fraction("200"),
    18: Fraction("300"),
    21: Fraction("400"),
    22: Fraction("600"),
    23: Fraction("800"),
    24: Fraction("1200"),
    25: Fraction("1600"),
}
"""Data rate in Gb/s by the code of PathRecord.Rate (docs/reference/infiniband.md#path-rates)."""


def rate_code(port: Port) -> int:
    """The code of the highest rate that the link of a port carries."""
    found = rate_of(port)
    return 2 if found is None else _code_of(*found)


@cache
def _code_of(speed: Speed, width: Width) -> int:
    data = Fraction(speed.lane_bps) * speed.encoding * width.lanes / 10**9
    fitting = [(rate, code) for code, rate in RATES.items() if rate <= data]
    return max(fitting, default=(0, 2))[1]


@dataclass(slots=True, frozen=True)
class _Way:
    """What a path has: code of the MTU, code of the rate, number of links."""

    mtu: int
    rate: int
    links: int


_Ways = dict[tuple[Node, Port, int], _Way | None]
"""By switch, end and LID of it: the way there, which all adapters at the switch share."""


def paths(
    view: View, by_lid: dict[int, Port], asked: PathRecord, mask: int
) -> Iterator[PathRecord]:
    """The paths that a request selects; NumbPath limits those of each pair of ports."""
    limit = asked.numb_path if mask >> NUMB_PATH & 1 else NO_LIMIT
    sources = _ends(view, by_lid, mask >> SGID & 1, asked.sgid, mask >> SLID & 1, asked.slid)
    ends = _ends(view, by_lid, mask >> DGID & 1, asked.dgid, mask >> DLID & 1, asked.dlid)
    ways: _Ways = {}
    for source, source_lids in sources:
        for end, end_lids in ends:
            pkey = _shared(
                bytes(source.pkeys), bytes(end.pkeys), asked.pkey if mask >> PKEY & 1 else None
            )
            if pkey is None:
                continue
            found = 0
            for at, to, preference in _pairs(len(source_lids), len(end_lids)):
                if found == limit:
                    break
                slid, dlid = source_lids[at], end_lids[to]
                if source is end:
                    way: _Way | None = _Way(source.neighbor_mtu, 0, 0)
                else:
                    way = _limited(_way(source, end, dlid, ways), source, end)
                if way is None:
                    continue
                record = _record(source, end, slid, dlid, pkey, way, preference)
                if _fits(record, asked, mask):
                    found += 1
                    yield record


@lru_cache
def _pairs(sources: int, ends: int) -> tuple[tuple[int, int, int], ...]:
    """Pairs of the LIDs of two ports, with the Preference of their path.

    First those that share no end, then all others, as in opensm.
    """
    together = [(place, place, 0) for place in range(min(sources, ends))]
    others = [(at, to, PARTIAL) for at in range(sources) for to in range(ends) if at != to]
    return (*together, *others)


@dataclass(slots=True, frozen=True)
class MultiPath:
    """What a MultiPathRecord asks for: paths from some ports to others (IBA 15.2.5.20)."""

    sources: list[int]
    ends: list[int]
    path: PathRecord
    mask: int
    """As that of a PathRecord, without the ends."""


def read_multi_path(data: bytes, mask: int) -> MultiPath | None:
    """Read a MultiPathRecord; `None` if it is too short for its GIDs.

    RawTraffic to HopLimit are 4 bytes, then TClass, NumbPath, P_Key (2), QoSClass and SL (2), MTU,
    Rate, PacketLifeTime, 2 bytes, SGIDCount, DGIDCount, 7 bytes, GIDs.
    """
    if len(data) < _MULTI_HEAD or len(data) < _MULTI_HEAD + 16 * (data[15] + data[16]):
        return None
    gids = [
        int.from_bytes(data[start : start + 16], "big")
        for start in range(_MULTI_HEAD, _MULTI_HEAD + 16 * (data[15] + data[16]), 16)
    ]
    path = PathRecord(
        numb_path=data[5] & 0x7F,
        pkey=int.from_bytes(data[6:8], "big"),
        sl=data[9] & 0xF,
        mtu_selector=data[10] >> 6,
        mtu=data[10] & 0x3F,
        rate_selector=data[11] >> 6,
        rate=data[11] & 0x3F,
        packet_life_time_selector=data[12] >> 6,
        packet_life_time=data[12] & 0x3F,
    )
    # From NumbPath to PacketLifeTime the components have one order in both records.
    same = (mask >> _MULTI_NUMB_PATH & 0x3FF) << NUMB_PATH
    return MultiPath(gids[: data[15]], gids[data[15] :], path, same)


_MULTI_HEAD = 24
_MULTI_NUMB_PATH = 6
SGID_COUNT, DGID_COUNT = 19, 20
"""Bits of the component mask of a MultiPathRecord."""


def _ends(
    view: View, by_lid: dict[int, Port], has_gid: int, gid: int, has_lid: int, lid: int
) -> list[tuple[Port, list[int]]]:
    """The ports that an end of a path may be, with their LIDs."""
    ports = view.end_ports()
    if has_lid:
        port = by_lid.get(lid)
        ports = [] if port is None else [port]
    if has_gid:
        ports = [port for port in ports if gid_of(port) == gid]
    return [
        (port, [lid] if has_lid else list(range(port.lid, port.lid + (1 << port.lmc))))
        for port in ports
        if port.lid
    ]


def gid_of(port: Port) -> int:
    """The GID of an end port, as a number."""
    return port.gid_prefix << 64 | port.guid


def _limited(way: _Way | None, *ends: Port) -> _Way | None:
    """The way with what port 0 of a switch has, where it is an end: opensm answers that."""
    for port in ends:
        if way is not None and port.node.is_switch:
            rate = min(way.rate, rate_code(port), key=RATES.__getitem__)
            way = _Way(min(way.mtu, port.mtu_cap), rate, way.links)
    return way


def _way(source: Port, end: Port, lid: int, ways: _Ways) -> _Way | None:
    """Follow the tables; `None` if they do not lead there."""
    node, first = source.node, None
    if not node.is_switch:
        peer = source.peer
        if peer is None:
            return None
        first = _Way(source.neighbor_mtu or source.mtu_cap, rate_code(source), 1)
        if not peer.node.is_switch:
            return first if peer is end else None
        node = peer.node
    key = node, end, lid
    if key not in ways:
        ways[key] = _from_switch(*key)
    onward = ways[key]
    if first is None or onward is None:
        return onward
    if not onward.links:
        return first
    rate = min(first.rate, onward.rate, key=RATES.__getitem__)
    return _Way(min(first.mtu, onward.mtu), rate, 1 + onward.links)


def _from_switch(node: Node, end: Port, lid: int) -> _Way | None:
    mtu = 0xF
    rates: list[int] = []
    for links in range(MAXIMUM_HOPS):
        number = node.lft[lid] if lid < len(node.lft) else NO_PORT
        if number > node.num_ports:
            return None
        if number == 0:
            if node is not end.node:
                return None
            if not links:
                return _Way(end.neighbor_mtu, 0, 0)
            return _Way(mtu, min(rates, key=RATES.__getitem__), links)
        out = node.ports[number]
        if out.peer is None:
            return None
        mtu = min(mtu, out.neighbor_mtu or out.mtu_cap)
        rates.append(rate_code(out))
        node = out.peer.node
        if not node.is_switch:
            if out.peer is not end:
                return None
            return _Way(mtu, min(rates, key=RATES.__getitem__), links + 1)
    return None


def _record(
    source: Port, end: Port, slid: int, dlid: int, pkey: int, way: _Way, preference: int
) -> PathRecord:
    return PathRecord(
        dgid=gid_of(end),
        sgid=gid_of(source),
        dlid=dlid,
        slid=slid,
        reversible=1,
        numb_path=0,
        pkey=pkey,
        mtu_selector=EXACTLY,
        mtu=way.mtu,
        rate_selector=EXACTLY,
        rate=way.rate or rate_code(source),
        packet_life_time_selector=EXACTLY,
        packet_life_time=LIFE_TIME if way.links else 0,
        preference=preference,
    )


def _fits(record: PathRecord, asked: PathRecord, mask: int) -> bool:
    if mask >> SL & 1 and asked.sl != record.sl:
        return False
    return (
        _compares(mask, MTU, record.mtu, asked.mtu_selector, asked.mtu, MTU_SELECTOR)
        and _compares(
            mask,
            RATE,
            RATES.get(record.rate, Fraction(0)),
            asked.rate_selector,
            RATES.get(asked.rate, Fraction(0)),
            RATE_SELECTOR,
        )
        and _compares(
            mask,
            LIFE,
            record.packet_life_time,
            asked.packet_life_time_selector,
            asked.packet_life_time,
            LIFE_SELECTOR,
        )
    )


def _compares(
    mask: int, bit: int, value: Fraction | int, selector: int, asked: Fraction | int, at: int
) -> bool:
    """Whether a value fits: 0 greater, 1 less, 2 equal, 3 the largest there is."""
    if not mask >> bit & 1 or not mask >> at & 1:
        return True
    return (value > asked, value < asked, value == asked, True)[selector]


@lru_cache
def _shared(a: bytes, b: bytes, wanted: int | None) -> int | None:
    """A P_Key of two tables that lets their ports talk, a full one if there is; `None` without."""
    best: int | None = None
    others = {key & 0x7FFF: key for key in sorted(_keys(b))}
    for key in sorted(_keys(a), key=lambda key: (key & 0x7FFF != 0x7FFF, key)):
        other = others.get(key & 0x7FFF)
        if other is None or not (key | other) & 0x8000:
            continue
        if wanted is not None and key & 0x7FFF != wanted & 0x7FFF:
            continue
        both = key if key & other & 0x8000 else key & 0x7FFF
        if best is None or (both & 0x8000 and not best & 0x8000):
            best = both
    return best


@lru_cache
def _keys(keys: bytes) -> frozenset[int]:
    """The P_Keys of a table."""
    found = {int.from_bytes(keys[start : start + 2], "big") for start in range(0, len(keys), 2)}
    return frozenset(found - {0})
