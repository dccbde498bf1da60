"""Traps of nodes, repeated until the subnet manager has heard (IBA 13.4.9, 14.2.5.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ibwire.base.units import US, Time
from ibwire.fabric.infiniband.subnet import Node, Port
from ibwire.sm.mads import (
    DR_SLID,
    HOP_COUNT,
    METHOD,
    MGMT_CLASS,
    MKEY,
    MODIFIER,
    RETURN_PATH,
    SMP_DATA,
    TID,
    Datagram,
    attribute_of,
)
from ibwire_layers.attributes import SMAttribute
from ibwire_layers.headers import GRH
from ibwire_layers.mad import MAD, MAD_SIZE, Method, MgmtClass, Notice, Trap

URGENT, SECURITY, INFORMATIONAL = 1, 2, 4
"""Types of a Notice."""
CA, SWITCH = 1, 2
"""Producer types."""
LEAST_WAIT: Time = 100_000 * US
"""Before a trap is repeated, however short the port's SubnetTimeOut."""
_LIDS, _PKEY, _SL, _QP1, _QP2, _GIDS = 0xC000, 0x2000, 0x1000, 0x0800, 0x0400, 0x0300
"""Bits of DataValid in trap 259: which details the packet had. The order is that of Omni-Path in
Wireshark (packet-opa.c); no source for the one of InfiniBand is at hand, and opensm prints the
number as it is."""
_OF_PACKETS = (Trap.BAD_M_KEY, Trap.BAD_P_KEY, Trap.BAD_Q_KEY, Trap.BAD_P_KEY_AT_SWITCH)
"""Security traps. Every packet of a sender may cause one, so different ones wait for SubnetTimeOut
too, as those of Linux do (drivers/infiniband/hw/qib/qib_mad.c, o14-2)."""
_DIRECTED, _TRUNCATED, _LONGEST_PATH = 0x80, 0x40, 30
"""In trap 256: flags beside the hop count, and the bytes there are for the return path. They begin
with that of hop 0, as in Linux (drivers/infiniband/hw/qib/qib_mad.c, qib_bad_mkey)."""
REPEATS = 100
"""Times that a trap is sent without a response."""


@dataclass(slots=True)
class _Open:
    """A trap that has not been repressed. port: the one that sends it."""

    port: Port
    notice: bytes
    tid: int
    due: Time
    left: int = REPEATS


class TrapSender:
    """The traps of all nodes of a subnet: of each port and number the newest.

    send: takes a MAD that leaves a port.
    """

    def __init__(self, send: Callable[[Datagram, Port], None]) -> None:
        self._send = send
        self._open: dict[tuple[Port, int], _Open] = {}
        """By the port that the trap is about, and its number."""
        self._not_before: dict[tuple[Port, int], Time] = {}
        """The same for security traps that were repressed: when the next one may be sent."""
        self._tid = 0

    def link_changed(self, node: Node) -> None:
        """Trap 128: the link of a port of a switch has changed its state."""
        port = node.ports[0]
        self._add(port, Trap.LINK_STATE_CHANGE, URGENT, port.lid.to_bytes(2, "big"))

    def link_error(self, port: Port, number: Trap) -> None:
        """Traps 129 to 131: link integrity, buffer overruns, or missing flow-control packets."""
        lid = port.management.lid
        details = bytes(2) + lid.to_bytes(2, "big") + bytes((port.number,))
        self._add(port, number, URGENT, details)

    def capabilities_changed(self, port: Port) -> None:
        """Trap 144: the capability mask of a port has changed."""
        details = bytes(2) + port.lid.to_bytes(2, "big") + bytes(2)
        details += port.capability_mask.to_bytes(4, "big") + bytes(4)
        self._add(port, Trap.CAPABILITY_CHANGE, INFORMATIONAL, details)

    def bad_mkey(self, port: Port, datagram: Datagram) -> None:
        """Trap 256: a packet with a wrong M_Key."""
        mad = datagram.mad
        is_directed = datagram.is_directed
        details = bytes(2) + datagram.slid.to_bytes(2, "big")
        details += bytes(mad[DR_SLID]) if is_directed else bytes(2)
        details += bytes((mad[METHOD], 0)) + attribute_of(mad).to_bytes(2, "big")
        details += bytes(mad[MODIFIER]) + bytes(mad[MKEY])
        if is_directed:
            hops = min(mad[HOP_COUNT], _LONGEST_PATH)
            flags = _DIRECTED | (_TRUNCATED if mad[HOP_COUNT] > hops else 0)
            details += bytes((0, flags | hops)) + bytes(mad[RETURN_PATH : RETURN_PATH + hops])
        self._add(port, Trap.BAD_M_KEY, SECURITY, details)

    def bad_pkey(self, port: Port, datagram: Datagram) -> None:
        """Trap 257: a packet whose P_Key the port has not."""
        key = datagram.pkey.to_bytes(4, "big")
        self._add(port, Trap.BAD_P_KEY, SECURITY, bytes(2) + _of_packet(datagram, key))

    def bad_qkey(self, port: Port, datagram: Datagram) -> None:
        """Trap 258: a packet whose Q_Key is not that of the queue pair."""
        key = datagram.qkey.to_bytes(4, "big")
        self._add(port, Trap.BAD_Q_KEY, SECURITY, bytes(2) + _of_packet(datagram, key))

    def bad_pkey_at_switch(
        self, port: Port, datagram: Datagram, *, has_source_qp: bool = True
    ) -> None:
        """Trap 259: a port of a switch does not let a packet pass by its P_Key.

        has_source_qp: whether the packet has a DETH, which names it.
        """
        valid = _LIDS | _PKEY | _SL | _QP2
        valid |= (_QP1 if has_source_qp else 0) | (_GIDS if datagram.grh is not None else 0)
        details = valid.to_bytes(2, "big") + _of_packet(datagram, datagram.pkey.to_bytes(2, "big"))
        details += port.management.lid.to_bytes(2, "big") + bytes((port.number,))
        self._add(port, Trap.BAD_P_KEY_AT_SWITCH, SECURITY, details)

    def repress(self, port: Port, datagram: Datagram) -> bool:
        """Stop a trap that the subnet manager has heard; whether it is one of this port."""
        for key, trap in self._open.items():
            if trap.port is port and trap.tid == int.from_bytes(datagram.mad[TID], "big"):
                del self._open[key]
                if key[1] in _OF_PACKETS:
                    self._not_before[key] = trap.due
                return True
        return False

    def poll_timeout(self) -> Time | None:
        """When the next trap is due."""
        return min((trap.due for trap in self._open.values()), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Send the traps that are due."""
        for key, trap in list(self._open.items()):
            if trap.due > now:
                continue
            if trap.left == 0:
                del self._open[key]
                continue
            if trap.port.master_sm_lid == 0 or trap.port.lid == 0:
                # No subnet manager has been here; it will look by itself.
                del self._open[key]
                continue
            trap.left -= 1
            trap.due = now + max(LEAST_WAIT, 4_096_000 << trap.port.subnet_timeout)
            self._send(self._datagram(trap), trap.port)

    def _add(self, about: Port, number: Trap, kind: int, details: bytes) -> None:
        port = about.management
        if port.master_sm_lid == 0 or port.lid == 0:
            return
        producer = SWITCH if port.node.is_switch else CA
        notice = Notice(
            is_generic=1,
            type=kind,
            producer_type=producer,
            trap_number=number,
            issuer_lid=port.lid,
            data_details=details.ljust(54, b"\0"),
        ).pack()
        before = self._open.get((about, number))
        if before is not None and before.notice == notice:
            return
        due: Time = 0
        if number in _OF_PACKETS:
            not_before = self._not_before.pop((about, number), 0)
            due = not_before if before is None else before.due
        self._tid += 1
        self._open[about, number] = _Open(port, notice, self._tid, due)

    def _datagram(self, trap: _Open) -> Datagram:
        header = MAD(
            mgmt_class=MgmtClass.SUBN_LID_ROUTED,
            class_version=1,
            method=Method.TRAP,
            transaction_id=trap.tid,
            attribute_id=SMAttribute.NOTICE,
        ).pack()
        mad = bytearray(header.ljust(MAD_SIZE, b"\0"))
        mad[SMP_DATA] = trap.notice.ljust(64, b"\0")
        assert mad[MGMT_CLASS] == MgmtClass.SUBN_LID_ROUTED
        port = trap.port
        return Datagram(
            mad, slid=port.lid, dlid=port.master_sm_lid, sqp=0, dqp=0, sl=port.master_sm_sl
        )


def _of_packet(datagram: Datagram, key: bytes) -> bytes:
    """LIDs, key, service level, queue pairs and GIDs of a packet; of its sender first."""
    details = datagram.slid.to_bytes(2, "big") + datagram.dlid.to_bytes(2, "big") + key
    details += (datagram.sl << 28 | datagram.sqp).to_bytes(4, "big")
    details += datagram.dqp.to_bytes(4, "big")
    if datagram.grh is None:
        return details + bytes(_GIDS_SIZE)
    return details + bytes(datagram.grh[GRH.SIZE - _GIDS_SIZE : GRH.SIZE])


_GIDS_SIZE = 32
