"""How many trials the fingerprint of a target takes."""

from __future__ import annotations

from collections import Counter

import pytest

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, NeverConnects
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.witness import MOST_ENDLESS, fingerprint
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
    assert found.unexplained == unique(trials)
    assert found.profile == SPEC


def test_a_target_that_never_connects_is_given_few_witnesses() -> None:
    trials: list[Case] = []

    def replay(case: Case, profile: Profile) -> Difference:
        trials.append(case)
        raise NeverConnects("the target makes no connection")

    found = fingerprint(CASES, SPEC, CHOICES, replay)

    assert (len(trials), found.unexplained) == (MOST_ENDLESS, [])


def unique(cases: list[Case]) -> list[Case]:
    return [case for number, case in enumerate(cases) if case not in cases[:number]]


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
