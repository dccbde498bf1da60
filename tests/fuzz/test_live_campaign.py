"""A run against a device on a link, without a link: what is kept when something comes between."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from ibwire.base.errors import LinkError, PeerError
from ibwire.drill.targets.live import Diverted
from ibwire.fuzz.case import Case, CaseError, Connect, Connection, Packet, Role
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import Exclusions
from ibwire.fuzz.judge.witnesses import WITNESSES
from ibwire.fuzz.recording import record
from ibwire.fuzz.report import Report, RunState, Search
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, REGIONS, Numbers
from ibwire.fuzz.targets.link import target as live_target
from ibwire.fuzz.targets.link.causes import SEARCHES, last_sent
from ibwire.fuzz.targets.link.liveness import ALIVE, Dead, Death
from ibwire.fuzz.targets.link.queue_pair_testbed import QueuePairTestbed
from ibwire.fuzz.targets.link.target import LinkTarget
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.path import Path
from ibwire.rc.profile import SPEC, Profile
from ibwire_layers.opcodes import OpCode

WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})

BINDING = Binding(PEER_ADDRESS, ADDRESS)

KEYS = {name: (number << 20, number << 8) for number, name in enumerate(REGIONS, 1)}

NUMBERS = Numbers(17, 18, KEYS, None, ADDRESS, PEER_ADDRESS, (bytes(6), bytes(6)))


class VerbsLink:
    """One of a device that cannot be had any more, but once could."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.binding = BINDING
        self.path = Path(BINDING.route)
        self.exclusions = Exclusions()
        self.death = ALIVE
        self.numbers: Numbers | None = NUMBERS
        self.peer = ADDRESS
        self.is_v4 = True
        self.way = None
        self.as_received: Any = lambda frame: frame
        self.tolerance = 1
        self.inner: Any = SimpleNamespace()
        self.diverted = Diverted(self.inner, bytes(6), 0)
        self.endpoint = SimpleNamespace(live=SimpleNamespace(node=self.diverted))

    def connect(self, connection: Connection) -> Any:
        raise self.error

    def disconnect(self) -> None:
        pass


def target_of(link: VerbsLink) -> LinkTarget:
    return LinkTarget(link)


# A finding that is saved.


@pytest.mark.parametrize("error", [CaseError("refused"), PeerError("gone"), LinkError("a", "down")])
def test_device_without_new_connections_is_dead(error: Exception) -> None:
    link = VerbsLink(error)

    recording = record(Case(Connection(), (WRITE,)), target_of(link))

    assert recording.difference is not None
    assert recording.difference.kind == Kind.CRASH
    assert recording.got == [f"{Dead.CONNECTION}: {error}"]
    assert len(recording.entries) == 1


def test_a_case_that_no_device_can_have_is_refused() -> None:
    link = VerbsLink(CaseError("no such connection"))
    link.numbers = None

    with pytest.raises(CaseError, match="no such connection"):
        record(Case(Connection(), (WRITE,)), target_of(link))


def test_a_case_of_several_connections_that_a_device_outlives_shows_nothing() -> None:
    case = Case(Connection(), (WRITE, Connect(Connection(rq_psn=7)), READ))

    recording = record(case, target_of(VerbsLink(CaseError("not to be connected"))))

    assert recording.difference is None
    assert [entry.step for entry in recording.entries] == [0, 2]


@pytest.mark.parametrize("error", [PeerError("gone"), LinkError("a", "down")])
def test_a_script_of_a_device_that_has_gone_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def gone(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(live_target, "DrillBench", gone)
    monkeypatch.setattr(live_target.drill, "parse", lambda text, name: None)  # type: ignore[attr-defined]
    link = VerbsLink(error)

    assert not target_of(link).fulfils("")
    assert link.endpoint.live.node is link.diverted


# A case that is made shorter.


class Interruptible(QueuePairTestbed):
    """Shows what is looked for in each case with a READ; the user has enough at some trial."""

    def __init__(self, trials: int) -> None:
        link: Any = VerbsLink(PeerError("gone"))
        super().__init__(link, Role.RESPONDER)
        self.trials = trials

    def replay(self, case: Case, profile: object = None) -> Difference | None:
        return Difference(0, Kind.ANSWER, [], [b""])

    def _shows(self, case: Case, *what: object) -> bool:
        self.trials -= 1
        if self.trials < 0:
            raise Interrupted(signal.SIGINT)
        return READ in case.steps


@pytest.mark.parametrize(("trials", "length"), [(0, 22), (1, 22), (2, 2), (100, 1)])
def test_a_case_is_as_short_as_it_has_become_when_it_is_interrupted(
    trials: int, length: int
) -> None:
    """The last two steps are tried second: before that nothing is shorter."""
    testbed = Interruptible(trials)
    run = state(testbed, minimises=True)
    case = Case(Connection(), (*[WRITE] * 20, READ, WRITE))

    short = testbed.shorten(run, case, Difference(20, Kind.ANSWER, [], [b""]), SPEC)

    assert len(short.steps) == length
    assert READ in short.steps
    assert run.search.is_interrupted == (trials < 100)


# Crashes by their cause.


class Mortal(QueuePairTestbed):
    """A device that crashes in every case; `cause` is the shortest case, if there is one."""

    def __init__(self, cause: Case | None) -> None:
        link: Any = VerbsLink(PeerError("gone"))
        link.liveness = SimpleNamespace(restart="a command")
        link.lost = ""
        super().__init__(link, Role.RESPONDER)
        self.cause = cause
        self.searches = 0
        self.exclusions: Exclusions = link.exclusions

    def _suspects(self, state: RunState) -> list[Case]:
        return list(self.history)

    def _death(self, reason: str) -> Death:
        return Death(Dead.EVERY, reason)

    def _search_crash(self, *what: object) -> Any:
        self.searches += 1
        return SimpleNamespace(best=self.cause, original=self.cause, is_done=True)

    def crash(self, case: Case) -> str:
        """The bucket of a crash in a case."""
        self.history[:] = [case]
        found = self.diagnose(state(self, minimises=True), "silent")
        assert found is not None
        return found.bucket


def ending_with(opcode: OpCode, why: str) -> Case:
    return Case(Connection(), (WRITE, Packet(int(opcode), length=8, why=why)))


def test_a_fault_that_crashes_a_device_is_one_cause_in_all_operations() -> None:
    first, second = (
        ending_with(opcode, "size of a packet")
        for opcode in (OpCode.RC_RDMA_WRITE_ONLY, OpCode.RC_SEND_ONLY)
    )
    device = Mortal(first)

    buckets = [device.crash(case) for case in (first, second, second)]

    assert buckets == ["every connection is dead after WRITE_ONLY (size of a packet)"] * 3
    assert device.searches == 1


class Late(QueuePairTestbed):
    """A device that differs in these trials of a witness, one after the other."""

    def __init__(self, *differs: bool) -> None:
        link: Any = VerbsLink(PeerError("gone"))
        link.liveness = SimpleNamespace(look=lambda: ALIVE)
        super().__init__(link, Role.RESPONDER)
        self.differs = list(differs)

    def _carry_out(self, case: Case, profile: Profile) -> Difference | None:
        return Difference(0, Kind.ANSWER, [b""], []) if self.differs.pop(0) else None


@pytest.mark.parametrize(
    ("differs", "counts"), [((False,), False), ((True, False), False), ((True, True), True)]
)
def test_only_a_difference_that_comes_again_counts_in_a_witness(
    differs: tuple[bool, ...], counts: bool
) -> None:
    device = Late(*differs)

    found = device.replay(WITNESSES[0].case("spec"), SPEC)

    assert (found is not None) == counts
    assert not device.differs


def test_a_fault_with_two_names_is_one_cause() -> None:
    """Lengths beyond 2^31 bytes (C9-94), from a witness and from two operators."""
    witness = next(each for each in WITNESSES if each.name == "checks_message_length")
    lengths = {"length": (1 << 31) + 1, "DMA length": 0xFFFFFFFF}
    device = Mortal(witness.case("spec"))
    buckets = [device.crash(device.cause)]

    for why, length in lengths.items():
        packet = READ.altered(fields={"reth.dma_len": length}, why=why)
        device.cause = Case(Connection(), (packet,))
        buckets.append(device.crash(device.cause))

    what = "READ_REQUEST (a message beyond 2^31 bytes)"
    assert buckets == [f"every connection is dead after {what}"] * 3


def test_different_faults_of_one_operation_are_different_causes() -> None:
    cases = [ending_with(OpCode.RC_RDMA_WRITE_ONLY, why) for why in ("cut", "ICRC")]
    device = Mortal(None)
    buckets = []

    for device.cause in cases:
        buckets.append(device.crash(device.cause))

    assert len({*buckets}) == device.searches == 2


def test_crashes_whose_cause_is_not_found_are_one_finding_and_searched_for_a_few_times() -> None:
    """Nothing is excluded because of them: the last packet need not be the cause."""
    device = Mortal(None)
    opcodes = [OpCode.RC_RDMA_WRITE_ONLY, OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_READ_REQUEST] * 3

    buckets = {device.crash(ending_with(opcode, "")) for opcode in opcodes}

    assert buckets == {"every connection is dead, cause not found"}
    assert device.searches == SEARCHES
    assert device.exclusions.items == []


def test_a_crash_in_a_witness_excludes_what_is_wrong_with_it_and_not_its_operation() -> None:
    """Packets of witnesses do not say what is wrong with them."""
    long = next(each for each in WITNESSES if each.name == "checks_message_length")
    device = Mortal(None)
    device.history[:] = [long.case("spec")]

    found = device.diagnose(state(device), "silent")

    assert found is not None
    what = "READ_REQUEST (a message beyond 2^31 bytes)"
    assert found.bucket == f"every connection is dead after {what}"
    device.exclusions.add(found.difference, last_sent(found.case))
    assert not device.exclusions.has(READ)


def state(testbed: QueuePairTestbed, *, minimises: bool = False) -> RunState:
    report = Report(Coverage(testbed.vocabulary.coverage))
    return RunState(report, "spec", SPEC, Search(), origin="", next_case=0, minimises=minimises)
