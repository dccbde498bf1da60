"""Whether a device looks up the R_Keys of XRC in the protection domain of its queue pair.

Whatever uses an R_Key is refused then. A right device takes the domain of the shared receive queue
that a request names.
"""

from __future__ import annotations

from ibwire.base.node import Frame
from ibwire.fuzz.judge.variants import Trials
from ibwire.fuzz.targets.emulated_device import Emulation

GROUP = "the protection domain of XRC"
RULE = "IBA A14; docs/reference/transport.md#xrc"


def takes_domain_of_pair(trials: Trials) -> bool:
    """Whether the reference does what the device does, if it takes that domain."""
    case = trials.case
    if case.connection.service != "XRC_RECV":
        return False
    return trials.first_that_shows([(case, _in_domain_of_pair)]) is not None


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
