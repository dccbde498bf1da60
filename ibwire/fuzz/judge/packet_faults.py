"""Which packets of a case have a fault, and which are said to have one that they have lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ibwire.fuzz.case import Case, Command, Mad, Packet, Step
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.scene import Scene
from ibwire.fuzz.judge.setting import is_of_requester
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.rc.profile import Profile
from ibwire_layers.opcodes import OpCode


def fault_in(case: Case, place: int, profile: Profile) -> str:
    """What is wrong with the packet in this step of a case; empty if it is right."""
    crash = Difference(place, Kind.CRASH, [], [""])
    about = Scene(Emulation(case.connection, profile), case, crash, profile).about
    return about.what if about.is_wrong else ""


def without_old_faults(case: Case, original: Case, profile: Profile) -> Case:
    """A minimised case in which no packet is said to have a fault that it has lost.

    original: the case before it was minimised, in which each packet has the fault that it is said
    to have.
    """
    steps = list(case.steps)
    for place, step in enumerate(steps):
        if (
            isinstance(step, Packet)
            and step.why
            and _has_lost_fault(case, place, step, original, profile)
        ):
            steps[place] = replace(step, why="")
    return case.with_steps(steps)


def _has_lost_fault(case: Case, place: int, step: Packet, original: Case, profile: Profile) -> bool:
    """Whether a packet no longer has the fault that it is said to have."""
    if _lacks_other_steps(step, case.steps[:place], case.steps):
        return True
    if step.why == "bth.ack_req" and not is_of_requester(step):
        return True  # whether a request asks for an ACK is never wrong
    if step.why != LONG and any(_is_alike(step, each) for each in original.steps):
        return False
    if isinstance(step, Mad):
        return _is_bare(step)
    if any(isinstance(each, Mad | Command) for each in case.steps):
        return False
    if is_of_requester(step):  # most of this is no fault of a response
        return _is_bare(step) or (step.why == "size" and not step.length and _is_ack(step))
    return not fault_in(case, place, profile)


def _lacks_other_steps(step: Packet, before: Sequence[Step], steps: Sequence[Step]) -> bool:
    """Whether a packet is at fault only together with other steps, which are not there."""
    if step.why in _OF_SEVERAL:
        return [isinstance(each, Packet) and each.why for each in steps].count(step.why) < 2
    if step.why == REORDERED:
        packets = [each for each in steps if isinstance(each, Packet) and each.why == REORDERED]
        return not any(each.psn[1] for each in packets)  # all have the PSN that is expected
    if not isinstance(step, Mad):
        return False
    own = [
        each
        for each in before
        if isinstance(each, Mad | Command) and each.exchange == step.exchange
    ]
    if step.why in _OF_REPEATED:
        return not any(isinstance(each, Mad) and each.message == step.message for each in own)
    if step.why == "crossing":
        commands = [
            each for each in steps if isinstance(each, Command) and each.exchange == step.exchange
        ]
        return all(each.what != "disconnect" for each in commands)
    return step.why in _OF_LATER and not own


def _is_alike(step: Packet, made: Step) -> bool:
    """Whether a packet still has all that an operator has made otherwise in it."""
    if not isinstance(made, Packet) or (made.opcode, made.why) != (step.opcode, step.why):
        return False
    names = ["icrc", "cut", "pad", "more"]
    if isinstance(made, Mad) or isinstance(step, Mad):
        if type(made) is not type(step):
            return False
        names += ["message", "length"]
    elif step.why == "size":
        names.append("length")
    is_in_place = bool(step.psn[1]) or not made.psn[1]
    is_whole = step.fields.keys() >= made.fields.keys() and is_in_place
    return is_whole and all(getattr(made, name) == getattr(step, name) for name in names)


def _is_bare(step: Packet) -> bool:
    """Whether a packet differs in nothing from what is due."""
    plain = Mad(message=step.message) if isinstance(step, Mad) else Packet(step.opcode)
    names = ("opcode", "length", "fields", "pad", "more", "cut", "icrc")
    return not step.psn[1] and all(getattr(step, each) == getattr(plain, each) for each in names)


def _is_ack(step: Packet) -> bool:
    return step.opcode in (OpCode.RC_ACKNOWLEDGE, OpCode.RC_ATOMIC_ACKNOWLEDGE)


LONG = "longer than the receive"
"""What is said of all packets of a message: without the others each may fit."""
REORDERED = "reordered"
"""What is said of packets that come in another order than that of their PSNs."""
_OF_SEVERAL = ("many", "order", "twice")
"""What is said of several packets of a case."""
_OF_REPEATED = ("repeated", "unheard")
"""What is said of a message that was sent before."""
_OF_LATER = ("over", "late", "early")
"""What is said of a message of an exchange in which something has happened before."""
