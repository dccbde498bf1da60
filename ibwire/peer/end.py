"""One end of a connection: a device with a queue pair, its completion queues and its memory."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import (
    MTU_CODES,
    AddressVector,
    EventType,
    QPAttr,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.connect import ALL_ACCESS, bring_up, move
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WROpcode

QKEY = 0x11111111
"""Q_Key of the datagram queue pairs."""

DEPTH = 1024
"""Work requests that fit in each queue."""


class End:
    """A device with one queue pair, a completion queue for each half of it, and memory.

    address: of the device, one or more. size: bytes of memory. memory: bytes to register in
    their place. access: to it, `Access` flags. iova, key: its address and key. send_cqe,
    recv_cqe: completions that fit in each completion queue. srq: whether the queue pair
    receives through a shared receive queue. qpn: its number. init: further fields of `QPInit`.
    device: further arguments of `Device`. The device chooses an address, key or number that is
    not given.
    """

    def __init__(
        self,
        name: str,
        address: str | Sequence[str],
        *,
        qp_type: QPType = QPType.RC,
        size: int = 1 << 16,
        memory: bytearray | memoryview | None = None,
        iova: int | None = None,
        key: int | None = None,
        access: int = int(ALL_ACCESS),
        send_cqe: int = 4 * DEPTH,
        recv_cqe: int = 4 * DEPTH,
        srq: bool = False,
        qpn: int | None = None,
        init: Mapping[str, Any] | None = None,
        **device: Any,
    ) -> None:
        self.name = name
        self.device = Device(name, address, **device)
        self.pd = self.device.alloc_pd()
        given = size if memory is None else memory
        self.mr = self.pd.register(given, access, iova=iova, key=key)
        self.send_cq = self.device.create_cq(send_cqe)
        self.recv_cq = self.device.create_cq(recv_cqe)
        self.srq = self.device.create_srq(self.pd) if srq else None
        fields: dict[str, Any] = {
            "qp_type": qp_type,
            "pd": self.pd,
            "send_cq": self.send_cq,
            "recv_cq": self.recv_cq,
            "srq": self.srq,
            "cap": QPCap(DEPTH, DEPTH, max_inline_data=DeviceLimits().max_inline_data),
        }
        self.qp = self.device.create_qp(QPInit(**fields | dict(init or {})), qpn)
        self.remote: dict[str, Any] = {}
        """Address and R_Key of the peer's memory, where it is known, as fields of `SendWR`."""
        self.datagram: dict[str, Any] = {}
        """Destination of datagrams, as fields of `SendWR`; empty unless the queue pair is UD."""
        self._attr = QPAttr()

    # The queue pair.

    def connect_to(
        self, ah: AddressVector, qpn: int, *, psn: int, peer_psn: int, mtu: int, **attr: Any
    ) -> None:
        """Bring the queue pair to RTS, with a peer at this address; raises `VerbsError`.

        psn: of its first request; peer_psn: the first that it expects. mtu: bytes.
        attr: further fields of `QPAttr`.
        """
        if mtu not in MTU_CODES:
            raise VerbsError(
                errno.EINVAL, f"mtu {mtu}, not one of {', '.join(map(str, MTU_CODES))}"
            )
        if self.qp.qp_type is QPType.UD:
            attr.setdefault("qkey", QKEY)
            self.datagram = {"ah": ah, "remote_qpn": qpn, "remote_qkey": attr["qkey"]}
        bring_up(
            self.qp,
            ah,
            dest_qp_num=qpn,
            sq_psn=psn,
            rq_psn=peer_psn,
            path_mtu=MTU_CODES[mtu],
            **attr,
        )
        self._attr = replace(self.qp.query(), cur_qp_state=QPState.RTS)

    def bring_to(self, state: QPState) -> None:
        """Reset a connected queue pair and bring it to a state, with its former attributes.

        SQE, which no modify leads to, is reached by a send request with a wrong L_Key.
        """
        for step in (QPState.RESET, *_PATHS[state]):
            move(self.qp, step, self._attr)
        if state is QPState.SQE:
            self.qp.post_send(SendWR(WROpcode.SEND, [SGE(1, 1, 1)], ah=self._attr.ah_attr))
            while self.device.poll_transmit(0) is not None:
                pass
            self.send_cq.poll(1)

    # Memory.

    def sge(self, offset: int = 0, length: int = 256) -> SGE:
        """A piece of its memory."""
        return SGE(self.mr.iova + offset, length, self.mr.lkey)

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes into its memory."""
        self.mr.write(self.mr.iova + offset, data)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of its memory."""
        return self.mr.read(self.mr.iova + offset, length)

    @property
    def memory(self) -> bytes:
        """All bytes of its memory."""
        return self.read(0, self.mr.length)

    # Work requests and completions.

    def post_send(
        self,
        opcode: WROpcode = WROpcode.SEND,
        length: int = 0,
        *,
        offset: int = 0,
        remote: int = 0,
        wr_id: int = 0,
        flags: int = SendFlags.SIGNALED,
        **given: Any,
    ) -> SendWR:
        """Post a send request for `length` bytes of its memory; returns it.

        remote: offset in the memory of the peer. given: other fields of `SendWR`. Raises
        `VerbsError` for what cannot be sent.
        """
        if self.remote:
            given.setdefault("remote_addr", self.remote["remote_addr"] + remote)
            given.setdefault("rkey", self.remote["rkey"])
        given = {**self.datagram, **given}
        sges = [self.sge(offset, length)] if length else []
        wr = SendWR(opcode, sges, flags, wr_id, **given)
        self.qp.post_send(wr)
        return wr

    def post_recv(self, length: int, *, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive request for `length` bytes of its memory, to the shared queue if any."""
        queue = self.qp if self.srq is None else self.srq
        queue.post_recv(RecvWR([self.sge(offset, length)] if length else [], wr_id))

    def poll_send_cq(self) -> list[WC]:
        """Completions of its send requests since the last call."""
        return self.send_cq.poll(self.send_cq.cqe)

    def poll_recv_cq(self) -> list[WC]:
        """Completions of its receive requests since the last call."""
        return self.recv_cq.poll(self.recv_cq.cqe)

    def poll_events(self) -> list[EventType]:
        """Asynchronous events of the device since the last call."""
        return events_of(self.device)


def events_of(device: Device) -> list[EventType]:
    """Asynchronous events of a device since the last call."""
    found = []
    while (event := device.poll_event()) is not None:
        found.append(event.event_type)
    return found


def create_queue_pair(
    device: Device, number: int | None = None, *, cq: CompletionQueue | None = None, **init: Any
) -> QueuePair:
    """A queue pair in RESET with a protection domain and completion queues that only it uses.

    number: its QPN, the device's choice by default. cq: the completion queue of both halves;
    by default each has its own. init: fields of `QPInit`.
    """
    if cq is not None:
        init["send_cq"] = init["recv_cq"] = cq
    if "pd" not in init:
        init["pd"] = device.alloc_pd()
    for name in ("send_cq", "recv_cq"):
        if name not in init:
            init[name] = device.create_cq(256)
    init.setdefault("qp_type", QPType.RC)
    return device.create_qp(QPInit(**init), number)


_UP = (QPState.INIT, QPState.RTR, QPState.RTS)

_PATHS: Mapping[QPState, tuple[QPState, ...]] = {
    QPState.RESET: (),
    QPState.INIT: _UP[:1],
    QPState.RTR: _UP[:2],
    QPState.RTS: _UP,
    QPState.SQD: (*_UP, QPState.SQD),
    QPState.SQE: _UP,
    QPState.ERR: (*_UP, QPState.ERR),
}
"""States from RESET to each state, by modify."""
