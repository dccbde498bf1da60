"""Minimising a crashing case, on simulated devices that crash by a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ibwire.base.errors import PeerError
from ibwire.fuzz.case import Case, Connect, Connection, Packet, Step
from ibwire.fuzz.targets.link import crash_minimiser as deaths
from ibwire.fuzz.targets.link.crash_minimiser import DEATHS, CrashSearch
from ibwire.fuzz.targets.link.liveness import ALIVE, Dead, Death
from ibwire_layers.opcodes import OpCode

WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
SEND = Packet(int(OpCode.RC_SEND_ONLY), length=8)
POISON = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))

Received = list[list[Step]]
"""What a device has received since it was started, by connection."""


class Device:
    """A device that crashes by a rule, and is restarted up to a number of times."""

    def __init__(
        self, dies: Callable[[Received], bool], what: Dead = Dead.EVERY, lives: int = DEATHS + 9
    ) -> None:
        self.dies = dies
        self.what = what
        self.lives = lives
        self.received: Received = []
        self.has_ended = True
        self.lost = ""

    @property
    def liveness(self) -> Device:
        return self

    def begin(self, *, anew: bool = False) -> None:
        if not anew and not self.has_ended:
            return
        if not self.lives:
            raise PeerError("no power")
        self.lives -= 1
        self.received, self.has_ended = [], False

    def connect(self, connection: Connection) -> Any:
        self.received.append([])
        return self

    def step(self, step: Step) -> None:
        self.received[-1].append(step)

    def disconnect(self) -> None:
        pass

    def examine(self) -> Death:
        if not self.dies(self.received):
            return ALIVE
        self.has_ended = self.what.is_end
        if not self.has_ended:
            self.received = []
        return Death(self.what, "silent")


def dissected(device: Any, *suspects: Case, is_over: Callable[[], bool] = bool) -> CrashSearch:
    search = CrashSearch(device, device.connect, device.what, is_over)
    search.run(suspects)
    return search


def case(*steps: Step, **connection: int) -> Case:
    return Case(Connection(**connection), steps)


def any_has(count: int) -> Callable[[Received], bool]:
    """Crashes after this many poison packets on one connection."""
    return lambda received: any(steps.count(POISON) >= count for steps in received)


HARMLESS = [case(*[WRITE, SEND] * 5, rq_psn=number) for number in range(4)]


def test_the_deadly_packet_is_found_in_an_earlier_case_with_few_deaths() -> None:
    deadly = case(*[WRITE, SEND] * 5, POISON, WRITE, WRITE, WRITE, rq_psn=9)
    device = Device(any_has(1))

    search = dissected(device, *HARMLESS, deadly, *HARMLESS)

    assert search.best == case(POISON)
    assert search.original == deadly
    assert DEATHS + 9 - device.lives <= 8


def test_what_it_takes_stays_in_the_case() -> None:
    deadly = case(SEND, POISON, WRITE, SEND, SEND, SEND, POISON, WRITE)

    assert dissected(Device(any_has(2)), *HARMLESS, deadly).best == case(POISON, POISON)


def test_it_may_take_several_connections() -> None:
    def dies(received: Received) -> bool:
        return sum(POISON in steps for steps in received) > 1

    search = dissected(Device(dies), case(WRITE, POISON), case(WRITE, SEND), case(POISON, SEND))

    assert search.best == case(POISON, Connect(Connection()), POISON)
    assert search.original is not None
    assert len(search.original.steps) == 8


def test_a_death_that_needs_what_was_tried_before_is_not_taken_for_that_of_a_case() -> None:
    """A device that leaks: it crashes at the third poison packet since its start."""

    def dies(received: Received) -> bool:
        return sum(steps.count(POISON) for steps in received) > 2

    search = dissected(Device(dies), *[case(WRITE, POISON)] * 3)

    assert search.best is not None
    assert search.best.steps.count(POISON) == 3


def test_a_death_that_does_not_come_again_has_no_case() -> None:
    search = dissected(Device(lambda received: False), *HARMLESS)

    assert (search.best, search.original, search.is_done) == (None, None, True)


def test_a_device_that_does_not_come_back_is_given_up_with_the_best_so_far() -> None:
    deadly = case(SEND, POISON, WRITE, POISON, rq_psn=9)
    device = Device(any_has(2), lives=2)

    search = dissected(device, deadly)

    assert search.best is not None
    assert search.best.steps.count(POISON) == 2
    assert (device.lost, search.is_done) == ("no power", False)


def test_another_death_is_not_the_same() -> None:
    """Harm to another connection is not that the device is gone, nor the other way round."""
    device = Device(any_has(1))
    search = CrashSearch(device, device.connect, Dead.OTHER, bool)

    search.run([case(POISON)])

    assert search.best is None


def test_harm_to_others_needs_no_restart() -> None:
    device = Device(any_has(1), Dead.OTHER, lives=1)

    assert dissected(device, case(WRITE, POISON, SEND)).best == case(POISON)
    assert device.lost == ""


def test_crashes_of_a_device_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here twice: that takes a second device, and no third."""
    monkeypatch.setattr(deaths, "DEATHS", 2)
    device = Device(any_has(1))

    dissected(device, case(*[WRITE, SEND] * 5, POISON, *[WRITE, SEND] * 5, rq_psn=9))

    assert DEATHS + 9 - device.lives == 2


def test_time_that_is_up_ends_it() -> None:
    device = Device(any_has(1))

    search = dissected(device, case(POISON, WRITE), is_over=lambda: device.lives < DEATHS + 8)

    assert search.best == case(POISON, WRITE)


def test_without_time_nothing_is_tried() -> None:
    device = Device(any_has(1))

    search = dissected(device, case(POISON), is_over=lambda: True)

    assert (search.best, search.is_done) == (None, False)
    assert device.lives == DEATHS + 9
