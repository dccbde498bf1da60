"""MADs as they travel: their bytes, with the addresses of the packet around them.

The offsets of fields that are read for every MAD are taken from the headers of `ibwire_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibwire_layers.mad import MAD_SIZE, Method, MgmtClass

MGMT_CLASS = 1
METHOD = 3
STATUS = slice(4, 6)
STATUS_BYTE = 4
"""The first byte of it."""
HOP_POINTER, HOP_COUNT = 6, 7
"""Of a directed-route SMP."""
TID = slice(8, 16)
ATTRIBUTE = slice(16, 18)
MODIFIER = slice(20, 24)
MKEY = slice(24, 32)
DR_SLID, DR_DLID = slice(32, 34), slice(34, 36)
SMP_DATA = slice(64, 128)
INITIAL_PATH, RETURN_PATH = 128, 192
"""Offsets of hop 0."""
MAXIMUM_HOPS = 63

DIRECTION = 0x80
"""Bit of the first byte of Status: a directed-route SMP is on its way back."""
RESPONSE = 0x80
"""Bit of the method."""
PERMISSIVE = b"\xff\xff"

SMP_CLASSES = (int(MgmtClass.SUBN_LID_ROUTED), int(MgmtClass.SUBN_DIRECTED_ROUTE))
_GET_OR_SET = (int(Method.GET), int(Method.SET))
_DIRECTED_ROUTE = int(MgmtClass.SUBN_DIRECTED_ROUTE)
_GET_RESP, _TRAP_REPRESS = int(Method.GET_RESP), int(Method.TRAP_REPRESS)

PACKET_WORDS = (8 + 12 + 8 + MAD_SIZE + 4) // 4
"""LRH.PktLen of a MAD without GRH: LRH, BTH, DETH, the MAD and the ICRC."""
GRH_WORDS = 10


@dataclass(slots=True)
class Datagram:
    """A MAD and the addresses of its packet.

    slid, dlid: LIDs; 0xFFFF in the directed parts of a path. sqp, dqp: queue pairs, 0 or 1.
    grh: the 40 bytes of a global route header. psn: of its packet, given when it is sent.
    """

    mad: bytearray
    slid: int
    dlid: int
    sqp: int
    dqp: int
    sl: int = 0
    qkey: int = 0
    pkey: int = 0xFFFF
    grh: bytes | None = None
    psn: int = 0

    @property
    def is_directed(self) -> bool:
        """Whether it is a directed-route SMP."""
        return self.mad[MGMT_CLASS] == _DIRECTED_ROUTE

    @property
    def is_response(self) -> bool:
        """Whether it answers another: a response, or TrapRepress."""
        method = self.mad[METHOD]
        return bool(method & RESPONSE) or method == _TRAP_REPRESS

    def answer(self, *, status: int = 0, data: bytes | None = None, at: int = 64) -> Datagram:
        """The response to it, which goes back where it came from.

        data: replaces the bytes from offset `at` on.
        """
        mad = bytearray(self.mad)
        method = mad[METHOD]
        mad[METHOD] = _GET_RESP if method in _GET_OR_SET else method | RESPONSE
        if self.is_directed:
            status |= DIRECTION << 8
        mad[STATUS] = status.to_bytes(2, "big")
        if data is not None:
            mad[at : at + len(data)] = data
        return Datagram(
            mad,
            slid=self.dlid,
            dlid=self.slid,
            sqp=self.dqp,
            dqp=self.sqp,
            sl=self.sl,
            qkey=self.qkey,
            pkey=self.pkey,
        )


def attribute_of(mad: bytes | bytearray) -> int:
    """AttributeID."""
    return mad[16] << 8 | mad[17]
