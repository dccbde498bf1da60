"""How many trials the fingerprint of a target takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ibwire.base.errors import PeerError
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, NeverConnects
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import parse_exclusion
from ibwire.fuzz.judge.witness import MOST_LOST, WITNESS, Trials, fingerprint
from ibwire.fuzz.judge.witnesses import WITNESSES
from ibwire.fuzz.report import Report, RunState
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.targets.testbed import Crash
from ibwire.rc.profile import PROFILES, SPEC, Profile
from mutants.engine import copied
from mutants.table import Mutant, Patch

CASES = [(each.name, each.case("spec")) for each in WITNESSES]


def test_a_target_that_does_not_come_back_is_given_few_witnesses() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference:
        trials.append(case)
        return Difference(0, Kind.ENDLESS, [], ["does not come back"])

    found = fingerprint(CASES, SPEC, CHOICES, Trials(replay))

    assert len(trials) == MOST_LOST
    assert found.unexplained == trials
    assert found.profile == SPEC


def test_a_target_that_never_connects_is_given_few_witnesses() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference:
        trials.append(case)
        raise NeverConnects("the target makes no connection")

    found = fingerprint(CASES, SPEC, CHOICES, Trials(replay))

    assert (len(trials), found.unexplained) == (MOST_LOST, [])


def test_a_witness_from_which_a_target_does_not_come_back_keeps_no_other_one_back() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference | None:
        if case is CASES[0][1]:
            trials.append(case)
            return Difference(0, Kind.ENDLESS, [], ["does not come back"])
        return differs(case, profile)

    found = fingerprint(CASES, SPEC, CHOICES, Trials(replay))

    without = fingerprint(CASES[1:], SPEC, CHOICES, Trials(differs))
    assert trials == [CASES[0][1]]
    assert len(without.shown) > 30
    assert found.shown == without.shown
    assert found.unexplained == [CASES[0][1], *without.unexplained]


def differs(case: Case, profile: Profile) -> Difference | None:
    """A target with all choices of rxe, each of which shows in its own witnesses only."""
    name = case.origin.removeprefix(WITNESS)
    if getattr(profile, name) == getattr(PROFILES["rxe"], name):
        return None
    return Difference(0, Kind.MEMORY, [], [])


class Counting(EmulatorTestbed):
    """Counts how often each case is carried out against each reference."""

    def __init__(self, profile: str) -> None:
        super().__init__(lambda connection: opened(connection, profile))
        self.trials: Counter[tuple[int, Profile]] = Counter()
        self.kept: list[Case] = []

    def replay(self, case: Case, profile: Profile) -> Difference | None:
        self.kept.append(case)  # so that no other one gets its identity
        self.trials[id(case), profile] += 1
        return super().replay(case, profile)


def opened(connection: Connection, profile: str) -> Emulation:
    return Emulation(connection, PROFILES[profile])


@pytest.mark.slow
def test_each_deviation_of_rxe_costs_few_trials() -> None:
    """To find out which choices a finding needs, groups of them are left out."""
    testbed = Counting("rxe")
    campaign = Campaign(testbed, lambda number: pytest.fail("no case is due"))
    campaign.next_shown()
    first = testbed.trials.copy()

    testbed.trials.clear()
    while campaign.next_shown() is not None:
        pass

    assert max(first.values()) <= 2  # one more for the first finding
    taken = len(campaign.report.taken)
    assert taken > 30
    assert testbed.trials.total() < taken * len(campaign.report.findings) / 2


NEARLY: dict[str, tuple[str, *tuple[Patch, ...]]] = {
    "one READ too many": (
        "rounds_read_depth",
        Patch("rc/requester.py", "sends.reads >= self.qp.attr", "sends.reads > self.qp.attr"),
    ),
    "READs without limit": (
        "rounds_read_depth",
        Patch(
            "rc/requester.py",
            "sends.reads >= self.qp.attr.max_rd_atomic",
            "sends.reads >= max(self.qp.attr.max_rd_atomic, 64)",
        ),
    ),
    "one READ too many taken in": (
        "excess_reads",
        Patch(
            "rc/responder.py",
            "has_slot(self.resources, self.qp.attr.max_dest_rd_atomic)",
            "has_slot(self.resources, self.qp.attr.max_dest_rd_atomic + 1)",
        ),
        Patch(
            "rc/responder.py",
            "max(self.qp.attr.max_dest_rd_atomic, 1)",
            "self.qp.attr.max_dest_rd_atomic + 1",
        ),
    ),
    "twice the RNR wait": (
        "counts_every_rnr_nak",
        Patch("rc/timers.py", "profile.rnr_timer_percent // 100", "200 // 100"),
    ),
    "an RNR wait that begins again, without counting": (
        "counts_every_rnr_nak",
        Patch(
            "rc/send_queue.py",
            "        if not self._habits.takes_rnr_nak(self):\n            return\n",
            "        if self.timers.rnr is not None:\n"
            "            self.timers.rnr = now + rnr_wait(code, self.qp.profile)\n"
            "            return\n",
        ),
    ),
    "no RNR wait below 8 ms": (
        "rnr_granularity",
        Patch(
            "rc/timers.py",
            "profile.rnr_timer_us[code] * US",
            "max(profile.rnr_timer_us[code], 8000) * US",
        ),
    ),
    "ACK timeouts in steps of 8 ms": (
        "timer_granularity",
        Patch(
            "rc/timers.py",
            "max(nominal // profile.timer_granularity, 1) * profile.timer_granularity",
            "nominal // (8000 * US) * 8000 * US or nominal",
        ),
    ),
    "one byte too many in a message": (
        "checks_message_length",
        Patch("rc/sizes.py", "length > MAX_MESSAGE and", "length > MAX_MESSAGE + 1 and"),
    ),
    "an empty SEND_FIRST accepted": (
        "checks_payload_size",
        Patch("rc/sizes.py", "return size == mtu and", "return size in (0, mtu) and"),
    ),
}
"""Faults that in some cases look like a choice, with that."""


@pytest.mark.parametrize("fault", NEARLY)
def test_a_fault_that_is_nearly_a_choice_is_not_that(fault: str) -> None:
    choice, *patches = NEARLY[fault]
    modules = copied(Mutant(fault, tuple(patches)))
    testbed = EmulatorTestbed(modules[Emulation.__module__].Emulation)
    campaign = Campaign(testbed, lambda number: pytest.fail("no case is due"))

    while campaign.next_shown() is not None:
        pass

    assert choice not in campaign.report.taken


CHOOSES = replace(
    SPEC,
    **{
        name: getattr(PROFILES["rxe"], name)
        for name in ("naks_reserved_opcode", "restarts_on_read_gap", "checks_payload_size")
    },
)


class Mortal(EmulatorTestbed):
    """A device with choices of rxe that crashes in witnesses, as a testbed on a link reports it."""

    failures = (PeerError,)

    def __init__(self, *fatal: str, is_there: bool = True) -> None:
        super().__init__(lambda connection: Emulation(connection, CHOOSES))
        self.trials: Counter[str] = Counter()
        self._fatal = fatal
        self._is_there = is_there
        self._reason = ""
        self._last = Case(Connection(), ())

    @property
    def lost(self) -> str:
        return self._reason

    @lost.setter
    def lost(self, reason: str) -> None:
        self._reason = reason

    def begin_case(self, state: RunState) -> None:
        if not self._is_there:
            raise PeerError("no program listens there")

    def replay(self, case: Case, profile: Profile) -> Difference | None:
        name = case.origin.removeprefix(WITNESS)
        self.trials[name] += 1
        if name in self._fatal:
            self._last = case
            raise PeerError("silent")
        return super().replay(case, profile)

    def diagnose(self, state: RunState, reason: str) -> Crash:
        return Crash(f"dead after {self._last.origin}", self._last, self._last, crashed, "rule")


crashed = Difference(0, Kind.CRASH, [], ["silent"])


def findings_of(testbed: Mortal, report: Report | None = None) -> list[str]:
    campaign = Campaign(
        testbed, lambda number: pytest.fail("no case is due"), report=report, minimises=False
    )
    found = []
    while (finding := campaign.next_shown()) is not None:
        found.append(finding.bucket)
    return found


def test_a_witness_in_which_the_device_crashes_is_a_finding_and_the_others_are_carried_out() -> (
    None
):
    first, *others = findings_of(Mortal())
    testbed = Mortal("naks_reserved_opcode")

    found = findings_of(testbed)

    reserved = "a reserved opcode is discarded and not NAKed"
    assert reserved in (first, *others)
    assert found[0] == "dead after witness of naks_reserved_opcode"
    assert {*found[1:]} == {first, *others} - {reserved}
    assert testbed.trials["naks_reserved_opcode"] == 1


def test_a_witness_in_which_the_device_has_crashed_is_left_out_when_the_run_is_resumed() -> None:
    testbed = Mortal("naks_reserved_opcode")
    report = Report(Coverage(testbed.vocabulary.coverage))
    findings_of(testbed, report)
    saved = [parse_exclusion(str(each)) for each in report.left_out]

    resumed = Mortal("naks_reserved_opcode")
    found = findings_of(resumed, Report(report.coverage, left_out=saved))

    assert "naks_reserved_opcode" not in resumed.trials
    assert len(found) > 1


def test_a_device_that_crashes_in_every_witness_is_given_few() -> None:
    testbed = Mortal(*(each.name for each in WITNESSES))

    found = findings_of(testbed)

    assert len(found) == len({*found}) == testbed.trials.total() == MOST_LOST


def test_a_device_that_is_not_there_is_given_no_witness() -> None:
    testbed = Mortal(is_there=False)

    assert findings_of(testbed) == []
    assert testbed.lost == "no program listens there"
    assert not testbed.trials
