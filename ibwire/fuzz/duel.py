"""A case carried out on the reference and on a target, step by step, and how they differ."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ibwire.fuzz.binding import Binding
from ibwire.fuzz.case import Connect, Connection, Packet, Post, Receive, Step
from ibwire.fuzz.emulation import Completion, Emulation, RunsAway
from ibwire.node import Frame
from ibwire.units import Time


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

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same."""
        reference, target = self.reference, self.target
        number = self.steps
        self.steps += 1
        if isinstance(step, Packet):
            if "aeth.msn" in step.fields:
                reference.symbols["ssn"] = reference.oldest_ssn
            frame = self.binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
            if self.records:
                self.frames.append(("<", reference.now, frame))
            reference.receive(frame)
            crash = self._guarded(lambda: target.receive(frame))
        elif isinstance(step, Post):
            reference.post_send(step)
            crash = self._guarded(lambda: target.post_send(step))
        elif isinstance(step, Receive):
            reference.post_recv(step.count)
            crash = self._guarded(lambda: target.post_recv(step.count))
        elif isinstance(step, Connect):
            reference.reconnect(step.connection)
            crash = self._guarded(lambda: target.reconnect(step.connection))
        else:
            return self._wait(step.time, number)
        if crash is not None:
            return Difference(number, crash[0], (), crash[1])
        if isinstance(step, Packet) and step.held:
            return None
        return self._compare(number)

    def _compare(self, number: int) -> Difference | None:
        self.expected = expected = self.reference.answers()
        got: list[Frame] = []
        crash = self._guarded(lambda: got.extend(self.target.answers()))
        if crash is not None:
            return Difference(number, crash[0], expected, crash[1])
        if self.records:
            self.frames += [(">", self.reference.now, frame) for frame in got]
        if expected != got:
            return Difference(number, "answer", expected, got)
        return self._compare_application(number)

    def _wait(self, time: Time, number: int) -> Difference | None:
        expected = self.reference.wait(time)
        self.expected = [frame for _, frame in expected]
        got: list[tuple[Time, Frame]] = []
        crash = self._guarded(lambda: got.extend(self.target.wait(time)))
        if crash is not None:
            return Difference(number, crash[0], self.expected, crash[1])
        if self.records:
            self.frames += [(">", when, frame) for when, frame in got]
        if expected != got:
            frames = [frame for _, frame in got]
            if frames == self.expected:
                return Difference(
                    number, "time", [when for when, _ in expected], [when for when, _ in got]
                )
            return Difference(number, "answer", self.expected, frames)
        return self._compare_application(number)

    def _compare_application(self, number: int) -> Difference | None:
        """What the application of the device finds: completions, events, memory."""
        reference, target = self.reference, self.target
        completed, found = reference.completions(), target.completions()
        if completed != found:
            return Difference(number, "completion", completed, found)
        if reference.memory != target.memory:
            return Difference(number, "memory", *_first_bytes(reference.memory, target.memory))
        heard, told = reference.events(), target.events()
        if heard != told:
            return Difference(number, "event", heard, told)
        return None

    def _guarded(self, action: Callable[[], object]) -> tuple[str, list[str]] | None:
        """Let the target do something; how it failed. What is under test may raise anything."""
        try:
            action()
        except RunsAway as error:
            return "endless", [str(error)]
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return "crash", [f"{type(error).__name__}: {error} in {last.name}"]
        return None


def _first_bytes(expected: bytearray, got: bytearray) -> tuple[list[object], list[object]]:
    """Where memory begins to differ, and a few bytes from there."""
    first = next(
        i for i, (one, other) in enumerate(zip(expected, got, strict=True)) if one != other
    )
    few = slice(first, first + 8)
    return [first, bytes(expected[few])], [first, bytes(got[few])]
