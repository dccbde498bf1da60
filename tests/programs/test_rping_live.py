"""rping between two endpoints in one process: connections made, refused, broken and ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from ibwire.base.errors import LinkError, PeerError
from ibwire.cm import (
    Connection,
    Endpoints,
    Event,
    EventKind,
    State,
    request,
    resolve_request,
)
from ibwire.impair import build_pipe
from ibwire.programs import cm as connections
from ibwire.programs import rping_live
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.rping import PORT, Advert, Client
from ibwire.programs.rping_live import Result, Service, ping
from ibwire.rc.attributes import AddressVector, QPCap
from ibwire.rc.work import SendFlags, SendWR
from ibwire.testing import create_queue_pair
from ibwire_layers import cm
from ibwire_layers.packet import Packet
from socket_port import endpoints, side_by_side

SERVER = "10.0.0.2"


class Hall:
    """A client's and a server's endpoint, and what the programs there report."""

    def __init__(self, **options: Any) -> None:
        self.client, self.server = endpoints(**options)
        self.results: list[Result] = []
        self.over = threading.Event()

    def serve(self, **kind: Any) -> None:
        """The server of one client."""
        Service(self.server, report=self.results.append, **kind).run()

    @contextmanager
    def serving_beside(self) -> Iterator[None]:
        """The server in a thread, for a client that gets signals: only the main thread does."""

        def serve() -> None:
            with suppress(PeerError):  # such a client leaves in the middle of a ping
                self.serve()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()

    def idle(self) -> None:
        """A host without a listener."""
        while not self.over.is_set():
            self.server.live.run(seconds=0.02)

    def ask(self, host: str = SERVER, **kind: Any) -> Result:
        """A client that is served."""
        ping(self.client, host, report=self.results.append, **kind)
        return next(each for each in self.results if each.role == "client")

    def until_over(self, program: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            try:
                return program()
            finally:
                self.over.set()

        return run

    def connect(self, **kind: Any) -> tuple[Connection, Client]:
        """A connection on which nothing is said yet."""
        side = Client(self.client.device, SERVER)
        return connections.connect(
            self.client, SERVER, PORT, side.qp, ready=side.listen, **kind
        ), side

    def wait_for(self, endpoint: Endpoint, kind: EventKind) -> Event:
        found: list[Event] = []

        def has_come() -> bool:
            found.extend(event for event in connections.events(endpoint) if event.kind is kind)
            return bool(found)

        endpoint.wait(has_come, kind.name, seconds=5)
        return found[0]

    def leave(self, connection: Connection) -> None:
        connections.leave(self.client, connection)
        connections.settle(self.client, connection)


@pytest.fixture
def hall() -> Hall:
    return Hall()


@pytest.mark.parametrize(("host", "own"), [(SERVER, "10.0.0.1"), ("fd00::2", "fd00::1")])
def test_pings_are_answered_and_the_connection_ends(hall: Hall, host: str, own: str) -> None:
    side_by_side(lambda: hall.ask(host, count=20, size=5000), hall.serve)

    server, client = sorted(hall.results, key=lambda each: each.role == "client")
    for result in (server, client):
        assert (result.pings, result.size, result.problem) == (20, 5000, None)
        assert result.validated
    assert (client.local, client.remote) == (server.remote, server.local) == (own, host)
    assert 0 < client.latency_us["min"] <= client.latency_us["mean"] <= client.latency_us["max"]
    # 2 SENDs and 2 packets of READ responses of each 20 pings, besides acknowledgements.
    assert client.qp_counters["bytes_sent"] == 20 * (2 * 16 + 5000)


def test_every_frame_twice_is_as_good_as_once(hall: Hall) -> None:
    for pipe in ("inbound", "outbound"):
        setattr(hall.client.staged, pipe, build_pipe([{"duplicate": {"probability": 1}}]))
    side_by_side(lambda: hall.ask(count=20, size=20_000), hall.serve)

    assert [each.pings for each in hall.results] == [20, 20]
    assert all(each.validated for each in hall.results)


def test_lost_rtu_does_not_hold_up_the_pings(hall: Hall) -> None:
    """The REP would be repeated after 4.3 seconds."""
    hall.client.staged.outbound = build_pipe([{"drop": {"dest_qp": 1, "nth": 2}}])
    side_by_side(lambda: hall.ask(count=2), hall.serve)

    assert [each.pings for each in hall.results] == [2, 2]
    assert hall.server.manager.counters == {}


def test_rtu_leaves_before_the_first_data(hall: Hall) -> None:
    """As in cm-rping."""
    to: list[int] = []

    def note(frame: bytes, now: int) -> list[tuple[int, bytes]]:
        to.append(Packet.parse(frame).bth.dest_qp)
        return [(0, frame)]

    hall.client.staged.outbound = note
    side_by_side(lambda: hall.ask(count=1), hall.serve)

    assert [qpn == 1 for qpn in to[:3]] == [True, True, False]  # REQ, RTU, SEND


def test_signal_while_the_rtu_leaves_is_not_lost(hall: Hall) -> None:
    def interrupt(frame: bytes, now: int) -> list[tuple[int, bytes]]:
        if Packet.parse(frame).bth.dest_qp == 1 and frame[-244:-242] == b"\x00\x14":
            os.kill(os.getpid(), signal.SIGINT)
        return [(0, frame)]

    hall.client.staged.outbound = interrupt
    with hall.serving_beside(), pytest.raises(Interrupted):
        hall.connect()

    assert [each.problem for each in hall.results] == [None]


@pytest.mark.parametrize(("count", "problem"), [(0, None), (10**9, "ended by SIGINT")])
def test_signal_is_a_problem_where_a_number_of_pings_is_wanted(
    hall: Hall, count: int, problem: str | None
) -> None:
    def interrupt(data: bytes) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with hall.serving_beside(), pytest.raises(Interrupted):
        hall.ask(count=count, on_data=interrupt)

    assert [each.problem for each in hall.results if each.role == "client"] == [problem]


def test_own_queue_pair_gives_up_also_as_rxe() -> None:
    """7 would be for ever (reference/habits#rxe-retry-7); the peer is asked for 7 as by rping."""
    hall = Hall(profile="rxe")

    def ask() -> tuple[int, int]:
        connection, side = hall.connect()
        hall.leave(connection)
        assert isinstance(connection.request, cm.REQ)
        return side.qp.query().retry_cnt, connection.request.retry_count

    counts, _ = side_by_side(ask, hall.serve)

    assert counts == (6, 7)


def test_missing_listener_is_one_message(hall: Hall) -> None:
    with pytest.raises(
        PeerError, match=r"^10.0.0.2 port 7174: no program listens there \(REJ 8\)$"
    ):
        side_by_side(hall.until_over(lambda: hall.ask(count=1)), hall.idle)

    assert hall.results == []


def test_nobody_there_is_a_sentence(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_SECONDS", 0.02)
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.05)
    told: list[str] = []
    hall.client.tell = told.append
    with pytest.raises(PeerError, match=r"^no response from 10.0.0.2 port 7174 for 0.05 s$"):
        hall.ask(count=1)

    assert told == ["no response from 10.0.0.2 port 7174 yet; retrying for 0.05 s"]
    # The peer would get a message that the client no longer waits.
    last = [mad[16:18] for mad in mads_to(hall)]
    assert last == [b"\x00\x10", b"\x00\x12"]


def mads_to(hall: Hall) -> list[bytes]:
    frames = hall.server.port.receive()
    return [frame[-260:-4] for frame in frames]


def test_host_of_another_ip_version_is_a_sentence(hall: Hall) -> None:
    hall.client.device.gids[1:] = []
    with pytest.raises(LinkError, match=r"no IPv6 address, and the peer has fd00::2"):
        hall.ask("fd00::2", count=1)


def test_name_without_an_address_is_a_sentence(hall: Hall) -> None:
    with pytest.raises(LinkError, match=r"^nowhere\.invalid: no such host: "):
        hall.ask("nowhere.invalid", count=1)


def test_second_client_of_a_server_for_one_is_told_so(hall: Hall) -> None:
    def ask() -> None:
        first, _ = hall.connect()
        try:
            with pytest.raises(
                PeerError, match=r"has no resources for another connection \(REJ 3\)$"
            ):
                hall.connect()
        finally:
            hall.leave(first)

    side_by_side(ask, hall.serve)

    assert [(each.pings, each.problem) for each in hall.results] == [(0, None)]


def test_path_mtu_that_does_not_fit_is_refused_with_one_that_does(hall: Hall) -> None:
    hall.server.port.mtu = 1500

    def ask() -> None:
        try:
            with pytest.raises(PeerError, match=r": accepts a path MTU of at most 1024$"):
                hall.connect()
        finally:
            hall.client.port.mtu = 1500
            hall.ask(count=1)

    side_by_side(ask, hall.serve)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"responder_resources": 0}, cm.RejectReason.INSUFFICIENT_RESPONDER_RESOURCES),
        ({"service": cm.TransportType.UC}, cm.RejectReason.INVALID_TRANSPORT_TYPE),
    ],
)
def test_request_that_rping_can_not_serve_is_refused(
    hall: Hall, fields: dict[str, object], reason: cm.RejectReason
) -> None:
    def ask() -> int:
        client = hall.client
        ends = Endpoints(client.device.gids[0], 4000, hall.server.device.gids[0], PORT)
        asked = request(
            service_id=ends.service_id,
            source=ends.source,
            destination=ends.destination,
            qpn=5,
            starting_psn=0,
            private_data=ends.private_data(),
            **fields,
        )
        client.manager.connect(asked, client.live.now)
        answer = hall.wait_for(client, EventKind.REJECTED)
        hall.ask(count=1)
        return answer.reason

    told, _ = side_by_side(ask, hall.serve)

    assert told == reason


def test_silent_client_is_given_up(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rping_live, "STALL_SECONDS", 0.05)
    told: list[Event] = []

    def ask() -> None:
        connection, _ = hall.connect()
        told.append(hall.wait_for(hall.client, EventKind.DISCONNECTED))
        hall.leave(connection)

    with pytest.raises(PeerError, match=r"^no message from 10.0.0.1 for 0.05 s$"):
        side_by_side(ask, hall.serve)

    assert [each.problem for each in hall.results] == ["no message from 10.0.0.1 for 0.05 s"]
    assert len(told) == 1


def test_client_that_leaves_in_the_middle_is_a_sentence(hall: Hall) -> None:
    """It offers the source and no sink."""

    def ask() -> None:
        connection, side = hall.connect()
        memory = side._source
        offer = Advert(memory.iova, memory.rkey, 64).pack()
        side.qp.post_send(SendWR(send_flags=SendFlags.INLINE, inline_data=offer))
        hall.client.live.run(stop=lambda: side.qp.counters.packets_received >= 3, seconds=5)
        hall.leave(connection)

    with pytest.raises(PeerError, match=r"^10.0.0.1 disconnected during ping 0$"):
        side_by_side(ask, lambda: hall.serve(validate=False))


def test_server_that_leaves_is_a_sentence(hall: Hall) -> None:
    def serve() -> None:
        server = hall.server
        server.manager.listen(Endpoints(0, 0, 0, PORT).service_id)
        qp = create_queue_pair(server.device, cap=QPCap())
        asked = hall.wait_for(server, EventKind.CONNECT_REQUEST)
        connections.accept(server, asked.connection, qp)
        hall.wait_for(server, EventKind.ESTABLISHED)
        connections.leave(server, asked.connection)
        connections.settle(server, asked.connection)

    with pytest.raises(PeerError, match=r"^10.0.0.2 port 7174 disconnected before the last"):
        side_by_side(lambda: hall.ask(count=1), serve)

    (result,) = hall.results
    assert (result.pings, result.validated) == (0, False)
    assert result.problem == "10.0.0.2 port 7174 disconnected before the last ping"


def test_server_that_changes_its_mind_is_a_sentence(hall: Hall) -> None:
    """A REJ right behind the REP: the client may be between them, or hear both at once."""

    def serve() -> None:
        server = hall.server
        server.manager.listen(Endpoints(0, 0, 0, PORT).service_id)
        qp = create_queue_pair(server.device)
        asked = hall.wait_for(server, EventKind.CONNECT_REQUEST)
        connections.accept(server, asked.connection, qp)
        connections.leave(server, asked.connection)
        hall.idle()

    with pytest.raises(PeerError, match=r"refuses the connection|disconnected before"):
        side_by_side(hall.until_over(lambda: hall.ask(count=1)), serve)


def test_persistent_server_goes_on_after_a_client_that_breaks_the_rules(hall: Hall) -> None:
    service = Service(hall.server, is_persistent=True, report=hall.results.append)

    def ask() -> None:
        hall.ask(count=3)
        connection, side = hall.connect()
        side.qp.post_send(SendWR(send_flags=SendFlags.INLINE, inline_data=b"hello"))
        hall.wait_for(hall.client, EventKind.DISCONNECTED)
        hall.leave(connection)
        hall.ask(count=4)

    def serve() -> None:
        while not hall.over.is_set():
            hall.server.live.run(stop=service._step, seconds=0.02)

    side_by_side(hall.until_over(ask), serve)

    served = [(each.pings, each.problem) for each in hall.results if each.role == "server"]
    wrong = "10.0.0.1 has sent a message of 5 bytes, expected 16"
    assert served == [(3, None), (0, wrong), (4, None)]
    assert len(hall.server.device.qps) == 1  # QP1


def test_request_that_is_taken_back_at_once_is_forgotten(hall: Hall) -> None:
    service = Service(hall.server, is_persistent=True, report=hall.results.append)
    client = hall.client
    ends = Endpoints(client.device.gids[0], 4000, hall.server.device.gids[0], PORT)
    asked = request(
        service_id=ends.service_id,
        source=ends.source,
        destination=ends.destination,
        qpn=5,
        starting_psn=0,
        private_data=ends.private_data(),
    )
    connections.leave(client, client.manager.connect(asked, client.live.now))
    client.live.run(stop=lambda: True)

    # Both messages are there before the server looks.
    hall.server.live.run(stop=service._step, seconds=0.05)

    assert [each.state for each in hall.server.manager.connections] == [State.TIMEWAIT]
    assert hall.results == []


def test_who_asks_for_datagrams_is_told_that_there_are_none(hall: Hall) -> None:
    """More than the backlog of 128: unanswered they would keep clients out for good."""
    service = Service(hall.server, is_persistent=True, report=hall.results.append)
    client = hall.client
    gids = client.device.gids[0], hall.server.device.gids[0]
    ends = Endpoints(gids[0], 4000, gids[1], PORT)
    outcomes: list[int] = []

    def ask() -> None:
        way = AddressVector(dgid=gids[1], sgid_index=client.gid_towards(gids[1]))
        for _ in range(130):
            client.manager.resolve(resolve_request(ends), way, client.live.now)
            outcomes.append(hall.wait_for(client, EventKind.RESOLVED).reason)
        hall.ask(count=2)

    def serve() -> None:
        while not hall.over.is_set():
            hall.server.live.run(stop=service._step, seconds=0.02)

    side_by_side(hall.until_over(ask), serve)

    assert outcomes == [cm.SIDRStatus.REJECTED] * 130
    assert hall.results[0].pings == 2


def test_persistent_server_has_room_for_so_many(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rping_live, "CLIENTS", 2)
    service = Service(hall.server, is_persistent=True)

    def ask() -> None:
        first, _ = hall.connect()
        second, _ = hall.connect()
        with pytest.raises(PeerError, match="has no resources"):
            hall.connect()
        hall.leave(first)
        third, _ = hall.connect()
        hall.leave(second)
        hall.leave(third)

    def serve() -> None:
        while not hall.over.is_set():
            hall.server.live.run(stop=service._step, seconds=0.02)

    side_by_side(hall.until_over(ask), serve)
