"""The receive queue of a queue pair: the request in use by a message, and those that wait.

The requests are the queue pair's own or come from a shared receive queue. A message
takes one with its first packet (SEND) or its last (WRITE with immediate), fills it
packet by packet and completes it once.
"""

from __future__ import annotations

import errno
from collections import deque

from ibwire.base.errors import VerbsError
from ibwire.rc.context import QPContext
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.memory import ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire.rc.sge import scatter, writable_pieces
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import WC, RecvWR, WCFlags, WCOpcode, WCStatus


class ReceiveQueue:
    """Receive requests of one queue pair."""

    __slots__ = ("_cq", "_pd", "current", "filled", "qp", "room", "srq", "waiting")

    def __init__(self, qp: QPContext, srq: SharedReceiveQueue | None) -> None:
        self.qp = qp
        self.srq = srq
        self.waiting: deque[RecvWR] = deque()
        self.current: RecvWR | None = None
        """The request that the current message has taken."""
        self.filled = 0
        """Bytes of it that are filled."""
        self.room = 0
        self._cq: CompletionQueue | None = None
        self._pd: ProtectionDomain | None = None

    def post(self, wr: RecvWR) -> None:
        """Queue a request; raises ENOMEM when full."""
        limit = self.qp.cap.max_recv_wr
        if len(self.waiting) >= limit:
            raise VerbsError(errno.ENOMEM, f"the receive queue of {limit} is full")
        self.waiting.append(wr)

    def take(self, srq: SharedReceiveQueue | None = None) -> bool:
        """Take the next request for a message; `False` if the queue is empty.

        srq: the shared receive queue that an XRC packet names.
        """
        source = self.srq if srq is None else srq  # an empty queue is false
        if source is not None:
            wr = source.take()
            self._pd = source.pd
        else:
            wr = self.waiting.popleft() if self.waiting else None
            self._pd = self.qp.pd
        if wr is None:
            return False
        self._cq = srq.cq if srq is not None and srq.cq is not None else self.qp.recv_cq
        self.current = wr
        self.filled = 0
        sges = wr.sg_list
        self.room = sges[0].length if len(sges) == 1 else sum([sge.length for sge in sges])
        return True

    def has_next(self, srq: SharedReceiveQueue | None = None) -> bool:
        """Whether `take` would take a request."""
        source = self.srq if srq is None else srq
        return bool(self.waiting if source is None else len(source))

    def fits(self, size: int) -> bool:
        """Whether that many more bytes fit."""
        return self.filled + size <= self.room

    def room_for(self, size: int) -> list[memoryview] | None:
        """Where `fill` would store so many bytes; `None` if it would not, or they do not fit."""
        current, pd = self.current, self._pd
        if current is None or pd is None or not self.fits(size):
            return None
        return writable_pieces(self.qp.keys, pd, current.sg_list, self.filled, size)

    def fill(self, data: bytes) -> bool:
        """Store the next bytes; `False` if the memory of the request is not accessible."""
        if not data:
            return True
        assert self.current is not None
        assert self._pd is not None
        sges = self.current.sg_list
        if not scatter(self.qp.keys, self._pd, sges, self.filled, data):
            return False
        self.filled += len(data)
        return True

    def finish(
        self,
        packet: TransportPacket,
        opcode: WCOpcode = WCOpcode.RECV,
        byte_len: int | None = None,
        flags: int = 0,
        src_qp: int = 0,
    ) -> None:
        """Complete the request with success; `packet` is the last of the message."""
        imm = 0
        if self.qp.profile.marks_grh:
            flags |= WCFlags.GRH
        if packet.form.has_imm:
            imm, flags = packet.imm_data, flags | WCFlags.WITH_IMM
        elif packet.form.has_invalidate:
            imm, flags = packet.invalidate_rkey, flags | self.qp.profile.invalidate_flag
        size = self.filled if byte_len is None else byte_len
        self._complete(
            WCStatus.SUCCESS,
            opcode,
            byte_len=size,
            imm=imm,
            flags=flags,
            src_qp=src_qp,
            solicited=bool(packet.se),
        )

    def fail(self, status: WCStatus) -> None:
        """Complete the request of the current message, if any, with an error."""
        if self.current is not None:
            self._complete(status)

    def give_up(self) -> None:
        """Put the request of an abandoned message back to the head of the queue.

        A request from a shared queue completes with an error instead (IBA 9.9.3, class E).
        """
        if self.current is not None and self.srq is None:
            self.waiting.appendleft(self.current)
            self.current = None
        else:
            self.fail(self.qp.profile.invalid_request_status)

    def flush(self) -> None:
        """Complete all requests of the queue pair with WR_FLUSH_ERR."""
        self.fail(WCStatus.WR_FLUSH_ERR)
        self._cq = self.qp.recv_cq
        while self.waiting:
            self.current = self.waiting.popleft()
            self._complete(WCStatus.WR_FLUSH_ERR)

    def clear(self) -> None:
        """Drop all requests without completions."""
        self.waiting.clear()
        self.current = None

    def _complete(
        self,
        status: WCStatus,
        opcode: WCOpcode = WCOpcode.RECV,
        *,
        byte_len: int = 0,
        imm: int = 0,
        flags: int = 0,
        src_qp: int = 0,
        solicited: bool = True,
    ) -> None:
        wr, self.current = self.current, None
        assert wr is not None
        self.qp.report(
            self._cq,
            WC(
                wr_id=wr.wr_id,
                status=status,
                opcode=opcode,
                qp_num=self.qp.number,
                byte_len=byte_len,
                imm_data=imm,
                wc_flags=flags,
                src_qp=src_qp,
                solicited=solicited,
            ),
        )
