"""A connection manager on a link that crashes, or does not stop sending."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from fuzz.across import Across
from fuzz.manager_runs import CALLED, link, run, without
from ibwire.base.errors import PeerError
from ibwire.base.units import MS, S
from ibwire.cm.messages import Received
from ibwire.drill.targets.restart import Restart
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, Mad
from ibwire.fuzz.judge.comparison import Kind
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulated_device import ADDRESS, MAXIMUM_ANSWERS
from ibwire.fuzz.targets.link.manager_testbed import ManagerTestbed, comparison
from ibwire.fuzz.targets.link.target import ManagerLinkTarget
from ibwire.fuzz.vocabulary.cm.follower import meet
from ibwire.fuzz.vocabulary.cm.names import oddity
from ibwire.fuzz.vocabulary.vocabularies import manager_generators
from ibwire.rc.profile import SPEC
from ibwire_layers import cm


def test_crash_of_a_manager_is_a_finding_with_its_cause() -> None:
    report = run(Across(longest=256), 5000)

    (finding,) = report.findings
    last = finding.case.steps[-1]
    assert finding.bucket == "the manager is dead after a datagram longer than a MAD"
    assert isinstance(last, Mad)
    assert oddity(last) == "a datagram longer than a MAD"
    assert report.packets < 1000


def test_case_of_a_dead_device_is_described_as_if_it_had_asked() -> None:
    across = Across(obeys=True)
    meet(target := link(across))
    target.dead = "gone"
    before = len(across.sent)
    case = Case(Connection(), (CALLED, Mad(message="REP"), Mad(message="DREQ")))

    recording = record(case, ManagerLinkTarget(target))

    assert [entry.text.split()[0] for entry in recording.entries] == ["REP", "DREQ"]
    assert (recording.got, len(across.sent)) == (["gone"], before)


@pytest.mark.slow
def test_manager_that_stops_asking_is_a_finding() -> None:
    said: list[Received] = []

    def tires(received: Received) -> list[Received]:
        said.append(received)
        return [] if len(said) > 500 and isinstance(received.message, cm.REQ) else [received]

    campaign = Campaign(
        ManagerTestbed(link(Across(tires, obeys=True))), manager_generators(1, combines=False)
    )
    found = list(campaign.run(2000))

    assert campaign.lost == f"{ADDRESS} does not ask for connections any more"
    assert [each.bucket for each in found] == ["the manager is dead after connect"]


class Restarted:
    """Brings the device back, perhaps with another address. interrupts: as of `Across`."""

    def __init__(self, across: Across, *, interrupts: bool = False) -> None:
        self.count = 0
        self._across = across
        self._interrupts = interrupts

    def run(self) -> None:
        self.count += 1
        self._across.revive()
        self._across.interrupts = self._interrupts


NEW_MAC = bytes.fromhex("0200 0000 00ee")


@pytest.fixture
def new_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """ARP gives another address for the device."""
    monkeypatch.setattr("ibwire.fuzz.targets.link.host.Host.mac", lambda host: NEW_MAC)


@pytest.mark.parametrize("forgets", [False, True], ids=["manager", "listener"])
@pytest.mark.usefixtures("new_mac")
def test_what_a_device_that_comes_back_has_died_of_is_made_shorter(forgets: bool) -> None:
    """Also if it is the listener alone; and the device may have another address then."""
    across = Across(longest=256, forgets=forgets)
    restart = Restarted(across)
    target = link(across, restart=cast(Restart, restart))
    campaign = Campaign(ManagerTestbed(target), manager_generators(1, combines=False))
    steps = (Mad(), Mad(message="RTU"), Mad(message="DREQ", more=8))

    _, difference = campaign.judge.judged_alone(case := Case(Connection(), steps))
    assert difference is not None
    short = campaign.judge.shortest(case, difference, SPEC)

    assert (short.steps, target.lost, restart.count) == (steps[-1:], "", 2)
    assert across.sent[-1][:6] == NEW_MAC


@pytest.mark.usefixtures("new_mac")
def test_a_death_is_kept_when_the_user_interrupts_while_it_is_made_shorter() -> None:
    across = Across(longest=256)
    restart = cast(Restart, Restarted(across, interrupts=True))
    campaign = Campaign(
        ManagerTestbed(link(across, restart=restart)), manager_generators(1, combines=False)
    )

    with pytest.raises(KeyboardInterrupt):
        list(campaign.run(2000))

    (finding,) = campaign.report.findings
    assert finding.case == finding.original
    assert campaign.is_interrupted


@pytest.mark.usefixtures("new_mac")
def test_a_dead_listener_is_seen_when_a_case_is_judged_by_itself() -> None:
    across = Across(longest=256, forgets=True)
    campaign = Campaign(ManagerTestbed(link(across)), manager_generators(1, combines=False))
    case = Case(Connection(), (Mad(message="DREQ", more=8),))

    _, difference = campaign.judge.judged_alone(case)

    assert difference is not None
    assert difference.kind == Kind.CRASH
    assert difference.got == ["a right request is answered by REJ 8, and was by REP"]
    with pytest.raises(PeerError, match="made shorter with --restart COMMAND"):
        campaign.judge.shortest(case, difference, SPEC)


def test_manager_that_does_not_stop_sending_after_a_case_is_reported_as_such() -> None:
    across = Across()
    meet(target := link(across))
    live = comparison(target, SPEC, is_quick=True)
    assert [live.step(Mad()), live.step(Mad(message="RTU"))] == [None, None]

    target.tap.received.extend(across.said[-1:] * (MAXIMUM_ANSWERS + 1))
    difference = live.end()

    assert difference is not None
    assert difference.kind == Kind.ENDLESS


class Insistent(Across):
    """Retransmits its last message every 50 ms, from some time on."""

    insists = False

    def run(self, *, stop: Callable[[], bool] = bool, seconds: float = 0) -> None:
        super().run(stop=stop, seconds=min(seconds, 0.05))
        if self.insists and not stop():
            self.live.node.receive(self.said[-1], self.live.now)
        assert self.live.now < 100 * S


def test_a_manager_that_repeats_itself_is_not_waited_for_without_end() -> None:
    across = Insistent()
    meet(target := link(across, tolerance=20 * MS))
    live = comparison(target, SPEC)
    assert [live.step(Mad()), live.step(Mad(message="RTU"))] == [None, None]
    across.alter = without(cm.DREP)
    across.insists, begin = True, across.live.now

    difference = live.step(Mad(message="DREQ"))

    assert difference is not None
    assert (difference.kind, len(difference.expected), difference.got) == ("answer", 1, [])
    assert across.live.now - begin < 10 * S  # some of it to check whether it is alive


@pytest.mark.slow
def test_manager_that_never_stops_sending_is_dead() -> None:
    said: list[Received] = []

    def flood(received: Received) -> list[Received]:
        said.append(received)
        return [received] * (MAXIMUM_ANSWERS + 1 if len(said) > 6 else 1)

    campaign = Campaign(
        ManagerTestbed(link(Across(flood))), manager_generators(1, combines=False), minimises=False
    )
    list(campaign.run(500))

    assert "packets without a pause" in campaign.lost


@pytest.mark.slow
def test_it_does_not_die_of_the_same_again() -> None:
    report = run(Across(longest=256), 5000)
    packets = report.packets

    run(Across(longest=256), 1000, report=report)

    assert report.packets == packets + 1000
    assert list(map(str, report.left_out)) == ["packet 100 a datagram longer than a MAD"]
