"""Frames that rules make: their fields by hand, their CRCs by `Packet`, their PSNs by captures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.capture import open_capture
from ibwire.impair import PlanError, build_pipe
from ibwire.impair.columns import WINDOW, read
from ibwire.impair.replies import Answering, Partners, PFCAnswer, QueuePairAnswer
from ibwire_layers import OpCode, Packet
from ibwire_layers.headers import AETH, BTH, DETH
from ibwire_layers.outer import PFC, Ethernet, EtherType
from ibwire_layers.packet import CrcStatus
from strategies import ROUTE1, ROUTE4, ROUTE6, ROUTE_LOCAL, damaged, ethernet, packet

SEND, ACK = OpCode.RC_SEND_ONLY, OpCode.RC_ACKNOWLEDGE


def frame_of(
    opcode: int = SEND, qp: int = 0x11, psn: int = 0, extensions: Any = (), route: Any = ROUTE4
) -> Any:
    return Packet(route, BTH(opcode=opcode, dest_qp=qp, psn=psn), extensions).repaired().build()


def ack(qp: Any, psn: Any, msn: int = 0) -> Any:
    return frame_of(ACK, qp, psn, (AETH(syndrome=0x1F, msn=msn),))


def seen(*frames: Any) -> Partners:
    """Partners that have seen frames of the other direction."""
    partners = Partners()
    lengths = np.array([len(each) for each in frames], np.int64)
    data = np.frombuffer(b"".join(frames) + bytes(WINDOW), np.uint8)
    partners.see(read(data, np.cumsum(lengths) - lengths, lengths))
    return partners


# CNP and NAK.


@pytest.mark.parametrize("route", [ROUTE4, ROUTE6], ids=["ipv4", "ipv6"])
def test_cnp_goes_back_to_the_sender(route: Any) -> None:
    answer = QueuePairAnswer(Partners(), to_qp=0x22, dscp=48)(frame_of(psn=7, route=route))

    found = Packet.parse(answer)
    assert (found.bth.opcode, found.bth.dest_qp, found.bth.psn) == (0x81, 0x22, 0)
    assert (found.bth.becn, found.bth.fecn) == (1, 0)
    # IBA annex A17.9: 16 zero bytes behind the BTH.
    assert answer[-20:-4] == bytes(16)  # type: ignore[index]
    assert found.icrc_status() is CrcStatus.GOOD
    assert (found.route.ip.src, found.route.ip.dst) == (route.ip.dst, route.ip.src)
    assert (found.route.eth.src, found.route.eth.dst) == (route.eth.dst, route.eth.src)
    assert (found.route.ip.dscp, found.route.ip.ecn) == (48, 0)


@pytest.mark.parametrize(
    ("code", "timer", "syndrome"),
    [
        ("PSN_SEQUENCE_ERROR", None, 0x60),
        ("REMOTE_ACCESS_ERROR", None, 0x62),
        ("RNR_NAK", None, 0x2C),
        ("RNR_NAK", 5, 0x25),
    ],
)
def test_nak_names_the_psn_of_the_frame(code: str, timer: int | None, syndrome: int) -> None:
    answer = QueuePairAnswer(Partners(), to_qp=0x22, code=code, timer=timer)(frame_of(psn=7))

    found = Packet.parse(answer)
    assert (found.bth.opcode, found.bth.dest_qp, found.bth.psn) == (0x11, 0x22, 7)
    assert found.extension(AETH).syndrome == syndrome
    assert found.icrc_status() is CrcStatus.GOOD


def test_nak_repeats_the_newest_message_number() -> None:
    partners = seen(ack(0x22, 0xFFFFFF, 8), ack(0x22, 1, 9), ack(0x33, 2, 77))

    answer = QueuePairAnswer(partners, to_qp=0x22, code="PSN_SEQUENCE_ERROR")(frame_of(psn=2))

    assert Packet.parse(answer).extension(AETH).msn == 9


def test_answer_over_rocev1_goes_to_the_other_gid() -> None:
    found = Packet.parse(QueuePairAnswer(Partners(), to_qp=1)(frame_of(route=ROUTE1)))

    assert (found.route.grh.sgid, found.route.grh.dgid) == (ROUTE1.grh.dgid, ROUTE1.grh.sgid)
    assert found.icrc_status() is CrcStatus.GOOD


def test_sender_is_known_by_what_it_is_answered() -> None:
    partners = seen(ack(0x22, 0x500000), ack(0x33, 100), frame_of(qp=0x44, psn=100))

    answer = QueuePairAnswer(partners)(frame_of(psn=103))

    assert Packet.parse(answer).bth.dest_qp == 0x33


def test_responder_is_known_by_what_it_is_asked() -> None:
    partners = seen(frame_of(OpCode.RC_RDMA_READ_REQUEST, 0x22, 100), ack(0x33, 102))
    response = frame_of(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE, 0x11, 102)

    assert Packet.parse(QueuePairAnswer(partners)(response)).bth.dest_qp == 0x22


def test_datagram_says_who_sent_it() -> None:
    datagram = frame_of(OpCode.UD_SEND_ONLY, extensions=(DETH(qkey=1, src_qp=0x55),))

    assert Packet.parse(QueuePairAnswer(Partners())(datagram)).bth.dest_qp == 0x55


@pytest.mark.parametrize("others", [(), (ack(0x22, 100), ack(0x33, 101)), (ack(0x22, 0x500000),)])
def test_nobody_is_answered_when_it_is_not_sure_who_asks(others: Any) -> None:
    assert QueuePairAnswer(seen(*others))(frame_of(psn=103)) is None


def test_senders_of_a_capture_are_all_known(captures: Path) -> None:
    """0x36 and 0x6a play: tshark -r captures/rc-pingpong.pcap -T fields -e infiniband.bth.destqp"""
    with open_capture(captures / "rc-pingpong.pcap") as capture:
        packets = [record.data for record in capture.records()]
    to = {
        qp: [p for p in packets if p[36:38] == b"\x12\xb7" and p[49] == qp] for qp in (0x36, 0x6A)
    }

    for qp, other in ((0x36, 0x6A), (0x6A, 0x36)):
        answers = QueuePairAnswer(seen(*to[other]))
        assert {Packet.parse(answers(each)).bth.dest_qp for each in to[qp]} == {other}


def test_memory_of_partners_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partners, "LIMIT", 10)
    partners = seen(*(ack(qp, 0) for qp in range(2, 40)))
    partners.see(read(np.zeros(WINDOW, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)))

    assert partners.msn(5) == 0
    assert QueuePairAnswer(partners)(frame_of()) is None


@pytest.mark.parametrize(
    "frame", [b"", bytes(60), ethernet(bytes(40), EtherType.ARP), packet(ROUTE_LOCAL)]
)
def test_what_is_no_rdma_packet_has_no_answer(frame: Frame) -> None:
    assert QueuePairAnswer(Partners(), to_qp=1)(frame) is None


@given(damaged())
def test_no_frame_makes_an_answer_fail(frame: Any) -> None:
    """What it makes of a damaged packet is right in itself."""
    for make in (
        QueuePairAnswer(Partners(), to_qp=5),
        QueuePairAnswer(seen(ack(0x22, 100)), code="RNR_NAK"),
        PFCAnswer(3),
    ):
        answer = make(frame.data)
        if answer is not None and answer[12:14] != b"\x88\x08":
            assert Packet.parse(answer).icrc_status() is CrcStatus.GOOD


# PFC.


def test_pfc_stops_the_priorities_of_the_neighbour() -> None:
    answer = PFCAnswer([3, 4], 0x1234)(frame_of())

    head = Ethernet.unpack(answer)
    # IEEE 802.1Q annex 36: to 01-80-C2-00-00-01, EtherType 0x8808, opcode 0x0101.
    assert (head.dst, head.src, head.type) == (0x0180C2000001, ROUTE4.eth.dst, 0x8808)
    pause = PFC.unpack(answer, 14)
    assert (pause.opcode, pause.class_enable) == (0x0101, 0x18)
    assert pause.time == (0, 0, 0, 0x1234, 0x1234, 0, 0, 0)
    assert len(answer) == 60


def test_pfc_answers_any_frame_with_addresses() -> None:
    assert PFCAnswer(0)(bytes(14)) is not None
    assert PFCAnswer(0)(bytes(13)) is None


# As rules.


def answered(rule: Any, *frames: Any, partners: Any = None) -> Any:
    """What a rule answers to frames, and what passes."""
    answers: list[Any] = []
    pipe = build_pipe([rule], answering=Answering(answers.append, partners or Partners()))
    passed = [out for now, frame in enumerate(frames) for _, out in pipe(frame, now)]
    return answers, passed, pipe.stages[0]


@pytest.mark.parametrize(
    ("rule", "opcode"),
    [
        ({"cnp": {"psn": 1, "to_qp": 5}}, OpCode.CNP),
        ({"nak": {"psn": 1, "to_qp": 5}}, ACK),
        ({"nak": {"psn": 1, "to_qp": 5, "code": "RNR_NAK", "timer": 1}}, ACK),
    ],
)
def test_rule_answers_its_frame_and_lets_all_pass(rule: Any, opcode: int) -> None:
    frames = [frame_of(psn=n) for n in range(4)]

    answers, passed, stage = answered(rule, *frames)

    assert [Packet.parse(each).bth.opcode for each in answers] == [opcode]
    assert passed == frames
    assert (stage.hits, stage.unanswered) == (1, 0)


def test_pfc_rule_is_for_any_frame() -> None:
    answers, _, stage = answered({"pfc": {"priorities": 3, "nth": 2}}, bytes(60), bytes(60))

    assert len(answers) == stage.hits == 1


def test_frame_without_an_answer_is_counted() -> None:
    answers, passed, stage = answered({"cnp": {"psn": 0}}, frame_of())

    assert answers == [None]
    assert passed == [frame_of()]
    assert (stage.hits, stage.unanswered) == (0, 1)


@each_case(
    ("rule", "where"),
    [
        ({"cnp": {"to_qp": 1 << 24}}, "faults[0].cnp.to_qp"),
        ({"cnp": {"dscp": 64}}, "faults[0].cnp.dscp"),
        ({"cnp": {"code": "INVALID_REQUEST"}}, "faults[0].cnp.code"),
        ({"nak": {"code": "NO"}}, "faults[0].nak.code"),
        ({"nak": {"code": 3}}, "faults[0].nak.code"),
        ({"nak": {"timer": 3}}, "faults[0].nak.timer"),
        ({"nak": {"code": "RNR_NAK", "timer": 32}}, "faults[0].nak.timer"),
        ({"pfc": {}}, "faults[0].pfc"),
        ({"pfc": 1}, "faults[0].pfc"),
        ({"pfc": {"priorities": 8}}, "faults[0].pfc.priorities"),
        ({"pfc": {"priorities": []}}, "faults[0].pfc.priorities"),
        ({"pfc": {"priorities": "3"}}, "faults[0].pfc.priorities"),
        ({"pfc": {"priorities": 1, "quanta": 65536}}, "faults[0].pfc.quanta"),
    ],
)
def test_error_names_the_path_of_the_key(rule: Any, where: str) -> None:
    with pytest.raises(PlanError) as caught:
        answered(rule)

    assert str(caught.value).startswith(f"{where}: ")


@pytest.mark.parametrize("action", ["cnp", "nak", "pfc"])
def test_without_a_second_side_nothing_can_be_answered(action: str) -> None:
    with pytest.raises(PlanError, match=f"faults\\[0\\].{action}: only `ibwire tap` can reply"):
        build_pipe([{action: {"nth": 1}}])


def test_answers_are_checked_also_without_a_plan() -> None:
    with pytest.raises(EncodeError, match="priorities"):
        PFCAnswer(-1)
