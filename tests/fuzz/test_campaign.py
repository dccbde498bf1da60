"""Runs of the fuzzer: what is found, what is allowed, and what is reported once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from each_case import each_case
from examples import sampled, scaled, usual
from fuzz.cases import cases
from fuzz.scripted import Scripted
from ibwire.base.node import Frame
from ibwire.base.units import MS, Time
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Post,
    Receive,
    Role,
    RunsAway,
    Step,
    Value,
    Wait,
)
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import Difference, ExactComparison, Kind, crash
from ibwire.fuzz.judge.findings import Finding, kind_of, signature
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.report import Postponed, Report, RunState, Search
from ibwire.fuzz.run_file import Session, Settings, load
from ibwire.fuzz.targets import testbed as of_testbed
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Completion, Emulation
from ibwire.fuzz.targets.emulator import DOUBTS, EmulatorTestbed
from ibwire.fuzz.targets.emulator import target as emulator
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.operators import RESPONSE_MUTATORS
from ibwire.fuzz.vocabulary.queue_pair.messages import answers
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR, queue_pair_generators, role_of
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES, SPEC, Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import INTERACTIONS, read_mutants

WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})

UNREACHABLE = {
    # Both become 64 ms with the timer granularity of rxe.
    "the RNR timer of code 25 is 61.41 ms",
    # Only in role cm.
    "no event COMM_EST is raised",
    "datagrams on QP1 ask for an ACK",
}


def target(profile: str | Profile) -> type[Emulation]:
    class Target(Emulation):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection, profile)

    return Target


DEVIATIONS_OF_RXE = {
    choice.about
    for choice in CHOICES
    if not choice.allowed and getattr(PROFILES["rxe"], choice.name) != getattr(SPEC, choice.name)
} - UNREACHABLE
"""`ibwire.rc.profile` documents them; the fuzzer does not know that the target is rxe."""


def names_of(finding: Finding) -> set[str]:
    return set(finding.about.split("; ")) if finding.about else {finding.bucket}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_the_deviations_of_rxe_are_found_by_name_and_nothing_else(seed: int) -> None:
    campaign = Campaign(
        EmulatorTestbed(target("rxe")), queue_pair_generators(seed, Role.BOTH), minimises=False
    )
    names: set[str] = set()
    for finding in campaign.run(20_000):
        names |= names_of(finding)

    assert names == DEVIATIONS_OF_RXE


@pytest.mark.slow
def test_first_findings_in_rxe_are_deviations_by_name() -> None:
    campaign = Campaign(
        EmulatorTestbed(target("rxe")), queue_pair_generators(2, Role.BOTH), minimises=False
    )

    names = set().union(*map(names_of, campaign.run(300)))

    assert len(names) > 5
    assert names <= DEVIATIONS_OF_RXE


@pytest.mark.parametrize("profile", sampled(PROFILES, 3))
def test_nothing_is_found_in_what_is_like_the_reference(profile: str) -> None:
    campaign = Campaign(
        EmulatorTestbed(target(profile)), queue_pair_generators(1, Role.BOTH), profile=profile
    )

    assert list(campaign.run(usual(3000, quick=1000))) == []
    assert not campaign.report.unstable
    assert not campaign.report.taken


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["rdmavt", "hns"])
def test_what_the_specification_leaves_open_is_a_choice_and_no_finding(profile: str) -> None:
    """What these two do otherwise, without what is not allowed."""
    changes: dict[str, Any] = {
        choice.name: getattr(PROFILES[profile], choice.name) for choice in CHOICES if choice.allowed
    }
    campaign = Campaign(
        EmulatorTestbed(target(replace(SPEC, **changes))), queue_pair_generators(1, Role.BOTH)
    )

    assert list(campaign.run(4000)) == []
    assert campaign.report.choices


def test_a_choice_is_taken_over_only_when_its_own_witness_shows_it() -> None:
    """rdmavt NAKs a gap after an RNR NAK only if a duplicate came between, which looks alike."""
    send, duplicate = Packet(int(OpCode.RC_SEND_ONLY)), replace(WRITE, psn=("expected", -1))
    ahead = replace(send, psn=("expected", 1))

    def make(number: int) -> Scripted:
        scripted = Scripted(send, duplicate, ahead)
        scripted.connection = Connection(receives=0)
        return scripted

    campaign = Campaign(EmulatorTestbed(target("rdmavt")), make)
    found = [finding.about for finding in campaign.run(30)]

    assert "a gap draws a sequence NAK though a NAK has been sent already" in found
    assert "duplicate_clears_nak" in campaign.report.taken
    assert "naks_after_rnr" not in campaign.report.taken


@pytest.mark.parametrize("profile", sampled(["hns", "spec", "rdmavt"], 3))
def test_a_fingerprint_is_the_profile_of_the_device(profile: str) -> None:
    """All of its choices but the one that shows only in the interval of AckReq bits."""
    campaign = Campaign(EmulatorTestbed(target(profile)), lambda number: Scripted(WRITE))
    campaign.one_case(10)

    expected = {
        choice.name
        for choice in CHOICES
        if getattr(PROFILES[profile], choice.name) != getattr(SPEC, choice.name)
    }
    assert set(campaign.report.taken) == expected - {"ack_request_interval"}


def test_a_device_that_is_right_where_its_known_deviation_is_wrong_is_not_accused() -> None:
    """It passes the witness of a deviation, but in other cases does what the rules say."""

    class Partly(Emulation):
        def __init__(self, connection: Connection) -> None:
            is_witness = connection.timeout == 0
            super().__init__(connection, replace(SPEC, naks_reserved_opcode=not is_witness))

    reserved = Packet(int(OpCode.RC_SEND_ONLY), fields={"bth.opcode": 31})
    campaign = Campaign(EmulatorTestbed(Partly), lambda number: Scripted(reserved))
    found = list(campaign.run(3))

    assert [each.about for each in found] == ["a reserved opcode is discarded and not NAKed"]
    assert "naks_reserved_opcode" in campaign.report.taken


def test_a_signal_on_a_link_ends_making_a_case_shorter_as_an_interrupt_does() -> None:
    def shorten(case: Case, shows: Callable[[Case], bool]) -> Case:
        assert shows(case.with_steps([READ]))
        raise Interrupted(signal.SIGTERM)

    search = Search()
    short = search.shorter(shorten, Case(Connection(), (WRITE, READ)), lambda case: True)

    assert short.steps == (READ,)
    assert search.is_interrupted


class Forgetful(Emulation):
    """Something leaks with every connection: the fourth one gets no response."""

    def __init__(self, connection: Connection) -> None:
        self.connections = 0
        super().__init__(connection)

    def _connect(self, connection: Connection) -> None:
        self.connections += 1
        super()._connect(connection)

    def receive(self, frame: Frame) -> None:
        if self.connections < 4:
            super().receive(frame)


def test_what_leaks_from_one_connection_to_the_next_is_found() -> None:
    campaign = Campaign(EmulatorTestbed(Forgetful), lambda number: Scripted(WRITE), explains=False)
    (finding,) = campaign.run(10)

    assert finding.bucket == "WRITE_ONLY after 3 other connections: nothing instead of ACK"
    assert sum(isinstance(step, Connect) for step in finding.case.steps) == 3
    assert finding.original.packets == 4
    assert campaign.judge.replay(finding.case) is not None


class Exhausted(Emulation):
    """The 61st connection gets no response."""

    def __init__(self, connection: Connection) -> None:
        self.connections = 0
        super().__init__(connection)

    def _connect(self, connection: Connection) -> None:
        self.connections += 1
        super()._connect(connection)

    def receive(self, frame: Frame) -> None:
        if self.connections <= 60:
            super().receive(frame)


@pytest.mark.slow
def test_what_takes_many_connections_is_found_with_few_steps_carried_out() -> None:
    """600 of them: one by one it would be 600 times 600."""
    carried_out = 0

    class Counted(EmulatorTestbed):
        def replay(self, case: Case, profile: Profile) -> Difference | None:
            nonlocal carried_out
            carried_out += len(case.steps)
            return super().replay(case, profile)

    campaign = Campaign(Counted(Exhausted), lambda number: Scripted(*[WRITE, READ] * 5))
    (finding,) = campaign.run(610)

    assert [type(step) for step in finding.case.steps] == [Connect] * 60 + [Packet]
    assert carried_out < 20_000


class Once(Emulation):
    """Fails once, at the first call."""

    left = 1

    def answers(self) -> list[Frame]:
        found = super().answers()
        if found and Once.left:
            Once.left -= 1
            return []
        return found


def test_what_does_not_come_again_is_counted_and_no_finding() -> None:
    Once.left = 1
    campaign = Campaign(EmulatorTestbed(Once), lambda number: Scripted(WRITE), explains=False)

    assert list(campaign.run(10)) == []
    assert campaign.report.unstable == {"WRITE_ONLY in IDLE: silence instead of ACK": 1}


def test_what_does_not_come_again_is_counted_within_bounds() -> None:
    """A thousand kinds of it, and the rest together."""
    report = Report(Coverage(QUEUE_PAIR.coverage))
    for number in range(1500):
        report.count_unstable(f"kind {number}")
    report.count_unstable("kind 7")

    assert len(report.unstable) == 1001
    assert report.unstable["kind 7"] == 2
    assert report.unstable["others"] == 500


class Picky(Emulation):
    """Never answers a READ after eight WRITEs, and with a byte too many after fewer."""

    opened = 0

    def __init__(self, connection: Connection) -> None:
        Picky.opened += 1
        super().__init__(connection)

    def answers(self) -> list[Frame]:
        sent = super().answers()
        if not sent or sent[-1][BTH] != OpCode.RC_RDMA_READ_RESPONSE_ONLY:
            return sent
        return [sent[-1] + b"x"] if self.qp.responder.msn <= 8 else []


BTH = 42
"""Where it begins in a frame of an emulated device."""


def test_used_devices_are_relied_on_when_new_ones_have_done_the_same() -> None:
    """A search on devices that keep nothing makes few new ones, whatever else its cases show."""
    Picky.opened = 0
    testbed = EmulatorTestbed(Picky)
    testbed.witnesses = []  # each would need a device
    writes = [replace(WRITE, at=place) for place in range(8)]
    campaign = Campaign(testbed, lambda number: Scripted(*writes, READ), explains=False)

    (finding,) = campaign.run(9)

    assert finding.case.packets == 9
    assert Picky.opened < 16


def test_devices_that_are_right_after_a_fault_are_not_used_again() -> None:
    """The first shorter case would be the last one that shows it, whatever else it needs."""

    class Once(Emulation):
        """Does not answer its first READ, whichever connection that is on."""

        reads = 0

        def receive(self, frame: Frame) -> None:
            self.reads += frame[BTH] == READ.opcode
            super().receive(frame)

        def answers(self) -> list[Frame]:
            found = super().answers()
            is_read = bool(found) and found[-1][BTH] == OpCode.RC_RDMA_READ_RESPONSE_ONLY
            return [] if is_read and self.reads == 1 else found

    assert shortened(Once, *[WRITE] * 16, READ).steps == (READ.altered(fields={}),)


THROUGH_WINDOW = WRITE.altered(fields={"reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", 0)})


def test_devices_whose_keys_differ_after_a_fault_are_not_used_again() -> None:
    """The key that the reference gives to its window would be a wrong one on the other."""

    class Rekeyed(Emulation):
        """Answers a READ behind nine WRITEs through its window with a byte too many. When it has
        done so often, its window has a new key.
        """

        faults = writes = 0

        def receive(self, frame: Frame) -> None:
            self.writes += self.window.rkey.to_bytes(4, "big") in frame
            super().receive(frame)

        def reconnect(self, connection: Connection) -> None:
            self.writes = 0
            if self.faults > 2 * DOUBTS:
                self.device.keys.invalidate(self.window.rkey, self.end.pd, self.qp.number)
            super().reconnect(connection)

        def answers(self) -> list[Frame]:
            sent = super().answers()
            if not sent or sent[-1][BTH] != OpCode.RC_RDMA_READ_RESPONSE_ONLY:
                return sent
            is_wrong = self.writes > 8
            self.faults += is_wrong
            return [sent[-1] + b"x" * is_wrong]

    short = shortened(Rekeyed, *[THROUGH_WINDOW] * 63, READ.altered(fields={}))

    assert short.packets == 10


def test_two_faults_of_completions_are_two_findings() -> None:
    """Neither becomes the other one while its case is made shorter."""
    send, write = OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE

    class Forgetful(Emulation):
        """Completes no WRITE with immediate data, and no SEND on its first connection."""

        last = connections = 0

        def receive(self, frame: Frame) -> None:
            self.last = frame[BTH]
            super().receive(frame)

        def reconnect(self, connection: Connection) -> None:
            self.connections += 1
            super().reconnect(connection)

        def completions(self) -> list[Completion]:
            found = super().completions()
            is_lost = self.last == write or (self.last == send and not self.connections)
            return [] if is_lost else found

    testbed = EmulatorTestbed(Forgetful)
    last = [Packet(int(send)), Packet(int(write))]
    campaign = Campaign(
        testbed, lambda number: Scripted(*[WRITE] * 9, last[number]), explains=False
    )

    found = list(campaign.run(20))

    assert [each.case.steps[-1].opcode for each in found] == [send, write]
    assert [each.case.packets for each in found] == [1, 1]


def shortened(device: Callable[[Connection], Emulation], *steps: Step) -> Case:
    testbed = EmulatorTestbed(device)
    state = Campaign(testbed, lambda number: Scripted(), explains=False).state
    case = Case(steps=steps)
    difference = testbed.replay(case, state.profile)
    assert difference is not None
    return testbed.shorten(state, case, difference, state.profile)


class Mute(Emulation):
    """Never answers a request."""

    def answers(self) -> list[Frame]:
        super().answers()
        return []


def unanswered(step: Packet) -> tuple[Difference, Packet]:
    comparison = EmulatorTestbed(Mute).comparison(Connection(), SPEC)
    found = comparison.step(step)
    assert found is not None
    return found, step


def test_differences_of_a_kind_may_have_different_opcodes_but_not_verdicts() -> None:
    in_no_message = replace(WRITE, opcode=int(OpCode.RC_RDMA_WRITE_MIDDLE))
    write, read, other = (kind_of(*unanswered(step)) for step in (WRITE, READ, in_no_message))

    assert write == read
    assert other != write  # a NAK is missing


def test_an_answer_too_many_or_missing_is_the_same_before_others_of_the_step() -> None:
    """So that a case without those others shows the same."""
    (ack,) = unanswered(WRITE)[0].expected
    (response,) = unanswered(READ)[0].expected

    def of(expected: list[object], got: list[object]) -> tuple[str, str, str]:
        return signature(Difference(0, Kind.ANSWER, expected, got))

    assert of([response], [ack, response]) == of([], [ack]) == ("answer", "silence", "ACK")
    assert of([ack, response], [response]) == of([ack], []) == ("answer", "ACK", "silence")
    assert of([response], [ack]) == ("answer", "READ_RESPONSE_ONLY", "ACK")
    assert of([response], [ack, ack]) == ("answer", "READ_RESPONSE_ONLY", "ACK")


def test_packets_of_different_kinds_differ_in_one_way_whatever_their_fields_are() -> None:
    binding = Binding(PEER_ADDRESS, ADDRESS)
    symbols = Emulation(Connection()).symbols

    def frame(opcode: OpCode, **fields: int) -> bytes:
        given: dict[str, Value] = {name.replace("__", "."): each for name, each in fields.items()}
        return binding.frame(Packet(int(opcode), fields=given), 100, symbols)

    short = frame(OpCode.RC_RDMA_READ_REQUEST, reth__dma_len=1)
    longer = frame(OpCode.RC_RDMA_READ_REQUEST, reth__dma_len=2)
    solicited = frame(OpCode.RC_RDMA_READ_REQUEST, reth__dma_len=1, bth__se=1)
    ack = frame(OpCode.RC_ACKNOWLEDGE)

    def kind(expected: bytes, got: bytes) -> str:
        return kind_of(Difference(0, Kind.ANSWER, [expected], [got]), WRITE)

    assert kind(ack, short) == kind(ack, longer) == kind(ack, solicited)
    assert kind(short, longer) != kind(short, solicited)


def test_resumed_run_knows_which_differences_are_not_worth_its_time(tmp_path: Path) -> None:
    session = Session.new(Settings())
    testbed = EmulatorTestbed(Mute)
    campaign = Campaign(
        testbed, session.settings.maker(), report=session.report, explains=False, minimises=False
    )
    found = next(campaign.run(2000))
    session.add(found, has_script=True)
    testbed.explained = 1234
    report = campaign.report
    report.led_to |= {"a difference": found.bucket, "another one": "no finding"}
    report.examined["a difference"] = 2
    report.in_vain["answer, request, ACK, silence"] = 5
    later = Postponed(found.original, "WRITE_ONLY", "answer, request", "bth.psn", packet=7)
    report.postpone(later)
    session.save(tmp_path, campaign)

    resumed = load(tmp_path)

    assert resumed.report.led_to["a difference"] == found.bucket
    assert "another one" not in resumed.report.led_to
    assert resumed.report.examined == report.examined
    assert resumed.report.in_vain == report.in_vain
    assert resumed.report.postponed == {"WRITE_ONLY": later}
    testbed = EmulatorTestbed(Mute)
    Campaign(testbed, resumed.settings.maker(), report=resumed.report)
    assert testbed.explained == 1234


class Crashing(Emulation):
    def receive(self, frame: Frame) -> None:
        if frame[42] == OpCode.RC_RDMA_READ_REQUEST:
            raise ZeroDivisionError("length")
        super().receive(frame)


def test_a_crash_is_a_finding_and_made_short() -> None:
    campaign = Campaign(
        EmulatorTestbed(Crashing),
        lambda number: Scripted(WRITE, WRITE, READ, WRITE),
        explains=False,
    )
    (finding,) = campaign.run(20)

    assert finding.bucket == "READ_REQUEST: ZeroDivisionError in receive"
    assert [step.opcode for step in finding.case.steps] == [OpCode.RC_RDMA_READ_REQUEST]
    assert finding.original.packets == 3


@pytest.mark.slow
def test_a_choice_with_which_a_case_does_not_come_to_rest_explains_nothing() -> None:
    """7 retries for ever, of 4 us each."""
    steps = (Post(int(WROpcode.SEND)), Wait(100 * MS))
    campaign = Campaign(EmulatorTestbed(target("rxe")), queue_pair_generators(1, Role.BOTH))

    assert campaign.judge.judged_alone(Case(Connection(timeout=1), steps))[1] is not None


def test_bucket_is_reported_once_and_counted() -> None:
    campaign = Campaign(EmulatorTestbed(Crashing), lambda number: Scripted(READ), explains=False)

    assert len(list(campaign.run(30))) == 1
    assert list(campaign.report.seen.values()) == [30]


class CrashingLate(Emulation):
    """Like rxe, and it fails at messages of UC, which come only after 100 packets."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, "rxe")

    def receive(self, frame: Frame) -> None:
        if frame[42] == OpCode.UC_SEND_FIRST:
            raise ZeroDivisionError("first")
        super().receive(frame)


@pytest.mark.slow
def test_run_resumes_where_another_has_stopped() -> None:
    """With the next case, with the adopted choices, and without earlier reports."""
    first = Campaign(
        EmulatorTestbed(CrashingLate), queue_pair_generators(1, Role.BOTH), minimises=False
    )
    before = [finding.bucket for finding in first.run(100)]
    report = Report(
        Coverage(QUEUE_PAIR.coverage),
        packets=first.report.packets,
        seen=first.report.seen,
        groups=first.report.groups,
        taken=first.report.taken,
    )
    second = Campaign(
        EmulatorTestbed(CrashingLate),
        queue_pair_generators(1, Role.BOTH),
        minimises=False,
        first=first.next_case,
        report=report,
    )
    after = list(second.run(1500))

    assert before
    assert after
    assert not {finding.bucket for finding in after} & set(before)
    assert all(finding.number > len(before) for finding in after)
    assert second.report.taken == first.report.taken
    assert int(after[0].original.origin.removeprefix("case ")) >= first.next_case


@pytest.mark.slow
def test_what_was_found_shows_by_itself_what_it_was_found_for() -> None:
    """Whatever other deviations the target has, which the run reported before."""
    findings = list(
        Campaign(EmulatorTestbed(target("rxe")), queue_pair_generators(1, Role.BOTH)).run(120)
    )

    assert len(findings) > 5
    for finding in findings:
        _, difference = Campaign(
            EmulatorTestbed(target("rxe")), queue_pair_generators(1, Role.BOTH)
        ).judge.judged_alone(finding.original)
        assert difference is not None
        assert signature(difference) == signature(finding.difference)


RIGHT = {
    name: replace(
        SPEC, **{each.name: getattr(PROFILES[name], each.name) for each in CHOICES if each.allowed}
    )
    for name in ("spec", "rxe", "rdmavt")
}
"""Devices that do nothing wrong, with the allowed choices of an implementation."""

COMBINED = {
    "msn-counts-other-messages": 1,
    "second-sge-keeps-the-offset": 1,
    "limited-members-talk": 2,
}
"""Faults that only combined cases show, with a seed that finds each within 4,000 packets."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *COMBINED])
def test_no_finding_accuses_a_right_device(fault: str) -> None:
    """Whether it is that of a known deviation or of a planted fault, short or as it was found."""
    tested = _with_fault(fault) if fault else target("rxe")
    seed = COMBINED.get(fault, 1)
    campaign = Campaign(EmulatorTestbed(tested), queue_pair_generators(seed, Role.BOTH))
    found = list(campaign.run(4000 if fault else 300))

    assert found
    for finding, profile in product(found, RIGHT.values()):
        for case in (finding.case, finding.original):
            other = Campaign(EmulatorTestbed(target(profile)), queue_pair_generators(1, Role.BOTH))
            assert other.judge.judged_alone(case)[1] is None, finding.bucket


def _with_fault(name: str) -> Any:
    return copied(read_mutants(INTERACTIONS)[name])[Emulation.__module__].Emulation


def test_an_interrupted_case_is_still_the_next_one() -> None:
    class Interrupting(Scripted):
        def next(self, reference: Emulation) -> Step | None:
            raise KeyboardInterrupt

    makers: Iterator[Scripted] = iter([Scripted(WRITE), Interrupting(), Scripted(WRITE)])
    campaign = Campaign(EmulatorTestbed(Emulation), lambda number: next(makers))
    campaign.one_case(10)

    with pytest.raises(KeyboardInterrupt):
        campaign.one_case(10)

    assert (campaign.next_case, campaign.report.cases) == (1, 1)


def test_a_finding_that_is_being_made_shorter_is_kept_when_that_is_interrupted() -> None:
    """The case at that moment: one trial was made, without ten of its steps."""
    opened = 0

    class Stubborn(Crashing):
        def __init__(self, connection: Connection) -> None:
            nonlocal opened
            opened += 1
            if opened == 4:  # the run, a look at what was found, and the trial before it
                raise KeyboardInterrupt
            super().__init__(connection)

    campaign = Campaign(
        EmulatorTestbed(Stubborn),
        lambda number: Scripted(*[WRITE] * 20, READ, WRITE),
        explains=False,
    )
    with pytest.raises(KeyboardInterrupt):
        list(campaign.run(100))
    (finding,) = campaign.report.findings

    assert campaign.is_interrupted
    assert campaign.next_case == 1
    assert finding.bucket == "READ_REQUEST: ZeroDivisionError in receive"
    assert finding.case.steps == (*[WRITE] * 10, READ)
    assert campaign.judge.replay(finding.case) is not None


@pytest.mark.slow
@pytest.mark.parametrize("opening", range(4, 40))
def test_what_leaks_is_kept_whenever_the_run_is_interrupted(opening: int) -> None:
    """It would not occur again in a resumed run, which has another device."""
    opened = 0

    class Stubborn(Forgetful):
        def __init__(self, connection: Connection) -> None:
            nonlocal opened
            opened += 1
            if opened == opening:
                raise KeyboardInterrupt
            super().__init__(connection)

    campaign = Campaign(
        EmulatorTestbed(Stubborn), lambda number: Scripted(WRITE, READ), explains=False
    )
    with pytest.raises(KeyboardInterrupt):
        list(campaign.run(10))
    (finding,) = campaign.report.findings

    assert finding.original.packets == 7
    assert finding.bucket == "WRITE_ONLY: nothing instead of ACK"
    assert campaign.judge.replay(finding.case) is not None


def test_a_device_that_keeps_something_of_earlier_connections_has_a_case_that_replays() -> None:
    """Shorter cases are tried on devices that had others before, the shortest on new ones."""

    class Rememberer(Emulation):
        """Answers nothing from the second READ on, on whichever connection."""

        reads = 0

        def receive(self, frame: Frame) -> None:
            self.reads += frame[42] == READ.opcode
            super().receive(frame)

        def answers(self) -> list[Frame]:
            found = super().answers()
            return [] if self.reads > 1 else found

    testbed = EmulatorTestbed(Rememberer)
    state = Campaign(testbed, lambda number: Scripted(), explains=False).state
    case = Case(steps=(WRITE, READ, READ))
    difference = testbed.replay(case, state.profile)
    assert difference is not None
    short = testbed.shorten(state, case, difference, state.profile)

    assert short.steps == (READ.altered(fields={}),) * 2


def test_a_case_of_several_connections_is_made_shorter_on_new_devices_alone() -> None:
    """What one connection leaves for the next would be there from the trial before."""

    class Once(Emulation):
        """Answers nothing when it has had one READ in all, on another connection."""

        reads = before = 0

        def reconnect(self, connection: Connection) -> None:
            self.before = self.reads
            super().reconnect(connection)

        def receive(self, frame: Frame) -> None:
            self.reads += frame[42] == READ.opcode
            super().receive(frame)

        def answers(self) -> list[Frame]:
            found = super().answers()
            return [] if self.reads == self.before == 1 else found

    testbed = EmulatorTestbed(Once)
    state = Campaign(testbed, lambda number: Scripted(), explains=False).state
    plain = READ.altered(fields={})
    other = Connect(Connection())
    case = Case(steps=(*[Receive()] * 9, plain, *[Receive()] * 9, other, *[Receive()] * 9, WRITE))
    difference = testbed.replay(case, state.profile)
    assert difference is not None
    short = testbed.shorten(state, case, difference, state.profile)

    assert short.steps == (plain, other, WRITE.altered(length=0))


def test_a_reference_that_does_not_come_to_rest_ends_no_search_for_a_shorter_case() -> None:
    """With endless retries it does not in the case without the ACK."""

    class Sleepy(Emulation):
        """Crashes in a long wait behind a request, where the ACK timer is short."""

        def wait(self, time: Time) -> list[tuple[Time, Frame]]:
            if self._posted and self.connection.timeout == 8 and time >= 1000 * MS:
                raise ZeroDivisionError
            return super().wait(time)

    post, ack = Post(int(WROpcode.RDMA_WRITE)), Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
    case = Case(Connection(timeout=8), (WRITE, post, ack, Wait(1000 * MS)))
    profile = replace(SPEC, retry_7_is_infinite=True)
    testbed = EmulatorTestbed(Sleepy)
    state = Campaign(testbed, lambda number: Scripted(), explains=False).state
    with pytest.raises(RunsAway):
        testbed.replay(case.with_steps((post, Wait(1000 * MS))), profile)
    difference = testbed.replay(case, profile)
    assert difference is not None

    short = testbed.shorten(state, case, difference, profile)

    assert short == case.with_steps(case.steps[1:])


def test_what_has_the_name_of_a_finding_is_counted_for_it_where_time_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a case waits until there is time to look at its name, and is not minimised."""
    monkeypatch.setattr(of_testbed, "MINIMUM_PACKETS", 0)

    class Forgetful(Emulation):
        """Does not answer WRITEs."""

        def answers(self) -> list[Frame]:
            return [each for each in super().answers() if each[42] != OpCode.RC_ACKNOWLEDGE]

    class Counting(EmulatorTestbed):
        shortened = 0

        def shorten(self, *given: Any) -> Case:
            self.shortened += 1
            return super().shorten(*given)

    forms = (WRITE, WRITE.altered(opcode=int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)))
    testbed = Counting(Forgetful)
    campaign = Campaign(testbed, lambda number: Scripted(forms[number % 2]), explains=False)
    findings = list(campaign.run(3000))

    assert len(findings) == 1
    assert sum(campaign.report.seen.values()) == 3000
    assert testbed.shortened == 1


def test_a_finding_is_made_shorter_as_long_as_there_is_time() -> None:
    """For one trial."""
    looks = count()
    campaign = Campaign(
        EmulatorTestbed(Crashing), lambda number: Scripted(*[WRITE] * 20, READ), explains=False
    )
    finding = campaign.one_case(100, is_over=lambda: next(looks) > 0)

    assert finding is not None
    assert finding.case.steps == (*[WRITE] * 10, READ)
    assert not campaign.is_interrupted


@pytest.mark.slow
def test_a_finding_replays_against_the_reference_that_it_names() -> None:
    campaign = Campaign(EmulatorTestbed(target("rxe")), queue_pair_generators(1, Role.RESPONDER))
    findings = [finding for finding, _ in zip(campaign.run(3000), range(3), strict=False)]

    assert findings
    for finding in findings:
        case = finding.case
        difference = campaign.judge.replay(case, profile_of(case.profile, case.choices))
        assert difference is not None
        assert (difference.step, difference.kind) == (len(case.steps) - 1, finding.difference.kind)


@pytest.mark.slow
def test_a_case_by_itself_differs_only_in_what_is_not_allowed() -> None:
    case = Case(Connection(), (WRITE, Packet(0x1F)))  # rxe: no credits; a reserved opcode

    assert (
        Campaign(
            EmulatorTestbed(target("rxe")), queue_pair_generators(1, Role.BOTH)
        ).judge.judged_alone(case)[1]
        is not None
    )
    # hns has another UDP source port, which is a choice.
    assert (
        Campaign(
            EmulatorTestbed(target("hns")), queue_pair_generators(1, Role.BOTH)
        ).judge.judged_alone(case.with_steps([WRITE]))[1]
        is None
    )


def test_a_case_by_itself_shows_the_fault_behind_what_is_allowed() -> None:
    """That AETHs carry no credits is allowed; that a reserved opcode is not refused is a fault."""
    fault = not SPEC.naks_reserved_opcode
    tested = target(replace(SPEC, live_credits=False, naks_reserved_opcode=fault))
    campaign = Campaign(EmulatorTestbed(tested), queue_pair_generators(1, Role.BOTH))
    reserved = Packet(int(OpCode.RC_SEND_ONLY), fields={"bth.opcode": 31})

    profile, difference = campaign.judge.judged_alone(Case(Connection(), (WRITE, WRITE, reserved)))

    assert not profile.live_credits
    assert difference is not None
    assert difference.step == 2


def test_a_crash_counts_more_than_what_differs_before_it() -> None:
    class Fragile(EmulatorTestbed):
        def crash_in(self, state: RunState, case: Case) -> Difference | None:
            if Packet(0x1F) not in case.steps:
                return None
            return crash(case, "gone")

    tested = target(replace(SPEC, mig_req=not SPEC.mig_req))
    campaign = Campaign(Fragile(tested), queue_pair_generators(1, Role.BOTH))
    case = Case(Connection(), (WRITE, WRITE, Packet(0x1F)))

    _, crashed = campaign.judge.judged_alone(case)
    _, outlived = campaign.judge.judged_alone(case.with_steps((WRITE, WRITE)))

    assert crashed is not None
    assert (crashed.step, crashed.kind) == (2, Kind.CRASH)
    assert outlived is not None
    assert (outlived.step, outlived.kind) == (0, Kind.ANSWER)


@settings(max_examples=scaled(60))
@given(cases)
def test_every_case_that_can_be_read_can_be_carried_out(case: Case) -> None:
    """Whatever it holds: the emulator does with it as the emulator does, or never rests."""
    tested = emulator("emu")
    campaign = Campaign(
        tested.testbed(role_of(case)), queue_pair_generators(0, Role.BOTH), profile=case.profile
    )

    try:
        difference = campaign.judge.replay(case, PROFILES["spec"])
    except (CaseError, RunsAway):
        return

    assert difference is None


def test_right_answers_are_right_where_psns_wrap() -> None:
    """A READ of four packets that begins two before the wrap, two of them answered."""
    connection = Connection(sq_psn=0xFFFFFE)
    device = Emulation(connection)
    device.post_send(Post(int(WROpcode.RDMA_READ), 4 * 256))
    device.answers()
    binding = Binding(PEER_ADDRESS, ADDRESS)
    for left in (4, 3, 2, 1):
        right = list(answers(device))
        assert [packet.psn for packet in right] == [("una", i) for i in range(left)]
        symbols = {**device.symbols, "ssn": device.oldest_ssn}
        device.receive(binding.frame(right[0], device.psn("una"), symbols))

    assert device.completions() == [(0, 0, 0, 2)]


@each_case("seed", range(8))
def test_silence_gives_up_a_request_exactly_when_its_retries_are_over(seed: int) -> None:
    """One retry: the second timeout ends it with IBV_WC_RETRY_EXC_ERR, 12."""
    device = Emulation(Connection(timeout=8, retry_cnt=1))
    device.post_send(Post(int(WROpcode.SEND), 8))
    device.answers()
    silence = next(each for each in RESPONSE_MUTATORS if each.name == "timeout_until_error")
    steps = silence.make(Random(seed), device, list(answers(device)))

    for step in steps:
        assert isinstance(step, Wait)
        device.wait(step.time)

    statuses = [completion[2] for completion in device.completions() if completion[0] == 0]
    assert len(steps) in (1, 2, 3)
    assert statuses == ([12] if len(steps) > 1 else [])


def test_a_case_without_end_on_the_reference_does_not_end_the_run() -> None:
    """It may have taken something over from the device; the cases behind it are carried out."""

    class Endless(EmulatorTestbed):
        def connect(self, connection: Connection, profile: Profile) -> ExactComparison:
            comparison = super().connect(connection, profile)
            receive = comparison.reference.receive

            def never_stops(frame: Frame) -> None:
                receive(frame)
                if comparison.reference.qp.responder.resources:
                    raise RunsAway("more than 512 packets")

            comparison.reference.receive = never_stops  # type: ignore[method-assign]
            return comparison

    steps = [WRITE, READ, WRITE]
    campaign = Campaign(Endless(Emulation), lambda number: Scripted(steps[number]), explains=False)

    assert list(campaign.run(3)) == []
    report = campaign.report
    assert (report.cases, report.packets) == (3, 3)
    assert report.unstable == {"the reference does not come to rest: more than 512 packets": 1}
