"""Whether a device does what a right one would do that counts the PSNs of READs otherwise.

A READ takes as many PSNs as its response has packets. A device that expects another PSN behind it
takes the next request for one behind a gap or for a duplicate, whatever that is: all of that has
one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Step
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire_layers.opcodes import INFO, Operation
from ibwire_layers.psn import MASK

GROUP = "PSNs of a READ"
RULE = "IBA 9.7.2; docs/reference/transport.md#psn-count"


@dataclass(frozen=True, slots=True)
class _Count:
    """Another number of PSNs for some READs."""

    what: str
    """Those READs."""
    of: Callable[[int, int], int]
    """The PSNs for the bytes of a READ and the path MTU."""


def miscounted_read(trials: Trials) -> str:
    """Those READs for which a device counts other PSNs, if that explains what it does.

    Empty if it does not.
    """
    if not _may_be_tried(trials.case):
        return ""
    variants = [Variant(partial(_counting, count)) for count in _COUNTS]
    found = trials.first_that_shows(variants)
    return "" if found is None else _COUNTS[found].what


def _may_be_tried(case: Case) -> bool:
    """Whether a case has a READ before its last step."""
    return any(_reads(case.steps[:-1]))


def _reads(steps: Sequence[Step]) -> Iterator[bool]:
    for step in steps:
        info = INFO.get(step.opcode) if isinstance(step, Packet) else None
        yield info is not None and info.operation is Operation.READ


def _counting(count: _Count, steps: Sequence[Step]) -> Deliver:
    """Frames arrive as usual, but a READ that is accepted takes so many PSNs."""
    reads = list(_reads(steps))

    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        responder = reference.qp.responder
        before = responder.msn
        reference.receive(frame)
        if not reads[number] or responder.msn == before or not responder.resources:
            return
        newest = responder.resources[-1]
        more = count.of(newest.length, reference.qp.mtu) - newest.count
        newest.count += more
        responder.epsn = responder.epsn + more & MASK

    return deliver


def _rounded_up(length: int, mtu: int) -> int:
    return max(-(-length // mtu), 1)


_EXACT = "a READ of an exact multiple of the path MTU"
_SEVERAL = "a READ of several packets"
_COUNTS = (
    _Count(_EXACT, lambda length, mtu: length // mtu + 1),
    _Count(_SEVERAL, lambda length, mtu: 1),
    _Count(
        "a READ of several packets, the last of them shorter",
        lambda length, mtu: max(length // mtu, 1),
    ),
    _Count(_SEVERAL, lambda length, mtu: _rounded_up(length, mtu) + (length > mtu)),
    _Count(_SEVERAL, lambda length, mtu: _rounded_up(length, mtu) - (length > mtu)),
)
"""Wrong counts that are tried, the most special ones first."""
