"""Which flows are the two directions of one connection."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pytest

from connections.talk import QPNS, Talk
from emulated_traffic import Stamped, analysed
from ibwire.connections import pairing
from ibwire.connections.flow import FlowKey, FlowKeys
from ibwire.connections.packets import ROW, Rows, TransportPacket
from ibwire.connections.pairing import PAIRINGS, Pair
from ibwire_layers.opcodes import OpCode, Service

A, B = "10.0.0.1", "10.0.0.2"


class Flow(NamedTuple):
    """A flow that waits, with its packets."""

    number: int
    key: FlowKey
    packets: list[TransportPacket]


def asking(
    flow: int,
    *psns: int,
    port: int = 1,
    src: str = A,
    number: int = 1,
    opcode: OpCode = OpCode.RC_SEND_ONLY,
) -> Flow:
    """A flow of requests, which come before all responses."""
    blank = TransportPacket._make(0 for _ in TransportPacket._fields)
    blank = blank._replace(flow=flow, port=port, number=number + flow, opcode=opcode)
    key = FlowKey(src, B if src == A else A, 100 + flow, Service.RC)
    return Flow(flow, key, [blank._replace(psn=psn) for psn in psns])


def answering(flow: int, *psns: int, port: int = 1, src: str = B) -> Flow:
    """A flow of responses."""
    return asking(flow, *psns, port=port, src=src, number=100, opcode=OpCode.RC_ACKNOWLEDGE)


def pair(flows: list[Flow], handshakes: dict[FlowKey, int]) -> list[Pair]:
    """The pairs among these flows."""
    packets = sorted((each for flow in flows for each in flow.packets), key=attrgetter("number"))
    keys = [FlowKey("", "", 0, Service.RC)] * (1 + max(flow.number for flow in flows))
    for flow in flows:
        keys[flow.number] = flow.key
    rows = Rows(np.array([tuple(each) for each in packets], ROW))
    known = FlowKeys()
    for key in keys:
        known.append(key)
    return pairing.pair(known, rows, handshakes)


def test_a_flow_that_answers_the_psns_of_one_other_belongs_to_it() -> None:
    flows = [asking(0, 10, 11), asking(1, 500, 501), answering(2, 500), answering(3, 10, 11)]

    assert sorted(pair(flows, {})) == [Pair(2, 1, "responses"), Pair(3, 0, "responses")]


def test_where_several_fit_the_source_port_decides() -> None:
    flows = [
        asking(0, 10, port=7),
        asking(1, 10, port=8),
        answering(2, 10, port=8),
        answering(3, 10, port=7),
    ]

    assert sorted(pair(flows, {})) == [Pair(2, 1, "port"), Pair(3, 0, "port")]


def test_responses_of_another_service_belong_to_no_request() -> None:
    """XRC responses, whose requests are not in the capture, have the PSNs of RC requests."""
    one = asking(0, 10, 11, 12)
    other = asking(1, 10, 11, src=B, number=100, opcode=OpCode.XRC_ACKNOWLEDGE)
    other = other._replace(key=other.key._replace(service=Service.XRC))

    assert pair([one, other], {}) == []


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (OpCode.RC_RDMA_READ_REQUEST, OpCode.RC_ATOMIC_ACKNOWLEDGE),
        (OpCode.RC_FETCH_ADD, OpCode.RC_RDMA_READ_RESPONSE_ONLY),
        (OpCode.RC_SEND_ONLY, OpCode.RC_ATOMIC_ACKNOWLEDGE),
        (OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_READ_RESPONSE_ONLY),
    ],
)
def test_responses_of_another_kind_than_was_asked_for_are_no_evidence(
    asked: OpCode, answered: OpCode
) -> None:
    """Of the responses, whose PSNs fit, only the first is one (IBA 9.7.5.1)."""
    requests, responses = asking(0, 10, 11, 12), answering(1, 10, 11, 12)
    for each in (1, 2):
        requests.packets[each] = requests.packets[each]._replace(opcode=asked)
        responses.packets[each] = responses.packets[each]._replace(opcode=answered)

    assert [each.how for each in pair([requests, responses], {})] == ["guess"]


def test_of_several_flows_that_fit_the_one_with_an_odd_response_is_out() -> None:
    """Two connections that begin at the same PSN: the second READs where the first SENDs."""
    one, other = asking(0, 10, 11, 12), asking(1, 10, 11, 12)
    other.packets[2] = other.packets[2]._replace(opcode=OpCode.RC_RDMA_READ_REQUEST)
    answer = answering(2, 10, 11, 12)
    answer.packets[2] = answer.packets[2]._replace(opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY)

    assert pair([one, other, answer], {}) == [Pair(2, 1, "responses")]


def test_where_nothing_decides_it_is_a_guess_and_each_has_one_partner() -> None:
    flows = [asking(0, 10), asking(1, 10), answering(2, 10), answering(3, 10)]

    pairs = pair(flows, {})

    assert {each.how for each in pairs} == {"guess"}
    assert {each.one for each in pairs} == {2, 3}
    assert {each.other for each in pairs} == {0, 1}


def test_the_better_fit_comes_first() -> None:
    """Flow 2 answers both, flow 3 only one of them, with more of its packets."""
    flows = [asking(0, 10, 11, 12), asking(1, 10), answering(2, 10), answering(3, 10, 11, 12)]

    pairs = {each.one: each.other for each in pair(flows, {})}

    assert pairs == {3: 0, 2: 1}


def test_a_nak_of_a_packet_that_was_never_seen_is_near() -> None:
    flows = [asking(0, 11, 12), asking(1, 90_000), answering(2, 10)]

    assert pair(flows, {}) == [Pair(2, 0, "guess")]


def test_what_is_far_away_or_goes_elsewhere_is_no_partner() -> None:
    assert pair([asking(0, 10), answering(1, 90_000)], {}) == []
    assert pair([asking(0, 10), answering(1, 10, src=A)], {}) == []


def test_what_was_agreed_comes_before_what_fits() -> None:
    flows = [asking(0, 10), asking(1, 10), answering(2, 10)]
    agreed = {flows[1].key: flows[2].key.dst_qpn, flows[2].key: flows[1].key.dst_qpn}

    assert pair(flows, agreed) == [Pair(1, 2, "handshake")]


def test_a_flow_whose_partner_was_agreed_upon_takes_no_other() -> None:
    flows = [asking(0, 10), answering(1, 10)]

    assert pair(flows, {flows[0].key: 999}) == []


def test_datagrams_name_both() -> None:
    there = FlowKey(A, B, 5, Service.UD, 6)
    back = FlowKey(B, A, 6, Service.UD, 5)
    flows = [asking(0, 1)._replace(key=there), asking(1, 1)._replace(key=back)]

    assert pair(flows, {}) == [Pair(0, 1, "named")]


def test_best_evidence_comes_first() -> None:
    assert list(PAIRINGS) == ["named", "handshake", "responses", "port", "guess", "none"]


# In a capture.


def test_both_ends_and_how_they_were_paired_are_told() -> None:
    talk = Talk()
    talk.sends(10, 3)

    (connection,) = analysed(talk.frames).connections

    assert [end.qpn for end in connection.ends] == list(QPNS)
    assert [end.address for end in connection.ends] == [A, B]
    assert connection.pairing == "responses"


def test_end_0_sent_the_first_packet() -> None:
    talk = Talk()
    talk.sends(10, 3)

    (connection,) = analysed(talk.frames[1:]).connections

    assert [end.address for end in connection.ends] == [B, A]
    assert connection.directions[1].messages == {"SEND": 2}


def test_one_direction_alone_has_an_end_without_a_queue_pair() -> None:
    talk = Talk()
    talk.sends(10, 3)

    (connection,) = analysed(talk.frames[::2]).connections

    assert [end.qpn for end in connection.ends] == [None, QPNS[1]]
    assert connection.pairing == "none"
    assert set(connection.not_observable(0)) >= {"naks", "rnr_naks", "timeouts", "implied_naks"}


@pytest.mark.parametrize("service", [OpCode.UC_SEND_ONLY, OpCode.RC_SEND_ONLY])
def test_requests_both_ways_alone_pair_nothing(service: OpCode) -> None:
    talk = Talk()
    for psn in range(4):
        talk.ask(service, psn, 64)
        talk.ask(service, 0x500000 + psn, 64, sender=1)

    found = analysed(talk.frames)

    assert [each.pairing for each in found.connections] == ["none", "none"]


@pytest.mark.slow
def test_20_000_connections_in_one_capture_are_all_there() -> None:
    talk = Talk()
    talk.sends(10, 1)
    (_, ask), (_, answer) = talk.frames
    frames: list[Stamped] = []
    for number in range(20_000):
        qpn = (number + 1).to_bytes(3, "big")
        port = (number % 60_000 + 1).to_bytes(2, "big")
        psn = (number * 83 & 0xFFFFFF).to_bytes(3, "big")
        for frame in (ask, answer):
            head = frame[:34] + port + frame[36:47] + qpn + frame[50:51] + psn
            frames.append((len(frames) * 100, head + frame[54:]))

    found = analysed(frames)

    assert len(found.connections) == 20_000
    assert {each.pairing for each in found.connections} <= {"responses", "port"}
    assert sum(each.directions[0].completed for each in found.connections) == 20_000
    assert [each.number for each in found.connections] == list(range(1, 20_001))


def test_responses_of_a_read_answer_no_write_of_the_same_psn() -> None:
    """Found by a reviewer: two queue pairs that begin with the same PSN, in `psn-wrap`."""
    asker = asking(0, 10, opcode=OpCode.RC_RDMA_READ_REQUEST)
    read = asking(3, 10, src=B, number=101, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY)
    flows = [asking(1, 10), asker, answering(2, 10), read]

    assert sorted(pair(flows, {})) == [Pair(2, 1, "responses"), Pair(3, 0, "responses")]


def test_a_response_answers_nothing_that_comes_later() -> None:
    late = asking(0, 10, number=500)

    assert [each.how for each in pair([late, answering(2, 10)], {})] == ["guess"]


def test_with_equal_psns_the_request_just_before_is_taken() -> None:
    flows = [asking(5, 10), asking(6, 10), answering(7, 10)]

    assert pair(flows, {}) == [Pair(7, 6, "guess")]
