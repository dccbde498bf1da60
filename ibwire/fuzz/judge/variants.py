"""A case carried out again by the reference with one thing changed, to find what explains a device.

A variant is a case, perhaps with another connection, and how its frames arrive. One that makes the
reference do exactly what the device did names the cause of a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Pause, RunsAway, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind, apply
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.binding import Binding, emulated_binding
from ibwire.rc.profile import Profile

LONGEST = 10
"""Steps of a case of which variants are tried."""

Outcome = tuple[Sequence[object], Sequence[object], Sequence[tuple[int, ...]], Sequence[object]]
"""Times, frames, completions and events of a step."""

Deliver = Callable[[Emulation, int, Frame], None]
"""Lets the frame of a step arrive at a reference, or not, or otherwise."""

Variant = tuple[Case, Deliver]
"""The case, perhaps with another connection, and how its frames arrive."""


def first_that_shows(
    case: Case, difference: Difference, profile: Profile, variants: Sequence[Variant]
) -> int | None:
    """The number of the first variant in which the reference does what the device does in the last
    step, and nothing else before; `None` for none, and for differences that no variant is tried on.
    """
    if not variants or difference.kind in _NOT_TRIED:
        return None
    steps = case.steps[: difference.step + 1]
    try:
        whole = list(_outcomes(case, steps, profile))
    except RunsAway:
        return None
    frames = [frame for frame, _ in whole]
    for number, (other, deliver) in enumerate(variants):
        try:
            found = list(_outcomes(other, steps, profile, deliver, frames))
        except RunsAway:
            continue
        is_same = [each[1] for each in whole[:-1]] == [each[1] for each in found[:-1]]
        if is_same and _shows(found[-1][1], difference):
            return number
    return None


def received(reference: Emulation, number: int, frame: Frame) -> None:
    """Let a frame arrive as it is."""
    reference.receive(frame)


def _shows(outcome: Outcome, difference: Difference) -> bool:
    """Whether the last step of a reference has the outcome that it has for the device."""
    times, frames, completions, events = outcome
    got = list(difference.got)
    match difference.kind:
        case Kind.ANSWER:
            return list(frames) == got
        case Kind.TIME:
            return list(times) == got
        case Kind.COMPLETION:
            whole = [each for each in got if isinstance(each, tuple)]
            # Those of a device on a link are not whole.
            same = [
                each[: len(other)] == other for each, other in zip(completions, whole, strict=False)
            ]
            return all(same) and len(completions) == len(whole)
        case Kind.EVENT:
            return list(events) == got
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
                yield frame, ((), (), (), ())
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
        yield frame, (times, sent, reference.details(), reference.events())


def _frame(reference: Emulation, binding: Binding, step: Packet | Pause) -> Frame:
    if isinstance(step, Pause):
        return binding.pause(step)
    return binding.frame(step, reference.psn(step.psn[0]), reference.symbols)


_NOT_TRIED = (Kind.CRASH, Kind.ENDLESS, Kind.MEMORY)
