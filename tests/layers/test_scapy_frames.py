"""Frames as captures have them: padded, with FCS, tagged, cut; and values a user insists on."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from typing import Any

import pytest
from scapy.contrib import roce
from scapy.layers.inet import IP, UDP, IPOption
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Padding, Raw, bind_layers, split_layers
from scapy.utils import rdpcap, wrpcap

from each_case import each_case
from ibwire_layers.scapy import (
    AETH,
    BTH,
    CNP,
    DETH,
    ERF,
    GRH,
    LRH,
    PFC,
    RETH,
    FlowControl,
    ImmDt,
    IPoIB,
    Pause,
)
from vectors import load

FRAMES = {vector.name: vector.frame for vector in load()}


def ether(*tags: Packet) -> Packet:
    frame: Packet = Ether(src="00:00:00:00:00:01", dst="00:00:00:00:00:02")
    for tag in tags:
        frame /= tag
    return frame


def ip(**fields: Any) -> Packet:
    return IP(src="192.0.2.1", dst="192.0.2.2", **fields) / UDP(sport=0xC123)


def ip6(**fields: Any) -> Packet:
    return IPv6(src="2001:db8::1", dst="2001:db8::2", **fields) / UDP(sport=0xC123)


def grh() -> Packet:
    return GRH(sgid="fe80::1", dgid="fe80::2")


def lrh(**fields: Any) -> Packet:
    return LRH(slid=1, dlid=2, **fields)


SEND = BTH(opcode="RC_SEND_ONLY", dest_qp=0x11, psn=7)

LOWER = {
    "v2": ether() / ip(),
    "v2 options": ether() / ip(options=[IPOption(b"\x94\x04\x00\x00")]),
    "v2 over IPv6": ether() / ip6(),
    "v2 with VLAN": ether(Dot1Q(vlan=5)) / ip(),
    "v2 with two tags": ether(Dot1AD(vlan=5), Dot1Q(vlan=6)) / ip6(),
    "v1": ether() / grh(),
    "v1 with VLAN": ether(Dot1Q(vlan=5)) / grh(),
    "local": lrh(),
    "global": lrh() / grh(),
}


@each_case("lower", LOWER.values(), ids=list(LOWER))
@each_case("trailing", [b"\0\0", bytes(18), b"\x12\x34\x56\x78", b"\0\0fcs4"])
def test_what_follows_the_packet_is_padding(lower: Packet, trailing: bytes) -> None:
    whole = bytes(lower / SEND / b"abcdef")

    packet = type(lower)(whole + trailing)

    assert packet[BTH].payload.do_build() == b"abcdef"
    assert packet[Padding].load == trailing
    assert packet[BTH].icrc_ok() is True
    assert bytes(packet) == whole + trailing


def test_padded_frame_with_fcs_verifies() -> None:
    frame = bytes(ether() / ip() / SEND).ljust(60, b"\0")
    frame += zlib.crc32(frame).to_bytes(4, "little")

    packet = Ether(frame)

    assert len(bytes(ether() / ip() / SEND)) == 58
    assert packet[BTH].icrc_ok() is True
    assert Raw not in packet[BTH]
    assert bytes(packet) == frame


@each_case("lower", LOWER.values(), ids=list(LOWER))
def test_cut_packet_has_no_icrc_and_nothing_but_payload_in_its_payload(lower: Packet) -> None:
    send = BTH(opcode="RC_SEND_ONLY_WITH_IMMEDIATE", psn=7) / ImmDt(imm_data=1)
    whole = bytes(lower / send / bytes(range(1, 12)))
    icrc_end = len(whole) - 2 * (LRH in lower)
    start = icrc_end - 4 - 12 - 16

    for captured in range(start + 16, icrc_end):
        packet = type(lower)(whole[:captured])
        available = min(captured - start - 16, 11)

        assert packet[BTH].icrc is None
        assert packet[BTH].icrc_ok() is None
        assert packet[ImmDt].payload.do_build() == bytes(range(1, 12))[:available]
        assert bytes(packet) == whole[:captured]
        packet.clear_cache()
        assert bytes(packet) == whole[:captured]


@each_case("lower", LOWER.values(), ids=list(LOWER))
def test_pad_bytes_that_are_not_zero_are_kept(lower: Packet) -> None:
    built = bytes(lower / BTH(pad=b"\xaa\xbb") / b"abcdef")

    packet = type(lower)(built)

    assert (packet[BTH].pad_count, packet[BTH].pad) == (2, b"\xaa\xbb")
    assert packet[BTH].payload.do_build() == b"abcdef"
    assert packet[BTH].icrc_ok() is True
    assert bytes(packet) == built


def test_pad_count_larger_than_the_payload_takes_no_header_bytes() -> None:
    ack = BTH(opcode="RC_ACKNOWLEDGE", pad_count=3, pad=b"") / AETH(syndrome=0x1F, msn=9)

    packet = Ether(bytes(ether() / ip() / ack))

    assert packet[AETH].msn == 9
    assert packet[BTH].icrc_ok() is True


def test_what_the_user_sets_wins() -> None:
    frame = ether() / ip(len=0x1234) / SEND / b"abc"
    frame[UDP].len = 0x4321
    frame[UDP].chksum = 0x1111
    frame[BTH].pad_count = 3
    frame[BTH].icrc = 0xDEADBEEF

    built = bytes(frame)

    assert built[16:18] == b"\x12\x34"
    assert built[38:42] == b"\x43\x21\x11\x11"
    assert built[43] >> 4 & 3 == 3
    assert built[54:] == b"abc\0\0\0\xde\xad\xbe\xef"


def test_native_lengths_and_checks_that_the_user_sets_win() -> None:
    packet = lrh(pkt_len=99, vcrc=0x1234, lnh=1) / GRH(pay_len=7, nxt_hdr=3) / BTH(icrc=1)

    built = bytes(packet)

    assert built[1] & 3 == 1
    assert built[4:6] == (99).to_bytes(2)
    assert built[12:15] == b"\0\7\3"
    assert built[-6:] == b"\0\0\0\1\x12\x34"
    assert bytes(FlowControl(lpcrc=5))[-2:] == b"\0\5"


def test_icrc_may_be_left_out() -> None:
    assert bytes(BTH(icrc=b"") / b"abcd")[12:] == b"abcd"


def test_opcode_is_not_changed_by_what_is_put_behind() -> None:
    assert Ether(bytes(ether() / ip() / BTH() / RETH()))[BTH].opcode == 0x04


def test_icrc_does_not_depend_on_the_udp_checksum_nor_on_masked_fields() -> None:
    plain = Ether(bytes(ether() / ip() / SEND / b"abcd"))
    marked = ether() / ip(tos=0xFF, ttl=3) / SEND.copy() / b"abcd"
    marked[UDP].chksum = 0
    marked[BTH].fecn = 1

    assert Ether(bytes(marked))[BTH].icrc == plain[BTH].icrc


def test_deleted_icrc_is_computed_for_the_changed_packet() -> None:
    packet = Ether(bytes(ether() / ip() / SEND / b"abcd"))
    packet[BTH].psn = 8
    stale = Ether(bytes(packet))[BTH].icrc_ok()
    del packet[BTH].icrc

    assert stale is False
    assert Ether(bytes(packet))[BTH].icrc_ok() is True


def test_bth_without_anything_around_has_an_unknown_icrc() -> None:
    assert bytes(BTH())[12:] == bytes(4)
    assert BTH(bytes(16)).icrc_ok() is None


@each_case("lower", [ip(), ip6()], ids=["IPv4", "IPv6"])
@each_case("size", [0, 4, 64, 1024])
def test_icrc_agrees_with_scapys_own_roce_layer(lower: Packet, size: int) -> None:
    payload = bytes(i & 0xFF for i in range(size))

    ours = bytes(lower / BTH(opcode=0x04, dest_qp=0x11, psn=7, mig_req=1) / payload)
    theirs = bytes(lower / roce.BTH(opcode=0x04, dqpn=0x11, psn=7, migreq=1) / payload)

    assert ours == theirs


def test_cnp_is_as_scapys_own_and_as_the_golden_one() -> None:
    # tests/golden: v1_cnp.
    golden = Ether(FRAMES["v1_cnp"])[BTH]

    assert bytes(ip() / CNP(0x11)) == bytes(ip() / roce.cnp(0x11))
    cnp = CNP(golden.dest_qp, mig_req=golden.mig_req, pkey=golden.pkey)
    assert bytes(cnp)[:-4] == golden.do_build()[:-4]


def test_ip_fragment_has_no_icrc() -> None:
    whole = bytes(ip() / SEND / bytes(100))
    first = IP(src="192.0.2.1", dst="192.0.2.2", flags="MF", proto=17) / whole[20:84]

    packet = IP(bytes(first))

    assert packet[BTH].icrc is None


def test_inner_padding_does_not_move_behind_the_icrc() -> None:
    bind_layers(DETH, IPoIB, qkey=0x0B1B)
    try:
        inner = bytes(IPoIB() / IP(src="192.0.2.1", dst="192.0.2.2", proto=200) / b"abcd")
        deth = BTH(opcode="UD_SEND_ONLY") / DETH(qkey=0x0B1B)

        whole = LRH(bytes(lrh() / deth / inner))
        short = LRH(bytes(lrh() / deth / (inner + b"behind")))

        assert whole[IP].dst == "192.0.2.2"
        assert short[IPoIB].payload.do_build() == inner[4:] + b"behind"
        assert short[BTH].icrc_ok() is True
    finally:
        split_layers(DETH, IPoIB, qkey=0x0B1B)


def test_ipoib_carries_ip() -> None:
    packet = IPoIB(bytes(IPoIB() / ip6()))

    assert packet.ether_type == 0x86DD
    assert packet[IPv6].dst == "2001:db8::2"


@pytest.mark.parametrize("frame", [Pause(pause_time=7), PFC(class_enable=8, time_=(0, 0, 0, 9))])
@pytest.mark.parametrize("tags", [[], [Dot1Q(vlan=0, prio=3)]], ids=["untagged", "tagged"])
def test_mac_control_frame_is_60_bytes(frame: Packet, tags: list[Packet]) -> None:
    built = bytes(ether(*tags) / frame)

    packet = Ether(built)

    assert len(built) == 60
    assert bytes(packet[type(frame)]).startswith(bytes(frame))
    packet.clear_cache()
    assert bytes(packet) == built


def test_mac_control_frame_goes_to_the_reserved_address() -> None:
    # IEEE 802.3 31B.1
    assert (Ether() / Pause()).dst == (Ether() / PFC()).dst == "01:80:c2:00:00:01"
    assert (Ether(dst="00:00:00:00:00:02") / PFC()).dst == "00:00:00:00:00:02"


def test_other_mac_control_opcodes_are_raw() -> None:
    frame = bytes(Ether(src="00:00:00:00:00:01", dst="00:00:00:00:00:02", type=0x8808)) + bytes(46)

    assert Raw in Ether(frame)


def pcap(link_type: int, *records: bytes) -> io.BytesIO:
    file = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link_type)
    for record in records:
        file += struct.pack("<IIII", 1, 2, len(record), len(record)) + record
    return io.BytesIO(file)


def test_capture_of_link_type_infiniband_is_read() -> None:
    frame = FRAMES["ib_local_rc_write_only"]

    (packet,) = rdpcap(pcap(247, frame))

    assert packet[LRH].payload.name == "BTH"
    assert packet[BTH].icrc_ok() is True
    assert bytes(packet) == frame


def test_written_native_packets_have_link_type_infiniband() -> None:
    file = io.BytesIO()
    file.close = lambda: None  # type: ignore[method-assign]  # wrpcap would discard it

    wrpcap(file, [lrh() / SEND])

    assert file.getvalue()[20:24] == (247).to_bytes(4, "little")


@pytest.mark.parametrize("extensions", [b"", b"\x84" + bytes(7) + b"\x04" + bytes(7)])
def test_capture_of_link_type_erf_is_read(extensions: bytes) -> None:
    frame = FRAMES["ib_global_ud_mcast"]
    erf = ERF(more=int(bool(extensions)), extensions=extensions) if extensions else ERF()
    record = bytes(erf / LRH(frame)) + bytes(3)

    (packet,) = rdpcap(pcap(197, record))

    assert record[8] & 0x7F == 21
    assert packet[ERF].wire_length == len(frame)
    assert packet[BTH].icrc_ok() is True
    assert packet[Padding].load == bytes(3)
    assert bytes(packet) == record


def test_erf_record_of_a_link_packet() -> None:
    packet = ERF(bytes(ERF() / FlowControl(vl=3, fccl=5)))

    assert packet.type == 25
    assert packet[FlowControl].fccl == 5


@pytest.mark.parametrize("kind", [2, 11, 16, 20])
def test_erf_record_of_an_ethernet_frame(kind: int) -> None:
    frame = bytes(ether() / ip() / SEND)

    record = bytes(ERF(type=kind) / Ether(frame))

    assert record[16:] == bytes(2) + frame
    assert ERF(record)[BTH].icrc_ok() is True
    assert bytes(ERF() / Ether(frame))[8] == 2


def test_packet_survives_pickle() -> None:
    packet = Ether(bytes(ether() / ip() / SEND / b"abc"))

    assert bytes(pickle.loads(pickle.dumps(packet))) == bytes(packet)


def test_summary_has_addresses_opcode_queue_pair_psn_and_syndrome() -> None:
    ack = BTH(opcode="RC_ACKNOWLEDGE", dest_qp=0x11, psn=7) / AETH(syndrome=0x60, msn=3)

    assert (ether() / ip() / ack).summary() == (
        "Ether / IP / UDP 192.0.2.1:49443 > 192.0.2.2:4791"
        " / RC_ACKNOWLEDGE qp=0x11 psn=7 / AETH NAK PSN_SEQUENCE_ERROR msn=3"
    )


def test_show_names_opcodes_and_prints_addresses_and_crcs() -> None:
    packet = Ether(bytes(ether() / grh() / BTH(opcode="CNP", dest_qp=0x11)))

    shown = packet.show(dump=True)

    assert "opcode    = CNP" in shown  # type: ignore[operator]
    assert "sgid      = fe80::1" in shown  # type: ignore[operator]
    assert f"icrc      = {packet[BTH].icrc:#x}" in shown  # type: ignore[operator]
