"""A run against a device on a link: every case on a connection of its own.

A difference that a quick duel sees is looked for again in a careful one, on a new
connection. What the device did there is kept: whether a known deviation explains it is
found out from that, without the device. A case that is explained is made shorter on an
emulator that deviates in the same way, any other on the device itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ibwire.drill.target import Unable
from ibwire.errors import LinkError, PeerError, VerbsError
from ibwire.fuzz.binding import Binding
from ibwire.fuzz.campaign import Campaign, Maker, Report, Stepper
from ibwire.fuzz.case import Case, CaseError, Connection, Packet, Post, Step, Wait, opcode_text
from ibwire.fuzz.duel import Difference, Duel, Subject
from ibwire.fuzz.emulation import ADDRESS, PEER_ADDRESS, Emulation, Numbers
from ibwire.fuzz.findings import Finding, bucket_of, signature
from ibwire.fuzz.live import Bench
from ibwire.fuzz.live_duel import LiveDuel, Outcome, Playback, Unheard
from ibwire.fuzz.live_taken import OPTIONAL, Taken, differs_in_flags
from ibwire.fuzz.minimise import minimise
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.attributes import EventType
from ibwire.rc.profile import Profile
from ibwire_layers.headers import IETH
from ibwire_layers.opcodes import INFO

FEW = 4
"""Up to how many last steps less one are tried alone first."""

TRIALS = 40
"""Cases that a device is asked for to make one shorter."""

ENOUGH = 3
"""How often the same difference is looked at again, if nothing new comes of it."""

REFUSED = 20
"""Connections that a device refuses in a row before it is given up."""


class LiveCampaign(Campaign):
    """Cases against a device on a link; the arguments are those of `Campaign`."""

    def __init__(
        self,
        bench: Bench,
        make: Maker,
        *,
        profile: str = "spec",
        first: int = 0,
        report: Report | None = None,
        origin: str = "",
        minimises: bool = True,
    ) -> None:
        super().__init__(
            *(_no_target, self._possible),
            profile=profile,
            first=first,
            report=report,
            origin=origin,
            minimises=minimises,
        )
        self._any = make
        bench.taken = Taken(self.report.left_out)
        self._bench = bench
        self._stepper: Possible | None = None
        self._looked_at: Counter[str] = Counter()
        self._kept: _Kept | None = None
        self._refused = 0
        self._told = 0
        """How many of the findings are taken over; the last one not before it is saved."""

    @property
    def lost(self) -> str:
        """Why the device is given up; empty as long as it is there."""
        return self._bench.lost

    def _one_case(self, budget: int) -> Finding | None:
        for finding in self.report.findings[self._told :]:
            self._bench.taken.add(finding.difference, _last_packet(finding.case))
        self._told = len(self.report.findings)
        try:
            found = super()._one_case(budget)
        except CaseError as error:
            self._refused += 1
            if self._refused == REFUSED:
                self._bench.lost = f"no connection can be had: {error}"
            return None
        except (LinkError, PeerError, Unable, VerbsError) as error:
            return self._lose(str(error))
        except Interrupted as signal:
            raise KeyboardInterrupt from signal
        finally:
            self._bench.disconnect()
        self._refused = 0
        if found is not None:
            self._looked_at.clear()
        return found

    def _connected(self, connection: Connection) -> Duel:
        """A new connection, and a duel that is quick."""
        target = self._bench.connect(connection)
        reference = Emulation(connection, self._profile, target.numbers)
        return self._duel_with(reference, target).quick()

    def _possible(self, number: int) -> Possible:
        self._stepper = Possible(self._any(number), self._bench.largest, self._bench.taken)
        return self._stepper

    # What is found.

    def _examine(self, case: Case, difference: Difference, state: str) -> Finding | None:
        """A difference: does it come again, on another connection?"""
        report = self.report
        quick = bucket_of(difference, case.steps[-1], state)
        if self._looked_at[quick] >= ENOUGH:
            return None
        self._looked_at[quick] += 1
        self._kept = None
        found = self.replay(case)
        if found is None or self._kept is None:
            report.unstable[quick] += 1
            return None
        case = case.with_steps(case.steps[: found.step + 1])
        return self._judged(self._unknown(case, found) or case, quick)

    def _name_of(self, case: Case, left: Difference | None, bucket: str) -> str:
        """By the careful duel: the quick one may have seen it late."""
        if left is None or self._kept is None:
            return bucket
        if left.kind == "event":
            return _event_bucket(left)
        if differs_in_flags(left):
            return "flags of a completion"
        if _is_unknown(case, left) and not _has_fields(case):
            return f"{opcode_text(_opcode(case))} is not known"
        return bucket_of(left, case.steps[left.step], self._kept.state)

    def _unknown(self, case: Case, difference: Difference) -> Case | None:
        """The plainest case of an optional operation that the device does not know, if it is."""
        if not _is_unknown(case, difference):
            return None
        opcode = _opcode(case)
        kept = self._kept
        plain = replace(
            case, connection=Connection(), steps=(Packet(opcode, length=OPTIONAL[opcode]),)
        )
        found = self.replay(plain)
        if found is not None and _is_unknown(plain, found):
            return plain
        self._kept = kept
        return None

    def replay(self, case: Case, profile: Profile | None = None) -> Difference | None:
        """Carry a case out on a new connection, or find out from what was done on the last."""
        profile = profile or self._profile
        kept = self._kept
        if kept is not None and kept.covers(case):
            reference = Emulation(case.connection, profile, kept.numbers)
            try:
                return _carried_out(case, self._duel_with(reference, Playback(kept.outcomes)))
            except Unheard:
                pass  # this reference would have gone another way
        bench = self._bench
        target = bench.connect(case.connection)
        reference = Emulation(case.connection, profile, target.numbers)
        duel = self._duel_with(reference, target)
        difference = _carried_out(case, duel)
        done = case.with_steps(case.steps[: duel.steps])
        self._kept = _Kept(done, target.numbers, duel.outcomes, duel.state)
        return difference

    def _duel_with(self, reference: Emulation, target: Subject) -> LiveDuel:
        bench = self._bench
        return LiveDuel(bench.binding, bench.path, reference, target, taken=bench.taken)

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """A case made shorter: on an emulator if one does the same, else on the device."""
        wanted = signature(difference)
        if self.replay(case) is None:
            binding, model = Binding(PEER_ADDRESS, ADDRESS), self._profile

            def on_model(shorter: Case) -> bool:
                connection = shorter.connection
                target = Emulation(connection, model)
                duel = Duel(binding, Emulation(connection, profile), target)
                found = _carried_out(shorter, duel)
                return found is not None and signature(found) == wanted

            shorter = minimise(case, on_model)
            found = self.replay(shorter, profile)
            if found is not None and signature(found) == wanted:
                return shorter

        def on_device(shorter: Case) -> bool:
            return self._shows(shorter, profile, wanted)

        for count in range(1, FEW):  # mostly the last steps do it
            end = case.with_steps(case.steps[-count:])
            if on_device(end):
                case = end
                break
        return minimise(case, on_device, TRIALS)

    def _shows(self, case: Case, profile: Profile, wanted: tuple[str, str, str]) -> bool:
        try:
            target = self._bench.connect(case.connection)
        except CaseError:
            return False  # the device has no such connection
        reference = Emulation(case.connection, profile, target.numbers)
        found = _carried_out(case, self._duel_with(reference, target).quick())
        return found is not None and signature(found) == wanted

    def _lose(self, reason: str) -> Finding | None:
        """The device did not do its part: is it only this connection?"""
        report, stepper = self.report, self._stepper
        self._kept = None
        case = self._suspect(stepper)
        what = "a connection"
        try:
            self._bench.connect(Connection())
        except (LinkError, PeerError, CaseError) as error:
            self._bench.lost = str(error)
            what = "the host" if not self._bench.host_answers() else "every connection"
        if case is None:
            return None
        last = _last_packet(case)
        bucket = f"{what} is dead after {opcode_text(last.opcode) if last else 'nothing'}"
        difference = Difference(len(case.steps) - 1, "crash", [], [reason])
        self._bench.taken.add(difference, last)
        report.seen[bucket] += 1
        if report.seen[bucket] > 1:
            return None
        finding = Finding(
            *(len(report.seen), bucket, case, case, difference),
            *(report.packets, "IBA 9.9; rc-transport 6"),
        )
        report.findings.append(finding)
        return finding

    def _suspect(self, stepper: Possible | None) -> Case | None:
        """The last case that had steps: each began with a connection that was good."""
        if stepper is not None and stepper.steps:
            origin = f"{self._origin}case {self.next_case}"
            return Case(stepper.connection, tuple(stepper.steps), self._name, origin)
        return self._history[-1] if self._history else None


class Possible:
    """A stepper, but only what a device on a link can be sent."""

    def __init__(self, stepper: Stepper, largest: int, taken: Taken) -> None:
        self.steps: list[Step] = []
        """All so far."""
        self._stepper = stepper
        self._largest = largest
        self._taken = taken

    @property
    def connection(self) -> Connection:
        """The connection that the case begins with."""
        return self._stepper.connection

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        while (step := self._stepper.next(reference)) is not None:
            if self._is_possible(step, reference):
                if isinstance(step, Packet) and step.held:
                    # How many a device has before it answers the first is its own affair.
                    step = replace(step, held=False)
                self.steps.append(step)
                return step
        return None

    def _is_possible(self, step: Step, reference: Emulation) -> bool:
        if not isinstance(step, Packet):
            return not isinstance(step, Post | Wait)
        if self._taken.has(step):
            return False
        if step.length + step.more + HEADERS > self._largest:
            return False
        needed = {value[0] for value in step.fields.values() if isinstance(value, tuple)}
        info = INFO.get(step.opcode)
        if info is not None and IETH in info.headers:
            needed.add("mw.rkey")
        if any(name.startswith("eth.") for name in step.fields):
            return False
        return needed <= reference.symbols.keys()


class _Kept:
    """What a device did in a case."""

    def __init__(
        self, case: Case, numbers: Numbers, outcomes: Sequence[Outcome], state: str
    ) -> None:
        self.numbers = numbers
        self.outcomes = outcomes
        self.state = state
        """Of the connection before the last step."""
        self._case = case

    def covers(self, case: Case) -> bool:
        """Whether it is this case as far as it went."""
        done = self._case.steps
        count = min(len(done), len(case.steps))
        return case.connection == self._case.connection and case.steps[:count] == done[:count]


def _carried_out(case: Case, duel: Duel) -> Difference | None:
    for step in case.steps:
        difference = duel.step(step)
        if difference is not None:
            return difference
    return duel.end()


def _last_packet(case: Case) -> Packet | None:
    return next((each for each in reversed(case.steps) if isinstance(each, Packet)), None)


def _is_unknown(case: Case, difference: Difference) -> bool:
    """Whether a device is silent where an operation comes that it need not have."""
    return _opcode(case) in OPTIONAL and difference.kind == "answer" and not difference.got


def _has_fields(case: Case) -> bool:
    last = case.steps[-1]
    return isinstance(last, Packet) and bool(last.fields)


def _opcode(case: Case) -> int:
    last = case.steps[-1]
    return last.opcode if isinstance(last, Packet) else -1


def _event_bucket(difference: Difference) -> str:
    expected, got = (
        [EventType(_number(each)).name for each in things]
        for things in (difference.expected, difference.got)
    )
    missing = ", ".join(each for each in expected if each not in got)
    return f"no event {missing}" if missing else f"event {', '.join(got)} for nothing"


def _number(thing: object) -> int:
    assert isinstance(thing, int)
    return thing


def _no_target(connection: Connection) -> Subject:
    raise CaseError("a device on a link is not made for a case")


HEADERS = 100
"""Bytes around a payload at most: IPv4, UDP, BTH, AtomicETH, padding and ICRC are 76."""
