"""Correct traffic: the packets of messages, and the responses to a device's requests.

A generator mutates what is made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ibwire.fuzz.case import Packet, Value
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.rc.send_state import SendWQE
from ibwire_layers.opcodes import OpCode, Operation
from ibwire_layers.psn import distance

_O = OpCode

_SEND = int(_O.RC_SEND_FIRST), int(_O.RC_SEND_MIDDLE)
_WRITE = int(_O.RC_RDMA_WRITE_FIRST), int(_O.RC_RDMA_WRITE_MIDDLE)

FORMS: Mapping[str, tuple[int, int, int, int]] = {
    "SEND": (*_SEND, int(_O.RC_SEND_LAST), int(_O.RC_SEND_ONLY)),
    "SEND_IMM": (
        *_SEND,
        int(_O.RC_SEND_LAST_WITH_IMMEDIATE),
        int(_O.RC_SEND_ONLY_WITH_IMMEDIATE),
    ),
    "SEND_INV": (
        *_SEND,
        int(_O.RC_SEND_LAST_WITH_INVALIDATE),
        int(_O.RC_SEND_ONLY_WITH_INVALIDATE),
    ),
    "WRITE": (*_WRITE, int(_O.RC_RDMA_WRITE_LAST), int(_O.RC_RDMA_WRITE_ONLY)),
    "WRITE_IMM": (
        *_WRITE,
        int(_O.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE),
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


def answers(reference: Emulation) -> Iterator[Packet]:
    """The responses of a correct responder to all requests of the device.

    An ACK for each SEND and WRITE, all response packets of a READ. They are made on demand,
    while the device does nothing.
    """
    sends = reference.qp.sends
    una, following, oldest = sends.una, sends.next_psn, reference.oldest_ssn
    for wqe in sends.wqes:
        if not wqe.started or wqe.plan.operation is None:
            break
        first = wqe.first_psn - una & 0xFFFFFF
        if first >= 1 << 23:
            first = 0
        beyond = wqe.first_psn + wqe.packets - una & 0xFFFFFF
        sent = following - una & 0xFFFFFF
        if first >= sent:
            break
        ssn = ("ssn", wqe.ssn - oldest)
        if wqe.plan.operation is Operation.READ:
            yield from _read_response(wqe, reference.qp.mtu, una, ssn)
        else:
            yield _answer(wqe.plan.operation, first, min(beyond, sent) - 1, ssn)


def _answer(operation: Operation, first: int, last: int, ssn: Value) -> Packet:
    """The one packet that answers a request. first, last: of its PSNs, from `una`."""
    fields: dict[str, Value] = {"aeth.msn": ssn}
    if operation in _ATOMIC_OPERATIONS:
        fields["atomicacketh.orig"] = 0x0102030405060708
        return Packet(_ATOMIC_ACK, ("una", first), fields=fields)
    if operation in _BARE:
        return Packet(_READ_ONLY, ("una", first), fields=fields)
    return Packet(_ACK, ("una", last), fields=fields)


def _read_response(wqe: SendWQE, mtu: int, una: int, ssn: Value) -> Iterator[Packet]:
    """The response packets of a READ that are missing."""
    done = max(distance(wqe.first_psn, una), 0)
    ahead = max(distance(una, wqe.first_psn), 0)
    count = wqe.packets - done
    for i in range(count):
        start = (done + i) * mtu
        size = max(min(mtu, wqe.length - start), 0)
        opcode = _READ_MIDDLE
        if count == 1 and not wqe.in_response:
            opcode = _READ_ONLY
        elif i == count - 1:
            opcode = _READ_LAST
        elif i == 0 and not wqe.in_response:
            opcode = _READ_FIRST
        fields: dict[str, Value] = {} if opcode == _READ_MIDDLE else {"aeth.msn": ssn}
        yield Packet(opcode, ("una", ahead + i), size, start + 7, fields)


# Plain numbers: members of an enumeration are slow.
_ACK, _ATOMIC_ACK = int(_O.RC_ACKNOWLEDGE), int(_O.RC_ATOMIC_ACKNOWLEDGE)
_READ_FIRST, _READ_MIDDLE, _READ_LAST, _READ_ONLY = (
    int(_O.RC_RDMA_READ_RESPONSE_FIRST),
    int(_O.RC_RDMA_READ_RESPONSE_MIDDLE),
    int(_O.RC_RDMA_READ_RESPONSE_LAST),
    int(_O.RC_RDMA_READ_RESPONSE_ONLY),
)
_ATOMIC_OPERATIONS = Operation.COMPARE_SWAP, Operation.FETCH_ADD
_BARE = Operation.FLUSH, Operation.ATOMIC_WRITE
"""What a response without data answers."""
