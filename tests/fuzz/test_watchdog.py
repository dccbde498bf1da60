"""Devices that do not come back: a difference like any other, and nothing else is disturbed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ibwire.base.node import Frame
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, Connection, Packet, Role, RunsAway, Step
from ibwire.fuzz.judge.comparison import Difference, ExactComparison, Kind
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed, target
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.vocabularies import queue_pair_generators
from ibwire.fuzz.watchdog import Watch, supervised, watchdog
from ibwire_layers.opcodes import OpCode

WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})

INTERVAL = 0.05
"""Seconds of processor time, many times what a step takes."""


@pytest.fixture(autouse=True)
def timer_is_disarmed() -> Iterator[None]:
    """A look that raises sets the timer; left armed, its signal would end the test process."""
    before = signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


class Looked(Emulation):
    """The watchdog looks while it is at work."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        super().__init__(Connection())

    def receive(self, frame: Frame) -> None:
        self._look()
        super().receive(frame)


def looks(count: int, watch: Watch) -> Callable[[], None]:
    """As many looks as ticks of the timer come in one call."""

    def look() -> None:
        for _ in range(count):
            watch.look(signal.SIGVTALRM, sys._getframe())

    return look


def nothing() -> None:
    pass


def duel(of_reference: Callable[[], None], of_target: Callable[[], None]) -> ExactComparison:
    binding = Binding(PEER_ADDRESS, ADDRESS)
    return ExactComparison(binding, Looked(of_reference), Looked(of_target))


def test_device_seen_twice_in_one_call_is_endless() -> None:
    found = duel(nothing, looks(2, Watch(3))).step(WRITE)

    assert isinstance(found, Difference)
    assert found.kind == Kind.ENDLESS
    assert found.got == ["does not come back for 3 s of processor time"]


def test_message_has_the_time_that_was_waited() -> None:
    """A target that has not come back once is given a tenth of a second."""
    pair = duel(nothing, looks(2, Watch(3)))

    found = [pair.step(WRITE) for _ in range(2)]

    assert [each.got for each in found if each] == [
        ["does not come back for 3 s of processor time"],
        ["does not come back for 0.1 s of processor time"],
    ]


def test_device_seen_once_in_each_call_returns() -> None:
    pair = duel(nothing, looks(1, Watch(3)))

    assert [pair.step(WRITE) for _ in range(3)] == [None] * 3


def test_a_reference_is_left_alone() -> None:
    assert duel(looks(5, Watch(3)), nothing).step(WRITE) is None


def test_code_other_than_a_device_is_not_interrupted() -> None:
    looks(5, Watch(3))()


def test_a_device_outside_of_duels_is_watched_too() -> None:
    with pytest.raises(RunsAway, match="does not come back for 3 s"):
        supervised(looks(2, Watch(3)))


def loop() -> None:
    while True:
        pass


class Looping(Emulation):
    def receive(self, frame: Frame) -> None:
        if frame[42] == OpCode.RC_RDMA_READ_REQUEST:
            loop()
        super().receive(frame)


class Starved(Emulation):
    """Seems not to come back once, and then wherever it is given less time."""

    calls = 0

    def receive(self, frame: Frame) -> None:
        if frame[42] == OpCode.RC_RDMA_READ_REQUEST:
            Starved.calls += 1
            if Starved.calls == 1 or signal.getitimer(signal.ITIMER_VIRTUAL)[1] < INTERVAL / 2:
                loop()
        super().receive(frame)


class Few:
    """Makes a case with two steps."""

    def __init__(self) -> None:
        self.connection = Connection()
        self._steps = iter((WRITE, READ))

    def next(self, reference: Emulation) -> Step | None:
        return next(self._steps, None)


def test_a_device_that_comes_back_if_it_is_given_more_time_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a machine is busy, some systems count the time of other programs for this one."""
    monkeypatch.setattr(Starved, "calls", 0)
    monkeypatch.setattr("ibwire.fuzz.watchdog.SHORT_INTERVAL", INTERVAL / 5)
    with watchdog(INTERVAL):
        campaign = Campaign(EmulatorTestbed(Starved), lambda number: Few(), explains=False)
        found = list(campaign.run(10))

    assert found == []
    assert sum(campaign.report.unstable.values()) == 1


@pytest.mark.slow
def test_a_device_that_loops_is_found_and_its_case_made_short_and_replayed() -> None:
    with watchdog(INTERVAL):
        campaign = Campaign(EmulatorTestbed(Looping), lambda number: Few(), explains=False)
        finding = next(iter(campaign.run(10)))
        again = Campaign(EmulatorTestbed(Looping), lambda number: Few()).judge.replay(finding.case)

    assert finding.bucket == "READ_REQUEST: it does not come to rest"
    assert finding.original.steps == (WRITE, READ)
    assert finding.case.steps == (Packet(int(OpCode.RC_RDMA_READ_REQUEST)),)
    assert again is not None
    assert again.kind == Kind.ENDLESS


def test_no_choice_explains_a_device_that_does_not_go_on() -> None:
    """Nor does one of those that rxe makes: nothing is tried, which takes its time each."""
    opened = 0

    class Counted(Looping):
        def __init__(self, connection: Connection) -> None:
            nonlocal opened
            opened += 1
            super().__init__(connection, "rxe")

    with watchdog(INTERVAL):
        campaign = Campaign(EmulatorTestbed(Counted), queue_pair_generators(1, Role.RESPONDER))
        assert campaign.judge.judged_alone(Case(steps=(READ,)))[1] is not None

    assert opened <= 6
    assert not campaign.report.taken


@pytest.mark.parametrize("interval", [INTERVAL])
def test_others_have_their_signal_back(interval: float) -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with watchdog(interval):
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[1] == pytest.approx(interval)
        assert signal.getsignal(signal.SIGVTALRM) != before

    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_only_the_main_thread_watches() -> None:
    before, seen = signal.getsignal(signal.SIGVTALRM), []

    def other() -> None:
        with watchdog():
            seen.append(signal.getsignal(signal.SIGVTALRM))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()

    assert seen == [before]


FAULTS = '''
[[mutant]]
name = "{name}"
module = "rc/qp.py"
old = """    def modify("""
new = """    def modify(self, *_: object) -> None:
        {does}

    def other("""
'''


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        pytest.param(
            "while True: pass",
            "RunsAway: does not come back for 0.05 s of processor time",
            marks=pytest.mark.slow,
        ),
        ("raise KeyError(7)", "KeyError: 7"),
    ],
)
def test_device_that_makes_no_connection_is_reported(
    tmp_path: Path, does: str, reason: str
) -> None:
    table = tmp_path / "faults.toml"
    table.write_text(FAULTS.format(name="first", does=does))
    tested = target(f"py:mutants.target:{table}:first")

    with watchdog(INTERVAL):
        with pytest.raises(CaseError) as caught:
            Campaign(
                tested.testbed(Role.RESPONDER), queue_pair_generators(0, Role.RESPONDER)
            ).one_case(10)
        passed = tested.fulfils("  qp size=4096\n")

    assert str(caught.value) == f"the target makes no connection: {reason}"
    assert not passed
