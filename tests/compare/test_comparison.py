"""Two captures of one path: every loss, copy, swap and flipped bit between them is named.

What happened is recorded by the wire that did it (`*.wire.json`), or by the test that
did it to the frames of a clean capture.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import sampled
from ibwire.base.errors import CaptureError
from ibwire.capture import PcapngWriter
from ibwire.compare.comparison import Between, Evidence, compare
from ibwire_layers import crc
from ibwire_layers.outer import LinkType

CAPTURES = Path(__file__).parents[2] / "captures"

PAIRS = (
    "chaos",
    "corrupt-both-3pc",
    "drop-atomic-ack",
    "drop-one-ack",
    "drop-one-last",
    "drop-one-middle",
    "drop-read-response",
    "dup-both-3pc",
    "ecn-ce",
    "loss-ack-only",
    "loss-both-2pc",
    "reorder-ab-3pc",
)

LISTS = {
    "loss": "lost",
    "corrupt": "damaged",
    "dup": "duplicated",
    "reorder": "reordered",
    "ce": "marked",
    "": "unsent",
}
"""What the wire did -> where it is named."""

MS = 1_000_000


class Frame(NamedTuple):
    time_ns: int
    data: bytes
    cut_to: int | None = None

    @property
    def sender(self) -> str | None:
        """Of a RoCEv2 frame over IPv4 (UDP port 4791), read here by hand."""
        if self.data[12:14] != b"\x08\x00" or self.data[23] != 17:
            return None
        return "ab" if self.data[26:30] == bytes((10, 77, 0, 1)) else "ba"

    @property
    def is_roce(self) -> bool:
        return self.sender is not None and self.data[36:38] == (4791).to_bytes(2, "big")

    @property
    def told(self) -> tuple[int, int]:
        return self.data[42], int.from_bytes(self.data[51:54], "big")

    def later(self, by_ns: int) -> Frame:
        return self._replace(time_ns=self.time_ns + by_ns)


def frames_of(name: str) -> list[Frame]:
    """Frames of a little-endian pcap in microseconds."""
    data = (CAPTURES / name).read_bytes()
    assert data[:4] == bytes.fromhex("d4c3b2a1")
    frames, at = [], 24
    while at < len(data):
        seconds, micros, length, _ = struct.unpack_from("<IIII", data, at)
        time_ns = (seconds * 10**6 + micros) * 1000
        frames.append(Frame(time_ns, data[at + 16 : at + 16 + length]))
        at += 16 + length
    return frames


def head() -> bytes:
    return struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)


def record(frame: Frame) -> bytes:
    data = frame.data[: frame.cut_to]
    sizes = len(data), len(frame.data)
    return struct.pack("<IIII", *divmod(frame.time_ns, 10**9), *sizes) + data


def capture(frames: Iterable[Frame]) -> io.BytesIO:
    return io.BytesIO(head() + b"".join(map(record, frames)))


def named(between: Between) -> dict[tuple[str, str], list[tuple[int | None, int, int]]]:
    """(direction, what happened) -> frames of the sender's side with opcode and PSN."""
    return {
        ("ab" if key.src == "10.77.0.1" else "ba", action): [
            (found.frame, found.opcode, found.psn) for found in getattr(direction, name)
        ]
        for key, direction in between.directions.items()
        for action, name in LISTS.items()
        if getattr(direction, name)
    }


def truth(name: str) -> dict[tuple[str, str], list[tuple[int | None, int, int]]]:
    """The same from the log of the wire, which counts the RoCEv2 frames of each direction."""
    numbers = {
        way: [
            number
            for number, frame in enumerate(frames_of(f"{name}.{way[0]}.pcap"), 1)
            if frame.is_roce and frame.sender == way
        ]
        for way in ("ab", "ba")
    }
    found: dict[tuple[str, str], list[tuple[int | None, int, int]]] = {}
    for action in json.loads((CAPTURES / f"{name}.wire.json").read_text())["actions"]:
        frame = numbers[action["dir"]][action["n"] - 1]
        entry = frame, action["op"], action["psn"]
        found.setdefault((action["dir"], action["act"]), []).append(entry)
    return {key: sorted(entries) for key, entries in found.items()}


@pytest.mark.parametrize("swapped", [False, True], ids=["a-b", "b-a"])
@pytest.mark.parametrize("name", PAIRS)
def test_everything_that_the_wire_did_is_named(name: str, swapped: bool) -> None:
    paths = [str(CAPTURES / f"{name}.{end}.pcap") for end in "ab"]

    between = compare(*(paths[::-1] if swapped else paths))

    assert named(between) == truth(name)
    assert between.problems == []
    for key, direction in between.directions.items():
        assert direction.sender_path == paths[key.src != "10.77.0.1"]
        assert direction.not_covered == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_small_window_finds_the_same(name: str) -> None:
    paths = [str(CAPTURES / f"{name}.{end}.pcap") for end in "ab"]

    between = compare(*paths, window=100)

    assert named(between) == truth(name)


@pytest.mark.parametrize("window", [1 << 17, 100])
@pytest.mark.parametrize("name", sampled(["drop-one-middle", "loss-both-2pc", "drop-one-ack"], 3))
def test_of_a_capture_with_both_points_each_packet_counts_once(name: str, window: int) -> None:
    """At its first point: what was lost on the way to b is missing in the capture of b alone."""
    seen = [
        (frame.time_ns, point, frame.data)
        for point, end in enumerate("ab")
        for frame in frames_of(f"{name}.{end}.pcap")
    ]
    stream = io.BytesIO()
    writer = PcapngWriter(stream, LinkType.ETHERNET)
    writer.add_interface(LinkType.ETHERNET, "b")
    for time_ns, point, data in sorted(seen):
        writer.write(data, time_ns, interface=point)
    writer.flush()
    stream.seek(0)

    between = compare(stream, str(CAPTURES / f"{name}.b.pcap"), window=window)

    lost = [entry[1:] for entry in truth(name).get(("ab", "loss"), ())]
    assert {key: [entry[1:] for entry in found] for key, found in named(between).items()} == (
        {("ab", "loss"): lost} if lost else {}
    )
    (problem,) = between.problems
    assert "packets were captured again at another interface" in problem


def anonymous(frame: Frame) -> Frame:
    """The frame without its IP ID, which many senders leave 0, and with the ICRC that it gets."""
    if not frame.is_roce:
        return frame
    packet = bytearray(frame.data[14:-4])
    right = crc.icrc(bytes(packet), MASKS) == frame.data[-4:]
    packet[4:6] = bytes(2)
    packet[10:12] = bytes(2)
    words = struct.unpack("!10H", packet[:20])
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    packet[10:12] = ((total & 0xFFFF) + (total >> 16) ^ 0xFFFF).to_bytes(2, "big")
    tail = crc.icrc(bytes(packet), MASKS) if right else frame.data[-4:]
    return frame._replace(data=frame.data[:14] + bytes(packet) + tail)


MASKS = ((0, crc.IPV4_MASK), (20, crc.UDP_MASK), (28, crc.BTH_MASK))


@pytest.mark.parametrize(
    "name", ["loss-both-2pc", "loss-ack-only", "drop-one-last", "drop-one-ack", "dup-both-3pc"]
)
def test_resends_that_look_like_the_first_time_are_told_apart_by_time(name: str) -> None:
    sides = [capture(map(anonymous, frames_of(f"{name}.{end}.pcap"))) for end in "ab"]

    between = compare(*sides)

    assert named(between) == truth(name)


# A wire of our own: what is sent at one end of a clean capture arrives at the other, or does not.

SENT = frames_of("loss-both-2pc.a.pcap")[:150]

ROCE = [at for at, frame in enumerate(SENT) if frame.is_roce]

WAYS = {"ab": 1, "ba": -1}
"""How the delay counts from the first point to the second."""


def wire(delay_ns: int = 100_000, ahead_ns: int = 0) -> list[Frame]:
    """What the second point sees when nothing happens; its clock is ahead."""
    return [frame.later(WAYS[frame.sender or "ab"] * delay_ns + ahead_ns) for frame in SENT]


def expected(action: str, places: Iterable[int]) -> dict[tuple[str, str], list[object]]:
    found: dict[tuple[str, str], list[object]] = {}
    for at in sorted(places):
        entry = at + 1, *SENT[at].told
        found.setdefault((str(SENT[at].sender), action), []).append(entry)
    return found


def in_order(frames: Iterable[Frame]) -> list[Frame]:
    return sorted(frames, key=lambda frame: frame.time_ns)


def of_way(way: str) -> list[int]:
    """Frames of one direction between others of it, where the ends cannot be seen."""
    return [at for at in ROCE if SENT[at].sender == way][3:-3]


# Several frames, of one direction, whose sender's side is the first capture.
SOME = st.sets(st.sampled_from(of_way("ab")), min_size=1, max_size=20)
OFFSETS = st.integers(-3600 * 10**9, 3600 * 10**9)


@given(lost=SOME, ahead_ns=OFFSETS, swapped=st.booleans())
def test_any_frames_that_are_lost_are_named_whatever_the_clocks_say(
    lost: set[int], ahead_ns: int, swapped: bool
) -> None:
    arrived = in_order(f for at, f in enumerate(wire(ahead_ns=ahead_ns)) if at not in lost)
    sides = [capture(SENT), capture(arrived)]

    between = compare(*(sides[::-1] if swapped else sides))

    assert named(between) == expected("loss", lost)
    assert between.clock_offset_ns == (-ahead_ns if swapped else ahead_ns)


@given(twice=SOME)
def test_any_frames_that_arrive_twice_are_named(twice: set[int]) -> None:
    frames = wire()
    arrived = in_order([*frames, *(frames[at].later(1_000) for at in twice)])

    between = compare(capture(SENT), capture(arrived))

    assert named(between) == expected("dup", twice)


@given(late=SOME, by_ns=st.integers(1, 20 * MS))
def test_any_frames_that_are_overtaken_are_named(late: set[int], by_ns: int) -> None:
    frames = wire()
    arrived = in_order(
        frame.later(by_ns) if at in late else frame for at, frame in enumerate(frames)
    )
    places = {frame.data: at for at, frame in enumerate(SENT)}
    overtaken, newest = set(), 0
    for frame in arrived:
        at = places[frame.data]
        if frame.sender == "ab" and frame.is_roce:
            overtaken |= {at} if at < newest else set()
            newest = max(newest, at)

    between = compare(capture(SENT), capture(arrived))

    assert named(between) == expected("reorder", overtaken)


def flipped(frame: Frame, bit: int) -> Frame:
    data = bytearray(frame.data)
    data[bit // 8] ^= 1 << bit % 8
    return frame._replace(data=bytes(data))


@given(
    damaged=st.dictionaries(
        st.sampled_from(of_way("ab")), st.integers(0, 10**6), min_size=1, max_size=10
    )
)
def test_any_frames_with_a_flipped_bit_are_named(damaged: dict[int, int]) -> None:
    arrived = [
        flipped(frame, damaged[at] % (8 * len(frame.data))) if at in damaged else frame
        for at, frame in enumerate(wire())
    ]

    between = compare(capture(SENT), capture(in_order(arrived)))

    assert named(between) == expected("corrupt", damaged)


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_the_headers_is_damage() -> None:
    places = of_way("ab")[2::4][:8]
    for byte in range(54):
        arrived = wire()
        for bit, at in enumerate(places):
            arrived[at] = flipped(arrived[at], 8 * byte + bit)

        between = compare(capture(SENT), capture(in_order(arrived)))

        assert named(between) == expected("corrupt", places), f"byte {byte}"


@given(
    first=st.tuples(st.integers(0, 149), st.integers(0, 149)),
    second=st.tuples(st.integers(0, 149), st.integers(0, 149)),
    ahead_ns=OFFSETS,
)
def test_what_only_one_capture_covers_is_not_lost(
    first: tuple[int, int], second: tuple[int, int], ahead_ns: int
) -> None:
    one = SENT[min(first) : max(first) + 1]
    other = in_order(wire(ahead_ns=ahead_ns))[min(second) : max(second) + 1]

    between = compare(capture(one), capture(other))

    assert named(between) == {}


def test_frames_before_and_after_the_other_capture_are_counted_as_not_covered() -> None:
    arrived = in_order(wire())[40:100]

    between = compare(capture(SENT), capture(arrived))

    matched = sum(direction.matched for direction in between.directions.values())
    not_covered = sum(direction.not_covered for direction in between.directions.values())
    assert matched == 60
    assert not_covered == len(ROCE) - 60


def test_a_capture_cut_to_128_bytes_still_tells_what_is_lost() -> None:
    lost = of_way("ab")[5:8]
    arrived = [frame._replace(cut_to=128) for at, frame in enumerate(wire()) if at not in lost]

    between = compare(capture(SENT), capture(in_order(arrived)))

    assert named(between) == expected("loss", lost)


def test_a_router_between_the_points_damages_nothing() -> None:
    def routed(frame: Frame) -> Frame:
        data = bytearray(frame.data)
        data[0:12] = bytes(range(2, 14))
        data[22] -= 1
        data[24:26] = ((int.from_bytes(data[24:26], "big") + 0x100) % 0xFFFF).to_bytes(2, "big")
        return frame._replace(data=bytes(data))

    arrived = [routed(f) if f.sender == "ab" else f for f in wire()]

    between = compare(capture(in_order(arrived)), capture(SENT))

    assert named(between) == {}
    assert {(d.sender, d.decided_by) for d in between.directions.values()} == {
        (1, Evidence.HOPS),
        (0, Evidence.HOPS),
    }


def test_a_capture_without_icrcs_damages_nothing() -> None:
    # As a sender's host sees its own frames when the adapter adds the ICRC behind the tap.
    bare = [f._replace(data=f.data[:-4] + bytes(4)) if f.is_roce else f for f in SENT]
    lost = of_way("ab")[5:8]
    arrived = [frame for at, frame in enumerate(wire()) if at not in lost]

    between = compare(capture(bare), capture(in_order(arrived)))

    assert named(between) == expected("loss", lost)
    assert any("ICRC" in problem for problem in between.problems)


# Clocks.


def test_delays_and_offset_come_out_of_both_directions() -> None:
    between = compare(capture(SENT), capture(in_order(wire(250_000, 7 * MS))))

    assert (between.clock_offset_ns, between.clock_uncertain_ns) == (7 * MS, 250_000)
    assert [d.delay for d in between.directions.values()] == [(250_000,) * 3] * 2
    assert len(between.problems) == 1
    assert "7.000 ms ahead" in between.problems[0]


def test_a_drifting_clock_is_reported_and_corrected() -> None:
    start = SENT[0].time_ns
    stretched = [f._replace(time_ns=start + (f.time_ns - start) * 100) for f in SENT]
    arrived = [
        f.later(WAYS[f.sender or "ab"] * 100_000 + (f.time_ns - start) // 10_000) for f in stretched
    ]

    between = compare(capture(stretched), capture(in_order(arrived)))

    assert named(between) == {}
    assert between.clock_drift_ppm == pytest.approx(100, abs=5)
    assert all(d.delay and 80_000 < d.delay.p50_ns < 120_000 for d in between.directions.values())
    assert "gains" in between.problems[0]


@pytest.mark.parametrize("by_ns", [-600 * 10**9, -5 * 10**9, 5 * 10**9, 600 * 10**9])
def test_a_clock_that_was_set_is_reported_and_loses_nothing(by_ns: int) -> None:
    arrived = in_order(wire())
    arrived[75:] = [frame.later(by_ns) for frame in arrived[75:]]

    between = compare(capture(SENT), capture(arrived))

    assert named(between) == {}
    assert all(direction.delay is None for direction in between.directions.values())
    assert between.problems


def test_clocks_that_nothing_explains_are_reported_and_give_no_delays() -> None:
    arrived = wire()
    arrived[60:90] = [frame.later(30 * MS) for frame in arrived[60:90]]

    between = compare(capture(SENT), capture(in_order(arrived)))

    assert all(direction.delay is None for direction in between.directions.values())
    assert any("clocks disagree" in problem for problem in between.problems)


def test_one_direction_alone_gives_no_delay() -> None:
    arrived = [frame for frame in wire() if frame.sender == "ab"]

    between = compare(capture(SENT), capture(arrived))

    there, back = between.directions.values()
    assert (there.lost, there.delay) == ([], None)
    assert (back.lost, back.matched, back.not_covered) == (
        [],
        0,
        sum(SENT[at].sender == "ba" for at in ROCE),
    )
    assert any("none of" in problem for problem in between.problems)


def test_order_tells_the_sender_when_nothing_else_does() -> None:
    arrived = [frame.later(-500 * MS) for frame in wire() if frame.sender == "ab"]
    arrived[40] = arrived[40].later(5 * MS)

    between = compare(capture(in_order(arrived)), capture(SENT))

    assert next(iter(between.directions.values())).decided_by is Evidence.ORDER
    assert next(iter(between.directions.values())).sender == 1


# Bad input.


def test_captures_of_different_traffic_have_nothing_in_common() -> None:
    between = compare(
        str(CAPTURES / "drop-one-last.a.pcap"), str(CAPTURES / "drop-read-response.b.pcap")
    )

    assert named(between) == {}
    assert any("no frame is in both" in problem for problem in between.problems)
    assert between.clock_offset_ns is None


def test_a_damaged_capture_is_compared_up_to_the_damage() -> None:
    data = capture(in_order(wire())).getvalue()

    between = compare(capture(SENT), io.BytesIO(data[: len(data) // 2]))

    assert named(between) == {}
    assert len(between.errors) == 1
    assert any("compared up to there" in problem for problem in between.problems)


@pytest.mark.parametrize("first", [True, False])
def test_no_capture_is_an_error(first: bool) -> None:
    sides = [io.BytesIO(b"no capture"), capture(SENT)]

    with pytest.raises(CaptureError):
        compare(*(sides if first else sides[::-1]))


def test_an_empty_capture_covers_nothing() -> None:
    between = compare(capture(SENT), capture([]))

    assert named(between) == {}
    assert sum(d.not_covered for d in between.directions.values()) == len(ROCE)


class Endless(io.RawIOBase):
    """A capture that never ends: the same frames, again and again, at later times."""

    name = "endless"

    def __init__(self) -> None:
        self._left = head()
        self._frames = self._all()
        self.served = 0

    def _all(self) -> Iterator[bytes]:
        turn = 0
        while True:
            yield from (record(frame.later(turn * 10**9)) for frame in in_order(wire()))
            turn += 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while len(self._left) < len(buffer):
            self._left += next(self._frames)
        count = len(buffer)
        buffer[:] = self._left[:count]
        self._left = self._left[count:]
        self.served += count
        return count


def test_an_endless_capture_ends_with_the_other_one() -> None:
    between = compare(capture(SENT), Endless(), window=1000)

    assert not any(direction.lost for direction in between.directions.values())
    assert any("was not read" in problem for problem in between.problems)


@given(st.binary(max_size=400), st.integers(0, 2**32), st.integers(0, 20_000))
def test_nonsense_in_a_capture_never_raises(noise: bytes, seed: int, at: int) -> None:
    data = bytearray(capture(in_order(wire())).getvalue())
    at %= len(data) - 24
    data[24 + at : 24 + at + len(noise)] = noise

    between = compare(capture(SENT), io.BytesIO(bytes(data)))

    json.dumps(between.to_json())


def test_json_names_a_lost_frame_with_opcode_and_psn() -> None:
    between = compare(
        str(CAPTURES / "drop-one-middle.a.pcap"), str(CAPTURES / "drop-one-middle.b.pcap")
    )

    direction = next(iter(between.directions.values())).to_json()

    assert direction["lost_between"] == [
        {"frame": 13, "opcode": 7, "opcode_name": "RC_RDMA_WRITE_MIDDLE", "psn": 103}
    ]


@pytest.mark.slow
def test_a_clock_that_was_set_back_in_a_capture_longer_than_the_window_loses_nothing() -> None:
    frames = frames_of("loss-ack-only.b.pcap")
    frames[600:] = [frame.later(-600 * 10**9) for frame in frames[600:]]

    between = compare(str(CAPTURES / "loss-ack-only.a.pcap"), capture(frames), window=100)

    assert named(between) == truth("loss-ack-only")
    assert any("go back by 600.0" in problem for problem in between.problems)
