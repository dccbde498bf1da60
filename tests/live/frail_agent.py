"""The agent of `ibwire drill` on a device of ours with a weakness that packets find.

Arguments: the interface, the profile, what the device does not bear, and what it does then.
"""

import os
import signal
import sys
from contextlib import suppress

from drill_agent import main

from ibwire.base.errors import DecodeError
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.attributes import QPAttr, QPAttrMask, QPState
from ibwire_layers.headers import RETH
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.packet import Packet


class Frail:
    """A node in front of a device: it sees what arrives."""

    def __init__(self, endpoint, is_too_much, suffer):
        self.live = endpoint.live
        self.node = endpoint.live.node
        self.device = endpoint.device
        self.is_too_much = is_too_much
        self.suffer = suffer
        self.invalidated = []
        """Queue pairs to which a SEND that invalidates has come."""

    def receive(self, frame, now, port=0):
        with suppress(DecodeError):
            packet = Packet.parse(frame, strict=False)
            if self.is_too_much(self, packet):
                self.suffer(self, packet.bth.dest_qp)
        self.node.receive(frame, now, port)

    def __getattr__(self, name):
        return getattr(self.node, name)


# What it does not bear.


def opcode(frail, packet):
    """An opcode that there is not."""
    return packet.bth.opcode not in INFO


def zero(frail, packet):
    """A WRITE whose length is 0, though it has a payload: Linux rxe 6.1 does not survive it."""
    reth = packet.extension(RETH)
    is_write = packet.bth.opcode == OpCode.RC_RDMA_WRITE_ONLY
    return is_write and reth is not None and not reth.dma_len and len(packet.payload) > 0


def twice(frail, packet):
    """Two SENDs that invalidate on one connection: nor this."""
    return _invalidates(frail, packet) and len({*frail.invalidated}) < len(frail.invalidated)


def across(frail, packet):
    """Two SENDs that invalidate, on two connections."""
    return _invalidates(frail, packet) and len({*frail.invalidated}) > 1


def _invalidates(frail, packet):
    if packet.bth.opcode != OpCode.RC_SEND_ONLY_WITH_INVALIDATE:
        return False
    frail.invalidated.append(packet.bth.dest_qp)
    return True


# What it does then.


def dies(frail, qpn):
    """The process is gone."""
    os._exit(1)


def stalls(frail, qpn):
    """The process neither continues nor ends."""
    while True:
        signal.pause()


def falls_deaf(frail, qpn):
    """The device continues, and its agent does not."""
    frail.live.run()


def others(frail, qpn):
    """The other connections end."""
    for number, qp in frail.device.qps.items():
        if number not in (1, qpn):
            qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)


def scribbles(frail, qpn):
    """All memory is written to."""
    for region in frail.device.keys._regions.values():
        region.write(region.iova, b"scribble")


if __name__ == "__main__":
    name, profile, *weakness = sys.argv[1:]

    def weaken(endpoint):
        endpoint.live.node = Frail(endpoint, *(globals()[each] for each in weakness))

    with suppress(Interrupted):
        main(name, profile, weaken=weaken)
