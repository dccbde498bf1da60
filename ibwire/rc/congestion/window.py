"""How much the queue pairs towards one peer send before it responds, and how long they wait.

The transport of InfiniBand expects a lossless network: it has no congestion window and one
fixed ACK timeout. A peer in software loses packets when it is slow, and its responses are late
when many queue pairs wait for it. A profile with `controls_congestion` therefore shares one
`PathWindow` among all reliable queue pairs towards a peer, which

- measures the round trip, from which the ACK timeout follows (RFC 6298, with the configured
  timeout as its smallest value and exponential back-off);
- limits the packets that wait for an acknowledgement: it grows with acknowledgements, first by
  each of them, then by one packet in a round trip, and is halved by a loss (RFC 5681 3.1), at
  most once in a round trip;
- takes packets out of the window that have no response after the measured timeout: they are no
  longer on the way, although the configured timeout has not passed;
- lets the queue pairs take turns. A turn is a part of one message whose last packet requests
  an ACK; otherwise nothing could be sent once packets without that request fill the window.

Source: RFC 6298 2, 5; RFC 5681 3.1; the turns are a choice of this emulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ibwire.base.units import S, Time
from ibwire.rc.send_state import SendState
from ibwire_layers.psn import HALF, MASK

INITIAL_WINDOW = 128
"""Packets; the window of rxe (docs/reference/habits.md#rxe-window)."""

SMALLEST_WINDOW, LARGEST_WINDOW = 16, 512
"""Packets. A socket without privileges has room for some 25 frames of 4 KiB (net.core.rmem_max);
the tap of a virtual machine queues 1000 frames (txqueuelen)."""

LONGEST_WAIT: Time = S
"""Limit of the back-off, unless the first timeout is longer: with 7 retries a peer that is gone is
reported after 5 s with the default timeout of 67 ms, instead of 17 s."""


class PathWindow:
    """What all queue pairs towards one peer share."""

    __slots__ = (
        "_quiet_until",
        "_round_trip",
        "_threshold",
        "_turns",
        "_variation",
        "_waiting",
        "in_flight",
        "size",
    )

    def __init__(self) -> None:
        self.size: float = INITIAL_WINDOW
        """Packets that may be unacknowledged."""
        self.in_flight = 0
        """Packets in the turns of all queue pairs that are not acknowledged."""
        self._threshold: float = LARGEST_WINDOW
        self._round_trip: Time | None = None
        self._variation: Time = 0
        self._quiet_until: Time = 0
        """Losses before that time belong to the one that has shrunk the window."""
        self._waiting: deque[SendWindow] = deque()
        self._turns: deque[tuple[Time, SendWindow, int]] = deque()
        """Begin, queue pair and end of turns, oldest first."""

    @property
    def room(self) -> int:
        """Packets that may be sent now."""
        return int(self.size) - self.in_flight

    def timeout(self, smallest: Time) -> Time:
        """The ACK timeout before any back-off (RFC 6298 2.3)."""
        if self._round_trip is None:
            return smallest
        return max(smallest, self._round_trip + 4 * self._variation)

    def measure(self, round_trip: Time) -> None:
        """Take a measured round trip into the average and its variation (RFC 6298 2.2, 2.3)."""
        average = self._round_trip
        if average is None:
            self._round_trip, self._variation = round_trip, round_trip // 2
        else:
            self._variation += (abs(average - round_trip) - self._variation) // 4
            self._round_trip = average + (round_trip - average) // 8

    def grow(self, packets: int) -> None:
        """Grow the window for packets that were acknowledged."""
        growth = packets if self.size < self._threshold else packets / self.size
        self.size = min(self.size + growth, LARGEST_WINDOW)

    def shrink(self, now: Time, wait: Time) -> None:
        """Halve the window after a loss, once in a round trip; `wait` if none was measured."""
        if now < self._quiet_until:
            return
        self.size = self._threshold = max(self.size / 2, SMALLEST_WINDOW)
        self._quiet_until = now + (self._round_trip or wait)

    def begin(self, window: SendWindow, end: int, packets: int, now: Time) -> None:
        """Count the packets of a turn that begins."""
        self.in_flight += packets
        turns = self._turns
        while turns and not turns[0][1].has_turn_to(turns[0][2]):
            turns.popleft()
        turns.append((now, window, end))

    def make_room(self, now: Time) -> bool:
        """Whether there is room, also without turns that have no response for too long."""
        turns = self._turns
        if self._round_trip is not None:
            begun = now - self.timeout(0)
            while turns and self.room <= 0 and turns[0][0] < begun:
                _, window, end = turns.popleft()
                if window.has_turn_to(end):
                    window.forget_turns()
        return self.room > 0

    def enqueue(self, window: SendWindow) -> None:
        """Let a queue pair wait for its turn."""
        self._waiting.append(window)

    def dequeue(self, window: SendWindow) -> None:
        """A queue pair that waits has nothing to send any more."""
        self._waiting.remove(window)

    def admit(self) -> None:
        """Wake the queue pair that has waited longest, if there is room."""
        if self._waiting and self.room > 0:
            self._waiting.popleft().wake()


class SendWindow:
    """The turns of one queue pair.

    sends: of the queue pair; its `ack_wait` is kept up to date. wake: reports that the queue
    pair may have a packet to send. longest: packets of the longest turn.
    """

    __slots__ = (
        "_backoff",
        "_charged",
        "_end",
        "_is_waiting",
        "_is_woken",
        "_longest",
        "_path",
        "_sends",
        "_smallest_wait",
        "_timed",
        "_turn",
        "_wake",
    )

    def __init__(
        self, path: PathWindow, sends: SendState, wake: Callable[[], None], longest: int
    ) -> None:
        self._path = path
        self._sends = sends
        self._wake = wake
        self._longest = self._turn = longest
        self._end = 0
        """PSN after the last turn."""
        self._charged = 0
        """Packets of our turns that are not acknowledged."""
        self._is_waiting = False
        self._is_woken = False
        """Whether room was offered to us and is neither taken nor passed on."""
        self._backoff = 0
        """How often the timeout was doubled since the last progress."""
        self._smallest_wait: Time | None = None
        self._timed: tuple[int, Time] | None = None
        """The PSN before which an acknowledgement ends a measurement, and its begin."""

    def configure(self, smallest: Time | None) -> None:
        """Take the configured ACK timeout."""
        self._smallest_wait = smallest
        self._update_wait()

    def allows(self, psn: int, rest: int, now: Time) -> bool:
        """Whether the packet with this PSN may be sent; otherwise the queue pair is woken later.

        rest: PSNs from this one to the end of the message.
        """
        if (self._end - psn - 1) & MASK < HALF:
            return True  # our turn is not over
        self._is_woken = False
        path = self._path
        if not path.make_room(now):
            if not self._is_waiting:
                self._is_waiting = True
                path.enqueue(self)
            return False
        count = min(rest, self._turn, path.room)
        self._end = psn + count & MASK
        self._charged += count
        path.begin(self, self._end, count, now)
        if self._timed is None and psn == self._sends.next_psn:
            self._timed = self._end, now  # only packets sent once (RFC 6298 3)
        path.admit()
        return True

    def ends_at(self, psn: int) -> bool:
        """Whether our turn ends with this PSN."""
        return self._end == psn + 1 & MASK

    def acknowledge(self, now: Time) -> None:
        """Everything before `una` is acknowledged."""
        una, path = self._sends.una, self._path
        released = self._release()
        if released:
            path.grow(released)
            self._turn = min(2 * self._turn, self._longest)
        if self._timed is not None and (una - self._timed[0]) & MASK < HALF:
            path.measure(now - self._timed[1])
            self._timed = None
        self._backoff = 0  # any progress ends it, as in Linux (tcp_input.c `tcp_ack`)
        self._update_wait()
        path.make_room(now)
        path.admit()

    def restart(self, psn: int) -> None:
        """Packets from this PSN on will be retransmitted, in new turns."""
        if (self._end - psn) & MASK < HALF:
            self._end = psn
        self._timed = None
        self._release()
        self._path.admit()

    def lose(self, now: Time, *, timeout: bool) -> None:
        """A packet was lost: a NAK or an implied one shows it, or a timeout."""
        self._path.shrink(now, self._sends.ack_wait or 0)
        if timeout:
            self._backoff += 1
            self._turn = max(self._turn // 4, 1)
            self._update_wait()
        else:
            self._turn = max(self._turn // 2, min(self._turn, _SHORT_TURN))

    def stop(self) -> None:
        """Nothing of this queue pair is in flight any more."""
        if self._is_waiting:
            self._is_waiting = False
            self._path.dequeue(self)
        self._is_woken = False
        self._timed = None
        self._end = self._sends.una
        self._release()
        self._path.admit()

    def has_turn_to(self, end: int) -> bool:
        """Whether the last turn ends at a PSN and is not acknowledged."""
        return self._charged > 0 and self._end == end

    def forget_turns(self) -> None:
        """Nothing of our turns is on the way any more."""
        self._path.in_flight -= self._charged
        self._charged = 0

    def wake(self) -> None:
        """There is room."""
        self._is_waiting = False
        self._is_woken = True
        self._wake()

    def pass_on(self) -> None:
        """Offer the room to the next queue pair: this one may not send now, after an RNR NAK."""
        if self._is_woken:
            self._is_woken = False
            self._path.admit()

    def _release(self) -> int:
        """Return what was acknowledged or will be retransmitted; the number of packets."""
        left = (self._end - self._sends.una) & MASK
        released = self._charged - (left if left < HALF else 0)
        if released > 0:
            self._charged -= released
            self._path.in_flight -= released
        return max(released, 0)

    def _update_wait(self) -> None:
        smallest = self._smallest_wait
        if smallest is None:
            self._sends.ack_wait = None
            return
        first = self._path.timeout(smallest)
        self._sends.ack_wait = min(first << self._backoff, max(first, LONGEST_WAIT))


_SHORT_TURN = 4
"""Packets of the shortest turn after a NAK; after timeouts it is one packet."""
