"""A case of which only the reference runs again shows what the whole case shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ibwire.fuzz.case import Case, Connection, RunsAway
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import Device, Difference, ExactComparison, Trace
from ibwire.fuzz.judge.replays import Recorded, Replays
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.rc.profile import PROFILES, SPEC, Profile
from mutants.engine import copied
from mutants.table import FUZZED

CASES = [each.case("spec") for each in EmulatorTestbed(Emulation).witnesses]
VARIANTS = [variant for choice in CHOICES for variant in choice.variants(SPEC)]


class Counted:
    """A device under test, and how often it was made."""

    def __init__(self, make: Callable[[Connection], Any]) -> None:
        self._make = make
        self.made = 0
        self.testbed = EmulatorTestbed(self.open)

    def open(self, connection: Connection) -> Any:
        """A new one."""
        self.made += 1
        return self._make(connection)

    def compare(
        self, connection: Connection, profile: Profile, device: Device | None
    ) -> ExactComparison:
        """With a reference."""
        return self.testbed.comparison(connection, profile, device)

    def whole(self, case: Case, profile: Profile) -> Difference | None:
        """A case carried out from its beginning."""
        return self.compare(case.connection, profile, None).carry_out(case)


def rxe() -> Counted:
    """A device with many deviations from the reference."""
    return Counted(lambda connection: Emulation(connection, "rxe"))


def faulty() -> Counted:
    """A device that reads headers which a packet is too short for, and fails in that."""
    modules = copied(FUZZED["cut-header-read"])
    return Counted(lambda connection: modules[Emulation.__module__].Emulation(connection))


@pytest.mark.parametrize("make", [rxe, faulty])
def test_each_reference_shows_what_the_whole_case_shows(make: Callable[[], Counted]) -> None:
    device = make()
    replays = Replays(device.compare)
    for case in CASES[::4]:
        for variant in [SPEC, *VARIANTS[::3], PROFILES["rxe"]]:
            assert replays.carry_out(case, variant) == device.whole(case, variant), case.origin


def test_the_device_is_made_only_for_references_that_do_something_else() -> None:
    device = rxe()
    replays = Replays(device.compare)

    shown = [replays.carry_out(CASES[0], variant) for variant in [SPEC, *VARIANTS]]

    different = {str(each) for each in shown}
    # One that follows the device in each wait is run with the device unless another one was.
    compared = [SPEC, *(each for each in VARIANTS if not each.timers_vary)]
    followed = len(VARIANTS) + 1 - len(compared)
    assert followed == 1
    assert len(different) <= device.made < len(VARIANTS) // 4
    assert replays.devices == len(compared) - 1 + 2 * device.made


def test_a_reference_is_not_run_twice() -> None:
    device = rxe()
    replays = Replays(device.compare)

    first, again = (replays.carry_out(CASES[0], SPEC) for _ in range(2))

    assert first is again
    assert (device.made, replays.devices) == (1, 2)


def test_what_was_recorded_is_for_the_same_frames_only() -> None:
    trace = Trace()
    trace.calls += [b"a frame", [b"its answer"]]

    Recorded(trace).receive(b"a frame")
    with pytest.raises(RunsAway):
        Recorded(trace).receive(b"another frame")
