"""Cut-through: a frame passes a switch while its end is still on the way.

The switch decides once the header has arrived. A frame whose output line is idle and as fast as its
input line begins to leave; any other waits until it has arrived whole, as in a switch that stores
and forwards. The check sequence is at the end of a frame, so a damaged one that has passed goes on.

Source: docs/reference/fabric.md#cut-through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ibwire.base.node import DamagedFrame, Frame
from ibwire.base.units import Time
from ibwire.fabric.line import Direction
from ibwire.fabric.switch.switch import Switch

HEADER_BYTES = 64
"""Bytes of a frame, with its preamble, after which a switch knows where it goes."""


class CutThrough:
    """Takes the frames of a switch when their header has arrived.

    arriving, leaving: the lines to and from each port. later: calls a function at a time, and polls
    the switch then.
    """

    def __init__(
        self,
        switch: Switch,
        arriving: Mapping[int, Direction],
        leaving: Mapping[int, Direction],
        later: Callable[[Time, Callable[[], None]], None],
    ) -> None:
        self._switch = switch
        self._arriving = arriving
        self._leaving = leaving
        self._later = later
        for line in arriving.values():
            line.give_after(HEADER_BYTES)
            line.receive = self.receive
            line.takes_unbuilt = False  # one that waits for its end has to come here too

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame whose header has arrived."""
        line = self._arriving[port]
        way = self._switch.way_of(frame, now)
        if way is not None and self._passes(len(frame), now, line, way):
            if isinstance(frame, DamagedFrame):
                self._switch.counters_of(port).stomped += 1
            self._switch.receive(frame, now, port, way)
            return
        rest = max(len(frame) + line.overhead - HEADER_BYTES, 0)
        whole = now + -(-rest * line.numerator // line.denominator)
        self._later(whole, partial(self._store, frame, whole, port, way))

    def _passes(self, size: int, now: Time, line: Direction, way: tuple[int, int]) -> bool:
        """Whether a frame may begin to leave at once."""
        port, lane = way
        leaving = self._leaving[port]
        return (
            leaving.rate_bps == line.rate_bps
            and leaving.free_at <= now
            and self._switch.is_idle(port)
            and leaving.grant.allows(lane, size)
        )

    def _store(self, frame: Frame, now: Time, port: int, way: tuple[int, int] | None) -> None:
        """Take a frame that has arrived whole."""
        if isinstance(frame, DamagedFrame):
            way = None
        self._switch.receive(frame, now, port, way)
