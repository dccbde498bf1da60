"""A case carried out again by the reference with one thing changed, to find what explains a device.

A variant is another connection, or how frames arrive. One that makes the reference do exactly what
the device did may be the cause of a difference. Whatever it foretells of other last steps must then
come true on the device, too: else it is no cause, but fits by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, CaseError, Connection, Packet, Pause, Post, RunsAway, Step, Wait
from ibwire.fuzz.judge.comparison import Agrees, Difference, Kind, apply, in_memory
from ibwire.fuzz.judge.findings import agreeing_but, are_same
from ibwire.fuzz.judge.probes import probes_for
from ibwire.fuzz.judge.profiles import unchecked_by
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

Replay = Callable[[Case], Difference | None]
"""How the device differs from the reference in a case, if it does."""


def received(reference: Emulation, number: int, frame: Frame) -> None:
    """Let a frame arrive as it is."""
    reference.receive(frame)


def _as_it_is(steps: Sequence[Step]) -> Deliver:
    return received


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing that is changed where a case is carried out."""

    deliver: Callable[[Sequence[Step]], Deliver] = _as_it_is
    """How the frames of these steps arrive."""
    connection: Connection | None = None
    """On which; `None` for that of the case."""
    place: int | None = None
    """The number of the step that arrives otherwise, if it is only one."""
    is_tested: bool = True
    """Whether it must hold for other last steps, too."""

    def of(self, case: Case) -> tuple[Case, Deliver]:
        """A case, perhaps on another connection, and how its frames arrive."""
        other = case if self.connection is None else replace(case, connection=self.connection)
        return other, self.deliver(case.steps)


class Trials:
    """What a device does in the last step of a case, on which variants are tried.

    profile: of the reference. replay: carries other cases out on the device; without it no variant
    is tested further.
    """

    def __init__(
        self, case: Case, difference: Difference, profile: Profile, replay: Replay | None = None
    ) -> None:
        self.case, self.difference = case, difference
        self.steps = case.steps[: difference.step + 1]
        self._profile, self.replay = profile, replay
        self._shown = _Shown(case.with_steps(self.steps), difference, profile)
        self._cost = 0

    @property
    def cost(self) -> int:
        """What all references have cost so far, in steps that take as long."""
        return self._cost + self._shown.cost

    @property
    def is_tested(self) -> bool:
        """Whether what a variant foretells is tested on the device."""
        return self.replay is not None

    def first_that_shows(self, variants: Sequence[Variant], longest: int = LONGEST) -> int | None:
        """The number of the first variant in which the reference does what the device does in the
        last step, and nothing else before; `None` for none, and where no variant is tried: of a
        case of more than `longest` steps, and of a crash.
        """
        is_long = len(self.steps) > longest
        if not variants or is_long or self.difference.kind in _NOT_TRIED:
            return None
        for number, variant in enumerate(variants):
            if self._shown.is_by(variant) and not self._is_refuted(variant):
                return number
        return None

    @property
    def needs_other_pairs(self) -> bool:
        """Whether the device does nothing wrong without the packets and requests of other queue
        pairs than that of the last step; `False` where that cannot be tried.
        """
        *earlier, last = self.steps
        own = last.pair if isinstance(last, _OF_A_PAIR) else None
        rest = [each for each in earlier if not isinstance(each, _OF_A_PAIR) or each.pair == own]
        if own is None or self.replay is None or len(rest) == len(earlier):
            return False
        try:
            return self.replay(self.case.with_steps([*rest, last])) is None
        except (CaseError, RunsAway):
            return False

    def _is_refuted(self, variant: Variant) -> bool:
        """Whether the device does not do what a variant foretells of another last step."""
        last = len(self.steps) - 1
        if self.replay is None or not variant.is_tested or variant.place == last:
            return False
        for probe in probes_for(self.case.connection, self.steps):
            case = self.case.with_steps([*self.steps[:-1], probe])
            shown = _Shown(case, None, self._profile)
            foretells = shown.foretells(variant)
            self._cost += shown.cost
            if foretells and self._contradicts(case, variant):
                return True
        return False

    def _contradicts(self, case: Case, variant: Variant) -> bool:
        """Whether the device does something else in a case, of which the variant foretells more
        than the reference does.
        """
        assert self.replay is not None
        try:
            difference = self.replay(case)
        except (CaseError, RunsAway):
            return False
        if difference is None:
            return True
        if difference.step < len(case.steps) - 1 or difference.kind in _NOT_TRIED:
            return False
        shown = _Shown(case, difference, self._profile)
        contradicts = not shown.is_by(variant)
        self._cost += shown.cost
        return contradicts


class _Shown:
    """What a reference does in a case, with and without a variant.

    difference: of the device in the last step, if it is known.
    """

    def __init__(self, case: Case, difference: Difference | None, profile: Profile) -> None:
        self._case, self._difference, self._profile = case, difference, profile
        self._begin = sum(each.time for each in case.steps[:-1] if isinstance(each, Wait))
        """When the last step begins on a new reference."""
        unchecked = unchecked_by(profile)
        self._agrees = agreeing_but(unchecked) if unchecked else None
        self._whole: list[tuple[Frame | None, Outcome]] | None = None
        """What the reference does in which nothing is changed; empty if it can do none of it."""
        self.cost = 0

    def foretells(self, variant: Variant) -> bool:
        """Whether a variant makes the reference do something else in the last step alone."""
        outcome = self._last_outcome(variant)
        if outcome is None:
            return False
        right = self._right()[-1][1]
        return _but_for_unchecked(outcome, right, self._agrees) != right

    def is_by(self, variant: Variant) -> bool:
        """Whether a variant makes the reference do what the device does."""
        difference = self._difference
        outcome = self._last_outcome(variant)
        if outcome is None or difference is None:
            return False
        right = self._right()[-1][1]
        is_same = _shows(outcome, right, difference, self._agrees)
        return self._is_in_time(outcome, difference) and is_same

    def _right(self) -> list[tuple[Frame | None, Outcome]]:
        if self._whole is None:
            self.cost += NEW_REFERENCE + len(self._case.steps)
            try:
                self._whole = list(_outcomes(self._case, self._profile))
            except (CaseError, RunsAway):
                self._whole = []
        return self._whole

    def _last_outcome(self, variant: Variant) -> Outcome | None:
        """That of the last step; `None` if a variant changes what comes before, or runs away."""
        whole = self._right()
        if not whole:
            return None
        frames = [frame for frame, _ in whole]
        case, deliver = variant.of(self._case)
        self.cost += NEW_REFERENCE
        try:
            outcomes = _outcomes(case, self._profile, deliver, frames)
            for _, right in whole[:-1]:
                self.cost += 1
                if next(outcomes)[1] != right:
                    return None
            self.cost += 1
            return next(outcomes)[1]
        except RunsAway:
            return None

    def _is_in_time(self, outcome: Outcome, difference: Difference) -> bool:
        """Whether what is sent in a wait comes about when the device sends it, if that is known.

        A timer of the device may expire between T and 4 T (C9-141).
        """
        (_, seen), times = difference.times, outcome[0]
        if difference.kind is not Kind.ANSWER or len(seen) != len(times):
            return True
        due = [each - self._begin for each in times if isinstance(each, int)]
        pairs = zip(due, seen, strict=True)
        return all(one <= 4 * other and other <= 4 * one for one, other in pairs)


def _shows(outcome: Outcome, right: Outcome, difference: Difference, agrees: Agrees | None) -> bool:
    """Whether the last step of a reference has the outcome that it has for the device.

    right: that of the reference in which nothing is changed. agrees: whether frames do that differ,
    but for fields that are not compared.
    """
    times, frames, completions, events, memory = _but_for_unchecked(outcome, right, agrees)
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


def _but_for_unchecked(outcome: Outcome, right: Outcome, agrees: Agrees | None) -> Outcome:
    """An outcome with the usual frame or completion for each that differs only where it may."""
    if agrees is None:
        return outcome
    times, frames, completions, events, memory = outcome
    frames = _with_usual(frames, right[1], agrees)
    completions = _with_usual(completions, right[2], agrees)
    return times, frames, completions, events, memory


def _with_usual(got: Sequence[Any], usual: Sequence[Any], agrees: Agrees) -> Sequence[Any]:
    """Frames or completions, with the usual one for each that differs only where it may."""
    pairs = zip(got, usual, strict=False)
    same = [one if agrees(one, other) else other for other, one in pairs]
    return [*same, *got[len(same) :]]


def _outcomes(
    case: Case,
    profile: Profile,
    deliver: Deliver = received,
    frames: Sequence[Frame | None] = (),
) -> Iterator[tuple[Frame | None, Outcome]]:
    """The frame of each step, and what a reference does that receives it in some way.

    frames: those that it gets, in place of its own.
    """
    reference = Emulation(case.connection, profile)
    binding = emulated_binding(case.connection.version)
    for number, step in enumerate(case.steps):
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


_OF_A_PAIR = (Packet, Post)

_NOT_TRIED = (Kind.CRASH, Kind.ENDLESS)
