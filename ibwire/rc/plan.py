"""The table of send work requests: operation, opcodes on the wire, completion."""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.rc.packet import FORMS, Form
from ibwire.rc.work import WCOpcode, WROpcode
from ibwire_layers.opcodes import OpCode, Operation, Service


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of send work request."""

    operation: Operation | None
    """`None` for a local operation, which sends nothing."""
    opcodes: tuple[int, int, int, int]
    """RC opcodes of first, middle, last and only packet."""
    completion: WCOpcode
    is_segmented: bool = False
    """Whether its payload is cut at the path MTU."""
    is_answered: bool = False
    """Whether it completes with a response instead of an acknowledgement. Each then counts
    against `max_rd_atomic`, because the responder keeps the response for duplicates."""
    takes_credit: bool = False
    """Whether it consumes a receive work request of the peer."""


def _segmented(
    operation: Operation,
    completion: WCOpcode,
    *,
    first: OpCode,
    last: OpCode,
    only: OpCode,
    takes_credit: bool,
) -> Plan:
    opcodes = (first, first + 1, last, only)
    return Plan(operation, opcodes, completion, is_segmented=True, takes_credit=takes_credit)


def _single(operation: Operation, completion: WCOpcode, opcode: OpCode) -> Plan:
    return Plan(operation, (opcode,) * 4, completion, is_answered=True)


PLANS: dict[WROpcode, Plan] = {
    WROpcode.SEND: _segmented(
        Operation.SEND,
        WCOpcode.SEND,
        first=OpCode.RC_SEND_FIRST,
        last=OpCode.RC_SEND_LAST,
        only=OpCode.RC_SEND_ONLY,
        takes_credit=True,
    ),
    WROpcode.SEND_WITH_IMM: _segmented(
        Operation.SEND,
        WCOpcode.SEND,
        first=OpCode.RC_SEND_FIRST,
        last=OpCode.RC_SEND_LAST_WITH_IMMEDIATE,
        only=OpCode.RC_SEND_ONLY_WITH_IMMEDIATE,
        takes_credit=True,
    ),
    WROpcode.SEND_WITH_INV: _segmented(
        Operation.SEND,
        WCOpcode.SEND,
        first=OpCode.RC_SEND_FIRST,
        last=OpCode.RC_SEND_LAST_WITH_INVALIDATE,
        only=OpCode.RC_SEND_ONLY_WITH_INVALIDATE,
        takes_credit=True,
    ),
    WROpcode.RDMA_WRITE: _segmented(
        Operation.WRITE,
        WCOpcode.RDMA_WRITE,
        first=OpCode.RC_RDMA_WRITE_FIRST,
        last=OpCode.RC_RDMA_WRITE_LAST,
        only=OpCode.RC_RDMA_WRITE_ONLY,
        takes_credit=False,
    ),
    WROpcode.RDMA_WRITE_WITH_IMM: _segmented(
        Operation.WRITE,
        WCOpcode.RDMA_WRITE,
        first=OpCode.RC_RDMA_WRITE_FIRST,
        last=OpCode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        only=OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        takes_credit=True,
    ),
    WROpcode.RDMA_READ: _single(Operation.READ, WCOpcode.RDMA_READ, OpCode.RC_RDMA_READ_REQUEST),
    WROpcode.ATOMIC_CMP_AND_SWP: _single(
        Operation.COMPARE_SWAP, WCOpcode.COMP_SWAP, OpCode.RC_COMPARE_SWAP
    ),
    WROpcode.ATOMIC_FETCH_AND_ADD: _single(
        Operation.FETCH_ADD, WCOpcode.FETCH_ADD, OpCode.RC_FETCH_ADD
    ),
    WROpcode.FLUSH: _single(Operation.FLUSH, WCOpcode.FLUSH, OpCode.RC_FLUSH),
    WROpcode.ATOMIC_WRITE: _single(
        Operation.ATOMIC_WRITE, WCOpcode.ATOMIC_WRITE, OpCode.RC_ATOMIC_WRITE
    ),
    WROpcode.LOCAL_INV: Plan(None, (0, 0, 0, 0), WCOpcode.LOCAL_INV),
    WROpcode.BIND_MW: Plan(None, (0, 0, 0, 0), WCOpcode.BIND_MW),
}
"""Source: IBA 9.4, 11.4.1.1; the requests that have a response: annex A19."""

ANNEX_A19 = (Operation.FLUSH, Operation.ATOMIC_WRITE)
"""Answered by an empty READ RESPONSE ONLY."""

ALLOWED: dict[Service, frozenset[WROpcode]] = {
    Service.RC: frozenset(WROpcode),
    Service.XRC: frozenset(WROpcode),
    Service.UC: frozenset(
        {
            WROpcode.SEND,
            WROpcode.SEND_WITH_IMM,
            WROpcode.RDMA_WRITE,
            WROpcode.RDMA_WRITE_WITH_IMM,
            WROpcode.LOCAL_INV,
            WROpcode.BIND_MW,
        }
    ),
    Service.UD: frozenset({WROpcode.SEND, WROpcode.SEND_WITH_IMM}),
}
"""Send work requests by transport service (IBA 10.7.2.2, table of operations by service)."""

Forms = tuple[Form, Form, Form, Form]
"""First, middle, last and only."""


def _menu(service: Service) -> tuple[tuple[Plan, Forms] | None, ...]:
    """Plan and forms by work request opcode; `None` for one that the service does not have."""
    menu: list[tuple[Plan, Forms] | None] = [None] * (max(WROpcode) + 1)
    for opcode in ALLOWED[service]:
        plan = PLANS[opcode]
        first, middle, last, only = (FORMS[service << 5 | code & 0x1F] for code in plan.opcodes)
        menu[opcode] = plan, (first, middle, last, only)
    return tuple(menu)


MENUS = {service: _menu(service) for service in ALLOWED}
"""Looked up by number: members of an enumeration are slow keys."""
