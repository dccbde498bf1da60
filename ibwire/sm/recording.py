"""MADs on the links of a fabric as packets in a capture: LRH, BTH, DETH, both CRCs."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path

from ibwire.base.errors import OutputError
from ibwire.capture.erf import erf_record
from ibwire.capture.writer import CaptureWriter
from ibwire.fabric.infiniband.subnet import Port
from ibwire.fabric.infiniband.tables import DEFAULT_SL_TO_VL
from ibwire.sm.mads import GRH_WORDS, MGMT_CLASS, PACKET_WORDS, SMP_CLASSES, Datagram
from ibwire_layers.headers import BTH, DETH, GRH, LRH
from ibwire_layers.mad import GSI_QKEY
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import IBRoute, Packet

MANAGEMENT_VL = 15
LOCAL, GLOBAL = 2, 3
"""LNH."""

log = logging.getLogger(__name__)


class Recording:
    """Writes what ports send and receive to a capture file, as ERF records.

    Each port is an interface of a pcapng; a pcap has all of them in one. Raises `OutputError` for a
    file that cannot be written.
    """

    def __init__(self, path: Path, ports: Collection[Port]) -> None:
        self.packets = 0
        """Packets on links; one between two of the ports is in the file twice."""
        self._problem: OutputError | None = None
        """Why the file ended early."""
        self._writer = CaptureWriter(path)
        self._interfaces: dict[Port, int] = {}
        for port in ports:
            name = f"{port.node.name}[{port.number}]"
            self._interfaces[port] = self._writer.interface(name, LinkType.ERF, name)
        self._writer.flush()

    def passes(self, leaving: Port, arriving: Port, datagram: Datagram, came: int) -> None:
        """Take a MAD that goes over a link; a file that cannot be written ends there.

        came: the port by which it came into the node that it leaves; 0 if it comes from there.
        """
        if self._problem is not None:
            return
        found = [self._interfaces[port] for port in (leaving, arriving) if port in self._interfaces]
        if not found:
            return
        now = time.time_ns()
        packet = packet_of(datagram, vl=_lane_of(leaving, datagram, came))
        record = erf_record(packet, now)
        try:
            for interface in found:
                self._writer.write(record, now, interface=interface)
            self._writer.flush()
        except OutputError as error:
            log.warning("%s", error)
            self._problem = error
            return
        self.packets += 1

    def close(self) -> None:
        """Finish the file; raises `OutputError` if it is incomplete."""
        try:
            self._writer.close()
        finally:
            if self._problem is not None:
                raise self._problem


def packet_of(datagram: Datagram, *, vl: int) -> bytes:
    """The packet of a MAD, from the LRH to the VCRC."""
    grh = None if datagram.grh is None else GRH.unpack(datagram.grh)
    lrh = LRH(
        vl=vl,
        sl=datagram.sl,
        lnh=LOCAL if grh is None else GLOBAL,
        dlid=datagram.dlid,
        pkt_len=PACKET_WORDS + (0 if grh is None else GRH_WORDS),
        slid=datagram.slid,
    )
    qkey = (datagram.qkey or GSI_QKEY) if datagram.dqp else 0
    return Packet(
        IBRoute(lrh, grh),
        BTH(opcode=OpCode.UD_SEND_ONLY, pkey=datagram.pkey, dest_qp=datagram.dqp, psn=datagram.psn),
        (DETH(qkey=qkey, src_qp=datagram.sqp),),
        payload=bytes(datagram.mad),
    ).build()


def _lane_of(leaving: Port, datagram: Datagram, came: int) -> int:
    """The lane of a MAD: VL15 for subnet management, else that of its service level."""
    if datagram.mad[MGMT_CLASS] in SMP_CLASSES:
        return MANAGEMENT_VL
    if leaving.operational_vls <= 1:
        return 0
    table = leaving.sl2vl.get(came if leaving.node.is_switch else 0, DEFAULT_SL_TO_VL)
    byte = table[datagram.sl >> 1]
    return byte & 15 if datagram.sl & 1 else byte >> 4
