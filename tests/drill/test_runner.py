"""What each line of a script asks for, and how a device that does otherwise is reported."""

from __future__ import annotations

import pytest

from each_case import each_case
from ibwire.drill import Verdict, parse, report, run
from ibwire.drill.packets import pattern
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

SENT = "+1us < WRITE_ONLY psn ack len=8\n"
"""Draws `ACKNOWLEDGE psn msn=1` in the same moment."""


def drill(text: str, profile: str = "spec") -> Verdict:
    script = parse(text.encode(), "s.drill", profile)
    (case,) = script.cases
    return run(script, case, profile)


def failure_of(text: str, profile: str = "spec") -> tuple[int, str, str]:
    """Line, what was expected, what came."""
    failure = drill(text, profile).failure
    assert failure is not None
    return failure.line.number, failure.expected, failure.got


PASSING = {
    "an expected packet": SENT + "> ACK psn",
    "fields that are named": SENT + "> ACK psn msn=1 syndrome=0 pkey=0xffff dest_qp=peer_qpn",
    "another spelling": SENT + "> RC_ACKNOWLEDGE psn=psn+0",
    "an absolute PSN": "qp rq_psn=77\n" + SENT + "> ACK 77",
    "any packet": SENT + "> any",
    "any packet with a PSN": SENT + "> any psn",
    "any packet of another stream": "store va len=8 at=0\npost_send RDMA_WRITE len=8\n"
    "> any psn pkey=0xffff len=8 at=0\n"
    "+1us < ACK psn\n+1us poll send\n" + SENT + "> any psn opcode=0x11 len=0",
    "any packet, remembered": SENT + "> any ?q\n+1us < WRITE_ONLY $q+1 ack\n> any $q+1 len=0",
    "any packet, and a NAK": "+1us < SEND_MIDDLE psn len=256\n> any psn\nevent QP_REQ_ERR",
    "an optional packet of any kind that does not fit": SENT + ">? any psn+1\n> any psn",
    "one of several values": SENT + "> ACK psn msn={0, 1}",
    "a range": SENT + "> ACK psn msn=0..3",
    "a range across the wrap": "qp rq_psn=0\n" + SENT + "> ACK psn-1..psn+1",
    "anything": SENT + "> ACK * msn=*",
    "one of two packets": SENT + "> READ_RESPONSE_ONLY psn | ACK psn",
    "an optional packet that comes": SENT + ">? ACK psn",
    "an optional packet that does not": SENT + ">? ACK psn+1\n> ACK psn",
    "up to": SENT + "> upto 3 ACK psn",
    "up to, and none": SENT + "> upto 3 READ_RESPONSE_ONLY *\n> ACK psn",
    "a captured number": SENT
    + "> ACK psn msn=?m\n+1us < WRITE_ONLY psn+$m ack len=8\n> ACK psn+$m msn=$m+1",
    "any order": "post_send RDMA_WRITE len=512\nunordered {\n> WRITE_LAST psn+1\n"
    "> WRITE_FIRST psn\n}\nmodify state=ERR\npoll send status=WR_FLUSH_ERR",
    "any order across the wire": "post_send RDMA_READ len=8\npost_send RDMA_WRITE len=8\n"
    "+0..1us unordered {\n> WRITE_ONLY *\n> READ_REQUEST *\n}\nmodify state=ERR\n"
    "poll send status=WR_FLUSH_ERR\npoll send status=WR_FLUSH_ERR",
    "a time that is right": "qp timeout=14\npost_send RDMA_WRITE len=8\n> any\n"
    "+ack_timeout(14) > any\nmodify state=ERR\npoll send status=WR_FLUSH_ERR",
    "a range without an end": "post_send RDMA_WRITE len=8\n> any\n+1us.. > any\n"
    "modify state=ERR\npoll send status=WR_FLUSH_ERR",
    "a tolerance": "qp timeout=14\ntolerance 2ms\npost_send RDMA_WRITE len=8\n> any\n+66ms > any\n"
    "modify state=ERR\npoll send status=WR_FLUSH_ERR",
    "silence": "+1s silence",
    "memory as bytes": 'store va data="00ff10"\nmemory va data="00 ff 10"',
    "memory as a number": 'store va u64=0x0102030405060708\nmemory va data="0807060504030201"',
    "memory as the pattern": f'store va len=4 at=1000\nmemory va data="{pattern(1000, 4).hex()}"',
    "a verb that fails": "modify state=RTR fails=EINVAL",
    "an event": "qp state=RTR\n" + SENT + "event COMM_EST\n> ACK psn",
    "no event": "event nothing",
    "over IPv6": "qp version=6\n+1us < WRITE_ONLY psn ack len=8 ip.flow_label=7\n> ACK psn",
    "addresses as people write them": '+1us < WRITE_ONLY psn ack len=8 ip.src="10.0.0.1"\n'
    '> ACK psn ip.dst="10.0.0.1" ip.src="10.0.0.2" eth.dst="02:00:0a:00:00:01"',
    "addresses of IPv6": 'qp version=6\n+1us < WRITE_ONLY psn ack ip.src="fd00::1"\n'
    '> ACK psn ip.src="fd00::2" ip.dst=0xfd000000000000000000000000000001',
    "an unreliable connection": "qp type=UC\n+1us < UC_RDMA_WRITE_ONLY psn len=8\n"
    "memory va len=8 at=0",
}


@each_case("text", PASSING.values(), ids=PASSING)
def test_passes(text: str) -> None:
    verdict = drill(text)

    assert verdict.passed, report(verdict)


@each_case(
    ("field", "problem"),
    {
        "psn+1": "psn 100, not psn+1 (101)",
        "psn=99": "psn 100, not 99",
        "pkey=5": "pkey 65535, not 5",
        "dest_qp=5": "dest_qp 119, not 5",
        "ack": "ack_req 0, not 1",
        "se": "se 0, not 1",
        "opcode=5": "opcode 17, not 5",
        "len=55": "len 0, not 55",
        "ip.ttl=3": "ttl 64, not 3",
        "ip.flow_label=0": "no ip.flow_label",
        "vlan.vid=1": "no vlan.vid",
        'data="00"': "0 bytes, not 1",
        "at=0": "no payload",
    }.items(),
)
def test_fields_given_for_any_are_compared(field: str, problem: str) -> None:
    failure = drill(f"{SENT}> any {field}").failure

    assert failure is not None
    assert list(failure.details) == [problem]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("REMOTE_ACCESS_ERROR", "nak PSN_SEQUENCE_ERROR (0), not REMOTE_ACCESS_ERROR"),
        ("2", "nak PSN_SEQUENCE_ERROR (0), not 2"),
    ],
)
def test_a_code_that_came_has_its_name(wanted: str, problem: str) -> None:
    failure = drill(f"+1us < WRITE_ONLY psn+5\n> ACK psn nak={wanted}").failure

    assert failure is not None
    assert list(failure.details) == [problem]


FAILING = {
    "nothing came": (
        "+1us > ACK psn",
        (1, "ACKNOWLEDGE psn=psn (100) at 1.000 us", "nothing"),
    ),
    "a variable whose packet did not come": (
        ">? ACK ?m\n+1us < WRITE_ONLY $m",
        (
            2,
            "+1us < WRITE_ONLY $m",
            "$m has no value: what was to set it did not come",
        ),
    ),
    "such a variable in any order": (
        f">? SEND_ONLY ?m\n{SENT}unordered {{\n> SEND_ONLY *\n> ACK $m\n}}",
        (5, "> ACK $m", "$m has no value: what was to set it did not come"),
    ),
    "numbers that go on at 0": (
        "qp rq_psn=0xfffffe\n" + SENT + "> ACK {psn+5, psn-1..psn+2} msn=0-1",
        (
            3,
            "ACKNOWLEDGE psn={psn+5 (3), psn-1 (16777213)..psn+2 (0)} msn=0-1 (16777215)",
            "ACKNOWLEDGE psn (16777214) ACK credits=0 msn=1 at 1.000 us",
        ),
    ),
    "nothing where any packet is expected": (
        "> any psn+1",
        (1, "any psn=psn+1 by 0.000 us", "nothing"),
    ),
    "another number": (
        SENT + "> ACK psn+1 msn=1",
        (
            2,
            "ACKNOWLEDGE psn=psn+1 (101) msn=1",
            "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
        ),
    ),
    "a NAK where an ACK is expected": (
        "+1us < SEND_MIDDLE psn len=256\n> ACK psn",
        (
            2,
            "ACKNOWLEDGE psn=psn (100)",
            "ACKNOWLEDGE psn (100) NAK INVALID_REQUEST msn=0 at 1.000 us",
        ),
    ),
    "a packet that nobody expects": (
        SENT,
        (
            1,
            "nothing after this line",
            "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
        ),
    ),
    "no silence": (
        SENT + "+1ms silence",
        (2, "silence until 1001.000 us", "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us"),
    ),
    "silence that ends": (
        "qp timeout=14\npost_send RDMA_WRITE len=8\n> any\n+100ms silence",
        (
            4,
            "silence until 100000.000 us",
            "WRITE_ONLY psn (500) va=0x10000028000 rkey=0x2929 dma_len=8 len=8 ack at 67108.864 us",
        ),
    ),
    "too early": (
        "qp timeout=14\npost_send RDMA_WRITE len=8\n> any\n+80ms..90ms > any",
        (
            4,
            "any from 80000.000 us to 90000.000 us",
            "WRITE_ONLY psn (500) va=0x10000028000 rkey=0x2929 dma_len=8 len=8 ack at 67108.864 us",
        ),
    ),
    "another packet, and when": (
        SENT + "+6ms..10ms > SEND_ONLY *",
        (
            2,
            "SEND_ONLY psn=* from 6001.000 us to 10001.000 us",
            "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
        ),
    ),
    "other packets in any order, and when": (
        SENT + "+1ms unordered {\n> SEND_ONLY *\n}",
        (
            2,
            "in any order SEND_ONLY psn=* at 1001.000 us",
            "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
        ),
    ),
    "too late": (
        "qp timeout=14\npost_send RDMA_WRITE len=8\n> any\n+10ms..60ms > any",
        (4, "any from 10000.000 us to 60000.000 us", "nothing"),
    ),
    "none of them": (
        SENT + "> ACK psn+1 | ACK psn+2",
        (
            2,
            "ACKNOWLEDGE psn=psn+1 (101) or ACKNOWLEDGE psn=psn+2 (102)",
            "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
        ),
    ),
    "other memory": (
        'memory va data="0001"',
        (1, 'memory va (0x10000028000) data="0001"', "bytes from 1 on are 00, not 01"),
    ),
    "memory that is not there": (
        "memory end zero",
        (
            1,
            "memory end (0x10000038000) zero=1",
            "no memory for 256 bytes at 0x10000038000 (EFAULT: Bad address)",
        ),
    ),
    "no completion": ("poll send", (1, "poll send", "no completion")),
    "another completion": (
        "post_recv wr_id=3\nmodify state=ERR\npoll recv wr_id=3",
        (3, "poll recv wr_id=3", "wr_id=3 status=WR_FLUSH_ERR"),
    ),
    "a completion nobody polls": (
        "post_recv wr_id=3\nmodify state=ERR",
        (
            2,
            "nothing after this line",
            "a completion of the recv queue: wr_id=3 status=WR_FLUSH_ERR",
        ),
    ),
    "an event nobody expects": (
        "+1us < SEND_MIDDLE psn len=256\n> ACK psn nak=INVALID_REQUEST",
        (2, "nothing after this line", "the event QP_REQ_ERR"),
    ),
    "another event": (
        "qp state=RTR\n" + SENT + "> ACK psn\nevent QP_FATAL",
        (4, "event QP_FATAL", "COMM_EST"),
    ),
    "another state": ("state ERR", (1, "state ERR", "RTS")),
    "a verb that does not fail": (
        "post_recv fails=ENOMEM",
        (1, "post_recv fails=ENOMEM", "it did not fail"),
    ),
    "a verb that fails": (
        "modify state=RTR",
        (
            1,
            "modify state=RTR",
            "RC queue pair from RTS to RTR (EINVAL: Invalid argument)",
        ),
    ),
    "a verb that fails otherwise": (
        "modify state=RTR fails=ENOMEM",
        (
            1,
            "modify state=RTR fails=ENOMEM",
            "RC queue pair from RTS to RTR (EINVAL: Invalid argument), not ENOMEM",
        ),
    ),
}


@each_case(("text", "failure"), FAILING.values(), ids=FAILING)
def test_fails(text: str, failure: tuple[int, str, str]) -> None:
    assert failure_of(text) == failure


def frame_of(literal: str) -> bytes:
    """The frame of a packet that a script sends."""
    verdict = drill(f"+1us < {literal}\n> upto 9 any\n")
    frame = verdict.entries[0].frame
    assert frame is not None
    return frame


@each_case(
    ("literal", "size", "status"),
    [
        # Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4: 58 bytes and what is between.
        ("SEND_ONLY psn len=5", 58 + 8, CrcStatus.GOOD),
        ("SEND_ONLY psn len=8 icrc=bad", 58 + 8, CrcStatus.BAD),
        ("SEND_ONLY psn len=8 icrc=0x01020304", 58 + 8, CrcStatus.BAD),
        ("WRITE_ONLY psn len=0", 58 + 16, CrcStatus.GOOD),
        ("SEND_ONLY psn len=8 pad=3", 58 + 11, CrcStatus.GOOD),
        ("SEND_ONLY psn len=8 more=4", 58 + 12, CrcStatus.GOOD),
        ("WRITE_ONLY psn len=8 cut=20", 54 + 8 + 4, CrcStatus.GOOD),
    ],
)
def test_a_frame_has_its_size_and_icrc(literal: str, size: int, status: CrcStatus) -> None:
    frame = frame_of(literal)
    packet = Packet.parse(frame, strict=False)

    assert len(frame) == size
    assert packet.icrc_status() is status
    assert isinstance(packet.route, RoCEv2Route)
    assert packet.route.udp.length == size - 34


@each_case("bits", [1, 0x10000, 0x80000000, 0xFFFF, 0xFFFFFFFF])
def test_bits_of_the_right_icrc_are_flipped(bits: int) -> None:
    right = frame_of("WRITE_ONLY psn len=8")
    wrong = frame_of(f"WRITE_ONLY psn len=8 icrc=good^{bits:#x}")

    assert wrong[:-4] == right[:-4]
    assert int.from_bytes(wrong[-4:]) ^ int.from_bytes(right[-4:]) == bits


def test_bytes_of_the_right_icrc_are_swapped() -> None:
    right = frame_of("WRITE_ONLY psn len=8")
    wrong = frame_of("WRITE_ONLY psn len=8 icrc=swapped")

    assert wrong[:-4] == right[:-4]
    assert int.from_bytes(wrong[-4:], "big") == int.from_bytes(right[-4:], "little")


def test_no_bit_flipped_is_the_right_icrc() -> None:
    assert frame_of("SEND_ONLY psn len=5 icrc=good^0") == frame_of("SEND_ONLY psn len=5")


def test_lengths_and_checksum_before_the_bth_are_right_unless_given() -> None:
    wrong = Packet.parse(frame_of("SEND_ONLY psn len=8 udp.length=9"), strict=False).route
    right = Packet.parse(frame_of("SEND_ONLY psn len=8 ip.ttl=3")).route

    assert isinstance(wrong, RoCEv2Route)
    assert wrong.udp.length == 9
    assert isinstance(right, RoCEv2Route)
    total = sum(int.from_bytes(right.ip.pack()[i : i + 2]) for i in range(0, 20, 2))
    assert total % 0xFFFF == 0


def test_every_field_of_a_packet_can_be_given() -> None:
    packet = Packet.parse(
        frame_of(
            "WRITE_ONLY_WITH_IMMEDIATE psn opcode=0x0a se mig_req=0 pad_count=1 tver=2 pkey=3 "
            "fecn=1 becn=1 resv6a=4 dest_qp=5 ack resv7=6 va=7 rkey=8 dma_len=9 imm_data=10"
        ),
        strict=False,
    )

    bth = packet.bth
    assert (bth.opcode, bth.se, bth.mig_req, bth.pad_count, bth.tver) == (0x0A, 1, 0, 1, 2)
    assert (bth.pkey, bth.fecn, bth.becn, bth.resv6a, bth.dest_qp) == (3, 1, 1, 4, 5)
    assert (bth.ack_req, bth.resv7, bth.psn) == (1, 6, 100)


def test_packets_of_the_same_moment_reach_the_device_before_it_answers() -> None:
    text = "+1us < WRITE_ONLY psn ack len=8\n+0 < WRITE_ONLY psn+1 ack len=8\n> ACK psn+1 msn=2"

    assert drill(text).passed


def test_a_device_that_sends_for_ever_is_a_failure() -> None:
    twice = "post_send RDMA_WRITE len=4194304\n" * 2

    failure = failure_of(f"qp size=4194304 mtu=256\n{twice}+1s state RTS")

    assert failure == (4, "a device that comes to rest", "more than 20000 packets")


@pytest.mark.parametrize(
    ("expected", "details"),
    [
        (
            "> ACK psn+1 msn=7 | SEND_ONLY * | any 9",
            [
                "ACK: psn 100, not psn+1 (101); msn 1, not 7",
                "SEND_ONLY: opcode ACKNOWLEDGE, not SEND_ONLY",
                "any: psn 100, not 9",
            ],
        ),
        (
            "unordered {\n> ACK psn+1\n> SEND_ONLY * | ACK * msn=4\n}",
            [
                "line 3: psn 100, not psn+1 (101)",
                "line 4: SEND_ONLY: opcode ACKNOWLEDGE, not SEND_ONLY; ACK: msn 1, not 4",
            ],
        ),
        (
            "+5us unordered {\n> ACK psn\n}",
            ["line 3: it came at 1.000 us, not at 6.000 us"],
        ),
    ],
)
def test_each_of_several_packets_has_the_reason_why_it_does_not_fit(
    expected: str, details: list[str]
) -> None:
    failure = drill(SENT + expected).failure

    assert failure is not None
    assert list(failure.details) == details


def test_a_packet_without_an_icrc_is_shown_as_sent() -> None:
    verdict = drill("+1us < WRITE_ONLY psn ack len=8 icrc=none\n+1ms silence")

    assert verdict.passed
    assert verdict.entries[0].text == (
        "WRITE_ONLY psn (100) va=0x10000028000 rkey=0x2929 dma_len=8 len=8 ack icrc none"
    )


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        ("", "-                    1    nothing after this line"),
        ("+1ms silence", "-                    2    silence until 1001.000 us"),
    ],
)
def test_silence_that_is_broken_goes_no_way(end: str, wanted: str) -> None:
    lines = report(drill(SENT + end)).splitlines()

    assert lines[-2] == wanted
    assert lines[-1] == "+          1.000        > ACKNOWLEDGE psn (100) ACK credits=0 msn=1"


def test_a_report_has_the_rule_the_section_and_both_sides() -> None:
    text = "// A rule.\nsection IBA 9.7\n" + SENT + "  > ACK psn+1\n"

    assert report(drill(text)).split("\n") == [
        "s.drill:4: > ACK psn+1",
        "  expected  ACKNOWLEDGE psn=psn+1 (101)",
        "  got       ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
        "            psn 100, not psn+1 (101)",
        "  rule      A rule.",
        "  see       IBA 9.7",
        "  profile   spec",
        "",
        "         time/us  line",
        "           1.000     3  < WRITE_ONLY psn (100) va=0x10000028000 rkey=0x2929 dma_len=8 "
        "len=8 ack",
        "-                    4  > ACKNOWLEDGE psn=psn+1 (101)",
        "+          1.000        > ACKNOWLEDGE psn (100) ACK credits=0 msn=1",
    ]
