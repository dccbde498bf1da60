"""One verified exchange over every link: what stands around the transport headers.

Values are those of reference/wire-formats#rocev2 and what follows; source ports are of
captures of Linux rxe.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from each_case import each_case
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of
from ibwire.rc.profile import HNS, PROFILES, RXE, SPEC, Profile
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendWR, WCOpcode, WCStatus, WROpcode
from ibwire.testing import summaries
from ibwire_layers import headers as h
from ibwire_layers.outer import EtherType, IPv4, LinkType
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route, Route

MTU = 1024

TRAFFIC_CLASS = 26 << 2 | 0b10
"""DSCP 26, ECT(0)."""


class Site:
    """A device with one RC queue pair, some memory and a completion queue."""

    def __init__(
        self,
        address: str,
        *,
        qpn: int,
        profile: Profile = SPEC,
        pkey: int = 0xFFFF,
        qp_type: QPType = QPType.RC,
        **device: Any,
    ) -> None:
        self.device = Device("site", address, profile=profile, key_start=qpn, **device)
        self.device.pkeys[0] = pkey
        self.pd = self.device.alloc_pd()
        self.mr = self.pd.register(1 << 14, int(ALL_ACCESS))
        self.cq = self.device.create_cq(64)
        self.qp = self.device.create_qp(QPInit(qp_type, self.pd, self.cq, self.cq), qpn)
        self.link_type = LinkType.INFINIBAND if self.device.link == "ib" else LinkType.ETHERNET

    def reach(self, peer: Site, **address: Any) -> None:
        """Bring the queue pair up towards a peer."""
        address = {"dgid": peer.device.gids[0], "dlid": peer.device.lid, **address}
        bring_up(
            self.qp, AddressVector(**address), dest_qp_num=peer.qp.number, path_mtu=MTU_CODES[MTU]
        )

    def post(self, opcode: WROpcode, length: int, peer: Site, offset: int = 0, **wr: Any) -> None:
        sges = [SGE(self.mr.iova + offset, length, self.mr.lkey)]
        wr = {"remote_addr": peer.mr.iova + offset, "rkey": peer.mr.rkey, **wr}
        self.qp.post_send(SendWR(opcode, sges, **wr))

    def post_recv(self, length: int, offset: int = 0) -> None:
        self.qp.post_recv(RecvWR([SGE(self.mr.iova + offset, length, self.mr.lkey)]))

    def frames(self) -> list[bytes]:
        """Everything that it has to send now."""
        found = []
        while (frame := self.device.poll_transmit(0)) is not None:
            found.append(frame)
        return found

    def memory(self, size: int, offset: int = 0) -> bytes:
        return self.mr.read(self.mr.iova + offset, size)


@dataclass
class Exchange:
    """Two sites and what they have sent each other."""

    a: Site
    b: Site
    frames: list[tuple[Site, bytes]] = field(default_factory=list)

    def carry(self) -> None:
        """Carry frames in both directions until nothing is sent."""
        while True:
            waiting = [(site, frame) for site in (self.a, self.b) for frame in site.frames()]
            if not waiting:
                return
            for site, frame in waiting:
                (self.b if site is self.a else self.a).device.receive(frame, 0)
            self.frames += waiting

    def sent(self, site: Site) -> list[Packet]:
        return [Packet.parse(frame, site.link_type) for who, frame in self.frames if who is site]


LINKS: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, Any]]] = {
    "rocev2-ipv4": (("10.0.0.1", "10.0.0.2"), {}, {}),
    "rocev2-ipv6": (("2001:db8::1", "2001:db8::2"), {}, {}),
    "rocev2-vlan": (("10.0.0.1", "10.0.0.2"), {"vlan": 100}, {"sl": 5}),
    "rocev1": (("fe80::1", "fe80::2"), {"link": "rocev1"}, {"flow_label": 0x12345}),
    "ib-local": (("fe80::1", "fe80::2"), {"link": "ib"}, {"is_global": False, "sl": 3}),
    "ib-global": (("fe80::1", "2001::2"), {"link": "ib"}, {"sl": 3, "flow_label": 0x12345}),
}
"""Addresses, what the devices are made with, and what the address vectors say besides."""


def connected(link: str, profile: Profile = SPEC, **site: Any) -> Exchange:
    (one, other), device, address = LINKS[link]
    lids = ({"lid": 7}, {"lid": 9}) if device.get("link") == "ib" else ({}, {})
    a = Site(one, qpn=0x9B, profile=profile, **lids[0], **device, **site)
    b = Site(other, qpn=0x66, profile=profile, **lids[1], **device, **site)
    for site_, peer in ((a, b), (b, a)):
        site_.reach(peer, traffic_class=TRAFFIC_CLASS, hop_limit=33, **address)
    return Exchange(a, b)


def exchanged(link: str, profile: Profile = SPEC, **site: Any) -> Exchange:
    """WRITE of three packets, SEND, READ of two and FETCH ADD, with every byte verified."""
    exchange = connected(link, profile, **site)
    a, b = exchange.a, exchange.b
    here = bytes(n * 5 + (n >> 8) & 0xFF for n in range(4096))
    there = bytes(n * 11 + (n >> 8) & 0xFF for n in range(1500))
    a.mr.write(a.mr.iova, here)
    b.mr.write(b.mr.iova + 8192, there)
    b.mr.write(b.mr.iova + 12288, (40).to_bytes(8, "little"))
    b.post_recv(101, offset=4096)
    a.post(WROpcode.RDMA_WRITE, 2500, b)
    a.post(WROpcode.SEND, 101, b, offset=1)
    a.post(WROpcode.RDMA_READ, 1500, b, offset=8192)
    a.post(WROpcode.ATOMIC_FETCH_AND_ADD, 8, b, offset=12288, compare_add=2)

    exchange.carry()

    assert [(wc.status, wc.opcode) for wc in a.cq.poll(9)] == [
        (WCStatus.SUCCESS, WCOpcode.RDMA_WRITE),
        (WCStatus.SUCCESS, WCOpcode.SEND),
        (WCStatus.SUCCESS, WCOpcode.RDMA_READ),
        (WCStatus.SUCCESS, WCOpcode.FETCH_ADD),
    ]
    assert [(wc.status, wc.byte_len) for wc in b.cq.poll(9)] == [(WCStatus.SUCCESS, 101)]
    assert b.memory(2500) == here[:2500]
    assert b.memory(101, 4096) == here[1:102]
    assert a.memory(1500, 8192) == there
    assert a.memory(8, 12288) == (40).to_bytes(8, "little")
    assert b.memory(8, 12288) == (42).to_bytes(8, "little")
    return exchange


@each_case("profile", PROFILES.values(), ids=lambda p: p.name)
@each_case("link", LINKS)
def test_every_frame_is_sound_to_the_last_byte(link: str, profile: Profile) -> None:
    """Strictly parsed; ICRC, VCRC and all lengths as `Packet.repaired` makes them."""
    exchange = exchanged(link, profile)

    assert summaries(exchange.sent(exchange.a)) == [
        "RDMA_WRITE_FIRST 0",
        "RDMA_WRITE_MIDDLE 1",
        "RDMA_WRITE_LAST 2",
        "SEND_ONLY 3",
        "RDMA_READ_REQUEST 4",
        "FETCH_ADD 6",
    ]
    answers = [packet.opcode_name for packet in exchange.sent(exchange.b)]
    assert answers[-3:] == [
        "RC_RDMA_READ_RESPONSE_FIRST",
        "RC_RDMA_READ_RESPONSE_LAST",
        "RC_ATOMIC_ACKNOWLEDGE",
    ]
    for site, frame in exchange.frames:
        packet = Packet.parse(frame, site.link_type)
        assert packet.icrc_status() is CrcStatus.GOOD
        assert packet.trailer == b""
        assert packet.repaired().build() == frame
        assert packet.padding == bytes(-len(packet.payload) % 4)


@each_case("profile", PROFILES.values(), ids=lambda p: p.name)
def test_mig_req_and_reserved_bits_are_the_profiles(profile: Profile) -> None:
    """rxe sends MigReq 0, all others 1; hns sets a reserved bit (reference/habits#hns-headers)."""
    exchange = exchanged("rocev2-ipv4", profile)
    requests, responses = exchange.sent(exchange.a), exchange.sent(exchange.b)

    assert {packet.bth.mig_req for packet in requests + responses} == {int(profile is not RXE)}
    assert {packet.bth.resv6a for packet in requests} == {0x10 if profile is HNS else 0}
    assert {packet.bth.resv6a for packet in responses} == {0}
    assert {(p.bth.tver, p.bth.fecn, p.bth.becn) for p in requests + responses} == {(0, 0, 0)}


def test_rocev2_over_ipv4_carries_addresses_dscp_ttl_and_ports() -> None:
    exchange = exchanged("rocev2-ipv4")
    a, b = exchange.a, exchange.b
    for source, destination in ((a, b), (b, a)):
        for packet in exchange.sent(source):
            route = packet.route
            assert isinstance(route, RoCEv2Route)
            assert (route.eth.type, route.vlans) == (EtherType.IPV4, ())
            assert route.eth.src.to_bytes(6) == source.device.mac
            assert route.eth.dst.to_bytes(6) == destination.device.mac
            ip, udp = route.ip, route.udp
            assert isinstance(ip, IPv4)
            assert (ip.ihl, ip.df, ip.mf, ip.fragment_offset, ip.protocol) == (5, 1, 0, 0, 17)
            assert (ip.dscp, ip.ecn, ip.ttl) == (26, 2, 33)
            assert ip.src == source.device.gids[0] & 0xFFFFFFFF
            assert ip.dst == destination.device.gids[0] & 0xFFFFFFFF
            assert (udp.dst_port, udp.checksum) == (4791, 0)
            assert packet.bth.dest_qp == destination.qp.number


def test_rocev2_over_ipv6_carries_addresses_dscp_hop_limit_and_ports() -> None:
    exchange = exchanged("rocev2-ipv6")
    a, b = exchange.a, exchange.b
    for source, destination in ((a, b), (b, a)):
        for packet in exchange.sent(source):
            route = packet.route
            assert isinstance(route, RoCEv2Route)
            assert (route.eth.type, route.ip.next_header) == (EtherType.IPV6, 17)
            assert (route.ip.dscp, route.ip.ecn, route.ip.hop_limit) == (26, 2, 33)
            assert route.ip.src == source.device.gids[0]
            assert route.ip.dst == destination.device.gids[0]
            assert (route.udp.dst_port, route.udp.checksum) == (4791, 0)


def test_vlan_priority_is_the_service_level() -> None:
    """PCP is the low three bits of the SL (reference/wire-formats#priority)."""
    exchange = exchanged("rocev2-vlan")
    for site, frame in exchange.frames:
        packet = Packet.parse(frame, site.link_type)
        (tag,) = packet.route.vlans
        assert packet.route.eth.type == EtherType.VLAN
        assert (tag.pcp, tag.dei, tag.vid, tag.type) == (5, 0, 100, EtherType.IPV4)


def test_rocev1_carries_a_grh_over_ethernet() -> None:
    exchange = exchanged("rocev1")
    a, b = exchange.a, exchange.b
    for source, destination in ((a, b), (b, a)):
        for packet in exchange.sent(source):
            route = packet.route
            assert isinstance(route, RoCEv1Route)
            assert route.eth.type == 0x8915
            assert is_grh(route.grh, source, destination)


def is_grh(grh: h.GRH, source: Site, destination: Site) -> bool:
    """Whether a GRH has the fields of the address vectors of `LINKS`."""
    assert (grh.ip_ver, grh.nxt_hdr, grh.hop_lmt) == (6, 0x1B, 33)
    assert (grh.tclass, grh.flow_label) == (TRAFFIC_CLASS, 0x12345)
    assert (grh.sgid, grh.dgid) == (source.device.gids[0], destination.device.gids[0])
    return True


@pytest.mark.parametrize("link", ["ib-local", "ib-global"])
def test_native_infiniband_carries_lids_and_a_grh_if_asked_for(link: str) -> None:
    """LNH 2 without, 3 with a GRH; PktLen in words up to the ICRC (reference/wire-formats#lrh)."""
    exchange = exchanged(link)
    a, b = exchange.a, exchange.b
    for site, frame in exchange.frames:
        source, destination = (a, b) if site is a else (b, a)
        packet = Packet.parse(frame, LinkType.INFINIBAND)
        route = packet.route
        assert isinstance(route, IBRoute)
        assert (route.lrh.slid, route.lrh.dlid) == (source.device.lid, destination.device.lid)
        assert (route.lrh.sl, route.lrh.lver) == (3, 0)
        assert route.lrh.pkt_len * 4 == len(frame) - h.VCRC_SIZE
        assert route.lrh.lnh == (3 if link == "ib-global" else 2)
        if link == "ib-global":
            assert route.grh is not None
            assert is_grh(route.grh, source, destination)
        else:
            assert route.grh is None


# UDP source port and IPv4 identification.


@each_case(
    ("qpn", "peer_qpn", "port"),
    [
        (0x9B, 0x66, 64962),  # rcx-all-ops
        (0x91, 0x5D, 62637),  # rc-pingpong-ipv6
        (0xC3, 0x8E, 60459),  # vlan-rc-pingpong
        (0xAC, 0x77, 53237),  # rnr-late-recv
        # 0xABCDEF * 0x123456 = 0xC379A59BA4A; ^ >> 20 is 0xC379A9AC3EF; ^ >> 40 ends in 0xAC3E3;
        # (0xAC3E3 & 0x3FFF) ^ (0xAC000 >> 14) = 0x03E3 ^ 0x2B = 0x03C8.
        (0xABCDEF, 0x123456, 0xC3C8),
    ],
)
def test_source_port_is_made_of_both_qp_numbers_and_the_same_both_ways(
    qpn: int, peer_qpn: int, port: int
) -> None:
    a, b = Site("10.0.0.1", qpn=qpn), Site("10.0.0.2", qpn=peer_qpn)
    a.reach(b)
    b.reach(a)
    exchange = Exchange(a, b)
    a.post(WROpcode.RDMA_WRITE, 8, b)
    exchange.carry()

    packets = exchange.sent(a) + exchange.sent(b)
    assert [packet.route.udp.src_port for packet in packets] == [port, port]


@pytest.mark.parametrize(
    ("flow_label", "port"),
    [((39237 * 31 + 7174) & 0xFFFFF, 60267), (0xABCDE, 64756)],
    ids=["cm-rping", "rcx-ipv6"],
)
def test_source_port_of_a_flow_label_which_stands_nowhere_else(flow_label: int, port: int) -> None:
    """In rcx-ipv6 the IPv6 header has flow label 0."""
    a, b = Site("2001:db8::1", qpn=0x11), Site("2001:db8::2", qpn=0x12)
    a.reach(b, flow_label=flow_label)
    a.post(WROpcode.RDMA_WRITE, 8, b)

    route = Packet.parse(a.frames()[0]).route
    assert (route.udp.src_port, route.ip.flow_label) == (port, 0)


@pytest.mark.parametrize(("qpn", "port"), [(0x4D, 55892), (0x81, 53634), (1, 55410)])
def test_source_port_of_datagrams_is_a_hash_of_the_qp_number(qpn: int, port: int) -> None:
    """ud-pingpong; QP1 in cm-udaddy."""
    a = Site("10.0.0.1", qpn=qpn, qp_type=QPType.UD)
    bring_up(a.qp, AddressVector())
    ah = AddressVector(dgid=gid_of("10.0.0.2"))
    a.qp.post_send(SendWR(ah=ah, remote_qpn=0x55))

    assert Packet.parse(a.frames()[0]).route.udp.src_port == port


def test_hns_source_port_is_the_senders_qp_number() -> None:
    """reference/habits#hns-headers: QP 0x48 sends from port 72 and is answered from 69."""
    a, b = Site("10.0.0.1", qpn=0x48, profile=HNS), Site("10.0.0.2", qpn=0x45, profile=HNS)
    a.reach(b)
    b.reach(a)
    exchange = Exchange(a, b)
    a.post(WROpcode.RDMA_WRITE, 8, b)
    exchange.carry()

    assert [packet.route.udp.src_port for packet in exchange.sent(a)] == [72]
    assert [packet.route.udp.src_port for packet in exchange.sent(b)] == [69]


def test_source_port_of_the_address_vector_wins() -> None:
    a, b = Site("10.0.0.1", qpn=0x11), Site("10.0.0.2", qpn=0x12)
    a.reach(b, udp_source_port=12345)
    a.post(WROpcode.RDMA_WRITE, 8, b)

    assert Packet.parse(a.frames()[0]).route.udp.src_port == 12345


def test_rxe_counts_the_ipv4_identification_up_and_sends_with_the_ttl_of_the_route() -> None:
    """rc-pingpong: consecutive numbers from one sender; TTL 64 whatever is requested."""
    exchange = exchanged("rocev2-ipv4", RXE)
    for site in (exchange.a, exchange.b):
        numbers = [packet.route.ip.id for packet in exchange.sent(site)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {packet.route.ip.ttl for packet in exchange.sent(site)} == {64}


# P_Keys, and whose packets are dropped.


@each_case("link", LINKS)
def test_p_key_is_the_entry_of_the_table(link: str) -> None:
    exchange = exchanged(link, pkey=0x8123)

    for site, frame in exchange.frames:
        assert Packet.parse(frame, site.link_type).bth.pkey == 0x8123


def test_rxe_always_sends_the_default_p_key() -> None:
    """reference/habits#rxe-pkey: it ignores the table."""
    exchange = exchanged("rocev2-ipv4", RXE, pkey=0x8123)

    packets = exchange.sent(exchange.a) + exchange.sent(exchange.b)
    assert {packet.bth.pkey for packet in packets} == {0xFFFF}


def stranger(route: Route) -> Route:
    """The route of a packet from another host."""
    if isinstance(route, RoCEv2Route):
        return replace(route, ip=replace(route.ip, src=route.ip.src ^ 0x80))
    if route.grh is not None:
        return replace(route, grh=replace(route.grh, sgid=route.grh.sgid ^ 0x80))
    assert isinstance(route, IBRoute)
    return replace(route, lrh=replace(route.lrh, slid=route.lrh.slid ^ 0x80))


def elsewhere(route: Route) -> Route:
    """The route of a packet to another host."""
    if isinstance(route, RoCEv2Route):
        return replace(route, ip=replace(route.ip, dst=route.ip.dst ^ 0x80))
    if route.grh is not None:
        return replace(route, grh=replace(route.grh, dgid=route.grh.dgid ^ 0x80))
    assert isinstance(route, IBRoute)
    return replace(route, lrh=replace(route.lrh, dlid=route.lrh.dlid ^ 0x80))


@each_case("seen", [False, True], ids=["first", "after-a-good-one"])
@each_case("wrong", ["source", "destination", "pkey"])
@each_case("link", LINKS)
def test_frame_from_a_wrong_place_or_partition_is_dropped_in_silence(
    link: str, wrong: str, seen: bool
) -> None:
    """No answer, no effect; then the right frame is taken (reference/transport#check-headers)."""
    exchange = connected(link)
    a, b = exchange.a, exchange.b
    if seen:
        a.post(WROpcode.RDMA_WRITE, 8, b)
        exchange.carry()
    a.mr.write(a.mr.iova, b"DATA----")
    a.post(WROpcode.RDMA_WRITE, 8, b)
    (frame,) = a.frames()
    packet = Packet.parse(frame, a.link_type)
    if wrong == "pkey":
        bad = replace(packet, bth=replace(packet.bth, pkey=0x8001))
    else:
        move = stranger if wrong == "source" else elsewhere
        bad = replace(packet, route=move(packet.route))
    b.device.receive(bad.repaired().build(), 0)

    assert b.frames() == []
    assert b.memory(8) == bytes(8)
    assert b.device.poll_event() is None
    assert b.device.counters["bad_icrc"] == b.device.counters["malformed"] == 0
    assert b.device.counters["bad_pkey"] == int(wrong == "pkey")
    b.device.receive(frame, 0)
    assert b.memory(8) == b"DATA----"
    assert len(b.frames()) == 1
