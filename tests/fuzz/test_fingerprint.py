"""How many trials the fingerprint of a target takes."""

from __future__ import annotations

from collections import Counter

import pytest

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, NeverConnects
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.witness import MOST_ENDLESS, WITNESS, fingerprint
from ibwire.fuzz.judge.witnesses import WITNESSES
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.rc.profile import PROFILES, SPEC, Profile

CASES = [(each.name, each.case("spec")) for each in WITNESSES]


def test_a_target_that_does_not_come_back_is_given_few_witnesses() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference:
        trials.append(case)
        return Difference(0, Kind.ENDLESS, [], ["does not come back"])

    found = fingerprint(CASES, SPEC, CHOICES, replay)

    assert len(trials) == MOST_ENDLESS
    assert found.unexplained == trials
    assert found.profile == SPEC


def test_a_target_that_never_connects_is_given_few_witnesses() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference:
        trials.append(case)
        raise NeverConnects("the target makes no connection")

    found = fingerprint(CASES, SPEC, CHOICES, replay)

    assert (len(trials), found.unexplained) == (MOST_ENDLESS, [])


def test_a_witness_from_which_a_target_does_not_come_back_keeps_no_other_one_back() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference | None:
        if case is CASES[0][1]:
            trials.append(case)
            return Difference(0, Kind.ENDLESS, [], ["does not come back"])
        return differs(case, profile)

    found = fingerprint(CASES, SPEC, CHOICES, replay)

    without = fingerprint(CASES[1:], SPEC, CHOICES, differs)
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
