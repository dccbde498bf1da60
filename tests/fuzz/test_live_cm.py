"""A run against a connection manager that is elsewhere, without a link and without a clock."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from each_case import each_case
from examples import sampled
from fuzz.across import Across, Alter, Late
from fuzz.manager_runs import CALLED, differences, link, run, without
from ibwire.base.compiled import compiled_modules
from ibwire.base.node import Frame
from ibwire.base.units import MS, S, Time
from ibwire.cm.messages import Received, request
from ibwire.cm.states import State
from ibwire.fuzz.artefacts import checked_script
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, Command, Connection, Mad, Role, RunsAway, Step
from ibwire.fuzz.judge.exclusions import Exclusions
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.link import listener
from ibwire.fuzz.targets.link.manager_testbed import ManagerTestbed, PossibleMessages, comparison
from ibwire.fuzz.targets.link.target import ManagerLinkTarget
from ibwire.fuzz.vocabulary.cm.comparison import ManagerComparison
from ibwire.fuzz.vocabulary.cm.follower import meet, wishing
from ibwire.fuzz.vocabulary.vocabularies import manager_generators
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.profile import SPEC
from ibwire_layers import cm

# What is right.


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_right_manager_with_other_numbers_raises_no_alarm(seed: int) -> None:
    across = Across()

    report = run(across, 1000, seed)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})
    assert report.packets == 1000
    tried, _, answers = report.coverage.tried()
    assert tried > 40
    assert answers > 50


@pytest.mark.slow
def test_correct_manager_with_an_obedient_application_has_no_findings() -> None:
    """It reaches states in which it has asked, or has not decided yet."""
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
        "REQ_SENT",
        "MRA_REQ_RCVD",
        "REP_RCVD",
        "MRA_REP_SENT",
        "IDLE",
    }


@pytest.mark.slow
def test_frames_go_to_the_peer_in_our_own_name_alone() -> None:
    across = Across()

    run(across, 800)

    ends = {(frame[:12], frame[26:34]) for frame in across.sent}
    macs = mac_of(gid_of(ADDRESS)) + mac_of(gid_of(PEER_ADDRESS))
    assert ends == {(macs, bytes([10, 0, 0, 1, 10, 0, 0, 2]))}


def test_frames_keep_the_rate_whatever_is_received_meanwhile() -> None:
    across = Across()
    meet(target := link(across, rate=10))
    live = comparison(target, SPEC)
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
def test_case_for_another_destination_is_not_sent(field: str, value: int) -> None:
    across = Across()
    meet(target := link(across))
    before = len(across.sent)

    with pytest.raises(CaseError, match="only the peer is sent to"):
        comparison(target, SPEC).step(Mad(fields={field: value}))
    assert len(across.sent) == before


@pytest.mark.slow
def test_frames_with_a_priority_tag_are_received() -> None:
    report = run(Across(tagged=True), 300)

    assert report.packets == 300
    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


def test_recorded_case_leaves_no_connection_open() -> None:
    across = Across()
    case = Case(Connection(), (Mad(), Mad(message="RTU")))
    with link(across) as target:
        tested = ManagerLinkTarget(target)
        Campaign(tested.testbed(Role.CM), manager_generators(1, combines=False)).judge.judged_alone(
            case
        )
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
    """As Linux, which sends no REJ for an unused communication ID."""
    said = received.message
    is_doubt = isinstance(said, cm.REJ) and said.reason == cm.RejectReason.INVALID_COMM_ID
    return [] if is_doubt else [received]


@pytest.mark.slow
@pytest.mark.parametrize(
    "alter",
    [also_again, after_an_mra, with_other_choices, without_doubts],
    ids=lambda f: f.__name__,
)
def test_choices_of_a_device_are_not_differences(alter: Alter) -> None:
    report = run(Across(alter), 800)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


@pytest.mark.slow
def test_response_to_an_earlier_message_is_accepted() -> None:
    """The REP of the first exchange is retransmitted with every later message."""
    first: list[Received] = []

    def with_first(received: Received) -> list[Received]:
        if not first:
            first.append(received)
        return [first[0], received]

    report = run(Across(with_first), 800)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


# What is late.


def within(time: Time) -> Late:
    return lambda random: random.randrange(time)


def seldom(share: float, time: Time) -> Late:
    return lambda random: time if random.random() < share else MS


@pytest.mark.slow
@pytest.mark.parametrize("postpones", [False, True])
@pytest.mark.parametrize(
    ("travels", "decides"),
    [
        (within(5 * MS), within(100 * MS)),
        (within(18 * MS), within(5 * MS)),
        (seldom(0.01, 300 * MS), within(5 * MS)),
        (within(5 * MS), seldom(0.02, 300 * MS)),
    ],
    ids=["application", "way", "hiccups of the way", "hiccups of the application"],
)
def test_a_right_manager_that_is_late_raises_no_doubts(
    travels: Late, decides: Late, postpones: bool
) -> None:
    """Also where it is later than the tolerance at times, by which all that follows is later."""
    across = Across(obeys=True, travels=travels, decides=decides, postpones=postpones)

    report = run(across, 400, 2, tolerance=20 * MS)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})
    assert report.packets == 400


def quick_duel(across: Across) -> ManagerComparison:
    meet(target := link(across, tolerance=20 * MS))
    return comparison(target, SPEC, is_quick=True)


def test_messages_during_another_exchange_are_received() -> None:
    """A check whether the manager is alive follows a wrong message."""
    live = quick_duel(Across(obeys=True, postpones=True, travels=lambda random: MS))
    odd = Mad(message="LAP", exchange=1, why="odd")

    assert [live.step(step) for step in (wishing(Mad(), listener.WAIT), odd)] == [None] * 2
    assert live.end() is None
    assert live.follower.management.exchange_state(0) is State.MRA_REQ_SENT


def test_retransmitted_response_does_not_answer_a_later_request() -> None:
    """Another CA with the same ID."""
    live = quick_duel(Across(obeys=True, travels=lambda random: MS))
    refused = wishing(Mad(), listener.REFUSE)
    another = Mad(fields={"req.local_ca_guid": ("own.guid", 1)})
    steps = (refused, refused, Mad(message="RTU"), another, Mad(message="DREQ", exchange=1))

    assert [live.step(step) for step in steps] == [None] * 5
    assert live.end() is None
    assert not live.is_over


def test_two_requests_may_be_refused_in_the_same_words() -> None:
    """As Linux does, which leaves both to its consumer."""
    across = Across()
    meet(target := link(across))

    def refuses(received: Received) -> list[Received]:
        said = cm.REJ(
            remote_comm_id=received.message.remote_comm_id,
            reason=cm.RejectReason.CONSUMER_DEFINED,
        )
        return [replace(received, message=said)]

    across.alter = refuses
    live = comparison(target, SPEC)
    steps = (Mad(fields={"req.transport_service_type": kind}) for kind in (2, 1))

    assert [live.step(step) for step in steps] == [None, None]


def test_what_crosses_the_end_of_a_request_proves_nothing() -> None:
    live = quick_duel(Across(obeys=True, postpones=True, travels=lambda random: MS))
    never_mind = Mad(
        message="REJ",
        fields={
            "rej.reason": cm.RejectReason.TIMEOUT,
            "rej.ari": ("own.guid", 0),
            "rej.reject_info_length": 8,
        },
    )
    steps = (wishing(Mad(), listener.WAIT), never_mind, Mad(message="DREQ", exchange=1))

    assert [live.step(step) for step in steps] == [None] * 3
    assert live.is_over


def test_response_to_an_earlier_step_counts_for_that_step() -> None:
    """The response time is 0: the exchange has ended when its REP arrives."""
    live = quick_duel(Across(travels=lambda random: MS))
    steps = (
        Mad(fields={"req.local_cm_response_timeout": 0}),
        Mad(message="RTU"),
        Mad(message="SIDR_REQ", exchange=1),
    )

    assert [live.step(step) for step in steps] == [None] * 3
    assert live.is_over


def test_mra_is_accepted_as_the_first_response() -> None:
    across = Across(postpones=True, decides=lambda random: 700 * MS)
    meet(target := link(across))

    assert isinstance(target.usual, cm.REP)


@pytest.mark.skipif(compiled_modules() > 0, reason="methods of compiled classes stay as they are")
def test_reference_that_does_not_stop_sending_is_not_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an error of ours."""
    meet(target := link(Across()))
    live = comparison(target, SPEC)

    def run_away() -> list[Frame]:
        raise RunsAway("more and more")

    assert live.step(Mad()) is None
    monkeypatch.setattr(live.reference, "answers", run_away)
    with pytest.raises(RunsAway, match="more and more"):
        live.step(Mad(message="RTU"))
    with pytest.raises(RunsAway, match="more and more"):
        live._look_for(1)


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


@pytest.mark.parametrize(
    ("exchange", "state", "after_dreq"),
    [
        (0, State.ESTABLISHED, State.TIMEWAIT),
        (5, State.DREQ_SENT, State.TIMEWAIT),
        (6, State.REP_RCVD, State.REP_RCVD),
        (7, State.TIMEWAIT, State.TIMEWAIT),
    ],
)
def test_device_asks_for_a_connection_on_request_and_reacts_as_selected(
    exchange: int, state: State, after_dreq: State
) -> None:
    across = Across(obeys=True)
    meet(target := link(across))
    live = comparison(target, SPEC)
    rep, dreq = (Mad(message=message, exchange=exchange) for message in ("REP", "DREQ"))

    assert [live.step(Command("connect", exchange)), live.step(rep)] == [None, None]
    assert live.follower.management.exchange_state(exchange) is state
    assert live.step(dreq) is None
    assert live.follower.management.exchange_state(exchange) is after_dreq


@each_case(
    "step",
    [
        Mad(message="REJ"),
        Mad(message="MRA"),
        Mad(message="REP", fields={"rep.remote_comm_id": ("id", 1)}),
        Mad(message="REP", fields={"rep.local_comm_id": 0xFFFFFFFF}),
        Mad(message="REP", fields={"rep.local_qpn": 0}),
        Mad(message="REP", cut=40),
        Mad(message="RTU"),
        Mad(message="DREQ"),
        Mad(
            message="DREQ",
            fields={"dreq.remote_comm_id": ("id", 1), "dreq.local_comm_id": ("own.id", -1)},
        ),
        Mad(message="SIDR_REP"),
        Mad(message="LAP"),
    ],
    ids=str,
)
def test_a_device_that_has_asked_answers_with_its_own_numbers(step: Mad) -> None:
    """Which the reference has taken over."""
    steps: tuple[Step, ...] = (CALLED, step, Mad(message="REP"), Mad(message="DREQ"))

    assert differences(Across(obeys=True), *steps) == [None] * 4


def test_what_was_asked_for_is_not_taken_for_what_was_asked() -> None:
    """Though both have the same ID of ours, by a lie; the one waits, the other is refused."""
    waits = replace(wishing(Mad(exchange=6), listener.WAIT), fields={"req.local_ca_guid": 5})
    steps = (
        waits,
        Command("connect", 7),
        Mad(message="REP", exchange=7, fields={"rep.local_comm_id": ("own.id", -1)}),
    )

    assert differences(Across(obeys=True), *steps) == [None] * 3


class Listed:
    """A stepper with these steps."""

    def __init__(self, *steps: Step) -> None:
        self.connection = Connection()
        self._left = deque(steps)

    def next(self, reference: Emulation) -> Step | None:
        return self._left.popleft() if self._left else None


@pytest.mark.parametrize(
    "step",
    [
        Mad(),
        Mad(message="SIDR_REQ"),
        Mad(message="REP", fields={"rep.local_ca_guid": 5}),
        Command("connect"),
        Command("ready"),
    ],
    ids=str,
)
def test_what_a_device_that_has_asked_cannot_be_sent_is_left_out(step: Step) -> None:
    meet(target := link(Across(obeys=True)))
    live = comparison(target, SPEC)
    possible = PossibleMessages(Listed(CALLED, step), target, Exclusions(), bool)

    assert possible.next(live.reference) == CALLED
    assert live.step(CALLED) is None
    assert possible.next(live.reference) is None
    assert possible.steps == [CALLED]


@pytest.mark.parametrize("exchange", [0, 5, 6, 7])
@pytest.mark.parametrize("messages", [(), ("MRA",), ("REP",), ("REP", "REP")], ids=str)
def test_nothing_is_left_of_what_a_device_has_asked_for(
    exchange: int, messages: tuple[str, ...]
) -> None:
    across = Across(obeys=True)
    meet(target := link(across))
    live = comparison(target, SPEC)
    for step in (
        Command("connect", exchange),
        *(Mad(message=each, exchange=exchange) for each in messages),
    ):
        assert live.step(step) is None

    target.leave()

    assert across.states <= {State.TIMEWAIT, State.ANSWERED}


@pytest.mark.slow
def test_what_other_applications_ask_for_is_their_own_affair() -> None:
    """Every message of the manager comes with a request that was not asked for."""

    def also_asks(received: Received) -> list[Received]:
        other = request(service_id=7, source=1, destination=2, qpn=3, starting_psn=4)
        return [Received(5, other.altered(local_comm_id=6)), received]

    report = run(Across(also_asks, obeys=True), 500)

    assert (dict(report.seen), dict(report.unstable)) == ({}, {})


def test_device_that_does_not_ask_on_request_ends_the_case() -> None:
    """It may have no time for it just now."""
    across = Across(obeys=True)
    meet(target := link(across))
    live = comparison(target, SPEC)
    across.alter = without(cm.REQ)

    assert (live.step(CALLED), live.is_over) == (None, True)


@pytest.mark.parametrize(
    "alter",
    [
        lambda received: [received] * (2 if isinstance(received.message, cm.REQ) else 1),
        lambda received: [
            replace(received, message=received.message.altered(local_ca_guid=5))
            if isinstance(received.message, cm.REQ)
            else received
        ],
    ],
    ids=["said again", "GUID of its own"],
)
def test_choices_of_a_device_that_asks_are_not_differences(alter: Alter) -> None:
    across = Across(alter, obeys=True)

    assert differences(across, CALLED, Mad(message="REP"), Mad(message="DREQ")) == [None] * 3


def test_late_request_does_not_count_for_a_later_exchange() -> None:
    """Even where it is for the same exchange."""
    held: list[Received] = []

    def late(received: Received) -> list[Received]:
        if not isinstance(received.message, cm.REQ):
            return [received]
        held.append(received)
        return [held[0]] if len(held) > 1 else []

    across = Across(obeys=True)
    meet(target := link(across))
    across.alter = late
    comparison(target, SPEC).step(CALLED)
    live = comparison(target, SPEC)

    assert (live.step(CALLED), live.is_over) == (None, True)
    assert (len(held), live.follower.management.exchanges) == (2, {})


def test_a_request_of_the_device_is_due_whatever_was_asked_before_it() -> None:
    """Here for a partition in which it need not be, so that the answer is open."""
    across = Across(ASKING_FAULTS["cm.req.service_id"], obeys=True)
    steps = Mad(fields={"req.pkey": 0x1234}), Command("connect", 1)

    difference = differences(across, *steps)[1]

    assert difference is not None
    assert (len(difference.expected), len(difference.got)) == (1, 1)


def test_device_gets_no_command_except_to_ask() -> None:
    meet(target := link(Across(obeys=True)))

    with pytest.raises(CaseError, match="messages and requests to connect only"):
        comparison(target, SPEC).step(Command("disconnect"))


@pytest.mark.parametrize("mtu", [1, 9])
def test_a_device_may_be_silent_about_a_partition_that_it_is_not_in(mtu: int) -> None:
    """And then nothing is known of the connection."""
    strange = Mad(fields={"req.pkey": 0x1234, "req.path_packet_payload_mtu": mtu})
    across = Across()
    target = link(across)
    meet(target)
    across.alter = lambda received: []
    live = comparison(target, SPEC)

    assert [live.step(strange), live.is_over] == [None, True]
    assert comparison(target, SPEC).step(Mad()) is not None


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
    "cm.rej.reason in the REJ": changed(
        cm.REJ, reason=lambda said: 28 if said.reason == 8 else said.reason
    ),
    "cm.sidr_rep.service_id": changed(cm.SIDR_REP, service_id=lambda said: said.service_id + 1),
    "mad.transaction_id": changed(cm.DREP, transaction=True),
    "instead of DREP": without(cm.DREP),
}
"""Managers with a fault, by the name of the finding."""


@pytest.mark.parametrize("text", sampled(FAULTS, 6))
def test_what_the_specification_fixes_is_found(text: str) -> None:
    campaign = Campaign(
        ManagerTestbed(link(Across(FAULTS[text]))), manager_generators(3, combines=False)
    )

    found = next((each for each in campaign.run(2000) if text in each.bucket), None)

    assert found is not None
    assert len(found.case.steps) <= 3
    assert campaign.lost == ""


ASKING_FAULTS = {
    "cm.rtu.remote_comm_id": changed(cm.RTU, remote_comm_id=lambda said: said.remote_comm_id ^ 1),
    "cm.rtu.local_comm_id": changed(cm.RTU, local_comm_id=lambda said: said.local_comm_id ^ 1),
    "mad.transaction_id": changed(cm.RTU, transaction=True),
    "instead of RTU": without(cm.RTU),
    "cm.req.service_id": changed(cm.REQ, service_id=lambda said: said.service_id + 1),
    "cm.req.primary_local_gid": changed(cm.REQ, primary_local_gid=lambda said: 1),
    "cm.req.primary_remote_gid": changed(cm.REQ, primary_remote_gid=lambda said: 1),
    "cm.req.transport_service_type": changed(cm.REQ, transport_service_type=lambda said: 3),
    "cm.req.path_packet_payload_mtu": changed(cm.REQ, path_packet_payload_mtu=lambda said: 6),
    "cm.rej.message_rejected": changed(cm.REJ, message_rejected=lambda said: 0),
}
"""Managers with a fault when they ask, by the name of the finding."""


@pytest.mark.slow
@pytest.mark.parametrize("text", ASKING_FAULTS)
def test_what_the_specification_fixes_of_the_side_that_asks_is_found(text: str) -> None:
    across = Across(ASKING_FAULTS[text], obeys=True)
    campaign = Campaign(ManagerTestbed(link(across)), manager_generators(3, combines=False))

    found = next((each for each in campaign.run(2000) if text in each.bucket), None)

    assert found is not None
    assert CALLED.what in [each.what for each in found.case.steps if isinstance(each, Command)]
    assert len(found.case.steps) <= 3
    assert campaign.lost == ""


def test_script_that_cannot_be_tried_is_not_written() -> None:
    """It would ask for a REJ, where a device may also be silent."""
    tested = ManagerLinkTarget(link(Across(FAULTS["cm.rej.reason"])))
    case = Case(Connection(), (Mad(message="REP"),))
    _, difference = Campaign(
        tested.testbed(Role.CM), manager_generators(1, combines=False)
    ).judge.judged_alone(case)
    assert difference is not None
    finding = Finding(1, "Any.", case, case, difference, 1, "Any.")

    reason = "a script is not tried with a connection manager on a link"
    assert checked_script(finding, tested) == ("", reason)
