"""Ping-pong with `ibv_rc_pingpong`, `ibv_uc_pingpong` or `ibv_ud_pingpong`.

The two ends exchange their queue pairs over TCP, one line each way. The client sends first;
each end sends its next message when the last one has arrived and its own is completed.

The tools use one buffer for sending and receiving, so they send back what they received,
which is used to verify contents here. The client counts its messages in eight bytes; the
server sends everything back unchanged. The first byte of every 4096 is 0, as the tools'
option `-c` requires.

Source: rdma-core libibverbs/examples/{rc,uc,ud}_pingpong.c; captures/rc-pingpong.pcap.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ibwire.base.errors import EncodeError, PeerError
from ibwire.peer import create_queue_pair
from ibwire.programs.channel import TOGETHER, Channel, TCPListener
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.failures import cause, first_status
from ibwire.programs.path_probe import path_hint
from ibwire.rc.attributes import MTU_CODES, QPCap, QPType
from ibwire.rc.connect import bring_up
from ibwire.rc.memory import Access, MemoryRegion
from ibwire.rc.path import address_of
from ibwire.rc.qp import QueuePair
from ibwire.rc.unreliable import GRH_SIZE
from ibwire.rc.work import SGE, RecvWR, SendWR, WCOpcode, WCStatus

PORT = 18515
QKEY = 0x11111111
"""Q_Key of ibv_ud_pingpong."""

DONE = b"done\0"
"""Confirmation of the client after the server's line."""

PAGE = 4096
"""Distance of the bytes that `-c` checks: the page size of x86."""

RECEIVES = 64
"""Posted receive requests; one would be sufficient."""

COUNT = slice(8, 16)
"""The client's counter in a message, if it is long enough."""


LINE_SIZE = 52
"""Bytes of the line that describes an end, with its final NUL."""


class Destination(NamedTuple):
    """The parameters of one end."""

    qpn: int
    psn: int
    gid: int
    lid: int = 0

    def pack(self) -> bytes:
        """Encode as a line."""
        return b"%04x:%06x:%06x:%032x\0" % (self.lid, self.qpn, self.psn, self.gid)

    @classmethod
    def unpack(cls, line: bytes) -> Destination:
        """Decode a line; raises `PeerError`.

        Older tools fill the GID with spaces (`%32x`), so these count as zeros.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            raise PeerError(f"not a line of a pingpong program: {line!r}")
        lid, qpn, psn, gid = (int(part.replace(b" ", b"0"), 16) for part in match.groups())
        return cls(qpn, psn, gid, lid)


_LINE = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):( *[0-9a-f]{1,32})\0")


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run."""

    qp_type: QPType = QPType.RC
    size: int = 4096
    """Bytes of a message; a UD message is one packet."""
    messages: int = 1000
    """Messages that each end sends."""
    mtu: int | None = None
    """Path MTU; `None` for 1024, the tools' default, or less where the interface carries less."""
    service_level: int = 0
    stall_timeout: float = 10
    """Seconds without a message after which the run fails."""


@dataclass(slots=True)
class Result:
    """The result of a run."""

    own: str
    peer: str
    qpn: int
    peer_qpn: int
    mtu: int
    size: int
    sent: int = 0
    received: int = 0
    wrong: int = 0
    """Messages with unexpected contents."""
    status: WCStatus = WCStatus.SUCCESS
    cause: str = ""
    """Why it is not SUCCESS."""
    """Status of the completion that ended the run."""
    rounds_ns: array[int] = field(default_factory=lambda: array("q"))
    """Round-trip time of each message."""
    seconds: float = 0

    @property
    def passed(self) -> bool:
        """Whether all messages arrived unchanged."""
        return self.status is WCStatus.SUCCESS and not self.wrong


def connect(endpoint: Endpoint, plan: Plan, host: str, port: int = PORT) -> Result:
    """Run as the client of a program on a host."""
    mtu = _path_mtu(endpoint, plan)
    with Channel.connect(host, port, starting=TOGETHER) as channel:
        qp = _queue_pair(endpoint, plan)
        own = _destination(endpoint, qp, endpoint.gid_like(channel.address))
        channel.send(own.pack())
        peer = Destination.unpack(endpoint.read(channel, LINE_SIZE, "response"))
        pingpong = _Pingpong(endpoint, plan, mtu, qp, own, peer, is_client=True)
        channel.send(DONE)
    return pingpong.run()


def serve(
    endpoint: Endpoint,
    plan: Plan,
    port: int = PORT,
    *,
    addresses: Sequence[str] = (),
    listens: Callable[[int], None] = lambda port: None,
) -> Result:
    """Run as the server of the first client that connects.

    addresses: where it listens, by default those of the interface. listens: called with the TCP
    port when clients can connect. Connections that do not begin as a client does are reported
    and closed.
    """
    mtu = _path_mtu(endpoint, plan)
    with TCPListener(port, addresses or endpoint.listening_addresses) as listening:
        listens(listening.port)
        channel, peer = endpoint.accept_client(listening, LINE_SIZE, "line", Destination.unpack)
    with channel:
        qp = _queue_pair(endpoint, plan)
        own = _destination(endpoint, qp, endpoint.gid_towards(peer.gid))
        pingpong = _Pingpong(endpoint, plan, mtu, qp, own, peer, is_client=False)
        channel.send(own.pack())
        if endpoint.read(channel, len(DONE), "confirmation") != DONE:
            raise PeerError(f"{channel.peer} did not confirm our line")
    return pingpong.run()


def _path_mtu(endpoint: Endpoint, plan: Plan) -> int:
    if plan.qp_type is not QPType.UD:
        return endpoint.path_mtu(plan.mtu)
    mtu = endpoint.path_mtu(default=4096)
    if plan.size > mtu:
        raise EncodeError("size", plan.size, f"at most {mtu}: a datagram is one packet")
    return mtu


def _queue_pair(endpoint: Endpoint, plan: Plan) -> QueuePair:
    device, cap = endpoint.device, QPCap(2, RECEIVES)
    cq = device.create_cq(4 * RECEIVES)
    return create_queue_pair(device, cq=cq, qp_type=plan.qp_type, cap=cap)


def _destination(endpoint: Endpoint, qp: QueuePair, gid_index: int) -> Destination:
    """The parameters of this end."""
    return Destination(qp.number, endpoint.psn(), endpoint.device.gids[gid_index])


class _Pingpong:
    """One end, with its queue pair up and receives posted."""

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        mtu: int,
        qp: QueuePair,
        own: Destination,
        peer: Destination,
        *,
        is_client: bool,
    ) -> None:
        self.endpoint = endpoint
        self.plan = plan
        self.qp = qp
        self.is_client = is_client
        self.result = Result(
            own=address_of(own.gid),
            peer=address_of(peer.gid),
            qpn=own.qpn,
            peer_qpn=peer.qpn,
            mtu=mtu,
            size=plan.size,
        )
        self.head = GRH_SIZE if plan.qp_type is QPType.UD else 0
        """Bytes before a received message."""
        access = int(Access.LOCAL_WRITE)
        self.sending: MemoryRegion = qp.pd.register(plan.size, access)
        self.receiving: MemoryRegion = qp.pd.register(self.head + plan.size, access)
        self._content = bytearray(endpoint.random.randbytes(plan.size))
        self._content[::PAGE] = bytes(len(range(0, plan.size, PAGE)))
        self._counts = plan.size >= COUNT.stop
        self._posted = 0
        self._sent_ns = 0
        """Time at which the last message was posted."""
        self._address = endpoint.packet_fields.address(
            peer.gid, endpoint.gid_towards(peer.gid), plan.service_level
        )
        self._remote_qpn = peer.qpn
        # The parameters of the tools; here 7 retries are 7, not endless as with rxe.
        bring_up(
            qp,
            self._address,
            dest_qp_num=peer.qpn,
            sq_psn=own.psn,
            rq_psn=peer.psn,
            path_mtu=MTU_CODES[mtu],
            qkey=QKEY,
            max_rd_atomic=1,
            max_dest_rd_atomic=1,
            min_rnr_timer=12,
            timeout=14,
            retry_cnt=7,
            rnr_retry=7,
        )
        for _ in range(RECEIVES):
            self._post_recv()

    def run(self) -> Result:
        """Send and receive all messages."""
        endpoint, result = self.endpoint, self.result
        begun = endpoint.now_ns
        if self.is_client:
            self._send()
        endpoint.wait_on(
            self._step,
            lambda: result.received,
            f"message from {result.peer} QP {result.peer_qpn:#x}",
            self.plan.stall_timeout,
        )
        result.seconds = (endpoint.now_ns - begun) / 1e9
        if result.status is not WCStatus.SUCCESS:
            result.cause += path_hint(endpoint, self.qp, result.status)
        if result.status is WCStatus.SUCCESS and self.plan.qp_type is QPType.RC:
            endpoint.linger()
        return result

    def _step(self) -> bool:
        """Take completions and send the next message; returns whether the run is over."""
        result, wanted = self.result, self.plan.messages
        assert self.qp.recv_cq is not None
        for wc in self.qp.recv_cq.poll(RECEIVES):
            if wc.status is not WCStatus.SUCCESS:
                result.status = first_status(self.qp, wc.status)
                result.cause = cause(self.qp, result.status, ("-m",))
                return True
            if wc.opcode is WCOpcode.RECV:
                self._receive(wc.byte_len - self.head)
            else:
                result.sent += 1
        due = min(result.received + self.is_client, wanted)
        if self._posted == result.sent < due:
            self._send()
        if self.is_client and result.received == wanted:
            # The response shows that the last message has arrived; its acknowledgement may be
            # lost without a retransmission, because the peer is done.
            result.sent = wanted
        return result.sent == result.received == wanted

    def _send(self) -> None:
        region, qp = self.sending, self.qp
        if self.is_client and self._counts:
            self._content[COUNT] = self._posted.to_bytes(8)
        region.write(region.iova, self._content)
        self._posted += 1
        self._sent_ns = self.endpoint.now_ns
        qp.post_send(
            SendWR(
                sg_list=[SGE(region.iova, self.plan.size, region.lkey)],
                ah=self._address,
                remote_qpn=self._remote_qpn,
                remote_qkey=QKEY,
            )
        )

    def _receive(self, length: int) -> None:
        """Verify a message; the server's next one is equal to it."""
        result, region = self.result, self.receiving
        message = region.buffer[self.head : self.head + length]
        if self.is_client:
            result.rounds_ns.append(self.endpoint.now_ns - self._sent_ns)
        elif not result.received:
            if length == self.plan.size:
                self._content[:] = message
        elif self._counts and message[COUNT] == _next(self._content[COUNT]):
            self._content[COUNT] = message[COUNT]
        result.wrong += message != self._content
        result.received += 1
        self._post_recv()

    def _post_recv(self) -> None:
        region = self.receiving
        self.qp.post_recv(RecvWR([SGE(region.iova, region.length, region.lkey)]))


def _next(count: bytearray) -> bytes:
    return (int.from_bytes(count) + 1 & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8)
