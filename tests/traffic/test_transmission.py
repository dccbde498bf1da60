"""The loop that sends, with a clock and an outlet of its own: nothing here takes time."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ibwire.base.errors import LinkError
from ibwire.base.units import S
from ibwire.traffic import transmission
from ibwire.traffic.pace import Pace, Pacer, Phase, RecordedTimes, Unit
from ibwire.traffic.transmission import MAXIMUM_LAG_NS, EndReason, SourceOutlet, transmit

MS = 1_000_000
LINK = "lo"
"""Only its counters are looked at."""


class Clock(transmission.Clock):
    """Advances when a call waits or takes time."""

    def __init__(self) -> None:
        self.now = 7 * MS
        self.waited: list[Any] = []
        """Until when."""

    def now_ns(self) -> Any:
        return self.now

    def wait_until(self, moment: Any) -> None:
        assert moment > self.now
        self.waited.append(moment)
        self.now = moment


class Outlet:
    """Takes packets of 100 bytes and remembers when."""

    name = LINK
    keeps_times = True

    def __init__(
        self, clock: Any, total: int = 10**9, takes: Any = None, cost: int = 0, before: Any = None
    ) -> None:
        self.clock = clock
        self.total = total
        self.takes = takes or (lambda count: count)
        self.cost = cost
        self.before = before or (lambda: None)
        self.sent = 0
        self.waits: Counter[Any] = Counter()
        self.times: list[Any] = []
        """When each packet has left, nanoseconds since the first."""
        self.block = 256

    def next(self, most: Any) -> Any:
        return np.full(min(most, self.block, self.total - self.sent), 100)

    def send(self, count: int) -> Any:
        self.before()
        taken = self.takes(count)
        self.clock.now += self.cost * taken
        self.sent += taken
        self.times += [self.clock.now - 7 * MS] * taken
        return taken

    def wait(self) -> None:
        self.waits["buffer full"] += 1
        self.clock.now += MS


@pytest.fixture
def clock() -> Clock:
    return Clock()


def steady(rate: Any) -> Pacer:
    return Pacer(Pace((Phase(S, float(rate)),), Unit.PACKETS))


def test_sending_without_a_limit_is_refused(clock: Clock) -> None:
    outlet = Outlet(clock)

    with pytest.raises(LinkError, match="needs a limit"):
        transmit(outlet, steady(10), clock=clock)

    assert not outlet.sent


def test_pace_for_an_outlet_that_cannot_keep_it_is_refused(clock: Clock) -> None:
    outlet = Outlet(clock)
    outlet.keeps_times = False

    with pytest.raises(LinkError, match="supports no rate"):
        transmit(outlet, steady(10), count=1, clock=clock)


def test_packets_leave_when_they_are_due(clock: Clock) -> None:
    outlet = Outlet(clock)

    report = transmit(outlet, steady(1000), count=600, clock=clock)

    assert outlet.times == [number * MS for number in range(600)]
    assert report.ended is EndReason.COUNT
    assert (report.offered, report.accepted, report.bytes) == (600, 600, 60_000)
    assert report.rate == report.requested_rate == 1000
    assert report.rate_bps == 800_000
    assert report.rate_kept
    assert (report.gaps.low, report.gaps.high, report.gaps.count) == (MS, MS, 599)
    assert (report.gap_errors.low, report.gap_errors.high) == (0, 0)


def test_rate_of_bursts_is_that_of_whole_periods(clock: Clock) -> None:
    outlet = Outlet(clock)
    pace = Pacer(Pace((Phase(S // 100, burst=5.0),), Unit.PACKETS, repeat=True))

    report = transmit(outlet, pace, count=50, clock=clock)

    assert outlet.times[4:6] == [0, 10 * MS]
    assert report.requested_rate == pytest.approx(500)


def test_packets_with_times_of_their_own_keep_them(clock: Clock) -> None:
    outlet = Outlet(clock, total=3)

    report = transmit(outlet, RecordedTimes(np.array([5, 9, 109])), seconds=1, clock=clock)

    assert outlet.times == [0, 4, 104]
    assert report.requested_seconds == pytest.approx(104e-9)


def test_run_ends_with_the_packets(clock: Clock) -> None:
    report = transmit(Outlet(clock, total=300), count=1000, clock=clock)

    assert (report.ended, report.accepted) == (EndReason.COUNT, 300)


def test_no_packet_leaves_after_the_time(clock: Clock) -> None:
    outlet = Outlet(clock)

    report = transmit(outlet, steady(100), seconds=1.005, clock=clock)

    assert report.ended is EndReason.TIME
    assert outlet.times[-1] == 1000 * MS
    assert 7 * MS + 1005 * MS in clock.waited


def test_without_a_pace_packets_leave_at_once_until_the_time(clock: Clock) -> None:
    outlet = Outlet(clock, cost=MS)

    report = transmit(outlet, seconds=1, clock=clock)

    assert report.ended is EndReason.TIME
    assert report.rate == 1000
    assert report.requested_rate is None
    assert report.rate_kept
    assert 1000 <= outlet.sent <= 1000 + 256


def test_outlet_with_little_room_gets_the_rest_later(clock: Clock) -> None:
    room = iter([3, 0, 0, 7] + [1] * 1000)
    outlet = Outlet(clock, takes=lambda count: min(count, next(room)))

    report = transmit(outlet, count=20, clock=clock)

    assert (report.accepted, report.bytes) == (20, 2000)
    assert report.waits == {"buffer full": 2}


def test_waits_of_an_earlier_run_are_not_told_again(clock: Clock) -> None:
    outlet = Outlet(clock)
    outlet.waits["buffer full"] = 5

    assert transmit(outlet, count=1, clock=clock).waits == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_run_in_order(clock: Clock, number: int) -> None:
    def kill() -> None:
        if outlet.sent == 10:
            os.kill(os.getpid(), number)

    outlet = Outlet(clock, before=kill)
    before = signal.getsignal(number)

    report = transmit(outlet, steady(1000), seconds=10, clock=clock)

    assert (report.ended, report.signal) == (EndReason.SIGNAL, number)
    assert report.accepted == outlet.sent == 11
    assert signal.getsignal(number) is before


def test_link_error_is_told_with_what_was_sent_before(clock: Clock) -> None:
    def fail() -> None:
        if outlet.sent == 10:
            raise LinkError(LINK, "has gone down")

    outlet = Outlet(clock, before=fail)

    report = transmit(outlet, steady(1000), count=20, clock=clock)

    assert report.ended is EndReason.ERROR
    assert str(report.error) == "lo: has gone down"
    assert (report.offered, report.accepted) == (11, 10)


def test_error_of_the_source_is_raised(clock: Clock) -> None:
    outlet = Outlet(clock)
    outlet.next = lambda most: 1 // 0  # type: ignore[method-assign]

    with pytest.raises(ZeroDivisionError):
        transmit(outlet, count=1, clock=clock)


def test_rate_that_the_outlet_cannot_take_is_not_held(clock: Clock) -> None:
    report = transmit(Outlet(clock, cost=2 * MS), steady(1000), count=1000, clock=clock)

    assert not report.rate_kept
    assert report.requested_rate == 1000
    assert report.rate == pytest.approx(500, rel=0.01)


def test_delay_is_made_up_for(clock: Clock) -> None:
    def pause() -> None:
        if outlet.sent == 500:
            clock.now += 50 * MS

    outlet = Outlet(clock, before=pause)

    report = transmit(outlet, steady(1000), count=1000, clock=clock)

    assert report.rate_kept
    assert outlet.times[500] == 550 * MS
    assert outlet.times[501:551] == [550 * MS] * 50
    assert outlet.times[551] == 551 * MS


def test_after_a_long_delay_no_more_leaves_at_once_than_the_depth_allows(clock: Clock) -> None:
    def pause() -> None:
        if outlet.sent == 500:
            clock.now += 5000 * MS

    outlet = Outlet(clock, before=pause)
    outlet.block = 1000

    report = transmit(outlet, steady(1000), count=1000, clock=clock)

    # The one that was late, and those that were due meanwhile, the last of them just now.
    assert outlet.times.count(outlet.times[500]) == 1 + MAXIMUM_LAG_NS // MS + 1
    assert not report.rate_kept


class Rows:
    """What a sender is given, instead of one."""

    name = LINK

    def __init__(self) -> None:
        self.waits: Counter[Any] = Counter()
        self.sent = 0
        self.rows: list[Any] = []

    def load(self, frames: Any, lengths: Any) -> None:
        self.loaded = [bytes(row[:length]) for row, length in zip(frames, lengths, strict=True)]

    def send(self, first: Any, count: int) -> Any:
        taken = min(count, 5)
        self.rows += self.loaded[first : first + taken]
        self.sent += taken
        return taken


class Source:
    """Builds frames in the same memory again and again."""

    def blocks(self, size: int) -> Iterator[Any]:
        frames = np.zeros((7, 4), np.uint8)
        for number in range(10):
            frames[:] = np.arange(7)[:, None] + 7 * number
            yield type("Block", (), {"frames": frames, "lengths": np.full(7, 3)})


def test_every_row_of_every_block_is_sent_once_and_in_order(clock: Clock) -> None:
    sender = Rows()

    report = transmit(SourceOutlet(sender, Source()), count=65, clock=clock)

    assert sender.rows == [bytes([number] * 3) for number in range(65)]
    assert report.bytes == 3 * 65
