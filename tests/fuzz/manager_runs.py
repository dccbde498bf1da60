"""Runs against a connection manager across a link, without a link and without a clock."""

from __future__ import annotations

from typing import Any, cast

from fuzz.across import SERVICE, Across, Alter
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Command, Step
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.report import Report
from ibwire.fuzz.targets.emulated_device import ADDRESS
from ibwire.fuzz.targets.link.manager_link import ManagerLink
from ibwire.fuzz.targets.link.manager_testbed import ManagerTestbed, comparison
from ibwire.fuzz.vocabulary.cm.follower import meet
from ibwire.fuzz.vocabulary.vocabularies import manager_generators
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.profile import SPEC

CALLED = Command("connect")
"""Exchange 0 accepts, 5 leaves at once, 6 waits, 7 refuses."""


def link(across: Across, **options: Any) -> ManagerLink:
    return ManagerLink(cast(Endpoint, across), ADDRESS, SERVICE, **options)


def run(
    across: Across, packets: int, seed: int = 1, report: Report | None = None, **options: Any
) -> Report:
    """A run of so many packets; what came of it."""
    target = link(across, **options)
    campaign = Campaign(
        ManagerTestbed(target), manager_generators(seed, combines=False), report=report
    )
    for _ in campaign.run(campaign.report.packets + packets):
        pass
    return campaign.report


def differences(across: Across, *steps: Step) -> list[Difference | None]:
    """Those of each step, carefully carried out."""
    target = link(across)
    meet(target)
    live = comparison(target, SPEC)
    return [live.step(step) for step in steps]


def without(kind: type) -> Alter:
    """A manager that never says something."""
    return lambda received: [] if isinstance(received.message, kind) else [received]
