"""A case carried out on the reference and on a target, step by step, and how they differ."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.case import (
    CaseError,
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
from ibwire.fuzz.targets.emulated_device import Completion, Emulation
from ibwire.fuzz.vocabulary.queue_pair.binding import Binding


class Subject(Protocol):
    """A device under test with one connection, in this process."""

    @property
    def memory(self) -> bytearray:
        """All that it has registered."""
        ...

    def reconnect(self, connection: Connection) -> None:
        """End the connection and make another."""
        ...

    def receive(self, frame: Frame) -> None:
        """Let a frame arrive."""
        ...

    def answers(self) -> list[Frame]:
        """What it sends now."""
        ...

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """Let time pass, in ps: what it sends meanwhile, and when."""
        ...

    def post_recv(self, count: int) -> None:
        """Post receive requests."""
        ...

    def post_send(self, post: Post) -> bool:
        """Post a send request; whether it was taken."""
        ...

    def completions(self) -> list[Completion]:
        """What has completed since the last call."""
        ...

    def events(self) -> list[int]:
        """Asynchronous events since the last call."""
        ...


KINDS = ("crash", "endless", "answer", "time", "completion", "memory", "event")
"""What a difference may be, in the order in which it is looked for."""

FATAL = ("crash", "endless")
"""Those that are seen without a reference, too."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a target left the reference."""

    step: int
    """Number of the step, from 0."""
    kind: str
    """One of `KINDS`."""
    expected: Sequence[object]
    got: Sequence[object]
    """Frames, completions, events, bytes; lines of text of a crash."""


class Duel:
    """A reference and a target with the same connection."""

    def __init__(self, binding: Binding, reference: Emulation, target: Subject) -> None:
        self.binding = binding
        self.reference = reference
        self.target = target
        self.steps = 0
        self.frames: list[tuple[str, Time, Frame]] = []
        """What went over the wire, `<` into the device and `>` out of it, if asked for."""
        self.expected: list[Frame] = []
        """What the reference answered to the last step."""
        self.records = False
        self.is_theirs = False
        """Whether it is the target that is at work, and what fails now."""

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same.

        What is under test may raise anything: that is a difference, too. Raises `CaseError`
        with the place for a step that does not fit the connection.
        """
        reference, target = self.reference, self.target
        number = self.steps
        self.steps += 1
        self.expected = []
        try:
            if isinstance(step, Packet):
                if "aeth.msn" in step.fields:
                    reference.symbols["ssn"] = reference.oldest_ssn
                frame = self.binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
                if self.records:
                    self.frames.append(("<", reference.now, frame))
                reference.receive(frame)
                self.is_theirs = True
                target.receive(frame)
                if step.held:
                    return None
            elif isinstance(step, Pause):
                frame = self.binding.pause(step)
                if self.records:
                    self.frames.append(("<", reference.now, frame))
                reference.receive(frame)
                self.is_theirs = True
                target.receive(frame)
            elif isinstance(step, Wait):
                return self._wait(step.time, number)
            else:
                self._command(reference, step)
                self.is_theirs = True
                self._command(target, step)
            return self._compare(number)
        except RunsAway as error:
            if not self.is_theirs:
                raise
            return Difference(number, "endless", self.expected, [str(error)])
        except Exception as error:
            if not self.is_theirs:
                if isinstance(error, CaseError):
                    raise CaseError(f"steps[{number}]: {error}") from None
                raise
            self.is_theirs = False
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {last.name}"
            return Difference(number, "crash", self.expected, [what, str(error)])
        finally:
            self.is_theirs = False

    def end(self) -> Difference | None:
        """What is only seen when a case is over: nothing, step by step all was."""
        return None

    def _command(self, subject: Subject, step: Step) -> None:
        if isinstance(step, Post):
            subject.post_send(step)
        elif isinstance(step, Receive):
            subject.post_recv(step.count)
        elif isinstance(step, Connect):
            subject.reconnect(step.connection)

    def _compare(self, number: int) -> Difference | None:
        self.is_theirs = False
        self.expected = expected = self.reference.answers()
        self.is_theirs = True
        got = self.target.answers()
        if self.records:
            self.frames += [(">", self.reference.now, frame) for frame in got]
        if expected != got:
            return Difference(number, "answer", expected, got)
        return self._compare_application(number)

    def _wait(self, time: Time, number: int) -> Difference | None:
        expected = self.reference.wait(time)
        self.expected = [frame for _, frame in expected]
        self.is_theirs = True
        got = self.target.wait(time)
        if self.records:
            self.frames += [(">", when, frame) for when, frame in got]
        if expected != got:
            frames = [frame for _, frame in got]
            if frames == self.expected:
                times = [when for when, _ in expected], [when for when, _ in got]
                return Difference(number, "time", *times)
            return Difference(number, "answer", self.expected, frames)
        return self._compare_application(number)

    def _compare_application(self, number: int) -> Difference | None:
        """What the application of the device finds: completions, events, memory."""
        reference, target = self.reference, self.target
        completed, found = reference.completions(), target.completions()
        if completed != found:
            return Difference(number, "completion", completed, found)
        if reference.memory != target.memory:
            return Difference(number, "memory", *first_bytes(reference.memory, target.memory))
        heard, told = reference.events(), target.events()
        if heard != told:
            return Difference(number, "event", heard, told)
        return None


def first_bytes(expected: bytearray, got: bytearray) -> tuple[list[object], list[object]]:
    """Where memory begins to differ, and a few bytes from there."""
    first = next(
        i for i, (one, other) in enumerate(zip(expected, got, strict=True)) if one != other
    )
    few = slice(first, first + 8)
    return [first, bytes(expected[few])], [first, bytes(got[few])]
