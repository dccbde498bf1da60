"""A case carried out on the reference and on a device, step by step, and how they differ."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import ne
from typing import Protocol, TypeVar

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Command,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Receive,
    RunsAway,
    Step,
    Wait,
)
from ibwire.fuzz.judge.open_responses import (
    Responses,
    follow_responses,
    has_open_responses,
    offer_responses,
    responses_in,
)
from ibwire.fuzz.judge.open_timers import Acts, acts_in, follow_timers, has_expired_unseen
from ibwire.fuzz.judge.turns import (
    completed_in_same_turns,
    in_same_turns,
    in_same_turns_of_wait,
)
from ibwire.fuzz.targets.emulated_device import Completion, Emulation
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.undefined_memory import WithoutMeaning


class Device(Protocol):
    """A device under test with one connection."""

    @property
    def memory(self) -> bytearray:
        """All memory that it has registered."""
        ...

    def reconnect(self, connection: Connection) -> None:
        """End the connection and make another."""
        ...

    def receive(self, frame: Frame) -> None:
        """Let a frame arrive."""
        ...

    def answers(self) -> list[Frame]:
        """The frames that it sends now."""
        ...

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """Let time pass, in ps; the frames that it sends meanwhile, with their times."""
        ...

    def post_recv(self, count: int, pair: int = 0) -> None:
        """Post receive requests. pair: number of the queue pair."""
        ...

    def post_send(self, post: Post) -> bool:
        """Post a send request; whether it was accepted."""
        ...

    def command(self, command: Command) -> bool:
        """Let the application call its connection manager; whether the state allowed it."""
        ...

    def completions(self) -> list[Completion]:
        """Completions since the last call."""
        ...

    def details(self) -> list[Completion]:
        """The completions that `completions` has returned, whole; of a link there are none."""
        ...

    def events(self) -> Sequence[object]:
        """Asynchronous events since the last call."""
        ...


Agrees = Callable[[object, object], bool]

Result = TypeVar("Result")

TimedFrames = list[tuple[Time, Frame]]
"""Frames with the times at which they are sent."""


class Kind(StrEnum):
    """The part in which a device differs, in the order of comparison."""

    CRASH = "crash"
    ENDLESS = "endless"
    """A call does not return, or packets do not end."""
    ANSWER = "answer"
    TIME = "time"
    COMPLETION = "completion"
    MEMORY = "memory"
    EVENT = "event"


KINDS = tuple(Kind)

FATAL = (Kind.CRASH, Kind.ENDLESS)
"""Differences that are seen without a reference, too."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a device from the reference."""

    step: int
    """Number of the step, from 0."""
    kind: Kind
    expected: Sequence[object]
    got: Sequence[object]
    """Frames, completions, events, bytes; lines of text of a crash."""
    size: int = 0
    """Bytes of memory that differ."""
    unchecked: tuple[str, ...] = ()
    """Fields of packets, and parts of completions, that may differ besides."""
    frames: Sequence[Frame] = ()
    """For times, what is sent then."""
    reported: Sequence[object] = ()
    """Events of a connection manager that the reference has not got, where packets differ: for what
    is said of the device.
    """
    beside: tuple[Sequence[object], Sequence[object]] = field(default=((), ()), compare=False)
    """The completions and the events of the reference and of the device in the same step, where
    packets differ; empty if they are equal, or not known.
    """
    unreported: Sequence[object] = ()
    """The opposite: events of the reference's connection manager that the device has not got."""
    times: tuple[Sequence[Time], Sequence[Time]] = ((), ())
    """When the answers of a wait are due and come, in ps since it began; empty if that is not
    known. For an event that comes too early, when it is due, and when the wait ends.
    """


def crash(case: Case, reason: object) -> Difference:
    """The difference of a device that no longer responds after a case."""
    return Difference(max(len(case.steps) - 1, 0), Kind.CRASH, [], [str(reason)])


class Comparison(ABC):
    """A reference and a device for which a case is carried out."""

    def __init__(self, binding: Binding, reference: Emulation) -> None:
        self.binding = binding
        self.reference = reference
        self.steps = 0
        self.frames: list[tuple[str, Time, Frame]] = []
        """The frames on the wire, `<` into the device and `>` out of it, if `records`."""
        self.expected: list[Frame] = []
        """The reference's answers to the last step."""
        self.records = False
        self.agrees: Agrees | None = None
        """Whether frames agree that differ, or completions, but for fields that are not compared.
        """
        self.unchecked: tuple[str, ...] = ()
        """Those fields."""
        self.in_target = False
        """Whether the device under test runs, so that a failure is a difference."""

    @abstractmethod
    def step(self, step: Step) -> Difference | None:
        """Execute one step; `None` if both did the same in all compared parts.

        Raises `CaseError` for a step that cannot be carried out.
        """

    def end(self) -> Difference | None:
        """A difference that is only seen at the end of a case; by default none."""
        return None

    def carry_out(self, case: Case) -> Difference | None:
        """Carry out the steps of a case up to the first difference."""
        for step in case.steps:
            difference = self.step(step)
            if difference is not None:
                return difference
        return self.end()

    def crash(self, reason: object) -> Difference:
        """The difference of a device that no longer responds after the steps so far."""
        return Difference(max(self.steps - 1, 0), Kind.CRASH, [], [str(reason)])

    def bounded(self, act: Callable[[], Difference | None]) -> Difference | None:
        """Run an action; a target that does not stop sending is a difference."""
        try:
            return act()
        except RunsAway as error:
            return self._endless(error)
        finally:
            self.in_target = False

    def _endless(self, error: RunsAway) -> Difference:
        """The difference of a target that does not stop sending; raises the reference's error."""
        if not self.in_target:
            raise error
        return Difference(self.steps - 1, Kind.ENDLESS, self.expected, [str(error)])


class Trace:
    """What the reference and its application did in a case, in the order of comparison."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.responses: list[Responses] = []
        """What the device sent in each of its steps, which the reference has followed."""
        self.acts: list[Acts] = []
        """What the device did in each wait, if the reference follows it there."""
        self._memory = b""

    def note(
        self,
        completed: list[Completion],
        whole: list[Completion],
        memory: bytearray,
        events: Sequence[object],
    ) -> None:
        """Note what its application sees after a step."""
        if memory != self._memory:
            self._memory = bytes(memory)
        self.calls += [completed, whole] if completed else [completed]
        self.calls += [self._memory, events]


class ExactComparison(Comparison):
    """A reference and a device in this process with the same connection, compared exactly."""

    def __init__(self, binding: Binding, reference: Emulation, target: Device) -> None:
        super().__init__(binding, reference)
        self.target = target
        self.trace: Trace | None = None
        """Where what the reference does is recorded."""
        self.recorded_responses: Iterator[Responses] | None = None
        """The responses of the device, where the target only repeats what a reference did."""
        self.recorded_acts: Iterator[Acts] | None = None
        """What the device did in each wait, in the same place."""
        self._of_wait: tuple[list[Completion], list[Completion]] | None = None
        """The completions in a wait of the device, also whole, if they were asked for already."""
        offer_responses(reference)
        self._without_meaning = WithoutMeaning()
        self.is_over = False
        """Whether the two may do different things from now on: later steps prove nothing."""

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same.

        A device under test may raise anything: that is a difference, too. Raises `CaseError`
        with the place for a step that does not fit the connection.
        """
        reference, target = self.reference, self.target
        number = self.steps
        self.steps += 1
        self._of_wait = None
        if self.is_over:
            return None
        self.expected = []
        try:
            reference.prepare(step)
            if isinstance(step, _FRAMES):
                frame = self._frame(step)
                if self.records:
                    self.frames.append(("<", reference.now, frame))
                if self.trace is not None:
                    self.trace.calls.append(frame)
                reference.receive(frame)
                self.in_target = True
                target.receive(frame)
                if isinstance(step, Packet) and step.held:
                    return None
            elif isinstance(step, Wait):
                return self._wait(step.time, number)
            else:
                if isinstance(step, Connect):
                    self._without_meaning.clear()
                apply(reference, step)
                if isinstance(step, Connect):
                    offer_responses(reference)
                self.in_target = True
                apply(target, step)
            return self._compare(number)
        except RunsAway as error:
            return self._endless(error)
        except Exception as error:
            if not self.in_target:
                if isinstance(error, CaseError):
                    raise CaseError(f"steps[{number}]: {error}") from None
                raise
            last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
            what = f"{type(error).__name__} in {last.f_code.co_name}"
            return Difference(number, Kind.CRASH, self.expected, [what, str(error)])
        finally:
            self.in_target = False

    def _frame(self, step: Packet | Pause) -> Frame:
        """The frame that the device receives in a step."""
        if isinstance(step, Pause):
            return self.binding.pause(step)
        reference = self.reference
        return self.binding.frame(step, reference.psn(step.psn[0]), reference.symbols)

    def _compare(self, number: int) -> Difference | None:
        expected, got = self._both(_answers, _as_they_are)
        if self.records:
            self.frames += [(">", self.reference.now, frame) for frame in got]
        if expected != got:
            if len(self.reference.pairs) > 1:
                got = in_same_turns(expected, got)
            got = self._without_unchecked(expected, got)
            if got != expected:
                found = self._in_answers(number, expected, got)
                return replace(found, beside=self._beside())
        return self._compare_application(number)

    def _both(
        self, act: Callable[[Device], Result], frames: Callable[[Result], list[Frame]]
    ) -> tuple[Result, Result]:
        """What the reference does, and what the device does. frames: those that are sent in it.

        The device comes first where it may leave out a response: then the reference does so, too.
        """
        reference, target = self.reference, self.target
        has_open = has_open_responses(reference)
        if not has_open:
            expected = self._of_reference(act, frames)
            got = act(target)
            self._responses_of(frames(got))
            return expected, got
        self.in_target = True
        try:
            got = act(target)
        except RunsAway:
            self._of_reference(act, frames)  # or it does the same
            raise
        follow_responses(reference, self._responses_of(frames(got)))
        return self._of_reference(act, frames), got

    def _of_reference(
        self, act: Callable[[Device], Result], frames: Callable[[Result], list[Frame]]
    ) -> Result:
        """What the reference does."""
        self.in_target = False
        expected = act(self.reference)
        self.expected = frames(expected)
        if self.trace is not None:
            self.trace.calls.append(expected)
        self.in_target = True
        return expected

    def _responses_of(self, frames: Sequence[Frame]) -> Responses:
        """The responses that the device has sent in a step, of which these are the frames."""
        if self.recorded_responses is not None:
            return next(self.recorded_responses, Counter())
        responses = responses_in(frames)
        if self.trace is not None:
            self.trace.responses.append(responses)
        return responses

    def _in_answers(
        self, number: int, expected: Sequence[Frame], got: Sequence[Frame]
    ) -> Difference:
        return Difference(number, Kind.ANSWER, expected, got, unchecked=self.unchecked)

    def _beside(self) -> tuple[Sequence[object], Sequence[object]]:
        """What completes on both and which events come in a step whose packets differ."""
        if self.recorded_responses is not None:
            return (), ()  # the target only repeats what is compared
        target, reference = self.target, self.reference
        due, whole = reference.completions(), reference.details()
        events = reference.events()
        try:
            completed, details = target.completions(), target.details()
            raised = target.events()
        except Exception:  # a device under test may raise anything
            return (), ()
        if len(reference.pairs) > 1:
            completed, details = completed_in_same_turns(whole, completed, details)
        sides = (due, completed) if due != completed else (whole, details)
        ours, theirs = ([], []) if sides[0] == sides[1] else map(list[object], sides)
        if events != raised:
            ours, theirs = [*ours, *events], [*theirs, *raised]
        return ours, theirs

    def _without_unchecked(self, expected: list[Frame], got: list[Frame]) -> list[Frame]:
        """What the target sent, with the expected frame for each that differs only in fields that
        are not compared.
        """
        agrees = self.agrees
        if agrees is None:
            return got
        found: list[Frame] = []
        at = 0
        for frame in got:
            for place in range(at, len(expected)):
                if agrees(expected[place], frame):
                    frame, at = expected[place], place + 1
                    break
            found.append(frame)
        return found

    def _in_completions(
        self, number: int, expected: list[Completion], got: list[Completion]
    ) -> Difference | None:
        """The difference of completions, but for those that differ only in what is not compared."""
        agrees = self.agrees
        if agrees is not None:
            pairs = zip(expected, got, strict=False)
            same = [one if agrees(one, other) else other for one, other in pairs]
            got = [*same, *got[len(same) :]]
        if expected == got:
            return None
        return Difference(number, Kind.COMPLETION, expected, got, unchecked=self.unchecked)

    def _wait(self, time: Time, number: int) -> Difference | None:
        begin = self.reference.now
        expected, got = self._both_wait(time)
        if self.records:
            self.frames += [(">", when, frame) for when, frame in got]
        if expected != got and len(self.reference.pairs) > 1:
            got = in_same_turns_of_wait(expected, got)
        if expected != got:
            frames = self._without_unchecked(self.expected, [frame for _, frame in got])
            times = [when for when, _ in expected], [when for when, _ in got]
            if frames != self.expected:
                ours, theirs = ([when - begin for when in each] for each in times)
                found = self._in_answers(number, self.expected, frames)
                return replace(found, times=(ours, theirs), beside=self._beside())
            if times[0] != times[1]:
                return Difference(number, Kind.TIME, *times, frames=frames)
        return self._compare_application(number)

    def _both_wait(self, time: Time) -> tuple[TimedFrames, TimedFrames]:
        """Let time pass on both: what the reference sends, and what the device does."""
        if self.reference.qp.profile.timers_vary:
            return self._followed_wait(time)
        return self._both(lambda device: device.wait(time), frames_of)

    def _followed_wait(self, time: Time) -> tuple[TimedFrames, TimedFrames]:
        """Let time pass first on the device, so that the reference's timers expire when its do."""
        reference, target = self.reference, self.target
        self.in_target = True
        try:
            got = target.wait(time)
            acts = self._acts_of(got)
        except RunsAway:
            self._of_reference(lambda device: device.wait(time), frames_of)  # or it does the same
            raise
        follow_responses(reference, self._responses_of(frames_of(got)))
        expected = self._of_reference(lambda _: follow_timers(reference, time, acts), frames_of)
        self.is_over |= has_expired_unseen(reference)
        return expected, got

    def _acts_of(self, sent: TimedFrames) -> Acts:
        """What the device has done in a wait, in which it has sent this."""
        if self.recorded_acts is not None:
            return next(self.recorded_acts, Acts())
        completed = self.target.completions()
        self._of_wait = completed, self.target.details() if completed else []
        acts = acts_in(sent, self._of_wait[1])
        if self.trace is not None:
            self.trace.acts.append(acts)
        return acts

    def _completions_of_target(self) -> list[Completion]:
        """The device's completions since the last call."""
        return self.target.completions() if self._of_wait is None else self._of_wait[0]

    def _details_of_target(self) -> list[Completion]:
        """The same, whole."""
        if self._of_wait is None:
            return self.target.details()
        return self._of_wait[1]

    def _agreeing_events(
        self, expected: Sequence[object], raised: Sequence[object]
    ) -> Sequence[object]:
        """The device's events and tables, as if it had chosen what the reference has where it may
        choose.
        """
        return raised

    def _compare_application(self, number: int) -> Difference | None:
        """The differences that the application of the device sees: completions, events, memory."""
        reference, target = self.reference, self.target
        completed = reference.completions()
        whole = reference.details() if completed else []
        expected = reference.events()
        if self.trace is not None:
            self.trace.note(completed, whole, reference.memory, expected)
        found, other = self._completions_of_target(), None
        if completed != found and completed and found and len(reference.pairs) > 1:
            other = self._details_of_target()
            found, other = completed_in_same_turns(whole, found, other)
        if completed != found and (difference := self._in_completions(number, completed, found)):
            return difference
        if completed:
            other = self._details_of_target() if other is None else other
            if whole != other and (difference := self._in_completions(number, whole, other)):
                return difference
        if completed:
            self._without_meaning.note(completed, reference)
        if reference.memory != (memory := target.memory):
            self._without_meaning.note_waiting(reference)
            memory = self._without_meaning.with_undefined(memory, reference.memory)
            if reference.memory != memory:
                return in_memory(number, reference.memory, memory)
        raised = target.events()
        if expected != raised and expected != (raised := self._agreeing_events(expected, raised)):
            return Difference(number, Kind.EVENT, expected, raised)
        return None


_FRAMES = (Packet, Pause)
"""Steps in which a frame arrives; a tuple is faster than a union, which is made at each use."""


def _answers(device: Device) -> list[Frame]:
    return device.answers()


def _as_they_are(frames: list[Frame]) -> list[Frame]:
    return frames


def frames_of(sent: TimedFrames) -> list[Frame]:
    """The frames without their times."""
    return [frame for _, frame in sent]


def apply(device: Device, step: Step) -> None:
    """Execute a step of the device's application."""
    if isinstance(step, Post):
        device.post_send(step)
    elif isinstance(step, Receive):
        device.post_recv(step.count, step.pair)
    elif isinstance(step, Command):
        device.command(step)
    elif isinstance(step, Connect):
        device.reconnect(step.connection)


def in_memory(number: int, expected: bytes | bytearray, got: bytes | bytearray) -> Difference:
    """The difference in memory after a step."""
    size = count_of_others(expected, got)
    return Difference(number, Kind.MEMORY, *first_bytes(expected, got), size=size)


def count_of_others(memory: bytes | bytearray, other: bytes | bytearray) -> int:
    """How many bytes of memory differ."""
    return sum(map(ne, memory, other))


def first_bytes(
    expected: bytes | bytearray, got: bytes | bytearray
) -> tuple[list[object], list[object]]:
    """The first address at which memory differs, and a few bytes from there."""
    first, end = 0, len(expected)
    while end - first > 1:  # comparing a half takes as long as looking at a few bytes one by one
        middle = (first + end) // 2
        if expected[first:middle] == got[first:middle]:
            first = middle
        else:
            end = middle
    few = slice(first, first + 8)
    return [first, bytes(expected[few])], [first, bytes(got[few])]
