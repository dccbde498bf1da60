"""Building packets, each with its own PSN and a right ICRC: ibwire's blocks beside Scapy.

    python tests/bench/build.py [--rounds N]

Processor time of one process, nothing is sent. Ours and Scapy's are measured in turn in
every round; the table shows medians. Scapy changes the PSN of one packet and builds it again,
which is faster than a new packet each time. Both make the same bytes, which is looked at first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from ibwire.traffic.builder import Builder
from ibwire.traffic.stream import Payload, Stream, Verb, parse_qpns

ADDRESSES = {"src": "10.0.0.1", "dst": "10.0.0.2"}
BLOCK = 256
"""What a sender asks for at a time."""

_PAYLOAD_AT = 14 + 20 + 8 + 12

OURS, SCAPYS = 4_000_000, 1000
"""Packets of a measurement."""

MIXES: dict[str, list[Stream]] = {
    f"one queue pair, {size} bytes": [
        Stream(verb=Verb.SEND, qpns=((0x11, 1),), size=size, mtu=4096, **ADDRESSES)
    ]
    for size in (64, 1024, 4096)
}
MIXES |= {
    "1000 queue pairs, 1024 bytes": [Stream(qpns=parse_qpns("1..1000"), **ADDRESSES)],
    "messages of 64 KiB to 4 queue pairs": [
        Stream(qpns=parse_qpns("1..4"), size=65536, **ADDRESSES)
    ],
    "addresses that step, 1 % marked CE": [
        Stream(qpns=((1, 1),), va_step=1024, va_window=1 << 30, ce=0.01, **ADDRESSES)
    ],
    "three streams with weights 1:2:3": [
        Stream(qpns=((qpn, 1),), verb=verb, weight=qpn, **ADDRESSES)
        for qpn, verb in ((1, Verb.WRITE), (2, Verb.SEND), (3, Verb.READ))
    ],
    "a payload that counts": [Stream(qpns=((1, 1),), payload=Payload.COUNTER, **ADDRESSES)],
    "other bytes in every packet": [Stream(qpns=((1, 1),), payload=Payload.RANDOM, **ADDRESSES)],
}


def ours(streams: list[Stream], count: int) -> float:
    """Packets a second of processor time."""
    blocks = Builder(streams).blocks(BLOCK)
    next(blocks)
    left = count
    begin = time.process_time()
    while left > 0:
        left -= len(next(blocks).frames)
    return (count - left) / (time.process_time() - begin)


def new_packets(stream: Stream) -> Callable[[int], Packet]:
    """Scapy's SEND ONLY of this stream by its PSN, a new packet each time."""
    frame = next(Builder([stream]).blocks(1)).frames[0].tobytes()
    destination, source = frame[:6].hex(":"), frame[6:12].hex(":")
    port, payload = int.from_bytes(frame[34:36]), frame[_PAYLOAD_AT:-4]

    def build(psn: int) -> Packet:
        return (
            Ether(dst=destination, src=source)
            / IP(src=stream.src, dst=stream.dst, id=0, flags="DF", tos=frame[15])
            / UDP(sport=port, dport=4791, chksum=0)
            / BTH(opcode="RC_SEND_ONLY", migreq=1, dqpn=0x11, ackreq=1, psn=psn)
            / Raw(payload)
        )

    return build


def renumbered(stream: Stream) -> Callable[[int], Packet]:
    """The same, always one packet, whose PSN changes."""
    packet = new_packets(stream)(0)

    def build(psn: int) -> Packet:
        packet[BTH].psn = psn
        # Scapy keeps what it has built below the header that was changed.
        packet.clear_cache()
        return packet

    return build


def scapy_rate(build: Callable[[int], Packet], count: int) -> float:
    """Packets a second of processor time."""
    begin = time.process_time()
    for psn in range(count):
        bytes(build(psn))
    return count / (time.process_time() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("| packets | ibwire, million/s | Scapy, million/s | ratio |")
    print("|---|---|---|---|")
    for name, streams in MIXES.items():
        count = OURS if "every packet" not in name else OURS // 20
        compared = name.startswith("one queue pair")
        build = renumbered(streams[0]) if compared else None
        if build is not None:
            for number, row in enumerate(next(Builder(streams).blocks(3)).frames):
                assert bytes(build(number)) == row.tobytes()
        found, theirs = [], []
        for _ in range(rounds):
            found.append(ours(streams, count) / 1e6)
            if build is not None:
                theirs.append(scapy_rate(build, SCAPYS) / 1e6)
        text = f"| {name} | {statistics.median(found):.1f} |"
        if theirs:
            ratio = statistics.median(a / b for a, b in zip(found, theirs, strict=True))
            text += f" {statistics.median(theirs):.5f} | {ratio:,.0f} |"
        else:
            text += " | |"
        print(text)


if __name__ == "__main__":
    main()
