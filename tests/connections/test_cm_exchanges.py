"""Exchanges of connection managers: which messages belong together, and what became of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capture.handmade import NANOSECONDS, pcap_header, pcap_record
from connections.talk import Talk
from each_case import each_case
from examples import sampled
from ibwire.capture import open_capture
from ibwire.connections import cm_exchanges
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.status import Status
from ibwire.dissect import Columns
from ibwire_layers import cm
from ibwire_layers.mad import MAD, MgmtClass
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from ibwire_layers.schema import Header

CAPTURES = Path(__file__).parents[2] / "captures"
Frames = Sequence[tuple[int, bytes]]

ACTIVE_ID, PASSIVE_ID = 0x1001, 0x2002
PORT_7174 = 0x1061C06
TIMEOUT = 10
"""Code of the CM response timeout: 4.096 us x 2^10 = 4.2 ms."""


def analysis_of(frames: Frames, *, is_part: bool = False) -> Analysis:
    records = (pcap_record(data, time // 10**9, time % 10**9) for time, data in frames)
    analysis = Analysis(is_part=is_part)
    source = io.BytesIO(pcap_header(magic=NANOSECONDS) + b"".join(records))
    with open_capture(source) as reader:
        for batch in reader.batches():
            analysis.take(Columns(batch))
    return analysis


def connections_of(frames: Frames) -> list[Connection]:
    return analysis_of(frames).finish().connections


def exchanged(frames: Frames) -> Connection:
    """The only connection with messages of connection managers."""
    (found,) = [each for each in connections_of(frames) if each.exchanges]
    return found


def read_frames(name: str) -> list[tuple[int, bytes]]:
    with open_capture(CAPTURES / name) as capture:
        return [(record.time_ns, record.data) for record in capture.records()]


class Managers:
    """Two connection managers; end 0 asks."""

    def __init__(self) -> None:
        self.talk = Talk()
        self._psns = [3, 7]
        """Of the next packet of each queue pair 1."""

    def send(self, sender: int, message: Header, ms: float = 1) -> Managers:
        """One message."""
        self.talk.wait(ms * 1000)
        attribute = cm.CMAttribute[type(message).__name__]
        mad = MAD(mgmt_class=MgmtClass.COMM_MGT, attribute_id=attribute, base_version=1)
        data = (mad.pack() + message.pack()).ljust(256, b"\0")

        def fill(packet: Packet) -> Packet:
            return Packet(packet.route, packet.bth, packet.extensions, data).repaired()

        psn = self._psns[sender]
        self._psns[sender] += 1
        self.talk.ask(OpCode.UD_SEND_ONLY, psn, 256, sender=sender, dest_qp=1, change=fill)
        return self

    def repeated(self, ms: float = 1) -> Managers:
        """The last packet once more, as a network or a mirror repeats it."""
        time_ns, frame = self.talk.frames[-1]
        self.talk.frames.append((time_ns + int(ms * 1e6), frame))
        self.talk.wait(ms * 1000)
        return self

    def asks(self, ms: float = 1, **fields: Any) -> Managers:
        """A REQ."""
        given = {
            "local_comm_id": ACTIVE_ID,
            "service_id": PORT_7174,
            "local_qpn": 0x22,
            "starting_psn": 5,
            "remote_cm_response_timeout": TIMEOUT,
        }
        return self.send(0, cm.REQ(**{**given, **fields}), ms)

    def accepts(self, ms: float = 1) -> Managers:
        """A REP."""
        ids = {"local_comm_id": PASSIVE_ID, "remote_comm_id": ACTIVE_ID}
        return self.send(1, cm.REP(**ids, local_qpn=0x11, starting_psn=9), ms)

    def completes(self) -> Managers:
        """An RTU."""
        return self.send(0, cm.RTU(local_comm_id=ACTIVE_ID, remote_comm_id=PASSIVE_ID))

    @property
    def frames(self) -> Frames:
        return self.talk.frames


def test_a_rejected_connection_names_the_reason() -> None:
    connection = exchanged(read_frames("cm-reject.pcap"))

    assert str(connection.status) == "cm-rejected(invalid-service-id)"
    assert [each.name for each in connection.exchanges[0].messages] == ["REQ", "REJ"]
    assert connection.exchanges[0].port == 7174


def test_messages_are_given_to_the_connection_with_their_queue_pairs() -> None:
    """Three connections at once: REQ, REP, RTU, DREQ and DREP of each (tshark)."""
    found = [each for each in connections_of(read_frames("cm-ucmatose.pcap")) if each.exchanges]

    assert len(found) == 3
    assert all(each.has_packets and str(each.status) == "ok" for each in found)
    assert {each.exchanges[0].names() for each in found} == {"REQ REP RTU DREQ DREP"}


@each_case("cut", sampled(range(1, 40), 3))
def test_every_part_of_a_handshake_belongs_to_one_connection(cut: int) -> None:
    """A capture that begins at any frame of rping, over the handshake and behind it."""
    for frames in (read_frames("cm-rping.pcap")[:cut], read_frames("cm-rping.pcap")[cut:]):
        found = [each for each in connections_of(frames) if each.exchanges]
        assert len(found) <= 1
        assert all(each.status.status is not Status.CM_REJECTED for each in found)


def ended() -> Managers:
    """A connection whose active side sends a DREQ."""
    return Managers().asks().accepts().completes().send(0, cm.DREQ(ACTIVE_ID, PASSIVE_ID))


@each_case(
    ("managers", "status"),
    [
        (Managers().asks(), "ok"),
        (Managers().asks().asks(5), "unanswered"),
        # Only one direction is captured: an RTU is sent for a REP (IBA 12.9.8).
        (Managers().asks().completes(), "ok"),
        (Managers().asks().asks(5).completes(), "recovered"),
        (Managers().asks().accepts().completes(), "ok"),
        (Managers().asks().asks(5).accepts().completes(), "recovered"),
        (Managers().asks().accepts().accepts(5), "unresolved"),
        (
            Managers().asks().send(1, cm.MRA(PASSIVE_ID, ACTIVE_ID, service_timeout=10)),
            "ok",
        ),
        (
            Managers()
            .asks()
            .accepts()
            .send(0, cm.REJ(ACTIVE_ID, PASSIVE_ID, reason=cm.RejectReason.CONSUMER_DEFINED)),
            "cm-rejected(consumer-defined)",
        ),
        (Managers().asks().send(1, cm.REJ(0, ACTIVE_ID, reason=99)), "cm-rejected(code-99)"),
        (ended(), "ok"),
        (ended().send(1, cm.DREP(PASSIVE_ID, ACTIVE_ID)), "ok"),
        (ended().send(0, cm.DREQ(ACTIVE_ID, PASSIVE_ID)), "unresolved"),
        (
            ended().send(0, cm.DREQ(ACTIVE_ID, PASSIVE_ID)).send(1, cm.DREP(PASSIVE_ID, ACTIVE_ID)),
            "recovered",
        ),
        (Managers().send(0, cm.SIDR_REQ(7, service_id=PORT_7174)), "ok"),
        (
            Managers()
            .send(0, cm.SIDR_REQ(7, service_id=PORT_7174))
            .send(1, cm.SIDR_REP(7, status=cm.SIDRStatus.NO_QP)),
            "cm-rejected(sidr-no-qp)",
        ),
    ],
)
def test_status_of_an_exchange(managers: Managers, status: str) -> None:
    assert str(exchanged(managers.frames).status) == status


@pytest.mark.parametrize(
    "managers",
    [
        Managers().asks().repeated(),
        Managers().asks().repeated().repeated().accepts().repeated().completes().repeated(),
        Managers().asks().accepts().repeated(),
        Managers().send(0, cm.SIDR_REQ(7, service_id=PORT_7174)).repeated(),
    ],
)
def test_a_duplicated_packet_is_no_retransmission(managers: Managers) -> None:
    """Its PSN is the same: that of a retransmission is the next one of queue pair 1."""
    for cut in range(len(managers.frames)):
        found = analysis_of(managers.frames[:cut], is_part=True)
        found.merge(analysis_of(managers.frames[cut:], is_part=True))
        (connection,) = [each for each in found.finish().connections if each.exchanges]

        assert str(connection.status) == "ok"
        assert set(connection.exchanges[0].counts.values()) <= {0, 1}


def test_the_same_packet_long_after_the_first_is_a_retransmission() -> None:
    """The REQ says that it waits 4.3 s (4.096 us x 2^20)."""
    managers = Managers().asks(remote_cm_response_timeout=20).repeated(4000)

    assert str(exchanged(managers.frames).status) == "unanswered"


def test_queue_pair_1_counts_its_packets() -> None:
    """Three requests, which differ in their communication IDs: PSNs 9, 10, 11 (tshark)."""
    frames = read_frames("cm-ucmatose.pcap")[2:5]

    assert [int.from_bytes(frame[51:54]) for _, frame in frames] == [9, 10, 11]


@pytest.mark.parametrize(("code", "text"), [(0, "4.096 us"), (10, "4.1943 ms"), (21, "8.58993 s")])
def test_an_mra_says_how_long_its_sender_needs(code: int, text: str) -> None:
    """4.096 us x 2^code, by hand (layers/ibwire_layers/cm.py)."""
    mra = cm.MRA(PASSIVE_ID, ACTIVE_ID, service_timeout=code)
    messages = exchanged(Managers().asks().send(1, mra).frames).exchanges[0].messages

    assert messages[-1].about == f"needs up to {text}"


def test_a_request_is_unanswered_when_its_time_is_over() -> None:
    """The REQ says that it waits 4.2 ms."""
    late = Managers().asks()
    late.talk.wait(6_000)
    late.talk.ask(OpCode.UC_SEND_ONLY, 0, 64)
    early = Managers().asks()
    early.talk.wait(3_000)
    early.talk.ask(OpCode.UC_SEND_ONLY, 0, 64)

    assert exchanged(late.frames).status.status is Status.UNANSWERED
    assert exchanged(early.frames).status.status is Status.OK


def test_a_communication_id_that_is_used_again_begins_another_exchange() -> None:
    managers = Managers().asks().send(1, cm.REJ(0, ACTIVE_ID, reason=8)).asks(starting_psn=77)

    found = [each for each in connections_of(managers.frames) if each.exchanges]
    assert [str(each.status) for each in found] == ["cm-rejected(invalid-service-id)", "ok"]


def test_an_exchange_over_two_captures_is_one() -> None:
    frames = Managers().asks().accepts().completes().frames
    for cut in (1, 2):
        whole = analysis_of(frames[:cut], is_part=True)
        whole.merge(analysis_of(frames[cut:], is_part=True))

        (connection,) = [each for each in whole.finish().connections if each.exchanges]
        assert connection.exchanges[0].names() == "REQ REP RTU"
        assert connection.exchanges[0].qpns == [0x22, 0x11]


def told(analysis: Analysis) -> list[tuple[Any, ...]]:
    """What is said of each exchange, and of the connection that it belongs to."""
    return [
        (
            *each.ends,
            str(each.status),
            exchange.addresses,
            exchange.comm_ids,
            [(message.name, message.sender, message.again) for message in exchange.messages],
        )
        for each in analysis.finish().connections
        for exchange in each.exchanges
    ]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("sender", [0, 1])
def test_the_end_of_a_connection_in_a_later_capture_belongs_to_it(sender: int, times: int) -> None:
    """Only the communication IDs say then which side was the active one."""
    managers = Managers().asks().accepts().completes()
    ids = [(ACTIVE_ID, PASSIVE_ID), (PASSIVE_ID, ACTIVE_ID)]
    for _ in range(times):
        managers.send(sender, cm.DREQ(*ids[sender]))
    managers.send(1 - sender, cm.DREP(*ids[1 - sender]))
    frames = managers.frames
    expected = told(analysis_of(frames))

    assert [message for message, *_ in expected[0][-1]] == [
        "REQ", "REP", "RTU", *["DREQ"] * times, "DREP"
    ]  # fmt: skip
    for cut in range(1, len(frames)):
        whole = analysis_of(frames[:cut], is_part=True)
        whole.merge(analysis_of(frames[cut:], is_part=True))
        assert told(whole) == expected


@pytest.mark.parametrize("name", sampled(["cm-rping.pcap", "cm-ucmatose.pcap"], 2))
def test_recorded_exchanges_over_two_captures_are_those_of_one(name: str) -> None:
    frames = read_frames(name)
    expected = told(analysis_of(frames))

    for cut in range(1, len(frames), 3):
        whole = analysis_of(frames[:cut], is_part=True)
        whole.merge(analysis_of(frames[cut:], is_part=True))
        assert told(whole) == expected


def test_captures_together_keep_as_many_exchanges_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests with one communication ID in each of two: one is open, the rest are over."""
    monkeypatch.setattr(cm_exchanges, "EXCHANGES", 4)
    managers = Managers()
    for psn in range(12):
        managers.asks(starting_psn=psn)
    whole = analysis_of(managers.frames[:6], is_part=True)
    whole.merge(analysis_of(managers.frames[6:], is_part=True))

    for analysis in (whole, analysis_of(managers.frames)):
        found = [each for each in analysis.finish().connections if each.exchanges]

        assert len(found) == 4 + 1


def test_a_flood_of_messages_keeps_few() -> None:
    managers = Managers()
    for _ in range(100):
        managers.asks()

    exchange = exchanged(managers.frames).exchanges[0]
    assert exchange.requests == 100
    assert len(exchange.messages) == 32
    assert exchange.to_json()["more_messages"] == 68


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_message_that_was_cut_is_left_out_or_read_as_far_as_it_goes(step: int) -> None:
    for number, (_, frame) in enumerate(read_frames("cm-reject.pcap")):
        for size in range(60 + number % step, len(frame), step):
            connections_of([(0, frame[:size])])
