"""A run against a device on a link: every case on a connection of its own.

A difference that a quick duel sees is looked for again in a careful one, on a new
connection. What the device did there is kept: whether a known deviation explains it is
found out from that, without the device. A case that is explained is made shorter on an
emulator that deviates in the same way, any other on the device itself.

Between cases the control connection is asked whether the device lives, as the agent tells it
by the way. When it does not, all cases since it was last seen to live are suspects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ibwire.base.errors import LinkError, PeerError, VerbsError
from ibwire.drill.targets.target import Unable
from ibwire.fuzz.campaign import Maker, Stepper
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Step,
    Wait,
    opcode_text,
)
from ibwire.fuzz.judge.comparison import Difference, Duel, Subject
from ibwire.fuzz.judge.exclusions import OPTIONAL, Taken, differs_in_flags, opcode_on_wire
from ibwire.fuzz.judge.findings import Finding, bucket_of, signature
from ibwire.fuzz.judge.response_names import About, name
from ibwire.fuzz.minimise import minimise
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation, Numbers
from ibwire.fuzz.targets.link.crash_minimiser import Autopsy, carry_out
from ibwire.fuzz.targets.link.liveness import Dead, Death
from ibwire.fuzz.targets.link.queue_pair import Bench
from ibwire.fuzz.targets.link.run import HEADERS, LinkCampaign
from ibwire.fuzz.vocabulary.queue_pair.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.comparison import LiveDuel, Outcome, Playback, Unheard
from ibwire.fuzz.vocabulary.queue_pair.link_steps import fits_link, has_fitting_timeout
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.attributes import EventType
from ibwire.rc.profile import Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.headers import IETH
from ibwire_layers.opcodes import INFO

SUSPECTS = 10
"""Cases after which it is seen whether the device lives, if nothing else gives reason to."""

REFUSED = 20
"""Cases in a row that cannot be carried out before a device is given up."""


class LiveCampaign(LinkCampaign):
    """Cases against a device on a link; options are those of `Campaign`."""

    def __init__(self, bench: Bench, make: Maker, **options: Any) -> None:
        super().__init__(bench, self._possible, **options)
        self._any = make
        bench.taken = Taken(self.report.left_out)
        self._bench = bench
        self._kept: _Kept | None = None
        self._about: About | None = None
        """What the last answer was that the device got before the last difference."""
        self._refused = 0
        self._dissected: set[str] = set()
        """Deaths that were made shorter, as they were found."""

    def _one_case(self, budget: int) -> Finding | None:
        for finding in self._new_findings():
            self._bench.taken.add(finding.difference, _last_sent(finding.case))
        try:
            return super()._one_case(budget)
        finally:
            self._bench.disconnect()

    def _next_case(self, budget: int) -> Finding | None:
        """The next case on a device that lives, or what is found when it does not."""
        bench = self._bench
        try:
            bench.begin()
        except (LinkError, PeerError) as error:
            bench.lost = str(error)
            return None
        try:
            found = super()._next_case(budget)
            is_due = len(self._history) >= SUSPECTS or self.report.packets >= budget
            if found is None and is_due:
                self._look()
        except CaseError as error:
            self._refused += 1
            if self._refused == REFUSED:
                bench.lost = f"{REFUSED} cases in a row cannot be carried out: {error}"
            return None
        except (LinkError, PeerError, Unable, VerbsError) as error:
            try:
                return self._lose(str(error))
            except LinkError as own:  # our end of the link is gone
                bench.lost = str(own)
                return None
        self._refused = 0
        return found

    def _connected(self, connection: Connection) -> Duel:
        """A new connection, and a duel that is quick."""
        target = self._bench.connect(connection)
        reference = Emulation(connection, self._profile, target.numbers)
        return self._duel_with(reference, target, is_quick=True)

    def _possible(self, number: int) -> Possible:
        bench = self._bench
        spared = bench.liveness.qpn
        stepper = Possible(self._any(number), bench.largest, bench.taken, spared, is_v4=bench.is_v4)
        self._stepper = stepper
        return stepper

    # What is found.

    def _examine(self, case: Case, difference: Difference, state: str) -> Finding | None:
        """A difference: does it come again, on another connection?"""
        self._look()
        self._history.append(case)
        report = self.report
        quick = bucket_of(difference, case.steps[-1], state)
        if self._has_seen_enough(quick):
            return None
        self._kept = None
        found = self.replay(case)
        if found is None or self._kept is None:
            report.count_unstable(quick)
            return None
        case = case.with_steps(case.steps[: found.step + 1])
        finding = self._judged(self._unknown(case, found) or case, quick)
        if finding is not None and not finding.about and self._about is not None:
            finding.rule = self._about.rule
        return finding

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
        return name(left, case.steps[left.step], self._kept.state, self._about, self.report.taken)

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
            duel = self._duel_with(reference, Playback(kept.outcomes))
            try:
                difference = _carried_out(case, duel)
            except Unheard:
                pass  # this reference would have gone another way
            else:
                self._about = duel.about
                return difference
        bench = self._bench
        target = bench.connect(case.connection)
        reference = Emulation(case.connection, profile, target.numbers)
        duel = self._duel_with(reference, target)
        difference = _carried_out(case, duel)
        self._about = duel.about
        done = case.with_steps(case.steps[: duel.steps])
        self._kept = _Kept(done, target.numbers, duel.outcomes, duel.state)
        return difference

    def _duel_with(
        self, reference: Emulation, target: Subject, *, is_quick: bool = False
    ) -> LiveDuel:
        bench = self._bench
        return LiveDuel(
            *(bench.binding, bench.path, reference, target), taken=bench.taken, is_quick=is_quick
        )

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """A case made shorter: on an emulator if one does the same, else on the device."""
        if difference.kind == "crash":
            return self._shortest_deadly(case)
        wanted, told = signature(difference), self._about
        if self.replay(case) is None:
            binding, model = Binding(PEER_ADDRESS, ADDRESS), self._profile

            def on_model(shorter: Case) -> bool:
                connection = shorter.connection
                if not fits_link(shorter):
                    return False
                target = Emulation(connection, model)
                duel = Duel(binding, Emulation(connection, profile), target)
                found = _carried_out(shorter, duel)
                return found is not None and signature(found) == wanted

            shorter = self._shorter(partial(minimise, is_over=self._is_late), case, on_model)
            found = self.replay(shorter, profile)
            if found is not None and signature(found) == wanted:
                return shorter
            if self.is_interrupted:
                return case

        def on_device(shorter: Case) -> bool:
            return self._shows(shorter, profile, wanted, told)

        return self._shorter(self._end_first, case, on_device)

    def _shows(
        self, case: Case, profile: Profile, wanted: tuple[str, str, str], told: About | None
    ) -> bool:
        if not fits_link(case):
            return False
        try:
            target = self._bench.connect(case.connection)
        except CaseError:
            return False  # the device has no such connection
        reference = Emulation(case.connection, profile, target.numbers)
        duel = self._duel_with(reference, target, is_quick=True)
        found = _carried_out(case, duel)
        if found is None or signature(found) != wanted:
            return False
        return told is None or duel.about == told

    # What is dead.

    def _look(self) -> None:
        """Whether the control connection lives; raises `PeerError` if not."""
        death = self._bench.liveness.look()
        if death.what:
            raise PeerError(death.reason)
        self._history.clear()

    def _lose(self, reason: str) -> Finding | None:
        """The device did not do its part: how far does it go, and what was it?"""
        report, bench = self.report, self._bench
        suspects, self._history = self._suspects(), []
        death = self._death(reason)
        if death.what.is_end and (bench.liveness.restart is None or not suspects):
            bench.lost = death.reason
        if not suspects:
            return None
        case = original = suspects[-1]
        before = _bucket(death, case)
        if before not in self._dissected and self._minimises and not bench.lost:
            self._dissected.add(before)
            autopsy = self._dissect(suspects, death)
            if autopsy.best is None and autopsy.is_done:
                death = replace(death, reason=f"{death.reason}, which was not seen again")
            case, original = autopsy.best or case, autopsy.original or original
        difference = Difference(max(len(case.steps) - 1, 0), "crash", [], [str(death)])
        bucket = _bucket(death, case)
        report.seen[bucket] += 1
        if report.seen[bucket] > 1:
            bench.taken.add(difference, _last_sent(case))
            return None
        bench.death = death
        finding = Finding(
            *(len(report.seen), bucket, case, original, difference),
            *(report.packets, "IBA 9.9; docs/reference/transport.md#error-classes"),
        )
        report.findings.append(finding)
        return finding

    def _suspects(self) -> list[Case]:
        """Cases since the device was seen to live; the last one may not have come to its end."""
        suspects, last = list(self._history), self._under_way()
        if last is not None and (not suspects or suspects[-1].steps != last.steps):
            suspects.append(last)
        return suspects

    def _death(self, reason: str) -> Death:
        """What is dead, if something was wrong for this reason."""
        self._kept = None
        self._bench.disconnect()
        death = self._bench.liveness.examine()
        return death if death.what else Death(Dead.CONNECTION, reason)

    def _dissect(self, suspects: Sequence[Case], death: Death) -> Autopsy:
        autopsy = Autopsy(self._bench, self._connected, death.what, self._is_late)
        try:
            autopsy.dissect(suspects)
        except (Interrupted, KeyboardInterrupt):
            self.is_interrupted = True
        return autopsy

    def judge(self, case: Case) -> tuple[Profile, Difference | None]:
        """As with any target; what a device dies of is a difference, too.

        Raises `LinkError` and `PeerError` for a device that was dead before.
        """
        bench = self._bench
        bench.begin()
        try:
            if any(isinstance(step, Connect) for step in case.steps):
                death = carry_out(bench, self._connected, case)
            else:
                judged = super().judge(case)
                self._look()
                return judged
        except (LinkError, PeerError, Unable, VerbsError) as error:
            death = self._death(str(error))
        if not death.what:
            return self._profile, None
        bench.death = death
        return self._profile, Difference(max(len(case.steps) - 1, 0), "crash", [], [str(death)])

    def _shortest_deadly(self, case: Case) -> Case:
        bench = self._bench
        death = bench.death
        if bench.liveness.has_ended and bench.liveness.restart is None:
            raise PeerError(f"{death}: a case that ends it is made shorter with --restart COMMAND")
        short = self._dissect([case], death).best
        bench.death = death
        return short or case


class Possible:
    """A stepper, but only what a device on a link can be sent.

    spared: number of a queue pair that is not sent to. is_v4: whether that goes over IPv4.
    """

    def __init__(
        self,
        stepper: Stepper,
        largest: int,
        taken: Taken,
        spared: int | None = None,
        *,
        is_v4: bool = True,
    ) -> None:
        self.steps: list[Step] = []
        """All so far."""
        self._stepper = stepper
        self._largest = largest
        self._taken = taken
        self._spared = spared
        self._left_out = ELSEWHERE if is_v4 else (*ELSEWHERE, *_OF_IPV4)

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
        if isinstance(step, Post):
            return has_fitting_timeout(reference.connection) and step.opcode not in UNKNOWN
        if isinstance(step, Wait):
            return reference.qp.sends.timers.next_timeout() is not None
        if isinstance(step, Pause):
            return not self._taken.pauses
        if not isinstance(step, Packet):
            return True
        if self._taken.has(step):
            return False
        if step.length + step.more + HEADERS > self._largest:
            return False
        needed = {value[0] for value in step.fields.values() if isinstance(value, tuple)}
        info = INFO.get(step.opcode)
        if info is not None and IETH in info.headers:
            needed.add("mw.rkey")
        if any(name.startswith(self._left_out) for name in step.fields):
            return False
        aim = step.fields.get("bth.dest_qp")
        if isinstance(aim, tuple):
            aim = reference.symbols.get(aim[0], 0) + aim[1]
        if aim is not None and aim == self._spared:
            return False
        return needed - {"ssn"} <= reference.symbols.keys()  # that one is always found out


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


def _bucket(death: Death, case: Case) -> str:
    last = _last_sent(case)
    if last is None:
        return f"{death.what} after nothing"
    if isinstance(last, Pause):
        return f"{death.what} after PFC"
    opcode = opcode_on_wire(last)
    return f"{death.what} after {opcode_text(opcode) if opcode in INFO else 'a reserved opcode'}"


def _last_sent(case: Case) -> Packet | Pause | None:
    return next((each for each in reversed(case.steps) if isinstance(each, Packet | Pause)), None)


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


UNKNOWN = (WROpcode.FLUSH, WROpcode.ATOMIC_WRITE)
"""What most agents cannot post: their library or their device does not have it."""

ELSEWHERE = ("eth.", "ip.dst")
"""Fields that would lead a frame to somebody else."""

_OF_IPV4 = ("ip.total_length",)
"""Fields that operators change and IPv6 does not have (RFC 8200, 3)."""
