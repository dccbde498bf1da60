"""Hand-made conversations of correct devices, of which one was once accused."""

from __future__ import annotations

from connections.talk import Talk, with_bth
from diagnosis.test_known_truths import answer_read, damage, send
from ibwire_layers.opcodes import OpCode
from rules.check_frames import grave, ids, judge

READ = OpCode.RC_RDMA_READ_REQUEST
FIRST, MIDDLE, LAST = (
    OpCode.RC_RDMA_READ_RESPONSE_FIRST,
    OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
    OpCode.RC_RDMA_READ_RESPONSE_LAST,
)
SEQUENCE = 0x60


def test_all_that_follows_a_lost_atomic_response_is_retransmitted_with_reason() -> None:
    """The response to the atomic is lost behind this point, so that A goes back to it."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    for is_again in (False, True):
        talk.ask(OpCode.RC_FETCH_ADD, 2)
        send(talk, 3, 4, 5)
        if not is_again:
            talk.answer(2, 3, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
            talk.answer(3, 4)
    talk.answer(4, 5)
    talk.answer(5, 6)
    talk.answer(2, 6, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
    for _ in range(3):
        talk.answer(5, 6)

    assert "repeat.needless" not in ids(judge(talk.frames))


def test_a_retransmission_before_its_only_ack_came_is_needless() -> None:
    """The same without what is owed: nothing asks A to go back to PSN 2."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 2)
    send(talk, 2)
    talk.wait(1500)
    send(talk, 2)
    talk.answer(2, 3)
    talk.answer(2, 3)

    assert "repeat.needless" in ids(judge(talk.frames))


def test_responses_go_on_to_the_read_before_the_one_that_asks_again() -> None:
    """Two READs of the same; only the first one arrives, and is answered from its first PSN."""
    talk = Talk()
    talk.sends(0, 1)
    talk.ask(READ, 1, length=600)
    answer_read(talk)
    talk.wait(2000)
    talk.ask(READ, 1, length=600)
    talk.ask(READ, 2, length=344, va=0x10000 + 256)
    answer_read(talk)
    talk.sends(4, 2, msn=3)

    assert "reads.replay" not in ids(judge(talk.frames))


def test_a_retransmission_that_was_damaged_at_first_leaves_nothing_out() -> None:
    """PSN 4 was seen damaged alone: its first undamaged packet follows what is retransmitted."""
    talk = Talk()
    talk.sends(0, 2)
    send(talk, 2, 3)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 4)
    damage(talk)
    send(talk, 2, 3, 4)
    talk.answer(4, 5)
    talk.sends(5, 2, msn=6)

    assert "repeat.selective" not in ids(judge(talk.frames))


def test_a_message_that_a_read_of_unknown_length_seemed_to_cover_counts() -> None:
    """The second message arrives damaged before a response has shown the path MTU."""
    talk = Talk()
    talk.ask(READ, 0, length=2000)
    send(talk, 4)
    damage(talk)
    send(talk, *range(5, 9))
    for psn, opcode in ((0, FIRST), (1, MIDDLE), (2, MIDDLE), (3, LAST)):
        talk.answer(psn, 1, opcode=opcode, size=512 if opcode != LAST else 464)
    talk.answer(4, 1, SEQUENCE)
    send(talk, *range(4, 9))
    for psn in range(4, 9):
        talk.answer(psn, psn - 2)
    send(talk, 9, 10, 11)
    for psn in range(9, 12):
        talk.answer(psn, psn - 2)

    assert "psn_acks.msn" not in ids(judge(talk.frames))


def test_what_a_nak_asks_for_is_not_needless_behind_a_request_that_was_under_way() -> None:
    """PSN 2 is late behind this point: B refuses PSN 3, then acknowledges PSN 2 twice."""
    talk = Talk()
    talk.sends(0, 2)
    send(talk, 2, 3)
    talk.answer(2, 2, SEQUENCE)
    send(talk, 4)
    for psn in (2, 3, 4):
        send(talk, psn)
        talk.answer(psn, psn + 1)
    talk.answer(4, 5)
    talk.sends(5, 2, msn=6)

    assert "repeat.needless" not in ids(judge(talk.frames))


def test_an_ack_with_the_psn_of_a_read_may_be_that_of_a_duplicate() -> None:
    """The response to the READ is lost before this point. The ACK of PSN 2, which comes again, has
    the newest PSN (IBA 9.7.5.1.4, C9-105; qib_rc.c qib_rc_rcv_error)."""
    talk = Talk()
    talk.sends(0, 1)
    for is_again in (False, True):
        talk.ask(OpCode.RC_FETCH_ADD, 1)
        send(talk, 2)
        talk.ask(READ, 3, length=4)
        talk.answer(1, 4 if is_again else 2, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
        talk.answer(3 if is_again else 2, 4 if is_again else 3)
        talk.answer(3, 4, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY, size=4)
        if not is_again:
            talk.frames.pop()
            talk.wait(2000)

    assert grave(judge(talk.frames)) == []


def test_a_request_that_is_older_than_its_ack_was_not_acknowledged_early() -> None:
    """A port whose packets are recorded late: the times show in which order they passed."""
    talk = Talk()
    talk.sends(0, 4)
    send(talk, 4)
    talk.answer(4, 5)
    request, answer = talk.frames[-2:]
    talk.frames[-2:] = answer, request
    talk.sends(5, 3, msn=6)

    assert "psn_acks.early" not in ids(judge(talk.frames))


def test_responses_whose_connection_is_a_guess_have_any_path_mtu() -> None:
    """Two connections with the same PSNs, of MTU 512 and 256, answered in the same order."""
    talk = Talk(counts_ids=False)
    for psn in (0, 1):
        for there in (0x22, 0x23):
            for offset, opcode in enumerate((OpCode.RC_SEND_FIRST, OpCode.RC_SEND_LAST)):
                size = 512 if there == 0x22 else 256
                talk.ask(opcode, 2 * psn + offset, size, change=with_bth(dest_qp=there))
        for here in (0x11, 0x12):
            talk.answer(2 * psn + 1, psn + 1, change=with_bth(dest_qp=here))
    for there in (0x22, 0x23):
        talk.ask(READ, 4, length=600, change=with_bth(dest_qp=there))
    for here, size in ((0x11, 512), (0x12, 256)):
        talk.answer(4, 3, opcode=FIRST, size=size, change=with_bth(dest_qp=here))

    assert grave(judge(talk.frames)) == []


def test_an_ack_more_than_was_asked_for_may_be_that_of_a_duplicate_of_the_network() -> None:
    """PSN 3 comes twice behind this point: B acknowledges it twice, and the first ACK is late."""
    talk = Talk()
    talk.sends(0, 2)
    for _ in range(2):
        talk.ask(OpCode.RC_SEND_FIRST, 2, 256)
        talk.ask(OpCode.RC_SEND_LAST, 3, 64, ack_req=1)
        talk.wait(2000)
    for _ in range(3):
        talk.answer(3, 3)
    talk.sends(4, 2, msn=4)

    assert "repeat.unasked-ack" not in ids(judge(talk.frames))
