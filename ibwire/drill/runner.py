"""A case of a script against a device: each step is done or waited for, in order.

The clock of a script is where the last step ended: an event at `+1us` is a microsecond
after what was last done or heard. A packet at `+1us` must come then, give or take the
tolerance; at `+0` or without a time it must be there, from whenever; in a range it must
come within. What the device sends waits in order until a step expects it. At the end
nothing may be left over: no packet, no completion, no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.drill.application import Application
from ibwire.drill.emulated import DEFAULTS, LIMITS, Emulated
from ibwire.drill.expressions import Expression, Scope
from ibwire.drill.literals import Literal, single
from ibwire.drill.packets import describe, differences, parse, psn_base, shown
from ibwire.drill.steps import Case, Hear, Say, Script, Silence, Step, Unordered, Verb, When
from ibwire.drill.target import Target, TooBusy
from ibwire.drill.tokens import Line
from ibwire.drill.verdict import APPLICATION, INTO, OUT_OF, Entry, Failure, Verdict
from ibwire.drill.vocabulary import VERBS
from ibwire.errors import DecodeError, VerbsError
from ibwire.node import Frame
from ibwire.units import MS, NS, US, S, Time
from ibwire_layers.packet import Packet

TOLERANCE: Time = 1 * US
"""How far a packet may be from its time, unless the script says otherwise."""

LONGEST: Time = 10_000 * S
"""Time of a run: longer than any timer, and an end for what waits for ever."""


def run(script: Script, case: Case, profile: str = "spec") -> Verdict:
    """Carry out a case on the emulator.

    Raises `ScriptError` for a number that does not fit where the script has it.
    """
    verdict = Verdict(script.path, case.name, script.rule, script.section, profile)
    scope = Scope(script.path, {})
    steps = list(case.steps)
    device = _connect(steps, scope, profile)
    carry_out(script, steps, device, verdict, Application(device, scope), scope)
    return verdict


def carry_out(
    script: Script,
    steps: Sequence[Step],
    target: Target,
    verdict: Verdict,
    application: Application | None,
    scope: Scope,
) -> None:
    """Hold steps against a target; what came of it is in the verdict.

    Without an application verbs are passed over.
    """
    try:
        _Runner(script, target, verdict, application, scope).run(steps)
    except _Failed as failed:
        verdict.failure = failed.failure


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Span:
    """When something is expected: absolute times."""

    first: Time
    last: Time
    text: str


class _Runner:
    def __init__(
        self,
        script: Script,
        target: Target,
        verdict: Verdict,
        application: Application | None,
        scope: Scope,
    ) -> None:
        self._verdict = verdict
        self._device = target
        self._application = application
        self._scope = scope
        self._refresh()
        self._tolerance = TOLERANCE
        if script.tolerance is not None:
            self._tolerance = self._duration(script.tolerance)

    def run(self, steps: Sequence[Step]) -> None:
        """All steps, and then nothing more."""
        for step in steps:
            try:
                self._step(step)
            except TooBusy as busy:
                raise self._failed(step.line, "a device that comes to rest", str(busy)) from None
        if steps:
            self._nothing_left(steps[-1].line)

    def _refresh(self) -> None:
        self._scope.symbols = self._device.symbols

    # Steps.

    def _step(self, step: Step) -> None:
        match step:
            case Say():
                self._say(step)
            case Hear():
                self._hear(step)
            case Unordered():
                self._hear_all(step)
            case Silence():
                self._silence(step)
            case Verb():
                self._verb(step)

    def _say(self, step: Say) -> None:
        if not self._device.is_recorded:
            self._wait(step.when)
        self._aim(step.literal, to_device=True)
        frame, problems = self._device.say(step.literal, self._scope)
        if frame is None:
            raise self._failed(step.line, shown(step.literal, self._scope), "nothing", INTO)
        text = self._described(frame, to_device=True)
        if problems:
            entry = Entry(self._device.now, INTO, text, None, frame, is_expected=False)
            self._verdict.entries.append(entry)
            raise _Failed(Failure(step.line, shown(step.literal, self._scope), text, problems))
        self._note(INTO, text, step.line, frame)

    def _hear(self, step: Hear) -> None:
        span = self._span(step.when)
        most = 1 if step.most is None else step.most.evaluate(self._scope)
        for _ in range(min(most, LIMIT_UPTO)):
            found = self._next(span)
            if found is None:
                if step.most is not None:
                    return
                raise self._missing(step.line, self._wanted(step), span)
            time, frame = found
            problems = self._misfit(step, frame)
            if not problems and not span.first <= time <= span.last:
                problems = [f"it came at {_shown(time)}, not {span.text}"]
            if problems:
                if step.most is not None:
                    return
                raise self._unexpected(step.line, self._wanted(step), problems)
            self._take(step.line)

    def _hear_all(self, step: Unordered) -> None:
        span = self._span(step.when)
        left = list(step.members)
        while left:
            wanted = " and ".join(self._wanted(member) for member in left)
            found = self._next(span)
            if found is None:
                raise self._missing(step.line, wanted, span)
            time, frame = found
            for member in left:
                if not self._misfit(member, frame) and span.first <= time <= span.last:
                    left.remove(member)
                    self._take(member.line)
                    break
            else:
                raise self._unexpected(step.line, f"in any order {wanted}", [])

    def _silence(self, step: Silence) -> None:
        length = 0 if step.when.low is None else self._duration(step.when.low)
        end = min(self._device.now + length, LONGEST)
        self._device.advance(end, lambda: bool(self._device.heard))
        if self._device.heard:
            raise self._unexpected(step.line, f"silence until {_shown(end)}", [])
        self._note(APPLICATION, f"silence of {_length(length)}", step.line)

    def _verb(self, step: Verb) -> None:
        application = self._application
        if application is None:
            return
        if VERBS[step.token.text].waits:
            span = self._span(step.when)
            self._device.advance(span.last, lambda: application.is_there(step))
            problem = application.do(step)
            if problem is None and self._device.now < span.first:
                problem = f"it was there at {_shown(self._device.now)}, not {span.text}"
        else:
            self._wait(step.when)
            problem = application.do(step)
            self._refresh()
        if problem is not None:
            raise self._failed(step.line, application.wanted(step), problem)
        self._note(APPLICATION, application.told, step.line)

    def _nothing_left(self, line: Line) -> None:
        if self._application is None:
            return
        self._device.settle()
        if self._device.heard:
            raise self._unexpected(line, "nothing after this line", [])
        left = self._application.left_over()
        if left is not None:
            raise self._failed(line, "nothing after this line", left)

    # Time.

    def _wait(self, when: When) -> None:
        """Let the time before a step pass."""
        if when.low is None:
            return
        length = self._duration(when.low)
        if length:
            end = min(self._device.now + length, LONGEST)
            self._device.advance(end, lambda: False)

    def _span(self, when: When) -> _Span:
        now = self._device.now
        low = 0 if when.low is None else self._duration(when.low)
        if not when.is_range:
            if not low:
                last = LONGEST if self._device.is_recorded else now
                return _Span(0, last, "" if self._device.is_recorded else f"by {_shown(now)}")
            last = min(now + low + self._tolerance, LONGEST)
            return _Span(now + low - self._tolerance, last, f"at {_shown(now + low)}")
        high = LONGEST if when.high is None else now + self._duration(when.high)
        first = now + low if low else 0
        return _Span(first, min(high, LONGEST), f"from {_shown(now + low)} to {_shown(high)}")

    def _duration(self, expression: Expression) -> Time:
        value = expression.evaluate(self._scope)
        if value < 0:
            reason = f"{expression.text} is negative: time does not go back"
            raise self._scope.error(expression.token, reason)
        if 0 < value < NS:
            reason = f"{expression.text} is less than a nanosecond: is its unit missing?"
            raise self._scope.error(expression.token, reason)
        return value

    # Packets.

    def _next(self, span: _Span) -> tuple[Time, Frame] | None:
        """The next packet of the device, `None` if none comes in time."""
        device = self._device
        device.settle()
        if not device.heard:
            device.advance(span.last, lambda: bool(device.heard))
        return device.heard[0] if device.heard else None

    def _take(self, line: Line) -> None:
        time, frame = self._device.heard.popleft()
        self._note(OUT_OF, self._described(frame, to_device=False), line, frame, time)

    def _misfit(self, step: Hear, frame: Frame) -> list[str]:
        """Why a packet fits none of the alternatives; nothing if it fits one."""
        packet = parse(frame)
        if isinstance(packet, str):
            return [packet]
        found: list[str] = []
        for literal in step.alternatives:
            self._aim(literal, to_device=False)
            found = differences(literal, packet, self._device.wire, self._scope)
            if not found:
                return []
        return found if len(step.alternatives) == 1 else ["it fits none of them"]

    def _aim(self, literal: Literal, *, to_device: bool) -> None:
        """Let `psn` stand for the stream that a packet belongs to."""
        wire = self._device.wire
        base = psn_base(wire, to_device=to_device, is_response=literal.is_response)
        self._scope.symbols["psn"] = base

    def _wanted(self, step: Hear) -> str:
        texts = []
        for literal in step.alternatives:
            self._aim(literal, to_device=False)
            texts.append(shown(literal, self._scope))
        return " or ".join(texts)

    def _described(self, frame: Frame, *, to_device: bool) -> str:
        try:
            packet = Packet.parse(frame, strict=False)
        except DecodeError as error:
            return f"{len(frame)} bytes: {error}"
        text = describe(packet, self._device.wire, to_device=to_device)
        if to_device and packet.icrc_status().value != "good":
            text += f" icrc {packet.icrc_status().value}"
        return text

    # What is told.

    def _note(
        self,
        way: str,
        text: str,
        line: Line | None,
        frame: Frame | None = None,
        time: Time | None = None,
    ) -> None:
        number = None if line is None else line.number
        when = self._device.now if time is None else time
        self._verdict.entries.append(Entry(when, way, text, number, frame))

    def _missing(self, line: Line, wanted: str, span: _Span) -> _Failed:
        return self._failed(line, f"{wanted} {span.text}".rstrip(), "nothing", OUT_OF)

    def _unexpected(self, line: Line, wanted: str, problems: list[str]) -> _Failed:
        first = self._device.heard[0]
        for time, frame in list(self._device.heard)[:_MOST_LEFT_OVER]:
            text = self._described(frame, to_device=False)
            entry = Entry(time, OUT_OF, text, None, frame, is_expected=False)
            self._verdict.entries.append(entry)
        got = f"{self._described(first[1], to_device=False)} at {_shown(first[0])}"
        return _Failed(Failure(line, wanted, got, problems))

    def _failed(self, line: Line, expected: str, got: str, way: str = APPLICATION) -> _Failed:
        """A failure without a packet."""
        entry = Entry(self._device.now, way, got, None, is_expected=False)
        self._verdict.entries.append(entry)
        return _Failed(Failure(line, expected, got))


def _connect(steps: list[Step], scope: Scope, profile: str) -> Emulated:
    """Make the connection as the first step asks, which is taken away, or as usual."""
    first = steps[0] if steps else None
    asked = first if isinstance(first, Verb) and first.token.text == "qp" else None
    if asked is not None:
        del steps[0]
    for step in steps:
        if isinstance(step, Verb) and step.token.text == "qp":
            raise scope.error(step.token, "qp comes first, or not at all")
    if asked is None:
        return Emulated(profile, DEFAULTS)
    given: dict[str, int] = {}
    for name, (token, value) in asked.args.items():
        number = given[name] = single(value).evaluate(scope)
        low, high = LIMITS.get(name, (0, 1 << 32))
        if not low <= number <= high:
            raise scope.error(token, f"{name} is {number}, not from {low} to {high}")
    try:
        return Emulated(profile, given)
    except VerbsError as error:
        raise scope.error(asked.token, error.reason) from None


def _shown(time: Time) -> str:
    return f"{time / US:.3f} us"


def _length(time: Time) -> str:
    for unit, name in ((S, "s"), (MS, "ms"), (US, "us")):
        if time >= unit:
            return f"{time / unit:g} {name}"
    return f"{time / NS:g} ns"


LIMIT_UPTO = 10_000
"""Packets that one line takes at most."""

_MOST_LEFT_OVER = 10
"""Unexpected packets that a report shows."""
