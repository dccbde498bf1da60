"""A comparison with a device on a link, quick or careful, or with what it did before.

A quick one waits only for what the reference answers: unexpected packets are seen with the next
answer, and what the application found at the end. It shows that there is a difference. A
careful one waits after each step for as long as a device may be late and compares everything,
so it shows which step differs. What the device did is kept, so that other references can be
compared with it without the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ibwire.base.node import Frame
from ibwire.base.units import MS, Time
from ibwire.fuzz.case import (
    CaseError,
    Command,
    Connection,
    Packet,
    Pause,
    Post,
    Receive,
    Step,
    Wait,
)
from ibwire.fuzz.judge.comparison import Comparison, Device, Difference, Kind, in_memory
from ibwire.fuzz.judge.exclusions import FLAGS, Exclusions
from ibwire.fuzz.judge.response_names import about
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.targets.emulated_device import Completion, Emulation
from ibwire.fuzz.targets.link.frames import BTH, behind_ip
from ibwire.fuzz.targets.link.verbs_link import LinkDevice
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.undefined_memory import Reads, WithoutMeaning
from ibwire.rc.path import Path
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import AckKind

ACK_REQUEST = 0x80
"""The bit of a BTH that asks for an ACK, in its byte 8."""

LONG: Time = 240 * MS
"""A wait during which a step can be tried: as long as two that are looked at with care, on a
slow host. The table of RNR waits has 245.76 ms (reference/transport#rnr-timer)."""

TIMEOUT = 17
"""The only ACK timeout besides none that a device gets: 537 ms, for the same reason."""

LATEST = 4
"""How many times its value the timeout may be (C9-141; reference/transport#ack-timeout)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device has done after a step."""

    sent: Sequence[Frame]
    """To it, since the outcome before."""
    answers: list[Frame]
    completions: list[Completion]
    events: Sequence[object]
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
            raise NotRecorded
        self._next += 1
        self._sent = []
        return self._now.answers

    def completions(self) -> list[Completion]:
        """What had completed."""
        return self._now.completions

    def details(self) -> list[Completion]:
        """They are not recorded."""
        return []

    def events(self) -> Sequence[object]:
        """What had been raised."""
        return self._now.events

    @property
    def memory(self) -> bytearray:
        """What it held."""
        return self._now.memory

    @property
    def _now(self) -> Outcome:
        return self._outcomes[self._next - 1]

    def post_recv(self, count: int, pair: int = 0) -> None:
        """It was done then."""

    def post_send(self, post: Post) -> bool:
        """It was done then."""
        return True

    def command(self, command: Command) -> bool:
        """Such recordings have no commands to a connection manager."""
        raise NotRecorded

    def reconnect(self, connection: Connection) -> None:
        """A case on a link has one connection."""
        raise NotRecorded

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """It passed then."""
        return []


class NotRecorded(Exception):
    """A recording has no outcome for these frames."""


class TolerantComparison(Comparison):
    """A reference and a device on a link, or what it did.

    path: the headers that all answers get. is_quick: look only where an answer is due.
    """

    def __init__(
        self,
        binding: Binding,
        path: Path,
        reference: Emulation,
        target: Device,
        *,
        exclusions: Exclusions,
        is_quick: bool = False,
    ) -> None:
        super().__init__(binding, reference)
        self.target = target
        self.as_received: Callable[[Frame], Frame] = lambda frame: frame
        """What an answer was before it had those headers."""
        self.outcomes: list[Outcome] = []
        """What the device has done, step by step."""
        self.state = reference.state
        """That of the connection before the last step."""
        self.about: About | None = None
        """What the last answer was that the device got, if it came after its last request."""
        self._path = path
        self._exclusions = exclusions
        self._sent: list[Frame] = []
        self._waiting: list[Frame] = []
        """What the reference has answered and the device may answer, too."""
        self._is_quick = is_quick
        self._early: list[Frame] = []
        """What the device has sent during a wait, and was not looked at."""
        self._has_acted = False
        """Whether something was done during the current RNR wait."""
        self._reads = Reads(reference)
        self._without_meaning = WithoutMeaning()

    def step(self, step: Step) -> Difference | None:
        """Execute one step; `None` if both did the same in all compared parts."""
        return self.bounded(lambda: self._step(step))

    def _step(self, step: Step) -> Difference | None:
        reference = self.reference
        left = self._left
        if left is not None and not isinstance(step, Wait):
            if self._has_acted or left < LONG:
                difference = self._pass(0, self.steps - 1)
                if difference is not None:
                    return difference
            else:
                self._has_acted = True
        number = self.steps
        self.steps += 1
        self.expected = []
        self.state = reference.state
        if isinstance(step, Wait):
            return self._pass(step.time, number)
        self._act(step)
        self._take_answers()
        if isinstance(step, Pause):
            return None  # what comes next must find the port stopped
        left = self._left
        if left is not None and left < LONG:
            return None  # it may be over before the device has been silent for long enough
        return self._look(number)

    @property
    def _left(self) -> Time | None:
        """How long it is until the reference sends again of itself, `None` if it does not."""
        due = self.reference.qp.sends.timers.next_timeout()
        return None if due is None else due - self.reference.now

    @property
    def _is_refused(self) -> bool:
        """Whether the reference waits after an RNR NAK."""
        return self.reference.qp.sends.timers.rnr is not None

    def _act(self, step: Step) -> None:
        """Carry a step out on both."""
        reference, target = self.reference, self.target
        self.in_target = False
        if isinstance(step, Packet):
            reference.prepare(step)
            base = reference.psn(step.psn[0])
            self.about = about(reference, step, base + step.psn[1] & MASK)
            frame = self.binding.frame(step, base, reference.symbols)
            if self.records:
                self.frames.append(("<", 0, frame))
            reference.receive(frame)
            target.receive(frame)
            self._sent.append(frame)
        elif isinstance(step, Pause):
            frame = self.binding.pause(step)
            if self.records:
                self.frames.append(("<", 0, frame))
            reference.receive(frame)
            target.receive(frame)
        elif isinstance(step, Receive):
            target.post_recv(step.count)
            # One by one, as the agent does it: an ACK may count the first alone.
            for _ in range(step.count):
                reference.post_recv(1)
                self.expected += reference.answers()
        elif isinstance(step, Post):
            if reference.connection.timeout not in (0, TIMEOUT):
                raise CaseError(f"a device on a link asks with timeout 0 or {TIMEOUT} only")
            self.about = None
            if reference.post_send(step):
                self._reads.add(step)
            target.post_send(step)
        else:
            raise CaseError("a case on a link has one connection")

    def _pass(self, time: Time, number: int) -> Difference | None:
        """Let time pass, until a timer expires if one runs; its accuracy is not compared.

        A device may begin an RNR wait later than the reference, and end an ACK timeout much
        later; its responses are awaited, or their absence.
        """
        left = self._left
        time = time if left is None else left
        is_timeout = left is not None and not self._is_refused
        self._has_acted = self.in_target = False
        self.expected = [frame for _, frame in self.reference.wait(time)]
        self._take_answers()
        self.in_target = True
        if is_timeout and isinstance(self.target, LinkDevice):
            # No longer than until it asks again: from then on it waits for the next time.
            self._early += self.target.await_frames(len(self._waiting) or 1, LATEST * time)
        else:
            self._early += [frame for _, frame in self.target.wait(time)]
        return self._look(number)

    def _take_answers(self) -> None:
        self.expected += self.reference.answers()
        self.expected = [self._path.frame(behind_ip(each)) for each in self.expected]
        self._waiting += self.expected

    def _look(self, number: int) -> Difference | None:
        """What came of the steps so far: all of it, or quickly what is answered."""
        self.in_target = True
        if not self._is_quick:
            return self._compare_all(number)
        if not self._waiting or not isinstance(self.target, LinkDevice):
            return None
        missing = max(len(self._waiting) - len(self._early), 0)
        return self._compare_answers(number, self._received(self.target.await_frames(missing)))

    def _received(self, answers: list[Frame]) -> list[Frame]:
        """Responses after those that arrived during a wait."""
        early, self._early = self._early, []
        return [*early, *answers]

    def end(self) -> Difference | None:
        """What has not been looked for yet."""
        if not self.steps:
            return None
        self.expected = []
        return self.bounded(self._end)

    def _end(self) -> Difference | None:
        number = self.steps - 1
        if self._is_refused:
            difference = self._pass(0, number)
            if difference is not None:
                return difference
        self.in_target = True
        return self._compare_all(number) if self._is_quick else None

    def _compare_answers(self, number: int, got: list[Frame]) -> Difference | None:
        expected = self._waiting
        if self.records:
            self.frames += [(">", 0, self.as_received(frame)) for frame in got]
        expected, got = in_usual_order(expected), in_usual_order(got)
        if len(self._sent) > 1:
            expected, got = coalesced(expected), coalesced(got)
        got = with_usual_marks(got, expected)
        self._waiting, self._sent = [], []
        return Difference(number, Kind.ANSWER, expected, got) if expected != got else None

    def _compare_all(self, number: int) -> Difference | None:
        reference, target = self.reference, self.target
        outcome = Outcome(
            self._sent,
            self._received(target.answers()),
            target.completions(),
            target.events(),
            target.memory,
        )
        self.outcomes.append(outcome)
        difference = self._compare_answers(number, outcome.answers)
        if difference is not None:
            return difference
        flags = self._exclusions.flags
        completed = [
            (*each[:FLAGS], flags.get(each[FLAGS], each[FLAGS])) if len(each) > FLAGS else each
            for each in reference.completions()
        ]
        if completed != outcome.completions:
            return Difference(number, Kind.COMPLETION, completed, outcome.completions)
        self._reads.complete(completed)
        self._without_meaning.note(completed, reference)
        memory = self._reads.with_undefined(outcome.memory, reference.memory)
        if reference.memory != memory:
            self._without_meaning.note_waiting(reference)
        memory = self._without_meaning.with_undefined(memory, reference.memory)
        if reference.memory != memory:
            return in_memory(number, reference.memory, memory)
        raised = [
            [event for event in events if event not in self._exclusions.events]
            for events in (reference.events(), outcome.events)
        ]
        return (
            Difference(number, Kind.EVENT, raised[0], raised[1]) if raised[0] != raised[1] else None
        )


def in_usual_order(frames: Sequence[Frame]) -> list[Frame]:
    """Answers before requests of the device's own: which are first is left open."""
    return sorted(frames, key=_is_request)


def with_usual_marks(got: Sequence[Frame], expected: Sequence[Frame]) -> list[Frame]:
    """The requests with the expected AckReq bits; the bit of the very last one stays unchanged.

    A device may choose in which other requests it sets the bit (reference/transport#ack-request).
    """
    same = [
        wanted if _is_request(frame) and _unmarked(frame) == _unmarked(wanted) else frame
        for frame, wanted in zip(got[:-1], expected, strict=False)
    ]
    return [*same, *got[len(same) :]]


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


def _is_request(frame: Frame) -> bool:
    info = INFO.get(frame[BTH]) if len(frame) > BTH + 12 else None
    return info is not None and not info.is_response


def _unmarked(frame: Frame) -> bytes:
    """Without the request for an ACK, and the ICRC that covers it."""
    at = BTH + 8
    return frame[:at] + bytes([frame[at] & ~ACK_REQUEST]) + frame[at + 1 : -4]


def _psn(frame: Frame) -> int:
    return int.from_bytes(frame[BTH + 9 : BTH + 12])
