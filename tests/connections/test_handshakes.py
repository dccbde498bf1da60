"""Expected queue pairs and PSNs: what the programs printed, what tshark reads, or made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.handshake_frames import (
    NAMES,
    PREAMBLE,
    REP,
    REQ,
    Talk,
    back,
    captured,
    chunks,
    closings_of,
    datagram,
    handshakes_of,
    perftest,
    pingpong,
    qpns,
)
from each_case import each_case
from ibwire.connections import handshakes
from ibwire.connections.cm_messages import received
from ibwire.connections.handshakes import Disconnection, Handshake, Handshakes, Party
from ibwire.dissect import Columns
from ibwire_layers import cm
from ibwire_layers.opcodes import Service
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import IBRoute, Route
from ibwire_layers.schema import Header
from strategies import ROUTE1, ROUTE4, ROUTE6, ROUTE_GLOBAL, ROUTE_LOCAL

# Connection managers.


def test_a_request_and_its_reply_say_who_begins_with_which_psn(captures: Path) -> None:
    [found] = handshakes_of(chunks(captures / "cm-rping.pcap"))

    assert found == Handshake(
        Party("10.77.0.1", 0x92, 0x4BB17F, max_reads=1, rnr_retries=7),
        Party("10.77.0.2", 0x5E, 0xFC17B7, max_reads=1, rnr_retries=7),
        "cm",
        2,
        found.time_ns,
        service=Service.RC,
        mtu=4096,
        timeout=19,
        retries=7,
        flow_control=False,
    )


def test_interleaved_exchanges_are_told_apart(captures: Path) -> None:
    found = handshakes_of(chunks(captures / "cm-ucmatose.pcap"))

    assert qpns(found) == [(0x94, 0x60), (0x95, 0x61), (0x96, 0x62)]
    assert [each.number for each in found] == [6, 8, 10]
    assert [each.one.psn for each in found] == [0xA353FC, 0x3FE2E8, 0xC88CA6]


def test_a_side_limits_the_reads_and_rnr_retries_of_the_other() -> None:
    """IBA 12.6: the initiator depth is at most the responder resources of the other side."""
    [found] = handshakes_of(captured([datagram(REQ), datagram(REP, back(ROUTE4))]))

    assert found.one == Party("10.0.0.1", 0x111, 0xB, max_reads=3, rnr_retries=7)
    assert found.other == Party("10.0.0.2", 0x222, 0xA, max_reads=4, rnr_retries=2)
    assert (found.mtu, found.timeout, found.retries, found.flow_control) == (1024, 14, 5, False)


@each_case(
    ("route", "ends"),
    [
        (ROUTE4, ("10.0.0.1", "10.0.0.2")),
        (ROUTE6, ("2001:db8::1", "2001:db8::2")),
        (ROUTE1, ("2001:db8::1", "2001:db8::2")),
        (ROUTE_LOCAL, ("LID 4", "LID 3")),
        (ROUTE_GLOBAL, ("2001:db8::1", "2001:db8::2")),
    ],
    ids=("RoCEv2", "RoCEv2 over IPv6", "RoCEv1", "InfiniBand", "InfiniBand with GRH"),
)
def test_managers_are_understood_on_every_network(route: Route, ends: tuple[str, str]) -> None:
    link = LinkType.INFINIBAND if isinstance(route, IBRoute) else LinkType.ETHERNET
    frames = [datagram(REQ, route), datagram(REP, back(route))]

    [found] = handshakes_of(captured(frames, link=link))

    assert (found.one.address, found.other.address) == ends


@each_case(
    ("kind", "extended", "service"),
    [(0, 0, Service.RC), (1, 0, Service.UC), (2, 0, Service.RD), (3, 1, Service.XRC), (3, 2, None)],
)
def test_the_request_names_the_service(kind: int, extended: int, service: Service | None) -> None:
    req = replace(REQ, transport_service_type=kind, extended_transport_type=extended)

    [found] = handshakes_of(captured([datagram(req), datagram(REP, back(ROUTE4))]))

    assert found.service is service


def test_the_target_of_an_xrc_connection_stands_in_the_ee_context() -> None:
    req = replace(REQ, transport_service_type=3, extended_transport_type=1)
    rep = replace(REP, local_qpn=0, local_eecn=0x333)

    found = handshakes_of(captured([datagram(req), datagram(rep, back(ROUTE4))]))

    assert qpns(found) == [(0x111, 0x333)]


@pytest.mark.parametrize("order", ["QP", "PQ", "QQPP", "QPPQ"])
def test_order_and_copies_of_messages_make_no_difference(order: str) -> None:
    frames = {"Q": datagram(REQ), "P": datagram(REP, back(ROUTE4))}

    found = handshakes_of(captured(frames[letter] for letter in order))

    assert qpns(found) == [(0x111, 0x222)]


def test_a_communication_id_may_be_used_again() -> None:
    second = replace(REQ, local_qpn=0x444)
    answer = replace(REP, local_qpn=0x555, local_comm_id=9)
    frames = [datagram(REQ), datagram(REP, back(ROUTE4))]
    frames += [datagram(second), datagram(REP, ROUTE4), datagram(answer, back(ROUTE4))]

    assert qpns(handshakes_of(captured(frames))) == [(0x111, 0x222), (0x444, 0x555)]


def test_equal_messages_of_another_transaction_are_another_handshake() -> None:
    """All numbers are used again, as by a program that begins anew."""
    frames = [
        datagram(message, route, transaction=transaction)
        for transaction in (5, 6)
        for message, route in ((REQ, ROUTE4), (REP, back(ROUTE4)))
    ]

    assert [each.number for each in handshakes_of(captured(frames))] == [2, 4]


def test_a_damaged_message_is_not_believed() -> None:
    frame = bytearray(datagram(REQ))
    frame[14 + 20 + 8 + 12 + 8 + 24 + 33] ^= 1  # in the local QPN

    assert handshakes_of(captured([bytes(frame), datagram(REP, back(ROUTE4))])) == []


def test_messages_cut_at_128_bytes_still_say_the_queue_pairs() -> None:
    """66 bytes of the MAD are left: up to the QPN of a REQ, and the most of a REP."""
    frames = [datagram(REQ), datagram(REP, back(ROUTE4))]

    [found] = handshakes_of(captured(frames, snaplen=128))

    assert (found.one.qpn, found.one.psn) == (0x111, 0xB)
    assert (found.other.qpn, found.other.psn) == (0x222, None)
    assert (found.mtu, found.timeout) == (None, None)


def test_a_rejection_says_why(captures: Path) -> None:
    [found] = closings_of(chunks(captures / "cm-reject.pcap"))

    assert found == Disconnection(
        2,
        found.time_ns,
        "10.77.0.2",
        "10.77.0.1",
        None,
        0x98,
        "rejected: invalid service id",
    )


def test_an_unknown_reason_is_a_number() -> None:
    rej = cm.REJ(remote_comm_id=7, reason=999)

    [found] = closings_of(captured([datagram(REQ), datagram(rej, back(ROUTE4))]))

    assert found.reason == "rejected: reason 999"


def test_disconnecting_is_told_once_with_both_queue_pairs(captures: Path) -> None:
    found = closings_of(chunks(captures / "cm-ucmatose.pcap"))

    assert [(each.number, each.src, each.src_qpn, each.dst_qpn) for each in found] == [
        (72, "10.77.0.2", 0x60, 0x94),
        (73, "10.77.0.2", 0x61, 0x95),
        (74, "10.77.0.2", 0x62, 0x96),
    ]
    assert {each.reason for each in found} == {"disconnected"}


def test_a_disconnection_without_its_beginning_names_the_queue_pair_it_is_for() -> None:
    dreq = cm.DREQ(local_comm_id=7, remote_comm_id=8, remote_qpn=0x222)
    drep = cm.DREP(local_comm_id=8, remote_comm_id=7)
    frames = [datagram(dreq), datagram(dreq), datagram(drep, back(ROUTE4))]

    [found] = closings_of(captured(frames))

    assert (found.number, found.src_qpn, found.dst_qpn) == (1, None, 0x222)


def test_a_disconnection_of_which_only_the_reply_was_captured_counts() -> None:
    drep = cm.DREP(local_comm_id=7, remote_comm_id=8)

    [found] = closings_of(
        captured([datagram(REQ), datagram(REP, back(ROUTE4)), datagram(drep)]),
    )

    assert (found.number, found.src_qpn, found.dst_qpn) == (3, 0x111, 0x222)


def test_an_end_may_use_an_id_to_answer_with_which_it_has_asked_before() -> None:
    frames = [datagram(REQ), datagram(REP, back(ROUTE4))]
    frames += [
        datagram(replace(REQ, local_comm_id=3, local_qpn=0x444), back(ROUTE4)),
        datagram(replace(REP, remote_comm_id=3, local_comm_id=7, local_qpn=0x555)),
        datagram(cm.DREQ(local_comm_id=7, remote_comm_id=3, remote_qpn=0x444)),
    ]

    [found] = closings_of(captured(frames))

    assert (found.src_qpn, found.dst_qpn) == (0x555, 0x444)


def test_nothing_is_agreed_with_a_request_that_was_rejected() -> None:
    rej = cm.REJ(remote_comm_id=7, reason=cm.RejectReason.CONSUMER_DEFINED)
    frames = [datagram(REQ), datagram(rej, back(ROUTE4)), datagram(REP, back(ROUTE4))]

    assert handshakes_of(captured(frames)) == []
    assert [each.reason for each in closings_of(captured(frames))] == ["rejected: consumer defined"]


# What holds of all.

SCENES = (*NAMES[:8], "talk")


def scene(name: str, captures: Path) -> list[Columns]:
    """Chunks of one packet each."""
    if name != "talk":
        return chunks(captures / name, 1)[:60]
    talk = Talk().begin()
    for text in (*PREAMBLE, b"3\0"):
        talk.say(0, text).say(1, text)
    for nth in (0, 1, 0, 1):
        talk.say(0, perftest(0x87 + nth)).say(1, perftest(0x53 + nth))
    return [part for whole in captured(talk.frames) for part in _single(whole)]


def _single(columns: Columns) -> list[Columns]:
    return [Columns(part) for part in columns.frames.batch.split(1)]


@pytest.mark.parametrize("name", SCENES)
def test_chunks_make_no_difference(name: str, captures: Path) -> None:
    parts = scene(name, captures)
    if name == "talk":
        assert qpns(handshakes_of(parts)) == [(0x87, 0x53), (0x88, 0x54)]
    else:
        assert handshakes_of(parts) == handshakes_of(chunks(captures / name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_two_parts_merged_know_what_the_whole_knows(name: str, captures: Path) -> None:
    parts = scene(name, captures)
    whole = {frozenset(pair) for pair in qpns(handshakes_of(parts))}
    for border in range(len(parts) + 1):
        one, other = Handshakes(), Handshakes()
        found = [
            each for columns in parts[:border] for each in one.take(columns, received(columns))
        ]
        found += [
            each for columns in parts[border:] for each in other.take(columns, received(columns))
        ]
        found += one.merge(other)
        learnt = {frozenset(pair) for pair in qpns(found)}
        if name == "srq-pingpong.pcap":
            # A line that the border cuts in two is lost, and the order with it.
            assert learnt <= whole
        else:
            assert learnt == whole


def test_a_border_inside_a_line_joins_no_strangers() -> None:
    talk = Talk().begin().say(0, perftest(1)[:30])
    border = len(talk.frames)
    talk.say(0, perftest(1)[30:]).say(1, perftest(2)).say(0, perftest(3))
    parts = [part for whole in captured(talk.frames) for part in _single(whole)]
    one, other = Handshakes(), Handshakes()

    found = [each for columns in parts[:border] for each in one.take(columns, received(columns))]
    found += [each for columns in parts[border:] for each in other.take(columns, received(columns))]
    found += one.merge(other)

    assert {*qpns(found)} <= {(1, 2)}


def test_nobody_listens_to_a_connection_that_has_other_things_to_say() -> None:
    """Above 64 KiB the line in the middle of a segment is none that is looked for."""
    talk = Talk().begin().say(0, pingpong(1))
    for _ in range(60):
        talk.say(0, bytes(1200))
    talk.say(0, b"x\0" + pingpong(3)).say(1, pingpong(2)).say(1, pingpong(4))

    assert qpns(handshakes_of(captured(talk.frames))) == [(1, 2)]


def test_endless_requests_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES", 16)
    monkeypatch.setattr(handshakes, "TCP_CONNECTIONS", 16)
    frames = [datagram(replace(REQ, local_comm_id=nth)) for nth in range(100)]
    frames += [datagram(cm.DREQ(local_comm_id=nth, remote_comm_id=nth)) for nth in range(100)]
    for nth in range(100):
        frames += Talk(30000 + nth).begin().say(0, pingpong(nth + 1)).frames
        frames += Talk(40000, 5000 + nth).say(0, b"MPA ID Req Frame" + bytes(4)).frames
    last = [datagram(replace(REQ, local_comm_id=500)), datagram(REP, back(ROUTE4))]
    last[1] = datagram(replace(REP, remote_comm_id=500), back(ROUTE4))
    listener = Handshakes()
    found = [
        each
        for columns in captured(frames + last)
        for each in listener.take(columns, received(columns))
    ]

    assert qpns(found) == [(0x111, 0x222)]
    values = [getattr(listener, name) for name in dir(listener) if name[:2] != "__"]
    kept: Sequence[Any] = [value for value in values if hasattr(value, "popitem")]
    assert len(kept) == 5
    assert all(kept)
    assert all(len(table) <= 16 for table in kept)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.binary(max_size=40)
            | st.sampled_from(
                [pingpong(1)[:20], perftest(2), b'{"qpn":3,"psn":4', b"6.06" + bytes(12)]
            ),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
    st.integers(30, 200),
)
def test_no_text_is_too_strange(said: list[tuple[int, bytes, int]], snaplen: int) -> None:
    talk = Talk()
    for side, text, gap in said:
        talk.say(side, text)
        talk.next[side] = (talk.next[side] + (0, 0, -5, 70)[gap]) % 2**32

    found = handshakes_of(captured(talk.frames, snaplen=snaplen))

    assert all(each.one.qpn and each.other.qpn for each in found)


@given(st.sampled_from(["REQ", "REP", "REJ", "DREQ", "DREP", "MRA", "RTU"]), st.data())
def test_no_message_is_too_strange(name: str, data: st.DataObject) -> None:
    kind: type[Header] = getattr(cm, name)
    body = data.draw(st.binary(min_size=kind.SIZE, max_size=kind.SIZE))
    frames = [datagram(REQ), datagram(kind.unpack(body)), datagram(kind.unpack(body), back(ROUTE4))]

    found = handshakes_of(captured(frames, snaplen=data.draw(st.integers(60, 400))))

    assert len(found) <= 2
