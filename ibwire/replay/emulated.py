"""An emulated queue pair in place of a recorded one, with the same addresses and numbers."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Self

from ibwire.peer import create_queue_pair
from ibwire.rc.attributes import AddressVector, QPCap
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import MULTICAST_QPN, Device
from ibwire.rc.memory import KeyTable
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QueuePair
from ibwire.replay.recorded import Address, RecordedPacket, ends
from ibwire_layers.packet import IBRoute, RoCEv1Route, RoCEv2Route, Route

DEPTH = 128
"""Outstanding READs and atomics in both directions: the limit of an emulated device."""

SENDS = 8192
"""Outstanding work requests: the transport searches them for each response."""


@dataclass(frozen=True, slots=True)
class PathEnds:
    """The addresses of a queue pair and its peer, from a packet between them."""

    link: str
    own: Address
    peer: Address
    own_mac: bytes | None
    peer_mac: bytes | None
    vlan: int | None
    pkey: int
    traffic_class: int = 0
    """Traffic class of what it sends."""

    @classmethod
    def of_receiver(cls, recorded: RecordedPacket) -> Self:
        """The endpoints, seen from the receiver of a packet."""
        route = recorded.arrival.route
        source, destination = ends(recorded.arrival)
        sent_by, sent_to = _macs(route)
        vlans = () if isinstance(route, IBRoute) else route.vlans
        return cls(
            link=_link(route),
            own=destination,
            peer=source,
            own_mac=sent_to,
            peer_mac=sent_by,
            vlan=vlans[0].vid if vlans else None,
            pkey=recorded.packet.pkey | 0x8000,
        )

    @classmethod
    def of_sender(cls, recorded: RecordedPacket) -> Self:
        """The endpoints, seen from the sender of a packet."""
        at = cls.of_receiver(recorded)
        return replace(
            at,
            own=at.peer,
            peer=at.own,
            own_mac=at.peer_mac,
            peer_mac=at.own_mac,
            traffic_class=_traffic_class(recorded.arrival.route),
        )


def queue_pair_at(
    place: PathEnds, number: int, profile: Profile, keys: KeyTable, **attr: int
) -> QueuePair | None:
    """A queue pair in RTS on its own device; `None` for an invalid QP number.

    attr: fields of `QPAttr`; by default everything is allowed.
    """
    if number >= MULTICAST_QPN:
        return None
    (gid, lid), (peer_gid, peer_lid) = place.own, place.peer
    device = Device(
        "recorded",
        str(ipaddress.IPv6Address(gid)),
        mac=place.own_mac,
        profile=profile,
        link=place.link,
        vlan=place.vlan,
        lid=lid,
    )
    device.keys = keys
    device.pkeys = [place.pkey]
    qp = create_queue_pair(
        device,
        number,
        send_cq=device.create_cq(device.limits.max_cqe),
        recv_cq=None,
        cap=QPCap(max_send_wr=SENDS),
    )
    address = AddressVector(
        dgid=peer_gid,
        dlid=peer_lid,
        is_global=place.link != "ib" or bool(peer_gid),
        traffic_class=place.traffic_class,
        dmac=place.peer_mac,
    )
    bring_up(
        qp,
        address,
        path_mtu=5,
        qp_access_flags=int(ALL_ACCESS),
        max_rd_atomic=DEPTH,
        max_dest_rd_atomic=DEPTH,
        **attr,
    )
    return qp


def _link(route: Route) -> str:
    if isinstance(route, IBRoute):
        return "ib"
    return "rocev1" if isinstance(route, RoCEv1Route) else "rocev2"


def _macs(route: Route) -> tuple[bytes | None, bytes | None]:
    """Source and destination of the Ethernet header, if there is one."""
    if isinstance(route, IBRoute) or route.eth is None:
        return None, None
    return route.eth.src.to_bytes(6), route.eth.dst.to_bytes(6)


def _traffic_class(route: Route) -> int:
    if isinstance(route, RoCEv2Route):
        return route.ip.dscp << 2 | route.ip.ecn
    return route.grh.tclass if route.grh else 0
