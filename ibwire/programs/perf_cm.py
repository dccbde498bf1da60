"""Tests over connections of the RDMA connection manager: perftest's option -R.

There is no TCP. A first connection carries the steps of the exchange as SENDs, records in
binary; the queue pairs of the traffic are connected after it, at the same port. A barrier
before and one after that are steps more than over TCP.

Source: perftest 4.5-0.17 perftest_communication.c create_rdma_cm_connection,
rdma_write_keys and rdma_write_data; cm-send-bw-tos (reference/habits#other-captures).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.base.errors import PeerError
from ibwire.cm import Connection, Endpoints, EventKind, Listener
from ibwire.programs.cm import (
    ABORT_SECONDS,
    accept,
    asker,
    connect,
    events,
    is_open,
    leave,
    refusal,
    settle,
)
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf import Run, greet, refuse_unfit
from ibwire.programs.perf_flows import OUTSTANDING, Flow, Plan
from ibwire.programs.perf_results import Result
from ibwire.programs.perftest import PORT, Record
from ibwire.rc.attributes import QPCap, QPType
from ibwire.rc.memory import Access
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus
from ibwire_layers import cm

SECONDS = 10.0
"""That a step may take."""

ATTEMPTS, PAUSE = 10, 0.1
"""How often, after how many seconds, a connection is asked for again: the tools' server listens
for the second only after the step that the client takes as leave (as their client does)."""

LARGEST = 64
"""Bytes of a step, with room."""

RECEIVES = 4


def connect_cm(endpoint: Endpoint, plan: Plan, host: str, port: int = PORT) -> Result:
    """Be the client of a program on a host."""
    refuse_unfit(endpoint, plan)
    exchange = CMExchange(endpoint, f"{host} port {port}", host, port, None)
    try:
        exchange.connections.append(
            connect(endpoint, host, port, exchange.qp, ready=exchange.listen)
        )
        own = exchange.connections[0].peer.sgid_index
        return Run(endpoint, plan, exchange, own, greet(exchange)).run()
    finally:
        exchange.close()


def serve_cm(
    endpoint: Endpoint,
    plan: Plan,
    port: int = PORT,
    *,
    listens: Callable[[int], None] = lambda port: None,
) -> Result:
    """Be the server of the first client that connects; `listens` is told the port."""
    refuse_unfit(endpoint, plan)
    listener = endpoint.manager.listen(Endpoints(0, 0, 0, port).service_id)
    listens(port)
    exchange = CMExchange(endpoint, "client", "", port, listener)
    try:
        exchange.accept(exchange.qp, None, 1)
        exchange.listen()
        exchange.peer = asker(exchange.connections[0])
        own = exchange.connections[0].peer.sgid_index
        return Run(endpoint, plan, exchange, own, greet(exchange)).run()
    finally:
        exchange.close()


class CMExchange:
    """The steps as SENDs over a queue pair."""

    def __init__(
        self, endpoint: Endpoint, peer: str, host: str, port: int, listener: Listener | None
    ) -> None:
        """listener: of a server; a client has none."""
        self.is_client = listener is None
        self.peer = peer
        self.meanwhile: Callable[[], object] = bool
        self.connections: list[Connection] = []
        """The one of the steps, then those of the traffic."""
        self._asked: list[Connection] = []
        """Who wants to connect; the listener's backlog bounds them."""
        self._endpoint = endpoint
        self._host, self._port = host, port
        self._listener = listener
        device = endpoint.device
        pd = device.alloc_pd()
        self._cq = device.create_cq(RECEIVES)
        self._sent_cq = device.create_cq(RECEIVES)
        cap = QPCap(max_send_wr=RECEIVES, max_recv_wr=RECEIVES)
        self.qp: QueuePair = device.create_qp(
            QPInit(QPType.RC, pd, self._sent_cq, self._cq, cap=cap)
        )
        self._leaving = pd.register(LARGEST, int(Access.LOCAL_WRITE))
        self._arriving = pd.register(RECEIVES * LARGEST, int(Access.LOCAL_WRITE))

    def listen(self) -> None:
        """Post what the peer's steps arrive in."""
        for slot in range(RECEIVES):
            self._post_recv(slot)

    def bring_up(self, flows: Sequence[Flow]) -> bool:
        """Connect the queue pairs of the traffic."""
        self.swap_record(Record(0, 0, 0))
        for flow in flows:
            if self._listener is None:
                self._connect(flow.qp)
            else:
                self.accept(flow.qp, SECONDS, OUTSTANDING)
        self.swap_record(Record(0, 0, 0))
        return True

    def swap(self, own: bytes, what: str, *, patience: float | None = None) -> bytes:
        """Say something, and hear as many bytes."""
        if self.is_client:
            self._say(own, what)
        theirs = self._hear(len(own), what, patience)
        if not self.is_client:
            self._say(own, what)
        return theirs

    def swap_record(self, own: Record, *, patience: float | None = None) -> Record:
        """Tell each other a queue pair."""
        return Record.unpack_binary(self.swap(own.pack_binary(), "record", patience=patience))

    def end(self, word: bytes) -> None:
        """Say nothing: the connections end."""

    def accept(self, qp: QueuePair, seconds: float | None, depth: int) -> None:
        """Accept the next connection that is asked for."""
        endpoint = self._endpoint

        def has_come() -> bool:
            self._take_events()
            self._asked = [each for each in self._asked if self._is_welcome(each)]
            return bool(self._asked)

        endpoint.wait(has_come, f"connection of {self.peer}", seconds=seconds)
        asked = self._asked.pop(0)
        request = asked.request
        assert isinstance(request, cm.REQ)
        if request.transport_service_type != cm.TransportType.RC:
            endpoint.manager.reject(
                asked, endpoint.live.now, cm.RejectReason.INVALID_TRANSPORT_TYPE
            )
            raise PeerError(f"{asker(asked)} wants no RC connection: -R has no other here")
        accept(endpoint, asked, qp, depth=depth)
        self.connections.append(asked)

    def _is_welcome(self, asked: Connection) -> bool:
        """Whether a request is still open, and from the one client once there is one."""
        if not is_open(asked):
            return False
        if not self.connections or asker(asked) == self.peer:
            return True
        endpoint = self._endpoint
        endpoint.manager.reject(asked, endpoint.live.now, cm.RejectReason.NO_RESOURCES)
        return False

    def close(self) -> None:
        """End all connections."""
        endpoint = self._endpoint
        if self._listener is not None:
            endpoint.manager.unlisten(self._listener)
        for connection in self.connections:
            leave(endpoint, connection)
        settle(endpoint, *self.connections, seconds=ABORT_SECONDS)

    def _connect(self, qp: QueuePair) -> None:
        endpoint = self._endpoint
        for attempt in range(ATTEMPTS):
            try:
                self.connections.append(
                    connect(endpoint, self._host, self._port, qp, depth=OUTSTANDING)
                )
                return
            except PeerError:
                if attempt == ATTEMPTS - 1:
                    raise
                endpoint.linger(PAUSE, PAUSE)

    def _say(self, data: bytes, what: str) -> None:
        region = self._leaving
        region.write(region.iova, data)
        self.qp.post_send(SendWR(sg_list=[SGE(region.iova, len(data), region.lkey)]))
        self._wait(lambda: bool(self._sent_cq), what, SECONDS)
        for wc in self._sent_cq.poll(RECEIVES):
            if wc.status is not WCStatus.SUCCESS:
                raise PeerError(f"{self.peer}: our {what} has ended with {wc.status.name}")

    def _hear(self, size: int, what: str, patience: float | None) -> bytes:
        self._wait(lambda: bool(self._cq), what, patience or SECONDS)
        (wc,) = self._cq.poll()
        if wc.status is not WCStatus.SUCCESS:
            raise PeerError(f"{self.peer}: instead of a {what} comes {wc.status.name}")
        if wc.byte_len != size:
            raise PeerError(f"{self.peer}: a {what} of {wc.byte_len} bytes, not {size}")
        message = self._arriving.read(self._arriving.iova + wc.wr_id * LARGEST, size)
        self._post_recv(wc.wr_id)
        return message

    def _wait(self, has_come: Callable[[], bool], what: str, seconds: float) -> None:
        endpoint = self._endpoint

        def condition() -> bool:
            self.meanwhile()
            if has_come():
                return True
            self._take_events()
            return False

        endpoint.wait_on(
            *(condition, lambda: endpoint.live.received, f"{what} from {self.peer}", seconds)
        )

    def _take_events(self) -> None:
        """Keep who asks for a connection; raises `PeerError` when one of ours has ended."""
        for event in events(self._endpoint):
            if event.kind is EventKind.CONNECT_REQUEST:
                self._asked.append(event.connection)
            elif event.connection not in self.connections:
                continue
            elif event.kind is EventKind.DISCONNECTED:
                raise PeerError(f"{self.peer} has disconnected")
            elif event.kind in (EventKind.REJECTED, EventKind.UNREACHABLE):
                raise PeerError(f"{self.peer}: {refusal(event)}")

    def _post_recv(self, slot: int) -> None:
        region = self._arriving
        sge = SGE(region.iova + slot * LARGEST, LARGEST, region.lkey)
        self.qp.post_recv(RecvWR([sge], slot))
