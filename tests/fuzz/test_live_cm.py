"""A run against a connection manager that is elsewhere, without a link and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ibwire.cm import ManagedDevice, reply
from ibwire.cm.messages import Received, decode, encode
from ibwire.cm.states import EventKind, State
from ibwire.errors import PeerError, VerbsError
from ibwire.fuzz.campaign import Report
from ibwire.fuzz.case import Case, CaseError, Connection, Mad, Step
from ibwire.fuzz.cm.campaign import manager_generators
from ibwire.fuzz.duel import Difference
from ibwire.fuzz.emulation import ADDRESS, MAXIMUM_ANSWERS, PEER_ADDRESS
from ibwire.fuzz.live.restart import Restart
from ibwire.fuzz.live_cm import listener
from ibwire.fuzz.live_cm.bench import ManagerBench
from ibwire.fuzz.live_cm.campaign import LiveManagerCampaign, duel
from ibwire.fuzz.live_cm.names import oddity
from ibwire.fuzz.live_cm.reference import meet
from ibwire.fuzz.live_cm.target import manager_target
from ibwire.fuzz.recording import record
from ibwire.node import OPEN, Frame, Grant
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.rc.device import Device, gid_of, mac_of
from ibwire.rc.path import Path, ethernet_route
from ibwire.rc.profile import SPEC
from ibwire.units import S, Time
from ibwire_layers import cm

SERVICE = 7174

MAD = 62
"""Where a MAD begins in a frame: behind Ethernet, IPv4, UDP, BTH and DETH."""

Alter = Callable[[Received], Sequence[Received]]
"""What becomes of a message of the device on its way."""


class Nobody:
    """A node that neither hears nor says anything."""

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Let it go."""

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        return None

    def poll_timeout(self) -> Time | None:
        return None

    def handle_timeout(self, now: Time) -> None:
        """Nothing is due."""


class Across:
    """An endpoint, and across its link a device whose application accepts whoever asks.

    longest: bytes of a MAD that its QP1 survives, or its application alone if it `forgets`.
    obeys: whether the application does what requests wish for. tagged: whether its frames
    have a priority tag.
    """

    def __init__(
        self,
        alter: Alter | None = None,
        *,
        longest: int = 10_000,
        obeys: bool = False,
        tagged: bool = False,
        forgets: bool = False,
    ) -> None:
        self.port = SimpleNamespace(name="here", mtu=9000)
        self.device = Device("here", PEER_ADDRESS)
        self.random = Random(1)
        self.live = SimpleNamespace(now=0, node=Nobody())
        self.sent: list[Frame] = []
        self.sent_at: list[Time] = []
        self.said: list[Frame] = []
        self.interrupts = False
        """Whether the user presses Ctrl-C the next time that something is waited for."""
        self.is_dead = False
        self.alter = alter
        self._longest = longest
        self._obeys = obeys
        self._tagged = tagged
        self._forgets = forgets
        self._accepted = 0
        self._far = ManagedDevice(Device("there", ADDRESS), Random(2))
        self._listen()
        self._path = Path(
            ethernet_route(
                source=gid_of(ADDRESS),
                destination=gid_of(PEER_ADDRESS),
                source_mac=mac_of(gid_of(ADDRESS)),
                destination_mac=mac_of(gid_of(PEER_ADDRESS)),
                source_port=0xC123,
            )
        )

    def _listen(self) -> None:
        service = cm.rdma_cm_service_id(cm.PortSpace.TCP, SERVICE)
        self._listener = self._far.manager.listen(service, 1 << 12)

    @property
    def established(self) -> int:
        """Connections that it believes in."""
        states = [each.state for each in self._far.manager.connections]
        return states.count(State.ESTABLISHED)

    def revive(self) -> None:
        """Start it again."""
        if self.is_dead and self._forgets:
            self._listen()
        self.is_dead = False

    def gid_towards(self, gid: int) -> int:
        self.device.neighbours[gid] = mac_of(gid)
        return 0

    def run(self, *, stop: Callable[[], bool] = bool, seconds: float = 0) -> None:
        live, far = self.live, self._far
        if self.interrupts:
            self.interrupts = False
            raise Interrupted(2)
        while (frame := live.node.poll_transmit(live.now)) is not None:
            self.sent.append(frame)
            self.sent_at.append(live.now)
            was_dead = self.is_dead
            self.is_dead |= len(frame) - MAD - 4 > self._longest
            if self._forgets and self.is_dead and not was_dead:
                far.manager.unlisten(self._listener)
            if self._forgets or not self.is_dead:
                far.receive(frame, live.now)
            self._answer()
        if stop():
            return
        live.now += round(seconds * S)
        far.handle_timeout(live.now)
        self._answer()

    def _answer(self) -> None:
        far, now = self._far, self.live.now
        while (event := far.manager.poll_event()) is not None:
            asked = event.connection.request
            is_wish = self._obeys and isinstance(asked, cm.REQ)
            wish = asked.private_data[36] % 4 if is_wish else listener.ACCEPT
            if event.kind is EventKind.CONNECT_REQUEST and wish == listener.REFUSE:
                far.manager.reject(event.connection, now)
            elif event.kind is EventKind.ESTABLISHED and wish == listener.LEAVE:
                far.manager.disconnect(event.connection, now)
            elif event.kind is EventKind.CONNECT_REQUEST and wish != listener.WAIT:
                self._accepted += 1
                answer = reply(qpn=0x500 + self._accepted, starting_psn=7 * self._accepted)
                with suppress(VerbsError):  # the peer has given up already
                    far.manager.accept(event.connection, answer, now)
            elif event.kind is EventKind.RESOLVE_REQUEST:
                far.manager.reject(event.connection, now)
        while (frame := far.poll_transmit(now)) is not None:
            for altered in self._altered(frame):
                self.said.append(altered)
                tag = bytes.fromhex("8100e000") if self._tagged else b""
                self.live.node.receive(altered[:12] + tag + altered[12:], now)

    def _altered(self, frame: Frame) -> list[Frame]:
        received = decode(frame[MAD:-4])
        if self.alter is None or received is None:
            return [frame]
        return [
            self._path.frame(frame[42:MAD] + encode(each.message, each.transaction_id))
            for each in self.alter(received)
        ]


def bench(across: Across, **options: Any) -> ManagerBench:
    return ManagerBench(cast(Endpoint, across), ADDRESS, SERVICE, **options)


def run(across: Across, packets: int, seed: int = 1, report: Report | None = None) -> Report:
    """A run of so many packets; what came of it."""
    campaign = LiveManagerCampaign(bench(across), manager_generators(seed), report=report)
    for _ in campaign.run(campaign.report.packets + packets):
        pass
    return campaign.report


def differences(across: Across, *steps: Step) -> list[Difference | None]:
    """Those of each step, carefully carried out."""
    target = bench(across)
    meet(target)
    live = duel(target, SPEC)
    return [live.step(step) for step in steps]


# What is right.


@pytest.mark.parametrize("seed", [1, 2])
def test_a_right_manager_with_other_numbers_raises_no_alarm(seed: int) -> None:
    across = Across()

    report = run(across, 1000, seed)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})
    assert report.packets == 1000
    tried, _, answers = report.coverage.tried()
    assert tried > 40
    assert answers > 50


def test_a_right_manager_whose_application_obeys_raises_no_alarm_either() -> None:
    """And gets into states in which it has asked, or not yet decided."""
    report = run(Across(obeys=True), 1500)

    states = {state for state, _, _ in report.coverage.counts}
    assert (dict(report.seen), dict(report.unstable)) == ({}, {})
    assert states >= {
        "REQ_RCVD",
        "MRA_REQ_SENT",
        "REP_SENT",
        "ESTABLISHED",
        "DREQ_SENT",
        "ANSWERED",
    }


def test_frames_go_to_the_peer_in_our_own_name_alone() -> None:
    across = Across()

    run(across, 800)

    ends = {(frame[:12], frame[26:34]) for frame in across.sent}
    macs = mac_of(gid_of(ADDRESS)) + mac_of(gid_of(PEER_ADDRESS))
    assert ends == {(macs, bytes([10, 0, 0, 1, 10, 0, 0, 2]))}


def test_frames_have_the_rate_between_them_whatever_is_said_meanwhile() -> None:
    across = Across()
    meet(target := bench(across, rate=10))
    live = duel(target, SPEC)
    for step in (Mad(), Mad(message="RTU"), Mad(message="DREQ"), Mad(message="DREQ")):
        assert live.step(step) is None

    gaps = [after - before for before, after in pairwise(across.sent_at)]
    assert len(gaps) > 6
    assert min(gaps) >= S // 10 - S // 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eth.dst", 0x010000C28001),
        ("eth.src", 0x020000000001),
        ("ip.dst", 0x08080808),
    ],
)
def test_a_case_that_would_go_to_somebody_else_is_not_sent(field: str, value: int) -> None:
    across = Across()
    meet(target := bench(across))
    before = len(across.sent)

    with pytest.raises(CaseError, match="only the peer is sent to"):
        duel(target, SPEC).step(Mad(fields={field: value}))
    assert len(across.sent) == before


def test_frames_with_a_priority_tag_are_heard() -> None:
    report = run(Across(tagged=True), 300)

    assert report.packets == 300
    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


def test_a_case_that_was_recorded_leaves_no_connection_behind() -> None:
    across = Across()
    case = Case(Connection(), (Mad(), Mad(message="RTU")))
    with bench(across) as target:
        tested = manager_target(target)
        tested.campaign("cm", manager_generators(1)).judge(case)
        record(case, tested)
        assert across.established == 1

    assert across.established == 0


def also_again(received: Received) -> list[Received]:
    return [received, received]


def after_an_mra(received: Received) -> list[Received]:
    said = received.message
    if not isinstance(said, cm.REP):
        return [received]
    mra = cm.MRA(local_comm_id=said.local_comm_id, remote_comm_id=said.remote_comm_id)
    return [replace(received, message=mra), received]


def with_other_choices(received: Received) -> list[Received]:
    said = received.message
    if isinstance(said, cm.REP):
        said = replace(
            said, responder_resources=9, initiator_depth=0, target_ack_delay=3, local_qkey=5
        )
    if hasattr(said, "private_data"):
        said = replace(said, private_data=b"mine".ljust(len(said.private_data), b"\0"))
    return [replace(received, message=said)]


def without_doubts(received: Received) -> list[Received]:
    """As Linux, which does not tell who believes in a connection that there is not."""
    said = received.message
    is_doubt = isinstance(said, cm.REJ) and said.reason == cm.RejectReason.INVALID_COMM_ID
    return [] if is_doubt else [received]


@pytest.mark.parametrize(
    "alter",
    [also_again, after_an_mra, with_other_choices, without_doubts],
    ids=lambda f: f.__name__,
)
def test_what_is_left_to_a_device_is_no_difference(alter: Alter) -> None:
    report = run(Across(alter), 800)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


def test_who_has_spoken_before_may_still_be_answered() -> None:
    """The REP of the greeting comes again with everything that is said later."""
    first: list[Received] = []

    def with_first(received: Received) -> list[Received]:
        if not first:
            first.append(received)
        return [first[0], received]

    report = run(Across(with_first), 800)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


@pytest.mark.parametrize(
    "step",
    [
        Mad(message="RTU", fields={"rtu.local_comm_id": ("id", 0)}),
        Mad(message="DREQ", fields={"dreq.remote_comm_id": ("id", 1)}),
        Mad(message="DREQ", fields={"dreq.remote_qpn": ("qpn", 1)}),
        Mad(message="DREQ"),
        Mad(message="SIDR_REQ", exchange=1, fields={"sidr_req.request_id": ("other.id", 0)}),
    ],
    ids=str,
)
def test_a_device_is_called_by_its_own_numbers_and_answers_with_them(step: Mad) -> None:
    assert differences(Across(), Mad(), Mad(message="RTU"), step) == [None, None, None]


@pytest.mark.parametrize("mtu", [1, 9])
def test_a_device_may_be_silent_about_a_partition_that_it_is_not_in(mtu: int) -> None:
    """And then nothing is known of the connection."""
    strange = Mad(fields={"req.pkey": 0x1234, "req.path_packet_payload_mtu": mtu})
    across = Across()
    target = bench(across)
    meet(target)
    across.alter = lambda received: []
    live = duel(target, SPEC)

    assert [live.step(strange), live.is_over] == [None, True]
    assert duel(target, SPEC).step(Mad()) is not None


# What is wrong.


def changed(kind: type, **changes: Any) -> Alter:
    """A manager whose messages of a kind have other fields."""

    def alter(received: Received) -> list[Received]:
        said = received.message
        if not isinstance(said, kind):
            return [received]
        fields = {name: value(said) for name, value in changes.items() if name != "transaction"}
        number = received.transaction_id ^ ("transaction" in changes)
        return [Received(number, replace(said, **fields))]

    return alter


FAULTS = {
    "cm.drep.remote_comm_id": changed(cm.DREP, remote_comm_id=lambda said: said.remote_comm_id ^ 1),
    "cm.drep.local_comm_id": changed(cm.DREP, local_comm_id=lambda said: 0),
    "cm.rej.remote_comm_id": changed(cm.REJ, remote_comm_id=lambda said: 0),
    "cm.rej.message_rejected": changed(cm.REJ, message_rejected=lambda said: 3),
    "cm.rej.reason": changed(cm.REJ, reason=lambda said: cm.RejectReason.INVALID_COMM_INSTANCE),
    "cm.rej.reason of": changed(
        cm.REJ, reason=lambda said: 28 if said.reason == 8 else said.reason
    ),
    "cm.sidr_rep.service_id": changed(cm.SIDR_REP, service_id=lambda said: said.service_id + 1),
    "mad.transaction_id": changed(cm.DREP, transaction=True),
    "instead of DREP": lambda received: [] if isinstance(received.message, cm.DREP) else [received],
}
"""Managers with a fault, by what the name of a finding says."""


@pytest.mark.parametrize("text", FAULTS)
def test_what_the_specification_fixes_is_found(text: str) -> None:
    campaign = LiveManagerCampaign(bench(Across(FAULTS[text])), manager_generators(3))

    found = next((each for each in campaign.run(2000) if text in each.bucket), None)

    assert found is not None
    assert len(found.case.steps) <= 3
    assert campaign.lost == ""


# What is dead.


def test_a_manager_that_dies_is_a_finding_that_names_what_it_died_of() -> None:
    report = run(Across(longest=256), 5000)

    (finding,) = report.findings
    last = finding.case.steps[-1]
    assert finding.bucket == "the manager is dead after a datagram longer than a MAD"
    assert isinstance(last, Mad)
    assert oddity(last) == "a datagram longer than a MAD"
    assert report.packets < 1000


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
    """Whoever asks for the address of the device gets to know another one."""
    monkeypatch.setattr("ibwire.fuzz.live_cm.bench.mac_of_host", lambda *arguments: NEW_MAC)


@pytest.mark.parametrize("forgets", [False, True], ids=["manager", "listener"])
@pytest.mark.usefixtures("new_mac")
def test_what_a_device_that_comes_back_has_died_of_is_made_shorter(forgets: bool) -> None:
    """Also if it is the listener alone; and the device may have another address then."""
    across = Across(longest=256, forgets=forgets)
    restart = Restarted(across)
    target = bench(across, restart=cast(Restart, restart))
    campaign = LiveManagerCampaign(target, manager_generators(1))
    steps = (Mad(), Mad(message="RTU"), Mad(message="DREQ", more=8))

    _, difference = campaign.judge(case := Case(Connection(), steps))
    assert difference is not None
    short = campaign.shortest(case, difference, SPEC)

    assert (short.steps, target.lost, restart.count) == (steps[-1:], "", 2)
    assert across.sent[-1][:6] == NEW_MAC


@pytest.mark.usefixtures("new_mac")
def test_a_death_is_kept_when_the_user_interrupts_while_it_is_made_shorter() -> None:
    across = Across(longest=256)
    restart = cast(Restart, Restarted(across, interrupts=True))
    campaign = LiveManagerCampaign(bench(across, restart=restart), manager_generators(1))

    with pytest.raises(KeyboardInterrupt):
        list(campaign.run(2000))

    (finding,) = campaign.report.findings
    assert finding.case == finding.original
    assert campaign.is_interrupted


@pytest.mark.usefixtures("new_mac")
def test_a_dead_listener_is_seen_when_a_case_is_judged_by_itself() -> None:
    across = Across(longest=256, forgets=True)
    campaign = LiveManagerCampaign(bench(across), manager_generators(1))
    case = Case(Connection(), (Mad(message="DREQ", more=8),))

    _, difference = campaign.judge(case)

    assert difference is not None
    assert difference.kind == "crash"
    assert difference.got == ["a right request is answered by REJ 8, and was by REP"]
    with pytest.raises(PeerError, match="made shorter with --restart COMMAND"):
        campaign.shortest(case, difference, SPEC)


def test_a_manager_that_does_not_stop_talking_after_a_case_is_told_as_that() -> None:
    across = Across()
    meet(target := bench(across))
    live = duel(target, SPEC, is_quick=True)
    assert [live.step(Mad()), live.step(Mad(message="RTU"))] == [None, None]

    target.ears.heard.extend(across.said[-1:] * (MAXIMUM_ANSWERS + 1))
    difference = live.end()

    assert difference is not None
    assert difference.kind == "endless"


def test_a_manager_that_does_not_stop_talking_from_a_greeting_on_is_dead() -> None:
    said: list[Received] = []

    def flood(received: Received) -> list[Received]:
        said.append(received)
        return [received] * (MAXIMUM_ANSWERS + 1 if len(said) > 6 else 1)

    campaign = LiveManagerCampaign(bench(Across(flood)), manager_generators(1))
    list(campaign.run(500))

    assert "packets without a pause" in campaign.lost


def test_it_does_not_die_of_the_same_again() -> None:
    report = run(Across(longest=256), 5000)
    packets = report.packets

    run(Across(longest=256), 1000, report=report)

    assert report.packets == packets + 1000
    assert report.left_out == ["packet 100 a datagram longer than a MAD"]
