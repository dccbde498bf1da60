"""Pause frames: how a receiver stops the sender of a link, for a priority or for everything.

A PFC frame (IEEE 802.1Q 36) names priorities and a time for each; a pause frame of IEEE
802.3 annex 31B stops the whole port. The time counts from the moment at which the frame has
arrived whole. A later frame replaces it, and time 0 ends the pause. A frame that has begun to
leave is not interrupted, and pause frames themselves are never paused.

Source: docs/reference/fabric.md#quanta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ibwire.base.node import Frame
from ibwire.base.units import S, Time
from ibwire_layers.outer import MAC_CONTROL_ADDRESS, PFC, Ethernet, EtherType, Pause

LANES: Final = 8
"""Priorities of IEEE 802.1Q."""

LONGEST: Final = 0xFFFF
"""The longest pause, in quanta."""

QUANTUM_BITS: Final = 512
"""Bit times of a quantum (IEEE 802.3 31B.2)."""

_ETHERTYPE = EtherType.MAC_CONTROL.to_bytes(2)
_HEADER = 14
_MINIMUM = 60
"""Bytes of the shortest frame, without FCS."""
_PFC_OPCODE, _PAUSE_OPCODE = b"\x01\x01", b"\x00\x01"
_PFC_END = _HEADER + 4 + 2 * LANES


def is_mac_control(frame: Frame) -> bool:
    """Whether a frame is for the MAC: it is not forwarded, and no host sees it."""
    return frame[12:14] == _ETHERTYPE


def pfc_frame(source: int, times: Mapping[int, int]) -> Frame:
    """A PFC frame from a MAC address, with the quanta of each priority that it is for."""
    enabled = sum(1 << lane for lane in times)
    quanta = tuple(times.get(lane, 0) for lane in range(LANES))
    header = Ethernet(MAC_CONTROL_ADDRESS, source, EtherType.MAC_CONTROL)
    body = PFC(class_enable=enabled, time=quanta)
    return (header.pack() + body.pack()).ljust(_MINIMUM, b"\0")


def pause_frame(source: int, quanta: int) -> Frame:
    """A frame that stops the whole port for a number of quanta; 0 ends the pause."""
    header = Ethernet(MAC_CONTROL_ADDRESS, source, EtherType.MAC_CONTROL)
    return (header.pack() + Pause(pause_time=quanta).pack()).ljust(_MINIMUM, b"\0")


class PauseGrant:
    """What a sender may send on a link whose receiver uses pause frames.

    rate_bps: of the line, on which the length of a quantum depends. obeys: priorities that
    PFC frames may stop; others are ignored, as by a port on which PFC is off for them.
    obeys_pause: whether pause frames for the whole port are obeyed too.
    """

    __slots__ = (
        "_began",
        "_ends",
        "_next_end",
        "_obeys",
        "_obeys_pause",
        "_quantum",
        "ended",
        "frames",
        "malformed",
        "observe",
        "paused",
        "pauses",
        "time_paused",
    )

    def __init__(
        self,
        rate_bps: int,
        obeys: frozenset[int] = frozenset(range(LANES)),
        *,
        obeys_pause: bool = True,
    ) -> None:
        self.paused = 0
        """Priorities that may not send, as bits."""
        self.frames = 0
        """Pause and PFC frames received."""
        self.pauses = [0] * LANES
        """Of them, those that stopped a priority or prolonged its pause."""
        self.malformed = 0
        """MAC control frames that are neither."""
        self.time_paused = [0] * LANES
        """Time for which each priority was stopped, in pauses that have ended."""
        self.observe: Callable[[Frame, Time], None] | None = None
        """Called for each MAC control frame: the node does not see it."""
        self.ended: Callable[[int, Time, Time], None] | None = None
        """Called when a priority may send again: the priority, and when it was stopped and not."""
        self._obeys = sum(1 << lane for lane in obeys)
        self._obeys_pause = obeys_pause
        self._quantum = QUANTUM_BITS * S, rate_bps
        self._ends: list[Time] = [0] * LANES
        self._began: list[Time] = [0] * LANES
        self._next_end: Time | None = None

    def allows(self, lane: int, size: int) -> bool:
        """Whether a frame of this priority may leave."""
        return not self.paused >> lane & 1

    def take(self, frame: Frame, now: Time) -> Time | None:
        """Obey a MAC control frame; returns when the next pause ends, if there is one."""
        if self.observe is not None:
            self.observe(frame, now)
        self.advance(now)
        opcode = frame[_HEADER : _HEADER + 2]
        if opcode == _PFC_OPCODE and len(frame) >= _PFC_END:
            self.frames += 1
            enabled = frame[_HEADER + 3] & self._obeys
            for lane in range(LANES):
                if enabled >> lane & 1:
                    at = _HEADER + 4 + 2 * lane
                    self._pause(lane, frame[at] << 8 | frame[at + 1], now)
        elif opcode == _PAUSE_OPCODE and len(frame) >= _HEADER + 4:
            self.frames += 1
            if self._obeys_pause:
                quanta = frame[_HEADER + 2] << 8 | frame[_HEADER + 3]
                for lane in range(LANES):
                    self._pause(lane, quanta, now)
        else:
            self.malformed += 1
        self._find_next_end()
        return self._next_end

    def advance(self, now: Time) -> None:
        """End the pauses whose time is over."""
        if self._next_end is None or now < self._next_end:
            return
        for lane in range(LANES):
            if self.paused >> lane & 1 and self._ends[lane] <= now:
                self._resume(lane, self._ends[lane])
        self._find_next_end()

    def clear(self, now: Time) -> None:
        """End all pauses, as when the link fails."""
        for lane in range(LANES):
            if self.paused >> lane & 1:
                self._resume(lane, min(now, self._ends[lane]))
        self._next_end = None

    def stopped_since(self, lane: int) -> Time | None:
        """When a priority was stopped that may not send now; `None` if it may."""
        return self._began[lane] if self.paused >> lane & 1 else None

    def time_stopped(self, lane: int, now: Time) -> Time:
        """Time for which a priority was stopped until now, with a pause that lasts."""
        running = now - self._began[lane] if self.paused >> lane & 1 else 0
        return self.time_paused[lane] + running

    def _pause(self, lane: int, quanta: int, now: Time) -> None:
        if not quanta:
            if self.paused >> lane & 1:
                self._resume(lane, now)
            return
        self.pauses[lane] += 1
        if not self.paused >> lane & 1:
            self.paused |= 1 << lane
            self._began[lane] = now
        unit, rate = self._quantum
        self._ends[lane] = now + quanta * unit // rate

    def _resume(self, lane: int, now: Time) -> None:
        self.paused &= ~(1 << lane)
        self.time_paused[lane] += now - self._began[lane]
        if self.ended is not None:
            self.ended(lane, self._began[lane], now)

    def _find_next_end(self) -> None:
        ends = [self._ends[lane] for lane in range(LANES) if self.paused >> lane & 1]
        self._next_end = min(ends, default=None)
