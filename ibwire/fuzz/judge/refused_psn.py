"""Whether a device does what a right one would do that counts the PSN of a request it has refused.

A request that finds no receive request draws an RNR NAK and comes again: the expected PSN stays. A
device that goes on takes what comes again for a duplicate, and what follows for the next request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Packet, Receive, Step
from ibwire.fuzz.judge.request_names import NOT_READY
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire_layers.psn import MASK

GROUP = "the PSN of a request that draws an RNR NAK"
RULE = NOT_READY.rule


def counts_refused(trials: Trials, abouts: Sequence[About]) -> bool:
    """Whether the reference does what the device does, if it counts that PSN.

    abouts: what each step is about.
    """
    earlier = enumerate(zip(trials.steps[:-1], abouts, strict=False))
    places = [
        place
        for place, (step, about) in earlier
        if isinstance(step, Packet) and about.rule == NOT_READY.rule
    ]
    # An unasked ACK after a posted receive may have another PSN for another reason.
    is_asked = not isinstance(trials.steps[-1], Receive)
    if not places or not is_asked or not trials.case.connection.is_reliable:
        return False
    tried = [[places[-1]], places] if len(places) > 1 else [places]
    return trials.first_that_shows([Variant(_counting(each)) for each in tried]) is not None


def _counting(places: Collection[int]) -> Callable[[Sequence[Step]], Deliver]:
    """Frames arrive as usual, but some requests that are refused take their PSN."""

    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        responder = reference.qp.responder
        before = responder.epsn
        reference.receive(frame)
        if number in places and responder.epsn == before:
            responder.epsn = before + 1 & MASK

    return lambda steps: deliver
