"""Where a MAD goes next, from node to node.

A directed-route SMP names the port of each hop, and collects the way back; any other MAD follows
its destination LID (IBA 14.2.2, C14-9 to C14-13).
"""

from __future__ import annotations

from ibwire.fabric.infiniband.subnet import NO_PORT, PERMISSIVE_LID, Node, Port
from ibwire.sm.mads import (
    DIRECTION,
    DR_DLID,
    DR_SLID,
    HOP_COUNT,
    HOP_POINTER,
    INITIAL_PATH,
    MAXIMUM_HOPS,
    MGMT_CLASS,
    PERMISSIVE,
    RETURN_PATH,
    STATUS_BYTE,
    Datagram,
)
from ibwire_layers.mad import MgmtClass

DELIVER = -1
"""The MAD is for this node."""
BY_LID = -2
"""The directed part of the path ends here; the rest goes by LID."""
DISCARD = -3
_DIRECTED_ROUTE = int(MgmtClass.SUBN_DIRECTED_ROUTE)


def is_directed_throughout(datagram: Datagram) -> bool:
    """Whether a MAD is a directed-route SMP at the beginning of its path, which goes by ports only.

    Those with hops of 0, which stay at their node, are left to `directed`.
    """
    mad = datagram.mad
    hops = mad[HOP_COUNT]
    if (
        mad[MGMT_CLASS] != _DIRECTED_ROUTE
        or datagram.dlid != PERMISSIVE_LID
        or not 0 < hops <= MAXIMUM_HOPS
    ):
        return False
    if mad[STATUS_BYTE] & DIRECTION:
        return mad[HOP_POINTER] == hops + 1 and mad[DR_SLID] == PERMISSIVE
    return mad[HOP_POINTER] == 0 and mad[DR_DLID] == PERMISSIVE


def directed(mad: bytearray, node: Node, arrived: int | None) -> int:
    """The output port of a directed-route SMP at a node, or what else becomes of it.

    arrived: the port it came in by; `None` for the node that sends it. The hop pointer and the
    return path in `mad` change.
    """
    if mad[HOP_COUNT] > MAXIMUM_HOPS:
        return DISCARD
    if mad[4] & DIRECTION:
        return _returning(mad, node, is_sender=arrived is None)
    return _outbound(mad, node, arrived)


def next_port(datagram: Datagram, node: Node, arrived: Port | None) -> int:
    """The output port of a MAD at a node, or what else becomes of it.

    arrived: the port it came in by; `None` for the node that sends it. At both ends of the directed
    part of a path its LIDs change.
    """
    mad = datagram.mad
    if mad[MGMT_CLASS] == _DIRECTED_ROUTE and datagram.dlid == PERMISSIVE_LID:
        out = directed(mad, node, None if arrived is None else arrived.number)
        if out == BY_LID:
            to = mad[DR_SLID] if mad[STATUS_BYTE] & DIRECTION else mad[DR_DLID]
            datagram.slid, datagram.dlid = node.ports[0].lid, int.from_bytes(to, "big")
            out = by_lid(datagram, node, arrived)
        return out
    out = by_lid(datagram, node, arrived)
    if mad[MGMT_CLASS] == _DIRECTED_ROUTE and (out == DELIVER or (out == 0 and node.is_switch)):
        hops = mad[HOP_COUNT]
        if hops and mad[HOP_POINTER] == (hops + 1 if mad[STATUS_BYTE] & DIRECTION else 0):
            # What has come by LID to where the directed part begins.
            datagram.slid = datagram.dlid = PERMISSIVE_LID
            return directed(mad, node, None) if node.is_switch else DISCARD
    return out


def _outbound(mad: bytearray, node: Node, arrived: int | None) -> int:
    pointer, hops = mad[HOP_POINTER], mad[HOP_COUNT]
    if arrived is None:
        if hops == 0:
            return DELIVER if mad[DR_DLID] == PERMISSIVE else DISCARD
        if pointer != 0:
            return DISCARD
        mad[HOP_POINTER] = 1
        return mad[INITIAL_PATH + 1]
    if 0 < pointer < hops:
        if not node.is_switch:
            return DISCARD
        mad[RETURN_PATH + pointer] = arrived
        mad[HOP_POINTER] = pointer + 1
        return mad[INITIAL_PATH + pointer + 1]
    if pointer == hops:
        if hops:
            mad[RETURN_PATH + pointer] = arrived
        mad[HOP_POINTER] = pointer + 1
        if mad[DR_DLID] == PERMISSIVE:
            return DELIVER
        return BY_LID if node.is_switch else DISCARD
    return DELIVER if pointer == hops + 1 else DISCARD


def _returning(mad: bytearray, node: Node, *, is_sender: bool) -> int:
    pointer, hops = mad[HOP_POINTER], mad[HOP_COUNT]
    if is_sender:
        if hops == 0:
            return DELIVER
        if pointer != hops + 1:
            return DISCARD
        mad[HOP_POINTER] = pointer - 1
        return mad[RETURN_PATH + pointer - 1]
    if 2 <= pointer <= hops:
        if not node.is_switch:
            return DISCARD
        mad[HOP_POINTER] = pointer - 1
        return mad[RETURN_PATH + pointer - 1]
    if pointer == 1:
        mad[HOP_POINTER] = 0
        if mad[DR_SLID] == PERMISSIVE:
            return DELIVER
        return BY_LID if node.is_switch else DISCARD
    return DELIVER if pointer == 0 else DISCARD


def by_lid(datagram: Datagram, node: Node, arrived: Port | None) -> int:
    """The output port of a MAD that goes by LID at a node, or what else becomes of it."""
    if not node.is_switch:
        if arrived is None:
            return DISCARD
        return DELIVER if arrived.has_lid(datagram.dlid) else DISCARD
    out = node.route(datagram.dlid)
    if out == NO_PORT:
        return DISCARD
    if out == 0:
        return DELIVER
    return out
