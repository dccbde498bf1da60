"""A device on each kind of link, and what it makes of frames: reference/wire-formats#rocev2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import AddressVector, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up, connect
from ibwire.rc.device import (
    Device,
    datagram_source_port,
    flow_label_of,
    flow_source_port,
    gid_of,
    mac_of,
)
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.profile import CONNECTX, HNS, PROFILES, RXE, SPEC, Profile
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus, WROpcode
from ibwire.testing import End, LoggedFrame, Pair, Peer, create_queue_pair, summaries
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import IPv4, IPv6, LinkType
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route

R = OpCode
OK = WCStatus.SUCCESS

every_profile = each_case("profile", PROFILES.values(), ids=lambda p: p.name)

V4, V6 = ("10.0.0.1", "10.0.0.22"), ("2001:db8::1", "2001:db8::22")

LINKS: dict[str, dict[str, Any]] = {
    "RoCEv2 over IPv4": {"addresses": V4},
    "RoCEv2 over IPv6": {"addresses": V6},
    "RoCEv2 in a VLAN": {"addresses": V4, "vlan": 77},
    "RoCEv1 over IPv4 GIDs": {"addresses": V4, "link": "rocev1"},
    "RoCEv1 over IPv6 in a VLAN": {"addresses": V6, "link": "rocev1", "vlan": 4094},
    "InfiniBand": {"addresses": V6, "link": "ib"},
    "InfiniBand with GRH": {"addresses": V6, "link": "ib"},
}

any_link = each_case("name", LINKS)


class Wire:
    """Two devices on a link; the frames that pass."""

    def __init__(self, name: str, *, profile: Profile = SPEC) -> None:
        said = dict(LINKS[name])
        addresses = said.pop("addresses")
        native = said.get("link") == "ib"
        self.link_type = LinkType.INFINIBAND if native else LinkType.ETHERNET
        self.frames: list[Frame] = []
        self.devices = [
            Device(address, address, profile=profile, lid=lid, **said)
            for lid, address in enumerate(addresses, start=5)
        ]
        self.sim = Simulator()
        self.sim.connect(*self.devices, a_to_b=self._see, b_to_a=self._see)
        self.pds = [device.alloc_pd() for device in self.devices]
        self.mrs = [pd.register(8192, int(ALL_ACCESS)) for pd in self.pds]
        self.cqs = [device.create_cq(64) for device in self.devices]
        self.qps = [
            device.create_qp(QPInit(QPType.RC, pd=pd, send_cq=cq, recv_cq=cq))
            for device, pd, cq in zip(self.devices, self.pds, self.cqs, strict=True)
        ]
        if name == "InfiniBand with GRH":
            for own, peer in (self.qps, self.qps[::-1]):
                there = AddressVector(dgid=peer.device.gids[0], dlid=peer.device.lid)
                bring_up(own, there, dest_qp_num=peer.number)
        else:
            connect(*self.qps)

    def _see(self, frame: Frame, now: int) -> list[tuple[int, Frame]]:
        self.frames.append(frame)
        return [(0, frame)]

    @property
    def packets(self) -> list[Packet]:
        return [Packet.parse(frame, self.link_type) for frame in self.frames]


@any_link
def test_messages_pass_on_every_link_with_right_checksums(name: str) -> None:
    wire = Wire(name)
    a, b = wire.mrs
    data = bytes(n % 249 for n in range(3000))
    a.write(a.iova, data)
    wire.qps[1].post_recv(RecvWR([SGE(b.iova, 3000, b.lkey)]))
    wire.qps[0].post_send(SendWR(WROpcode.SEND, [SGE(a.iova, 3000, a.lkey)]))
    read = SendWR(
        WROpcode.RDMA_READ, [SGE(a.iova + 4000, 2999, a.lkey)], remote_addr=b.iova, rkey=b.rkey
    )
    wire.qps[0].post_send(read)
    wire.sim.run()

    assert [wc.status for cq in wire.cqs for wc in cq.poll(9)] == [OK, OK, OK]
    assert b.read(b.iova, 3000) == data
    assert a.read(a.iova + 4000, 2999) == data[:2999]
    for frame, packet in zip(wire.frames, wire.packets, strict=True):
        assert packet.icrc_status() is CrcStatus.GOOD
        assert replace(packet, icrc=None, vcrc=None).build() == frame


@any_link
def test_headers_of_every_link(name: str) -> None:
    wire = Wire(name)
    a, b = wire.mrs
    wire.qps[0].post_send(
        SendWR(WROpcode.RDMA_WRITE, [SGE(a.iova, 8, a.lkey)], remote_addr=b.iova, rkey=b.rkey)
    )
    wire.sim.run()
    route = wire.packets[0].route
    source, destination = (device.gids[0] for device in wire.devices)

    if isinstance(route, IBRoute):
        assert (route.lrh.slid, route.lrh.dlid) == (5, 6)
        assert (route.grh is not None) == (name == "InfiniBand with GRH")
        assert route.lrh.lnh == (2 if route.grh is None else 3)
        if route.grh is not None:
            assert (route.grh.sgid, route.grh.dgid) == (source, destination)
        return
    assert route.eth is not None
    assert route.eth.src.to_bytes(6) == mac_of(source)
    assert route.eth.dst.to_bytes(6) == mac_of(destination)
    assert [tag.vid for tag in route.vlans] == ([LINKS[name]["vlan"]] if "VLAN" in name else [])
    if isinstance(route, RoCEv1Route):
        assert (route.grh.sgid, route.grh.dgid, route.grh.nxt_hdr) == (source, destination, 0x1B)
        return
    assert route.udp.dst_port == 4791
    assert route.udp.checksum == 0
    assert isinstance(route.ip, IPv4 if "IPv6" not in name else IPv6)
    if isinstance(route.ip, IPv4):
        assert route.ip.df == 1
        assert (V4_GID | route.ip.src, V4_GID | route.ip.dst) == (source, destination)


V4_GID = 0xFFFF << 32


def test_a_packet_from_another_lid_is_dropped() -> None:
    """Without a GRH the LIDs are the addresses (reference/transport#check-headers)."""
    wire = Wire("InfiniBand")
    a, b = wire.mrs
    wire.qps[0].post_send(
        SendWR(WROpcode.RDMA_WRITE, [SGE(a.iova, 8, a.lkey)], remote_addr=b.iova, rkey=b.rkey)
    )
    frame = wire.devices[0].poll_transmit(0)
    assert frame is not None
    packet = Packet.parse(frame, LinkType.INFINIBAND)
    assert isinstance(packet.route, IBRoute)

    for said in ({"slid": 9}, {"dlid": 9}):
        other = replace(packet.route, lrh=replace(packet.route.lrh, **said))
        wire.devices[1].receive(replace(packet, route=other, icrc=None, vcrc=None).build(), 0)

    assert wire.devices[1].poll_transmit(0) is None
    assert wire.devices[1].counters["not_our_address"] == 1
    assert wire.qps[1].counters.dropped == 1
    wire.devices[1].receive(frame, 0)
    assert wire.devices[1].poll_transmit(0) is not None


# Source ports.


@pytest.mark.parametrize(("qpn", "dest"), [(0x11, 0x11), (0x1234, 0x56789), (0xFFFFFE, 2)])
def test_source_port_from_both_queue_pair_numbers(qpn: int, dest: int) -> None:
    """Linux `rdma_calc_flow_label`, by hand; the same in both directions."""
    value = qpn * dest
    value ^= value >> 20
    value ^= value >> 40
    label = value & 0xFFFFF

    assert flow_label_of(qpn, dest) == flow_label_of(dest, qpn) == label
    assert flow_source_port(label) == (label & 0x3FFF) ^ ((label & 0xFC000) >> 14) | 0xC000


def test_source_ports_of_captures() -> None:
    """cm-rping: flow label 174945 gives 60267; QP1 of rxe has 55410."""
    assert flow_source_port((39237 * 31 + 7174) & 0xFFFFF) == 60267
    assert datagram_source_port(1) == 55410


def test_a_given_flow_label_or_port_decides() -> None:
    device = Device()
    label = AddressVector(dgid=gid_of("10.0.0.2"), flow_label=174945)
    port = AddressVector(dgid=gid_of("10.0.0.2"), udp_source_port=4000)

    for av, due in ((label, 60267), (port, 4000)):
        packet = Packet.parse(device.path_to(av, 5, 6).frame(bytes(12)))
        assert isinstance(packet.route, RoCEv2Route)
        assert packet.route.udp.src_port == due


def test_source_port_of_hns_is_its_queue_pair_number() -> None:
    lone = Peer(mtu=256, profile=HNS)

    (packet,) = lone.request(WROpcode.RDMA_WRITE, 8)

    assert isinstance(packet.route, RoCEv2Route)
    assert packet.route.udp.src_port == lone.qp.number


def test_any_source_port_is_taken() -> None:
    lone = Peer(mtu=256)
    for port in (0, 1, 4791, 0xFFFF):
        packet = lone.packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)
        assert isinstance(packet.route, RoCEv2Route)
        route = replace(packet.route, udp=replace(packet.route.udp, src_port=port))
        assert len(lone.receive(replace(packet, route=route).build())) == 1


@pytest.mark.parametrize(
    ("profile", "numbers"), [(RXE, [0, 1, 2]), (SPEC, [0, 0, 0]), (CONNECTX, [0, 0, 0])],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_rxe_counts_ip_identifications_and_hops_from_64(
    profile: Profile, numbers: list[int]
) -> None:
    lone = Peer(mtu=256, profile=profile)
    heard = lone.request(WROpcode.RDMA_WRITE, 700)

    assert [getattr(p.route.ip, "id") for p in heard] == numbers  # noqa: B009
    assert all(p.route.ip.ttl == 64 for p in heard)


# Congestion.


@every_profile
def test_ce_mark_is_counted_and_reported_and_changes_nothing_else(profile: Profile) -> None:
    """The ICRC is right with it (ecn-ce)."""
    lone = Peer(mtu=256, profile=profile)

    marked = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1, **{"ip.ecn": 3})

    assert [p.bth.psn for p in marked] == [100]
    assert lone.qp.counters.ce_marked == 1
    assert [(e.qp, e.kind) for e in lone.device.congestion] == [(lone.qp, "ce")]


@pytest.mark.parametrize("ecn", [0, 1, 2])
def test_other_ecn_codes_are_not_a_mark(ecn: int) -> None:
    lone = Peer(mtu=256)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, **{"ip.ecn": ecn})

    assert lone.qp.counters.ce_marked == 0


@every_profile
@pytest.mark.parametrize("state", [QPState.RTR, QPState.RTS], ids=lambda s: s.name)
def test_a_cnp_takes_no_psn_and_draws_no_answer(state: QPState, profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.bring_to(state)

    assert lone.receive_packet(R.CNP, 0, becn=1) == []
    assert lone.receive_packet(R.CNP, 0, becn=1, mig_req=0, **{"ip.ecn": 2}) == []

    assert lone.qp.counters.cnps_received == 2
    assert [e.kind for e in lone.device.congestion] == ["cnp", "cnp"]
    assert lone.qp.responder.epsn == 100
    assert len(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, ack_req=1)) == 1


@pytest.mark.parametrize("state", [QPState.RESET, QPState.INIT, QPState.ERR], ids=lambda s: s.name)
def test_a_cnp_is_dropped_before_rtr(state: QPState) -> None:
    lone = Peer(mtu=256)
    lone.bring_to(state)
    lone.receive_packet(R.CNP, 0, becn=1)

    assert lone.qp.counters.cnps_received == 0


@pytest.mark.parametrize(
    ("qp_type", "attr"),
    [(QPType.UC, {}), (QPType.XRC_SEND, {}), (QPType.XRC_RECV, {})],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_cnp_reaches_every_connected_service(qp_type: QPType, attr: dict[str, Any]) -> None:
    """An XRC initiator too: it is the one that sends."""
    device = Device("x", "10.0.0.2")
    pd, cq = device.alloc_pd(), device.create_cq(9)
    domain = device.open_xrc_domain()
    qp = device.create_qp(QPInit(qp_type, pd=pd, send_cq=cq, recv_cq=cq, xrc_domain=domain))
    bring_up(qp, AddressVector(dgid=gid_of("10.0.0.1")), dest_qp_num=1, **attr)
    frame = Peer(mtu=256).packet(R.CNP, 0, becn=1, dest_qp=qp.number).build()

    device.receive(frame, 0)

    assert qp.counters.cnps_received == 1


def test_the_published_connectx_cnp_is_understood() -> None:
    """Section 16.4, a ConnectX-4 Lx: destination QP 0x118, source port 0."""
    ip = bytes.fromhex("45c2003c718c4000401191610a0011010a001201")
    frame = (
        bytes.fromhex("0200000000010200000000020800")
        + ip
        + bytes.fromhex("000012b700280000 8100ffff40000118 00000000")
        + bytes(16)
        + bytes.fromhex("82fd002a")
    )
    device = Device("x", "10.0.18.1")
    pd, cq = device.alloc_pd(), device.create_cq(9)
    qp = device.create_qp(QPInit(QPType.RC, pd=pd, send_cq=cq, recv_cq=cq), number=0x118)
    bring_up(qp, AddressVector(dgid=gid_of("10.0.17.1")), dest_qp_num=1)

    device.receive(frame, 7)

    assert qp.counters.cnps_received == 1
    assert device.congestion[0].time == 7


# Misdirected frames.


def test_misdirected_frames_are_counted_by_reason() -> None:
    lone = Peer(mtu=256)
    packet = lone.packet(R.RC_RDMA_WRITE_ONLY, 100)
    good = packet.build()

    lone.receive(b"")
    lone.receive(bytes(60))
    lone.receive(good[:-5] + b"xxxxx")
    lone.receive(replace(packet, bth=replace(packet.bth, tver=1)).build())
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, dest_qp=0x999)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, **{"ip.dst": 0x0A000063})
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, **{"ip.src": 0x0A000063})

    assert dict(lone.device.counters) == {
        "not_for_rdma": 2,
        "bad_icrc": 1,
        "malformed": 1,
        "unknown_qp": 1,
        "not_our_address": 1,
    }
    assert lone.qp.counters.dropped == 1
    assert lone.qp.responder.epsn == 100


def test_bytes_after_the_packet_do_not_matter() -> None:
    """Ethernet padding and FCS."""
    lone = Peer(mtu=256)
    frame = lone.packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1).build()

    assert summaries(lone.receive(frame + bytes(9))) == ["ACKNOWLEDGE 100 0x00"]


# Objects.


@pytest.mark.parametrize(
    "said",
    [
        {"pd": None},
        {"send_cq": None},
        {"qp_type": QPType.XRC_RECV},
    ],
)
def test_a_queue_pair_needs_its_parts(said: dict[str, Any]) -> None:
    device = Device()

    with pytest.raises(VerbsError):
        create_queue_pair(device, **said)


def test_limits() -> None:
    device = Device(limits=DeviceLimits(max_qp=1, max_cqe=10))
    cq = device.create_cq(10)
    parts = QPInit(QPType.RC, pd=device.alloc_pd(), send_cq=cq, recv_cq=cq)
    device.create_qp(parts)

    with pytest.raises(VerbsError):
        device.create_qp(parts)
    with pytest.raises(VerbsError):
        device.create_cq(11)


def test_a_queue_pair_number_may_be_chosen_once() -> None:
    device = Device()
    parts = QPInit(
        QPType.RC, pd=device.alloc_pd(), send_cq=device.create_cq(1), recv_cq=device.create_cq(1)
    )

    assert device.create_qp(parts, number=0x1234).number == 0x1234
    with pytest.raises(VerbsError):
        device.create_qp(parts, number=0x1234)


@pytest.mark.parametrize("address", ["", "10.0.0", "fe80::1::2", "10.0.0.256"])
def test_invalid_address_is_einval(address: str) -> None:
    with pytest.raises(VerbsError):
        Device("x", address)


def test_queue_pairs_take_turns_packet_by_packet() -> None:
    device = Device("x", "10.0.0.2")
    pd, cq = device.alloc_pd(), device.create_cq(99)
    mr = pd.register(8192, int(ALL_ACCESS))
    qps = [device.create_qp(QPInit(QPType.RC, pd=pd, send_cq=cq, recv_cq=cq)) for _ in range(3)]
    for number, qp in enumerate(qps):
        bring_up(qp, AddressVector(dgid=gid_of("10.0.0.1")), dest_qp_num=100 + number)
        qp.post_send(SendWR(WROpcode.RDMA_WRITE, [SGE(mr.iova, 4096, mr.lkey)]))

    sent = []
    while (frame := device.poll_transmit(0)) is not None:
        sent.append(Packet.parse(frame).bth.dest_qp)

    assert sorted(sent[:3]) == sorted(sent[3:6]) == [100, 101, 102]
    assert len(sent) == 12


def test_mac_addresses_of_a_network_without_arp() -> None:
    assert mac_of(gid_of("10.1.2.3")).hex(":") == "02:00:0a:01:02:03"
    # fe80::5054:ff:fe12:3456 is made of 52:54:00:12:34:56 (RFC 4291 appendix A).
    assert mac_of(gid_of("fe80::5054:ff:fe12:3456")).hex(":") == "52:54:00:12:34:56"


@every_profile
def test_the_same_run_twice_is_the_same_bytes(profile: Profile) -> None:
    def run() -> list[LoggedFrame]:
        pair = Pair(profile=profile, psn_a=5, timeout=10)
        pair.drop("a", 2, 7)
        pair.drop("b", 1)
        for _ in range(3):
            pair.b.post_recv(4096)
            pair.a.post_send(WROpcode.SEND, 3000)
            pair.a.post_send(WROpcode.RDMA_READ, 3000)
        pair.run()
        assert [wc.status for wc in pair.a.poll_send_cq()] == [OK] * 6
        return pair.log

    assert run() == run()


def test_profile_is_taken_by_name_and_an_unknown_one_refused() -> None:
    assert Device(profile="rxe").profile.name == "rxe"
    with pytest.raises(VerbsError, match="not spec"):
        Device(profile="rx")


def test_protection_domain_of_another_device_is_refused() -> None:
    device, other = Device(), Device()

    with pytest.raises(VerbsError, match="another device"):
        create_queue_pair(device, pd=other.alloc_pd())


def test_queue_pair_and_its_counters_show_what_matters() -> None:
    qp = create_queue_pair(Device("left"))
    qp.counters.timeouts = 3

    assert repr(qp) == "<QueuePair left 0x11 RC RESET>"
    assert repr(qp.counters) == "<QPCounters timeouts=3>"


def test_queue_pair_sends_on_the_lane_of_its_service_level() -> None:
    class OnlyLane:
        def __init__(self, lane: int) -> None:
            self.lane = lane

        def allows(self, lane: int, size: int) -> bool:
            return lane == self.lane

    end = End("a", "10.0.0.1")
    address = AddressVector(dgid=gid_of("10.0.0.2"), sl=3)
    end.connect_to(address, 0x22, psn=0, peer_psn=0, mtu=1024)
    end.post_send(WROpcode.SEND, 100)

    assert end.device.poll_transmit(0, 0, OnlyLane(0)) is None
    assert end.device.poll_transmit(0, 0, OnlyLane(3)) is not None


def test_port_is_ready_only_while_something_waits_to_be_sent() -> None:
    """Otherwise a simulator asks for a frame after each packet, and gets none."""
    a, b = Device("a", "10.0.0.1"), Device("b", "10.0.0.2")
    pd, cq = a.alloc_pd(), a.create_cq(4)
    qp = a.create_qp(QPInit(QPType.RC, pd, cq, cq))
    bring_up(qp, AddressVector(dgid=b.gids[0], sl=3), dest_qp_num=0x11)
    while a.poll_transmit(0) is not None:
        pass
    a.ready_ports.clear()
    for _ in range(2):
        qp.post_send(SendWR(WROpcode.RDMA_WRITE, []))

    asked = []
    while a.ready_ports:
        a.ready_ports.clear()
        asked.append(a.poll_transmit(0) is not None)

    assert asked == [True, True]
