"""What one side alone says of a wire, against what the wire did (`*.wire.json`).

The wire between two hosts lost, copied, swapped and damaged frames of its own
making. A capture of the sender's own side has not been through it; one of the
other side has.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from each_case import each_case
from ibwire.connections.connection import Connection
from ibwire.connections.merge import analyse
from ibwire.connections.summary import Summary
from ibwire_layers.opcodes import Service

CAPTURES = Path(__file__).parents[2] / "captures"
NAMES = sorted(path.name.split(".")[0] for path in CAPTURES.glob("*.wire.json"))
SENDERS = {"ab": bytes((10, 77, 0, 1)), "ba": bytes((10, 77, 0, 2))}
"""The sender of each direction."""
ADDRESSES = {"ab": "10.77.0.1", "ba": "10.77.0.2"}

COUNTS = ("lost_packets", "duplicate_packets", "reordered_packets", "retransmitted_packets")

LOST, AGAIN = "lost_packets", "retransmitted_packets"
HIDDEN = {
    # A timer expired without a trace of what was lost: the last of the requests, or what answers
    # it, may have been; then it was sent again for the first time here. Linux leaves out some IP
    # identifications after a silence, so that these do not tell either.
    ("drop-one-last", "a", "ab", LOST),
    ("drop-one-last", "a", "ab", AGAIN),
    ("drop-one-last", "b", "ab", LOST),
    ("drop-one-last", "b", "ab", AGAIN),
    ("drop-one-ack", "a", "ab", LOST),
    ("drop-one-ack", "a", "ab", AGAIN),
    ("drop-one-ack", "a", "ba", LOST),
    ("drop-atomic-ack", "a", "ba", LOST),
    ("drop-atomic-ack", "a", "ba", AGAIN),
    # READs were asked for again of which no response had been seen.
    ("chaos", "a", "ba", LOST),
    ("chaos", "a", "ba", AGAIN),
    ("chaos", "b", "ba", LOST),
    ("chaos", "b", "ba", AGAIN),
    ("corrupt-both-3pc", "a", "ba", LOST),
    ("corrupt-both-3pc", "a", "ba", AGAIN),
    ("corrupt-both-3pc", "b", "ba", LOST),
    ("corrupt-both-3pc", "b", "ba", AGAIN),
    ("loss-ack-only", "a", "ba", LOST),
    ("loss-ack-only", "a", "ba", AGAIN),
    ("loss-ack-only", "b", "ba", LOST),
    ("loss-ack-only", "b", "ba", AGAIN),
}
"""Capture, side, direction, count: all that may be called not observable."""

ROWS = [(name, side, way) for name in NAMES for side in "ab" for way in ("ab", "ba")]


class Frame(NamedTuple):
    """A RoCEv2 frame of a capture, read here by hand."""

    way: str
    data: bytes

    @property
    def told(self) -> bytes:
        """What the network between the hosts does not change: no ECN, TTL, or checksums."""
        ip, udp = bytearray(self.data[14:34]), bytearray(self.data[34:42])
        ip[1] = ip[8] = 0
        ip[10:12] = udp[6:8] = bytes(2)
        return bytes(ip + udp) + self.data[42:]

    @property
    def opcode(self) -> int:
        return self.data[42]

    @property
    def psn(self) -> int:
        return int.from_bytes(self.data[51:54], "big")

    @property
    def dma_len(self) -> int:
        """Of a READ request."""
        return int.from_bytes(self.data[66:70], "big")


RC_READ_RESPONSES = (13, 14, 15, 16)
RC_ACKNOWLEDGE, RC_ATOMIC_ACKNOWLEDGE = 17, 18
RC_READ_REQUEST = 12
PATH_MTU = 1024
"""Of all these captures (index.toml: made by rxe over an Ethernet MTU of 1500)."""


@cache
def frames_of(name: str, side: str) -> tuple[Frame, ...]:
    """RoCEv2 frames of RC over IPv4, from a little-endian pcap."""
    return tuple(_frames(CAPTURES / f"{name}.{side}.pcap"))


def _frames(path: Path) -> Iterator[Frame]:
    data, at = path.read_bytes(), 24
    while at < len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        frame = data[at + 16 : at + 16 + length]
        at += 16 + length
        for way, sender in SENDERS.items():
            is_roce = frame[12:14] == b"\x08\x00" and frame[36:38] == (4791).to_bytes(2, "big")
            if is_roce and frame[26:30] == sender and frame[42] < 0x20:
                yield Frame(way, frame)


def sent_again(name: str, way: str) -> list[Frame]:
    """Frames of the sender's side whose PSN it had sent before, as request or as answer."""
    behind: dict[bool, int] = {}
    again = []
    for frame in frames_of(name, way[0]):
        if frame.way != way or frame.opcode == RC_ACKNOWLEDGE:
            continue
        is_answer = frame.opcode in (*RC_READ_RESPONSES, RC_ATOMIC_ACKNOWLEDGE)
        span = 1
        if frame.opcode == RC_READ_REQUEST:
            span = max(1, -(-frame.dma_len // PATH_MTU))
        ahead = (frame.psn - behind.get(is_answer, frame.psn) + (1 << 23)) % (1 << 24) - (1 << 23)
        if ahead < 0:
            again.append(frame)
        else:
            behind[is_answer] = frame.psn + span
    return again


def truth(name: str, side: str, way: str) -> dict[str, int]:
    """The counts that a capture of this side must give for a direction."""
    again = sent_again(name, way)
    acts: Counter[str] = Counter()
    if side != way[0]:
        actions = json.loads((CAPTURES / f"{name}.wire.json").read_text())["actions"]
        acts.update(action["act"] for action in actions if action["dir"] == way)
        arrived = {frame.told for frame in frames_of(name, side)}
        again = [frame for frame in again if frame.told in arrived]
    values = (acts["loss"], acts["dup"], acts["reorder"], len(again))
    return dict(zip(COUNTS, values, strict=True))


@cache
def summary_of(name: str, side: str) -> Summary:
    summary, damage = analyse([str(CAPTURES / f"{name}.{side}.pcap")])
    assert not damage
    return summary


def reliable(name: str, side: str, way: str) -> tuple[Connection, int]:
    """The RC connection of a capture, and which of its directions this is."""
    (connection,) = (
        each for each in summary_of(name, side).connections if each.service is Service.RC
    )
    direction = [end.address for end in connection.ends].index(ADDRESSES[way])
    return connection, direction


@each_case(("name", "side", "way"), ROWS)
def test_one_side_alone_tells_what_the_wire_did(name: str, side: str, way: str) -> None:
    connection, direction = reliable(name, side, way)
    told = connection.to_json(direction)
    expected = truth(name, side, way)

    for count in COUNTS:
        if count in told["not_observable"]:
            assert told[count] <= expected[count], count
        else:
            assert told[count] == expected[count], count


@each_case("name", NAMES)
def test_nothing_else_is_called_not_observable(name: str) -> None:
    found = set()
    for side in "ab":
        for way in ("ab", "ba"):
            connection, direction = reliable(name, side, way)
            found |= {(name, side, way, count) for count in connection.not_observable(direction)}

    assert found == {entry for entry in HIDDEN if entry[0] == name}


def test_most_counts_are_observable() -> None:
    assert len(HIDDEN) <= 0.12 * len(ROWS) * len(COUNTS)


ADDRESSING = range(5, 8)
"""Bytes of the BTH with the destination queue pair."""


@each_case("name", NAMES)
def test_every_damaged_frame_is_counted_where_it_arrives(name: str) -> None:
    """A flipped bit in the queue pair's number leaves a packet that belongs to no connection."""
    actions = json.loads((CAPTURES / f"{name}.wire.json").read_text())["actions"]
    damage = [action for action in actions if action["act"] == "corrupt"]
    for side in "ab":
        arrived = [action for action in damage if action["dir"][0] != side]
        expected = Counter(a["dir"] for a in arrived if a["byte"] not in ADDRESSING)
        stray = sum(action["byte"] in ADDRESSING for action in arrived)

        assert summary_of(name, side).stray_damaged == stray
        for way in ("ab", "ba"):
            connection, direction = reliable(name, side, way)
            assert connection.to_json(direction)["icrc_bad"] == expected[way]


@each_case("name", NAMES)
def test_every_mark_of_the_wire_is_counted(name: str) -> None:
    actions = json.loads((CAPTURES / f"{name}.wire.json").read_text())["actions"]
    for side in "ab":
        for way in ("ab", "ba"):
            acts = [a for a in actions if a["act"] == "ce" and a["dir"] == way and side != way[0]]
            connection, direction = reliable(name, side, way)

            assert connection.to_json(direction)["ecn_ce"] == len(acts)


@each_case("name", NAMES)
@each_case("side", ["a", "b"])
def test_every_packet_of_the_capture_is_in_one_direction_or_stray(name: str, side: str) -> None:
    summary = summary_of(name, side)

    counted = sum(d.packets for each in summary.connections for d in each.directions)
    assert counted + summary.stray_damaged == summary.packets
    for way in ("ab", "ba"):
        connection, direction = reliable(name, side, way)
        frames = sum(frame.way == way for frame in frames_of(name, side))
        if not summary.stray_damaged:
            assert connection.to_json(direction)["packets"] == frames
