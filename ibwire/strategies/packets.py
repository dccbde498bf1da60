"""Valid packets, each by itself: every opcode over every route."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import strategies as st

from ibwire.base.errors import EncodeError
from ibwire.rc.attributes import MTU_CODES
from ibwire.strategies.psn import psns
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode, OpCodeInfo, Operation, Payload, Position, Service
from ibwire_layers.outer import UDP, VLAN, Ethernet, EtherType, IPv4, IPv6
from ibwire_layers.packet import IBRoute, Packet, RoCEv1Route, RoCEv2Route, Route
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind, NakCode

LINKS = ("rocev2", "rocev1", "ib")

LONGEST_MESSAGE = 1 << 31
"""Bytes (IBA 9.7.2)."""


@st.composite
def packets(
    draw: st.DrawFn,
    /,
    *,
    opcodes: Collection[int] | None = None,
    links: Collection[str] = LINKS,
    route: st.SearchStrategy[Route] | None = None,
    mtu: int | None = None,
    dest_qp: st.SearchStrategy[int] | None = None,
    psn: st.SearchStrategy[int] | None = None,
) -> Packet:
    """Any packet with a BTH that is valid by itself.

    It has the headers, length and padding of its opcode, reserved bits are 0, and `build` computes
    the ICRC. After a change with `dataclasses.replace`, `repaired` corrects its lengths.

    opcodes: allowed ones; CNPs only over RoCEv2. links: `rocev2` (IPv4 and IPv6), `rocev1`, `ib`;
    route: routes, in place of `links`. mtu: of the path, bytes; `None` for any. dest_qp: by default
    any except 0, 1 and the multicast QPN. psn: by default `psns()`. Raises `EncodeError` for an
    unknown opcode or link.
    """
    known = _known(opcodes)
    if set(known) == {OpCode.CNP}:
        links = ["rocev2"]
    way = draw(routes(links) if route is None else route)
    if not isinstance(way, RoCEv2Route):
        known = [opcode for opcode in known if opcode != OpCode.CNP]
    info = INFO[draw(st.sampled_from(known))]
    mtu = draw(st.sampled_from(sorted(MTU_CODES))) if mtu is None else mtu
    payload = draw(_payloads(info, mtu))
    bth = _bth(draw, info, is_native=isinstance(way, IBRoute))
    bth["dest_qp"] = draw(st.integers(2, 0xFFFFFE) if dest_qp is None else dest_qp)
    # A CNP is not in any sequence: its PSN is 0 (annex A17.9.3).
    bth["psn"] = 0 if info.service is Service.CNP else draw(psns() if psn is None else psn)
    extensions = tuple(_extension(draw, kind, info, len(payload)) for kind in info.headers)
    return Packet(way, h.BTH(info.opcode, **bth), extensions, payload).repaired()


def frames(
    *, links: Collection[str] = ("rocev2", "rocev1"), **options: Any
) -> st.SearchStrategy[bytes]:
    """The bytes of any packet: Ethernet frames, or with `links=["ib"]` native ones.

    options: those of `packets`.
    """
    return packets(links=links, **options).map(Packet.build)


def routes(links: Collection[str] = LINKS) -> st.SearchStrategy[Route]:
    """Unicast routes between any addresses, with and without VLAN tags.

    Raises `EncodeError` for an unknown link.
    """
    for link in links:
        if link not in LINKS:
            raise EncodeError("links", link, f"one of {', '.join(LINKS)}")
    return st.one_of([made for link in links for made in _ROUTES[link]])


def _known(opcodes: Collection[int] | None) -> list[int]:
    if opcodes is None:
        # Hypothesis shrinks to the first: a message of one packet is the simplest.
        return sorted(INFO, key=lambda each: (INFO[each].position is not Position.ONLY, each))
    for opcode in opcodes:
        if opcode not in INFO:
            raise EncodeError("opcodes", opcode, "an opcode of the specification")
    return list(opcodes)


def _bth(draw: st.DrawFn, info: OpCodeInfo, *, is_native: bool) -> dict[str, Any]:
    """Fields of a BTH without destination and PSN."""
    flag = st.integers(0, 1)
    is_request = not info.is_response and info.service is not Service.CNP
    ends = info.position in (Position.LAST, Position.ONLY)
    tells = info.operation is Operation.SEND or h.ImmDt in info.headers
    is_acknowledged = info.service in (Service.RC, Service.RD, Service.XRC)
    return {
        # The solicited event belongs to the packet that completes a receive (IBA 9.2.3).
        "se": draw(flag) if ends and tells else 0,
        "mig_req": draw(flag),
        "pkey": draw(st.just(0xFFFF) | _pkeys),
        # InfiniBand switches set them; RoCEv2 uses ECN instead (annex A17.9).
        "fecn": draw(flag) if is_native else 0,
        "becn": draw(flag) if is_native else int(info.service is Service.CNP),
        "ack_req": draw(flag) if is_request and is_acknowledged else 0,
    }


def _payloads(info: OpCodeInfo, mtu: int) -> st.SearchStrategy[bytes]:
    lengths: st.SearchStrategy[int]
    match info.payload:
        case Payload.NONE:
            return st.just(b"")
        case Payload.EIGHT:
            lengths = st.just(8)
        case Payload.PMTU:
            lengths = st.just(mtu)
        case Payload.SOME:
            lengths = st.integers(1, mtu) | st.just(mtu)
        case Payload.ANY:
            lengths = st.integers(0, mtu) | st.just(mtu)
    # A repeated short pattern: 4096 drawn bytes exceed the entropy limit of Hypothesis.
    return st.builds(
        lambda length, unit: (unit * (length // len(unit) + 1))[:length],
        lengths,
        st.binary(min_size=1, max_size=16),
    )


def _extension(draw: st.DrawFn, kind: type[Header], info: OpCodeInfo, size: int) -> Header:
    """An extension header for an opcode, of a packet with `size` bytes of payload."""
    if kind is h.RETH:
        return _reth(draw, info, size)
    if kind is h.AtomicETH:
        va = draw(st.integers(0, (1 << 61) - 1)) * 8
        return h.AtomicETH(va, draw(_words), draw(_longs), draw(_longs))
    if kind is h.AETH:
        return h.AETH(draw(_syndromes(info)), draw(psns()))
    if kind is h.FETH:
        return h.FETH(sel=draw(st.integers(0, 1)), plt=draw(st.integers(1, 3)))
    return kind(**{name: draw(strategy) for name, strategy in _FREE[kind].items()})


def _reth(draw: st.DrawFn, info: OpCodeInfo, size: int) -> h.RETH:
    """A RETH with the length of the whole message, which does not wrap to address 0."""
    if info.position is Position.FIRST:
        length = draw(st.integers(size + 1, LONGEST_MESSAGE))
    elif info.operation in (Operation.READ, Operation.FLUSH):
        length = draw(st.integers(0, LONGEST_MESSAGE))
    else:
        length = size
    va = draw(st.integers(0, (1 << 64) - max(length, 1)))
    if info.operation is Operation.ATOMIC_WRITE:
        va &= ~7
    return h.RETH(va, draw(_words), length)


def _syndromes(info: OpCodeInfo) -> st.SearchStrategy[int]:
    """Any syndrome for acknowledgements, ACK for responses with data (IBA 9.7.5.1.1)."""
    acks = st.integers(0, 31).map(lambda code: AckKind.ACK << 5 | code)
    if info.operation is not Operation.ACKNOWLEDGE:
        return acks
    codes = [code for code in NakCode if info.service is Service.RD or code < 4]
    rnrs = st.integers(0, 31).map(lambda code: AckKind.RNR_NAK << 5 | code)
    return acks | rnrs | st.sampled_from(codes).map(lambda code: AckKind.NAK << 5 | code)


_words = st.integers(0, (1 << 32) - 1)
_longs = st.integers(0, (1 << 64) - 1)
_numbers = st.integers(0, (1 << 24) - 1)
_bytes = st.integers(0, 255)

# A P_Key whose lower 15 bits are 0 is invalid (IBA 10.9.1.1).
_pkeys = st.builds(lambda full, key: full << 15 | key, st.integers(0, 1), st.integers(1, 0x7FFF))

_FREE: dict[type[Header], dict[str, st.SearchStrategy[int]]] = {
    h.RDETH: {"ee_context": _numbers},
    h.DETH: {"qkey": _words, "src_qp": _numbers},
    h.XRCETH: {"xrc_srq": _numbers},
    h.AtomicAckETH: {"orig": _longs},
    h.ImmDt: {"imm_data": _words},
    h.IETH: {"rkey": _words},
    h.CNPReserved: {},
}
"""Headers whose fields may have any value, except reserved ones."""


# Routes.


@st.composite
def _ethernets(draw: st.DrawFn, ether_type: int) -> tuple[Ethernet, tuple[VLAN, ...]]:
    """An Ethernet header and up to two tags before this EtherType."""
    vids = draw(st.lists(st.integers(0, 0xFFE), max_size=2))
    # The EtherType before a tag is one of the two tag types; the inner tag is a C-tag.
    types = [EtherType.QINQ, EtherType.VLAN, ether_type][2 - len(vids) :]
    tags = tuple(
        VLAN(pcp=draw(st.integers(0, 7)), dei=draw(st.integers(0, 1)), vid=vid, type=following)
        for vid, following in zip(vids, types[1:], strict=True)
    )
    return Ethernet(draw(_macs), draw(_macs), types[0]), tags


@st.composite
def _rocev2_routes(draw: st.DrawFn, version: int) -> Route:
    udp = UDP(src_port=draw(st.integers(0xC000, 0xFFFF)))  # IBA annex A17
    tos = {"dscp": draw(st.integers(0, 63)), "ecn": draw(st.integers(0, 3))}
    ip: IPv4 | IPv6
    if version == 4:
        eth, tags = draw(_ethernets(EtherType.IPV4))
        ip = IPv4(
            **tos,
            id=draw(st.integers(0, 0xFFFF)),
            ttl=draw(st.integers(1, 255)),
            src=draw(_ipv4s),
            dst=draw(_ipv4s),
        )
    else:
        eth, tags = draw(_ethernets(EtherType.IPV6))
        ip = IPv6(
            **tos,
            flow_label=draw(_flow_labels),
            hop_limit=draw(st.integers(1, 255)),
            src=draw(_ipv6s),
            dst=draw(_ipv6s),
        )
    return RoCEv2Route(ip, udp, eth, tags)


@st.composite
def _rocev1_routes(draw: st.DrawFn) -> Route:
    eth, tags = draw(_ethernets(EtherType.ROCE))
    return RoCEv1Route(draw(_grhs()), eth, tags)


@st.composite
def _ib_routes(draw: st.DrawFn) -> Route:
    lrh = h.LRH(
        vl=draw(st.integers(0, 14)),  # 15 is for subnet management
        sl=draw(st.integers(0, 15)),
        dlid=draw(_lids),
        slid=draw(_lids),
    )
    return IBRoute(lrh, draw(st.none() | _grhs()))


@st.composite
def _grhs(draw: st.DrawFn) -> h.GRH:
    return h.GRH(
        tclass=draw(_bytes),
        flow_label=draw(_flow_labels),
        hop_lmt=draw(_bytes),
        sgid=draw(_ipv6s),
        dgid=draw(_ipv6s),
    )


# The lowest bit of the first byte marks group addresses.
_macs = st.integers(1, (1 << 47) - 1).map(lambda n: n >> 40 << 41 | n & (1 << 40) - 1)
_ipv4s = st.integers(1 << 24, (224 << 24) - 1).filter(lambda address: address >> 24 != 127)
_hosts = st.integers(1, (1 << 64) - 1)
_ipv6s = st.one_of(
    st.builds(lambda net, host: 1 << 125 | net << 64 | host, st.integers(0, (1 << 61) - 1), _hosts),
    _hosts.map(lambda host: 0xFE80 << 112 | host),
    _hosts.map(lambda host: 0xFD00 << 112 | host),
)
"""Global unicast, link-local, and local to a site (RFC 4291, RFC 4193)."""
_flow_labels = st.integers(0, (1 << 20) - 1)
_lids = st.integers(1, 0xBFFF)  # unicast (IBA 4.1.3)

_ROUTES: dict[str, tuple[st.SearchStrategy[Route], ...]] = {
    "rocev2": (_rocev2_routes(4), _rocev2_routes(6)),
    "rocev1": (_rocev1_routes(),),
    "ib": (_ib_routes(),),
}
