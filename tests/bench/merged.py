"""Make a large capture of real ones: all captures of a directory at once, again and again.

    python tests/bench/merged.py OUT.pcap [--packets N] [--captures DIR]

The pcap files of the directory (captures/ of this repository: Linux Soft-RoCE under many tools,
with losses, duplicates, damage and reordering) begin at the same time, and their frames are put in
order. Where both ends of a wire were captured (`name.a.pcap` and `name.b.pcap`), the second is left
out, which has the same packets once more. When all have ended they begin again with other IP
addresses, so that the connections of each round are new ones. The ICRC of a frame is changed by
what the addresses change in it: one that was wrong stays wrong by the same bits. Frames of other
protocols than RoCEv2 are always the same.
"""

from __future__ import annotations

import argparse
import struct
import zlib
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "captures"
PACKETS = 1_000_000
ROUNDS = 256
"""Each has its own second octet of the addresses."""
PAUSE_NS = 10**9
"""Between two rounds; more than an ACK timer lasts with its retries."""

START_NS = 1_700_000_000 * 10**9
MAGIC = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}
"""Of a pcap file -> nanoseconds in the unit of its times."""
ETHERNET = 1
_FILE = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_ICRC = struct.Struct("<I")

IPV4, IPV6, VLAN = 0x0800, 0x86DD, (0x8100, 0x88A8)
UDP, ROCE = 17, 4791
IPV4_SIZE, IPV6_SIZE, UDP_SIZE, ICRC_SIZE = 20, 40, 8, 4


class Captured(NamedTuple):
    """A frame of a capture."""

    time_ns: int
    """Since the first frame of its capture."""
    wire_len: int
    data: bytes


class Place(NamedTuple):
    """Where a RoCEv2 frame has what changes with its addresses."""

    words: tuple[int, int]
    """One word of the source and one of the destination."""
    checksum: int | None
    """Of the IPv4 header."""
    udp: int
    end: int
    """Of the IP packet."""


def read(path: Path) -> list[Captured]:
    """The frames of a pcap file, if they are Ethernet frames; else none."""
    data = path.read_bytes()
    magic, _, _, _, _, _, link = _FILE.unpack_from(data)
    unit = MAGIC.get(magic)
    if unit is None or link != ETHERNET:
        return []
    frames: list[Captured] = []
    at, first = _FILE.size, 0
    while at + _RECORD.size <= len(data):
        seconds, part, size, wire_len = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        time_ns = seconds * 10**9 + part * unit
        first = first or time_ns
        frames.append(Captured(time_ns - first, wire_len, data[at : at + size]))
        at += size
    return frames


def place(frame: bytes) -> Place | None:
    """Where a frame has its addresses; `None` if it is no RoCEv2 frame."""
    at = 12
    while at + 2 <= len(frame) and int.from_bytes(frame[at : at + 2], "big") in VLAN:
        at += 4
    ethertype, ip = int.from_bytes(frame[at : at + 2], "big"), at + 2
    if ethertype == IPV4 and len(frame) >= ip + IPV4_SIZE + UDP_SIZE:
        udp, protocol = ip + 4 * (frame[ip] & 0xF), frame[ip + 9]
        found = Place((ip + 12, ip + 16), ip + 10, udp, ip + _word(frame, ip + 2))
    elif ethertype == IPV6 and len(frame) >= ip + IPV6_SIZE + UDP_SIZE:
        udp, protocol = ip + IPV6_SIZE, frame[ip + 6]
        found = Place((ip + 16, ip + 32), None, udp, udp + _word(frame, ip + 4))
    else:
        return None
    return found if protocol == UDP and _word(frame, udp + 2) == ROCE else None


def moved(frame: bytes, where: Place, number: int) -> bytes:
    """The frame with the addresses of a round: both words of them XOR its number."""
    data = bytearray(frame)
    has_udp_checksum = _word(frame, where.udp + 6) != 0
    for at in where.words:
        before, after = _word(frame, at), _word(frame, at) ^ number
        _put(data, at, after)
        if where.checksum is not None:
            _put(data, where.checksum, _updated(_word(data, where.checksum), before, after))
        if has_udp_checksum:
            _put(data, where.udp + 6, _updated(_word(data, where.udp + 6), before, after))
    at = where.end - ICRC_SIZE
    if where.end <= len(frame):
        first, second = where.words
        (icrc,) = _ICRC.unpack_from(frame, at)
        _ICRC.pack_into(data, at, icrc ^ _difference(number, second - first, at - first))
    return bytes(data)


@cache
def _difference(number: int, apart: int, size: int) -> int:
    """What two words of the addresses change in the ICRC: CRC-32 is linear.

    apart: bytes between the words. size: from the first word to the ICRC.
    """
    changed = bytearray(size)
    _put(changed, 0, number)
    _put(changed, apart, number)
    return zlib.crc32(changed) ^ zlib.crc32(bytes(size))


def _word(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def _put(data: bytearray, at: int, word: int) -> None:
    data[at : at + 2] = word.to_bytes(2, "big")


def _updated(checksum: int, before: int, after: int) -> int:
    """An Internet checksum after a change of one word (RFC 1624, equation 3)."""
    total = (~checksum & 0xFFFF) + (~before & 0xFFFF) + after
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def generate(out: Path, packets: int, captures: Path = CAPTURES) -> int:
    """Write the capture; returns how many frames it has."""
    paths = (path for path in sorted(captures.glob("*.pcap")) if not path.match("*.b.pcap"))
    files = [read(path) for path in paths]
    frames = sorted((each for file in files for each in file), key=lambda each: each.time_ns)
    if not frames:
        raise SystemExit(f"no pcap file with Ethernet frames in {captures}")
    if packets > ROUNDS * len(frames):
        raise SystemExit(f"at most {ROUNDS * len(frames):,} packets: {ROUNDS} rounds of {captures}")
    places = [place(each.data) for each in frames]
    length = frames[-1].time_ns + PAUSE_NS
    everything = (
        (START_NS + number * length + each.time_ns, each, where, number)
        for number in range(ROUNDS)
        for each, where in zip(frames, places, strict=True)
    )
    with out.open("wb") as file:
        file.write(_FILE.pack(0xA1B23C4D, 2, 4, 0, 0, 262_144, ETHERNET))
        for time_ns, each, where, number in islice(everything, packets):
            data = each.data if where is None else moved(each.data, where, number)
            second, part = divmod(time_ns, 10**9)
            file.write(_RECORD.pack(second, part, len(data), each.wire_len) + data)
    return packets


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="make a large capture of real ones")
    parser.add_argument("out", type=Path)
    parser.add_argument("--packets", type=int, default=PACKETS)
    parser.add_argument("--captures", type=Path, default=CAPTURES)
    given = parser.parse_args()
    count = generate(given.out, given.packets, given.captures)
    print(f"{given.out}: {count:,} packets, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
