"""Laws of the analysis on traffic of our own emulator, over a wire that does what a plan says."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_traffic import COUNTS, Acts, Stamped, Traffic, Work, analysed, feed, run
from examples import scaled
from ibwire.connections import analysis, steady
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.events import FlowEvent, Message
from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.summary import Summary
from ibwire.connections.tracker import RequestTracker
from ibwire.rc.work import WROpcode

OPCODES = (
    WROpcode.SEND,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD,
    WROpcode.RDMA_WRITE_WITH_IMM,
)
WORK = st.lists(
    st.builds(Work, st.sampled_from(OPCODES), st.sampled_from((0, 10, 256, 1000, 3000))),
    min_size=40,
    max_size=100,
)
# The first packet of an end is the first that anybody can know of.
FRAMES = st.tuples(st.sampled_from("ab"), st.integers(4, 200))
ACTS = st.dictionaries(
    FRAMES,
    st.tuples(st.sampled_from(("loss", "dup", "late")), st.sampled_from((1000, 5000, 20000))),
    max_size=6,
)


class Watcher:
    """Hears of everything, which makes the analysis follow packets one by one."""

    def __init__(self) -> None:
        self.verdicts: dict[int, PacketStatus] = {}
        self.others = 0
        self.events: list[FlowEvent] = []
        self.messages: list[Message] = []

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        assert packet.number not in self.verdicts
        self.verdicts[packet.number] = status

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        self.request(tracker, packet, status)

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        self.others += 1

    def event(self, event: FlowEvent) -> None:
        self.events.append(event)

    def message(self, message: Message) -> None:
        self.messages.append(message)


def told(found: Summary) -> list[dict[str, Any]]:
    """Everything that is said of all directions."""
    return [each.to_json(direction) for each in found.connections for direction in (0, 1)]


@pytest.mark.slow
@settings(max_examples=scaled(25))
@given(work=WORK, acts=ACTS)
def test_arrays_and_single_packets_come_to_the_same(work: list[Work], acts: Acts) -> None:
    traffic = run(work, acts)

    for side in "ab":
        frames = traffic.frames(side)
        assert told(analysed(frames)) == told(analysed(frames, Watcher()))


OPEN_WORK = [Work(opcode, size) for size in (0, 256, 3000) for opcode in OPCODES] * 40


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many packets each call of the array path takes from now on."""
    took: list[int] = []
    advance = steady.advance

    def counting(tracker: ConnectionTracker, rows: Rows, direction: Any) -> int:
        took.append(advance(tracker, rows, direction))
        return took[-1]

    monkeypatch.setattr(steady, "advance", counting)
    return took


def test_steady_traffic_is_taken_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = run(OPEN_WORK)
    took = counted(monkeypatch)

    for side in "ab":
        frames = traffic.frames(side)
        took.clear()
        found = analysed(frames)

        assert sum(took) > 0.9 * len(frames)
        assert told(found) == told(analysed(frames, Watcher()))


def test_after_a_loss_the_arrays_take_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = run(OPEN_WORK, {("a", 400): ("loss", 0), ("b", 900): ("loss", 0)})
    took = counted(monkeypatch)

    for side in "ab":
        frames = traffic.frames(side)
        took.clear()
        found = analysed(frames)

        assert sum(took) > 0.5 * len(frames)
        assert told(found) == told(analysed(frames, Watcher()))


def test_a_capture_in_many_chunks_is_the_same_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = run(OPEN_WORK[:200], {("a", 300): ("loss", 0)}).frames("b")
    whole = told(analysed(frames))

    monkeypatch.setattr(analysis, "BLOCK", 100)
    found = feed(Analysis(), frames, chunk=70).finish()

    assert told(found) == whole


def check_counts(traffic: Traffic) -> int:
    """Compare both sides with what the wire did; returns how many counts are not observable."""
    hidden = 0
    for side in "ab":
        for direction in told(analysed(traffic.frames(side))):
            sender = "a" if direction["src"] == "10.0.0.1" else "b"
            truth = traffic.truth(side, sender)
            hidden += len(direction["not_observable"])
            for count in COUNTS:
                if count in direction["not_observable"]:
                    assert direction[count] <= truth[count], (side, sender, count)
                else:
                    assert direction[count] == truth[count], (side, sender, count)
    return hidden


@pytest.mark.slow
# The same examples every time: what a wire can do to make one side alone believe something
# false has no end, and a new way to do it is no reason to fail a build.
@settings(max_examples=scaled(60), derandomize=True)
@given(work=WORK, acts=ACTS)
def test_each_side_alone_tells_what_the_wire_did(work: list[Work], acts: Acts) -> None:
    check_counts(run(work, acts))


@pytest.mark.slow
@settings(max_examples=scaled(15), derandomize=True)
@given(work=WORK, frame=FRAMES, act=st.sampled_from((("dup", 5000), ("late", 5000))))
def test_one_copy_or_swap_is_always_observable(
    work: list[Work], frame: tuple[str, int], act: tuple[str, int]
) -> None:
    traffic = run(work, {frame: act})

    for side in "ab":
        for direction in told(analysed(traffic.frames(side))):
            truth = traffic.truth(side, "a" if direction["src"] == "10.0.0.1" else "b")
            for count in ("duplicate_packets", "reordered_packets"):
                assert direction[count] == truth[count]
                assert count not in direction["not_observable"]


def test_a_clean_wire_hides_nothing() -> None:
    assert check_counts(run(OPEN_WORK[:150])) == 0


BYTES = {WROpcode.ATOMIC_FETCH_AND_ADD: 0}
"""Payload in requests where it is not what was posted."""


@settings(max_examples=scaled(25))
@given(work=WORK, acts=ACTS)
def test_every_packet_is_told_once_and_counted_in_one_direction(
    work: list[Work], acts: Acts
) -> None:
    traffic = run(work, acts)

    for side in "ab":
        frames = traffic.frames(side)
        watcher = Watcher()
        found = analysed(frames, watcher)

        assert found.packets == len(frames) == len(watcher.verdicts)
        assert sum(d["packets"] for d in told(found)) == len(frames)
        assert sum(d["bytes"] for d in told(found)) == sum(len(frame) for _, frame in frames)


@settings(max_examples=scaled(25))
@given(work=WORK, acts=ACTS)
def test_every_message_is_told_once_with_the_bytes_that_were_posted(
    work: list[Work], acts: Acts
) -> None:
    """At the side that sends the requests all of them are seen, whatever the wire does then."""
    traffic = run(work, acts)
    watcher = Watcher()

    found = analysed(traffic.frames("a"), watcher)

    (connection,) = found.connections
    direction = connection.directions[0]
    posted = [BYTES.get(each.opcode, each.length) for each in work]
    messages = [each for each in watcher.messages if each.direction == 0]
    assert len({each.first_psn for each in messages}) == len(messages)
    assert [each.size for each in sorted(messages, key=lambda m: m.first_number)] == posted
    done = [each for each in messages if each.acked_number]
    assert direction.completed == len(done)
    assert direction.message_bytes == sum(each.size for each in done)
    assert sum(direction.messages.values()) == len(work)


def as_parts(frames: list[Stamped], cuts: list[int]) -> list[Analysis]:
    """An analysis of each piece of a capture."""
    places = [0, *sorted(cuts), len(frames)]
    return [
        feed(Analysis(is_part=True, source=f"part {number}"), frames[start:end])
        for number, (start, end) in enumerate(pairwise(places))
    ]


def merged(parts: list[Analysis]) -> Summary:
    for later in parts[1:]:
        parts[0].merge(later)
    return parts[0].finish()


def comparable(found: Summary) -> list[str]:
    """All directions, without the number of the connection and how its ends were paired."""
    kept = [
        {key: value for key, value in each.items() if key not in ("connection", "pairing")}
        for each in told(found)
    ]
    return sorted(json.dumps(each, sort_keys=True) for each in kept)


CUTS = st.lists(st.floats(0, 1), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=scaled(25))
@given(work=WORK, acts=ACTS, places=CUTS)
def test_parts_of_a_capture_joined_are_the_whole(
    work: list[Work], acts: Acts, places: list[float]
) -> None:
    frames = run(work, acts).frames("b")
    cuts = [round(place * len(frames)) for place in places]

    found = merged(as_parts(frames, cuts))

    assert comparable(found) == comparable(analysed(frames))
    assert found.problems == []


@cache
def long_capture() -> list[Stamped]:
    """A capture at `b` that is much longer than the horizons of the tests below."""
    acts: Acts = {("a", 500): ("loss", 0), ("b", 700): ("dup", 5000), ("a", 1500): ("late", 9000)}
    return run(OPEN_WORK[:450], acts).frames("b")


@settings(max_examples=scaled(25), derandomize=True)
@given(places=CUTS)
def test_long_parts_joined_are_the_whole_but_for_seams(places: list[float]) -> None:
    """Behind the horizon nothing of a part is taken once more; a seam says what is doubtful."""
    cuts = [round(place * len(long_capture())) for place in places]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "HORIZON", 200)

        found = merged(as_parts(long_capture(), cuts))

    (connection,) = found.connections
    assert connection.seams == 0
    assert comparable(found) == comparable(analysed(long_capture()))


@pytest.mark.parametrize("horizon", [200, 1024])
def test_joining_is_associative(horizon: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "HORIZON", horizon)
    cuts = [len(long_capture()) // 3, 2 * len(long_capture()) // 3]

    left = as_parts(long_capture(), cuts)
    left[0].merge(left[1])
    left[0].merge(left[2])
    right = as_parts(long_capture(), cuts)
    right[1].merge(right[2])
    right[0].merge(right[1])

    assert comparable(left[0].finish()) == comparable(right[0].finish())
