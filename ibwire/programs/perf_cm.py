"""Tests over connections of the RDMA connection manager: perftest's option -R.

There is no TCP connection. A first RDMA connection carries the steps of the exchange as SENDs,
with binary records; the queue pairs of the traffic are connected after it, at the same port. A
barrier before and one after that are additional steps.

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
    acceptable_mtu,
    active_address,
    connect,
    events,
    is_open,
    leave,
    refusal,
    settle,
)
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.failures import cause, first_status
from ibwire.programs.perf import Run, greet, refuse_unfit
from ibwire.programs.perf_flows import OUTSTANDING, Flow, Plan
from ibwire.programs.perf_results import Result
from ibwire.programs.perftest import PORT, Record
from ibwire.rc.attributes import MTU_BYTES, MTU_CODES, QPCap, QPType
from ibwire.rc.memory import Access
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus
from ibwire_layers import cm

SECONDS = 10.0
"""Time for a step."""

ATTEMPTS, PAUSE = 10, 0.1
"""Number of attempts to connect and seconds between them: the tools' server listens for the
second connection only after the barrier (their client retries in the same way)."""

LARGEST = 64
"""Upper limit of the bytes of a step."""

RECEIVES = 4


def connect_cm(endpoint: Endpoint, plan: Plan, host: str, port: int = PORT) -> Result:
    """Run a test as the client of a program on a host."""
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
    """Run a test as the server of the first client that connects; `listens` gets the port."""
    refuse_unfit(endpoint, plan)
    listener = endpoint.manager.listen(Endpoints(0, 0, 0, port).service_id)
    listens(port)
    exchange = CMExchange(endpoint, "client", "", port, listener)
    try:
        exchange.accept(exchange.qp, None, 1)
        exchange.listen()
        exchange.peer = active_address(exchange.connections[0])
        own = exchange.connections[0].peer.sgid_index
        return Run(endpoint, plan, exchange, own, greet(exchange)).run()
    finally:
        exchange.close()


class CMExchange:
    """The exchange as SENDs over a queue pair."""

    def __init__(
        self, endpoint: Endpoint, peer: str, host: str, port: int, listener: Listener | None
    ) -> None:
        """listener: of a server; `None` for a client."""
        self.is_client = listener is None
        self.peer = peer
        self.meanwhile: Callable[[], object] = bool
        self.connections: list[Connection] = []
        """The connection of the exchange, then those of the traffic."""
        self._requested: list[Connection] = []
        """Connections requested by clients; the listener's backlog limits them."""
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
        self._send_region = pd.register(LARGEST, int(Access.LOCAL_WRITE))
        self._receive_region = pd.register(RECEIVES * LARGEST, int(Access.LOCAL_WRITE))

    def listen(self) -> None:
        """Post receives for the peer's steps."""
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

    def swap(self, own: bytes, what: str, *, timeout: float | None = None) -> bytes:
        """Send a message and receive one of the same size."""
        if self.is_client:
            self._send(own, what)
        theirs = self._receive(len(own), what, timeout)
        if not self.is_client:
            self._send(own, what)
        return theirs

    def swap_record(self, own: Record, *, timeout: float | None = None) -> Record:
        """Exchange the records of a queue pair."""
        return Record.unpack_binary(self.swap(own.pack_binary(), "record", timeout=timeout))

    def end(self, word: bytes) -> None:
        """Send nothing: closing the connections ends the test."""

    def accept(self, qp: QueuePair, seconds: float | None, depth: int) -> None:
        """Accept the next requested connection."""
        endpoint = self._endpoint

        def has_come() -> bool:
            self._take_events()
            self._requested = [each for each in self._requested if self._is_welcome(each)]
            return bool(self._requested)

        endpoint.wait(has_come, f"connection of {self.peer}", seconds=seconds)
        asked = self._requested.pop(0)
        request = asked.request
        assert isinstance(request, cm.REQ)
        if request.transport_service_type != cm.TransportType.RC:
            endpoint.manager.reject(
                asked, endpoint.live.now, cm.RejectReason.INVALID_TRANSPORT_TYPE
            )
            address = active_address(asked)
            raise PeerError(f"{address} requests a connection that is not RC, which -R requires")
        acceptable = acceptable_mtu(endpoint, request)
        if acceptable is not None:
            endpoint.manager.reject(
                asked,
                endpoint.live.now,
                cm.RejectReason.INVALID_MTU,
                ari=bytes([MTU_CODES[acceptable]]),
            )
            raise PeerError(
                f"{active_address(asked)} requests a path MTU of "
                f"{MTU_BYTES[request.path_packet_payload_mtu]}, and the MTU "
                f"{endpoint.port.mtu} of {endpoint.port.name} allows {acceptable} "
                "(REJ 26, invalid path MTU): give both interfaces the same MTU"
            )
        accept(endpoint, asked, qp, depth=depth)
        self.connections.append(asked)

    def _is_welcome(self, asked: Connection) -> bool:
        """Whether a request is still open and, after the first connection, from the same client."""
        if not is_open(asked):
            return False
        if not self.connections or active_address(asked) == self.peer:
            return True
        endpoint = self._endpoint
        endpoint.manager.reject(asked, endpoint.live.now, cm.RejectReason.NO_RESOURCES)
        return False

    def close(self) -> None:
        """Close all connections."""
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

    def _send(self, data: bytes, what: str) -> None:
        region = self._send_region
        region.write(region.iova, data)
        self.qp.post_send(SendWR(sg_list=[SGE(region.iova, len(data), region.lkey)]))
        self._wait(lambda: bool(self._sent_cq), what, SECONDS)
        for wc in self._sent_cq.poll(RECEIVES):
            if wc.status is not WCStatus.SUCCESS:
                raise self._failure(f"sending the {what}", wc.status)

    def _receive(self, size: int, what: str, timeout: float | None) -> bytes:
        self._wait(lambda: bool(self._cq), what, timeout or SECONDS)
        (wc,) = self._cq.poll()
        if wc.status is not WCStatus.SUCCESS:
            raise self._failure(f"receiving the {what}", wc.status)
        if wc.byte_len != size:
            raise PeerError(f"{self.peer}: the {what} has {wc.byte_len} bytes, expected {size}")
        message = self._receive_region.read(self._receive_region.iova + wc.wr_id * LARGEST, size)
        self._post_recv(wc.wr_id)
        return message

    def _failure(self, what: str, status: WCStatus) -> PeerError:
        status = first_status(self.qp, status)
        return PeerError(f"{self.peer}: {what} failed with {status.name}: {cause(self.qp, status)}")

    def _wait(self, has_come: Callable[[], bool], what: str, seconds: float) -> None:
        endpoint = self._endpoint

        def condition() -> bool:
            self.meanwhile()
            if has_come():
                return True
            self._take_events()
            return False

        endpoint.wait_on(
            condition, lambda: endpoint.live.received, f"{what} from {self.peer}", seconds
        )

    def _take_events(self) -> None:
        """Keep connection requests; raises `PeerError` when one of our connections has ended."""
        for event in events(self._endpoint):
            if event.kind is EventKind.CONNECT_REQUEST:
                self._requested.append(event.connection)
            elif event.connection not in self.connections:
                continue
            elif event.kind is EventKind.DISCONNECTED:
                raise PeerError(f"{self.peer} has disconnected")
            elif event.kind in (EventKind.REJECTED, EventKind.UNREACHABLE):
                raise PeerError(f"{self.peer}: {refusal(event)}")

    def _post_recv(self, slot: int) -> None:
        region = self._receive_region
        sge = SGE(region.iova + slot * LARGEST, LARGEST, region.lkey)
        self.qp.post_recv(RecvWR([sge], slot))
