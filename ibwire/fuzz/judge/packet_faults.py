"""What is wrong with the packets of a case, whatever they were made for."""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import Case, Command, Mad, Packet
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.scene import Scene
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.rc.profile import Profile


def fault_in(case: Case, place: int, profile: Profile) -> str:
    """What is wrong with the packet in this step of a case; empty if it is right."""
    about = _scene(case, place, profile).about
    return about.text if about.is_wrong else ""


def with_own_faults(case: Case, profile: Profile) -> Case:
    """A minimised case in which each packet says what is wrong with it now.

    What it was made for may be gone. Of messages to a connection manager their fields say it.
    """
    if any(isinstance(step, Mad | Command) for step in case.steps):
        return case.with_steps(
            [replace(step, why="") if isinstance(step, Packet) else step for step in case.steps]
        )
    subjects = _scene(case, len(case.steps) - 1, profile).subjects
    return case.with_steps(
        [
            replace(step, why=_said_of(about)) if isinstance(step, Packet) else step
            for step, (_, about) in zip(case.steps, subjects, strict=True)
        ]
    )


def _scene(case: Case, place: int, profile: Profile) -> Scene:
    crash = Difference(place, Kind.CRASH, [], [""])
    return Scene(Emulation(case.connection, profile), case, crash, profile)


def _said_of(about: About) -> str:
    """What is wrong with a packet, or which NAK it is."""
    return about.text if about.is_wrong or "NAK" in about.what else ""
