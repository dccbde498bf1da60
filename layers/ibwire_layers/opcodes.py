"""BTH opcodes, and the extension headers and payload of each.

The upper three bits select the transport service, the lower five the operation. `INFO` is the
only table of properties by opcode.

Source: IBA 9.2.1 (RC, UC, RD, UD), annex A14 (XRC), annex A17 (CNP), annex A19
(FLUSH, ATOMIC WRITE, as Linux rxe sends them). No frame with RD FLUSH, RD ATOMIC
WRITE, XRC FLUSH or XRC ATOMIC WRITE from a real device is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from ibwire_layers import headers as h
from ibwire_layers.schema import Header


class OpCode(IntEnum):
    """The specification's opcodes, by transport service and operation."""

    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_WITH_IMMEDIATE = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_WITH_IMMEDIATE = 0x05
    RC_RDMA_WRITE_FIRST = 0x06
    RC_RDMA_WRITE_MIDDLE = 0x07
    RC_RDMA_WRITE_LAST = 0x08
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RC_RDMA_WRITE_ONLY = 0x0A
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RC_RDMA_READ_REQUEST = 0x0C
    RC_RDMA_READ_RESPONSE_FIRST = 0x0D
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RC_RDMA_READ_RESPONSE_LAST = 0x0F
    RC_RDMA_READ_RESPONSE_ONLY = 0x10
    RC_ACKNOWLEDGE = 0x11
    RC_ATOMIC_ACKNOWLEDGE = 0x12
    RC_COMPARE_SWAP = 0x13
    RC_FETCH_ADD = 0x14
    RC_SEND_LAST_WITH_INVALIDATE = 0x16
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17
    RC_FLUSH = 0x1C
    RC_ATOMIC_WRITE = 0x1D
    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_WITH_IMMEDIATE = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_WITH_IMMEDIATE = 0x25
    UC_RDMA_WRITE_FIRST = 0x26
    UC_RDMA_WRITE_MIDDLE = 0x27
    UC_RDMA_WRITE_LAST = 0x28
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29
    UC_RDMA_WRITE_ONLY = 0x2A
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2B
    RD_SEND_FIRST = 0x40
    RD_SEND_MIDDLE = 0x41
    RD_SEND_LAST = 0x42
    RD_SEND_LAST_WITH_IMMEDIATE = 0x43
    RD_SEND_ONLY = 0x44
    RD_SEND_ONLY_WITH_IMMEDIATE = 0x45
    RD_RDMA_WRITE_FIRST = 0x46
    RD_RDMA_WRITE_MIDDLE = 0x47
    RD_RDMA_WRITE_LAST = 0x48
    RD_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x49
    RD_RDMA_WRITE_ONLY = 0x4A
    RD_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x4B
    RD_RDMA_READ_REQUEST = 0x4C
    RD_RDMA_READ_RESPONSE_FIRST = 0x4D
    RD_RDMA_READ_RESPONSE_MIDDLE = 0x4E
    RD_RDMA_READ_RESPONSE_LAST = 0x4F
    RD_RDMA_READ_RESPONSE_ONLY = 0x50
    RD_ACKNOWLEDGE = 0x51
    RD_ATOMIC_ACKNOWLEDGE = 0x52
    RD_COMPARE_SWAP = 0x53
    RD_FETCH_ADD = 0x54
    RD_RESYNC = 0x55
    RD_FLUSH = 0x5C
    RD_ATOMIC_WRITE = 0x5D
    UD_SEND_ONLY = 0x64
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65
    CNP = 0x81
    XRC_SEND_FIRST = 0xA0
    XRC_SEND_MIDDLE = 0xA1
    XRC_SEND_LAST = 0xA2
    XRC_SEND_LAST_WITH_IMMEDIATE = 0xA3
    XRC_SEND_ONLY = 0xA4
    XRC_SEND_ONLY_WITH_IMMEDIATE = 0xA5
    XRC_RDMA_WRITE_FIRST = 0xA6
    XRC_RDMA_WRITE_MIDDLE = 0xA7
    XRC_RDMA_WRITE_LAST = 0xA8
    XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0xA9
    XRC_RDMA_WRITE_ONLY = 0xAA
    XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0xAB
    XRC_RDMA_READ_REQUEST = 0xAC
    XRC_RDMA_READ_RESPONSE_FIRST = 0xAD
    XRC_RDMA_READ_RESPONSE_MIDDLE = 0xAE
    XRC_RDMA_READ_RESPONSE_LAST = 0xAF
    XRC_RDMA_READ_RESPONSE_ONLY = 0xB0
    XRC_ACKNOWLEDGE = 0xB1
    XRC_ATOMIC_ACKNOWLEDGE = 0xB2
    XRC_COMPARE_SWAP = 0xB3
    XRC_FETCH_ADD = 0xB4
    XRC_SEND_LAST_WITH_INVALIDATE = 0xB6
    XRC_SEND_ONLY_WITH_INVALIDATE = 0xB7
    XRC_FLUSH = 0xBC
    XRC_ATOMIC_WRITE = 0xBD


class Service(IntEnum):
    """Transport service: bits 7:5 of the opcode."""

    RC = 0
    UC = 1
    RD = 2
    UD = 3
    CNP = 4
    XRC = 5


class Operation(Enum):
    """The operation that a packet requests or answers."""

    SEND = "SEND"
    WRITE = "RDMA WRITE"
    READ = "RDMA READ"
    READ_RESPONSE = "RDMA READ response"
    ACKNOWLEDGE = "acknowledge"
    ATOMIC_ACKNOWLEDGE = "atomic acknowledge"
    COMPARE_SWAP = "COMPARE SWAP"
    FETCH_ADD = "FETCH ADD"
    RESYNC = "RESYNC"
    FLUSH = "FLUSH"
    ATOMIC_WRITE = "ATOMIC WRITE"
    CONGESTION = "congestion notification"

    @property
    def is_response(self) -> bool:
        """Whether it goes from the responder to the requester."""
        return self in (
            Operation.READ_RESPONSE,
            Operation.ACKNOWLEDGE,
            Operation.ATOMIC_ACKNOWLEDGE,
        )


class Position(Enum):
    """Position of a packet in its message."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    ONLY = "only"


class Payload(Enum):
    """How many payload bytes an opcode allows."""

    NONE = "0"
    PMTU = "pmtu"
    """Exactly the path MTU."""
    SOME = "1..pmtu"
    ANY = "0..pmtu"
    EIGHT = "8"


@dataclass(frozen=True, slots=True)
class OpCodeInfo:
    """Properties of the packets with an opcode."""

    opcode: OpCode
    service: Service
    operation: Operation
    position: Position
    headers: tuple[type[Header], ...]
    """Extension headers in wire order."""
    payload: Payload

    @property
    def header_size(self) -> int:
        """Bytes from the start of the BTH to the start of the payload."""
        return h.BTH.SIZE + sum(header.SIZE for header in self.headers)

    @property
    def is_response(self) -> bool:
        """Whether it goes from the responder to the requester."""
        return self.operation.is_response


def name_of(opcode: int) -> str:
    """The specification's name, or `OPCODE_0x..` for one that is not in the table."""
    info = INFO.get(opcode)
    return info.opcode.name if info else f"OPCODE_0x{opcode:02X}"


_FIRST, _MIDDLE, _LAST, _ONLY = Position

# Operation part of the opcode -> operation, position, the extension headers that it has in
# every service, and payload rule.
_OPERATIONS: dict[int, tuple[Operation, Position, tuple[type[Header], ...], Payload]] = {
    0x00: (Operation.SEND, _FIRST, (), Payload.PMTU),
    0x01: (Operation.SEND, _MIDDLE, (), Payload.PMTU),
    0x02: (Operation.SEND, _LAST, (), Payload.SOME),
    0x03: (Operation.SEND, _LAST, (h.ImmDt,), Payload.SOME),
    0x04: (Operation.SEND, _ONLY, (), Payload.ANY),
    0x05: (Operation.SEND, _ONLY, (h.ImmDt,), Payload.ANY),
    0x06: (Operation.WRITE, _FIRST, (h.RETH,), Payload.PMTU),
    0x07: (Operation.WRITE, _MIDDLE, (), Payload.PMTU),
    0x08: (Operation.WRITE, _LAST, (), Payload.SOME),
    0x09: (Operation.WRITE, _LAST, (h.ImmDt,), Payload.SOME),
    0x0A: (Operation.WRITE, _ONLY, (h.RETH,), Payload.ANY),
    0x0B: (Operation.WRITE, _ONLY, (h.RETH, h.ImmDt), Payload.ANY),
    0x0C: (Operation.READ, _ONLY, (h.RETH,), Payload.NONE),
    0x0D: (Operation.READ_RESPONSE, _FIRST, (h.AETH,), Payload.PMTU),
    0x0E: (Operation.READ_RESPONSE, _MIDDLE, (), Payload.PMTU),
    0x0F: (Operation.READ_RESPONSE, _LAST, (h.AETH,), Payload.SOME),
    0x10: (Operation.READ_RESPONSE, _ONLY, (h.AETH,), Payload.ANY),
    0x11: (Operation.ACKNOWLEDGE, _ONLY, (h.AETH,), Payload.NONE),
    0x12: (Operation.ATOMIC_ACKNOWLEDGE, _ONLY, (h.AETH, h.AtomicAckETH), Payload.NONE),
    0x13: (Operation.COMPARE_SWAP, _ONLY, (h.AtomicETH,), Payload.NONE),
    0x14: (Operation.FETCH_ADD, _ONLY, (h.AtomicETH,), Payload.NONE),
    0x15: (Operation.RESYNC, _ONLY, (), Payload.NONE),
    0x16: (Operation.SEND, _LAST, (h.IETH,), Payload.SOME),
    0x17: (Operation.SEND, _ONLY, (h.IETH,), Payload.ANY),
    0x1C: (Operation.FLUSH, _ONLY, (h.FETH, h.RETH), Payload.NONE),
    0x1D: (Operation.ATOMIC_WRITE, _ONLY, (h.RETH,), Payload.EIGHT),
}

# Service -> first extension headers of every request, and of every response.
_SERVICE_HEADERS: dict[Service, tuple[tuple[type[Header], ...], tuple[type[Header], ...]]] = {
    Service.RC: ((), ()),
    Service.UC: ((), ()),
    Service.RD: ((h.RDETH, h.DETH), (h.RDETH,)),
    Service.UD: ((h.DETH,), ()),
    Service.XRC: ((h.XRCETH,), ()),
}

# RD FLUSH has no DETH in the one public description of it (the Linux series).
_EXCEPTIONS = {OpCode.RD_FLUSH: (h.RDETH, h.FETH, h.RETH)}


def _describe(opcode: OpCode) -> OpCodeInfo:
    if opcode is OpCode.CNP:
        return OpCodeInfo(
            opcode,
            Service.CNP,
            Operation.CONGESTION,
            Position.ONLY,
            headers=(h.CNPReserved,),
            payload=Payload.NONE,
        )
    service = Service(opcode >> 5)
    operation, position, own, payload = _OPERATIONS[opcode & 0x1F]
    request, response = _SERVICE_HEADERS[service]
    headers = (response if operation.is_response else request) + own
    headers = _EXCEPTIONS.get(opcode, headers)
    return OpCodeInfo(opcode, service, operation, position, headers, payload)


INFO: dict[int, OpCodeInfo] = {opcode: _describe(opcode) for opcode in OpCode}
"""Every known opcode."""

EXTENSION_HEADERS: tuple[type[Header], ...] = (
    h.RDETH, h.DETH, h.XRCETH, h.FETH, h.RETH, h.AtomicETH,
    h.AETH, h.AtomicAckETH, h.ImmDt, h.IETH, h.CNPReserved,
)  # fmt: skip
"""Every header that an opcode may put after the BTH."""
