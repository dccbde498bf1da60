"""The verdict on each packet and the cause of each resend, for conversations made by hand."""

from __future__ import annotations

import pytest

from connections.talk import RKEY, VA, Talk
from each_case import each_case
from emulated_traffic import Stamped, analysed, feed
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind, Message
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.summary import Summary
from ibwire.connections.tracker import JUMP, LIMIT, RequestTracker
from ibwire_layers.opcodes import OpCode

NAK_SEQUENCE, NAK_ACCESS = 0x60, 0x62
RNR_1280_US = 0x2E
"""Receiver not ready, timer code 14: 1.28 ms (IBA table 45)."""
ONLY, FIRST, MIDDLE, LAST = (
    OpCode.RC_SEND_ONLY,
    OpCode.RC_SEND_FIRST,
    OpCode.RC_SEND_MIDDLE,
    OpCode.RC_SEND_LAST,
)
READ, ATOMIC = OpCode.RC_RDMA_READ_REQUEST, OpCode.RC_FETCH_ADD
R_FIRST, R_MIDDLE, R_LAST, R_ONLY = range(0x0D, 0x11)
ATOMIC_ACK = OpCode.RC_ATOMIC_ACKNOWLEDGE
MTU = 1024


class Watcher:
    """Hears of everything."""

    def __init__(self) -> None:
        self.verdicts: list[str] = []
        self.events: list[FlowEvent] = []
        self.messages: list[Message] = []
        self.others = 0

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        self.verdicts.append(status.value)

    response = request

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        self.others += 1

    def event(self, event: FlowEvent) -> None:
        self.events.append(event)

    def message(self, message: Message) -> None:
        self.messages.append(message)

    def of(self, kind: FlowEventKind) -> list[FlowEvent]:
        return [event for event in self.events if event.kind is kind]


def heard(talk: Talk | list[Stamped]) -> tuple[Connection, Watcher]:
    """The one connection of a conversation, and its events."""
    watcher = Watcher()
    found = analysed(talk.frames if isinstance(talk, Talk) else talk, watcher)
    (connection,) = found.connections
    return connection, watcher


def only(events: list[FlowEvent]) -> FlowEvent:
    (event,) = events
    return event


def counts(connection: Connection, direction: int = 0) -> tuple[int, int, int, int]:
    """Lost, copied, overtaken, sent again."""
    each = connection.directions[direction]
    return each.lost, each.duplicates, each.reordered, each.retransmitted


@pytest.fixture(params=[True, False], ids=["counted ids", "ids 0"])
def talk(request: pytest.FixtureRequest) -> Talk:
    """A conversation with or without IP identifications that count up."""
    return Talk(counts_ids=request.param)


def has_ids(talk: Talk) -> bool:
    """Whether its IP identifications count up (the field of IPv4 at byte 4)."""
    return talk.frames[0][1][18:20] != bytes(2)


# What a request is.


def test_requests_in_order_are_new(talk: Talk) -> None:
    talk.sends(10, 3)

    connection, watcher = heard(talk)

    assert watcher.verdicts == ["new"] * 6
    assert connection.directions[0].completed == 3
    assert connection.directions[0].message_bytes == 3 * 64
    assert connection.not_observable(0) == connection.not_observable(1) == {}


def test_a_gap_that_a_nak_and_a_resend_fill_is_a_loss(talk: Talk) -> None:
    talk.sends(10, 2)
    for psn in (13, 14):
        talk.ask(ONLY, psn, 64, ack_req=1)
    talk.answer(12, 3, NAK_SEQUENCE)
    nak = len(talk.frames)
    for psn in (12, 13, 14):
        talk.ask(ONLY, psn, 64, ack_req=1)
    for psn in (12, 13, 14):
        talk.answer(psn, psn - 9)

    connection, watcher = heard(talk)

    assert watcher.verdicts[4:] == ["after_gap", "new", "new"] + ["retransmitted"] * 3 + ["new"] * 3
    assert counts(connection) == (1, 0, 0, 3)
    loss = only(watcher.of(FlowEventKind.LOST))
    assert (loss.psn, loss.last_psn, loss.count, loss.number) == (12, 12, 1, 5)
    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number, resend.delay_ns) == (Cause.NAK, nak, 10_000)
    assert (resend.psn, resend.last_psn, resend.count) == (12, 14, 3)
    assert connection.directions[0].naks == {"psn_sequence_error": 1}
    assert connection.directions[0].timeouts == 0


def without(talk: Talk, *numbers: int) -> list[Stamped]:
    """A capture that lacks some of the packets (from 1)."""
    return [frame for number, frame in enumerate(talk.frames, 1) if number not in numbers]


def held_back(talk: Talk, number: int, by: int) -> list[Stamped]:
    """A capture in which a packet comes after so many later ones."""
    frames = [frame for _, frame in talk.frames]
    frames.insert(number - 1 + by, frames.pop(number - 1))
    return [(time_ns, frame) for (time_ns, _), frame in zip(talk.frames, frames, strict=True)]


def twice(talk: Talk, number: int, after_ns: int = 500) -> list[Stamped]:
    """A capture in which a packet comes again a little later."""
    time_ns, frame = talk.frames[number - 1]
    return sorted([*talk.frames, (time_ns + after_ns, frame)], key=lambda each: each[0])


def in_a_row(talk: Talk, psn: int, count: int) -> None:
    """SENDs and then their ACKs."""
    for each in range(psn, psn + count):
        talk.ask(ONLY, each, 64, ack_req=1)
    for each in range(psn, psn + count):
        talk.answer(each, each - psn + 1)


def test_a_gap_that_the_missing_packet_fills_is_a_swap(talk: Talk) -> None:
    in_a_row(talk, 10, 4)

    connection, watcher = heard(held_back(talk, 2, 1))

    assert watcher.verdicts[:4] == ["new", "after_gap", "reordered", "new"]
    assert counts(connection) == (0, 0, 1, 0)
    assert connection.directions[0].completed == 4


@pytest.mark.parametrize("number", [2, 6])
def test_a_copy_of_a_mirror_is_a_copy(number: int) -> None:
    """With IP identifications, of requests and of ACKs."""
    talk = Talk()
    in_a_row(talk, 10, 4)

    connection, watcher = heard(twice(talk, number))

    assert counts(connection, int(number > 4)) == (0, 1, 0, 0)
    copy = only(watcher.of(FlowEventKind.DUPLICATE))
    assert (copy.number, copy.cause_number) == (number + 1, number)


def test_without_identifications_a_copy_is_known_by_its_haste() -> None:
    talk = Talk(counts_ids=False)
    in_a_row(talk, 10, 4)

    connection, _ = heard(twice(talk, 2))

    assert counts(connection) == (0, 1, 0, 0)


def test_without_identifications_what_comes_again_after_a_silence_was_sent_again() -> None:
    talk = Talk(counts_ids=False)
    talk.sends(10, 2)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.wait(67_000)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.answer(12, 3)

    connection, watcher = heard(talk)

    assert counts(connection) == (0, 0, 0, 1)
    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number) == (Cause.TIMEOUT, 5)
    assert resend.delay_ns == 67_010_000


def test_psns_go_on_from_zero(talk: Talk) -> None:
    talk.sends(0xFFFFFE, 4)

    connection, watcher = heard(talk)
    analysis = feed(Analysis(Watcher()), talk.frames)
    analysis.finish()
    tracker = analysis.trackers[0].requests[0]

    assert watcher.verdicts == ["new"] * 8
    assert connection.directions[0].completed == 4
    assert tracker.next_psn == 2
    assert tracker.acked_psn == 1


def test_a_loss_at_the_wrap_is_one_packet() -> None:
    talk = Talk()
    in_a_row(talk, 0xFFFFFE, 4)

    connection, watcher = heard(without(talk, 2))

    assert counts(connection) == (1, 0, 0, 0)
    assert only(watcher.of(FlowEventKind.LOST)).psn == 0xFFFFFF


# Why something is sent again.


def test_a_timeout_shows_nothing_of_what_was_lost(talk: Talk) -> None:
    talk.sends(10, 2)
    talk.ask(ONLY, 12, 64, ack_req=1)
    sent = len(talk.frames)
    talk.wait(67_000)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.answer(12, 3)

    connection, watcher = heard(talk)

    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number) == (Cause.TIMEOUT, sent)
    direction = connection.directions[0]
    assert (direction.timeouts, direction.unexplained) == (1, 1)
    # With identifications, none of them is missing: nothing was lost before this point.
    expected = set() if has_ids(talk) else {"lost_packets", "retransmitted_packets"}
    assert set(connection.not_observable(0)) == expected


def test_what_was_acknowledged_here_and_is_sent_again_lost_its_answer(talk: Talk) -> None:
    talk.sends(10, 3)
    talk.wait(67_000)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.answer(12, 3)

    connection, watcher = heard(talk)

    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number) == (Cause.ACK_LOST, 5)
    assert connection.directions[0].timeouts == 1
    assert counts(connection) == (0, 0, 0, 1)
    assert watcher.verdicts[-1] == "stale"


def test_an_rnr_nak_is_the_cause_before_the_sequence_nak_of_the_same_psn(talk: Talk) -> None:
    """rxe sends a sequence NAK for what follows an RNR NAK (rnr-multi-packet)."""
    talk.ask(ONLY, 10, 64, ack_req=1)
    talk.answer(10, 0, RNR_1280_US)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.answer(10, 0, NAK_SEQUENCE)
    talk.wait(1_300)
    talk.sends(10, 2)

    connection, watcher = heard(talk)

    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number, resend.count) == (Cause.RNR, 2, 2)
    assert only(watcher.of(FlowEventKind.RNR_NAK)).delay_ns == 1_280_000
    direction = connection.directions[0]
    assert (direction.rnr_naks, direction.naks) == (1, {"psn_sequence_error": 1})
    assert direction.timeouts == 0
    assert counts(connection) == (0, 0, 0, 2)


def learn_mtu(talk: Talk, psn: int = 8) -> None:
    """A SEND of two packets, the first of them full."""
    talk.ask(FIRST, psn, MTU)
    talk.ask(LAST, psn + 1, 4, ack_req=1)
    talk.answer(psn + 1, 0)


def responses(talk: Talk, psn: int, count: int, msn: int = 1, **rest: int) -> None:
    """All responses of a READ."""
    for step in range(count):
        last = step == count - 1
        opcode = R_FIRST if not step and not last else R_LAST if last else R_MIDDLE
        if count == 1:
            opcode = R_ONLY
        talk.answer(psn + step, msn, opcode=opcode, size=MTU if not last else 16, **rest)


READ_SIZE = 3 * MTU + 16
"""A READ of four responses."""


def test_an_answer_beyond_an_atomic_is_an_implied_nak() -> None:
    """IBA 9.7.5.2.8."""
    talk = Talk()
    talk.ask(ATOMIC, 10)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.answer(10, 1, opcode=ATOMIC_ACK)
    talk.answer(11, 2)
    talk.ask(ATOMIC, 10)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.answer(10, 1, opcode=ATOMIC_ACK)
    talk.answer(11, 2)

    connection, watcher = heard(without(talk, 3))

    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number) == (Cause.IMPLIED_NAK, 3)
    assert connection.directions[0].implied_naks == 1
    assert connection.directions[0].completed == 2


def test_a_gap_in_the_responses_of_a_read_is_why_it_is_asked_again() -> None:
    talk = Talk()
    learn_mtu(talk)
    talk.ask(READ, 10, length=READ_SIZE, ack_req=1)
    responses(talk, 10, 4)
    talk.ask(READ, 11, length=2 * MTU + 16, ack_req=1)
    responses(talk, 11, 3)

    connection, watcher = heard(without(talk, 6))

    assert watcher.verdicts == [
        *("new",) * 5,
        "after_gap",
        "new",
        *("retransmitted",) * 4,
    ]
    resend = only(watcher.of(FlowEventKind.RETRANSMISSION))
    assert (resend.cause, resend.cause_number, resend.psn) == (Cause.READ_GAP, 6, 11)
    assert counts(connection, 1) == (1, 0, 0, 3)
    assert counts(connection, 0) == (0, 0, 0, 1)
    assert connection.directions[0].completed == 2


# What a READ reserves.


def test_a_read_takes_as_many_psns_as_it_has_responses() -> None:
    talk = Talk()
    learn_mtu(talk)
    talk.ask(READ, 10, length=READ_SIZE, ack_req=1)
    talk.ask(ONLY, 14, 64, ack_req=1)
    responses(talk, 10, 4)
    talk.answer(14, 3)

    connection, watcher = heard(talk)

    assert set(watcher.verdicts) == {"new"}
    assert [
        (m.first_psn, m.last_psn, m.size) for m in watcher.messages if m.verb == "RDMA_READ"
    ] == [(10, 13, READ_SIZE)]
    assert connection.directions[0].completed == 3


@each_case("mtu", [256, 512, 1024, 2048, 4096])
def test_the_psn_behind_a_read_tells_the_path_mtu(mtu: int) -> None:
    talk = Talk()
    talk.ask(READ, 10, length=16384, ack_req=1)
    talk.ask(ONLY, 10 + 16384 // mtu, 64, ack_req=1)

    connection, watcher = heard(talk)

    assert connection.mtu == mtu
    assert watcher.verdicts == ["new", "new"]


@each_case("mtu", [256, 512, 1024, 2048])
def test_the_rest_of_a_read_tells_the_path_mtu(mtu: int) -> None:
    """Its first response is not in the capture, so the retransmission has the very next PSN."""
    talk = Talk()
    talk.ask(READ, 10, length=mtu + 1, ack_req=1)
    talk.ask(READ, 11, length=1, va=VA + mtu, ack_req=1)

    connection, watcher = heard(talk)

    assert connection.mtu == mtu
    assert watcher.verdicts == ["new", "retransmitted"]


@each_case("change", [{"va": VA + MTU + 8}, {"va": VA + MTU, "length": 8}, {"rkey": RKEY + 1}])
def test_a_read_of_something_else_does_not_tell_the_path_mtu(change: dict[str, int]) -> None:
    talk = Talk()
    talk.ask(READ, 10, length=MTU + 1, ack_req=1)
    talk.ask(READ, 11, **{"va": VA + MTU, "length": 1, "ack_req": 1, **change})

    connection, watcher = heard(talk)

    assert connection.mtu is None
    assert watcher.verdicts == ["new", "new"]


def test_the_first_response_tells_the_path_mtu_and_what_the_read_reserves() -> None:
    talk = Talk()
    talk.ask(READ, 10, length=READ_SIZE, ack_req=1)
    responses(talk, 10, 4)
    talk.ask(ONLY, 14, 64, ack_req=1)
    talk.answer(14, 2)

    connection, watcher = heard(talk)

    assert connection.mtu == MTU
    assert set(watcher.verdicts) == {"new"}
    assert connection.directions[0].completed == 2


# Where a capture does not have everything.


def test_a_capture_that_starts_in_the_middle_of_a_message_loses_nothing(talk: Talk) -> None:
    for psn in (10, 11):
        talk.ask(MIDDLE, psn, MTU)
    talk.ask(LAST, 12, 4, ack_req=1)
    talk.answer(12, 1)
    talk.sends(13, 2, msn=2)

    connection, watcher = heard(talk)

    assert set(watcher.verdicts) == {"new"}
    assert counts(connection) == (0, 0, 0, 0)


def test_packets_that_were_acknowledged_without_being_captured_are_lost_here(talk: Talk) -> None:
    in_a_row(talk, 10, 6)

    connection, watcher = heard(without(talk, 3, 4))

    losses = watcher.of(FlowEventKind.LOST)
    assert [(loss.psn, loss.last_psn, loss.count) for loss in losses] == [(12, 12, 1), (13, 13, 1)]
    assert counts(connection) == (2, 0, 0, 0)


def test_reads_whose_responses_were_not_captured_do_not_hold_up_the_rest() -> None:
    talk = Talk()
    learn_mtu(talk)
    talk.ask(READ, 10, length=READ_SIZE, ack_req=1)
    talk.sends(14, 100)

    connection, watcher = heard(talk)

    assert connection.directions[0].completed == 101
    assert connection.directions[1].lost == 4
    (read,) = (each for each in watcher.messages if each.verb == "RDMA_READ")
    assert read.acked_number == 0


@pytest.mark.slow
def test_requests_that_nobody_answers_take_bounded_memory() -> None:
    """A capture of one direction: 100,000 messages, none acknowledged."""
    talk = Talk()
    talk.ask(ONLY, 0, 0, ack_req=1)
    _, frame = talk.frames[0]
    frames = [
        (1000 * n, frame[:51] + (n & 0xFFFFFF).to_bytes(3, "big") + frame[54:])
        for n in range(100_000)
    ]

    analysis = feed(Analysis(), frames)
    analysis.flush()
    (tracker,) = analysis.trackers
    open_messages = len(tracker.requests[0].messages)
    (connection,) = analysis.finish().connections

    assert open_messages == LIMIT
    assert connection.pairing == "none"
    assert connection.directions[0].messages == {"SEND": 100_000}
    assert "timeouts" in connection.not_observable(0)


def test_responses_without_requests_still_show_naks_and_gaps() -> None:
    talk = Talk()
    learn_mtu(talk)
    talk.ask(READ, 10, length=READ_SIZE, ack_req=1)
    responses(talk, 10, 4)
    talk.answer(14, 1, NAK_ACCESS)

    frames = [each for each in talk.frames if each[1][29] == 2]
    connection, watcher = heard(frames[:2] + frames[3:])

    assert watcher.verdicts == ["unknown"] * 5
    assert connection.directions[0].lost == 1
    assert connection.directions[1].naks == {"remote_access_error": 1}


def test_a_cut_off_capture_says_the_same() -> None:
    """Snaplen 128: ICRCs and most of the payload are not there."""
    talk = Talk()
    learn_mtu(talk)
    talk.ask(READ, 10, length=READ_SIZE, ack_req=1)
    responses(talk, 10, 4)
    talk.sends(14, 3)
    cut = analysed(talk.frames, snaplen=128)

    (connection,) = cut.connections
    (whole,) = analysed(talk.frames).connections

    assert [connection.to_json(i) for i in (0, 1)] == [whole.to_json(i) for i in (0, 1)]


# Lives of a queue pair.


def test_a_jump_in_psns_is_a_new_life_and_no_loss(talk: Talk) -> None:
    talk.sends(10, 3)
    talk.wait(1_000_000)
    talk.sends(0x700000, 3)

    connection, watcher = heard(talk)

    restart = only(watcher.of(FlowEventKind.RESTART))
    assert (restart.psn, restart.number) == (0x700000, 7)
    assert connection.directions[0].restarts == 1
    assert counts(connection) == (0, 0, 0, 0)
    assert connection.directions[0].completed == 6


@pytest.mark.parametrize("syndrome", [None, RNR_1280_US])
def test_who_stops_to_send_again_has_given_up(talk: Talk, syndrome: int | None) -> None:
    talk.sends(10, 1)
    for _ in range(8):
        talk.ask(ONLY, 11, 64, ack_req=1)
        if syndrome is not None:
            talk.answer(11, 1, syndrome)
        talk.wait(2_000)
    talk.wait(3_000_000)
    talk.put(1, OpCode.CNP, 0, 16)

    _, watcher = heard(talk)

    given_up = only(watcher.of(FlowEventKind.RETRY_EXCEEDED))
    assert given_up.cause is (Cause.RETRIES if syndrome is None else Cause.RNR_RETRIES)
    assert given_up.psn == 11


def test_a_capture_that_ends_soon_after_a_resend_is_no_giving_up(talk: Talk) -> None:
    talk.sends(10, 1)
    for _ in range(3):
        talk.ask(ONLY, 11, 64, ack_req=1)
        talk.wait(2_000)

    _, watcher = heard(talk)

    assert watcher.of(FlowEventKind.RETRY_EXCEEDED) == []


# Without acknowledgements.


def test_an_unreliable_connection_loses_what_is_missing() -> None:
    talk = Talk()
    for psn in range(10, 16):
        talk.ask(OpCode.UC_SEND_ONLY, psn, 64)

    connection, watcher = heard(without(talk, 3, 4))

    assert counts(connection) == (2, 0, 0, 0)
    assert connection.directions[0].message_bytes == 4 * 64
    assert len(watcher.messages) == 4
    assert connection.not_observable(0) == {}


# Damage.


def test_a_damaged_packet_is_not_lost_and_does_nothing() -> None:
    talk = Talk()
    in_a_row(talk, 10, 3)
    frames = talk.frames
    time_ns, frame = frames[1]
    frames[1] = time_ns, frame[:-10] + b"X" + frame[-9:]

    connection, watcher = heard(talk)

    assert watcher.others == 1
    assert only(watcher.of(FlowEventKind.ICRC_BAD)).number == 2
    assert connection.directions[0].damaged == 1
    assert counts(connection) == (0, 0, 0, 0)


def test_icrcs_that_are_wrong_everywhere_say_something_of_the_capture() -> None:
    talk = Talk()
    in_a_row(talk, 10, 8)
    found: Summary = analysed([(t, frame[:-4] + bytes(4)) for t, frame in talk.frames])

    (connection,) = found.connections

    assert connection.directions[0].completed == 8
    assert connection.directions[0].damaged == 0
    assert "16 of the first 16 ICRCs are wrong" in found.problems[0]


def test_a_fatal_nak_names_its_kind(talk: Talk) -> None:
    talk.sends(10, 1)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.answer(11, 1, NAK_ACCESS)
    talk.wait(10_000_000)
    talk.put(1, OpCode.CNP, 0, 16)

    connection, watcher = heard(talk)

    assert connection.directions[0].naks == {"remote_access_error": 1}
    assert only(watcher.of(FlowEventKind.NAK)).code == NAK_ACCESS
    assert watcher.of(FlowEventKind.RETRY_EXCEEDED) == []


# At the edges of the rules.


@pytest.mark.parametrize(("step", "restarts", "lost"), [(JUMP, 0, JUMP), (JUMP + 1, 1, 0)])
def test_only_a_large_step_in_psns_is_a_new_life(step: int, restarts: int, lost: int) -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.sends(13 + step, 1)

    connection, _ = heard(talk)

    assert connection.directions[0].restarts == restarts
    assert connection.directions[0].lost == lost


def test_what_was_sent_again_and_overtaken_is_both() -> None:
    """The second of three transmissions comes last."""
    talk = Talk()
    talk.sends(9, 1)
    for _ in range(3):
        talk.ask(ONLY, 10, 64, ack_req=1)
        talk.wait(67_000)
    talk.answer(10, 2)

    connection, watcher = heard(held_back(talk, 4, 1))

    assert watcher.verdicts[2:] == ["new", "retransmitted", "reordered", "new"]
    assert counts(connection) == (0, 0, 1, 2)


def test_an_identification_that_comes_late_leaves_no_doubt() -> None:
    """14 is overtaken by the resend of 12, which does not yet show what was left out before."""
    talk = Talk()
    for psn in (10, 11, 12, 13, 14):
        talk.ask(ONLY, psn, 64, ack_req=1)
    talk.answer(12, 3, NAK_SEQUENCE)
    for psn in (12, 13, 14):
        talk.ask(ONLY, psn, 64, ack_req=1)
    talk.answer(14, 5)

    frames = held_back(talk, 5, 2)
    connection, _ = heard([*frames[:2], *frames[3:]])
    unseen, _ = heard(without(talk, 3, 5))

    assert counts(connection) == (1, 0, 1, 3)
    assert connection.directions[0].unseen_ids == 0
    assert unseen.directions[0].unseen_ids == 1


def test_the_newest_nak_of_a_psn_counts() -> None:
    talk = Talk()
    talk.sends(10, 1)
    for _ in range(2):
        talk.ask(ONLY, 12, 64, ack_req=1)
        talk.answer(11, 1, NAK_SEQUENCE)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.answer(12, 3)

    _, watcher = heard(talk)

    assert watcher.of(FlowEventKind.RETRANSMISSION)[-1].cause_number == 6


def test_a_message_in_pieces_is_one_when_its_middle_was_sent_again() -> None:
    talk = Talk()
    talk.ask(FIRST, 10, MTU)
    talk.ask(LAST, 12, 4, ack_req=1)
    talk.answer(11, 0, NAK_SEQUENCE)
    talk.ask(MIDDLE, 11, MTU)
    talk.ask(LAST, 12, 4, ack_req=1)
    talk.answer(12, 1)

    connection, watcher = heard(talk)

    (message,) = watcher.messages
    assert (message.first_psn, message.last_psn, message.size) == (10, 12, 2 * MTU + 4)
    assert (message.retransmitted_packets, message.first_number) == (1, 1)
    assert connection.directions[0].message_bytes == 2 * MTU + 4


def test_answers_after_an_answered_question_begin_a_new_count_of_attempts() -> None:
    talk = Talk()
    talk.sends(10, 1)
    for _ in range(2):
        talk.ask(ONLY, 11, 64, ack_req=1)
        talk.wait(2_000)
    talk.answer(11, 2)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.wait(3_000_000)
    talk.put(1, OpCode.CNP, 0, 16)

    _, watcher = heard(talk)

    assert watcher.of(FlowEventKind.RETRY_EXCEEDED) == []
