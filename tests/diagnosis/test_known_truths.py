"""Hand-made conversations of which something false was once said."""

from __future__ import annotations

import pytest

from connections.talk import Talk
from diagnosis.test_conversations import stories_of, story_of, text_of
from ibwire_layers.opcodes import OpCode

READ = OpCode.RC_RDMA_READ_REQUEST
FIRST, MIDDLE, LAST, ONLY = (
    OpCode.RC_RDMA_READ_RESPONSE_FIRST,
    OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
    OpCode.RC_RDMA_READ_RESPONSE_LAST,
    OpCode.RC_RDMA_READ_RESPONSE_ONLY,
)
SEQUENCE, RNR_10_US = 0x60, 0x21


def damage(talk: Talk) -> None:
    """The network damages the newest frame before the point of capture."""
    time_ns, frame = talk.frames[-1]
    talk.frames[-1] = time_ns, frame[:-1] + bytes([frame[-1] ^ 1])


def answer_read(talk: Talk) -> None:
    """The three responses to a READ of 600 bytes at PSN 1."""
    talk.answer(1, 2, opcode=FIRST, size=256)
    talk.answer(2, 2, opcode=MIDDLE, size=256)
    talk.answer(3, 2, opcode=LAST, size=88)


def send(talk: Talk, *psns: int, size: int = 64) -> None:
    for psn in psns:
        talk.ask(OpCode.RC_SEND_ONLY, psn, size, ack_req=1)


def test_a_nak_whose_packet_was_acknowledged_causes_no_later_retransmission() -> None:
    """PSN 2 is lost behind this point, later PSN 4, for which a timer of 0.3 ms expires."""
    talk = Talk()
    talk.sends(0, 2)
    send(talk, 2, 3)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 2, 3)
    talk.answer(3, 4)
    send(talk, 4, 5)
    talk.wait(300)
    send(talk, 4, 5)
    talk.answer(5, 6)
    text = text_of(story_of(talk))

    assert "A retransmits PSNs 2-3 (2 packets), 10.0 us after the NAK" in text
    assert "A's ACK timer expires 320 us after PSN 4 was sent (#11): A retransmits PSNs 4-5" in text


def test_a_damaged_response_is_no_damaged_request_of_the_same_number() -> None:
    """A's response to B's PSN 10 is damaged and sent again; A's own requests are at PSN 2."""
    talk = Talk()
    talk.sends(0, 2)
    for is_damaged in (True, False):
        talk.ask(READ, 10, length=64, sender=1)
        talk.answer(10, 1, opcode=ONLY, size=64, sender=0)
        if is_damaged:
            damage(talk)
            talk.wait(2000)
    story = story_of(talk)

    assert story.connection.status.status == "recovered"
    assert "not replaced" not in story.verdict


def test_a_damaged_response_does_not_replace_a_lost_request_of_the_same_number() -> None:
    talk = Talk()
    talk.ask(READ, 2, length=64, sender=1)
    talk.answer(2, 1, opcode=ONLY, size=64, sender=0)
    damage(talk)
    talk.wait(2000)
    talk.ask(READ, 2, length=64, sender=1)
    talk.answer(2, 1, opcode=ONLY, size=64, sender=0)
    talk.sends(0, 2)
    send(talk, 3)  # 2 is lost
    talk.answer(2, 2, SEQUENCE)
    send(talk, 2, 3)
    talk.answer(3, 4)

    assert [each.lost for each in story_of(talk).connection.directions] == [0, 1]


def test_a_read_whose_last_response_was_damaged_had_a_response_due() -> None:
    """It is asked for again after 0.26 ms; the READ itself asks for no ACK."""
    talk = Talk()
    talk.sends(0, 1)
    talk.ask(READ, 1, length=600)
    answer_read(talk)
    damage(talk)
    talk.wait(260)
    talk.ask(READ, 3, length=88, va=0x10000 + 512)
    talk.answer(3, 2, opcode=ONLY, size=88)
    talk.sends(4, 2, msn=3)
    story = story_of(talk)

    assert "Nothing was lost" not in text_of(story)
    assert "although nothing was lost" not in story.verdict
    assert story.incidents[0].names_of_causes == {"response_damaged"}


def test_an_ack_a_long_time_before_a_retransmission_may_have_been_lost() -> None:
    """A timer of 0.3 ms: the ACK is lost behind this point."""
    talk = Talk()
    talk.sends(0, 2)
    send(talk, 2, 3)
    talk.answer(3, 4)
    talk.wait(280)
    send(talk, 2, 3)
    talk.answer(3, 4)
    talk.sends(4, 2, msn=5)
    story = story_of(talk)

    assert "lost, damaged or delayed after this point, on its way to A, or A had not waited" in (
        text_of(story)
    )
    assert "nothing was lost" not in text_of(story)


def test_a_nak_that_is_not_obeyed_is_no_response_for_which_a_timer_was_too_short() -> None:
    """The NAK is lost behind this point: A goes back to what it acknowledges."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    talk.ask(OpCode.RC_SEND_FIRST, 2, 256)
    talk.ask(OpCode.RC_SEND_MIDDLE, 3, 256)
    talk.ask(OpCode.RC_SEND_LAST, 4, 64, ack_req=1)
    talk.answer(3, 2, SEQUENCE)
    talk.wait(60)
    talk.ask(OpCode.RC_SEND_FIRST, 2, 256)
    talk.ask(OpCode.RC_SEND_MIDDLE, 3, 256)
    talk.ask(OpCode.RC_SEND_LAST, 4, 64, ack_req=1)
    talk.answer(4, 3)

    assert "its timer expired just before" not in text_of(story_of(talk))


def test_what_was_damaged_is_not_late_when_it_is_retransmitted_twice() -> None:
    """PSN 2 arrives damaged; the NAK is lost behind this point, and two timers expire."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2)
    damage(talk)
    send(talk, 3)
    talk.answer(2, 2, SEQUENCE)
    for _ in range(2):
        talk.wait(140)
        send(talk, 2, 3)
    talk.answer(3, 4)
    story = story_of(talk)

    assert "reordered" not in text_of(story)
    assert "arrives twice" not in text_of(story)
    assert story.connection.directions[0].reordered == 0


def test_a_packet_after_a_damaged_one_does_not_show_the_path_mtu() -> None:
    """A READ of one response seems to take two, if the packet after it is left out."""
    talk = Talk()
    talk.ask(READ, 0, length=1500)
    send(talk, 1)
    damage(talk)
    talk.ask(READ, 2, length=1500)
    talk.answer(0, 1, opcode=ONLY, size=1500)
    talk.answer(1, 1, SEQUENCE)
    send(talk, 1)
    talk.ask(READ, 2, length=1500)
    talk.answer(1, 2)
    talk.answer(2, 3, opcode=ONLY, size=1500)
    talk.sends(3, 2, msn=4)
    connection = story_of(talk).connection

    assert connection.mtu is None
    assert [each.retransmitted for each in connection.directions] == [2, 0]


def test_a_nak_after_a_late_copy_is_not_for_what_was_dropped_before_it() -> None:
    """PSN 2 is late, and passes here behind its retransmission; the one of PSN 3 is lost."""
    talk = Talk()
    talk.sends(0, 2)
    send(talk, 2)
    late = talk.frames.pop()
    send(talk, 3, 4)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 2, 3, 4)
    talk.wait(1)
    talk.frames.append((talk.frames[-1][0] + 1000, late[1]))
    talk.answer(3, 3, SEQUENCE)
    send(talk, 3, 4)
    talk.answer(4, 5)

    assert "has arrived late, and the packets that arrived before it were dropped" not in (
        text_of(story_of(talk))
    )


def test_what_was_damaged_after_an_rnr_nak_is_retransmitted_by_the_timer() -> None:
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2)
    talk.answer(2, 2, RNR_10_US)
    talk.wait(10)
    send(talk, 2)
    damage(talk)
    talk.wait(140)
    send(talk, 2)
    talk.answer(2, 3)
    text = text_of(story_of(talk))

    assert "after the RNR NAK: what it had retransmitted before arrived here damaged." in text
    assert "as the RNR NAK asks" not in text


def test_a_retransmission_long_after_an_rnr_nak_need_not_be_for_it() -> None:
    """The RNR NAK is lost behind this point, and a timer expires 0.6 ms later."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2)
    talk.answer(2, 2, RNR_10_US)
    talk.wait(590)
    send(talk, 2)
    talk.answer(2, 3)
    text = text_of(story_of(talk))

    assert "600 us after the RNR NAK, which asks to wait 0.01 ms." in text


def test_a_lost_read_is_one_packet_where_the_path_mtu_is_not_known_yet() -> None:
    talk = Talk()
    talk.ask(READ, 0, length=64)
    talk.answer(0, 1, opcode=ONLY, size=64)
    talk.ask(OpCode.RC_FETCH_ADD, 4)  # a READ of PSNs 1-3 is lost
    talk.answer(1, 1, SEQUENCE)
    talk.ask(READ, 1, length=600)
    talk.ask(OpCode.RC_FETCH_ADD, 4)
    for psn, opcode in ((1, FIRST), (2, MIDDLE), (3, LAST)):
        talk.answer(psn, 2, opcode=opcode, size=256 if opcode != LAST else 88)
    talk.answer(4, 3, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
    talk.sends(5, 2, msn=4)
    asking, answering = story_of(talk).connection.directions

    assert (asking.lost, asking.retransmitted, answering.retransmitted) == (1, 2, 0)


def test_a_copy_may_be_what_a_short_timer_has_sent() -> None:
    """A's timer of 262 us expires while the ACK is on its way."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2)
    talk.wait(262)
    send(talk, 2)
    talk.answer(2, 3)
    story = story_of(talk)

    counts = story.connection.directions[0]
    assert (counts.repeated, counts.timeouts) == (1, 0)
    assert "timeouts" in story.connection.not_observable(0)
    assert "A's retransmitted packets, duplicates and timeouts" in text_of(story)


def test_what_an_unseen_nak_asks_for_is_no_copy_in_a_capture_of_one_direction() -> None:
    """B has no receive buffer for PSN 2, and its RNR NAK for 10 us takes another path."""
    talk = Talk(counts_ids=False)
    send(talk, 0, 1, 2, 3, 4)
    talk.wait(10)
    send(talk, 2, 3, 4, 5)
    story = story_of(talk)

    counts = story.connection.directions[0]
    assert (counts.duplicates, counts.repeated) == (0, 3)
    assert "made by the network or by the capture; B drops" not in text_of(story)


def test_two_equal_packets_at_once_are_copies_in_a_capture_of_one_direction() -> None:
    talk = Talk(counts_ids=False)
    send(talk, 0, 1, 2)
    talk.frames.append((talk.frames[-1][0] + 500, talk.frames[-1][1]))
    send(talk, 3)

    assert story_of(talk).connection.directions[0].duplicates == 1


def test_a_capture_that_begins_with_an_rnr_nak_counts_the_stall_from_that() -> None:
    talk = Talk(counts_ids=False)
    for _ in range(2):
        talk.answer(2, 2, RNR_10_US)
        talk.wait(10)
        send(talk, 2, 3)
    talk.answer(3, 4)
    talk.sends(4, 2, msn=5)

    assert "Recovered 80.0 us after the RNR NAK (#1)." in text_of(story_of(talk))


@pytest.mark.parametrize(
    "again", [(2, 4, 5, 3, 6), (2, 5, 3, 4, 6), (2, 3, 6, 4, 5, 7), (2, 4, 3, 5, 6)]
)
def test_packets_that_are_late_in_a_retransmission_are_not_lost(again: tuple[int, ...]) -> None:
    """PSN 2 is lost before this point; all of its retransmission arrives, in another order."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 3, 4, 5, 6)
    talk.answer(2, 2, SEQUENCE)
    send(talk, *again)
    talk.answer(max(again), max(again) + 1)
    talk.sends(max(again) + 1, 2, msn=max(again) + 2)
    story = story_of(talk)

    assert [each.lost for each in story.connection.directions] == [1, 0]
    assert [each.timeouts for each in story.connection.directions] == [0, 0]
    assert "The network lost at least 1 packet from A to B between A" in story.verdict


def test_a_gap_in_a_retransmission_that_stays_is_a_loss() -> None:
    """The same, but PSN 4 is lost another time: B asks for it."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 3, 4, 5)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 2, 3, 5)
    talk.answer(4, 4, SEQUENCE)
    send(talk, 4, 5)
    talk.answer(5, 6)
    story = story_of(talk)

    assert [each.lost for each in story.connection.directions] == [2, 0]


@pytest.mark.parametrize(("us", "is_sure"), [(30, True), (300, False)])
def test_a_missing_packet_that_comes_late_may_be_that_of_a_timer(us: int, is_sure: bool) -> None:
    """The shortest ACK timer lasts 131 us (IBA 9.7.6.1.3)."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 3, 4)
    talk.wait(us)
    send(talk, 2)
    talk.answer(2, 3)
    send(talk, 3, 4)
    talk.answer(4, 5)
    story = story_of(talk)

    assert ("lost before this point and retransmitted" in text_of(story)) is not is_sure
    assert ("lost_packets" in story.connection.not_observable(0)) is not is_sure


def test_the_last_packets_of_what_a_timer_repeats_are_no_duplicates_for_certain() -> None:
    """A timer of 0.2 ms; the responses are behind this point. PSNs 4-5 were sent just before."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2, 3)
    talk.wait(180)
    send(talk, 4, 5)
    send(talk, 2, 3, 4, 5)
    talk.answer(5, 6)
    talk.answer(5, 6)
    story = story_of(talk)

    assert "made by the network or by the capture; " not in text_of(story)
    assert sum(each.duplicates for each in story.connection.directions) == 0


def test_what_is_acknowledged_and_never_retransmitted_may_have_been_missed() -> None:
    """The capture lacks one packet of a retransmission; go-back-N had B drop its first one."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2, 3, 4, 5)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 2, 3, 5)
    talk.answer(5, 6)
    story = story_of(talk)

    assert "or the capture missed it" in text_of(story)
    assert "The network lost" not in story.verdict


def test_a_second_retransmission_after_a_nak_may_be_that_of_a_timer() -> None:
    """What B asks for is lost before this point; a timer of 0.4 ms brings it, and no other NAK."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2, 3, 4)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 3, 4)
    talk.wait(400)
    send(talk, 2, 3, 4)
    talk.answer(4, 5)
    text = text_of(story_of(talk))

    assert "430 us after the NAK, for which it had retransmitted before: A's ACK timer may" in text
    assert "A retransmits PSNs 3-4 (2 packets), 10.0 us after the NAK:" in text


def test_a_requester_that_is_retransmitting_has_not_disregarded_an_rnr_nak() -> None:
    """The RNR NAK for PSN 4 passes while A goes back for the lost response to the atomic."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 1)
    talk.ask(OpCode.RC_FETCH_ADD, 1)
    send(talk, 2, 3, 4, 5)
    talk.answer(1, 2, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
    talk.answer(2, 3)
    talk.ask(OpCode.RC_FETCH_ADD, 1)
    send(talk, 2)
    talk.answer(3, 4)
    talk.answer(4, 4, RNR_10_US + 9)
    send(talk, 3)
    send(talk, 4, 5)
    talk.answer(1, 4, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
    talk.answer(5, 6)
    text = text_of(story_of(talk))

    assert "after only" not in text
    assert "A was retransmitting when it passed here." in text


def test_a_cnp_about_one_direction_answers_no_mark_of_the_other() -> None:
    """8 SENDs of A are marked; the only CNP is of A, about the unmarked SENDs of B."""
    talk = Talk()
    for step in range(8):
        talk.ask(OpCode.RC_SEND_ONLY, 2 + step, 64, ack_req=1, ecn=3)
        talk.answer(2 + step, step + 1, ecn=2)
        talk.ask(OpCode.RC_SEND_ONLY, 50 + step, 64, ack_req=1, ecn=2, sender=1)
        talk.answer(50 + step, step + 1, ecn=2, sender=0)
    talk.put(0, OpCode.CNP, 0, 16)

    verdict = story_of(talk).verdict
    assert "8 packets with CE marks, and no CNP." in verdict
    assert "after this point is congested from B to A: 1 CNP reports it" in verdict


def test_marks_of_both_directions_have_their_own_cnps() -> None:
    talk = Talk()
    for step in range(3):
        talk.ask(OpCode.RC_SEND_ONLY, 2 + step, 64, ack_req=1, ecn=3)
        talk.answer(2 + step, step + 1, ecn=3 if step == 0 else 2)
    talk.put(1, OpCode.CNP, 0, 16)

    assert (
        "3 packets from A to B with CE marks, answered by 1 CNP; "
        "1 packet from B to A with CE marks, and no CNP."
    ) in story_of(talk).verdict


def test_no_packet_of_a_receiver_is_no_sign_that_it_sends_no_cnp() -> None:
    """Only A's direction is captured."""
    talk = Talk()
    for psn in range(8):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1, ecn=3)
    story = story_of(talk)

    assert "sends no CNP" not in text_of(story)
    assert "no CNP" not in story.verdict


@pytest.mark.parametrize("opcode", [OpCode.UD_SEND_ONLY, OpCode.UC_SEND_ONLY])
def test_a_receiver_of_a_service_without_acks_may_have_sent_cnps(opcode: int) -> None:
    """B sends one: it names A's queue pair, and not the service."""
    talk = Talk()
    for psn in range(8):
        talk.ask(opcode, psn, 64, ecn=3)
        talk.ask(opcode, psn, 64, ecn=2, sender=1)
    talk.put(1, OpCode.CNP, 0, 16)
    stories = stories_of(talk)
    [of_cnp] = [each for each in stories if any(e.cnps for e in each.connection.directions)]

    for story in stories:
        assert "sends no CNP" not in text_of(story)
        assert "and no CNP" not in story.verdict
    assert "were not captured" not in text_of(of_cnp)
    assert "No request is in this capture" not in of_cnp.verdict


def test_uc_takes_messages_of_one_packet_in_any_order_and_twice() -> None:
    """IBA 9.8.2; rxe_resp.c check_psn: a FIRST or ONLY is taken with whatever PSN it has."""
    talk = Talk(counts_ids=False)
    for psn in (0, 1, 2, 4, 3, 5):
        talk.ask(OpCode.UC_SEND_ONLY, psn, 64)
    talk.frames.append((talk.frames[-1][0] + 1000, talk.frames[-1][1]))
    story = story_of(talk)

    assert "drops the duplicate" not in text_of(story)
    assert "gets a message of one packet twice" in text_of(story)
    assert "the messages they belong to are lost" not in story.verdict
    assert "1 message of one packet arrived here out of order" in story.verdict


def test_a_cnp_before_the_first_mark_answers_none() -> None:
    """The CNP is about a mark of a switch after this point; the only mark here comes later."""
    talk = Talk()
    talk.sends(0, 2)
    talk.put(1, OpCode.CNP, 0, 16)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1, ecn=3)
    talk.answer(2, 3)
    story = story_of(talk)

    assert "1 packet with CE marks, and no CNP." in story.verdict
    assert "The network after this point is congested: 1 CNP reports it." in story.verdict
    assert "1 CNP from B (#5) before the first mark" in text_of(story)


def test_a_duplicate_within_a_message_of_uc_may_cost_the_message() -> None:
    """Its PSN is not the expected one (IBA 9.8.2; rxe_resp.c check_psn drops the message)."""
    talk = Talk(counts_ids=False)
    talk.ask(OpCode.UC_SEND_FIRST, 0, 256)
    talk.ask(OpCode.UC_SEND_MIDDLE, 1, 256)
    talk.frames.append((talk.frames[-1][0] + 1000, talk.frames[-1][1]))
    talk.ask(OpCode.UC_SEND_LAST, 2, 64)
    story = story_of(talk)

    assert "drops the duplicate" not in text_of(story)
    assert "Nothing went wrong" not in story.verdict
    assert "those of several packets may be lost" in story.verdict


def test_packets_of_uc_in_the_other_direction_are_not_called_uncaptured() -> None:
    talk = Talk()
    for psn in range(3):
        talk.ask(OpCode.UC_SEND_ONLY, psn, 64)
        talk.ask(OpCode.UC_SEND_ONLY, 90 + psn, 64, sender=1)

    for story in stories_of(talk):
        assert "Only packets of A are in the capture" not in text_of(story)
