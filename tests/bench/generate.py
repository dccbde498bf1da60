"""Make a large capture of mixed RDMA traffic, the same bytes for the same seed.

    python tests/bench/generate.py OUT.pcap [--packets N] [--seed S] [--snaplen L]

A million packets (the default) are about 1.46 GB. 112 reliable queue pairs, two
of them to a connection, send, write, read and add to each other's memory, and
16 datagram queue pairs receive. PSNs run per queue pair and wrap. Most
connections use IPv4, one in eight IPv6, one in eight is in a VLAN. Congestion
marks are answered with CNPs, lost requests with NAKs; ARP and TCP frames lie in
between. Every ICRC is right but those of `BAD_ICRCS` packets, which have one bit
flipped. Nothing of `ibwire` takes part, so that its answers can be compared.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "layers"))

from ibwire_layers import crc, headers, outer  # noqa: E402
from ibwire_layers.opcodes import INFO, OpCode, Position  # noqa: E402
from ibwire_layers.schema import Header  # noqa: E402

PACKETS = 1_000_000
BAD_ICRCS = 99
CONNECTIONS = 56
DATAGRAM_QPS = 16
OTHER_FRAMES = 200  # one frame in this many is not RDMA
SNAPLEN = 262_144

SIZES = (8, 64, 250, 1000, 1024, 2048, 4096, 5001, 8192, 16384, 32768, 65536)
"""Bytes of a message; few, so that frames differ in little but their PSN."""

DATA_DSCP, CNP_DSCP = 26, 48
ECT0, CE = 2, 3
ACK, NAK_SEQUENCE = 0x1F, 0x60
START = 1_700_000_000 * 10**6  # µs

_POOL = 1 << 20
_RECORD = struct.Struct("<IIII")
_WORD = struct.Struct(">I")
_TWO_WORDS = struct.Struct(">II")


class Template(NamedTuple):
    """All of a frame but its PSN, MSN, payload and ICRC."""

    head: bytes
    """Up to byte 8 of the BTH."""
    crc: int
    """ICRC over as much of `head` as it covers."""
    has_aeth: bool
    rest: bytes
    """Extension headers that follow the BTH and the AETH."""
    payload_size: int
    pad: bytes


class Frame(NamedTuple):
    """A packet about to be sent."""

    template: Template
    ack_req_psn: int
    """Last word of the BTH: bit 31 is AckReq, the rest is the PSN."""
    aeth: int = 0


class Route(NamedTuple):
    """The way from one end of a connection to the other."""

    src: int
    """Number of a host."""
    dst: int
    src_port: int
    is_ipv6: bool
    is_tagged: bool
    dest_qp: int
    src_qp: int

    def head(self, opcode: OpCode, size: int, pad: int, ecn: int) -> tuple[bytes, int]:
        """The headers up to byte 8 of the BTH, and the ICRC over what it covers of them.

        size: bytes from the BTH to the ICRC, both included.
        """
        is_cnp = opcode is OpCode.CNP
        dscp = CNP_DSCP if is_cnp else DATA_DSCP
        tag = outer.VLAN(pcp=3, vid=100, type=self._ether_type).pack() if self.is_tagged else b""
        eth = outer.Ethernet(
            dst=_mac(self.dst),
            src=_mac(self.src),
            type=outer.EtherType.VLAN if tag else self._ether_type,
        )
        udp = outer.UDP(src_port=self.src_port, length=outer.UDP.SIZE + size)
        bth = headers.BTH(opcode=opcode, pad_count=pad, becn=int(is_cnp), dest_qp=self.dest_qp)
        ip, ip_mask = self._ip(outer.UDP.SIZE + size, dscp, ecn)
        covered = ip + udp.pack() + bth.pack()[:8]
        masks = (
            (0, ip_mask),
            (len(ip), crc.UDP_MASK),
            (len(ip) + outer.UDP.SIZE, crc.BTH_MASK),
        )
        value = int.from_bytes(crc.icrc(covered, masks), "little")
        return eth.pack() + tag + covered, value

    @property
    def _ether_type(self) -> int:
        return outer.EtherType.IPV6 if self.is_ipv6 else outer.EtherType.IPV4

    def _ip(self, size: int, dscp: int, ecn: int) -> tuple[bytes, crc.Mask]:
        if self.is_ipv6:
            prefix = 0xFD77 << 112
            ipv6 = outer.IPv6(
                dscp=dscp,
                ecn=ecn,
                flow_label=self.src_port,
                payload_length=size,
                src=prefix | self.src,
                dst=prefix | self.dst,
            )
            return ipv6.pack(), crc.IPV6_MASK
        net = 10 << 24
        ipv4 = outer.IPv4(
            dscp=dscp,
            ecn=ecn,
            total_length=outer.IPv4.SIZE + size,
            df=1,
            src=net | self.src,
            dst=net | self.dst,
        ).pack()
        return ipv4[:10] + _checksum(ipv4) + ipv4[12:], crc.IPV4_MASK


class Templates:
    """The frames of one route, each built when it is first needed."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._made: dict[tuple[OpCode, int, int, int], Template] = {}

    def get(
        self, opcode: OpCode, payload_size: int = 0, message_size: int = 0, ecn: int = ECT0
    ) -> Template:
        """The template of a packet, `message_size` being what its RETH announces."""
        key = opcode, payload_size, message_size, ecn
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, opcode: OpCode, payload_size: int, message_size: int, ecn: int) -> Template:
        pad = -payload_size % 4
        extensions = INFO[opcode].headers
        rest = b"".join(
            self._extension(header, message_size).pack()
            for header in extensions
            if header is not headers.AETH
        )
        has_aeth = headers.AETH in extensions
        size = INFO[opcode].header_size + payload_size + pad + headers.ICRC_SIZE
        head, value = self._route.head(opcode, size, pad, ecn)
        return Template(head, value, has_aeth, rest, payload_size, bytes(pad))

    def _extension(self, header: type[Header], message_size: int) -> Header:
        route = self._route
        va = 0x7F00_0000_0000 | route.dest_qp << 20
        rkey = route.dest_qp << 8 | 0x5A
        match header:
            case headers.RETH:
                return headers.RETH(va=va, rkey=rkey, dma_len=message_size)
            case headers.AtomicETH:
                return headers.AtomicETH(va=va, rkey=rkey, swap=1, compare=0)
            case headers.AtomicAckETH:
                return headers.AtomicAckETH(orig=va)
            case headers.ImmDt:
                return headers.ImmDt(imm_data=route.src_qp)
            case headers.DETH:
                return headers.DETH(qkey=0x11111111, src_qp=route.src_qp)
            case _:
                return headers.CNPReserved()


class Requester:
    """One queue pair of a connection that makes requests, and the other end's answers."""

    def __init__(self, there: Route, back: Route, mtu: int, rng: random.Random) -> None:
        self._there = Templates(there)
        self._back = Templates(back)
        self._mtu = mtu
        self._random = rng.random
        self._psn = int(rng.random() * (1 << 24))
        self._msn = 0

    def frames(self) -> Iterator[Frame]:
        """Both directions of the traffic, in the order of a capture between the two."""
        while True:
            dice = self._random()
            size = SIZES[int(self._random() * len(SIZES))]
            if dice < 0.36:
                yield from self._message("RC_SEND", size)
            elif dice < 0.74:
                yield from self._message("RC_RDMA_WRITE", size)
            elif dice < 0.89:
                yield from self._read(size)
            else:
                yield from self._atomic()

    def _message(self, verb: str, size: int) -> Iterator[Frame]:
        dice = self._random()
        congested = dice < 0.02
        packets = list(self._packets(verb, size, CE if congested else ECT0, dice > 0.9))
        lost = len(packets) // 2 if 0.02 < dice < 0.022 and len(packets) > 2 else None
        for number, frame in enumerate(packets):
            if number != lost:
                yield frame
            if number == 0 and congested:
                yield Frame(self._back.get(OpCode.CNP, ecn=0), 0)
        if lost is not None:
            yield self._ack(packets[lost].ack_req_psn & 0xFFFFFF, NAK_SEQUENCE)
            yield from packets[lost:]
        self._msn = self._msn + 1 & 0xFFFFFF
        yield self._ack(self._psn - 1 & 0xFFFFFF, ACK)

    def _packets(
        self, verb: str, size: int, first_ecn: int, with_immediate: bool
    ) -> Iterator[Frame]:
        """The packets of one message from the PSN on, which moves past the last."""
        ecn = first_ecn
        ending = "_WITH_IMMEDIATE" if with_immediate else ""
        for position, psn, payload in self._cut(size):
            is_end = position in (Position.LAST, Position.ONLY)
            opcode = OpCode[f"{verb}_{position.name}{ending if is_end else ''}"]
            announced = size if headers.RETH in INFO[opcode].headers else 0
            yield Frame(self._there.get(opcode, payload, announced, ecn), is_end << 31 | psn)
            ecn = ECT0

    def _cut(self, size: int) -> list[tuple[Position, int, int]]:
        """Position, PSN and payload bytes of the packets that carry `size` bytes."""
        count = -(-size // self._mtu)
        first = self._psn
        self._psn = first + count & 0xFFFFFF
        if count == 1:
            return [(Position.ONLY, first, size)]
        middle = [(Position.MIDDLE, first + i & 0xFFFFFF, self._mtu) for i in range(1, count - 1)]
        left = size - (count - 1) * self._mtu
        return [
            (Position.FIRST, first, self._mtu),
            *middle,
            (Position.LAST, first + count - 1 & 0xFFFFFF, left),
        ]

    def _read(self, size: int) -> Iterator[Frame]:
        self._msn = self._msn + 1 & 0xFFFFFF
        request = self._there.get(OpCode.RC_RDMA_READ_REQUEST, message_size=size)
        yield Frame(request, 1 << 31 | self._psn)
        for position, psn, payload in self._cut(size):
            opcode = OpCode[f"RC_RDMA_READ_RESPONSE_{position.name}"]
            yield Frame(self._back.get(opcode, payload), psn, ACK << 24 | self._msn)

    def _atomic(self) -> Iterator[Frame]:
        self._msn = self._msn + 1 & 0xFFFFFF
        is_add = self._random() < 0.5
        opcode = OpCode.RC_FETCH_ADD if is_add else OpCode.RC_COMPARE_SWAP
        yield Frame(self._there.get(opcode), 1 << 31 | self._psn)
        answer = self._back.get(OpCode.RC_ATOMIC_ACKNOWLEDGE)
        yield Frame(answer, self._psn, ACK << 24 | self._msn)
        self._psn = self._psn + 1 & 0xFFFFFF

    def _ack(self, psn: int, syndrome: int) -> Frame:
        return Frame(self._back.get(OpCode.RC_ACKNOWLEDGE), psn, syndrome << 24 | self._msn)


def datagrams(route: Route, rng: random.Random) -> Iterator[Frame]:
    """What one UD queue pair receives."""
    templates = Templates(route)
    psn = int(rng.random() * (1 << 24))
    while True:
        has_immediate = rng.random() < 0.2
        opcode = OpCode.UD_SEND_ONLY_WITH_IMMEDIATE if has_immediate else OpCode.UD_SEND_ONLY
        yield Frame(templates.get(opcode, (64, 333, 1000, 1024)[int(rng.random() * 4)]), psn)
        psn = psn + 1 & 0xFFFFFF


def flows(rng: random.Random) -> list[Iterator[Frame]]:
    """The traffic of every queue pair: 128 endless streams of frames."""
    made: list[Iterator[Frame]] = []
    for i in range(CONNECTIONS):
        is_ipv6, is_tagged = i % 8 == 3, i % 8 == 6 or i % 16 == 11
        mtu = 4096 if i % 11 < 4 else 1024
        one, other = 0x000100 + i, 0x000200 + i
        port = 0xC000 + int(rng.random() * 0x3FFF)
        there = Route(1 + i % 7, 101 + i % 5, port, is_ipv6, is_tagged, other, one)
        back = there._replace(src=there.dst, dst=there.src, dest_qp=one, src_qp=other)
        made.append(Requester(there, back, mtu, rng).frames())
        made.append(Requester(back, there, mtu, rng).frames())
    for i in range(DATAGRAM_QPS):
        route = Route(1 + i % 7, 101 + i % 5, 0xC100 + i, i % 8 == 3, i % 8 == 6, 0x300 + i, 0x400)
        made.append(datagrams(route, rng))
    return made


def others(rng: random.Random) -> list[bytes]:
    """Frames that have nothing to do with RDMA: an ARP request, TCP segments."""
    arp = outer.Ethernet(dst=0xFFFFFFFFFFFF, src=_mac(1), type=outer.EtherType.ARP).pack()
    arp += bytes.fromhex("0001080006040001") + _mac(1).to_bytes(6) + (10 << 24 | 1).to_bytes(4)
    frames = [(arp + bytes(6) + (10 << 24 | 101).to_bytes(4)).ljust(60, b"\0")]
    for size in (0, 200, 1448):
        eth = outer.Ethernet(dst=_mac(101), src=_mac(1), type=outer.EtherType.IPV4).pack()
        ip = outer.IPv4(
            total_length=40 + size,
            df=1,
            protocol=outer.IPProto.TCP,
            src=10 << 24 | 1,
            dst=10 << 24 | 101,
        ).pack()
        tcp = struct.pack(">HHIIHHHH", 18515, 40000, 1, 1, 0x5010, 512, 0, 0)
        frames.append(eth + ip[:10] + _checksum(ip) + ip[12:] + tcp + rng.randbytes(size))
    return [frame.ljust(60, b"\0") for frame in frames]


def generate(out: BinaryIO, packets: int, seed: int, snaplen: int = SNAPLEN) -> frozenset[int]:
    """Write the capture; return the numbers, from 0, of the packets whose ICRC is wrong."""
    rng = random.Random(seed)
    pool = memoryview(rng.randbytes(_POOL + max(SIZES)))
    other_frames = others(rng)
    streams = [stream.__next__ for stream in flows(rng)]
    special = _numbers(rng, packets, packets // OTHER_FRAMES + BAD_ICRCS)
    bad, foreign = special[:BAD_ICRCS], frozenset(special[BAD_ICRCS:])
    planted = frozenset(bad)
    crc32, draw, record, write = zlib.crc32, rng.random, _RECORD.pack, out.write
    moment = START * 1000  # ns
    write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snaplen, outer.LinkType.ETHERNET))
    for number in range(packets):
        if number in foreign:
            frame = other_frames[int(draw() * len(other_frames))]
        else:
            template, word, aeth = streams[int(draw() * len(streams))]()
            head, covered, has_aeth, rest, size, pad = template
            start = _TWO_WORDS.pack(word, aeth) if has_aeth else _WORD.pack(word)
            start += rest
            offset = (word * 4091) % _POOL
            payload = pool[offset : offset + size]
            value = crc32(pad, crc32(payload, crc32(start, covered)))
            if number in planted:
                value ^= 1 << int(draw() * 32)
            frame = b"".join((head, start, payload, pad, value.to_bytes(4, "little")))
        length = len(frame)
        seconds, nanoseconds = divmod(moment, 10**9)
        write(record(seconds, nanoseconds // 1000, min(length, snaplen), length))
        write(frame if length <= snaplen else frame[:snaplen])
        # 100 Gb/s with 24 bytes between frames, and now and then a pause.
        moment += (length + 24) * 8 // 100 + (int(draw() * 20_000) if draw() < 0.05 else 0)
    return planted


def _numbers(rng: random.Random, below: int, count: int) -> list[int]:
    """`count` different numbers, or all of them, in an order that only the seed decides."""
    found: dict[int, None] = {}
    while len(found) < min(count, below):
        found[int(rng.random() * below)] = None
    return list(found)


def _mac(host: int) -> int:
    return 0x02_00_00_00_00_00 | host


def _checksum(header: bytes) -> bytes:
    """The IPv4 header checksum (RFC 1071) of a header whose checksum field is zero."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", total ^ 0xFFFF)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="make a large capture of mixed RDMA traffic")
    parser.add_argument("out", type=Path)
    parser.add_argument("--packets", type=int, default=PACKETS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--snaplen", type=int, default=SNAPLEN)
    arguments = parser.parse_args()
    began = time.perf_counter()
    with arguments.out.open("wb", buffering=1 << 22) as out:
        planted = generate(out, arguments.packets, arguments.seed, arguments.snaplen)
        size = out.tell()
    took = time.perf_counter() - began
    print(
        f"{arguments.out}: {arguments.packets:,} packets, {size:,} bytes, "
        f"{len(planted)} bad ICRCs, seed {arguments.seed}, {took:.1f} s"
    )


if __name__ == "__main__":
    main()
