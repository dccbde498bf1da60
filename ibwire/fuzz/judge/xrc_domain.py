"""Whether a device looks up the R_Keys of XRC in the protection domain of its queue pair.

Whatever uses an R_Key is refused then. A right device takes the domain of the shared receive queue
that a request names.
"""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Step
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation

GROUP = "the protection domain of XRC"
RULE = "IBA A14; docs/reference/transport.md#xrc"


def takes_domain_of_pair(trials: Trials) -> bool:
    """Whether the reference does what the device does, if it takes that domain."""
    if trials.case.connection.service != "XRC_RECV":
        return False
    return trials.first_that_shows([Variant(_looking_up)]) is not None


def _looking_up(steps: Sequence[Step]) -> Deliver:
    return _in_domain_of_pair


def _in_domain_of_pair(reference: Emulation, number: int, frame: Frame) -> None:
    qp = reference.qp
    queue = qp.find_srq(reference.symbols["srqn"])
    if queue is None:
        reference.receive(frame)
        return
    own = queue.pd
    queue.pd = qp.pd
    reference.receive(frame)
    queue.pd = own
