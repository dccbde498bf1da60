"""Recorded packets with changed endpoints: addresses, queue pairs, PSNs and keys.

After a change, lengths, checksums and the ICRC are recomputed. A packet without a change
stays as it was recorded, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ibwire.base.errors import EncodeError
from ibwire.rc.device import mac_of
from ibwire.rc.path import V4_MAPPED
from ibwire_layers import headers as h
from ibwire_layers import opcodes, psn
from ibwire_layers.outer import Ethernet, EtherType, IPv4
from ibwire_layers.packet import IBRoute, Packet, RoCEv1Route, RoCEv2Route

Flow = tuple[int, int]
"""Destination GID and QP number, as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebinding:
    """The changes to recorded packets; values that are in no map stay."""

    addresses: Mapping[int, int] = field(default_factory=dict)
    """GIDs; an IPv4 address is ::ffff:a.b.c.d."""
    macs: Mapping[bytes, bytes] = field(default_factory=dict)
    src_mac: bytes | None = None
    """Source MAC address of packets whose address is not in `macs`."""
    mac_towards: Callable[[int], bytes] | None = None
    """Destination MAC address for a GID, for packets whose address is not in `macs`."""
    qpns: Mapping[int, int] = field(default_factory=dict)
    """Destination QP numbers, and source QP numbers of datagrams."""
    rkeys: Mapping[int, int] = field(default_factory=dict)
    psn_start: int | None = None
    """PSN of the first request to every queue pair; the others follow."""
    psn_starts: Mapping[int, int] = field(default_factory=dict)
    """The same for one recorded destination QP number."""
    repair: bool = False
    """Also recompute lengths, checksums and ICRC of packets without a change."""

    def __post_init__(self) -> None:
        for name, numbers, width in (
            ("qpn", [*self.qpns, *self.qpns.values()], 24),
            ("rkey", [*self.rkeys, *self.rkeys.values()], 32),
            ("psn_start", [*self.psn_starts, *self.psn_starts.values(), self.psn_start or 0], 24),
        ):
            for number in numbers:
                if not 0 <= number < 1 << width:
                    raise EncodeError(name, number, f"a number of {width} bits")
        for old, new in self.addresses.items():
            if (old >> 32 == 0xFFFF) is not (new >> 32 == 0xFFFF):
                raise EncodeError("address", hex(new), "an address of the same kind as the old one")

    @property
    def moves_psns(self) -> bool:
        """Whether PSNs change."""
        return self.psn_start is not None or bool(self.psn_starts)


class Rebinder:
    """Changes packets, in the order of their capture.

    partners: for each flow the one in the other direction of its connection, whose PSNs its
    responses carry.
    """

    def __init__(self, rebinding: Rebinding, partners: Mapping[Flow, Flow]) -> None:
        self._rebinding = rebinding
        self._partners = partners
        self._shift: dict[Flow, int] = {}
        """Difference added to the PSNs of requests of a flow."""

    def rebound(self, frame: bytes, link_type: int) -> bytes:
        """The frame of an RDMA packet over Ethernet, changed; raises `DecodeError`."""
        packet = Packet.parse(frame, link_type, strict=False)
        changed = replace(self._changed(packet), trailer=b"")
        if self._rebinding.repair or replace(packet, trailer=b"") != changed:
            changed = changed.repaired()
        return changed.build()

    def _changed(self, packet: Packet) -> Packet:
        route = packet.route
        assert not isinstance(route, IBRoute)
        destination = _gids(route)[1]
        flow = destination, packet.bth.dest_qp
        bth = packet.bth
        qpns, rkeys = self._rebinding.qpns, self._rebinding.rkeys
        bth = replace(
            bth,
            dest_qp=qpns.get(bth.dest_qp, bth.dest_qp),
            psn=psn.add(bth.psn, self._psn_shift(flow, bth)),
        )
        extensions = []
        for header in packet.extensions:
            if isinstance(header, h.RETH | h.AtomicETH | h.IETH):
                header = replace(header, rkey=rkeys.get(header.rkey, header.rkey))
            elif isinstance(header, h.DETH):
                header = replace(header, src_qp=qpns.get(header.src_qp, header.src_qp))
            extensions.append(header)
        return replace(packet, route=self._route(route), bth=bth, extensions=tuple(extensions))

    def _route(self, route: RoCEv2Route | RoCEv1Route) -> RoCEv2Route | RoCEv1Route:
        addresses = self._rebinding.addresses
        source, destination = (addresses.get(gid, gid) for gid in _gids(route))
        vlans = route.vlans
        eth = self._ethernet(route, source, destination)
        if isinstance(route, RoCEv1Route):
            grh = replace(route.grh, sgid=source, dgid=destination)
            return replace(route, eth=eth, vlans=vlans, prefix=b"", grh=grh)
        width = 32 if isinstance(route.ip, IPv4) else 128
        mask = (1 << width) - 1
        ip: Any = replace(route.ip, src=source & mask, dst=destination & mask)
        return replace(route, eth=eth, vlans=vlans, prefix=b"", ip=ip)

    def _ethernet(
        self, route: RoCEv2Route | RoCEv1Route, source: int, destination: int
    ) -> Ethernet:
        rebinding = self._rebinding
        eth = route.eth
        if eth is None:
            kind = EtherType.ROCE if isinstance(route, RoCEv1Route) else EtherType.IPV6
            if isinstance(route, RoCEv2Route) and isinstance(route.ip, IPv4):
                kind = EtherType.IPV4
            eth = Ethernet(
                int.from_bytes(mac_of(destination)), int.from_bytes(mac_of(source)), kind
            )
        old_src, old_dst = eth.src.to_bytes(6), eth.dst.to_bytes(6)
        src = rebinding.macs.get(old_src, rebinding.src_mac or old_src)
        if old_dst in rebinding.macs:
            dst = rebinding.macs[old_dst]
        else:
            dst = rebinding.mac_towards(destination) if rebinding.mac_towards else old_dst
        return replace(eth, src=int.from_bytes(src), dst=int.from_bytes(dst))

    def _psn_shift(self, flow: Flow, bth: h.BTH) -> int:
        rebinding = self._rebinding
        if not rebinding.moves_psns or bth.opcode == opcodes.OpCode.CNP:
            return 0
        info = opcodes.INFO.get(bth.opcode)
        if info is not None and info.is_response:
            partner = self._partners.get(flow)
            return 0 if partner is None else self._shift.get(partner, 0)
        if flow not in self._shift:
            start = rebinding.psn_starts.get(flow[1], rebinding.psn_start)
            self._shift[flow] = 0 if start is None else psn.distance(bth.psn, start)
        return self._shift[flow]


def _gids(route: RoCEv2Route | RoCEv1Route) -> tuple[int, int]:
    """Source and destination."""
    if isinstance(route, RoCEv1Route):
        return route.grh.sgid, route.grh.dgid
    if isinstance(route.ip, IPv4):
        return V4_MAPPED | route.ip.src, V4_MAPPED | route.ip.dst
    return route.ip.src, route.ip.dst
