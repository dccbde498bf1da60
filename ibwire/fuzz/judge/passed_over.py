"""Whether a device of UC does what a right one would do that passes over a message inside another.

A right one ends the message that was begun. If it goes on instead, the later packets of that are
taken: all of that has one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Step
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire_layers.opcodes import INFO, Position
from ibwire_layers.psn import MASK


def passed_over(trials: Trials) -> int | None:
    """The number of an earlier packet that begins a message inside another and is passed over, if
    that explains what a device does; `None` if it does not.
    """
    if not _may_be_tried(trials.case):
        return None
    places = _beginnings(trials.steps[:-1])[::-1]
    found = trials.first_that_shows([Variant(_all_but(place), place=place) for place in places])
    return None if found is None else places[found]


def _may_be_tried(case: Case) -> bool:
    return case.connection.service == "UC" and len(_beginnings(case.steps[:-1])) > 1


def _beginnings(steps: Sequence[Step]) -> list[int]:
    """The numbers of the packets that begin a message."""
    forms = [INFO.get(each.opcode) if isinstance(each, Packet) else None for each in steps]
    return [
        place for place, info in enumerate(forms) if info is not None and info.position in _BEGINS
    ]


def _all_but(place: int) -> Callable[[Sequence[Step]], Deliver]:
    """Frames arrive as usual, but of one inside a message only the PSN counts."""

    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        if number == place and reference.under_way is not None:
            responder = reference.qp.responder
            responder.epsn = responder.epsn + 1 & MASK
        else:
            reference.receive(frame)

    return lambda steps: deliver


_BEGINS = (Position.FIRST, Position.ONLY)
