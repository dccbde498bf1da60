"""What the fixtures give a test: a pair of devices, and a device whose peer is the test."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError, VerbsError
from ibwire.base.units import MS, US
from ibwire.impair import PlanError
from ibwire.rc import QPState, QPType, WCStatus, WROpcode
from ibwire.strategies import frames, packets
from ibwire.testing import Pair, Peer, statuses
from ibwire_layers import OpCode
from ibwire_layers.headers import AETH, RETH
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route

LINKS = {"rocev2": RoCEv2Route, "rocev1": RoCEv1Route, "ib": IBRoute}

GRH_ROOM = 40
"""Bytes before a datagram in its receive buffer (IBA 11.4.1.2)."""


# The pair.


@each_case(("link", "qp_type"), list(product(LINKS, (QPType.RC, QPType.UC, QPType.UD))), ids=str)
def test_pair_carries_a_message_over_every_link_and_service(link: str, qp_type: QPType) -> None:
    pair = Pair(link=link, qp_type=qp_type, mtu=512)
    pair.a.write(8, b"hello")
    pair.b.post_recv(100, offset=200, wr_id=7)

    pair.a.post_send(WROpcode.SEND, 5, offset=8, wr_id=6)
    pair.run()

    assert [(wc.wr_id, wc.status) for wc in pair.a.poll_send_cq()] == [(6, WCStatus.SUCCESS)]
    assert [wc.wr_id for wc in pair.b.poll_recv_cq()] == [7]
    room = GRH_ROOM if qp_type is QPType.UD else 0
    assert pair.b.read(200 + room, 5) == b"hello"
    assert {type(packet.route) for packet in pair.packets()} == {LINKS[link]}


def test_pair_sends_both_ways_and_completions_are_returned_once() -> None:
    pair = Pair(psn_a=5, psn_b=0xFFFFFF)
    pair.b.write(0, b"there")

    pair.a.post_send(WROpcode.RDMA_READ, 5, offset=50)
    pair.b.post_send(WROpcode.RDMA_WRITE, 3, remote=90)
    pair.run()

    assert pair.a.read(50, 5) == b"there"
    assert pair.a.read(90, 3) == b"the"
    assert (len(pair.a.poll_send_cq()), len(pair.b.poll_send_cq())) == (1, 1)
    assert pair.a.poll_send_cq() == []
    assert {packet.bth.psn for packet in pair.packets("a")} == {5, 0xFFFFFF}


def test_faults_act_on_one_sender_and_a_lost_frame_never_arrives() -> None:
    pair = Pair(faults={"b": [{"drop": {"nth": 1}}]}, timeout=8)

    pair.a.post_send(WROpcode.RDMA_WRITE, 8)
    pair.run()

    lost = [("a", "sent"), ("b", "received"), ("b", "sent")]
    assert [(entry.device, entry.event) for entry in pair.log] == [*lost, *lost, ("a", "received")]
    assert [packet.opcode_name for packet in pair.packets("b")] == ["RC_ACKNOWLEDGE"] * 2
    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS]


def test_random_faults_follow_the_seed() -> None:
    def lost(seed: int) -> list[str]:
        pair = Pair(faults={"a": [{"loss": 0.3}], "b": [{"loss": 0.3}]}, seed=seed, timeout=6)
        for _ in range(10):
            pair.a.post_send(WROpcode.RDMA_WRITE, 8)
        pair.run()
        return [str(entry) for entry in pair.log]

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)


def test_run_stops_at_the_given_time() -> None:
    pair = Pair(delay=10 * US)
    pair.a.post_send(WROpcode.RDMA_WRITE, 8)

    assert pair.run(5 * US) == "until"
    assert (pair.now, pair.a.poll_send_cq()) == (5 * US, [])

    assert pair.run() == "idle"
    assert [entry.time // US for entry in pair.log] == [0, 10, 10, 20]


def test_run_ends_an_endless_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """RNR retry 7 is without end (IBA 9.7.5.2.8), and no receive is posted."""
    monkeypatch.setattr(Pair, "MAXIMUM_FRAMES", 500)
    pair = Pair(min_rnr_timer=1)
    pair.a.post_send(WROpcode.SEND, 8)

    assert pair.run() == "frames"
    assert 490 < len(pair.packets()) < 510


@each_case(
    ("options", "error", "text"),
    [
        ({"mtu": 1000}, VerbsError, "mtu 1000, not one of 256, 512, 1024, 2048, 4096"),
        ({"profile": "rex"}, VerbsError, "'rex'"),
        ({"link": "token ring"}, VerbsError, "'token ring'"),
        ({"faults": {"c": []}}, VerbsError, "faults of c, not a or b"),
        ({"faults": {"b": [{"dorp": 1}]}}, PlanError, r"from.b\[0\].dorp"),
        ({"colour": 1}, VerbsError, "no attribute colour"),
    ],
)
def test_impossible_pair_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Pair(**options)


# The peer.


@pytest.mark.parametrize("link", LINKS)
def test_device_acknowledges_its_peer_over_every_link(link: str) -> None:
    peer = Peer(link=link, peer_psn=0xFFFFFF)

    peer.receive_packet(OpCode.RC_RDMA_WRITE_ONLY, payload=b"first", ack_req=1)
    peer.receive_packet(OpCode.RC_RDMA_WRITE_ONLY, 0, b"again", va=peer.mr.iova + 9, ack_req=1)

    responses = peer.packets()
    assert [(each.opcode_name, each.bth.psn) for each in responses] == [
        ("RC_ACKNOWLEDGE", 0xFFFFFF),
        ("RC_ACKNOWLEDGE", 0),
    ]
    assert all(each.icrc_status() is CrcStatus.GOOD for each in responses)
    assert peer.read(0, 14) == b"first\0\0\0\0again"
    assert peer.transmit() == []


def test_device_accepts_the_response_of_its_peer() -> None:
    peer = Peer(psn=77)
    (request,) = peer.request(WROpcode.RDMA_READ, 6, offset=3, remote_addr=0x6000, rkey=1, wr_id=4)
    assert request.extension(RETH) == RETH(0x6000, 1, 6)

    peer.receive_packet(OpCode.RC_RDMA_READ_RESPONSE_ONLY, payload=b"answer", msn=1)

    assert statuses(peer.poll_send_cq()) == [(4, WCStatus.SUCCESS)]
    assert peer.read(3, 6) == b"answer"


def test_time_passes_only_while_the_test_waits() -> None:
    """4.096 us times 2^8 is 1.05 ms (IBA 9.7.6.1.3)."""
    peer = Peer(timeout=8, retry_cnt=7)
    peer.request(length=8)

    assert (peer.wait(1 * MS), peer.now) == ([], 1 * MS)

    assert [packet.opcode_name for packet in peer.wait(1 * MS)] == ["RC_SEND_ONLY"]
    assert [entry.event for entry in peer.log] == ["sent", "sent"]


def test_wrong_fields_are_sent_as_given() -> None:
    peer = Peer()

    packet = peer.packet(
        OpCode.RC_RDMA_WRITE_ONLY, 5, b"abc", tver=3, dma_len=1 << 20, pad_count=2, padding=b"\7"
    )

    assert (packet.bth.tver, packet.bth.pad_count, packet.bth.psn) == (3, 2, 5)
    assert packet.extension(RETH) == RETH(peer.mr.iova, peer.mr.rkey, 1 << 20)
    assert packet.padding == b"\7"
    assert Packet.parse(packet.build(), strict=False).icrc_status() is CrcStatus.GOOD


def test_field_that_the_packet_does_not_have_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"ack_rek.* a field of RC_SEND_ONLY.*mean ack_req"):
        Peer().packet(OpCode.RC_SEND_ONLY, ack_rek=1)


def test_addresses_and_numbers_are_as_given() -> None:
    peer = Peer(
        qpn=0x123456,
        peer_qpn=0x654321,
        address="192.0.2.2",
        peer_address="192.0.2.1",
        mac=b"\x02ours.",
        peer_mac=b"\x02their",
    )

    (response,) = peer.receive_packet(OpCode.RC_RDMA_WRITE_ONLY, payload=b"x", ack_req=1)

    route = response.route
    assert isinstance(route, RoCEv2Route)
    assert isinstance(route.ip, IPv4)
    assert route.eth is not None
    assert (route.ip.src, route.ip.dst) == (0xC0000202, 0xC0000201)
    assert route.eth.src.to_bytes(6) == b"\x02ours."
    assert route.eth.dst.to_bytes(6) == b"\x02their"
    assert response.bth.dest_qp == 0x654321
    assert peer.qp.number == 0x123456


def test_two_devices_connected_by_hand_carry_a_message() -> None:
    """As a model of a device would be connected to the emulator: frame by frame."""
    one = Peer(qpn=1001, peer_qpn=1002, address="10.0.0.1", peer_address="10.0.0.2", peer_psn=100)
    other = Peer(
        qpn=1002, peer_qpn=1001, address="10.0.0.2", peer_address="10.0.0.1", psn=100, peer_psn=500
    )
    one.write(0, bytes(range(250)) * 10)
    other.post_recv(2500)

    packets = one.request(length=2500)
    receiver, sender = other, one
    while packets:
        packets = [response for packet in packets for response in receiver.receive(packet.build())]
        receiver, sender = sender, receiver

    assert [wc.status for wc in one.poll_send_cq()] == [WCStatus.SUCCESS]
    assert other.read(0, 2500) == bytes(range(250)) * 10


@given(st.lists(frames() | st.binary(max_size=100), max_size=6))
def test_frames_for_other_devices_get_no_response(strange: list[bytes]) -> None:
    peer = Peer()
    for frame in strange:
        peer.receive(frame)
    peer.wait(1 * MS)

    assert peer.packets() == []
    assert peer.qp.state is QPState.RTS


@given(st.data())
def test_device_answers_any_packets_of_its_peer_with_valid_ones(data: st.DataObject) -> None:
    peer = Peer(mtu=256)
    route = peer.packet(OpCode.RC_SEND_ONLY).route
    from_peer = packets(
        route=st.just(route), mtu=256, dest_qp=st.just(0x11), psn=st.integers(98, 104)
    )
    peer.post_recv(1000)

    for packet in data.draw(st.lists(from_peer, max_size=8)):
        peer.receive(packet)
    peer.wait(1 * MS)

    for response in peer.packets():
        aeth = response.extension(AETH)
        assert response.icrc_status() is CrcStatus.GOOD
        assert response.bth.dest_qp == 0x77
        assert aeth is not None
    assert peer.qp.state in (QPState.RTS, QPState.ERR)
