"""The queue pairs of a test with their memory.

This is also the responder: receive requests for SENDs, and the buffer for WRITEs, READs and
atomics of the peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ibwire.base.errors import EncodeError
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_contents import (
    Contents,
    Pieces,
    RandomRun,
    pieces_kept,
    pieces_sent,
    row_of,
)
from ibwire.programs.perf_requests import QKEY, Atomics, Outgoing, Reads, Requests
from ibwire.programs.perftest import Layout, Record, Verb
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPCap, QPType
from ibwire.rc.connect import bring_up
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.memory import Access, MemoryRegion, ProtectionDomain
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.unreliable import GRH_SIZE
from ibwire.rc.work import SGE, WC, RecvWR, WROpcode

MEMORY = 1 << 28
"""Bytes for the messages of all queue pairs."""

IN_FLIGHT = 512
"""Outstanding packets of all queue pairs: the tap of a virtual machine queues 1000 (txqueuelen)
and, unlike an adapter, cannot signal that it is full."""

DISTINCT_SIZE = 8
"""Bytes that are not equal to others by chance."""

OUTSTANDING = 16
"""READs and atomics that our responder accepts at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a test."""

    verb: Verb
    latency: bool = False
    qp_type: QPType = QPType.RC
    size: int = 0
    """Bytes of a message; 0 for the default: 65536, for latency 2, for an atomic 8, for a datagram
    at most one packet."""
    messages: int = 1000
    """Messages of each queue pair."""
    seconds: float | None = None
    """Duration of the test instead of a number of messages."""
    qps: int = 1
    mtu: int | None = None
    """Path MTU; `None` for the largest that the interface carries. The smaller of both
    ends' path MTUs is used."""
    both: bool = False
    """Whether both ends send."""
    depth: int = 128
    """Outstanding requests of a queue pair."""
    receives: int = 512
    """Posted receive requests of a queue pair."""
    swaps: bool = False
    """Whether atomics are COMPARE_AND_SWAPs."""
    timeout: int = 14
    """Code of the local ACK timeout."""
    stall_timeout: float = 10
    """Seconds without progress after which the test fails."""


class Flow:
    """One queue pair of a test."""

    def __init__(
        self,
        endpoint: Endpoint,
        pd: ProtectionDomain,
        plan: Plan,
        layout: Layout,
        cqs: tuple[CompletionQueue, CompletionQueue],
        index: int,
        gid_index: int,
    ) -> None:
        self.plan = plan
        self.layout = layout
        self.index = index
        self.address: AddressVector | None = None
        """Address of the peer, which UD needs for each message."""
        self.posted = 0
        self.completed = 0
        self.received = 0
        self.wrong = 0
        """Messages or results with unexpected contents."""
        self.requests: Requests
        self.receives: Receives | None = None
        self.peer: Record
        self._pd = pd
        self.qp: QueuePair = endpoint.device.create_qp(
            QPInit(plan.qp_type, pd, *cqs, cap=QPCap(plan.depth + 1, plan.receives, 1, 1))
        )
        psn, gid = endpoint.psn(), endpoint.device.gids[gid_index]
        self.own = Record(self.qp.number, psn, gid)
        self._packet_fields = endpoint.packet_fields
        self.buffer: MemoryRegion | None = None
        if plan.verb is not Verb.SEND:
            access = int(Access.LOCAL_WRITE | _ACCESS[plan.verb])
            buffer = self.buffer = pd.register(layout.length, access)
            reads = OUTSTANDING if plan.verb is not Verb.WRITE else 1
            self.own = replace(self.own, rkey=buffer.rkey, vaddr=buffer.iova, out_reads=reads)
            if plan.verb is not Verb.WRITE or not plan.latency:
                buffer.write(buffer.iova, row_of(self.own, layout.length))

    def bring_up(self, peer: Record, gid_index: int, mtu: int) -> None:
        """Bring the queue pair to RTS."""
        plan = self.plan
        self.address = self._packet_fields.address(peer.gid, gid_index)
        bring_up(
            self.qp,
            self.address,
            dest_qp_num=peer.qpn,
            sq_psn=self.own.psn,
            rq_psn=peer.psn,
            path_mtu=MTU_CODES[mtu],
            qkey=QKEY,
            qp_access_flags=int(_ACCESS[plan.verb]),
            max_rd_atomic=min(peer.out_reads, OUTSTANDING),
            max_dest_rd_atomic=OUTSTANDING,
            min_rnr_timer=12,
            timeout=plan.timeout,
            retry_cnt=7,
            rnr_retry=7,
        )

    def prepare_requests(self, *, is_ibwire: bool) -> None:
        """Create the requests of this end; is_ibwire: whether the peer is ibwire."""
        plan, layout, peer, pd = self.plan, self.layout, self.peer, self._pd
        kept = pieces_kept(peer, layout) if is_ibwire else None
        if plan.verb is Verb.ATOMIC:
            self.requests = Atomics(
                pd, kept, layout, peer, self.index, plan.depth, swaps=plan.swaps
            )
        elif plan.verb is Verb.READ:
            contents: Contents = kept or RandomRun(layout, steady=True)
            self.requests = Reads(pd, contents, layout, peer, self.index, plan.depth)
        else:
            opcode = WROpcode.SEND if plan.verb is Verb.SEND else WROpcode.RDMA_WRITE
            address = self.address if plan.qp_type is QPType.UD else None
            own = pieces_sent(self.own, layout)
            self.requests = Outgoing(pd, own, layout, peer, self.index, address, opcode)

    def prepare_receives(self, *, is_ibwire: bool) -> None:
        """Post receives for the peer's SENDs."""
        contents: Contents = (
            pieces_sent(self.peer, self.layout)
            if is_ibwire
            else RandomRun(self.layout, steady=False)
        )
        self.receives = Receives(self._pd, self.qp, self.plan, contents)

    def written(self, *, is_ibwire: bool, messages: int) -> tuple[int, str]:
        """How many addresses lack a correct WRITE of the peer, and how that was verified.

        messages: that the peer has written at least, so that many addresses must have changed.
        """
        assert self.buffer is not None
        layout = self.layout
        pieces = pieces_sent(self.peer, layout) if is_ibwire else None
        unknown = RandomRun(layout, steady=False)
        before = row_of(self.own, layout.length)
        wrong = 0
        for place in range(layout.places):
            start = place * layout.step
            data = self.buffer.buffer[start : start + layout.size]
            is_untouched = before.startswith(data, start)
            if is_untouched and (place >= messages or layout.size >= DISTINCT_SIZE):
                wrong += place < messages
            elif pieces is not None:
                wrong += not pieces.holds(place, layout.places, data)
            else:
                wrong += not unknown.fits(place, data)
        return wrong, pieces.how if pieces is not None else unknown.how

    @property
    def progress(self) -> int:
        """A number that changes with each acknowledgement and each received message."""
        return self.qp.sends.una + self.received + self.completed

    def atomic_sum(self) -> int:
        """The sum that the peer's atomics have added."""
        assert self.buffer is not None
        before = row_of(self.own, self.layout.length)
        total = 0
        for offset in pieces_kept(self.own, self.layout).offsets:
            was = int.from_bytes(before[offset : offset + 8], "little")
            total += self.buffer.load64(offset) - was & 0xFFFF_FFFF_FFFF_FFFF
        return total


class Receives:
    """Receive requests, each with its own memory."""

    def __init__(self, pd: ProtectionDomain, qp: QueuePair, plan: Plan, contents: Contents) -> None:
        self.contents = contents
        self._qp = qp
        self._size = plan.size
        self._head = GRH_SIZE if plan.qp_type is QPType.UD else 0
        """Bytes before a message."""
        self._room = self._head + plan.size
        self._clean = bytes(plan.size)
        self._is_reliable = plan.qp_type is QPType.RC
        region = pd.register(plan.receives * self._room, int(Access.LOCAL_WRITE))
        self._buffer = region.buffer
        self._wrs: Sequence[RecvWR] = [
            RecvWR([SGE(region.iova + slot * self._room, self._room, region.lkey)], slot)
            for slot in range(plan.receives)
        ]
        for wr in self._wrs:
            qp.post_recv(wr)

    def take(self, wc: WC, number: int) -> bool:
        """Verify a message and post its request again; returns whether it was message `number`.

        Messages of an unreliable service may be missing, so any message of the peer is valid.
        """
        start = wc.wr_id * self._room + self._head
        data = self._buffer[start : start + self._size]
        fits = wc.byte_len == self._room and self.contents.fits(number, data)
        if not fits and not self._is_reliable and isinstance(self.contents, Pieces):
            fits = self.contents.holds(0, 1, data)
        data[:] = self._clean  # so that it cannot be mistaken for the next message
        self._qp.post_recv(self._wrs[wc.wr_id])
        return fits


def fitting(plan: Plan, mtu: int) -> Plan:
    """A plan with a size, and queues limited to what it uses and what memory allows.

    Raises `EncodeError` for a UD message longer than a packet, and for messages that exceed the
    memory.
    """
    size, depth, receives = plan.size, plan.depth, plan.receives
    if not size:
        size = 8 if plan.verb is Verb.ATOMIC else 2 if plan.latency else 65536
        if plan.qp_type is QPType.UD:
            size = min(size, mtu)
    elif plan.qp_type is QPType.UD and size > mtu:
        raise EncodeError("size", size, f"at most {mtu}: a datagram is one packet")
    if plan.qps * size > MEMORY:
        most = MEMORY // plan.qps
        raise EncodeError("size", size, f"at most {most} with {plan.qps} queue pairs")
    if plan.latency:
        depth = 1
    if plan.seconds is None:
        depth, receives = min(depth, plan.messages), min(receives, plan.messages)
    if plan.swaps:
        # One outstanding request per address: the next one must know its result.
        depth = min(depth, Layout(size).places)
    if plan.verb in (Verb.SEND, Verb.WRITE):
        depth = min(depth, IN_FLIGHT * mtu // (plan.qps * max(size, mtu)))
    most = MEMORY // (plan.qps * size)
    return replace(plan, size=size, depth=max(min(depth, most), 1), receives=min(receives, most))


_ACCESS = {
    Verb.SEND: Access.LOCAL_WRITE,
    Verb.WRITE: Access.REMOTE_WRITE,
    Verb.READ: Access.REMOTE_READ,
    Verb.ATOMIC: Access.REMOTE_ATOMIC,
}
