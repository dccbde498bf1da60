"""Targets of the fuzzer by name: the emulator with a profile, or a device made in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import ibwire.drill  # noqa: F401 - found by name below
from ibwire.base.errors import ScriptError
from ibwire.base.units import Time
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    NeverConnects,
    Packet,
    Role,
    RunsAway,
)
from ibwire.fuzz.condense import joined, last_part
from ibwire.fuzz.judge.comparison import FATAL, Device, Difference, ExactComparison, Kind
from ibwire.fuzz.judge.findings import (
    Finding,
    agreeing_but,
    bucket_of,
    kind_of,
    one_line,
    signature,
)
from ibwire.fuzz.judge.naming import Name, name_of
from ibwire.fuzz.judge.profiles import unchecked_by
from ibwire.fuzz.judge.replays import Replays
from ibwire.fuzz.judge.scene import bring_to
from ibwire.fuzz.judge.variants import NEW_REFERENCE
from ibwire.fuzz.judge.witnesses import WITNESSES
from ibwire.fuzz.minimise import Shows, condense, minimise
from ibwire.fuzz.report import HISTORY, Postponed, Report, RunState
from ibwire.fuzz.targets.ack_timer import LENGTH_GROUP, LENGTH_RULE, AckTimer
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation, management_of
from ibwire.fuzz.targets.longer_wait import comes_later, in_longer_wait
from ibwire.fuzz.targets.testbed import Confirmed, Testbed
from ibwire.fuzz.vocabulary.binding import emulated_binding
from ibwire.fuzz.vocabulary.cm.held import of_held_message
from ibwire.fuzz.vocabulary.cm.names import ends_wait, late_end_name, manager_name
from ibwire.fuzz.vocabulary.cm.timing import parts_of_exchanges, retransmission_of
from ibwire.fuzz.vocabulary.vocabularies import (
    CONNECTION_MANAGER,
    QUEUE_PAIR,
    Vocabulary,
    role_of,
    vocabulary_for,
)
from ibwire.fuzz.watchdog import be_patient, supervised
from ibwire.rc.profile import PROFILES, Profile

DEFAULT = "emu"

EXAMINED = 3
"""Differences of a bucket that are examined; all later ones are taken for the same."""

HURRIED_TRIALS = 150
"""Cases carried out for one finding while other differences wait."""

HURRIED_TRIALS_ON_NEW = 50
"""Such cases on new devices."""

DOUBTS = 3
"""Cases with a difference that used devices must show twice before a search relies on these."""

TWO_DEVICES = 2 * NEW_REFERENCE
"""Steps that are carried out in the time in which two new devices are made."""

RECONNECTION = 8
"""Steps that are carried out in the time in which two devices make another connection."""

Open = Callable[[Connection], Device]
"""Makes the device for a connection."""


class EmulatorTestbed(Testbed):
    """Cases one after the other on the same two emulated devices.

    Each case has its own connection, so that a leak from one to the next is noticed. A
    difference is reproduced on fresh devices, first with its case alone.
    """

    is_deterministic = True

    def __init__(self, open_device: Open, vocabulary: Vocabulary = QUEUE_PAIR) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.witnesses = [
            each for each in WITNESSES if vocabulary_for(role_of(each.case("spec"))) is vocabulary
        ]
        self._open = open_device
        self._comparison: ExactComparison | None = None
        self._replays = Replays(self.comparison)
        self._ack_timer = AckTimer(self.comparison, open_device)
        self._named: tuple[Case, Difference, Profile, Name] | None = None
        """The last name, and what has it."""
        self._examined: Postponed | None = None
        """The difference that is examined, if any is."""

    @property
    def is_fresh(self) -> bool:
        """Whether the next case is carried out on new devices."""
        comparison = self._comparison
        return comparison is None or comparison.is_over or len(self.history) >= HISTORY

    def reset(self) -> None:
        """Carry the next case out on new devices."""
        self.history.clear()
        self._comparison = None

    def connect(self, connection: Connection, profile: Profile) -> ExactComparison:
        """The same pair of devices with a new connection, or a new pair."""
        if self._comparison is not None and not self.is_fresh:
            self._comparison.steps = 0
            if self._comparison.step(Connect(connection)) is None:
                return self._comparison
        self.history.clear()
        self._comparison = self.comparison(connection, profile)
        return self._comparison

    def comparison(
        self, connection: Connection, profile: Profile, device: Device | None = None
    ) -> ExactComparison:
        """A new pair of devices with this connection. device: in place of a new one under test."""
        reference = self.vocabulary.reference(connection, profile)
        binding = emulated_binding(connection.version)
        compared = self.vocabulary.comparison
        comparison = compared(binding, reference, device or self._open(connection))
        comparison.unchecked = unchecked_by(profile)
        if device is None:
            comparison.agrees = agreeing_but(comparison.unchecked)
        return comparison

    def confirm(
        self, state: RunState, case: Case, difference: Difference, before: str
    ) -> Confirmed | None:
        """See whether a difference comes again on new devices, alone or after the history."""
        report = state.report
        bucket = bucket_of(difference, case.steps[-1], before)
        history = list(self.history)
        self.reset()
        is_short = self.explains_too_much(report)
        is_hurried = is_short or bool(report.postponed)  # one of those may be worth more
        is_known = bucket in report.led_to
        if report.examined[bucket] >= EXAMINED or (is_known and is_hurried):
            if is_known:
                report.seen[report.led_to[bucket]] += 1
            return None
        kind = kind_of(difference, case.steps[-1])
        last = case.steps[-1]
        fault = last.why if isinstance(last, Packet) else ""
        seen = Postponed(joined(history, case), bucket, kind, fault, report.packets)
        if is_hurried:
            report.postpone(seen)
            return None
        return self._confirmed(state, case, seen)

    def confirm_postponed(self, state: RunState, postponed: Postponed) -> Confirmed | None:
        """See whether a difference comes again, unless its case has the name of a finding."""
        report, bucket = state.report, postponed.bucket
        alone = last_part(postponed.case)
        again = self.replay(alone, state.profile)
        if again is not None and report.groups:
            finding = self.finding_of(state, alone, again, needs_connection=False)
            if finding:
                self._examined = postponed
                report.led_to[bucket] = finding
                report.seen[finding] += 1
                return None
        confirmed = self._confirmed(state, alone, postponed)
        return None if confirmed is None else replace(confirmed, is_postponed=True)

    def _confirmed(self, state: RunState, case: Case, seen: Postponed) -> Confirmed | None:
        """See whether a difference comes again on new devices, alone or after the history."""
        report, bucket = state.report, seen.bucket
        self._examined = seen
        report.examined[bucket] += 1
        again = self.replay(case, state.profile)
        if again is not None:
            return Confirmed(case, bucket, original=case, difference=again)
        original = seen.case
        again = self.replay(original, state.profile)
        if again is None:
            report.count_unstable(bucket)
            return None
        shows = self._showing(again, state.profile)
        return Confirmed(state.search.shorter(condense, original, shows), bucket, original)

    def end_case(self, state: RunState, found: Finding | None, *, is_last: bool) -> None:
        """Note whether what was examined was a new finding."""
        report = state.report
        if is_last and report.postponed:
            self.reset()  # they are examined between two histories
        if self._examined is None:
            return
        examined, self._examined = self._examined, None
        bucket = examined.bucket
        report.note_examined(examined, is_new=found is not None)
        if bucket in report.led_to:
            report.seen[report.led_to[bucket]] += report.unexamined.pop(bucket, 0)
            report.postponed.pop(bucket, None)

    def replay(self, case: Case, profile: Profile) -> Difference | None:
        """Carry a case out on new devices."""
        before = self._replays.devices
        try:
            return self._replays.carry_out(case, profile)
        finally:
            devices = self._replays.devices - before
            self.explained += devices * (TWO_DEVICES + len(case.steps)) // 2

    def is_endless(self, case: Case, profile: Profile) -> bool:
        """Whether new devices do not come back from a case either, twice."""
        for _ in range(2):
            be_patient()
            found = self.comparison(case.connection, profile).carry_out(case)
            if found is None or found.kind is not Kind.ENDLESS:
                return False
        return True

    def name_of(self, state: RunState, case: Case, left: Difference, bucket: str) -> Name:
        """The name of a difference in a minimised case."""
        if self._named is None or self._named[:3] != (case, left, state.profile):
            self._named = case, left, state.profile, self._new_name(state, case, left)
        return self._named[3]

    def _new_name(self, state: RunState, case: Case, left: Difference) -> Name:
        self.explained += 2 * (NEW_REFERENCE + len(case.steps))
        if self.vocabulary is CONNECTION_MANAGER:
            return self._managers_name(state, case.with_steps(case.steps[: left.step + 1]), left)
        name = name_of(case, left, state.profile, lambda other: self.replay(other, state.profile))
        self.explained += name.cost
        devices = self._ack_timer.devices
        is_of_timer = self._ack_timer.explains(case, left, state.profile)
        devices = self._ack_timer.devices - devices
        self.explained += devices * (TWO_DEVICES + len(case.steps)) // 2
        return replace(name, rule=LENGTH_RULE, group=LENGTH_GROUP) if is_of_timer else name

    def _managers_name(self, state: RunState, case: Case, left: Difference) -> Name:
        """The name of a difference of a connection manager in the last step of a case."""
        case, left = of_held_message(case, left)
        reference = self.vocabulary.reference(case.connection, state.profile)
        bring_to(reference, case, left.step)
        manager = management_of(reference).manager
        states: dict[object, str] = {each.local_id: each.state.name for each in manager.connections}
        dues: dict[object, Time] = {
            each.local_id: each.deadline - reference.now
            for each in manager.connections
            if each.deadline is not None
        }
        accepted = [each.local_id for each in manager.connections if not each.is_active]
        if ends_wait(left, states):
            self.explained += TWO_DEVICES
            if comes_later(case, left, self.comparison(case.connection, state.profile)):
                return late_end_name(left, states, accepted)
        found = in_longer_wait(case, left, lambda other: self.replay(other, state.profile))
        shown, difference = found or (case, left)
        return manager_name(
            difference,
            shown.steps,
            reference.state,
            states,
            dues,
            accepted=accepted,
            is_longer=found is not None,
        )

    def shorten(
        self, state: RunState, case: Case, difference: Difference, profile: Profile
    ) -> Case:
        """A shorter case that shows the same difference from this reference."""
        shorter = self._shorter(state, case, difference, profile)
        if self.vocabulary is not CONNECTION_MANAGER:
            return shorter
        return self._of_one_exchange(state, shorter, profile)

    def _of_one_exchange(self, state: RunState, case: Case, profile: Profile) -> Case:
        """The part of a case that is about one exchange, if a retransmission of that differs.

        What comes in its place in the whole case depends on the other exchanges.
        """
        found = self.replay(case, profile)
        wanted = found and retransmission_of(found, case.steps[: found.step + 1])
        if not wanted:
            return case
        for part in parts_of_exchanges(case):
            left = self.replay(part, profile)
            also = left and retransmission_of(left, part.steps[: left.step + 1])
            if left and also and wanted.includes(also):
                return self._shorter(state, part, left, profile)
        return case

    def _shorter(
        self, state: RunState, case: Case, difference: Difference, profile: Profile
    ) -> Case:
        search, shows = state.search, self._showing(difference, profile)
        shorten = partial(minimise, is_over=search.is_over, is_enough=search.is_enough)
        is_hurried = self._others_wait(state.report) and not search.is_thorough
        search.was_hurried = is_hurried
        if is_hurried:
            shorten = partial(shorten, trials=HURRIED_TRIALS)
        is_of_one = not any(isinstance(step, Connect) for step in case.steps)
        if is_of_one:
            on_used = _OnUsedDevices(self, difference, profile)
            shorter = search.shorter(shorten, case, on_used)
            if shorter == case or shows(shorter):
                return shorter
            if search.also is None:
                case = _last_shown([case, *on_used.shown], shows)
        # The device keeps something of earlier connections.
        if is_hurried:
            shorten = partial(shorten, trials=HURRIED_TRIALS_ON_NEW)
        return case if search.is_interrupted else search.shorter(shorten, case, shows)

    def _others_wait(self, report: Report) -> bool:
        """Whether differences of other buckets than the one that is examined are postponed."""
        examined = {self._examined.bucket} if self._examined is not None else set()
        return bool(report.postponed.keys() - examined)

    def _showing(self, difference: Difference, profile: Profile) -> Shows:
        """Whether a case shows the same against this reference."""
        wanted = signature(difference)

        def shows(case: Case) -> bool:
            try:
                found = self.replay(case, profile)
            except RunsAway:
                return False  # the reference, with what it has taken over
            return found is not None and signature(found) == wanted

        return shows


def _last_shown(cases: Sequence[Case], shows: Shows) -> Case:
    """By bisection, a late one of these cases that shows it on new devices, as the first does."""
    first, end = 0, len(cases) - 1
    while end - first > 1:
        middle = (first + end) // 2
        if shows(cases[middle]):
            first = middle
        else:
            end = middle
    return cases[first]


class _OnUsedDevices:
    """Whether a case shows the same difference, on devices that have carried out others before.

    New ones take four times as long to make as a short case takes. What comes out is shown on new
    ones again. The first cases with a difference must show it twice: on devices that keep something
    of it, the later ones may show nothing any more. Then new ones are made after each difference.
    """

    def __init__(self, testbed: EmulatorTestbed, difference: Difference, profile: Profile) -> None:
        self._testbed = testbed
        self._wanted = signature(difference)
        self._profile = profile
        self._comparison: ExactComparison | None = None
        self.shown: list[Case] = []
        """Those that have shown it."""
        self._checks_left = DOUBTS
        """Cases with a difference that are still carried out twice."""
        self._keeps = False
        """Whether a device keeps something of a case in which it has differed."""

    def __call__(self, case: Case) -> bool:
        try:
            found = self._carry_out(case)
            if found is None:
                return False
            if self._checks_left and self._comparison is not None:
                self._checks_left -= 1
                again = self._carry_out(case)
                self._keeps |= again is None or signature(again) != signature(found)
        except RunsAway:
            return False  # the reference, with what it has taken over
        if self._keeps:
            self._comparison = None
        if signature(found) != self._wanted:
            return False
        self.shown.append(case)
        return True

    def _carry_out(self, case: Case) -> Difference | None:
        comparison, self._comparison = self._comparison, None
        if comparison is None or not _is_again(comparison, case.connection):
            comparison = self._testbed.comparison(case.connection, self._profile)
            self._testbed.explained += TWO_DEVICES
        self._testbed.explained += RECONNECTION + len(case.steps)
        found = comparison.carry_out(case)
        if not comparison.is_over and (found is None or found.kind not in FATAL):
            self._comparison = comparison
        return found


def _is_again(comparison: ExactComparison, connection: Connection) -> bool:
    """Whether the devices have made another connection, did the same, and have the same keys."""
    reference = comparison.reference
    if connection.version != reference.connection.version:
        return False
    is_same = comparison.step(Connect(connection)) is None
    comparison.steps = 0
    return is_same and getattr(comparison.target, "symbols", reference.symbols) == reference.symbols


@dataclass(frozen=True, slots=True)
class Emulator:
    """An emulated device under test."""

    name: str
    devices: Mapping[str, Open]
    """Makes the device for a connection, by the name of the vocabulary."""
    drill: Callable[[str], bool]
    """Whether it passes a drill script."""
    place: str = field(default="", init=False)
    role: Role = field(default=Role.BOTH, init=False)

    @property
    def options(self) -> str:
        """Options of `ibwire fuzz` that select it."""
        return f"--target {self.name}"

    def testbed(self, role: Role) -> EmulatorTestbed:
        """Where a role of it is attacked."""
        vocabulary = vocabulary_for(role)
        return EmulatorTestbed(self.devices[vocabulary.name], vocabulary)

    def comparison(self, case: Case, profile: Profile) -> ExactComparison:
        """The reference and the device, with the connection of a case."""
        return self.testbed(role_of(case)).comparison(case.connection, profile)

    def fulfils(self, text: str) -> bool:
        """Whether a drill script passes on it."""
        return self.drill(text)


def target(name: str) -> Emulator:
    """The target of a name: `emu`, `emu:PROFILE`, or `py:MODULE:ARGUMENT`.

    For the last one, `open_target(name, ARGUMENT)` of the Python module, which may be in the
    current directory, makes the target.
    Raises `CaseError` for an unknown name.
    """
    kind, _, rest = name.partition(":")
    if kind == "py":
        return _made_in_python(name, rest)
    profile = rest or "spec"
    if kind == "live":
        raise CaseError(f"target {name!r} is on a link: give --dev and --peer")
    if kind != "emu" or profile not in PROFILES:
        profiles = ", ".join(f"emu:{each}" for each in PROFILES)
        raise CaseError(f"target {name!r}, not emu, one of {profiles}, or py:MODULE:ARGUMENT")
    return emulator(name, profile)


def is_python(name: str) -> bool:
    """Whether opening a target imports a module that its name gives."""
    return name.startswith("py:")


def emulator(
    name: str, profile: Profile | str = "spec", modules: Mapping[str, ModuleType] = sys.modules
) -> Emulator:
    """The emulator as a target.

    profile: how it behaves, itself or by name. modules: by name, those of the emulator and of
    drill; a changed copy of them makes a changed device.
    """
    device, managed = modules[Emulation.__module__], modules[managed_emulation.__module__]
    devices: dict[str, Open] = {
        QUEUE_PAIR.name: lambda connection: _opened(device.Emulation, connection, profile),
        CONNECTION_MANAGER.name: lambda connection: _opened(
            managed.managed_emulation, connection, profile
        ),
    }
    return Emulator(name, devices, _fulfils(modules["ibwire.drill"], profile))


def _made_in_python(name: str, place: str) -> Emulator:
    module_name, _, argument = place.partition(":")
    if "" not in sys.path:
        sys.path.append("")  # the current directory, which the command itself does not search
    try:
        make = import_module(module_name).open_target
    except (ImportError, ValueError, AttributeError) as error:
        raise CaseError(f"target {name!r}: {error}") from None
    try:
        made = make(name, argument)
    except OSError as error:
        raise CaseError(f"target {name!r}: {error.filename}: {error.strerror}") from None
    if not isinstance(made, Emulator):
        raise CaseError(f"target {name!r}: {module_name}.open_target returns no Emulator")
    return made


def _opened(device: Callable[..., Any], connection: Connection, profile: Profile | str) -> Any:
    """A device under test, with no step in which it could fail yet; raises `CaseError`."""
    try:
        return supervised(partial(device, connection, profile))
    except Exception as error:  # what is under test may raise anything
        reason = one_line(f"{type(error).__name__}: {error}")
        kind = NeverConnects if isinstance(error, RunsAway) else CaseError
        raise kind(f"the target makes no connection: {reason}") from None


def _fulfils(drill: ModuleType, profile: Profile | str) -> Callable[[str], bool]:
    name = profile if isinstance(profile, str) else profile.name

    def fulfils(text: str) -> bool:
        script = drill.parse(text.encode(), "case.drill", name)
        try:
            return all(
                supervised(partial(drill.run, script, case, profile)).passed
                for case in script.cases
            )
        except ScriptError:
            raise
        except Exception:  # what is under test may raise anything
            return False

    return fulfils
