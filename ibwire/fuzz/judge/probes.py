"""Last steps in which a device shows whether a cause is true that explains another one.

A cause that fits one case by chance foretells something else in another case. So the step at which
a device differs is replaced by other usual ones: right requests and responses, and waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ibwire.base.units import MS
from ibwire.fuzz.case import Connection, Packet, Post, Step, Wait
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode


def probes_for(connection: Connection, steps: Sequence[Step]) -> Iterator[Step]:
    """Steps to try in place of the last one of these."""
    last = steps[-1]
    pair = last.pair if isinstance(last, Packet | Post) else 0
    if connection.service == "UD":
        return
    if any(isinstance(each, Post) for each in steps) and connection.is_reliable:
        yield from _of_requester(connection, pair)
    if connection.service != "XRC_SEND":
        yield from _of_responder(connection, pair)


def _of_responder(connection: Connection, pair: int) -> Iterator[Step]:
    """Requests, each of another kind or length."""
    service, mtu = int(connection.transport) << 5, connection.mtu
    yield Packet(service | _SEND_ONLY, pair=pair)
    yield Packet(service | _SEND_ONLY, ("expected", -1), pair=pair)
    yield Packet(service | _WRITE_ONLY, length=mtu, pair=pair)
    yield Packet(service | _WRITE_FIRST, length=mtu, fields={"reth.dma_len": 2 * mtu}, pair=pair)
    window = {"reth.va": ("mw.va", 0), "reth.rkey": ("mw.rkey", 0)}
    yield Packet(service | _WRITE_ONLY, length=8, fields=window, pair=pair)
    if connection.is_reliable:
        yield Packet(service | _READ, fields={"reth.dma_len": 2 * mtu}, pair=pair)
        yield Packet(service | _COMPARE_SWAP, pair=pair)


def _of_requester(connection: Connection, pair: int) -> Iterator[Step]:
    """ACKs, a wait and requests."""
    acknowledge = int(connection.transport) << 5 | _ACKNOWLEDGE
    yield Packet(acknowledge, ("una", 0), pair=pair)
    yield Packet(acknowledge, ("next", -1), pair=pair)
    yield Wait(_LONG_WAIT)
    yield Post(int(WROpcode.RDMA_WRITE), 2 * connection.mtu, pair=pair)
    yield Post(int(WROpcode.SEND), 8, pair=pair)


_LONG_WAIT = 300 * MS
"""More than four times the ACK timeout of most cases."""

_OPERATION = 0x1F
_SEND_ONLY = OpCode.RC_SEND_ONLY & _OPERATION
_WRITE_ONLY = OpCode.RC_RDMA_WRITE_ONLY & _OPERATION
_WRITE_FIRST = OpCode.RC_RDMA_WRITE_FIRST & _OPERATION
_READ = OpCode.RC_RDMA_READ_REQUEST & _OPERATION
_COMPARE_SWAP = OpCode.RC_COMPARE_SWAP & _OPERATION
_ACKNOWLEDGE = OpCode.RC_ACKNOWLEDGE & _OPERATION
