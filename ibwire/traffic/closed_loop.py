"""A sender with a window, go-back-N and a rate reduction, for packets of several queue pairs.

It is not a transport endpoint: its packets are built beforehand, and responses only decide
which packet leaves next. Each queue pair is independent:

- a *window* limits the packets in flight; they are kept until they are acknowledged;
- it *goes back* to the first unacknowledged packet and retransmits the same bytes on a PSN
  sequence error NAK, on an RNR NAK after the delay that it gives, when the response to a READ
  or atomic is skipped (once for each), and after a timeout without an acknowledgement;
- a CNP reduces its rate.

The driver, `ibwire.link.live` or the simulator, passes in frames and the time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ibwire.base.errors import EncodeError, MissingValueError, PeerError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import MS, NS, S, Time, ack_timeout
from ibwire.traffic.pace import Pace, Pacer
from ibwire.traffic.queue_pairs import QueuePairTraffic
from ibwire.traffic.rate_reduction import ReducedRateClock
from ibwire.traffic.responses import (
    Response,
    ResponseCounter,
    ResponseKind,
    ResponseTally,
    rnr_time,
)
from ibwire.traffic.transmission import MAXIMUM_LAG_NS
from ibwire_layers import syndrome
from ibwire_layers.syndrome import NakCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """How a sender reacts to responses."""

    window: int | None = None
    """Largest number of packets of a queue pair in flight; `None`: no limit."""
    total_window: int | None = None
    """Largest number of packets of all queue pairs in flight; `None`: no limit."""
    goes_back_n: bool = False
    """Whether NAKs and timeouts cause retransmission."""
    cnp_rate_factor: float | None = None
    """A CNP multiplies the rate of its queue pair by it; `None`: a CNP changes nothing."""
    recovery: Time = 100 * MS
    """Time in which a rate grows from zero to its full value."""
    timeout: Time = ack_timeout(14) or 0
    """Without an acknowledgement until going back; 67 ms, the default of perftest."""
    stall_timeout: Time = 5 * S
    """Without an acknowledgement until the run fails."""


class ClosedLoopSender:
    """A node that sends. Raises `EncodeError` for packets that the policy does not fit.

    time: how long after the first packet new packets are sent. pace: the pace of all queue pairs
    together, when each has its share of one.
    """

    def __init__(
        self,
        pairs: Sequence[QueuePairTraffic],
        policy: SendPolicy,
        *,
        time: Time | None = None,
        pace: Pace | None = None,
    ) -> None:
        _check(pairs, policy)
        self.policy = policy
        self.responses = ResponseCounter(pairs, skips=not policy.goes_back_n)
        self.sent = 0
        """Packets sent, retransmissions included."""
        self.bytes = 0
        """Bytes of these packets."""
        self.first: Time | None = None
        """When the first packet left."""
        self.last: Time = 0
        """When the last packet left."""
        self.is_cut_short = False
        """Whether the time ended before all packets were sent."""
        self.error: PeerError | None = None
        """Why the run failed; `None` while it has not."""
        self._time = time
        self._end: Time | None = None
        starts = [0] * len(pairs)
        if pace is not None:
            # Different starts, so that the queue pairs do not all send at the same times.
            starts = Pacer(pace).due(np.array([each.length for each in pairs])).tolist()
        self._flows = [
            _Flow(pair, tally, start * NS, policy)
            for pair, tally, start in zip(pairs, self.responses.tallies, starts, strict=True)
        ]
        self._open = set(range(len(pairs)))
        """Queue pairs with packets to send or acknowledgements to wait for."""
        self._in_flight = 0
        self._ready: list[tuple[float, int]] = []
        """Heap of queue pairs that may send now: priority and number."""
        self._later: list[tuple[Time, int]] = []
        """Heap of queue pairs that may send later: time and number."""
        self._ended: Time | None = None
        """When the run was done; `None` again after the driver was woken up to see it."""
        self._next_check: Time | None = None
        """When the queue pairs are next checked for timeouts."""

    @property
    def done(self) -> bool:
        """Whether the run is over, with all packets or an error."""
        return self.error is not None or not self._open

    @property
    def lag(self) -> Time:
        """How late the last packets were for the pace, without the delay that CNPs caused."""
        return max((flow.lag for flow in self._flows), default=0)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived."""
        response = self.responses.take(frame)
        if response is None or self.done:
            return
        flow = self._flows[response.number]
        self._in_flight -= flow.settle(now, self.responses)
        match response.kind:
            case ResponseKind.CNP:
                if self.policy.cnp_rate_factor is not None:
                    flow.clock.reduce(now, self.policy.cnp_rate_factor)
            case ResponseKind.NAK | ResponseKind.RNR_NAK | ResponseKind.SKIPPED if (
                self.policy.goes_back_n
            ):
                self._recover(flow, response, now)
        self._close(response.number, now)
        self._queue(response.number, now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame; queue pairs take turns. `None` when none may leave."""
        if self.first is None:
            self._begin(now)
        if self.done:
            return None
        self._wake(now)
        while self._ready:
            number = self._ready[0][1]
            flow = self._flows[number]
            if not flow.may_send:
                heapq.heappop(self._ready)
                flow.is_queued = False
                continue
            send_time = flow.send_time
            if send_time > now:
                heapq.heappop(self._ready)
                heapq.heappush(self._later, (send_time, number))
                continue
            total_window = self.policy.total_window
            if total_window is not None and self._in_flight >= total_window:
                return None
            heapq.heappop(self._ready)
            flow.is_queued = False
            frame = flow.take(now)
            self._in_flight += flow.keeps
            self.sent += 1
            self.bytes += len(frame)
            self.last = now
            self._close(number, now)
            self._queue(number, now)
            return frame
        return None

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` has something to do."""
        if self.done:
            return self._ended
        times = [each for each in (self._next_check, self._end) if each is not None]
        if self._later:
            times.append(self._later[0][0])
        return min(times, default=None)

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by now."""
        self._ended = None
        if self._end is not None and now >= self._end:
            self._end = None
            for number in list(self._open):
                self.is_cut_short = True
                self._flows[number].stop()
                self._close(number, now)
        self._wake(now)
        if self._next_check is not None and now >= self._next_check:
            self._next_check = now + self._check_interval
            for number in list(self._open):
                self._check(number, now)

    @property
    def _check_interval(self) -> Time:
        """Time between two checks for timeouts."""
        policy = self.policy
        return (policy.timeout if policy.goes_back_n else policy.stall_timeout) // 4

    def _begin(self, now: Time) -> None:
        self.first = now
        if self._time is not None:
            self._end = now + self._time
        if self.policy.window is not None:
            self._next_check = now + self._check_interval
        for number, flow in enumerate(self._flows):
            flow.clock.postpone(now)
            self._close(number, now)
            self._queue(number, now)

    def _wake(self, now: Time) -> None:
        while self._later and self._later[0][0] <= now:
            _, number = heapq.heappop(self._later)
            heapq.heappush(self._ready, (self._flows[number].priority, number))

    def _queue(self, number: int, now: Time) -> None:
        """Queue a queue pair for sending if it has a packet to send."""
        flow = self._flows[number]
        if flow.is_queued or not flow.may_send:
            return
        flow.is_queued = True
        send_time = flow.send_time
        if send_time > now:
            heapq.heappush(self._later, (send_time, number))
        else:
            heapq.heappush(self._ready, (flow.priority, number))

    def _close(self, number: int, now: Time) -> None:
        """Remove a queue pair that is done from the open ones."""
        if self._flows[number].is_over and number in self._open:
            self._open.remove(number)
            if not self._open:
                self._ended = now

    def _recover(self, flow: _Flow, response: Response, now: Time) -> None:
        """Go back after a NAK, an RNR NAK or a skipped response; fail for any other NAK code."""
        code = syndrome.code(response.syndrome)
        if response.kind is ResponseKind.NAK and code != NakCode.PSN_SEQUENCE_ERROR:
            reason = f"{syndrome.describe(response.syndrome)} for PSN {flow.tally.next_psn}"
            self._fail(flow, reason)
            return
        if response.kind is ResponseKind.SKIPPED:
            if flow.skipped == flow.tally.acknowledged:
                return
            flow.skipped = flow.tally.acknowledged
        if response.kind is ResponseKind.RNR_NAK:
            flow.not_before = now + rnr_time(response.syndrome)
        self._in_flight -= flow.go_back(max(now, flow.not_before))

    def _check(self, number: int, now: Time) -> None:
        """Handle the timeouts of a queue pair."""
        flow, policy = self._flows[number], self.policy
        if not flow.waits:
            return
        if now - flow.last_progress >= policy.stall_timeout:
            tally = flow.tally
            naks = [f"{count} NAK {name}" for name, count in tally.naks.items()]
            if tally.nak_psn is not None:
                naks[-1] += f" (PSN {tally.nak_psn})"
            if tally.rnr_naks:
                naks.append(f"{tally.rnr_naks} RNR NAK")
            text = f"no acknowledgement of PSN {tally.next_psn} for {policy.stall_timeout / S:g} s"
            self._fail(flow, f"{text}; received {', '.join(naks) or 'no NAK'}")
        elif policy.goes_back_n and now - flow.timer_start >= policy.timeout:
            flow.tally.timeouts += 1
            self._in_flight -= flow.go_back(now)
            self._queue(number, now)

    def _fail(self, flow: _Flow, reason: str) -> None:
        self.error = PeerError(f"QP {flow.tally.queue_pair.qpn:#x}: {reason}")


class _Flow:
    """The send state of a queue pair, whose packets are numbered from 0."""

    def __init__(
        self, pair: QueuePairTraffic, tally: ResponseTally, start: Time, policy: SendPolicy
    ) -> None:
        self.tally = tally
        tally.sent = 0
        self.clock = ReducedRateClock(start, policy.recovery)
        self.keeps = policy.window is not None
        """Whether packets are kept until they are acknowledged, for retransmission."""
        self.is_queued = False
        self.not_before: Time = 0
        """When the RNR timer ends."""
        self.last_progress: Time = 0
        """When packets were last acknowledged, or the first unacknowledged one was sent."""
        self.timer_start: Time = 0
        """When the timeout starts: the last progress, or the last going back."""
        self.lag: Time = 0
        """How late the last packet was for its pace."""
        self.skipped = -1
        """The last packet retransmitted because its response was skipped."""
        self._pair = pair
        self._window = policy.window
        self._limit = pair.count
        self._postponed: Time = 0
        """Time by which the pace was postponed."""
        self._next = 0
        """The packet that is sent next."""
        self._first_kept = 0
        """The first packet that is kept."""
        self._kept: deque[tuple[Frame, Time | None]] = deque()
        """Kept packets, each with the time at which it was sent; `None` after a retransmission."""
        self._new = _frames(pair)
        self._dues = None if pair.pace is None else _dues(Pacer(pair.pace), pair.length)
        self._due: Time = 0 if self._dues is None else next(self._dues)

    @property
    def may_send(self) -> bool:
        """Whether there is a packet to send and the window is open."""
        if self._window is not None and self._next - self._first_kept >= self._window:
            return False
        return self._next != self._limit

    @property
    def send_time(self) -> Time:
        """When it may send the next packet."""
        if self._dues is None:
            return self.not_before
        return max(self.clock.real_time(self._due), self.not_before)

    @property
    def priority(self) -> float:
        """The lowest value sends first: the longest due, or the least served for its share."""
        if self._dues is not None:
            return self.send_time
        message = self._pair.message
        return self._next // message * message / self._pair.share

    @property
    def waits(self) -> bool:
        """Whether it waits for an acknowledgement."""
        return self.keeps and self.tally.acknowledged < self.tally.asked

    @property
    def is_over(self) -> bool:
        """Whether all is sent, and acknowledged where that was asked for."""
        return self._next == self._limit and not self.waits

    def take(self, now: Time) -> Frame:
        """The next packet, which leaves now."""
        if self._dues is not None:
            late = now - self.send_time
            self.lag = self._postponed + late
            if late > MAXIMUM_LAG_NS * NS:
                self.clock.postpone(late - MAXIMUM_LAG_NS * NS)
                self._postponed += late - MAXIMUM_LAG_NS * NS
            self._due = next(self._dues)
        if self.keeps and not self._kept:
            self.last_progress = self.timer_start = now
        place = self._next - self._first_kept
        self._next += 1
        if self.keeps and place < len(self._kept):
            frame, _ = self._kept[place]
            self._kept[place] = (frame, None)
            self.tally.retransmitted += 1
            return frame
        frame = next(self._new)
        if self.keeps:
            self._kept.append((frame, now))
        self.tally.sent = self._next
        return frame

    def settle(self, now: Time, responses: ResponseCounter) -> int:
        """Drop acknowledged packets; returns by how many the packets in flight decrease."""
        count = min(self.tally.acknowledged - self._first_kept, len(self._kept))
        if count <= 0:
            return 0
        before = self._next - self._first_kept
        time: Time | None = None
        for _ in range(count):
            _, time = self._kept.popleft()
        # The response is to the last of them.
        if time is not None:
            responses.round_trips.add_one((now - time) // NS)
        self._first_kept += count
        # A late acknowledgement saves the retransmission.
        self._next = max(self._next, self._first_kept)
        self.last_progress = self.timer_start = now
        return before - (self._next - self._first_kept)

    def go_back(self, now: Time) -> int:
        """Retransmit from the first unacknowledged packet on; returns by how many the packets in
        flight decrease."""
        fewer = self._next - self._first_kept
        self._next = self._first_kept
        self.timer_start = now
        return fewer

    def stop(self) -> None:
        """Send no new packets."""
        self._limit = self.tally.sent


def _check(pairs: Sequence[QueuePairTraffic], policy: SendPolicy) -> None:
    """Raise `EncodeError` for a policy that does not fit the packets."""
    window, total = policy.window, policy.total_window
    if window is None and (policy.goes_back_n or total is not None):
        raise MissingValueError("window", "is required by go-back-N")
    for pair in pairs:
        if policy.cnp_rate_factor is not None and pair.pace is None:
            reason = "possible without a rate to reduce"
            raise EncodeError("on_cnp", policy.cnp_rate_factor, reason)
        if window is not None and not pair.period:
            expected = f"possible with QP {pair.qpn:#x}, whose packets request no acknowledgement"
            raise EncodeError("window", window, expected)
        if window is not None and pair.period > window:
            expected = f"{pair.period} or more: one of {pair.period} packets to QP {pair.qpn:#x} "
            raise EncodeError("window", window, f"{expected}requests an acknowledgement")
    # Each queue pair may have sent all packets but the one that requests a response.
    least = sum(pair.period - 1 for pair in pairs) + 1
    if total is not None and total < least:
        raise EncodeError("window", total, f"{least} or more for all queue pairs together")


def _frames(pair: QueuePairTraffic) -> Iterator[Frame]:
    """The packets of a queue pair, one at a time."""
    for block in pair.blocks(_BLOCK):
        for row, length in zip(block.frames, block.lengths.tolist(), strict=True):
            yield row[:length].tobytes()


def _dues(pacer: Pacer, length: int) -> Iterator[Time]:
    """When packets are due, in time of the reduced clock."""
    lengths = np.full(_BLOCK, length)
    while True:
        yield from (NS * each for each in pacer.due(lengths).tolist())


_BLOCK = 64
