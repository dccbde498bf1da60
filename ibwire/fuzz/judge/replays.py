"""Cases that were carried out before, so that a like reference need not meet the device again.

Most references that are tried on a case do in it what another one did. A device that gets the same
frames does the same, so such a reference differs from it in the same way: only the reference runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, ne
from typing import Any

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.case import Case, Command, Connection, Post, RunsAway
from ibwire.fuzz.judge.comparison import Device, Difference, ExactComparison, Trace
from ibwire.fuzz.judge.profiles import unchecked_by
from ibwire.fuzz.targets.emulated_device import Completion
from ibwire.rc.profile import Profile

MAXIMUM_STEPS = 16
"""Steps of a case that is kept: its memory is kept after each."""

MAXIMUM_CASES = 200
"""Cases that are kept; the longest unused one goes."""

MAXIMUM_RUNS = 16
"""Runs of a case that are kept in which references did different things."""

Compare = Callable[[Connection, Profile, Device | None], ExactComparison]
"""Makes a reference, and the device for a connection unless one is given."""


class Replays:
    """Carries cases out on new devices."""

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._kept: dict[int, _Kept] = {}
        """By identity of the case."""
        self.devices = 0
        """How many were made, references included."""

    def carry_out(self, case: Case, profile: Profile) -> Difference | None:
        """How the device differs from the reference with this profile, if it does."""
        if len(case.steps) > MAXIMUM_STEPS:
            return self._whole(case, profile, None)
        kept = self._kept.pop(id(case), None) or _Kept(case)
        if len(self._kept) >= MAXIMUM_CASES:
            del self._kept[next(iter(self._kept))]
        self._kept[id(case)] = kept
        if profile in kept.shown:
            return kept.shown[profile]
        run = kept.nearest(profile)
        if run is not None and self._is_alike(case, profile, run):
            found = run.difference
        else:
            trace = Trace()
            found = self._whole(case, profile, trace)
            kept.runs[MAXIMUM_RUNS - 1 :] = [
                _Run(_values(profile), unchecked_by(profile), found, trace, profile.timers_vary)
            ]
        kept.shown[profile] = found
        return found

    def _whole(self, case: Case, profile: Profile, trace: Trace | None) -> Difference | None:
        self.devices += 2
        comparison = self._compare(case.connection, profile, None)
        comparison.trace = trace
        return comparison.carry_out(case)

    def _is_alike(self, case: Case, profile: Profile, run: _Run) -> bool:
        """Whether a reference does what that of a run did, up to its difference."""
        self.devices += 1
        if run.difference is not None:
            case = case.with_steps(case.steps[: run.difference.step + 1])
        device = Recorded(run.trace)
        comparison = self._compare(case.connection, profile, device)
        comparison.recorded_responses = iter(run.trace.responses)
        comparison.recorded_acts = iter(run.trace.acts)
        return comparison.carry_out(case) is None or device.is_over


@dataclass(frozen=True, slots=True)
class _Run:
    """A case carried out with a reference."""

    values: tuple[Any, ...]
    """Of the fields of its profile."""
    unchecked: tuple[str, ...]
    """Fields of packets in which the device may differ."""
    difference: Difference | None
    trace: Trace
    follows_timers: bool = False
    """Whether the reference has followed the device in each wait."""


@dataclass(slots=True)
class _Kept:
    """What was seen in a case."""

    case: Case
    """Keeps its identity from being that of another one."""
    shown: dict[Profile, Difference | None] = field(default_factory=dict)
    """How the device differs from each reference."""
    runs: list[_Run] = field(default_factory=list)
    """One for each thing that references did."""

    def nearest(self, profile: Profile) -> _Run | None:
        """The run whose reference has most in common with this one."""
        values = _values(profile)
        unchecked, follows = unchecked_by(profile), profile.timers_vary
        runs = [
            run for run in self.runs if run.unchecked == unchecked and run.follows_timers == follows
        ]
        return min(runs, key=lambda run: sum(map(ne, run.values, values)), default=None)


_values: Callable[[Profile], tuple[Any, ...]] = attrgetter(*[each.name for each in fields(Profile)])


class Recorded:
    """A device that does again what a reference did, and then does not stop."""

    def __init__(self, trace: Trace) -> None:
        self._calls = iter(trace.calls)
        self.is_over = False
        """Whether it was asked for more than the reference did."""

    def _next(self) -> Any:
        for each in self._calls:
            return each
        self.is_over = True
        raise RunsAway("the reference did no more")

    @property
    def memory(self) -> bytearray:
        """What was in the memory."""
        return self._next()  # type: ignore[no-any-return]

    def receive(self, frame: Frame) -> None:
        """Take the frame that arrived; raises `RunsAway` for another one."""
        if frame != self._next():
            raise RunsAway("another frame")

    def answers(self) -> list[Frame]:
        """What was sent."""
        return self._next()  # type: ignore[no-any-return]

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """What was sent in this time."""
        return self._next()  # type: ignore[no-any-return]

    def completions(self) -> list[Completion]:
        """What was completed."""
        return self._next()  # type: ignore[no-any-return]

    def details(self) -> list[Completion]:
        """What was completed, whole."""
        return self._next()  # type: ignore[no-any-return]

    def events(self) -> Sequence[object]:
        """The events."""
        return self._next()  # type: ignore[no-any-return]

    def reconnect(self, connection: Connection) -> None:
        """Do nothing: what comes of it is recorded."""

    def post_recv(self, count: int, pair: int = 0) -> None:
        """Do nothing: what comes of it is recorded."""

    def post_send(self, post: Post) -> bool:
        """Do nothing: what comes of it is recorded."""
        return True

    def command(self, command: Command) -> bool:
        """Do nothing: what comes of it is recorded."""
        return True
