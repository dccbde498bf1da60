"""Hand-made conversations whose cause is known, each with what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from connections.handshake_frames import REP, REQ, back, datagram
from connections.talk import ADDRESSES, QPNS, Talk
from diagnosis.test_cut_captures import Everything
from emulated_traffic import feed
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.summary import Summary
from ibwire.diagnosis.record import Record, Recorder
from ibwire.diagnosis.story import Frames, Story
from ibwire_layers.opcodes import OpCode, Service
from rules.check_frames import judge
from strategies import ROUTE4


def stories_of(talk: Talk) -> list[Story]:
    """The stories of several connections."""
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    feed(analysis, talk.frames)
    analysis.finish()
    frames = Frames("x", talk.frames[0][0], talk.frames[-1][0])
    return [Story(record, frames, True) for record in recorder.records()]


def record_of(talk: Talk) -> tuple[Record, Frames]:
    """What the story of a conversation is made of."""
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    feed(analysis, talk.frames)
    analysis.finish()
    (record,) = recorder.records()
    return record, Frames("x", talk.frames[0][0], talk.frames[-1][0])


def story_of(talk: Talk) -> Story:
    [story] = stories_of(talk)
    return story


def text_of(story: Story) -> str:
    return " ".join(" ".join(line.text for line in story.lines(100)).split())


def timers_that_expire_early(number: int, *, acks: int) -> Talk:
    """A request every 3 ms; the first ones are repeated 1 ms later, and each ACK comes after
    that: `acks` of them for both transmissions."""
    talk = Talk()
    for psn in range(10):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        if psn < number:
            talk.wait(1000)
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        for _ in range(acks if psn < number else 1):
            talk.answer(psn, psn + 1)
        talk.wait(2000)
    return talk


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_timers_that_expire_too_early_are_harmless_however_many(number: int) -> None:
    story = story_of(timers_that_expire_early(number, acks=2))

    assert len(story.incidents) == number
    assert all(each.is_harmless for each in story.incidents)
    assert {each.names_of_causes for each in story.incidents} == {frozenset({"stale_timer"})}
    assert text_of(story).count("nothing was lost, the timeout was too short") == number
    assert story.connection.status.status == "recovered"


def test_timers_after_which_one_response_is_missing_are_not_harmless() -> None:
    story = story_of(timers_that_expire_early(3, acks=1))

    assert not any(each.is_harmless for each in story.incidents)
    assert "the timeout was too short" not in text_of(story)
    assert story.connection.status.status == "degraded"


def test_timer_that_expires_when_no_request_has_asked_for_a_response_is_an_old_one() -> None:
    """The first packets of a message are repeated before its last, which asks for the ACK."""
    talk = Talk()
    talk.sends(0, 1)
    talk.ask(OpCode.RC_SEND_FIRST, 1, 256)
    talk.ask(OpCode.RC_SEND_MIDDLE, 2, 256)
    talk.wait(700)
    talk.ask(OpCode.RC_SEND_FIRST, 1, 256)
    talk.ask(OpCode.RC_SEND_MIDDLE, 2, 256)
    talk.ask(OpCode.RC_SEND_LAST, 3, 64, ack_req=1)
    talk.answer(3, 2)

    story = story_of(talk)

    assert "No response was due yet, because no request had asked for one" in text_of(story)
    assert story.incidents[0].names_of_causes == {"stale_timer"}


def test_timer_that_expires_just_before_the_response_arrives_at_the_requester() -> None:
    """The ACK passes here 10 us before the retransmission, and is acknowledged again."""
    talk = Talk()
    talk.sends(0, 2)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    talk.wait(1000)
    talk.answer(2, 3)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    talk.answer(2, 3)
    talk.sends(3, 2)

    story = story_of(talk)

    assert "its timer expired just before" in text_of(story)
    assert story.incidents[0].is_harmless
    assert story.connection.status.status == "recovered"


def with_a_damaged_psn(flip: int) -> Callable[[Talk], None]:
    def damage(talk: Talk) -> None:
        time_ns, frame = talk.frames[-1]
        changed = bytearray(frame)
        changed[14 + 20 + 8 + 11] ^= flip  # last byte of the PSN
        talk.frames[-1] = time_ns, bytes(changed)

    return damage


@pytest.mark.parametrize("counts_ids", [True, False])
def test_a_damaged_packet_that_names_a_later_psn_makes_no_retransmission_of_that(
    counts_ids: bool,
) -> None:
    """PSN 2 is damaged to 6; the NAK asks for 2; 6 is then sent for the first time."""
    talk = Talk(counts_ids)
    talk.sends(0, 2)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    with_a_damaged_psn(4)(talk)
    talk.ask(OpCode.RC_SEND_ONLY, 3, 64, ack_req=1)
    talk.answer(2, 2, 0x60)
    for psn in (2, 3):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)
    talk.sends(4, 5)

    story = story_of(talk)

    counts = story.connection.directions[0]
    assert (counts.retransmitted, counts.damaged) == (2, 1)
    assert len(story.incidents) == 1
    assert story.connection.status.status == "recovered"


def test_a_damaged_packet_at_the_end_of_a_burst_is_retransmitted_by_the_timer() -> None:
    talk = Talk()
    talk.sends(0, 2)
    for psn in (2, 3):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        time_ns, frame = talk.frames[-1]
        talk.frames[-1] = time_ns, frame[:-1] + bytes([frame[-1] ^ 1])
    talk.wait(67_000)
    for psn in (2, 3):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)

    counts = story_of(talk).connection.directions[0]

    assert (counts.retransmitted, counts.damaged, counts.lost) == (2, 2, 0)


@pytest.mark.parametrize(("us", "is_copy"), [(30, True), (600, False)])
def test_a_request_that_comes_again_unanswered_may_be_a_timers(us: float, is_copy: bool) -> None:
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    for _ in range(2):
        talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
        talk.wait(us)
    talk.answer(2, 3)

    story = story_of(talk)

    assert ("the network or the capture duplicates packets" in story.verdict) is is_copy
    assert ("or retransmitted; the capture does not show which" in story.verdict) is not is_copy
    assert story.connection.directions[0].repeated == (not is_copy)


def test_a_late_packet_of_uc_costs_its_message() -> None:
    talk = Talk(counts_ids=False)
    for opcode, psn in (
        (OpCode.UC_SEND_FIRST, 0),
        (OpCode.UC_SEND_LAST, 2),
        (OpCode.UC_SEND_MIDDLE, 1),
        (OpCode.UC_SEND_ONLY, 3),
    ):
        talk.ask(opcode, psn, 256)

    story = story_of(talk)

    assert story.connection.status.status == "degraded"
    assert "B drops messages whose packets are out of order" in text_of(story)
    assert story.verdict.startswith("1 packet arrived here out of order. This service neither")


def test_a_read_that_is_repeated_after_a_gap_is_retransmitted() -> None:
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 2, length=3 * 256)
    talk.answer(3, 0, opcode=OpCode.RC_RDMA_READ_RESPONSE_MIDDLE, size=256)
    talk.answer(4, 3, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=256)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 2, length=3 * 256)
    talk.answer(2, 2, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=256)
    talk.answer(3, 0, opcode=OpCode.RC_RDMA_READ_RESPONSE_MIDDLE, size=256)
    talk.answer(4, 3, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=256)
    talk.sends(5, 2, msn=4)

    story = story_of(talk)

    assert story.connection.status.status == "recovered"
    assert story.verdict.startswith("The network lost at least 1 response of B")
    assert "A retransmits READ REQUEST PSNs 2-4, for which responses were missing" in text_of(story)


def test_a_retransmission_that_passed_here_may_be_lost_behind() -> None:
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    talk.ask(OpCode.RC_SEND_ONLY, 3, 64, ack_req=1)
    talk.answer(2, 2, 0x60)
    for wait_us in (0, 67_000):
        talk.wait(wait_us)
        for psn in (2, 3):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.answer(3, 4)
    talk.sends(4, 2, msn=5)

    text = text_of(story_of(talk))

    assert "A's ACK timer expires" in text
    assert "B lacked what was lost or damaged before this point" not in text
    assert "one of them was lost, damaged or delayed between this point and B." in text


@pytest.mark.parametrize("first", ["sent before the ACK", "sent after the ACK"])
def test_a_responder_discards_no_request_of_which_all_before_was_acknowledged(first: str) -> None:
    """Requests 1 and 2, of which 1 comes again; the first transmission of 2 may have been behind a
    gap, the second is the oldest request."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 1)
    for psn in (1, 2):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.wait(67_000)
    talk.ask(OpCode.RC_SEND_ONLY, 1, 64, ack_req=1)
    talk.answer(1, 2)
    if first == "sent after the ACK":
        talk.wait(67_000)
        talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    talk.wait(67_000)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    talk.answer(2, 3)
    talk.sends(3, 2, msn=4)

    *_, last = text_of(story_of(talk)).split("A retransmits PSN 2")
    may_be_discarded = "or B discarded the request because an earlier packet was missing"
    assert (may_be_discarded in last) == (first == "sent before the ACK")


def test_what_was_given_up_is_what_was_transmitted_here() -> None:
    """The PSNs before it were not seen here."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 1)
    for _ in range(4):
        talk.ask(OpCode.RC_SEND_ONLY, 11, 64, ack_req=1)
        talk.wait(67_000)
    talk.wait(10_000_000)
    talk.put(1, OpCode.CNP, 0, 16)

    text = text_of(story_of(talk))

    assert "given up after 4 transmissions of PSN 11 without a response" in text
    assert "A gave up after 4 transmissions of PSN 11 without a response" in text


@pytest.mark.parametrize(("cnps", "report"), [(1, "1 CNP reports it"), (2, "2 CNPs report it")])
def test_cnps_alone_do_not_show_where_the_congestion_is(cnps: int, report: str) -> None:
    """Only responses are in the capture: what they are about may have been lost or marked."""
    talk = Talk()
    for psn in range(6):
        talk.answer(psn, psn + 1)
        if psn < cnps:
            talk.put(1, OpCode.CNP, 0, 16)

    story = story_of(talk)

    text = text_of(story)
    assert f"{6 + cnps} packets of responses and CNPs." in text
    assert "CONGESTION" not in text
    assert "without packets of B it is unknown where the congestion is" in text
    assert report in story.verdict
    assert "after this point is congested" not in story.verdict
    assert "Nothing was lost" not in story.verdict


def test_packets_that_are_all_cnps_are_called_cnps() -> None:
    talk = Talk()
    for _ in range(3):
        talk.put(1, OpCode.CNP, 0, 16)

    text = text_of(story_of(talk))

    assert "3 CNPs." in text
    assert "responses" not in text


@pytest.mark.parametrize("counts_ids", [False, True])
@pytest.mark.parametrize(("us", "is_paired"), [(1, True), (89, True), (91, False)])
def test_an_ack_may_be_recorded_shortly_before_its_request(
    us: float, is_paired: bool, counts_ids: bool
) -> None:
    """At two ports, or by two queues: 10 us and more, up to 0.1 ms. Its latency is not known."""
    talk = Talk(counts_ids)
    talk.sends(0, 3)
    for psn in (3, 4):
        talk.answer(psn, psn + 1)
        talk.wait(us)
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    story = story_of(talk)

    problems = summary_of(talk).all_problems()
    latency = story.connection.directions[0].latency
    if is_paired:
        assert "5 messages, all acknowledged" in text_of(story)
        (problem,) = problems
        assert problem.startswith(
            f"2 ACKs were recorded before their requests, by {us + 10:.3f} us"
        )
        assert latency.count == 3
    else:
        assert "2 messages of A are still in flight" in text_of(story)
        assert problems == []
    assert story.connection.status.status == "ok"


def test_acks_recorded_before_a_burst_of_requests_complete_it_one_by_one() -> None:
    """The first one also before the first request of the capture."""
    talk = Talk(counts_ids=False)
    for first in (0, 3):
        for psn in range(first, first + 3):
            talk.answer(psn, psn + 1)
        for psn in range(first, first + 3):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    story = story_of(talk)

    assert "6 messages, all acknowledged" in text_of(story)
    assert story.connection.directions[0].coalesced == 0


def test_a_request_that_comes_again_after_its_ack_is_not_recorded_late() -> None:
    """The capture lacks a request, so it may lack the first transmission of the next as well."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 3)
    talk.answer(4, 5)
    talk.ask(OpCode.RC_SEND_ONLY, 4, 64, ack_req=1)

    assert summary_of(talk).all_problems() == []


def test_acks_recorded_before_their_requests_are_counted_once_over_files() -> None:
    talk = Talk(counts_ids=False)
    for psn in range(6):
        talk.answer(psn, psn + 1)
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    parts = []
    for part in (slice(0, 6), slice(6, None)):
        parts.append(Analysis(is_part=True))
        feed(parts[-1], talk.frames[part])
    parts[0].merge(parts[1])

    (connection,) = parts[0].finish().connections
    assert (connection.early_acks, connection.early_ns) == (6, 10_000)
    assert sum(each.completed for each in connection.directions) == 6


def summary_of(talk: Talk) -> Summary:
    analysis = Analysis()
    feed(analysis, talk.frames)
    return analysis.finish()


def agree(talk: Talk, transaction: int, psn: int = 0) -> None:
    """A handshake of connection managers, after which the requests of end 0 begin with a PSN."""
    now = talk.frames[-1][0] if talk.frames else 1_000_000_000
    route = replace(ROUTE4, ip=replace(ROUTE4.ip, src=ADDRESSES[0], dst=ADDRESSES[1]))
    req = replace(REQ, local_qpn=QPNS[0], starting_psn=0x700)
    rep = replace(REP, local_qpn=QPNS[1], starting_psn=psn)
    talk.frames += [
        (now + 1000, datagram(req, route, transaction=transaction)),
        (now + 2000, datagram(rep, back(route), transaction=transaction)),
    ]


def rc_connection(analysis: Analysis) -> Connection:
    (found,) = (each for each in analysis.finish().connections if each.service is Service.RC)
    return found


def counts_of(talk: Talk) -> DirectionCounts:
    """What was counted of the requests of end 0."""
    return rc_connection(feed(Analysis(), talk.frames)).directions[0]


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("is_joined", [False, True])
def test_a_queue_pair_begins_anew_behind_its_handshake(is_joined: bool, chunk: int) -> None:
    """All numbers are used again, the first PSN too; before that PSN 0 comes again by a timer."""
    talk = Talk(counts_ids=False)
    agree(talk, 1)
    talk.sends(0, 1)
    talk.wait(67_000)
    talk.sends(0, 1)
    talk.sends(1, 2, msn=2)
    border = len(talk.frames)
    talk.wait(1_000_000)
    agree(talk, 2)
    talk.sends(0, 3)

    if is_joined:
        analysis, later = Analysis(is_part=True), Analysis(is_part=True)
        feed(analysis, talk.frames[:border], chunk=chunk)
        feed(later, talk.frames[border:], chunk=chunk)
        analysis.merge(later)
    else:
        analysis = feed(Analysis(), talk.frames, chunk=chunk)
    connection = rc_connection(analysis)

    counts = connection.directions[0]
    assert (counts.retransmitted, counts.timeouts, counts.completed) == (1, 1, 6)
    assert counts.restarts == 1


def test_a_capture_may_begin_before_the_handshake_of_the_second_connection() -> None:
    """The requests of the first are not behind the PSN that the second begins with."""
    talk = Talk(counts_ids=False)
    talk.sends(20, 3)
    talk.wait(1_000_000)
    agree(talk, 2, psn=10)
    talk.sends(10, 3)
    connection = rc_connection(feed(Analysis(), talk.frames))

    assert (connection.directions[0].lost, connection.directions[0].restarts) == (0, 1)
    assert connection.directions[0].completed == 6


@pytest.mark.parametrize("transaction", [1, 2])
def test_requests_go_on_behind_a_copy_of_their_handshake(transaction: int) -> None:
    """A REQ and a REP that come again have the same transaction ID; a first PSN that is
    retransmitted behind them is no new queue pair."""
    talk = Talk(counts_ids=False)
    agree(talk, 1)
    talk.sends(0, 2)
    agree(talk, transaction)
    talk.wait(67_000)
    talk.sends(0, 1, msn=2 if transaction == 1 else 1)
    counts = counts_of(talk)

    assert (counts.retransmitted, counts.restarts) == ((1, 0) if transaction == 1 else (0, 1))


@pytest.mark.parametrize(
    ("counts_ids", "ns", "doubles", "repeated", "duplicates"),
    [
        (False, 400, 1, 1, 0),
        (False, 9_999, 1, 1, 0),
        (False, 10_000, 1, 0, 0),
        (False, 400, 2, 2, 0),
        (True, 400, 1, 0, 1),
    ],
)
def test_an_ack_that_is_recorded_twice_at_once_is_counted(
    counts_ids: bool, ns: int, doubles: int, repeated: int, duplicates: int
) -> None:
    """Without identifications it may be a copy, or the answer to a duplicate behind this point."""
    talk = Talk(counts_ids)
    talk.sends(0, 3)
    time, ack = talk.frames[-1]
    talk.frames += [(time + ns * each, ack) for each in range(1, doubles + 1)]
    talk.wait(20)
    talk.sends(3, 2, msn=4)
    story = story_of(talk)

    counts = story.connection.directions[1]
    assert (counts.repeated, counts.duplicates) == (repeated, duplicates)
    assert ("arrived twice: duplicated by the network or by the capture" in text_of(story)) == (
        repeated > 0
    )


def test_acks_of_retransmitted_requests_are_no_copies() -> None:
    """A timer expired too early, and each request is acknowledged again, at once."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 1)
    for _ in range(2):
        for psn in (1, 2):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.wait(100_000)
    talk.answer(2, 3)
    time, ack = talk.frames[-1]
    talk.frames += [(time + 400 * each, ack) for each in (1, 2)]

    counts = story_of(talk).connection.directions[1]
    assert (counts.repeated, counts.duplicates) == (0, 0)


REFUSED = 0x62
"""NAK, remote access error."""


def refused_after(messages: int) -> Talk:
    """Some SENDs, and another one that ends the connection."""
    talk = Talk(counts_ids=False)
    talk.sends(0, messages)
    talk.ask(OpCode.RC_SEND_ONLY, messages, 64, ack_req=1)
    talk.answer(messages, messages, REFUSED)
    return talk


def connected_again(before: Talk, *, pipelined: int) -> Talk:
    """The same PSNs again, from 0 on, with other requests; the first ones all at once."""
    before.wait(1_000_000)
    for psn in range(pipelined):
        before.ask(OpCode.RC_RDMA_WRITE_ONLY, psn, 64, ack_req=1)
    for psn in range(pipelined):
        before.answer(psn, psn + 1)
    for psn in range(pipelined, 8):
        before.ask(OpCode.RC_RDMA_WRITE_ONLY, psn, 64, ack_req=1)
        before.answer(psn, psn + 1)
    return before


def acknowledged(messages: int) -> Talk:
    """Some SENDs, all acknowledged."""
    talk = Talk(counts_ids=False)
    talk.sends(0, messages)
    return talk


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("pipelined", [1, 3, 6])
@pytest.mark.parametrize(("first", "messages"), [(refused_after, 4), (acknowledged, 12)])
def test_queue_pairs_that_are_connected_again_begin_anew(
    first: Callable[[int], Talk], messages: int, pipelined: int, chunk: int
) -> None:
    """With the same PSNs, of which some are now other requests; the MSN is 1 again."""
    talk = connected_again(first(messages), pipelined=pipelined)
    connection = rc_connection(feed(Analysis(), talk.frames, chunk=chunk))
    found = judge(talk.frames)

    counts = connection.directions[0]
    assert (counts.restarts, counts.retransmitted, counts.completed) == (1, 0, messages + 8)
    assert [each.rule.id for each in found if each.rule.id != "status"] == []


@pytest.mark.parametrize("first", [refused_after, acknowledged])
def test_queue_pairs_begin_anew_wherever_a_capture_is_cut(first: Callable[[int], Talk]) -> None:
    talk = connected_again(first(4), pipelined=2)
    for border in range(1, len(talk.frames)):
        parts = Analysis(is_part=True), Analysis(is_part=True)
        feed(parts[0], talk.frames[:border])
        feed(parts[1], talk.frames[border:])
        parts[0].merge(parts[1])

        counts = rc_connection(parts[0]).directions[0]
        assert (counts.restarts, counts.retransmitted, counts.completed) == (1, 0, 12)


def test_requests_that_are_acknowledged_again_are_retransmitted() -> None:
    """The ACK of a duplicate has the MSN of the moment (IBA 9.7.7.1)."""
    talk = acknowledged(4)
    talk.wait(67_000)
    for psn in range(4):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, 4)
    talk.sends(4, 2, msn=5)
    counts = counts_of(talk)

    assert (counts.restarts, counts.retransmitted, counts.completed) == (0, 4, 6)


def test_what_is_retransmitted_after_a_failure_and_not_answered_is_retransmitted() -> None:
    """The ACKs and the NAK may have been lost behind this point."""
    talk = refused_after(4)
    talk.wait(1_000_000)
    for psn in range(5):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    counts = counts_of(talk)

    assert (counts.restarts, counts.retransmitted, counts.packets) == (0, 5, 10)


def test_an_ack_that_a_nak_has_overtaken_begins_nothing_anew() -> None:
    """Requests that were on their way when the NAK was sent lie between the two."""
    talk = Talk(counts_ids=False)
    for psn in range(4):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.answer(3, 3, REFUSED)
    talk.ask(OpCode.RC_SEND_ONLY, 4, 64, ack_req=1)
    talk.answer(2, 2)
    counts = counts_of(talk)

    assert (counts.restarts, counts.retransmitted) == (0, 0)


def test_a_late_copy_of_an_ack_begins_nothing_anew() -> None:
    """It is of a request before the one that is repeated, whose message it does not count."""
    talk = acknowledged(1)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 1, length=64)
    read = OpCode.RC_RDMA_READ_RESPONSE_ONLY
    talk.answer(1, 2, opcode=read, size=64)
    talk.wait(10_000)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 1, length=64)
    talk.answer(0, 1)
    talk.answer(1, 2, opcode=read, size=64)
    counts = counts_of(talk)

    assert (counts.restarts, counts.retransmitted) == (0, 1)


def test_a_responder_that_executes_what_it_has_refused_is_accused() -> None:
    """It counts on from the MSN of its NAK: it was not reset."""
    talk = refused_after(4)
    talk.wait(1_000_000)
    talk.sends(4, 3, msn=5)

    assert "naks.silence" in [each.rule.id for each in judge(talk.frames)]


@pytest.mark.parametrize("opcode", [OpCode.UC_SEND_ONLY, OpCode.UD_SEND_ONLY])
def test_cnps_whose_connection_is_unknown_are_not_called_rc(opcode: OpCode) -> None:
    """A CNP names a queue pair and no service (IBA annex A17.9.3): here the data is of UC or UD."""
    talk = Talk()
    for psn in range(6):
        talk.ask(opcode, psn, 64)
    talk.put(1, OpCode.CNP, 0, 16)

    data, cnp = sorted(stories_of(talk), key=lambda story: story.connection.number)

    assert data.connection.service_name == opcode.name[:2]
    assert cnp.connection.to_json(0)["transport"] is None
    assert "CNPs of an unknown connection" in text_of(cnp)
    assert "RC" not in text_of(cnp)


def with_damage(opcode: OpCode, *, ack_req: int) -> Talk:
    """Ten messages of 64 bytes, of which the fifth has a wrong ICRC."""
    talk = Talk()
    for psn in range(10):
        talk.ask(opcode, psn, 64, ack_req=ack_req)
    time_ns, frame = talk.frames[4]
    talk.frames[4] = time_ns, frame[:-1] + bytes([frame[-1] ^ 1])
    return talk


def test_damaged_datagrams_are_no_messages() -> None:
    assert "9 messages of A (9 SEND), 576 bytes, 10 packets." in text_of(
        story_of(with_damage(OpCode.UD_SEND_ONLY, ack_req=0))
    )


def test_a_damaged_packet_that_is_not_retransmitted_did_arrive() -> None:
    verdict = story_of(with_damage(OpCode.RC_SEND_ONLY, ack_req=1)).verdict

    assert "a packet arrived here damaged" in verdict
    assert "did not arrive here" not in verdict
