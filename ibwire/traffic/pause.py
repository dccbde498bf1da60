"""Pause and PFC frames by a schedule, with a resume frame at the end.

A storm pauses some priorities or the whole port: it repeats the pause before the
pause runs out, then a resume. Several storms may overlap; what is due at one moment is one
frame. Formats: IEEE 802.3 annex 31B, IEEE 802.1Q 36 (reference/wire-formats#pause,
reference/wire-formats#pfc).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ibwire.base.errors import EncodeError, MissingValueError
from ibwire.base.toml import Document, Table
from ibwire.base.units import NS, US, Time
from ibwire.traffic.timed_frames import TimedFrames
from ibwire_layers.outer import MAC_CONTROL_ADDRESS, PFC, Ethernet, EtherType, Pause

LONGEST = 0xFFFF
"""Longest pause, in quanta of 512 bit times: 3.36 ms at 10 Gb/s, 335 us at 100 Gb/s."""

MAXIMUM_EVENTS = 1 << 21

_PORT = 8
"""The whole port, beside the priorities 0 to 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """A part of a schedule; an invalid value raises an `EncodeError` that names its key."""

    priorities: tuple[int, ...] = ()
    """Priorities of PFC; empty: a pause of the whole port."""
    quanta: int = LONGEST
    refresh: Time = 100 * US
    """Interval after which the pause is repeated."""
    start: Time = 0
    on: Time = 0
    """Duration of a pause; 0: to the end."""
    off: Time = 0
    """Duration between two pauses."""

    def __post_init__(self) -> None:
        for priority in self.priorities:
            if not isinstance(priority, int) or not 0 <= priority <= 7:
                raise EncodeError("priorities", priority, "a priority from 0 to 7")
        if not isinstance(self.quanta, int) or not 1 <= self.quanta <= LONGEST:
            raise EncodeError("quanta", self.quanta, f"a number from 1 to {LONGEST}")
        if self.refresh < US:
            raise EncodeError("refresh", self.refresh, "a microsecond or more")
        for key, other in (("on", "off"), ("off", "on")):
            if getattr(self, key) and getattr(self, other) < US:
                raise EncodeError(other, getattr(self, other), f"a microsecond or more, as {key}")

    def events(self, end: Time) -> Iterator[tuple[Time, int]]:
        """Times and quanta before the end; 0 quanta resume."""
        begin = self.start
        while begin < end:
            stop = min(begin + self.on, end) if self.on else end
            for moment in range(begin, stop, self.refresh):
                yield moment, self.quanta
            if not self.on:
                return
            if stop < end:
                yield stop, 0
            begin += self.on + self.off


def pause_frames(storms: Sequence[Storm], time: Time, mac: bytes) -> TimedFrames:
    """The frames of storms until `time`, then a resume of all that they paused.

    The resume is also the final frame of a run that ends early. mac: of the sender. Raises
    `EncodeError`.
    """
    if time < US:
        raise EncodeError("time", time, "a microsecond or more")
    if not storms:
        raise MissingValueError("storm")
    kinds = {bool(storm.priorities) for storm in storms}
    if len(kinds) > 1:
        raise EncodeError("priorities", (), "possible: a port runs either pause or PFC, not both")
    # An upper bound, checked before any frame is built.
    if sum((time // storm.refresh + 2) * (1 + len(storm.priorities)) for storm in storms) > (
        MAXIMUM_EVENTS
    ):
        expected = f"long enough for at most {MAXIMUM_EVENTS} frames: raise refresh"
        raise EncodeError("time", f"{time // NS} ns", expected)
    due: dict[Time, dict[int, int]] = {}
    for storm in storms:
        for moment, quanta in storm.events(time):
            state = due.setdefault(moment, {})
            for priority in storm.priorities or (_PORT,):
                # Where storms overlap, a pause takes precedence over the end of another one.
                state[priority] = max(state.get(priority, 0), quanta)
    moments = sorted(due)
    touched = {priority for state in due.values() for priority in state}
    resume = control_frame(dict.fromkeys(touched, 0), mac)
    return TimedFrames(
        [control_frame(due[moment], mac) for moment in moments] + [resume],
        [moment // NS for moment in moments] + [time // NS],
        [resume],
    )


def control_frame(quanta: dict[int, int], mac: bytes) -> bytes:
    """The frame that pauses each priority for its quanta; 8 stands for the whole port."""
    header: Pause | PFC
    if _PORT in quanta:
        header = Pause(pause_time=quanta[_PORT])
    else:
        enabled = sum(1 << priority for priority in quanta)
        header = PFC(class_enable=enabled, time=tuple(quanta.get(each, 0) for each in range(8)))
    eth = Ethernet(MAC_CONTROL_ADDRESS, int.from_bytes(mac), EtherType.MAC_CONTROL)
    return (eth.pack() + header.pack()).ljust(_SHORTEST, b"\0")


def read_storms(content: bytes, name: str) -> tuple[list[Storm], Time | None]:
    """The storms of a file and their duration; a `ScriptError` gives the place of a mistake."""
    top = Document(content, name).top
    time = top.take_time("time", 0) or None
    storms = [_storm(table) for table in top.tables("storm")]
    if not storms:
        raise top.error(None, "no [[storm]]")
    top.end()
    return storms, time


def _storm(table: Table) -> Storm:
    priorities = table.take("priorities")
    if priorities is None:
        priorities = []
    if not isinstance(priorities, list):
        priorities = [priorities]
    quanta = table.take_int("quanta", LONGEST, 1, LONGEST)
    times = {
        key: table.take_time(key, default)
        for key, default in (("refresh", 100 * US), ("start", 0), ("on", 0), ("off", 0))
    }
    table.end()
    try:
        return Storm(priorities=tuple(priorities), quanta=quanta, **times)
    except EncodeError as error:
        reason = str(error).removeprefix(f"{error.field}: ")
        raise table.error(error.field if error.field in table else None, reason) from None


_SHORTEST = 60
"""Bytes of the shortest Ethernet frame without FCS."""
