"""Expected times are worked out by hand: at 100 Gb/s a quantum of 512 bit times is 5.12 ns."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.units import GBPS
from ibwire.capture import open_capture
from ibwire.capture.pcapng import PcapngWriter
from ibwire.connections import pause
from ibwire.connections.pause import WHOLE_PORT, Held, Interval, Lane, Oddity, Pauses, still
from ibwire.dissect import Columns, read
from ibwire_layers import outer
from ibwire_layers.outer import EtherType, LinkType

SWITCH, HOST = 0x0200000000AA, 0x0200000000BB

START = 1_700_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class Said:
    """A pause frame: so many nanoseconds after START, quanta by class."""

    at: int
    quanta: dict[int, int]
    mac: int = SWITCH

    @property
    def data(self) -> bytes:
        return pfc(self.quanta, src=self.mac)


def pfc(
    quanta: dict[int, int],
    *,
    src: int = SWITCH,
    dst: int = 0x0180C2000001,
    vector: int | None = None,
) -> bytes:
    if WHOLE_PORT in quanta:
        body = outer.Pause(pause_time=quanta[WHOLE_PORT]).pack()
    else:
        time = tuple(quanta.get(i, 0) for i in range(8))
        enabled = sum(1 << i for i in quanta) if vector is None else vector
        body = outer.PFC(class_enable=enabled, time=time).pack()
    head = outer.Ethernet(dst=dst, src=src, type=EtherType.MAC_CONTROL)
    return (head.pack() + body).ljust(60, b"\0")


def captured(frames: list[tuple[int, bytes]], chunk: int = 1 << 20) -> list[Columns]:
    """(nanoseconds after START, frame) through a pcapng file, at most `chunk` frames at a time."""
    file = BytesIO()
    with PcapngWriter(file, LinkType.ETHERNET) as writer:
        for at, data in frames:
            writer.write(data, START + at)
    file.seek(0)
    with open_capture(file) as capture:
        return [
            Columns(part, "a.pcapng") for batch in capture.batches() for part in batch.split(chunk)
        ]


def pauses_of(frames: list[tuple[int, bytes]], rate: int | None = 100 * GBPS, **kw: Any) -> Pauses:
    pauses = Pauses(rate, **kw)
    for columns in captured(frames):
        pauses.take(columns)
    return pauses


def lane_of(beats: list[tuple[int, int]], rate: int | None = 100 * GBPS, **kw: Any) -> Lane:
    """What one sender said of priority 3: (nanoseconds after START, quanta)."""
    frames = [(at, pfc({3: quanta})) for at, quanta in beats]
    return pauses_of(frames, rate, **kw).senders[SWITCH].lanes[3]


def times(lane: Lane) -> list[tuple[int, int]]:
    return sorted((each.start_ns - START, each.paused_ns) for each in lane.longest)


@each_case(
    ("beats", "paused"),
    [
        pytest.param([(0, 100), (200, 0)], [(0, 200)], id="ended by an XON"),
        pytest.param([(0, 100), (600, 0)], [(0, 512)], id="run out before the XON"),
        pytest.param([(0, 100)], [(0, 512)], id="run out behind the end of the capture"),
        pytest.param([(0, 100), (500, 100), (600, 0)], [(0, 600)], id="refreshed in time"),
        pytest.param([(0, 100), (500, 10)], [(0, 551)], id="replaced by a shorter timer"),
        pytest.param([(0, 100), (512, 100)], [(0, 1024)], id="refreshed at the last moment"),
        pytest.param([(0, 100), (513, 100)], [(0, 512), (513, 512)], id="a gap of 1 ns"),
        pytest.param(
            [(0, 100), (200, 0), (300, 100), (400, 0)], [(0, 200), (300, 100)], id="two pauses"
        ),
        pytest.param([(0, 0), (10, 0)], [], id="only XONs"),
        pytest.param([(0, 100), (0, 0)], [(0, 0)], id="ended at once"),
    ],
)
def test_a_priority_is_held_until_the_timer_runs_out_or_the_next_frame(
    beats: list[tuple[int, int]], paused: list[tuple[int, int]]
) -> None:
    lane = lane_of(beats)

    assert times(lane) == paused
    assert lane.pauses == len(paused)
    assert lane.paused_ns == sum(length for _, length in paused)
    assert lane.longest_ns == max((length for _, length in paused), default=0)


def test_xoffs_are_ended_refreshed_or_expired() -> None:
    lane = lane_of([(0, 100), (100, 100), (200, 0), (1000, 9), (2000, 9), (3000, 0), (3001, 0)])

    assert (lane.frames, lane.xoffs, lane.xons) == (7, 4, 3)
    assert (lane.refreshes, lane.pairs, lane.expired) == (1, 1, 2)
    assert (lane.quanta, lane.longest_quanta) == (218, 100)


@each_case(
    ("gbps", "longest_ns"),
    # Maximal pauses by link speed, computed elsewhere: 65535 * 512 / rate.
    [(10, 3_355_392), (25, 1_342_157), (40, 838_848), (100, 335_539), (400, 83_885), (800, 41_942)],
)
def test_a_quantum_is_512_bit_times(gbps: int, longest_ns: int) -> None:
    assert lane_of([(0, 65535)], gbps * GBPS).paused_ns == longest_ns


def test_classes_that_are_not_enabled_are_left_alone() -> None:
    pauses = pauses_of([(0, pfc({3: 1000})), (100, pfc({4: 0})), (200, pfc({3: 0}))])

    lanes = pauses.senders[SWITCH].lanes

    assert sorted(lanes) == [3, 4]
    assert times(lanes[3]) == [(0, 200)]


def test_senders_and_plain_pause_are_kept_apart() -> None:
    pauses = pauses_of(
        [
            (0, pfc({3: 1000})),
            (100, pfc({3: 0}, src=HOST)),
            (150, pfc({WHOLE_PORT: 1000})),
            (200, pfc({WHOLE_PORT: 0})),
            (300, pfc({3: 0})),
        ]
    )

    switch, host = pauses.senders[SWITCH], pauses.senders[HOST]

    assert (switch.pfc_frames, switch.pause_frames, host.pfc_frames) == (2, 2, 1)
    assert times(switch.lanes[3]) == [(0, 300)]
    assert times(switch.lanes[WHOLE_PORT]) == [(150, 50)]
    assert times(host.lanes[3]) == []
    assert pauses.frames == 5


def test_without_link_speed_quanta_are_exact_and_times_are_bounds() -> None:
    frames = [(0, pfc({3: 10})), (1000, pfc({3: 0}))]

    unknown, slowest = pauses_of(frames, None), pauses_of(frames, 10 * GBPS)

    assert not unknown.is_exact
    assert unknown.to_json()["link_bps"] is None
    assert unknown.senders[SWITCH].lanes[3].quanta == 10
    assert unknown.senders == slowest.senders


def test_a_pause_longer_than_the_limit_is_a_storm() -> None:
    """Refreshed every 300 us with the longest timer: 333 refreshes hold 99.9 ms + 335539 ns."""
    refreshed = [(i * 300_000, 65535) for i in range(334)]

    lane = lane_of(refreshed)

    assert lane.paused_ns == 333 * 300_000 + 335_539
    assert lane.storms == 1
    assert lane_of(refreshed[:-2]).storms == 0
    assert lane_of([(0, 100), (513, 100), (9999, 100), (10_500, 100)], storm_ns=600).storms == 1


def test_a_storm_points_at_the_frame_that_began_it() -> None:
    lane = lane_of([(0, 0), (100, 65535), (200, 65535), (300, 0)], storm_ns=100)

    assert lane.longest == [Interval(START + 100, 200, 2, "a.pcapng")]


def test_the_longest_pauses_are_kept_and_all_are_counted() -> None:
    beats = [(i * 10_000 + extra, quanta) for i in range(200) for extra, quanta in pair(i)]

    lane = lane_of(beats)

    assert lane.pauses == 200
    assert lane.paused_ns == sum(range(1, 201))
    assert [each.paused_ns for each in lane.longest] == list(range(200, 200 - pause.KEPT, -1))


def pair(i: int) -> list[tuple[int, int]]:
    """An XOFF that an XON ends after i + 1 ns."""
    return [(0, 1000), (i + 1, 0)]


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    lane = lane_of([(1000, 100), (400, 100), (500, 0)])

    assert lane.paused_ns == 100
    assert lane.pauses == 1


@each_case(
    ("data", "oddities"),
    [
        (pfc({3: 7}), set()),
        (pfc({3: 7}, dst=0x0180C2000002), {Oddity.DESTINATION}),
        (pfc({3: 7}, dst=HOST), {Oddity.DESTINATION}),
        (pfc({WHOLE_PORT: 7}, dst=HOST), set()),
        (pfc({WHOLE_PORT: 7}, dst=0xFFFFFFFFFFFF), {Oddity.DESTINATION}),
        (pfc({3: 7}, vector=0x0108), {Oddity.RESERVED_BITS}),
        (pfc({3: 7, 4: 9}, vector=0x08), {Oddity.UNUSED_TIME}),
        (pfc({}), {Oddity.NO_CLASS}),
        (pfc({3: 7}, vector=0xFF00), set(Oddity) - {Oddity.DESTINATION, Oddity.TAGGED}),
        (pfc({3: 7})[:12] + b"\x81\x00\x60\x00" + pfc({3: 7})[12:], {Oddity.TAGGED}),
    ],
)
def test_odd_frames_are_noted(data: bytes, oddities: set[Oddity]) -> None:
    pauses = pauses_of([(0, pfc({3: 1})), (1, data), (2, data)])

    noted = pauses.senders[SWITCH].oddities

    assert set(noted) == oddities
    assert all((each.count, each.number) == (2, 2) for each in noted.values())


def test_frames_that_were_cut_off_are_left_out() -> None:
    assert pauses_of([(0, pfc({3: 1})[:20]), (1, pfc({WHOLE_PORT: 1})[:17])]) == Pauses(100 * GBPS)


@pytest.mark.parametrize("name", ["rcx-all-ops.pcap", "ecn-ce.b.pcap", "probe-odd-frames.pcap"])
def test_a_capture_without_pause_frames_has_no_senders(name: str, captures: Any) -> None:
    pauses = Pauses()
    for columns in read(captures / name):
        pauses.take(columns)

    assert pauses == Pauses()
    assert pauses.to_json() == {"link_bps": None, "exact": False, "senders": []}


def test_json_has_the_numbers_of_every_priority() -> None:
    pauses = pauses_of([(0, pfc({3: 100})), (200, pfc({3: 0})), (300, pfc({WHOLE_PORT: 0}))])

    (sender,) = pauses.to_json()["senders"]

    assert sender["mac"] == "02:00:00:00:00:aa"
    assert [each["priority"] for each in sender["priorities"]] == [3, None]
    assert sender["priorities"][0] == {
        "priority": 3,
        "frames": 2,
        "xoff": 1,
        "xon": 1,
        "pairs": 1,
        "refreshes": 0,
        "expired": 0,
        "quanta": 100,
        "longest_quanta": 100,
        "pauses": 1,
        "paused_ns": 200,
        "longest_ns": 200,
        "storms": 0,
    }


# Parts of a capture.

# Around the end of a timer of 100 quanta, which takes 512 ns.
DELTAS = st.sampled_from((0, 1, 100, 256, 511, 512, 513, 1024, 2000))


@st.composite
def conversations(draw: st.DrawFn) -> list[Said]:
    """What two senders say about two priorities and the whole port, in order."""
    said = []
    at = 0
    for delta in draw(st.lists(DELTAS, max_size=16)):
        at += delta
        quanta = st.sampled_from((0, 1, 100, 200))
        by_class = st.dictionaries(st.sampled_from((0, 3)), quanta, min_size=1)
        whole_port = st.builds(lambda value: {WHOLE_PORT: value}, quanta)
        mac = st.sampled_from((SWITCH, SWITCH, HOST))
        said.append(Said(at, draw(by_class | whole_port), draw(mac)))
    return said


SAID = conversations()


@given(SAID, st.integers(1, 5), st.integers(1, 5))
def test_merging_summaries_of_parts_is_the_summary_of_all(
    said: list[Said], chunk: int, parts: int
) -> None:
    frames = [(each.at, each.data) for each in said]
    merged = Pauses(100 * GBPS, storm_ns=700)

    chunks = captured(frames, chunk)
    for begin in range(0, len(chunks), parts):
        part = Pauses(100 * GBPS, storm_ns=700)
        for columns in chunks[begin : begin + parts]:
            part.take(columns)
        merged.merge(part)

    assert merged == pauses_of(frames, storm_ns=700)


@given(SAID, st.integers(1, 20))
def test_lanes_agree_with_one_frame_after_the_other(said: list[Said], chunk: int) -> None:
    pauses = Pauses(100 * GBPS, storm_ns=700)
    for columns in captured([(each.at, each.data) for each in said], chunk):
        pauses.take(columns)

    expected = {(each.mac, priority) for each in said for priority in each.quanta}
    found = {(mac, lane): sender for mac, sender in pauses.senders.items() for lane in sender.lanes}

    assert set(found) == expected
    for mac, priority in expected:
        beats = [(e.at, e.quanta[priority]) for e in said if e.mac == mac and priority in e.quanta]
        lane = pauses.senders[mac].lanes[priority]
        assert [times(lane), lane.storms] == one_by_one(beats, 700)


def one_by_one(beats: list[tuple[int, int]], storm_ns: int) -> list[Any]:
    """Pauses and storms by walking through the nanoseconds of every timer."""
    pauses: list[list[int]] = []
    until: float | None = None
    for at, quanta in beats:
        if until is not None and at <= until:
            pauses[-1][1] = at
        elif quanta:
            pauses.append([at, at])
        if until is not None and at <= until and not quanta:
            until = None
        elif quanta:
            until = at + quanta * 512 * 10 // 1000 if quanta != 1 else at + 5
            pauses[-1][1] = until
        else:
            until = None
    lengths = sorted((start, end - start) for start, end in pauses)
    return [lengths, sum(length > storm_ns for _, length in lengths)]


# Which connections were silent meanwhile.


def spans(*pairs: tuple[int, int]) -> list[Interval]:
    return [Interval(start, end - start, 1, "") for start, end in pairs]


@each_case(
    ("silence", "held"),
    [
        ((0, 50), 0),
        ((0, 100), 0),
        ((50, 150), 50),
        ((120, 180), 60),
        ((100, 200), 100),
        ((0, 1000), 250),
        ((150, 450), 150),
        ((450, 1000), 50),
        ((600, 700), 0),
    ],
)
def test_a_silence_is_held_as_far_as_pauses_cover_it(silence: tuple[int, int], held: int) -> None:
    """Held from 100 to 200 (paused twice), 300 to 350 and 400 to 500."""
    pauses = spans((400, 450), (100, 200), (120, 150), (300, 350), (450, 500))

    assert still(pauses, np.array([silence])).tolist() == [held]


def test_nothing_is_held_without_pauses() -> None:
    assert still([], np.array([[0, 10], [5, 7]])).tolist() == [0, 0]
    assert still(spans((1, 2)), np.zeros((0, 2), np.int64)).tolist() == []


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), max_size=8)


@given(INTERVALS, INTERVALS)
def test_held_time_is_the_number_of_nanoseconds_in_both(
    pauses: list[list[int]], silences: list[list[int]]
) -> None:
    moments = {ns for start, end in pauses for ns in range(start, end)}

    held = still(
        spans(*((start, end) for start, end in pauses)),
        np.array(silences, np.int64).reshape(-1, 2),
    )

    assert held.tolist() == [len(moments & set(range(*each))) for each in silences]


def test_paused_between_names_who_was_held_the_longest_first() -> None:
    pauses = pauses_of(
        [
            (0, pfc({3: 100, 4: 1000})),
            (100, pfc({3: 100}, src=HOST)),
            (200, pfc({4: 0})),
            (5000, pfc({5: 100})),
        ]
    )

    found = pauses.paused_between(START + 150, START + 600)

    assert found == [Held(HOST, 3, 450), Held(SWITCH, 3, 362), Held(SWITCH, 4, 50)]
