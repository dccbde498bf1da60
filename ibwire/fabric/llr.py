"""Link-level retry (LLR): the two ends of a link repeat lost and damaged frames themselves.

Each frame but MAC control has a sequence number, which the receiver acknowledges in control
ordered sets. A gap or a damaged frame makes it send one LLR_NACK and discard everything until
the expected frame comes. The sender keeps frames until they are acknowledged; an LLR_NACK, or a
time without any answer, makes it repeat all of them. The transport above sees no loss but delay.

The sender is *off*, waits for the echo of its *init*, *advances*, or *replays*; where replays do
not help, it *flushes* its buffer, and starts again or stays so. The receiver *sends ACKs*, or has
*sent a NACK*. Control ordered sets leave between two frames and take no line time.

Source: docs/reference/fabric.md#llr.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, DamagedFrame, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import NS, S, Time
from ibwire.fabric.line import Direction
from ibwire.fabric.pause import is_mac_control
from ibwire.fabric.sim import Simulator, Wire


class Control(StrEnum):
    """A control ordered set."""

    INIT = "INIT"
    INIT_ECHO = "INIT_ECHO"
    ACK = "ACK"
    NACK = "NACK"


class Sending(StrEnum):
    """The state of the sender of one direction."""

    INIT = "init"
    ADVANCE = "advance"
    REPLAY = "replay"
    FLUSH = "flush"


class Receiving(StrEnum):
    """The state of the receiver of one direction."""

    SEND_ACKS = "send-acks"
    NACK_SENT = "nack-sent"


class WhileDown(StrEnum):
    """What becomes of frames in the states init and flush."""

    BEST_EFFORT = "best-effort"
    """They are sent without a number, and may be lost."""
    BLOCK = "block"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True, kw_only=True)
class LLR:
    """Settings of link-level retry, with the values of the example in the test plan of UEC."""

    frames: int = 100
    """Frames that the sender keeps."""
    size_bytes: int = 102_400
    """Bytes that the sender keeps."""
    replay_timer: Time = 10_000 * NS
    replay_count_max: int = 255
    """Replays without progress before the buffer is flushed."""
    data_age_timeout: Time = 100_000 * NS
    """Age of the oldest frame at which the buffer is flushed."""
    pcs_lost_timeout: Time = 500 * NS
    """For how long the link may fail before the buffer is flushed; after less it is repeated."""
    re_init_on_flush: bool = True
    ack_spacing: int = 2048
    """Bytes from one LLR_ACK to the next."""
    sequence_bits: int = 20
    while_down: WhileDown = WhileDown.BEST_EFFORT

    def __post_init__(self) -> None:
        for name in ("frames", "size_bytes", "replay_timer", "data_age_timeout", "ack_spacing"):
            if getattr(self, name) < 1:
                raise EncodeError(name, getattr(self, name), "1 or above")
        for name in ("replay_count_max", "pcs_lost_timeout"):
            if getattr(self, name) < 0:
                raise EncodeError(name, getattr(self, name), "0 or above")
        if not 2 <= self.sequence_bits <= 24:
            raise EncodeError("sequence_bits", self.sequence_bits, "from 2 to 24")
        if self.frames >= 1 << self.sequence_bits - 1:
            raise EncodeError("frames", self.frames, "less than half of the sequence numbers")


class Sequenced(bytes):
    """A frame with its sequence number, which is in the preamble and not in its bytes.

    A stage that changes it makes other bytes of it, without a number: a damaged frame.
    """

    frame: Frame
    number: int
    """`UNNUMBERED` for a frame that the sender does not keep."""


UNNUMBERED = -1


@dataclass(slots=True)
class LLRCounters:
    """What one end has counted; names as in the proposal for SAI."""

    LLR_TX_OK: int = 0
    LLR_TX_POISONED: int = 0
    """Frames that were damaged before: they are numbered, and arrive damaged."""
    LLR_TX_DISCARD: int = 0
    LLR_TX_REPLAY: int = 0
    """Replays begun."""
    LLR_RX_OK: int = 0
    LLR_RX_BAD: int = 0
    LLR_RX_POISONED: int = 0
    LLR_RX_EXPECTED_SEQ_GOOD: int = 0
    LLR_RX_EXPECTED_SEQ_BAD: int = 0
    """Damaged frames while none was missing: on a line, that is the expected one."""
    LLR_RX_EXPECTED_SEQ_POISONED: int = 0
    LLR_RX_MISSING_SEQ: int = 0
    LLR_RX_DUPLICATE_SEQ: int = 0
    LLR_RX_REPLAY: int = 0
    """Replays that have brought the expected frame."""
    LLR_RX_ACK_NACK_SEQ_ERROR: int = 0
    LLR_TX_INIT_CTL_OS: int = 0
    LLR_TX_INIT_ECHO_CTL_OS: int = 0
    LLR_TX_ACK_CTL_OS: int = 0
    LLR_TX_NACK_CTL_OS: int = 0
    LLR_RX_INIT_CTL_OS: int = 0
    LLR_RX_INIT_ECHO_CTL_OS: int = 0
    LLR_RX_ACK_CTL_OS: int = 0
    LLR_RX_NACK_CTL_OS: int = 0

    def sent(self, kind: Control) -> None:
        """Count a control ordered set that is sent."""
        name = f"LLR_TX_{kind}_CTL_OS"
        setattr(self, name, getattr(self, name) + 1)


class LinkEnd:
    """One end of a link with LLR: sender of one direction, receiver of the other."""

    def __init__(self, settings: LLR, line: Direction) -> None:
        self.settings = settings
        self.line = line
        self.counters = LLRCounters()
        self.sending = Sending.INIT
        self.receiving = Receiving.SEND_ACKS
        self.to_send: deque[tuple[Control, int]] = deque()
        """Control ordered sets that wait to be sent."""
        self.wants_line = False
        """Whether the line has to be asked for a frame again."""
        self._poll_node = line.poll_node
        self._deliver = line.near.receive
        self._mask = (1 << settings.sequence_bits) - 1
        self._next = 0
        """Number of the next new frame."""
        self._kept: deque[tuple[Sequenced, Time]] = deque()
        """Frames that are not acknowledged, with the time at which they were sent first."""
        self._kept_bytes = 0
        self._replay_at = 0
        """Index of the next frame to repeat."""
        self._replays = 0
        """Replays since something was acknowledged last."""
        self._timer: Time | None = None
        self._expected = 0
        self._unacknowledged_bytes = 0
        self._ack_due: Time | None = None

    # As sender.

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame: one to repeat, or a new one of the node."""
        settings = self.settings
        if self.sending is Sending.REPLAY:
            if self._replay_at < len(self._kept):
                frame = self._kept[self._replay_at][0]
                self._replay_at += 1
                return frame
            self.sending = Sending.ADVANCE
        if self.sending is Sending.ADVANCE:
            if len(self._kept) >= settings.frames or self._kept_bytes >= settings.size_bytes:
                grant = _CONTROL_ONLY
        elif settings.while_down is WhileDown.BLOCK:
            grant = _CONTROL_ONLY
        while True:
            new = self._poll_node(now, port, grant)
            if isinstance(new, UnbuiltFrame):
                new = new.build()
            if new is None or is_mac_control(new):
                return new
            if self.sending is Sending.ADVANCE:
                return self._keep(new, now)
            if settings.while_down is WhileDown.BEST_EFFORT:
                return _numbered(new, UNNUMBERED)
            self.counters.LLR_TX_DISCARD += 1

    def _keep(self, frame: Frame, now: Time) -> Sequenced:
        numbered = _numbered(frame, self._next)
        self._next = self._next + 1 & self._mask
        if not self._kept:
            self._timer = now + self.settings.replay_timer
        self._kept.append((numbered, now))
        self._kept_bytes += len(frame)
        if isinstance(frame, DamagedFrame):
            self.counters.LLR_TX_POISONED += 1
        else:
            self.counters.LLR_TX_OK += 1
        return numbered

    def handle_control(self, kind: Control, number: int, now: Time) -> None:
        """Take a control ordered set that has arrived."""
        counters = self.counters
        if kind is Control.INIT:
            counters.LLR_RX_INIT_CTL_OS += 1
            self._expected = number
            self.receiving = Receiving.SEND_ACKS
            self.to_send.append((Control.INIT_ECHO, number))
        elif kind is Control.INIT_ECHO:
            counters.LLR_RX_INIT_ECHO_CTL_OS += 1
            if self.sending is Sending.INIT and number == self._next:
                self.sending = Sending.ADVANCE
                self._replays, self._timer = 0, None
                self.wants_line = True
        elif kind is Control.ACK:
            counters.LLR_RX_ACK_CTL_OS += 1
            self._acknowledge(number, now)
        else:
            counters.LLR_RX_NACK_CTL_OS += 1
            if self._acknowledge(number, now) and self._kept:
                self._replay(now)

    def _acknowledge(self, number: int, now: Time) -> bool:
        """Forget frames up to this one; `False` for a number that was not sent."""
        if self.sending not in (Sending.ADVANCE, Sending.REPLAY):
            return False
        kept = self._kept
        first = kept[0][0].number if kept else self._next
        done = (number + 1 - first) & self._mask
        if done > len(kept):
            if done <= self._mask // 2:
                self.counters.LLR_RX_ACK_NACK_SEQ_ERROR += 1
            return done > self._mask // 2  # an old one says nothing new
        for _ in range(done):
            self._kept_bytes -= len(kept.popleft()[0])
        if done:
            self._replays = 0
            self._replay_at = max(self._replay_at - done, 0)
            self.wants_line = True
        self._timer = now + self.settings.replay_timer if kept else None
        return True

    def _replay(self, now: Time) -> None:
        self._replays += 1
        too_old = now - self._kept[0][1] > self.settings.data_age_timeout
        if self._replays > self.settings.replay_count_max or too_old:
            self._flush(now)
            return
        self.sending = Sending.REPLAY
        self._replay_at = 0
        self.counters.LLR_TX_REPLAY += 1
        self._timer = now + self.settings.replay_timer
        self.wants_line = True

    def _flush(self, now: Time) -> None:
        self.counters.LLR_TX_DISCARD += len(self._kept)
        self._kept.clear()
        self._kept_bytes = self._replays = 0
        self._timer = None
        self.sending = Sending.FLUSH
        self.wants_line = True
        if self.settings.re_init_on_flush:
            self.init(now)

    def init(self, now: Time) -> None:
        """Ask the receiver for the first number; also after a flush."""
        self.sending = Sending.INIT
        self._timer = now + self.settings.replay_timer
        self.to_send.append((Control.INIT, self._next))

    def restore(self, down_for: Time, now: Time) -> None:
        """The link works again: repeat what is kept, or give it up after too long a time."""
        if self.sending not in (Sending.ADVANCE, Sending.REPLAY):
            self.init(now)
        elif down_for > self.settings.pcs_lost_timeout:
            self.counters.LLR_TX_DISCARD += len(self._kept)
            self._kept.clear()
            self._kept_bytes = self._replays = 0
            self.init(now)
        elif self._kept:
            self._replay(now)

    def _repeat_init(self, now: Time) -> None:
        self._replays += 1
        if self._replays > self.settings.replay_count_max:
            self.sending, self._timer = Sending.FLUSH, None
        else:
            self.init(now)

    # As receiver.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Deliver a frame that has arrived, or discard it."""
        counters = self.counters
        if not isinstance(frame, Sequenced):
            counters.LLR_RX_BAD += 1
            if self.receiving is Receiving.SEND_ACKS:
                counters.LLR_RX_EXPECTED_SEQ_BAD += 1
            self._nack()
            return
        if frame.number == UNNUMBERED:
            self._deliver(frame.frame, now, port)
            return
        distance = (frame.number - self._expected) & self._mask
        if distance > self._mask // 2:
            counters.LLR_RX_DUPLICATE_SEQ += 1
            if self.receiving is Receiving.SEND_ACKS:
                self._ack()  # its ACK was lost
            return
        if distance:
            counters.LLR_RX_MISSING_SEQ += 1
            self._nack()
            return
        if isinstance(frame.frame, DamagedFrame):
            counters.LLR_RX_POISONED += 1
            counters.LLR_RX_EXPECTED_SEQ_POISONED += 1
        else:
            counters.LLR_RX_OK += 1
            counters.LLR_RX_EXPECTED_SEQ_GOOD += 1
        if self.receiving is Receiving.NACK_SENT:
            counters.LLR_RX_REPLAY += 1
            self.receiving = Receiving.SEND_ACKS
        self._expected = self._expected + 1 & self._mask
        self._unacknowledged_bytes += len(frame)
        if self._unacknowledged_bytes >= self.settings.ack_spacing:
            self._ack()
        elif self._ack_due is None:
            bits = self.settings.ack_spacing * 8
            self._ack_due = now + bits * S // self.line.rate_bps
        self._deliver(frame.frame, now, port)

    def _ack(self) -> None:
        self._unacknowledged_bytes = 0
        self._ack_due = None
        self.to_send.append((Control.ACK, self._expected - 1 & self._mask))

    def _nack(self) -> None:
        if self.receiving is Receiving.SEND_ACKS:
            self.receiving = Receiving.NACK_SENT
            self._ack_due = None
            self._unacknowledged_bytes = 0
            self.to_send.append((Control.NACK, self._expected - 1 & self._mask))

    # Timers of both.

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout`."""
        return min(
            (each for each in (self._timer, self._ack_due) if each is not None), default=None
        )

    def handle_timeout(self, now: Time) -> None:
        """Repeat what has had no answer, and acknowledge what waits for it."""
        if self._timer is not None and self._timer <= now:
            if self.sending is Sending.INIT:
                self._repeat_init(now)
            elif self._kept:
                self._replay(now)
            else:
                self._timer = None
        if self._ack_due is not None and self._ack_due <= now:
            self._ack()


class RetryLink:
    """LLR on a wire of a simulator: a node without ports that carries the control ordered sets.

    drops_control: whether a control ordered set is lost, by its kind, its number and the time.
    """

    def __init__(
        self,
        simulator: Simulator,
        wire: Wire,
        settings: LLR | None = None,
        *,
        drops_control: Callable[[Control, int, Time], bool] | None = None,
    ) -> None:
        settings = settings or LLR()
        self.name = f"{wire.name}/llr"
        self._simulator = simulator
        self._drops = drops_control or (lambda kind, number, now: False)
        self._on_way: list[tuple[Time, int, LinkEnd, Control, int]] = []
        self._order = count().__next__
        self._failed_at: Time = 0
        there, back = wire.a_to_b, wire.b_to_a
        self.ends = LinkEnd(settings, there), LinkEnd(settings, back)
        """The ends at the nodes `a` and `b` of the wire."""
        for end, arriving in zip(self.ends, (back, there), strict=True):
            end.line.polls_always = True
            end.line.poll_node = end.line.poll_transmit = partial(self._poll, end)
            arriving.receive = partial(self._receive, end)
        self.init()

    def init(self) -> None:
        """Start both directions, as when the link has come up."""
        for end in self.ends:
            end.init(self._simulator.now)
            self._carry(end)

    def fail(self) -> None:
        """The link has failed."""
        self._failed_at = self._simulator.now

    def restore(self, *, keeps: bool = True) -> None:
        """The link works again.

        keeps: whether frames that were on their way are repeated, if it was down for a short time.
        """
        now = self._simulator.now
        for end in self.ends:
            end.restore(now - self._failed_at if keeps else _FOR_EVER, now)
            self._carry(end)

    def _poll(self, end: LinkEnd, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        before = end.poll_timeout()
        frame = end.poll_transmit(now, port, grant)
        if end.poll_timeout() != before:
            self._simulator.kick(self)
        return frame

    def _receive(self, end: LinkEnd, frame: Frame, now: Time, port: int = 0) -> None:
        end.receive(frame, now, port)
        self._carry(end)

    def _carry(self, end: LinkEnd) -> None:
        """Send the control ordered sets of an end, between two frames, and ask its line."""
        line, now = end.line, self._simulator.now
        while end.to_send:
            kind, number = end.to_send.popleft()
            end.counters.sent(kind)
            if not line.is_cut and not self._drops(kind, number, now):
                arrival = max(now, line.free_at) + line.delay
                other = self.ends[end is self.ends[0]]
                heapq.heappush(self._on_way, (arrival, self._order(), other, kind, number))
        if end.wants_line:
            end.wants_line = False
            if not line.is_cut:
                self._simulator.ask(line)
        self._simulator.kick(self)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Does nothing: it has no ports."""

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """`None`: it has no ports."""
        return None

    def poll_timeout(self) -> Time | None:
        """When a control ordered set arrives, or a timer of an end is due."""
        times = [self._on_way[0][0]] if self._on_way else []
        times += [due for due in map(LinkEnd.poll_timeout, self.ends) if due is not None]
        return min(times, default=None)

    def handle_timeout(self, now: Time) -> None:
        """Take the control ordered sets that have arrived, and run the timers."""
        while self._on_way and self._on_way[0][0] <= now:
            _, _, end, kind, number = heapq.heappop(self._on_way)
            end.handle_control(kind, number, now)
            self._carry(end)
        for end in self.ends:
            due = end.poll_timeout()
            if due is not None and due <= now:
                end.handle_timeout(now)
                self._carry(end)


class _ControlOnly:
    """A grant by which a node sends nothing but frames that are never paused."""

    def allows(self, lane: int, size: int) -> bool:
        return False


_FOR_EVER: Time = 1 << 100
_CONTROL_ONLY = _ControlOnly()


def _numbered(frame: Frame, number: int) -> Sequenced:
    numbered = Sequenced(frame)
    numbered.frame, numbered.number = frame, number
    return numbered
