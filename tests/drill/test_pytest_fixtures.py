"""What the fixtures give a test: a pair of devices, and a device whose peer is the test."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import VerbsError
from ibwire.base.units import MS, US
from ibwire.impair import PlanError
from ibwire.rc import QPState, QPType, WCStatus, WROpcode
from ibwire.strategies import frames, packets
from ibwire.testing import Pair, Peer
from ibwire_layers import OpCode
from ibwire_layers.headers import AETH, RETH
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route

LINKS = {"rocev2": RoCEv2Route, "rocev1": RoCEv1Route, "ib": IBRoute}

GRH_ROOM = 40
"""Bytes before a datagram in its receive buffer (IBA 11.4.1.2)."""


# The pair.


@pytest.mark.parametrize(
    ("link", "qp_type"), list(product(LINKS, (QPType.RC, QPType.UC, QPType.UD))), ids=str
)
def test_pair_carries_a_message_over_every_link_and_service(link: str, qp_type: QPType) -> None:
    pair = Pair(link=link, qp_type=qp_type, mtu=512)
    pair.a.write(8, b"hello")
    pair.b.post_recv(100, offset=200, wr_id=7)

    pair.a.post_send(WROpcode.SEND, 5, offset=8, wr_id=6)
    pair.run()

    assert [(wc.wr_id, wc.status) for wc in pair.a.sent()] == [(6, WCStatus.SUCCESS)]
    assert [wc.wr_id for wc in pair.b.received()] == [7]
    room = GRH_ROOM if qp_type is QPType.UD else 0
    assert pair.b.read(200 + room, 5) == b"hello"
    assert {type(packet.route) for packet in pair.packets()} == {LINKS[link]}


def test_pair_talks_both_ways_and_completions_are_given_once() -> None:
    pair = Pair(psn_a=5, psn_b=0xFFFFFF)
    pair.b.write(0, b"there")

    pair.a.post_send(WROpcode.RDMA_READ, 5, offset=50)
    pair.b.post_send(WROpcode.RDMA_WRITE, 3, remote=90)
    pair.run()

    assert pair.a.read(50, 5) == b"there"
    assert pair.a.read(90, 3) == b"the"
    assert (len(pair.a.sent()), len(pair.b.sent())) == (1, 1)
    assert pair.a.sent() == []
    assert {packet.bth.psn for packet in pair.packets("a")} == {5, 0xFFFFFF}


def test_faults_are_for_what_one_end_sends_and_what_is_lost_never_arrives() -> None:
    pair = Pair(faults={"b": [{"drop": {"nth": 1}}]}, timeout=8)

    pair.a.post_send(WROpcode.RDMA_WRITE, 8)
    pair.run()

    assert [(seen.device, seen.event) for seen in pair.log] == [
        *(("a", "sent"), ("b", "received"), ("b", "sent")),
        *(("a", "sent"), ("b", "received"), ("b", "sent"), ("a", "received")),
    ]
    assert [packet.opcode_name for packet in pair.packets("b")] == ["RC_ACKNOWLEDGE"] * 2
    assert [wc.status for wc in pair.a.sent()] == [WCStatus.SUCCESS]


def test_random_faults_are_those_of_the_seed() -> None:
    def lost(seed: int) -> list[str]:
        pair = Pair(faults={"a": [{"loss": 0.3}], "b": [{"loss": 0.3}]}, seed=seed, timeout=6)
        for _ in range(10):
            pair.a.post_send(WROpcode.RDMA_WRITE, 8)
        pair.run()
        return [str(seen) for seen in pair.log]

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)


def test_time_goes_on_as_far_as_it_is_let() -> None:
    pair = Pair(delay=10 * US)
    pair.a.post_send(WROpcode.RDMA_WRITE, 8)

    assert pair.run(5 * US) == "until"
    assert (pair.now, pair.a.sent()) == (5 * US, [])

    assert pair.run() == "idle"
    assert [seen.time // US for seen in pair.log] == [0, 10, 10, 20]


def test_run_ends_also_where_two_would_talk_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """RNR retry 7 is for ever (IBA 9.7.5.2.8), and no receive comes."""
    monkeypatch.setattr(Pair, "MAXIMUM_FRAMES", 500)
    pair = Pair(min_rnr_timer=1)
    pair.a.post_send(WROpcode.SEND, 8)

    assert pair.run() == "frames"
    assert 490 < len(pair.packets()) < 510


@pytest.mark.parametrize(
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
def test_pair_that_cannot_be_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Pair(**options)


# The peer.


@pytest.mark.parametrize("link", LINKS)
def test_device_acknowledges_what_its_peer_says_over_every_link(link: str) -> None:
    peer = Peer(link=link, peer_psn=0xFFFFFF)

    peer.say(peer.packet(OpCode.RC_RDMA_WRITE_ONLY, payload=b"first", ack_req=1))
    peer.say(peer.packet(OpCode.RC_RDMA_WRITE_ONLY, 0, b"again", va=peer.mr.iova + 9, ack_req=1))

    answers = peer.heard()
    assert [(answer.opcode_name, answer.bth.psn) for answer in answers] == [
        ("RC_ACKNOWLEDGE", 0xFFFFFF),
        ("RC_ACKNOWLEDGE", 0),
    ]
    assert all(answer.icrc_status() is CrcStatus.GOOD for answer in answers)
    assert peer.read(0, 14) == b"first\0\0\0\0again"
    assert peer.heard() == []


def test_peer_answers_what_the_device_asks() -> None:
    peer = Peer(psn=77)
    peer.post_send(WROpcode.RDMA_READ, 6, offset=3, remote_addr=0x5000, rkey=0x99, wr_id=4)
    (asked,) = peer.heard()
    assert asked.extension(RETH) == RETH(0x5000, 0x99, 6)

    peer.say(peer.packet(OpCode.RC_RDMA_READ_RESPONSE_ONLY, payload=b"answer", msn=1))

    assert [(wc.wr_id, wc.status) for wc in peer.sent()] == [(4, WCStatus.SUCCESS)]
    assert peer.read(3, 6) == b"answer"


def test_time_stands_still_but_while_the_test_waits() -> None:
    """4.096 us times 2^8 is 1.05 ms (IBA 9.7.6.1.3)."""
    peer = Peer(timeout=8, retry_cnt=7)
    peer.post_send(length=8)
    peer.heard()

    peer.wait(1 * MS)
    assert (peer.now, peer.heard()) == (1 * MS, [])

    peer.wait(1 * MS)
    assert [packet.opcode_name for packet in peer.heard()] == ["RC_SEND_ONLY"]
    assert [seen.event for seen in peer.log] == ["sent", "sent"]


def test_wrong_fields_are_said_as_they_are() -> None:
    peer = Peer()

    packet = peer.packet(
        OpCode.RC_RDMA_WRITE_ONLY, 5, b"abc", tver=3, dma_len=1 << 20, pad_count=2, padding=b"\7"
    )

    assert (packet.bth.tver, packet.bth.pad_count, packet.bth.psn) == (3, 2, 5)
    assert packet.extension(RETH) == RETH(peer.mr.iova, peer.mr.rkey, 1 << 20)
    assert packet.padding == b"\7"
    assert Packet.parse(packet.build(), strict=False).icrc_status() is CrcStatus.GOOD


def test_field_that_the_packet_does_not_have_is_refused() -> None:
    with pytest.raises(VerbsError, match="RC_SEND_ONLY has no rkee, va, only ack_req, becn"):
        Peer().packet(OpCode.RC_SEND_ONLY, rkee=1, va=2)


def test_addresses_and_numbers_are_as_asked_for() -> None:
    peer = Peer(
        qpn=0x123456,
        peer_qpn=0x654321,
        address="192.0.2.2",
        peer_address="192.0.2.1",
        mac=b"\x02ours.",
        peer_mac=b"\x02their",
    )

    peer.say(peer.packet(OpCode.RC_RDMA_WRITE_ONLY, payload=b"x", ack_req=1))

    (answer,) = peer.heard()
    route = answer.route
    assert isinstance(route, RoCEv2Route)
    assert isinstance(route.ip, IPv4)
    assert route.eth is not None
    assert (route.ip.src, route.ip.dst) == (0xC0000202, 0xC0000201)
    assert route.eth.src.to_bytes(6) == b"\x02ours."
    assert route.eth.dst.to_bytes(6) == b"\x02their"
    assert answer.bth.dest_qp == 0x654321
    assert peer.qp.number == 0x123456


def test_two_devices_connected_by_hand_carry_a_message() -> None:
    """As a model of a device would be connected to the emulator: frame by frame."""
    one = Peer(qpn=1001, peer_qpn=1002, address="10.0.0.1", peer_address="10.0.0.2", peer_psn=100)
    other = Peer(
        qpn=1002, peer_qpn=1001, address="10.0.0.2", peer_address="10.0.0.1", psn=100, peer_psn=500
    )
    one.write(0, bytes(range(250)) * 10)
    other.post_recv(2500)

    one.post_send(length=2500)
    for _ in range(20):
        for sender, receiver in ((one, other), (other, one)):
            for packet in sender.heard():
                receiver.say(packet.build())

    assert [wc.status for wc in one.sent()] == [WCStatus.SUCCESS]
    assert other.read(0, 2500) == bytes(range(250)) * 10


@given(st.lists(frames() | st.binary(max_size=100), max_size=6))
def test_nothing_that_is_not_for_the_device_is_answered(said: list[bytes]) -> None:
    peer = Peer()
    for frame in said:
        peer.say(frame)
    peer.wait(1 * MS)

    assert peer.heard() == []
    assert peer.qp.state is QPState.RTS


@given(st.data())
def test_device_holds_out_against_any_packets_from_its_peer(data: st.DataObject) -> None:
    peer = Peer(mtu=256)
    route = peer.packet(OpCode.RC_SEND_ONLY).route
    from_peer = packets(
        route=st.just(route), mtu=256, dest_qp=st.just(0x11), psn=st.integers(98, 104)
    )
    peer.post_recv(1000)

    for packet in data.draw(st.lists(from_peer, max_size=8)):
        peer.say(packet)
    peer.wait(1 * MS)

    for answer in peer.heard():
        aeth = answer.extension(AETH)
        assert answer.icrc_status() is CrcStatus.GOOD
        assert answer.bth.dest_qp == 0x77
        assert aeth is not None
    assert peer.qp.state in (QPState.RTS, QPState.ERR)
