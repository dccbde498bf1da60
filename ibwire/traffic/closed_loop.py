"""A sender that listens: packets of several queue pairs, sent as their peers can take them.

It is no endpoint: what it sends is ready beforehand, and answers only say what leaves next.
Each queue pair is on its own:

- with a *window* no more packets are on their way than that; they are kept until they are
  acknowledged;
- it *goes back* to the first packet that is not acknowledged, and sends the same bytes
  again, on a NAK for a PSN, on an RNR NAK after the time that it asks for, when an answer to a
  READ or atomic is passed over (once for each), and when nothing has been acknowledged for a
  timeout, since the answer itself may be lost;
- a CNP makes the clock by which it follows its pace slower.

Whoever drives it, `ibwire.link.live` or the simulator, hands it frames and the time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ibwire.base.errors import EncodeError, PeerError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import MS, NS, S, Time, ack_timeout
from ibwire.traffic.pacing import Pace, Pacer
from ibwire.traffic.responses import Answer, Answers, Asker, Says, Tally, rnr_time
from ibwire.traffic.slowed import Slowed
from ibwire.traffic.transmission import DEPTH, Source
from ibwire_layers import syndrome
from ibwire_layers.syndrome import NakCode


class Pair(Source, Asker, Protocol):
    """A queue pair of ours, and its packets."""

    @property
    def count(self) -> int | None:
        """How many; `None`: without end."""
        ...

    @property
    def message(self) -> int:
        """Packets of a message."""
        ...

    @property
    def share(self) -> float:
        """Its part of all packets."""
        ...

    @property
    def pace(self) -> Pace | None:
        """`None`: as fast as may be."""
        ...

    @property
    def length(self) -> int:
        """Bytes of a frame, on average."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """What answers change."""

    window: int | None = None
    """Packets of a queue pair that may be on their way; `None`: any number."""
    total: int | None = None
    """Of all together."""
    goes_back: bool = False
    slows_to: float | None = None
    """Part of its speed to which a CNP slows a queue pair; `None`: it does not."""
    recovery: Time = 100 * MS
    """In which a queue pair that stood still would be at its full rate again."""
    timeout: Time = ack_timeout(14) or 0
    """Without an acknowledgement until going back; 67 ms, as perftest has it by default."""
    patience: Time = 5 * S
    """Without an acknowledgement until it is over."""


class Polite:
    """A node. Raises `EncodeError` for packets that manners are not possible with.

    time: after the first packet, from which on no new ones are sent. pace: of all together,
    if the queue pairs have parts of one.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        manners: Manners,
        *,
        time: Time | None = None,
        pace: Pace | None = None,
    ) -> None:
        _check(pairs, manners)
        self.manners = manners
        self.answers = Answers(pairs, skips=not manners.goes_back)
        self.sent = 0
        """Packets, those that are sent once more included."""
        self.bytes = 0
        """Of those."""
        self.first: Time | None = None
        """When the first packet left."""
        self.last: Time = 0
        """When the last one did."""
        self.is_cut_short = False
        """Whether the time was over before the packets were."""
        self.error: PeerError | None = None
        """Why it cannot go on."""
        self._time = time
        self._end: Time | None = None
        starts = [0] * len(pairs)
        if pace is not None:
            # So they do not all send at the same moments.
            starts = Pacer(pace).due(np.array([each.length for each in pairs])).tolist()
        self._flows = [
            _Flow(pair, tally, start * NS, manners)
            for pair, tally, start in zip(pairs, self.answers.tallies, starts, strict=True)
        ]
        self._open = set(range(len(pairs)))
        """Those that have something to send, or to wait for."""
        self._on_the_way = 0
        self._ready: list[tuple[float, int]] = []
        """Heap of those that may send now: whose turn it is, and number."""
        self._later: list[tuple[Time, int]] = []
        """Heap of those that may send at a time."""
        self._ended: Time | None = None
        """When it was done, until whoever drives it has been woken up to see that."""
        self._look: Time | None = None
        """When to look for those that wait in vain."""

    @property
    def done(self) -> bool:
        """Whether there is nothing to do any more."""
        return self.error is not None or not self._open

    @property
    def behind(self) -> Time:
        """How late the last packets were for the pace, as far as CNPs have let it go on."""
        return max((flow.behind for flow in self._flows), default=0)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take what has arrived."""
        answer = self.answers.take(frame)
        if answer is None or self.done:
            return
        flow = self._flows[answer.number]
        self._on_the_way -= flow.settle(now, self.answers)
        match answer.says:
            case Says.SLOW:
                if self.manners.slows_to is not None:
                    flow.clock.slow(now, self.manners.slows_to)
            case Says.NAK | Says.WAIT | Says.GAP if self.manners.goes_back:
                self._recover(flow, answer, now)
        self._close(answer.number, now)
        self._queue(answer.number, now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame; queue pairs take turns."""
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
            moment = flow.moment
            if moment > now:
                heapq.heappop(self._ready)
                heapq.heappush(self._later, (moment, number))
                continue
            if self.manners.total is not None and self._on_the_way >= self.manners.total:
                return None
            heapq.heappop(self._ready)
            flow.is_queued = False
            frame = flow.take(now)
            self._on_the_way += flow.keeps
            self.sent += 1
            self.bytes += len(frame)
            self.last = now
            self._close(number, now)
            self._queue(number, now)
            return frame
        return None

    def poll_timeout(self) -> Time | None:
        """When something is due."""
        if self.done:
            return self._ended
        times = [each for each in (self._look, self._end) if each is not None]
        if self._later:
            times.append(self._later[0][0])
        return min(times, default=None)

    def handle_timeout(self, now: Time) -> None:
        """Do what is due."""
        self._ended = None
        if self._end is not None and now >= self._end:
            self._end = None
            for number in list(self._open):
                self.is_cut_short = True
                self._flows[number].stop()
                self._close(number, now)
        self._wake(now)
        if self._look is not None and now >= self._look:
            self._look = now + self._pause
            for number in list(self._open):
                self._check(number, now)

    @property
    def _pause(self) -> Time:
        """Between two looks."""
        manners = self.manners
        return (manners.timeout if manners.goes_back else manners.patience) // 4

    def _begin(self, now: Time) -> None:
        self.first = now
        if self._time is not None:
            self._end = now + self._time
        if self.manners.window is not None:
            self._look = now + self._pause
        for number, flow in enumerate(self._flows):
            flow.clock.put_off(now)
            self._close(number, now)
            self._queue(number, now)

    def _wake(self, now: Time) -> None:
        while self._later and self._later[0][0] <= now:
            _, number = heapq.heappop(self._later)
            heapq.heappush(self._ready, (self._flows[number].turn, number))

    def _queue(self, number: int, now: Time) -> None:
        """Let a queue pair take part if it has something to send."""
        flow = self._flows[number]
        if flow.is_queued or not flow.may_send:
            return
        flow.is_queued = True
        moment = flow.moment
        if moment > now:
            heapq.heappush(self._later, (moment, number))
        else:
            heapq.heappush(self._ready, (flow.turn, number))

    def _close(self, number: int, now: Time) -> None:
        """Note whether a queue pair has nothing to do any more."""
        if self._flows[number].is_over and number in self._open:
            self._open.remove(number)
            if not self._open:
                self._ended = now

    def _recover(self, flow: _Flow, answer: Answer, now: Time) -> None:
        code = syndrome.code(answer.syndrome)
        if answer.says is Says.NAK and code != NakCode.PSN_SEQUENCE_ERROR:
            self._fail(flow, f"{syndrome.describe(answer.syndrome)} for PSN {flow.tally.next_psn}")
            return
        if answer.says is Says.GAP:
            if flow.gap == flow.tally.acknowledged:
                return
            flow.gap = flow.tally.acknowledged
        if answer.says is Says.WAIT:
            flow.not_before = now + rnr_time(answer.syndrome)
        self._on_the_way -= flow.go_back(max(now, flow.not_before))

    def _check(self, number: int, now: Time) -> None:
        """Look whether a queue pair waits in vain."""
        flow, manners = self._flows[number], self.manners
        if not flow.waits:
            return
        if now - flow.heard >= manners.patience:
            tally = flow.tally
            heard = [f"{count} NAK {name}" for name, count in tally.naks.items()]
            if tally.nak_psn is not None:
                heard[-1] += f" (PSN {tally.nak_psn})"
            if tally.rnr_naks:
                heard.append(f"{tally.rnr_naks} RNR NAK")
            text = f"no acknowledgement of PSN {tally.next_psn} for {manners.patience / S:g} s"
            self._fail(flow, f"{text}, {', '.join(heard) or 'nor a NAK'}")
        elif manners.goes_back and now - flow.stirred >= manners.timeout:
            flow.tally.timeouts += 1
            self._on_the_way -= flow.go_back(now)
            self._queue(number, now)

    def _fail(self, flow: _Flow, reason: str) -> None:
        self.error = PeerError(f"QP {flow.tally.asker.qpn:#x}: {reason}")


class _Flow:
    """The packets of a queue pair; they are numbered from 0 on."""

    def __init__(self, pair: Pair, tally: Tally, start: Time, manners: Manners) -> None:
        self.tally = tally
        tally.sent = 0
        self.clock = Slowed(start, manners.recovery)
        self.keeps = manners.window is not None
        """Whether packets are kept until they are acknowledged."""
        self.is_queued = False
        self.not_before: Time = 0
        """When an RNR NAK allows to go on."""
        self.heard: Time = 0
        """When packets were acknowledged, or the first was sent that waits for that."""
        self.stirred: Time = 0
        """The same, or when it has gone back."""
        self.behind: Time = 0
        """How late the last packet was for its pace."""
        self.gap = -1
        """The last packet that was sent again because its answer was passed over."""
        self._pair = pair
        self._window = manners.window
        self._limit = pair.count
        self._put_off: Time = 0
        """What the pace was put off by."""
        self._next = 0
        """The packet that is sent next."""
        self._first_kept = 0
        self._kept: deque[tuple[Frame, Time | None]] = deque()
        """Packets from that on, each with the time at which it was sent, if that was once."""
        self._new = _frames(pair)
        self._dues = None if pair.pace is None else _dues(Pacer(pair.pace), pair.length)
        self._due: Time = 0 if self._dues is None else next(self._dues)

    @property
    def may_send(self) -> bool:
        """Whether there is a packet, and the window is open."""
        if self._window is not None and self._next - self._first_kept >= self._window:
            return False
        return self._next != self._limit

    @property
    def moment(self) -> Time:
        """When it may send, if there is anything."""
        if self._dues is None:
            return self.not_before
        return max(self.clock.real(self._due), self.not_before)

    @property
    def turn(self) -> float:
        """Whose is lowest comes first: the longest due, or who had least for its share."""
        if self._dues is not None:
            return self.moment
        message = self._pair.message
        return self._next // message * message / self._pair.share

    @property
    def waits(self) -> bool:
        """Whether an acknowledgement is owed."""
        return self.keeps and self.tally.acknowledged < self.tally.asked

    @property
    def is_over(self) -> bool:
        """Whether all is sent, and acknowledged where that was asked for."""
        return self._next == self._limit and not self.waits

    def take(self, now: Time) -> Frame:
        """The next packet, which leaves now."""
        if self._dues is not None:
            late = now - self.moment
            self.behind = self._put_off + late
            if late > DEPTH * NS:
                self.clock.put_off(late - DEPTH * NS)
                self._put_off += late - DEPTH * NS
            self._due = next(self._dues)
        if self.keeps and not self._kept:
            self.heard = self.stirred = now
        place = self._next - self._first_kept
        self._next += 1
        if self.keeps and place < len(self._kept):
            frame, _ = self._kept[place]
            self._kept[place] = (frame, None)
            self.tally.repeated += 1
            return frame
        frame = next(self._new)
        if self.keeps:
            self._kept.append((frame, now))
        self.tally.sent = self._next
        return frame

    def settle(self, now: Time, answers: Answers) -> int:
        """Let go of what is acknowledged by now; how many fewer are on their way."""
        count = min(self.tally.acknowledged - self._first_kept, len(self._kept))
        if count <= 0:
            return 0
        before = self._next - self._first_kept
        time: Time | None = None
        for _ in range(count):
            _, time = self._kept.popleft()
        # The last of them is the one that the answer is to.
        if time is not None:
            answers.round_trips.add_one((now - time) // NS)
        self._first_kept += count
        # What was acknowledged late need not be sent again.
        self._next = max(self._next, self._first_kept)
        self.heard = self.stirred = now
        return before - (self._next - self._first_kept)

    def go_back(self, now: Time) -> int:
        """Send what is not acknowledged again; how many fewer are on their way."""
        fewer = self._next - self._first_kept
        self._next = self._first_kept
        self.stirred = now
        return fewer

    def stop(self) -> None:
        """Nothing new is sent any more."""
        self._limit = self.tally.sent


def _check(pairs: Sequence[Pair], manners: Manners) -> None:
    """Whether queue pairs can have such manners."""
    window, total = manners.window, manners.total
    if window is None and (manners.goes_back or total is not None):
        raise EncodeError("window", None, "given, which going back needs")
    for pair in pairs:
        if manners.slows_to is not None and pair.pace is None:
            raise EncodeError("on_cnp", manners.slows_to, "possible without a rate to slow down")
        if window is not None and not pair.period:
            expected = f"possible with QP {pair.qpn:#x}, whose packets ask for no answers"
            raise EncodeError("window", window, expected)
        if window is not None and pair.period > window:
            expected = f"{pair.period} or more: of so many packets to QP {pair.qpn:#x} one asks"
            raise EncodeError("window", window, f"{expected} for an answer")
    # All may have begun what only the last packet asks an answer for.
    least = sum(pair.period - 1 for pair in pairs) + 1
    if total is not None and total < least:
        raise EncodeError("window", total, f"{least} or more for all queue pairs together")


def _frames(pair: Pair) -> Iterator[Frame]:
    for block in pair.blocks(_BLOCK):
        for row, length in zip(block.frames, block.lengths.tolist(), strict=True):
            yield row[:length].tobytes()


def _dues(pacer: Pacer, length: int) -> Iterator[Time]:
    """When packets are due, own time."""
    lengths = np.full(_BLOCK, length)
    while True:
        yield from (NS * each for each in pacer.due(lengths).tolist())


_BLOCK = 64
