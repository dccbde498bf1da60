"""Whether a device does what a right one would do that had not received an earlier response.

A response that is not taken shows later: a request is retransmitted, or flushed, or a new one is
not sent. All of that has one cause, which is named after the response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Pause, RunsAway, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind, apply
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.binding import Binding, emulated_binding
from ibwire.rc.profile import Profile
from ibwire_layers.opcodes import INFO

LONGEST = 10
"""Steps of a case in which a response is looked for."""

Outcome = tuple[Sequence[object], Sequence[object], Sequence[tuple[int, ...]], Sequence[object]]
"""Times, frames, completions and events of a step."""

Deliver = Callable[[Emulation, int, Frame], None]
"""Lets the frame of a step arrive at a reference, or not, or otherwise."""

Way = tuple[Case, Deliver]
"""The case, perhaps with another connection, and how its frames arrive."""


def unheeded(case: Case, difference: Difference, profile: Profile) -> int | None:
    """The number of the last response without which the reference does what the device does.

    It may be that of the last step. `None` for none, and where that cannot be said.
    """
    if difference.step >= LONGEST or difference.kind in (Kind.CRASH, Kind.ENDLESS, Kind.MEMORY):
        return None
    steps = case.steps[: difference.step + 1]
    places = [place for place, step in enumerate(steps) if _is_response(step)][::-1]
    found = first_that_shows(
        case, difference, profile, [(case, _all_but(place)) for place in places]
    )
    return None if found is None else places[found]


def first_that_shows(
    case: Case, difference: Difference, profile: Profile, ways: Sequence[Way]
) -> int | None:
    """The number of the first way to carry out a case in which the reference does what the device
    does, and nothing else before the last step; `None` for none.
    """
    if not ways:
        return None
    steps = case.steps[: difference.step + 1]
    try:
        whole = list(outcomes(case, steps, profile))
    except RunsAway:
        return None
    frames = [frame for frame, _ in whole]
    for number, (other, deliver) in enumerate(ways):
        try:
            found = list(outcomes(other, steps, profile, deliver, frames))
        except RunsAway:
            continue
        is_same = [each[1] for each in whole[:-1]] == [each[1] for each in found[:-1]]
        if is_same and shows(found[-1][1], difference):
            return number
    return None


def _all_but(place: int) -> Deliver:
    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        if number != place:
            reference.receive(frame)

    return deliver


def received(reference: Emulation, number: int, frame: Frame) -> None:
    """Let a frame arrive as it is."""
    reference.receive(frame)


def count_of_trials(case: Case) -> int:
    """How many references are tried at most on a case."""
    responses = sum(map(_is_response, case.steps)) if len(case.steps) <= LONGEST else 0
    return 1 + responses if responses else 0


def shows(outcome: Outcome, difference: Difference) -> bool:
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
            return [each[:_SHORT] for each in completions] == [each[:_SHORT] for each in whole]
        case Kind.EVENT:
            return list(events) == got
    return False


def outcomes(
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
        completions = reference.completions()
        reference.details()
        yield frame, (times, sent, completions, reference.events())


def _frame(reference: Emulation, binding: Binding, step: Packet | Pause) -> Frame:
    if isinstance(step, Pause):
        return binding.pause(step)
    return binding.frame(step, reference.psn(step.psn[0]), reference.symbols)


def _is_response(step: Step) -> bool:
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    return info is not None and info.is_response


_SHORT = 7
"""Parts of a completion that are compared first."""
