"""What may change in a connection, and what is found of fields and checksums that may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connections.talk import Talk, with_bth
from ibwire.rules.findings import ANY, Severity
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode as Op
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import Packet, RoCEv2Route
from rules.broken_rules import with_checksums, with_ip, with_port
from rules.check_frames import ids, judge


def test_reserved_bits_in_one_packet_are_found_also_where_a_habit_is_accepted() -> None:
    """hns sets them in every request: to change them is no habit."""
    talk = Talk()
    talk.sends(0, 2)
    talk.ask(Op.RC_SEND_ONLY, 2, 64, change=with_bth(resv6a=0x10))
    talk.sends(3, 1, msn=4)

    (finding,) = judge(talk.frames, ANY)
    assert (finding.rule.id, finding.severity) == ("constant.reserved", Severity.NOTE)
    assert finding.numbers == [5]


def test_requests_and_responses_may_have_other_fields() -> None:
    """hns sets a reserved bit in requests alone."""
    talk = Talk()
    for psn in range(4):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1, change=with_bth(resv6a=0x10))
        talk.answer(psn, psn + 1, change=with_ip(dscp=26))
        talk.ask(Op.RC_SEND_ONLY, 50 + psn, 64, sender=1)

    assert ids(judge(talk.frames, ANY)) == set()


def test_one_finding_names_every_odd_packet_and_not_the_way_back() -> None:
    talk = Talk()
    for psn in range(12):
        odd = with_bth(pkey=0x8001) if psn % 3 == 1 else None
        talk.ask(Op.RC_SEND_ONLY, psn, 64, change=odd)

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.numbers) == ("constant.p-key", [2, 5, 8, 11])
    assert finding.text == "RC_SEND_ONLY with P_Key 0x8001, but 0xffff in packet 1"


def test_a_cnp_has_a_dscp_of_its_own() -> None:
    talk = Talk()
    talk.sends(0, 2)
    talk.put(0, Op.CNP, 0, 0, h.CNPReserved(), becn=1, change=with_ip(dscp=48))
    talk.sends(2, 2, msn=3)

    assert judge(talk.frames) == []


def test_management_datagrams_may_change_everything() -> None:
    talk = Talk()
    for change in (with_port(50001), with_ip(dscp=8), with_bth(pkey=0x8001)):
        deth = h.DETH(qkey=0x80010000, src_qp=1)
        talk.put(0, Op.UD_SEND_ONLY, 0, 256, deth, dest_qp=1)
        talk.put(0, Op.UD_SEND_ONLY, 1, 256, deth, dest_qp=1, change=change)

    assert judge(talk.frames) == []


def test_a_datagram_has_the_path_of_its_address_handle_and_the_p_key_of_its_queue_pair() -> None:
    talk = Talk()
    changes = (None, with_port(50001), with_ip(dscp=8), None, with_bth(pkey=0x8001), None)
    for psn, change in enumerate(changes):
        talk.ask(Op.UD_SEND_ONLY, psn, 256, change=change)

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.numbers) == ("constant.p-key", [5])


def test_a_queue_pair_that_was_reset_may_have_another_path() -> None:
    talk = Talk()
    talk.sends(0, 4)
    for psn in range(0x700000, 0x700004):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1, change=_moved)
        talk.answer(psn, psn - 0x700000 + 1, change=_moved)

    assert judge(talk.frames) == []


def test_a_queue_pair_whose_path_migrates_may_have_another_path() -> None:
    """IBA 17.2.8: MigReq is 0 while migration is armed, 1 on the new path."""
    talk = Talk()
    for psn in range(6):
        fields = {"mig_req": 0} if psn < 3 else {"pkey": 0x8001}
        change = with_bth(**fields)
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1, change=change)
        talk.answer(psn, psn + 1, change=change)

    assert ids(judge(talk.frames)) == {"integrity.mig-req"}


@pytest.mark.parametrize("count", [1, 4])
def test_few_wrong_checksums_may_be_damage(count: int) -> None:
    talk = Talk()
    for psn in range(8):
        talk.ask(Op.RC_SEND_ONLY, psn, 61, change=with_checksums(ip=0x40) if psn < count else None)

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.count) == ("integrity.ip-checksum", count)
    assert finding.severity is (Severity.ERROR if count == 4 else Severity.NOTE)


def test_a_capture_before_the_adapter_fills_in_checksums_is_not_wrong() -> None:
    """IPv4 has 0, UDP the sum of the pseudo header (RFC 768), here computed by hand."""
    talk = Talk()

    def unfilled(packet: Packet) -> Packet:
        route = packet.route
        assert isinstance(route, RoCEv2Route)
        assert isinstance(route.ip, IPv4)
        # 10.0.0.1, 10.0.0.2, protocol 17, and 8 + 12 + 64 + 4 bytes
        partial = 0x0A00 + 0x0001 + 0x0A00 + 0x0002 + 17 + 88
        ip, udp = replace(route.ip, checksum=0), replace(route.udp, checksum=partial)
        return replace(packet, route=replace(route, ip=ip, udp=udp))

    for psn in range(6):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1, change=unfilled)
        talk.answer(psn, psn + 1)

    assert judge(talk.frames) == []


def test_one_empty_ip_checksum_among_others_is_found() -> None:
    talk = Talk()
    talk.sends(0, 2)
    time, frame = talk.frames[2]
    talk.frames[2] = time, frame[:24] + bytes(2) + frame[26:]

    (finding,) = judge(talk.frames)
    assert (finding.rule.id, finding.numbers) == ("integrity.ip-checksum", [3])
    assert "checksum 0x0000" in finding.text


@pytest.mark.parametrize(("checksum", "is_right"), [(0x551F, True), (0x551E, False)])
def test_a_udp_checksum_is_that_of_rfc_768(checksum: int, is_right: bool) -> None:
    """The right one was computed by Scapy for the same frame."""
    talk = Talk()
    talk.ask(Op.RC_SEND_ONLY, 0, 61, change=with_checksums(udp=checksum))

    assert ids(judge(talk.frames)) == (set() if is_right else {"integrity.udp-checksum"})


def _moved(packet: Packet) -> Packet:
    for change in (with_ip(dscp=46), with_bth(pkey=0x8001), with_port(50002)):
        packet = change(packet)
    return packet
