"""A duel with a device on a link, quick or careful, and one with what it did before.

A quick one waits only for what the reference answers; what a device says unasked is seen
with the next answer, and what its application found at the end. It tells that there is a
difference. A careful one is silent after each step for as long as a device may be late and
asks for everything, so it tells which step it is; what the device did is kept, so that
other references can be held against it without the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.fuzz.binding import Binding
from ibwire.fuzz.case import CaseError, Connection, Packet, Post, Receive, RunsAway, Step
from ibwire.fuzz.duel import Difference, Duel, Subject, first_bytes
from ibwire.fuzz.emulation import Completion, Emulation
from ibwire.fuzz.live import LiveTarget
from ibwire.fuzz.live_taken import FLAGS, Taken
from ibwire.node import Frame
from ibwire.rc.path import Path
from ibwire.units import Time
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import OpCode
from ibwire_layers.syndrome import AckKind

BTH = 42
"""Where it is in an answer: behind Ethernet, IPv4 and UDP."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device has done after a step."""

    sent: Sequence[Frame]
    """To it, since the outcome before."""
    answers: list[Frame]
    completions: list[Completion]
    events: list[int]
    memory: bytearray


class Playback:
    """What a device did, as a target: as long as the same is done to it."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes
        self._next = 0
        self._sent: list[Frame] = []

    def receive(self, frame: Frame) -> None:
        """Let a frame arrive."""
        self._sent.append(frame)

    def answers(self) -> list[Frame]:
        """What it sent then."""
        if self._next == len(self._outcomes) or self._outcomes[self._next].sent != self._sent:
            raise Unheard
        self._next += 1
        self._sent = []
        return self._now.answers

    def completions(self) -> list[Completion]:
        """What had completed."""
        return self._now.completions

    def events(self) -> list[int]:
        """What had been raised."""
        return self._now.events

    @property
    def memory(self) -> bytearray:
        """What it held."""
        return self._now.memory

    @property
    def _now(self) -> Outcome:
        return self._outcomes[self._next - 1]

    def post_recv(self, count: int) -> None:
        """It was done then."""

    def post_send(self, post: Post) -> bool:
        """It was done then."""
        return True

    def reconnect(self, connection: Connection) -> None:
        """A case on a link has one connection."""
        raise Unheard

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """Time did not pass on demand."""
        raise Unheard


class Unheard(Exception):
    """A target that is played back was never told this."""


class LiveDuel(Duel):
    """A reference and a device on a link, or what it did.

    path: the headers that all answers get.
    """

    def __init__(
        self,
        binding: Binding,
        path: Path,
        reference: Emulation,
        target: Subject,
        *,
        taken: Taken,
    ) -> None:
        super().__init__(binding, reference, target)
        self.outcomes: list[Outcome] = []
        """What the device has done, step by step."""
        self.state = reference.state
        """That of the connection before the last step."""
        self._path = path
        self._taken = taken
        self._sent: list[Frame] = []
        self._waiting: list[Frame] = []
        """What the reference has answered and the device may answer, too."""
        self._quick = False

    def quick(self) -> LiveDuel:
        """The same, but quick."""
        self._quick = True
        return self

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same as far as it is looked for."""
        try:
            return self._step(step)
        except RunsAway as error:
            return Difference(self.steps - 1, "endless", self.expected, [str(error)])

    def _step(self, step: Step) -> Difference | None:
        reference, target = self.reference, self.target
        number = self.steps
        self.steps += 1
        self.expected = []
        self.state = reference.state
        if isinstance(step, Packet):
            if "aeth.msn" in step.fields:
                reference.symbols["ssn"] = reference.oldest_ssn
            frame = self.binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
            if self.records:
                self.frames.append(("<", 0, frame))
            reference.receive(frame)
            target.receive(frame)
            self._sent.append(frame)
        elif isinstance(step, Receive):
            target.post_recv(step.count)
            # One by one, as the agent does it: the first may be told of by an ACK.
            for _ in range(step.count):
                reference.post_recv(1)
                self.expected += reference.answers()
        else:
            raise CaseError("a case on a link has one connection, and time passes by itself")
        self.expected += reference.answers()
        self._waiting += [self._path.frame(each[BTH:-4]) for each in self.expected]
        if not self._quick:
            return self._compare_all(number)
        if not self.expected or not isinstance(target, LiveTarget):
            return None
        return self._compare_answers(number, target.hear(len(self._waiting)))

    def end(self) -> Difference | None:
        """What a quick duel has not looked for yet."""
        if not self._quick or not self.steps:
            return None
        try:
            return self._compare_all(self.steps - 1)
        except RunsAway as error:
            return Difference(self.steps - 1, "endless", [], [str(error)])

    def _compare_answers(self, number: int, got: list[Frame]) -> Difference | None:
        expected = self._waiting
        if self.records:
            self.frames += [(">", 0, frame) for frame in got]
        if len(self._sent) > 1:
            expected, got = coalesced(expected), coalesced(got)
        self._waiting, self._sent = [], []
        return Difference(number, "answer", expected, got) if expected != got else None

    def _compare_all(self, number: int) -> Difference | None:
        reference, target = self.reference, self.target
        outcome = Outcome(
            self._sent,
            target.answers(),
            target.completions(),
            target.events(),
            target.memory,
        )
        self.outcomes.append(outcome)
        difference = self._compare_answers(number, outcome.answers)
        if difference is not None:
            return difference
        flags = self._taken.flags
        completed = [
            (*each[:FLAGS], flags.get(each[FLAGS], each[FLAGS])) if len(each) > FLAGS else each
            for each in reference.completions()
        ]
        if completed != outcome.completions:
            return Difference(number, "completion", completed, outcome.completions)
        if reference.memory != outcome.memory:
            places = first_bytes(reference.memory, outcome.memory)
            return Difference(number, "memory", *places)
        raised = [
            [event for event in events if event not in self._taken.events]
            for events in (reference.events(), outcome.events)
        ]
        return Difference(number, "event", *raised) if raised[0] != raised[1] else None


def coalesced(frames: Sequence[Frame]) -> list[Frame]:
    """Answers to several requests without the ACKs that a later answer makes superfluous."""
    found: list[Frame] = []
    for frame in frames:
        while found and _is_ack(found[-1]) and _psn(frame) - _psn(found[-1]) & 0xFFFFFF < 1 << 23:
            found.pop()
        found.append(frame)
    return found


def _is_ack(frame: Frame) -> bool:
    return (
        len(frame) > BTH + 12
        and frame[BTH] == OpCode.RC_ACKNOWLEDGE
        and aeth.kind(frame[BTH + 12]) is AckKind.ACK
    )


def _psn(frame: Frame) -> int:
    return int.from_bytes(frame[BTH + 9 : BTH + 12])
