"""What is wrong with the packets of a case, whatever a device does."""

from __future__ import annotations

from ibwire.fuzz.case import Case, Mad, Packet, Step
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.scene import Scene
from ibwire.fuzz.judge.setting import is_of_requester
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.rc.profile import Profile


def fault_in(case: Case, place: int, profile: Profile) -> str:
    """What is wrong with the packet in this step of a case; empty if it is right."""
    crash = Difference(place, Kind.CRASH, [], [""])
    about = Scene(Emulation(case.connection, profile), case, crash, profile).about
    return about.what if about.is_wrong else ""


def without_old_faults(case: Case, original: Case, profile: Profile) -> Case:
    """A minimised case whose requests say of no fault that they have lost.

    original: the case before, whose operators have said what is wrong with a packet.
    """
    steps = list(case.steps)
    for place, step in enumerate(steps):
        if not isinstance(step, Packet) or isinstance(step, Mad) or not step.why:
            continue
        if is_of_requester(step):
            continue  # of a response most of this is no fault
        is_as_made = any(_is_alike(step, each) for each in original.steps)
        if not is_as_made and not fault_in(case, place, profile):
            steps[place] = step.altered(why="")
    return case.with_steps(steps)


def _is_alike(step: Packet, made: Step) -> bool:
    """Whether a packet still has all that an operator has made otherwise in it."""
    if not isinstance(made, Packet) or (made.opcode, made.why) != (step.opcode, step.why):
        return False
    names = ("icrc", "cut", "pad", "more")
    is_in_place = bool(step.psn[1]) or not made.psn[1]
    is_whole = step.fields.keys() >= made.fields.keys() and is_in_place
    return is_whole and all(getattr(made, name) == getattr(step, name) for name in names)
