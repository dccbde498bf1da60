"""A case carried out again by the reference with one thing changed, to find what explains a device.

A variant is a case, perhaps with another connection, and how its frames arrive. One that makes the
reference do exactly what the device did names the cause of a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Pause, RunsAway, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind, apply, in_memory
from ibwire.fuzz.judge.findings import are_same
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.binding import Binding, emulated_binding
from ibwire.rc.profile import Profile

LONGEST = 10
"""Steps of a case of which variants are tried."""

NEW_REFERENCE = 10
"""Steps that are carried out in the time in which a reference is made."""

Outcome = tuple[
    Sequence[object], Sequence[object], Sequence[tuple[int, ...]], Sequence[object], bytes
]
"""Times, frames, completions, events and the memory of a step."""

Deliver = Callable[[Emulation, int, Frame], None]
"""Lets the frame of a step arrive at a reference, or not, or otherwise."""

Variant = tuple[Case, Deliver]
"""The case, perhaps with another connection, and how its frames arrive."""


class Trials:
    """What a device does in the last step of a case, on which variants are tried."""

    def __init__(self, case: Case, difference: Difference, profile: Profile) -> None:
        self.case, self.difference = case, difference
        self.steps = case.steps[: difference.step + 1]
        self._begin = sum(each.time for each in self.steps[:-1] if isinstance(each, Wait))
        """When the last step begins on a new reference."""
        self._profile = profile
        self._whole: list[tuple[Frame | None, Outcome]] | None = None
        """What the reference does in which nothing is changed."""
        self.cost = 0
        """What all references have cost so far, in steps that take as long."""

    def first_that_shows(self, variants: Sequence[Variant]) -> int | None:
        """The number of the first variant in which the reference does what the device does in the
        last step, and nothing else before; `None` for none, and where no variant is tried: of a
        case of more than `LONGEST` steps, and of a crash.
        """
        is_long = len(self.steps) > LONGEST
        if not variants or is_long or self.difference.kind in _NOT_TRIED:
            return None
        try:
            if self._whole is None:
                self.cost += NEW_REFERENCE + len(self.steps)
                self._whole = list(_outcomes(self.case, self.steps, self._profile))
        except RunsAway:
            return None
        whole = self._whole
        found = (at for at, each in enumerate(variants) if self._is_shown(each, whole))
        return next(found, None)

    def _is_shown(self, variant: Variant, whole: Sequence[tuple[Frame | None, Outcome]]) -> bool:
        case, deliver = variant
        frames = [frame for frame, _ in whole]
        *before, (_, last) = whole
        self.cost += NEW_REFERENCE
        try:
            outcomes = _outcomes(case, self.steps, self._profile, deliver, frames)
            for _, right in before:
                self.cost += 1
                if next(outcomes)[1] != right:
                    return False
            self.cost += 1
            outcome = next(outcomes)[1]
            return self._is_in_time(outcome) and _shows(outcome, last, self.difference)
        except RunsAway:
            return False

    def _is_in_time(self, outcome: Outcome) -> bool:
        """Whether what is sent in a wait comes about when the device sends it, if that is known.

        A timer of the device may expire between T and 4 T (C9-141).
        """
        (_, seen), times = self.difference.times, outcome[0]
        if self.difference.kind is not Kind.ANSWER or len(seen) != len(times):
            return True
        due = [each - self._begin for each in times if isinstance(each, int)]
        pairs = zip(due, seen, strict=True)
        return all(one <= 4 * other and other <= 4 * one for one, other in pairs)


def received(reference: Emulation, number: int, frame: Frame) -> None:
    """Let a frame arrive as it is."""
    reference.receive(frame)


def _shows(outcome: Outcome, right: Outcome, difference: Difference) -> bool:
    """Whether the last step of a reference has the outcome that it has for the device.

    right: that of the reference in which nothing is changed.
    """
    times, frames, completions, events, memory = outcome
    got = list(difference.got)
    before = frames == right[1], times == right[0], completions == right[2], memory == right[4]
    match difference.kind:  # in the order of comparison: whatever comes before is as it should be
        case Kind.ANSWER:
            return are_same(frames, got)
        case Kind.TIME:
            return before[0] and list(times) == got
        case Kind.COMPLETION:
            whole = [each for each in got if isinstance(each, tuple)]
            # Those of a device on a link are not whole.
            same = [
                each[: len(other)] == other for each, other in zip(completions, whole, strict=False)
            ]
            return all(before[:2]) and all(same) and len(completions) == len(whole)
        case Kind.MEMORY:
            changed = in_memory(difference.step, right[-1], memory)
            return all(before[:3]) and changed == difference
        case Kind.EVENT:
            return all(before) and list(events) == got
    return False


def _outcomes(
    case: Case,
    steps: Sequence[Step],
    profile: Profile,
    deliver: Deliver = received,
    frames: Sequence[Frame | None] = (),
) -> Iterator[tuple[Frame | None, Outcome]]:
    """The frame of each step, and what a reference does that receives it in some way.

    frames: those that it gets, in place of its own.
    """
    reference = Emulation(case.connection, profile)
    binding = emulated_binding(case.connection.version)
    for number, step in enumerate(steps):
        reference.prepare(step)
        frame = frames[number] if frames else None
        times: list[object] = []
        sent: list[object] = []
        if isinstance(step, Packet | Pause):
            if frame is None:
                frame = _frame(reference, binding, step)
            deliver(reference, number, frame)
            if isinstance(step, Packet) and step.held:
                yield frame, ((), (), (), (), b"")
                continue
        elif isinstance(step, Wait):
            for time, answer in reference.wait(step.time):
                times.append(time)
                sent.append(answer)
        else:
            apply(reference, step)
        if not isinstance(step, Wait):
            sent += reference.answers()
        reference.completions()
        whole = reference.details()
        yield frame, (times, sent, whole, reference.events(), bytes(reference.memory))


def _frame(reference: Emulation, binding: Binding, step: Packet | Pause) -> Frame:
    if isinstance(step, Pause):
        return binding.pause(step)
    return binding.frame(step, reference.psn(step.psn[0]), reference.symbols)


_NOT_TRIED = (Kind.CRASH, Kind.ENDLESS)
