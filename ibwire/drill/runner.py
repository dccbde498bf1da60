"""Runs a case of a script against a device, one step after the other.

Times count from the end of the step before: an event at `+1us` is one microsecond after it. A
packet at `+1us` must come at that time, within the tolerance; at `+0` or without a time it must
have come already; in a range it must come within the range. Packets of the device wait in order
until a step expects them. At the end nothing may be left over: no packet, no completion, no
event. On a real link everything may be late by the slack of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ibwire.base.errors import DecodeError, LinkError, PeerError, ScriptError, VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import MS, NS, US, S, Time
from ibwire.drill.application import Application, attributes_of
from ibwire.drill.language.cursor import own_symbols
from ibwire.drill.language.expressions import Expression, NoValue, Scope
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import (
    Anything,
    Case,
    Expect,
    Impair,
    Inject,
    Script,
    Silence,
    Step,
    Unordered,
    Verb,
    When,
)
from ibwire.drill.language.tokens import Line, Token
from ibwire.drill.language.vocabulary import MANAGER_VERBS, VERBS
from ibwire.drill.packets import (
    Wire,
    aim,
    build,
    describe,
    differences,
    has_no_icrc,
    parse,
    psn_base,
    shown,
)
from ibwire.drill.targets.emulated import Emulated
from ibwire.drill.targets.target import LONGEST, Target, TooBusy, Unable
from ibwire.drill.verdict import APPLICATION, INTO, OUT_OF, Entry, Failure, Verdict
from ibwire.rc.profile import Profile
from ibwire.rc.unreliable import QP1
from ibwire_layers.headers import DETH
from ibwire_layers.packet import Packet

TOLERANCE: Time = 1 * US
"""Greatest difference of a packet from its time, unless the script sets another."""


def run(script: Script, case: Case, profile: Profile | str = "spec") -> Verdict:
    """Run a case on the emulator.

    profile: how it behaves, itself or by name.
    Raises `ScriptError` for a number that does not fit its field.
    """
    name = profile if isinstance(profile, str) else profile.name
    verdict = Verdict(script.path, case.name, script.rule, script.section, name)
    scope = Scope(script.path, {})
    steps = list(case.steps)
    device = _connect(steps, scope, profile)
    application = Application(device, scope, lambda: device.manager)
    carry_out(script, steps, device, verdict, application, scope)
    return verdict


def carry_out(
    script: Script,
    steps: Sequence[Step],
    target: Target,
    verdict: Verdict,
    application: Application | None,
    scope: Scope,
) -> None:
    """Run steps against a target; the result is in the verdict.

    Without an application verbs are skipped. Raises `LinkError` and `PeerError` for a device
    that is lost; the verdict has the step.
    """
    try:
        _Runner(script, target, verdict, application, scope).run(steps)
    except _Failed as failed:
        verdict.failure = failed.failure
    except Unable as unable:
        verdict.skipped = str(unable)


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Span:
    """Absolute times between which something is expected."""

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
        self._owner = ""
        """The queue pair that the step is about; empty for the first one."""
        self._refresh()
        self._tolerance = TOLERANCE
        if script.tolerance is not None:
            self._tolerance = self._duration(script.tolerance)
        self._tolerance = max(self._tolerance, target.slack)

    def run(self, steps: Sequence[Step]) -> None:
        """Run all steps, and check that nothing is left over."""
        if self._application is None and any(map(_owners, steps)):
            what = "a recording has" if self._device.is_recorded else "without an agent there is"
            raise Unable(f"needs several queue pairs: {what} one")
        for step in steps:
            try:
                self._step(step)
            except NoValue as missing:
                line = _line_of(step, missing)
                raise self._failed(line, line.text.strip(), missing.reason) from None
            except TooBusy as busy:
                raise self._failed(step.line, "a device that comes to rest", str(busy)) from None
            except (LinkError, PeerError) as error:
                failed = self._failed(step.line, "a device that is there", str(error))
                self._verdict.failure = failed.failure
                raise
        if steps:
            self._nothing_left(steps[-1].line)

    def _refresh(self) -> None:
        self._scope.symbols = own_symbols(self._device.symbols, self._owner)

    def _choose(self, owner: str) -> None:
        """Let the symbols be those of a queue pair."""
        if owner != self._owner:
            self._owner = owner
            self._refresh()

    @property
    def _wire(self) -> Wire:
        return self._wire_of(self._owner)

    def _wire_of(self, owner: str) -> Wire:
        return self._device.wires[owner] if owner else self._device.wire

    def _owner_of(self, frame: Frame) -> str:
        """The queue pair that has sent a frame; the first one where it cannot be told."""
        wires = self._device.wires
        if not wires:
            return ""
        try:
            packet = Packet.parse(frame, strict=False)
        except DecodeError:
            return ""
        if packet.bth.dest_qp == QP1:
            return self._device.manager_owner(frame)
        deth = packet.extension(DETH)
        for name, wire in wires.items():
            if deth is not None and wire.is_datagram:  # to any queue pair
                is_sender = deth.src_qp == wire.qpn
            else:
                is_sender = packet.bth.dest_qp == wire.peer_qpn
            if is_sender:
                return name
        return ""

    # Steps.

    def _step(self, step: Step) -> None:
        for owner, line in _owners(step):
            if owner not in self._device.wires:
                reason = f"{owner} does not exist yet: no 'qp {owner}' has been carried out"
                raise ScriptError(self._scope.path, line.number, None, reason)
        self._choose(_owner(step))
        match step:
            case Inject():
                self._inject(step)
            case Expect():
                self._expect(step)
            case Unordered():
                self._expect_unordered(step)
            case Silence():
                self._silence(step)
            case Anything():
                self._anything(step)
            case Verb():
                self._verb(step)
            case Impair():
                self._impair(step)

    def _inject(self, step: Inject) -> None:
        if not self._device.is_recorded:
            self._wait(step.when)
        self._note_damage()
        self._aim(step.literal, to_device=True)
        time, frame, problems = self._device.inject(step.literal, self._scope, step.owner)
        if frame is None:
            raise self._failed(step.line, shown(step.literal, self._scope), "nothing", INTO)
        text = self._describe(step.literal, frame)
        if problems:
            entry = Entry(time, INTO, text, None, frame, is_expected=False)
            self._verdict.entries.append(entry)
            wanted = shown(step.literal, self._scope)
            raise _Failed(Failure(step.line, wanted, text, problems, INTO))
        self._note(INTO, text, step.line, frame, time)

    def _expect(self, step: Expect) -> None:
        span = self._span(step.when)
        most = 1 if step.most is None else step.most.evaluate(self._scope)
        for _ in range(min(most, LIMIT_UPTO)):
            found = self._next(span, step.owner)
            if found is None:
                if step.most is not None:
                    return
                raise self._missing(step.line, self._wanted(step), span)
            time, frame = found
            problems = self._misfit(step, frame) or _lateness(time, span)
            if problems:
                if step.most is not None:
                    return
                wanted = self._wanted(step, frame) + _when(step.when, span)
                raise self._unexpected(step.line, wanted, problems, frame=frame)
            self._take(step.line, frame)

    def _expect_unordered(self, step: Unordered) -> None:
        span = self._span(step.when)
        left = list(step.members)
        while left:
            found = self._next(span)
            if found is None:
                raise self._missing(step.line, self._all_wanted(left), span)
            time, frame = found
            problems: list[str] = []
            sender = self._owner_of(frame)
            for member in left:
                misfit = [f"it is of {sender or 'the first queue pair'}"]
                if member.owner == sender:
                    self._choose(sender)
                    misfit = self._misfit(member, frame) or _lateness(time, span)
                if not misfit:
                    left.remove(member)
                    self._take(member.line, frame)
                    break
                problems.append(f"line {member.line.number}: {'; '.join(misfit)}")
            else:
                wanted = f"in any order {self._all_wanted(left, frame)}{_when(step.when, span)}"
                raise self._unexpected(step.line, wanted, problems)

    def _silence(self, step: Silence) -> None:
        length = 0 if step.when.low is None else self._duration(step.when.low)
        length = max(length, self._device.slack)
        end = min(self._device.now + length, self._device.end)
        self._device.advance(end, self._has_outbound)
        if self._device.outbound:
            raise self._unexpected(step.line, f"silence until {_shown(end)}", [], APPLICATION)
        self._note(APPLICATION, f"silence of {_length(length)}", step.line)

    def _anything(self, step: Anything) -> None:
        device = self._device
        length = 0 if step.when.low is None else self._duration(step.when.low)
        device.settle()
        device.advance(min(device.now + max(length, device.slack), device.end), lambda: False)
        device.settle()
        while device.outbound:
            self._take(step.line, device.outbound[0][1])
        if self._application is not None:
            self._application.take_all()
        self._refresh()

    def _verb(self, step: Verb) -> None:
        application = self._application
        if application is None:
            return
        begun: Time | None = None
        if VERBS[step.token.text].waits:
            span = self._span(step.when)
            self._device.advance(span.last, lambda: application.is_there(step))
            problem = application.do(step)
            if problem is None and self._device.now < span.first:
                problem = f"it was there at {_shown(self._device.now)}, not {span.text}"
        else:
            self._wait(step.when)
            self._device.deliver()
            begun = self._device.now
            problem = application.do(step)
            if problem is not None and VERBS[step.token.text].expects:
                problem = self._late(application, step, problem)
            if step.token.text in MANAGER_VERBS:
                # Resolving the route to a peer takes time.
                self._device.settle()
        self._refresh()
        if problem is not None:
            raise self._failed(step.line, application.wanted(step), problem)
        self._note(APPLICATION, application.summary, step.line, time=begun)

    def _impair(self, step: Impair) -> None:
        self._wait(step.when)
        to_device = step.way == INTO
        base = psn_base(self._wire, to_device=to_device, is_response=False)
        self._scope.symbols["psn"] = base
        self._device.impair(step, self._scope)
        self._note(APPLICATION, step.line.text.strip(), step.line)

    def _note_damage(self) -> None:
        """Add the actions of impairment rules since the last call to the time line."""
        while (damage := self._device.poll_damage()) is not None:
            text = self._described(damage.frame, to_device=damage.way == INTO)
            # Without the frame: a capture of the run shows the packets of the peer.
            text = f"{text}  ({damage.what})"
            entry = Entry(damage.time, damage.way, text, damage.line.number)
            entries = self._verdict.entries
            at = len(entries)
            while at and entries[at - 1].time > entry.time:
                at -= 1
            entries.insert(at, entry)

    def _late(self, application: Application, step: Verb, problem: str) -> str | None:
        """Repeat a check while the device may be late; returns the last problem."""
        device, found = self._device, problem

        def is_right() -> bool:
            nonlocal found
            found = application.do(step) or ""
            return not found

        if device.slack:
            device.advance(device.now + device.slack, is_right)
        return found or None

    def _nothing_left(self, line: Line) -> None:
        if self._device.is_recorded:
            return
        self._device.advance(self._device.now + self._device.slack, self._has_outbound)
        if self._device.outbound:
            raise self._unexpected(line, "nothing after this line", [], APPLICATION)
        if self._application is None:
            return
        left = self._application.left_over()
        if left is not None:
            raise self._failed(line, "nothing after this line", left)

    # Time.

    def _wait(self, when: When) -> None:
        """Let the time of a step pass."""
        if when.low is None:
            return
        length = self._duration(when.low)
        if length:
            end = min(self._device.now + length, self._device.end)
            self._device.advance(end, lambda: False)

    def _span(self, when: When) -> _Span:
        device = self._device
        now, slack = device.now, device.slack
        low = 0 if when.low is None else self._duration(when.low)
        if not when.is_range:
            if not low:
                last = LONGEST if device.is_recorded else now + slack
                return _Span(0, last, "" if device.is_recorded else f"by {_shown(last)}")
            last = min(now + low + self._tolerance, device.end)
            return _Span(now + low - self._tolerance, last, f"at {_shown(now + low)}")
        high = device.end
        if when.high is not None:
            length = self._duration(when.high)
            if length < low:
                raise self._scope.error(when.high.token, "the range ends before it begins")
            high = now + length
        first = now + low - slack if low else 0
        text = f"from {_shown(now + low)} to {_shown(high)}"
        return _Span(first, min(high + slack, device.end), text)

    def _duration(self, expression: Expression) -> Time:
        value = expression.evaluate(self._scope)
        if value < 0:
            reason = f"{expression.text} is negative: time does not go back"
            raise self._scope.error(expression.token, reason)
        if 0 < value < NS and not expression.text.endswith("ps"):
            reason = f"{expression.text} is less than a nanosecond: is its unit missing?"
            raise self._scope.error(expression.token, reason)
        return value

    # Packets.

    def _next(self, span: _Span, owner: str | None = None) -> tuple[Time, Frame] | None:
        """The next packet of a queue pair, or of any; `None` if none comes in time.

        Each queue pair sends in order, but no rule says which of two sends first.
        """
        device = self._device

        def find() -> tuple[Time, Frame] | None:
            for found in device.outbound:
                if owner is None or self._owner_of(found[1]) == owner:
                    return found
            return None

        device.settle()
        if find() is None:
            device.advance(span.last, lambda: find() is not None)
        return find()

    def _has_outbound(self) -> bool:
        return bool(self._device.outbound)

    def _take(self, line: Line, taken: Frame) -> None:
        outbound = self._device.outbound
        time, frame = next(found for found in outbound if found[1] is taken)
        outbound.remove((time, frame))
        self._note(OUT_OF, self._described(frame, to_device=False), line, frame, time)

    def _misfit(self, step: Expect, frame: Frame) -> list[str]:
        """Why a packet fits none of the alternatives; empty if it fits one."""
        packet = parse(frame)
        if isinstance(packet, str):
            return [packet]
        problems: list[str] = []
        for literal in step.alternatives:
            self._aim(literal, to_device=False)
            found = differences(literal, packet, self._wire, self._scope)
            if not found:
                return []
            if len(step.alternatives) == 1:
                return found
            problems.append(f"{literal.token.text}: {'; '.join(found)}")
        return problems

    def _aim(self, literal: Literal, *, to_device: bool, packet: Packet | None = None) -> None:
        """Set the symbols to their values for a packet of this kind."""
        if literal.form is not None:
            self._refresh()
            if "cm_id" not in self._scope.symbols:
                raise Unable(
                    "messages of connection management: a recording is not followed that far"
                )
        aim(literal, self._wire, self._scope, to_device=to_device, packet=packet)

    def _wanted(self, step: Expect, frame: Frame | None = None) -> str:
        """What fits, with the numbers that this means for the frame that came."""
        parsed = None if frame is None else parse(frame)
        packet = parsed if isinstance(parsed, Packet) else None
        self._choose(step.owner)
        texts = []
        for literal in step.alternatives:
            self._aim(literal, to_device=False, packet=packet)
            is_known = packet is not None or not literal.is_any
            texts.append(shown(literal, self._scope if is_known else None))
        return " or ".join(texts) + f" of {step.owner}" * bool(step.owner)

    def _all_wanted(self, members: Sequence[Expect], frame: Frame | None = None) -> str:
        return " and ".join(self._wanted(member, frame) for member in members)

    def _describe(self, literal: Literal, frame: Frame) -> str:
        """What was sent; without an ICRC its last bytes would be taken for one."""
        if not has_no_icrc(literal, self._scope):
            return self._described(frame, to_device=True)
        words = {name: word for name, word in literal.words.items() if name != "icrc"}
        whole = build(replace(literal, words=words), self._wire, self._scope)
        return f"{self._described(whole, to_device=True)} icrc none"

    def _described(self, frame: Frame, *, to_device: bool) -> str:
        try:
            packet = Packet.parse(frame, strict=False)
        except DecodeError as error:
            return f"{len(frame)} bytes: {error}"
        owner = self._owner if to_device else self._owner_of(frame)
        text = describe(packet, self._wire_of(owner), to_device=to_device)
        text += f" of {owner}" * bool(owner and not to_device)
        text += f" for {owner}" * bool(owner and to_device)
        if to_device and packet.icrc_status().value != "good":
            text += f" icrc {packet.icrc_status().value}"
        return text

    # The verdict.

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
        entry = Entry(when, way, text, number, frame)
        if way == OUT_OF:  # what has come has been through the rules
            self._note_damage()
        self._verdict.entries.append(entry)
        self._note_damage()

    def _missing(self, line: Line, wanted: str, span: _Span) -> _Failed:
        return self._failed(line, f"{wanted} {span.text}".rstrip(), "nothing", OUT_OF)

    def _unexpected(
        self,
        line: Line,
        wanted: str,
        problems: list[str],
        way: str = OUT_OF,
        frame: Frame | None = None,
    ) -> _Failed:
        self._note_damage()
        outbound = self._device.outbound
        first = next((found for found in outbound if found[1] is frame), outbound[0])
        for time, frame in list(self._device.outbound)[:_MOST_LEFT_OVER]:
            text = self._described(frame, to_device=False)
            entry = Entry(time, OUT_OF, text, None, frame, is_expected=False)
            self._verdict.entries.append(entry)
        got = f"{self._described(first[1], to_device=False)} at {_shown(first[0])}"
        return _Failed(Failure(line, wanted, got, problems, way))

    def _failed(self, line: Line, expected: str, got: str, way: str = APPLICATION) -> _Failed:
        """A failure without a packet."""
        self._note_damage()
        entry = Entry(self._device.now, way, got, None, is_expected=False)
        self._verdict.entries.append(entry)
        return _Failed(Failure(line, expected, got, way=way))


def _owner(step: Step) -> str:
    """The queue pair that a step is about; empty for the first one, and for all."""
    return step.owner if isinstance(step, Inject | Expect | Verb) else ""


def _owners(step: Step) -> list[tuple[str, Line]]:
    """The queue pairs beside the first one that a step is about, each with its line."""
    lines = step.members if isinstance(step, Unordered) else (step,)
    return [(owner, each.line) for each in lines if (owner := _owner(each))]


def _line_of(step: Step, error: ScriptError) -> Line:
    """The line of a step; of several packets, the line of the one with the error."""
    members = step.members if isinstance(step, Unordered) else ()
    lines = (member.line for member in members if member.line.number == error.line)
    return next(lines, step.line)


def _connect(steps: list[Step], scope: Scope, profile: Profile | str) -> Emulated:
    """Make the connection by the first step if it is a `qp`, which is removed, or by default."""
    token, given = asked_for(steps, scope)
    try:
        return Emulated(profile, given)
    except VerbsError as error:
        if token is None:
            raise
        raise scope.error(token, error.reason) from None


def asked_for(steps: list[Step], scope: Scope) -> tuple[Token | None, dict[str, int]]:
    """Name and arguments of the first step if it is a `qp`; the step is removed."""
    first = steps[0] if steps else None
    asked: Verb | None = None
    if isinstance(first, Verb) and first.token.text == "qp" and first.word is None:
        asked = first
        del steps[0]
    for step in steps:
        if isinstance(step, Verb) and step.token.text == "qp" and step.word is None:
            raise scope.error(step.token, "qp comes first, or not at all; another one has a name")
    return (None, {}) if asked is None else (asked.token, attributes_of(asked, scope))


def _lateness(time: Time, span: _Span) -> list[str]:
    if span.first <= time <= span.last:
        return []
    return [f"it came at {_shown(time)}, not {span.text}"]


def _when(when: When, span: _Span) -> str:
    """The time of a line, after its expectation."""
    return "" if when.low is None else f" {span.text}"


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
