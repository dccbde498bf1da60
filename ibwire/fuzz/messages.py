"""Right traffic: the packets of messages, and the answers to what a device has asked for.

What a generator damages is made here first.
"""

from __future__ import annotations

from collections.abc import Mapping

from ibwire.fuzz.case import Packet, Value
from ibwire.fuzz.emulation import Emulation
from ibwire.rc.requester import SendWQE
from ibwire_layers.opcodes import OpCode, Operation
from ibwire_layers.psn import distance

_O = OpCode

_SEND = int(_O.RC_SEND_FIRST), int(_O.RC_SEND_MIDDLE)
_WRITE = int(_O.RC_RDMA_WRITE_FIRST), int(_O.RC_RDMA_WRITE_MIDDLE)

FORMS: Mapping[str, tuple[int, int, int, int]] = {
    "SEND": (*_SEND, int(_O.RC_SEND_LAST), int(_O.RC_SEND_ONLY)),
    "SEND_IMM": (
        *(*_SEND, int(_O.RC_SEND_LAST_WITH_IMMEDIATE)),
        int(_O.RC_SEND_ONLY_WITH_IMMEDIATE),
    ),
    "SEND_INV": (
        *(*_SEND, int(_O.RC_SEND_LAST_WITH_INVALIDATE)),
        int(_O.RC_SEND_ONLY_WITH_INVALIDATE),
    ),
    "WRITE": (*_WRITE, int(_O.RC_RDMA_WRITE_LAST), int(_O.RC_RDMA_WRITE_ONLY)),
    "WRITE_IMM": (
        *(*_WRITE, int(_O.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE)),
        int(_O.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE),
    ),
}
"""FIRST, MIDDLE, LAST and ONLY of what may take several packets."""

READ = _O.RC_RDMA_READ_REQUEST
ATOMICS = (_O.RC_COMPARE_SWAP, _O.RC_FETCH_ADD)

_NOT_ASKING: Mapping[str, Value] = {"bth.ack_req": 0}


def message(
    kind: str,
    length: int,
    mtu: int,
    place: Mapping[str, Value],
    at: int = 0,
    asks: bool = True,
) -> list[Packet]:
    """The packets of a SEND or WRITE.

    place: fields `reth.va` and `reth.rkey` of a WRITE, where they are not the region's
    first byte and key. asks: whether the last asks for an ACK; the others do not.
    """
    first, middle, last, only = FORMS[kind]
    if length <= mtu:
        fields = place if asks else {**place, **_NOT_ASKING}
        return [Packet(only, length=length, at=at, fields=fields)]
    count = -(-length // mtu)
    begin = {**place, **_NOT_ASKING}
    if kind.startswith("WRITE"):
        begin["reth.dma_len"] = length
    packets = [Packet(first, length=mtu, at=at, fields=begin)]
    packets += [
        Packet(middle, length=mtu, at=at + i * mtu, fields=_NOT_ASKING) for i in range(1, count - 1)
    ]
    rest = (count - 1) * mtu
    end: Mapping[str, Value] = {} if asks else _NOT_ASKING
    return [*packets, Packet(last, length=length - rest, at=at + rest, fields=end)]


def read(length: int, place: Mapping[str, Value]) -> Packet:
    """A READ REQUEST."""
    return Packet(int(READ), fields={**place, "reth.dma_len": length})


def answers(reference: Emulation) -> list[Packet]:
    """What a right responder would answer to everything that the device has asked for.

    An ACK for each SEND and WRITE, all response packets of a READ.
    """
    requester = reference.qp.requester
    found: list[Packet] = []
    una, following = requester.una, requester.next_psn
    for wqe in requester.wqes:
        if not wqe.started or wqe.plan.operation is None:
            break
        first = wqe.first_psn - una & 0xFFFFFF
        if first >= 1 << 23:
            first = 0
        beyond = wqe.first_psn + wqe.packets - una & 0xFFFFFF
        sent = following - una & 0xFFFFFF
        if first >= sent:
            break
        ssn = ("ssn", wqe.ssn - reference.oldest_ssn)
        found += _answer(wqe, ("una", first), min(beyond, sent), reference.qp.mtu, una, ssn)
    return found


def _answer(
    wqe: SendWQE, psn: tuple[str, int], beyond: int, mtu: int, una: int, ssn: Value
) -> list[Packet]:
    operation = wqe.plan.operation
    fields: dict[str, Value] = {"aeth.msn": ssn}
    if operation is Operation.READ:
        return _read_response(wqe, mtu, una, ssn)
    if operation in (Operation.COMPARE_SWAP, Operation.FETCH_ADD):
        opcode = int(_O.RC_ATOMIC_ACKNOWLEDGE)
        return [Packet(opcode, psn, fields={**fields, "atomicacketh.orig": 0x0102030405060708})]
    if operation in (Operation.FLUSH, Operation.ATOMIC_WRITE):
        return [Packet(int(_O.RC_RDMA_READ_RESPONSE_ONLY), psn, fields=fields)]
    return [Packet(int(_O.RC_ACKNOWLEDGE), ("una", beyond - 1), fields=fields)]


def _read_response(wqe: SendWQE, mtu: int, una: int, ssn: Value) -> list[Packet]:
    """The response packets of a READ that are missing."""
    done = max(distance(wqe.first_psn, una), 0)
    ahead = max(distance(una, wqe.first_psn), 0)
    count = wqe.packets - done
    packets = []
    for i in range(count):
        start = (done + i) * mtu
        size = min(mtu, wqe.length - start)
        opcode = _O.RC_RDMA_READ_RESPONSE_MIDDLE
        if count == 1 and not wqe.in_response:
            opcode = _O.RC_RDMA_READ_RESPONSE_ONLY
        elif i == count - 1:
            opcode = _O.RC_RDMA_READ_RESPONSE_LAST
        elif i == 0 and not wqe.in_response:
            opcode = _O.RC_RDMA_READ_RESPONSE_FIRST
        fields: dict[str, Value] = {}
        if opcode is not _O.RC_RDMA_READ_RESPONSE_MIDDLE:
            fields = {"aeth.msn": ssn}
        packets.append(
            Packet(int(opcode), ("una", ahead + i), max(size, 0), at=start + 7, fields=fields)
        )
    return packets
