"""Whether a device does what a right one would do whose memory window stays open at an invalidate.

What goes through the window later is taken, and a new connection cannot open it again: all of that
has one cause, whatever the packet at which it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Step
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.rc.memory import MWBindInfo
from ibwire_layers.headers import IETH
from ibwire_layers.opcodes import INFO, Position

RULE = "IBA 9.4.1.1.3; docs/reference/transport.md#invalidate"


def kept_at(trials: Trials) -> Position | None:
    """The position of the SENDs with invalidate that leave the window open, if that explains what a
    device does; `None` if it does not.
    """
    if not _may_be_tried(trials.case):
        return None
    variants = [Variant(partial(_keeping, position)) for position in _POSITIONS]
    found = trials.first_that_shows(variants)
    return None if found is None else _POSITIONS[found]


def _may_be_tried(case: Case) -> bool:
    """Whether a case has a SEND with invalidate before its last step."""
    earlier = case.steps[:-1]
    return any(_invalidates(step, each) for step in earlier for each in _POSITIONS)


def _invalidates(step: Step, position: Position) -> bool:
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    return info is not None and IETH in info.headers and info.position is position


def _keeping(position: Position, steps: Sequence[Step]) -> Deliver:
    """Frames arrive as usual, but the window is open again behind such a SEND."""

    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        if not _invalidates(steps[number], position):
            reference.receive(frame)
            return
        window = reference.window
        before = window.copy()
        reference.receive(frame)
        region = before.region
        if region is not None and before.qp_num is not None and window.region is None:
            start = region.iova + before.start
            info = MWBindInfo(region, start, before.length, before.access)
            region.pd.keys.bind(window, before.qp_num, before.pd, info, before.rkey)

    return deliver


_POSITIONS = (Position.LAST, Position.ONLY)
