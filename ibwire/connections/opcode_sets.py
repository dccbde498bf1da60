"""Sets of BTH opcodes: requests and responses, starts and ends of messages."""

from __future__ import annotations

from typing import Final

from ibwire_layers.opcodes import INFO, OpCode, Operation, Position

VERB: Final = {
    code: {Operation.WRITE: "RDMA_WRITE", Operation.READ: "RDMA_READ"}.get(
        info.operation, info.operation.name
    )
    for code, info in INFO.items()
}
"""What a work request is called that has packets of this opcode."""


def _opcodes(*wanted: Operation | Position) -> frozenset[int]:
    return frozenset(
        code for code, info in INFO.items() if info.operation in wanted or info.position in wanted
    )


STARTS: Final = _opcodes(Position.FIRST, Position.ONLY)
ENDS: Final = _opcodes(Position.LAST, Position.ONLY)
FULL: Final = _opcodes(Position.FIRST, Position.MIDDLE)
PARTS: Final = _opcodes(Position.FIRST, Position.MIDDLE, Position.LAST)
"""Packets of messages of several packets."""
READ: Final = _opcodes(Operation.READ)
ANSWERED: Final = READ | _opcodes(
    Operation.COMPARE_SWAP, Operation.FETCH_ADD, Operation.FLUSH, Operation.ATOMIC_WRITE
)
"""Requests that only a READ or atomic response answers, and no ACK."""
ATOMIC: Final = _opcodes(Operation.COMPARE_SWAP, Operation.FETCH_ADD, Operation.ATOMIC_ACKNOWLEDGE)
"""Atomics and their responses."""
RESPONSES: Final = _opcodes(
    Operation.READ_RESPONSE, Operation.ATOMIC_ACKNOWLEDGE, Operation.ACKNOWLEDGE
)
ACKNOWLEDGE: Final = _opcodes(Operation.ACKNOWLEDGE)
CNP: Final = int(OpCode.CNP)
"""As a number of this module: each packet is compared with it, and a member of an enumeration of
another package is looked up slowly, also in a compiled module."""
