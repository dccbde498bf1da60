"""Whether a device does what a right one would do to which packets of its partition do not come.

Full and limited members of a partition have P_Keys that differ in one bit. A device that compares
this bit, too, drops right packets: whatever comes of that has one cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Step
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import PKEYS, Emulation
from ibwire_layers.errors import DecodeError
from ibwire_layers.packet import Packet as WholePacket

RULE = "IBA 10.9.3; docs/reference/wire-formats.md#partition-key"
GROUP = "packets between a full and a limited member of a partition, which are dropped"


def drops_other_members(trials: Trials) -> bool:
    """Whether it drops packets whose P_Key is right, but has another highest bit than its own."""
    if not _may_be_tried(trials.case):
        return False
    return trials.first_that_shows([Variant(_dropping)]) is not None


def _may_be_tried(case: Case) -> bool:
    """Whether a case has packets from another kind of member."""
    packets = [each for each in case.steps if isinstance(each, Packet)]
    is_limited = not PKEYS[case.connection.pkey_index] & _FULL
    return bool(packets) and (is_limited or any("bth.pkey" in each.fields for each in packets))


def _dropping(steps: Sequence[Step]) -> Deliver:
    return _of_equal_members


def _of_equal_members(reference: Emulation, number: int, frame: Frame) -> None:
    """Let a frame arrive unless its P_Key has another highest bit."""
    try:
        pkey = WholePacket.parse(frame, strict=False).bth.pkey
    except DecodeError:
        reference.receive(frame)
        return
    own = PKEYS[reference.connection.pkey_index]
    if pkey ^ own != _FULL or not reference.accepts_pkey(pkey):
        reference.receive(frame)


_FULL = 0x8000
