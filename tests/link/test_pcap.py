"""What of the libpcap port can be seen without an interface; the rest is in tests/live."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ibwire.base.errors import MissingExtra
from ibwire.base.node import Frame
from ibwire.link.pcap import NEIGHBOURS, ROCE, PcapPort, with_tag

MACS = bytes.fromhex("02000a000002 02000a000001")
V4 = bytes.fromhex("4500 0030 0000 4000 4011 0000 0a000001 0a000002")
V6 = bytes.fromhex("60000000 0018 11 40") + bytes(32)
UDP_4791 = bytes.fromhex("c000 12b7 001c 0000") + bytes(20)
UDP_53 = bytes.fromhex("12b7 0035 001c 0000") + bytes(20)
ICMP = V4[:9] + b"\x01" + V4[10:]
ICMPV6 = V6[:6] + b"\x3a" + V6[7:]

ROCE_FRAMES = [
    MACS + b"\x08\x00" + V4 + UDP_4791,
    MACS + b"\x86\xdd" + V6 + UDP_4791,
    MACS + b"\x89\x15" + bytes(60),
]
NEIGHBOUR_FRAMES = [
    MACS + b"\x08\x06" + bytes(28),
    MACS + b"\x86\xdd" + ICMPV6 + b"\x87" + bytes(23),  # solicitation
    MACS + b"\x86\xdd" + ICMPV6 + b"\x88" + bytes(23),  # advertisement
    MACS + b"\x08\x00" + ICMP + b"\x08" + bytes(23),  # echo request
    MACS + b"\x86\xdd" + ICMPV6 + b"\x80" + bytes(23),
]
OTHERS = [
    MACS + b"\x08\x00" + V4 + UDP_53,
    MACS + b"\x86\xdd" + V6 + UDP_53,
    MACS + b"\x08\x00" + ICMP + bytes(24),  # echo reply
    MACS + b"\x86\xdd" + ICMPV6 + b"\x86" + bytes(23),  # router advertisement
    MACS + b"\x88\xcc" + bytes(46),  # LLDP
]


def tagged(frame: Frame) -> bytes:
    return frame[:12] + bytes.fromhex("81006005") + frame[12:]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [(ROCE, ROCE_FRAMES), (NEIGHBOURS, ROCE_FRAMES + NEIGHBOUR_FRAMES)],
    ids=["roce", "neighbours"],
)
def test_default_filters_take_what_a_node_needs_with_and_without_a_tag(
    expression: Any, wanted: Any
) -> None:
    """libpcap compiles and runs them."""
    pcapy = pytest.importorskip("pcapy", reason="pcapy-ng not installed")
    program = pcapy.BPFProgram(with_tag(expression))
    frames = [*ROCE_FRAMES, *NEIGHBOUR_FRAMES, *OTHERS]
    frames += [tagged(frame) for frame in frames]

    passed = [frame for frame in frames if program.filter(frame)]

    assert passed == [*wanted, *(tagged(frame) for frame in wanted)]


def test_without_pcapy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pcapy", None)

    with pytest.raises(MissingExtra, match=r"ibwire\[live\]"):
        PcapPort("lo")
