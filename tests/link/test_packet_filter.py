"""The program that the kernel runs over frames, run by the kernel on a pair of sockets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from ibwire.capture import open_capture
from ibwire.link.packet_filter import NOTHING, attach, interesting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="BPF on sockets is Linux's")

CAPTURES = Path(__file__).parents[2] / "captures"

MACS = bytes.fromhex("02000a000002 02000a000001")
V4 = bytes.fromhex("4500 0030 0000 4000 4011 0000 0a000001 0a000002")
V6 = bytes.fromhex("60000000 0018 11 40") + bytes(32)
UDP_4791 = bytes.fromhex("c000 12b7 001c 0000") + bytes(20)
UDP_53 = bytes.fromhex("12b7 0035 001c 0000") + bytes(20)
"""From port 4791, to port 53."""
ICMPV6 = V6[:6] + b"\x3a" + V6[7:]

ROCEV2_V4 = MACS + b"\x08\x00" + V4 + UDP_4791
WITH_OPTIONS = MACS + b"\x08\x00\x46" + V4[1:] + b"\x94\x04\x00\x00" + UDP_4791
ROCEV2_V6 = MACS + b"\x86\xdd" + V6 + UDP_4791
ROCEV1 = MACS + b"\x89\x15" + bytes(60)
ARP = MACS + b"\x08\x06" + bytes(28)
SOLICITATION = MACS + b"\x86\xdd" + ICMPV6 + b"\x87" + bytes(23)
ADVERTISEMENT = MACS + b"\x86\xdd" + ICMPV6 + b"\x88" + bytes(23)
ICMP = V4[:9] + b"\x01" + V4[10:]
ECHO = MACS + b"\x08\x00" + ICMP + b"\x08\x00" + bytes(22)
ECHO_WITH_OPTIONS = (
    MACS + b"\x08\x00\x46" + ICMP[1:] + b"\x94\x04\x00\x00" + b"\x08\x00" + bytes(22)
)
ECHO_V6 = MACS + b"\x86\xdd" + ICMPV6 + b"\x80" + bytes(23)

ROCE = [ROCEV2_V4, WITH_OPTIONS, ROCEV2_V6, ROCEV1]
NEIGHBOURS = [ARP, SOLICITATION, ADVERTISEMENT, ECHO, ECHO_WITH_OPTIONS, ECHO_V6]
OTHERS = [
    MACS + b"\x08\x00" + V4 + UDP_53,
    MACS + b"\x86\xdd" + V6 + UDP_53,
    MACS + b"\x08\x00" + V4[:9] + b"\x06" + V4[10:] + UDP_4791,  # TCP
    MACS + b"\x86\xdd" + ICMPV6 + b"\x86" + bytes(23),  # router advertisement
    MACS + b"\x86\xdd" + ICMPV6 + b"\x81" + bytes(23),  # echo reply
    MACS + b"\x08\x00" + ICMP + bytes(24),  # echo reply
    MACS + b"\x08\x00" + ICMP[:6] + b"\x00\x10" + ICMP[8:] + b"\x08" + bytes(23),  # fragment
    MACS + b"\x08\x00" + V4[:6] + b"\x20\x00" + V4[8:] + UDP_4791,  # first fragment
    MACS + b"\x08\x00" + V4[:6] + b"\x00\x10" + V4[8:] + UDP_4791,  # a later one
    MACS + b"\x88\xcc" + bytes(46),  # LLDP
    MACS[:9],
    ROCEV2_V4[:30],
]


def passed(program: Any, frames: Any) -> Any:
    """The frames that the kernel lets through, cut as it says."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with left, right:
        attach(right, program)
        right.setblocking(False)
        found = []
        for frame in frames:
            left.send(frame)
            try:
                found.append(right.recv(1 << 16))
            except BlockingIOError:
                continue
        return found


def test_roce_of_both_versions_passes_whole_and_nothing_else() -> None:
    assert passed(interesting(), [*OTHERS, *NEIGHBOURS, *ROCE]) == ROCE


def test_neighbour_discovery_and_echo_requests_pass_when_asked_for() -> None:
    program = interesting(neighbours=True)

    assert passed(program, [*OTHERS, *ROCE, *NEIGHBOURS]) == [*ROCE, *NEIGHBOURS]


def test_promiscuous_program_takes_the_same_kinds() -> None:
    assert passed(interesting(foreign=True), [*OTHERS, *ROCE]) == ROCE


def test_nothing_passes_the_program_of_a_held_port() -> None:
    assert passed(NOTHING, [*ROCE, *OTHERS]) == []


@pytest.mark.parametrize("name", ["rc-pingpong.pcap", "ud-pingpong.pcap", "cm-rping.pcap"])
def test_soft_roce_traffic_passes_and_what_is_around_it_does_not(name: str) -> None:
    """By the ports, read here at fixed places."""
    with open_capture(CAPTURES / name) as reader:
        frames = [bytes(record.data) for record in reader.records()]
    roce = [
        frame
        for frame in frames
        if (frame[12:14], frame[23:24], frame[36:38]) == (b"\x08\x00", b"\x11", b"\x12\xb7")
        or (frame[12:14], frame[20:21], frame[56:58]) == (b"\x86\xdd", b"\x11", b"\x12\xb7")
    ]

    assert passed(interesting(), frames) == roce
    assert roce
