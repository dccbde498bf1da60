"""What a capture cannot show for certain is not said: conversations that only look wrong."""

from dataclasses import replace

import pytest

from connections.talk import VA, Talk, with_bth
from ibwire.rules.findings import Severity
from ibwire_layers.opcodes import OpCode as Op
from ibwire_layers.packet import Packet
from rules.check_frames import grave, ids, judge

RNR_5_MS = 0x20 | 18
SEQUENCE = 0x60
CREDITS_4 = 0x04


@pytest.mark.parametrize("counts_ids", [True, False])
def test_a_copy_of_a_nak_is_no_second_nak(counts_ids: bool) -> None:
    talk = Talk(counts_ids)
    talk.sends(0, 1)
    talk.ask(Op.RC_SEND_ONLY, 2, 64, ack_req=1)
    talk.answer(1, 1, SEQUENCE)
    time, nak = talk.frames[-1]
    talk.frames.append((time + 5000, nak))

    assert grave(judge(talk.frames)) == []


def test_three_equal_naks_are_more_than_copies() -> None:
    """What comes again within 1 ms may be a second copy of a mirror: `identity.DUPLICATE_NS`."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 1)
    talk.ask(Op.RC_SEND_ONLY, 2, 64, ack_req=1)
    for _ in range(3):
        talk.answer(1, 1, SEQUENCE)
        talk.wait(1_100)

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.numbers) == ("naks.once", [6])


def test_a_nak_that_was_overtaken_by_acknowledgements_is_not_wrong() -> None:
    """Its MSN is older than theirs; the sender does not count its IP identification."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 4)
    talk.answer(2, 2, SEQUENCE)

    assert grave(judge(talk.frames)) == []


@pytest.mark.parametrize(("counts_ids", "rules"), [(False, []), (True, ["naks.acknowledged"])])
def test_a_nak_and_an_acknowledgement_inside_a_message_have_the_same_msn(
    counts_ids: bool, rules: list[str]
) -> None:
    """Which of them left first only the IP identification says."""
    talk = Talk(counts_ids)
    talk.sends(0, 10)
    talk.ask(Op.RC_SEND_FIRST, 10, 1024)
    talk.ask(Op.RC_SEND_MIDDLE, 11, 1024)
    talk.ask(Op.RC_SEND_MIDDLE, 12, 1024, ack_req=1)
    talk.answer(12, 10)
    talk.answer(11, 10, SEQUENCE)

    assert [each.split()[0] for each in grave(judge(talk.frames))] == rules


def test_a_packet_that_came_to_be_refused_may_be_naked_again() -> None:
    """The capture lacks the packet, and has the RNR NAK that it drew."""
    talk = Talk()
    talk.sends(0, 1)
    for syndrome in (SEQUENCE, RNR_5_MS, SEQUENCE):
        talk.ask(Op.RC_SEND_ONLY, 2, 64, ack_req=1)
        talk.answer(1, 1, syndrome)

    assert "naks.once" not in ids(judge(talk.frames))


def test_a_request_whose_ack_was_lost_is_retransmitted_with_reason() -> None:
    """The ACKs of duplicates are of the newest PSN: two come, and neither is the first."""
    talk = Talk()
    talk.sends(0, 1)
    for _ in range(2):
        for psn in (1, 2):
            talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.wait(100_000)
    for _ in range(2):
        talk.answer(2, 3)
        talk.wait(150)

    assert judge(talk.frames) == []


def test_a_needless_retransmission_is_found_at_the_requester() -> None:
    talk = Talk()
    talk.sends(0, 1)
    for _ in range(2):
        talk.ask(Op.RC_SEND_ONLY, 1, 64, ack_req=1)
        talk.wait(300)
    for _ in range(2):
        talk.answer(1, 2)
        talk.wait(150)

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.location.src, finding.numbers) == (
        "repeat.needless",
        "10.0.0.1",
        [4],
    )


def test_an_msn_stands_still_while_reads_before_the_capture_are_replayed() -> None:
    """As often as READs may be outstanding: the responder had executed all of them."""
    talk = Talk()
    for psn in range(16):
        talk.ask(Op.RC_RDMA_READ_REQUEST, psn, length=64, ack_req=1)
        talk.answer(psn, 30, opcode=Op.RC_RDMA_READ_RESPONSE_ONLY, size=64)

    assert judge(talk.frames) == []


@pytest.mark.parametrize(("msn", "following"), [(6, 6), (20, 21)])
def test_one_msn_that_counts_too_much_is_wrong_whether_the_next_ones_do_or_not(
    msn: int, following: int
) -> None:
    """Without IP identifications; each request is alone, so none that is not here was executed."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 4)
    talk.sends(4, 1, msn)
    talk.sends(5, 4, following)

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.numbers) == ("psn_acks.msn", [10])


@pytest.mark.parametrize("doubt", ["under way", "ack first", "retransmitted"])
def test_all_msns_may_count_requests_that_the_capture_lacks(doubt: str) -> None:
    """Where it shows that requests were under way, or were recorded late, or came before."""
    talk = Talk(counts_ids=False)
    if doubt == "ack first":
        talk.sends(0, 3)
        talk.answer(3, 4)
        talk.ask(Op.RC_SEND_ONLY, 3, 64, ack_req=1)
    else:
        talk.sends(0, 4)
    if doubt == "retransmitted":
        talk.wait(100_000)
        talk.ask(Op.RC_SEND_ONLY, 3, 64, ack_req=1)
        talk.answer(3, 4)
    talk.ask(Op.RC_SEND_ONLY, 4, 64, ack_req=1)
    if doubt == "under way":
        talk.ask(Op.RC_SEND_ONLY, 5, 64, ack_req=1)
        talk.answer(4, 7)
    else:
        talk.answer(4, 6)
        talk.ask(Op.RC_SEND_ONLY, 5, 64, ack_req=1)
    talk.answer(5, 8 if doubt == "under way" else 7)
    talk.sends(6, 4, msn=9 if doubt == "under way" else 8)

    assert grave(judge(talk.frames)) == []


@pytest.mark.parametrize(("answered", "rules"), [(1, []), (2, ["psn_acks.sent"])])
def test_an_ack_shortly_ahead_is_wrong_if_the_next_two_requests_are_answered_below(
    answered: int, rules: list[str]
) -> None:
    """Without IP identifications; one such response may have been delayed by the network."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 5)
    talk.answer(20, 21)
    talk.sends(5, answered, msn=6)

    assert [each.split()[0] for each in grave(judge(talk.frames))] == rules


@pytest.mark.parametrize("doubt", ["beyond", "under way", "msn", "earlier"])
def test_an_ack_shortly_ahead_may_be_of_requests_that_the_capture_lacks(doubt: str) -> None:
    """The next ones go on from it, or others were under way, or it was not the first one."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 4)
    if doubt == "earlier":
        talk.answer(4, 5)
    talk.ask(Op.RC_SEND_ONLY, 4, 64, ack_req=1)
    if doubt != "earlier":
        talk.answer(4, 5)
    talk.answer(20, 21)
    if doubt == "under way":
        for psn in range(5, 8):
            talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(5, 6)
        talk.answer(6, 7)
    else:
        for psn in (5, 6):
            talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
            answers = {"beyond": (psn + 16, psn + 17), "msn": (psn, 21)}
            talk.answer(*answers.get(doubt, (psn, psn + 1)))

    assert grave(judge(talk.frames)) == []


def test_requests_that_the_capture_lacks_may_be_acknowledged() -> None:
    """A burst of 200, of which only the ACKs are here."""
    talk = Talk()
    talk.sends(0, 3)
    for psn in (202, 203):
        talk.answer(psn, psn + 1)
    talk.sends(204, 3, msn=205)

    assert grave(judge(talk.frames)) == []


def test_one_rnr_nak_that_is_not_heeded_may_have_been_lost_behind_the_capture() -> None:
    talk = Talk()
    talk.ask(Op.RC_SEND_ONLY, 0, 64, ack_req=1)
    talk.answer(0, 0, RNR_5_MS)
    talk.wait(1000)
    talk.sends(0, 1)

    assert grave(judge(talk.frames)) == []


@pytest.mark.parametrize("is_other_captured", [True, False])
def test_waits_are_not_judged_where_the_clock_of_the_capture_goes_back(
    is_other_captured: bool,
) -> None:
    """It is set back by 4 ms during each wait of 5.12 ms, as packets of another connection show."""
    talk, other = Talk(), Talk(number=1)
    other.ask(Op.UD_SEND_ONLY, 0, 64)
    frames = []
    for psn in range(3):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn, RNR_5_MS)
        frames += talk.frames
        if is_other_captured:
            frames.append((frames[-1][0] + 5_000_000, other.frames[0][1]))
        talk.frames.clear()
        talk.wait(5_200 - 4_000)
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)

    found = ids(judge(frames + talk.frames))

    assert ("naks.rnr-wait" in found) is not is_other_captured


def test_replays_at_the_start_of_a_capture_have_an_msn_that_stands_still() -> None:
    """The responder had executed both before the capture begins."""
    talk = Talk()
    for psn in (0, 1):
        talk.ask(Op.RC_FETCH_ADD, psn, ack_req=1)
        talk.answer(psn, 7, opcode=Op.RC_ATOMIC_ACKNOWLEDGE)
    talk.sends(2, 2, msn=8)

    assert grave(judge(talk.frames)) == []


def test_replays_beside_each_other_have_an_msn_that_stands_still() -> None:
    """The responder had executed all four before the capture begins."""
    talk = Talk()
    for first in (0, 2):
        for psn in (first, first + 1):
            talk.ask(Op.RC_FETCH_ADD, psn, ack_req=1)
        for psn in (first, first + 1):
            talk.answer(psn, 9, opcode=Op.RC_ATOMIC_ACKNOWLEDGE)

    assert grave(judge(talk.frames)) == []


def test_a_nak_behind_atomics_has_the_msn_of_the_last_which_was_damaged() -> None:
    """All twelve were executed before the first response left; that of the last is not there."""
    talk = Talk()
    talk.sends(0, 5)
    for psn in range(5, 19):
        talk.ask(Op.RC_FETCH_ADD, psn, ack_req=1)
    for psn in range(5, 16):
        talk.answer(psn, 17, opcode=Op.RC_ATOMIC_ACKNOWLEDGE)
    talk.answer(17, 17, SEQUENCE)

    assert grave(judge(talk.frames)) == []


def test_one_message_beyond_the_credits_may_have_got_some_that_were_not_captured() -> None:
    talk = Talk()
    talk.sends(0, 3, syndrome=0x01)
    for psn in (3, 4, 5):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)

    assert grave(judge(talk.frames)) == []


def test_messages_that_need_no_credit_move_the_limit() -> None:
    """IBA 9.7.7.2: the responder counts them in its MSN, so the requester counts them as well."""
    talk = Talk()
    talk.sends(0, 3, syndrome=CREDITS_4)
    for psn in range(3, 8):
        talk.ask(Op.RC_RDMA_WRITE_ONLY, psn, 64)
    for psn in range(8, 12):
        talk.ask(Op.RC_SEND_ONLY, psn, 64)

    assert grave(judge(talk.frames)) == []


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_few_flipped_bits_that_no_icrc_covers_are_a_note(count: int) -> None:
    talk = Talk()
    for psn in range(count):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, change=with_bth(resv6a=1))

    (finding,) = judge(talk.frames, "connectx")
    assert (finding.rule.id, finding.severity) == (
        "integrity.byte-4",
        Severity.WARNING if count == 4 else Severity.NOTE,
    )
    assert finding.text.endswith("it may be damage that no ICRC shows") == (count < 4)


def test_a_read_that_may_be_the_rest_of_an_unseen_one_may_be_answered_from_the_middle() -> None:
    talk = Talk()
    talk.ask(Op.RC_RDMA_READ_REQUEST, 1, va=VA + 256, length=344, ack_req=1)
    talk.answer(1, 1, opcode=Op.RC_RDMA_READ_RESPONSE_MIDDLE, size=256)
    talk.answer(2, 1, opcode=Op.RC_RDMA_READ_RESPONSE_LAST, size=88)

    assert judge(talk.frames) == []


def test_what_breaks_a_rule_in_a_packet_that_was_cut_may_be_damage() -> None:
    """Its ICRC was not captured; one such packet is nothing, four are."""
    for count in (1, 3, 4):
        talk = Talk()
        for psn in range(count):
            talk.ask(Op.RC_SEND_ONLY, psn, 256, change=with_bth(tver=1))

        assert bool(grave(judge(talk.frames, snaplen=128))) == (count == 4)


def test_one_wrong_answer_that_was_cut_may_be_damage() -> None:
    talk = Talk()
    talk.sends(0, 3)
    talk.sends(3, 1, msn=3)

    assert ids(judge(talk.frames)) == {"psn_acks.msn"}
    assert judge(talk.frames, snaplen=58) == []


def test_a_read_that_waits_for_its_rest_is_sent_again_for_a_reason() -> None:
    talk = Talk()
    talk.sends(0, 2)
    talk.ask(Op.RC_RDMA_READ_REQUEST, 2, length=600)
    talk.answer(2, 3, opcode=Op.RC_RDMA_READ_RESPONSE_FIRST, size=256)
    talk.wait(100_000)
    talk.ask(Op.RC_RDMA_READ_REQUEST, 3, va=VA + 256, length=344)

    assert judge(talk.frames) == []


def test_a_queue_pair_that_was_reset_begins_anew() -> None:
    """Other PSNs, another path MTU, and messages counted from 1 again."""
    talk = Talk()
    for start, mtu in ((0, 256), (0x700000, 1024)):
        for step in (0, 2):
            talk.ask(Op.RC_SEND_FIRST, start + step, mtu)
            talk.ask(Op.RC_SEND_LAST, start + step + 1, 8, ack_req=1)
            talk.answer(start + step + 1, 1 + step // 2)

    assert grave(judge(talk.frames)) == []


def test_a_sender_whose_icrcs_are_mostly_wrong_is_to_blame() -> None:
    talk = Talk()
    for psn in range(10):
        wrong = psn % 3 > 0
        talk.ask(
            Op.RC_SEND_ONLY,
            psn,
            64,
            change=(lambda packet: replace(packet, icrc=bytes(4))) if wrong else None,
        )

    found = {finding.rule.id: finding for finding in judge(talk.frames)}
    assert found["integrity.icrc"].count == 6
    assert found["integrity.icrc"].text == "6 of 10 packets have a wrong ICRC"


def test_a_sender_that_is_wrong_about_one_kind_of_packet_is_to_blame() -> None:
    """Padded packets alone, as some implementations had it."""
    talk = Talk()
    for psn in range(20):
        wrong = psn % 5 == 0
        talk.ask(
            Op.RC_SEND_ONLY,
            psn,
            61 if wrong else 64,
            change=(lambda packet: replace(packet, icrc=bytes(4))) if wrong else None,
        )

    (finding,) = (each for each in judge(talk.frames) if each.rule.id == "integrity.icrc")
    assert finding.text == (
        "4 of 20 packets have a wrong ICRC, among them every RC_SEND_ONLY of the same padding"
    )


def _damaged(packet: Packet) -> Packet:
    return replace(packet, icrc=bytes(4))


@pytest.mark.parametrize(("psn", "others"), [(4, 0), (8, 4)], ids=["newest", "PSN damaged"])
def test_a_message_whose_psn_a_damaged_packet_had_is_counted(psn: int, others: int) -> None:
    """Its first transmission was damaged, or that of an earlier request, in its PSN."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 4)
    talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1, change=_damaged)
    talk.wait(100_000)
    talk.sends(4, others, msn=5)
    for first in (psn, psn + 4):
        for each in range(first, first + 4):
            talk.ask(Op.RC_SEND_ONLY, each, 64, ack_req=1)
        for each in range(first, first + 4):
            talk.answer(each, each + 1)

    assert grave(judge(talk.frames)) == []
