"""Tests of perftest's kind between two of our own, over a link without faults and with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from ibwire.base.errors import EncodeError, LinkError, PeerError
from ibwire.cm import Endpoints, request
from ibwire.impair import build_pipe
from ibwire.programs import perf
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_cm import CMExchange, connect_cm, serve_cm
from ibwire.programs.perf_contents import pieces_kept, pieces_sent
from ibwire.programs.perf_exchange import TCPExchange
from ibwire.programs.perf_flows import MEMORY, Flow, Plan, Receives, fitting
from ibwire.programs.perf_latency import Fetches
from ibwire.programs.perf_requests import Outgoing, Reads
from ibwire.programs.perf_results import Bandwidth, Latency, Result
from ibwire.programs.perftest import PORT, Layout, Record, Verb, Version, pack_mtu, pack_number
from ibwire.rc.attributes import QPAttr, QPAttrMask, QPState, QPType
from ibwire.rc.device import Device
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import WC, WCOpcode, WCStatus
from socket_port import endpoints, ports, side_by_side


def play(
    plan: Plan,
    client_plan: Plan | None = None,
    *,
    faults: dict[str, float] | None = None,
    host: str = "127.0.0.1",
) -> tuple[Result, Result]:
    """What client and server have measured; faults: of both directions of the client."""
    a, b = endpoints()
    if faults:
        a.staged.inbound = build_pipe([faults], name="in")
        a.staged.outbound = build_pipe([faults], name="out")
    listens: SimpleQueue[int] = SimpleQueue()
    with a, b, a.port, b.port:
        client, server = side_by_side(
            lambda: perf.connect(a, client_plan or plan, host, listens.get()),
            lambda: perf.serve(b, plan, 0, listens=listens.put),
        )
    return client, server


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("qps", [1, 3])
def test_all_is_sent_and_verified(verb: Verb, both: bool, qps: int) -> None:
    size = 8 if verb is Verb.ATOMIC else 3000
    client, server = play(Plan(verb, size=size, messages=150, qps=qps, both=both))

    total = 150 * qps
    assert client.passed
    assert server.passed
    assert client.sent == total
    assert server.sent == (total if both else 0)
    assert (client.received, server.received) == {
        (Verb.SEND, False): (0, total),
        (Verb.SEND, True): (total, total),
    }.get((verb, both), (0, 0))
    assert client.report is not None
    assert server.report is not None
    assert client.report.messages == server.report.messages == total
    assert len(client.qpns) == qps
    assert client.qpns == [(peer, own) for own, peer in server.qpns]


@pytest.mark.parametrize(
    ("verb", "client_says", "server_says"),
    [
        (Verb.SEND, {}, {"messages": "every byte"}),
        (Verb.WRITE, {}, {"writes": "every byte, for the last message at each address"}),
        (Verb.READ, {"results": "every byte"}, {}),
        (
            Verb.ATOMIC,
            {"results": "each address counts up by one"},
            {"memory": "increased by 100, of 100"},
        ),
    ],
)
def test_it_says_how_contents_were_verified(
    verb: Verb, client_says: dict[str, str], server_says: dict[str, str]
) -> None:
    client, server = play(Plan(verb, messages=100))

    assert (client.verified, server.verified) == (client_says, server_says)


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("size", [1, 64, 5000])
def test_latency(verb: Verb, size: int) -> None:
    size = 8 if verb is Verb.ATOMIC else size
    client, server = play(Plan(verb, latency=True, size=size, messages=300))

    assert client.passed
    assert server.passed
    assert client.latency is not None
    assert client.latency.messages == 300
    assert 0 < client.latency.t_min <= client.latency.t_typical <= client.latency.t_max
    is_back_and_forth = verb in (Verb.SEND, Verb.WRITE)
    assert (server.latency is not None) is is_back_and_forth
    assert server.received == (300 if is_back_and_forth else 0)


@pytest.mark.parametrize("size", [1, 100, 2048, 2049, 65537])
@pytest.mark.parametrize("verb", [Verb.SEND, Verb.WRITE, Verb.READ])
def test_sizes_around_the_cycle_buffer(verb: Verb, size: int) -> None:
    client, server = play(Plan(verb, size=size, messages=70))

    assert client.passed
    assert server.passed


@pytest.mark.parametrize("swaps", [False, True])
def test_atomics_of_more_than_one_round_of_places(swaps: bool) -> None:
    client, server = play(Plan(Verb.ATOMIC, messages=700, swaps=swaps, qps=2))

    assert client.passed
    assert server.verified == {"memory": "increased by 1400, of 1400"}


@pytest.mark.parametrize("qp_type", [QPType.UC, QPType.UD])
@pytest.mark.parametrize("both", [False, True])
def test_unreliable_sends(qp_type: QPType, both: bool) -> None:
    client, server = play(Plan(Verb.SEND, qp_type=qp_type, size=2000, messages=300, both=both))

    assert client.passed
    assert (server.received, server.lost) == (300, 0)
    assert client.received == (300 if both else 0)


def test_unreliable_writes_and_latency() -> None:
    for plan in (
        Plan(Verb.WRITE, qp_type=QPType.UC, size=5000, messages=50),
        Plan(Verb.WRITE, qp_type=QPType.UC, size=50, messages=50, latency=True),
        Plan(Verb.SEND, qp_type=QPType.UD, size=50, messages=50, latency=True),
    ):
        client, server = play(plan)
        assert client.passed
        assert server.passed
        assert server.verified


@pytest.mark.parametrize("qp_type", [QPType.UC, QPType.UD])
def test_what_an_unreliable_service_loses_is_counted_and_no_error(qp_type: QPType) -> None:
    plan = Plan(Verb.SEND, qp_type=qp_type, size=1000, messages=300)
    _, server = play(plan, faults={"loss": 0.05})

    assert server.passed
    assert 0 < server.lost < 100
    assert server.received == 300 - server.lost


@pytest.mark.parametrize("fault", ["loss", "duplicate", "reorder", "corrupt"])
@pytest.mark.parametrize("verb", Verb)
def test_faults_cost_time_and_nothing_else(verb: Verb, fault: str) -> None:
    size = 8 if verb is Verb.ATOMIC else 20000
    client, server = play(Plan(verb, size=size, messages=40, both=True), faults={fault: 0.02})

    assert client.passed
    assert server.passed
    assert client.sent == server.sent == 40


@pytest.mark.slow
@pytest.mark.parametrize("verb", Verb)
def test_for_a_time_in_place_of_a_number(verb: Verb) -> None:
    size = 8 if verb is Verb.ATOMIC else 1000
    client, server = play(Plan(verb, size=size, seconds=0.3, both=verb is Verb.SEND, qps=2))

    assert client.passed
    assert server.passed
    assert client.sent > 0
    assert client.report is not None
    assert client.report.messages == client.sent
    assert client.report.peak_mib_per_s == 0
    assert (server.received == client.sent) is (verb is Verb.SEND)


def test_latency_for_a_time() -> None:
    client, server = play(Plan(Verb.SEND, latency=True, seconds=0.3, size=100))

    assert client.passed
    assert client.received > 0
    assert abs(client.received - server.received) <= 1


def test_smaller_path_mtu_of_both_ends_counts() -> None:
    plan = Plan(Verb.WRITE, size=5000, messages=5)
    client, server = play(replace(plan, mtu=2048), replace(plan, mtu=512))

    assert client.mtu == server.mtu == 512
    assert server.passed


def test_addresses_of_the_ip_version_of_the_channel_are_used() -> None:
    client, server = play(Plan(Verb.READ, messages=5), host="::1")

    assert (client.own, client.peer) == ("fd00::1", "fd00::2")
    assert (server.own, server.peer) == ("fd00::2", "fd00::1")


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("latency", [False, True])
def test_over_the_connection_manager(verb: Verb, latency: bool) -> None:
    a, b = endpoints()
    plan = Plan(verb, messages=50, latency=latency, qps=1 if latency else 2)
    ready = threading.Event()
    with a, b, a.port, b.port:
        client, server = side_by_side(
            lambda: ready.wait() and connect_cm(a, plan, "10.0.0.2"),
            lambda: serve_cm(b, plan, listens=lambda port: ready.set()),
        )

    assert client.passed
    assert server.passed
    assert client.sent == 50 * plan.qps
    assert client.qpns == [(peer, own) for own, peer in server.qpns]


def test_server_rejects_a_path_mtu_that_it_cannot_receive() -> None:
    a, b = endpoints()
    b.port.mtu = 1500
    ready = threading.Event()
    reasons: dict[str, str] = {}

    def refused(name: str, run: Callable[[], object]) -> None:
        with pytest.raises(PeerError) as caught:
            run()
        reasons[name] = str(caught.value)

    plan = Plan(Verb.WRITE, messages=5)
    with a, b, a.port, b.port:
        side_by_side(
            lambda: ready.wait() and refused("client", lambda: connect_cm(a, plan, "10.0.0.2")),
            lambda: refused("server", lambda: serve_cm(b, plan, listens=lambda port: ready.set())),
        )

    assert reasons["client"] == "10.0.0.2 port 18515: accepts a path MTU of at most 1024"
    assert reasons["server"] == (
        "10.0.0.1 requests a path MTU of 4096, and the MTU 1500 of b allows 1024 (REJ 26, "
        "invalid path MTU): give both interfaces the same MTU"
    )


def test_stranger_gets_no_queue_pair_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes just when the queue pairs of the traffic are connected."""
    a, b = endpoints()
    own, other = a.device.gids[1], b.device.gids[1]
    ready = threading.Event()
    connect = CMExchange._connect

    def intrude(exchange: CMExchange, qp: QueuePair) -> None:
        ends = Endpoints(own, 4000, other, PORT)
        asked = request(
            service_id=ends.service_id,
            source=ends.source,
            destination=ends.destination,
            qpn=5,
            starting_psn=0,
            private_data=ends.private_data(),
        )
        a.gid_towards(other)
        a.manager.connect(asked, a.live.now)
        connect(exchange, qp)

    monkeypatch.setattr(CMExchange, "_connect", intrude)
    with a, b, a.port, b.port:
        client, server = side_by_side(
            lambda: ready.wait() and connect_cm(a, Plan(Verb.SEND, messages=5), "10.0.0.2"),
            lambda: serve_cm(b, Plan(Verb.SEND, messages=5), listens=lambda port: ready.set()),
        )

    assert (client.sent, server.received) == (5, 5)


def test_nobody_listens_at_the_connection_manager() -> None:
    a, b = endpoints(spin=True)
    over = threading.Event()

    def ask() -> None:
        try:
            with pytest.raises(PeerError, match="no program listens there"):
                connect_cm(a, Plan(Verb.SEND), "10.0.0.2")
        finally:
            over.set()

    with a, b, a.port, b.port:
        side_by_side(ask, lambda: b.live.run(stop=over.is_set, seconds=20))


# What goes wrong is found.


def test_wrong_byte_of_a_send_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's row of bytes has one that is wrong, which is in 64 of 256 pieces."""
    spoil(monkeypatch, Outgoing)
    _, server = play(Plan(Verb.SEND, size=64, messages=256))

    assert not server.passed
    assert server.wrong == 64


def test_wrong_byte_of_a_write_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last round of 64 places these pieces cover byte 100."""
    spoil(monkeypatch, Outgoing)
    _, server = play(Plan(Verb.WRITE, size=64, messages=128))

    # The last messages are 64 to 127, piece n begins at byte n: 64 to 100 have it.
    assert server.wrong == 37


def spoil(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    make = kind.__init__  # type: ignore[misc]

    def spoiled(self: Any, pd: Any, pieces: Any, *rest: Any) -> None:
        row = bytearray(pieces.row)
        row[100] ^= 1
        pieces.row = bytes(row)
        make(self, pd, pieces, *rest)

    monkeypatch.setattr(kind, "__init__", spoiled)


def test_wrong_byte_of_a_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's memory differs in its first byte: place 0 of 64."""
    change_server_memory(monkeypatch, 0)
    client, _ = play(Plan(Verb.READ, size=64, messages=128))

    assert client.wrong == 2


@pytest.mark.parametrize("swaps", [False, True])
def test_wrong_number_of_an_atomic_is_counted(monkeypatch: pytest.MonkeyPatch, swaps: bool) -> None:
    """Place 0 of 64 holds 128 more or less: its first result is wrong, and from there it counts."""
    change_server_memory(monkeypatch, 0, 0x80)
    client, server = play(Plan(Verb.ATOMIC, messages=256, swaps=swaps))

    assert client.wrong == 1
    assert not server.passed


def change_server_memory(monkeypatch: pytest.MonkeyPatch, offset: int, bits: int = 1) -> None:
    bring_up = Flow.bring_up

    def change(self: Flow, *arguments: Any) -> None:
        bring_up(self, *arguments)
        if self.own.gid & 0xFF == 2:
            assert self.buffer is not None
            self.buffer.buffer[offset] ^= bits

    monkeypatch.setattr(Flow, "bring_up", change)


@pytest.mark.parametrize("is_ibwire", [False, True])
def test_places_that_no_write_has_reached_are_counted(is_ibwire: bool) -> None:
    a, _ = endpoints()
    plan, layout = Plan(Verb.WRITE, size=64), Layout(64)
    cqs = (a.device.create_cq(200), a.device.create_cq(1000))
    with a, a.port:
        flow = Flow(a, a.device.alloc_pd(), plan, layout, cqs, 0, 0)
        flow.peer = Record(1, 2, 3)

        assert flow.written(is_ibwire=is_ibwire, messages=10)[0] == 10
        assert flow.written(is_ibwire=is_ibwire, messages=1000)[0] == layout.places


def test_message_of_another_size_is_wrong() -> None:
    plan = Plan(Verb.SEND, size=100, messages=10)
    _, server = play(plan, replace(plan, size=90))

    assert server.wrong == 10


def test_client_that_sends_fewer_than_were_agreed() -> None:
    plan = Plan(Verb.SEND, size=100, messages=100)
    with pytest.raises(
        PeerError, match="has sent 10 of 100 messages: start both ends with the same -n"
    ):
        play(plan, replace(plan, messages=10))


def test_what_has_been_seen_does_not_count_for_what_has_not_come() -> None:
    """A message of the very same bytes that never arrives is found: its memory was cleared."""
    device = Device("a", "10.0.0.1")
    pd = device.alloc_pd()
    peer, layout = Record(1, 2, 3, 4, 5), Layout(3000)
    kept = pieces_kept(peer, layout)
    reads = Reads(pd, kept, layout, peer, 0, 1)
    (sge,) = reads.signaled[0].sg_list
    region = device.keys.find_local(pd, sge.lkey, sge.addr, sge.length, 0)
    assert region is not None
    region.write(sge.addr, kept.row[:3000])

    assert reads.settle(0, 1) == 0
    assert reads.settle(0, 1) == 1

    cq = device.create_cq(4)
    qp = device.create_qp(QPInit(QPType.RC, pd, cq, cq))
    qp.modify(QPAttr(qp_state=QPState.INIT), INIT_MASK)
    sent = pieces_sent(peer, layout)
    receives = Receives(pd, qp, Plan(Verb.SEND, size=3000, receives=1), sent)
    wr = qp.receives.waiting[0]
    region = device.keys.find_local(pd, wr.sg_list[0].lkey, wr.sg_list[0].addr, 3000, 0)
    assert region is not None
    region.write(region.iova, sent.row[:3000])
    wc = WC(0, WCStatus.SUCCESS, WCOpcode.RECV, qp.number, byte_len=3000)

    assert receives.take(wc, 0)
    assert not receives.take(wc, 0)


INIT_MASK = int(
    QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS
)


# Peers that do not do their part.


def test_peer_that_has_never_room_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers each message with an RNR NAK, and is asked again for ever (rnr_retry 7)."""
    monkeypatch.setattr(Receives, "__init__", lambda self, *rest: None)
    a, b = endpoints()
    listens: SimpleQueue[int] = SimpleQueue()

    def ask() -> None:
        plan = Plan(Verb.SEND, messages=5, stall_timeout=0.3)
        with pytest.raises(PeerError, match=r"no progress with .* for 0.3 s"):
            perf.connect(a, plan, "127.0.0.1", listens.get())

    def serve() -> None:
        with pytest.raises(PeerError, match="closed its connection"):
            perf.serve(b, Plan(Verb.SEND, messages=5), 0, listens=listens.put)

    with a, b, a.port, b.port:
        side_by_side(ask, serve)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "has closed its connection"),
        (b"6.06", "has closed its connection, after 4 of 16 bytes: b'6.06'"),
        (b"GET / HTTP/1.1\r\n", "not a program of perftest"),
        (b"5.31".ljust(16, b"\0"), "its perftest is version 5.31"),
    ],
)
def test_server_keeps_waiting_after_an_invalid_client(said: bytes, reason: str) -> None:
    told: list[str] = []
    a, b = endpoints(tell=told.append)
    listens: SimpleQueue[int] = SimpleQueue()
    plan = Plan(Verb.SEND, messages=3)

    def ask() -> Result:
        port = listens.get()
        with socket.create_connection(("127.0.0.1", port)) as connected:
            connected.sendall(said)
        return perf.connect(a, plan, "127.0.0.1", port)

    with a, b, a.port, b.port:
        client, server = side_by_side(ask, lambda: perf.serve(b, plan, 0, listens=listens.put))

    assert client.passed
    assert server.passed
    (line,) = told
    assert line.startswith("127.0.0.1 port ")
    assert reason in line


@pytest.mark.parametrize(
    "program",
    [
        lambda end, plan: perf.connect(end, plan, "127.0.0.1", 1),
        lambda end, plan: perf.serve(end, plan, 0, listens=_nobody_may_wait),
        lambda end, plan: connect_cm(end, plan, "10.0.0.2"),
        lambda end, plan: serve_cm(end, plan, listens=_nobody_may_wait),
    ],
)
def test_plan_that_cannot_be_is_refused_before_anybody_is_waited_for(program: Any) -> None:
    a, _ = endpoints()
    with a, a.port, pytest.raises(EncodeError, match="at most 262144 with 1024 queue pairs"):
        program(a, Plan(Verb.SEND, size=1 << 26, qps=1024))


def _nobody_may_wait(port: int) -> None:
    raise AssertionError("waits")


def answer(*words: bytes, keep: bool = False) -> tuple[socket.socket, threading.Thread]:
    """A server that sends its lines whenever it receives something, then closes, or is silent."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connected, _ = listening.accept()
        with connected:
            for word in words:
                connected.recv(4096)
                connected.sendall(word)
            while keep and connected.recv(4096):
                pass

    thread = threading.Thread(target=run)
    thread.start()
    return listening, thread


OPENING = [
    Version("6.06", is_ibwire=False).pack(),
    pack_number(4096),
    pack_number(64),
    pack_mtu(1024),
]
NOBODY = Record(0x11, 0x22, 0xFFFF0A000002, 0x3333, 0x444444)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([b"5.31".ljust(16, b"\0")], "version 5.31; version 5.70 or newer is required"),
        ([b"HTTP/1.1 400 Bad"], "not a program of perftest"),
        ([b"6.06"], "has closed its connection"),
        ([], "has closed its connection|Connection reset"),
        ([OPENING[0], pack_number(1 << 30)], "cycle buffer: 1073741824 bytes"),
        ([*OPENING[:2], pack_number(0)], "cache line: 0 bytes"),
        ([*OPENING[:3], b"9\0"], "path MTU code"),
        ([*OPENING, b"x" * 108], "not a record of a queue pair"),
        ([*OPENING, replace(NOBODY, gid=0).pack_text()], "the peer's GID is ::"),
        ([*OPENING, NOBODY.pack_text()], "has closed its connection|reset"),
    ],
)
def test_server_that_cannot_be_understood_is_an_error(words: list[bytes], reason: str) -> None:
    a, _ = endpoints()
    listening, thread = answer(*words)

    with a, a.port, listening, pytest.raises((PeerError, LinkError), match=reason):
        perf.connect(a, Plan(Verb.WRITE), "127.0.0.1", listening.getsockname()[1])
    thread.join()


def test_server_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TCPExchange, "SECONDS", 0.2)
    a, _ = endpoints()
    listening, thread = answer(*OPENING, keep=True)

    with a, a.port, listening, pytest.raises(PeerError, match=r"no record from .* for 0.2 s"):
        perf.connect(a, Plan(Verb.WRITE), "127.0.0.1", listening.getsockname()[1])
    thread.join()


@pytest.mark.parametrize(
    "plan", [Plan(Verb.WRITE, timeout=8), Plan(Verb.SEND, timeout=8, both=True)]
)
def test_queue_pair_that_nobody_has_ends_in_its_status(plan: Plan) -> None:
    """The exchange is right, and no ACK comes; flushed receives are not the reason."""
    a, b = endpoints(spin=True)
    listening, thread = answer(*OPENING, *[NOBODY.pack_text()] * (4 if plan.both else 3), keep=True)
    over = threading.Event()

    def ask() -> None:
        try:
            with pytest.raises(
                PeerError, match="message 0 completed with RETRY_EXC_ERR: nothing has arrived"
            ):
                perf.connect(a, plan, "127.0.0.1", listening.getsockname()[1])
        finally:
            over.set()

    with a, b, a.port, b.port, listening:
        side_by_side(ask, lambda: b.live.run(stop=over.is_set, seconds=20))
    thread.join()


@pytest.mark.parametrize("verb", [Verb.SEND, Verb.WRITE])
def test_client_that_vanishes_in_the_middle_is_an_error(verb: Verb) -> None:
    _, b = endpoints()

    def come(port: int) -> None:
        def run() -> None:
            with socket.create_connection(("127.0.0.1", port)) as connected:
                for word in (*OPENING, *[replace(NOBODY, gid=0xFFFF0A000001).pack_text()] * 3):
                    connected.sendall(word)
                    connected.recv(108)

        threading.Thread(target=run).start()

    with b, b.port, pytest.raises(PeerError, match=r"has closed its connection|reset"):
        perf.serve(b, Plan(verb), 0, listens=come)


def test_peer_of_the_other_ip_version_is_told_apart() -> None:
    """The channel is over IPv4, but the client has no such address to send from."""
    a_port, b_port = ports()
    a = Endpoint(a_port, addresses=["fd00::1"], neighbour=lambda _: b_port.mac)
    b = Endpoint(b_port, addresses=["10.0.0.2"], neighbour=lambda _: a_port.mac)
    listens: SimpleQueue[int] = SimpleQueue()

    def ask() -> None:
        with pytest.raises(LinkError, match=r"GID is 10\.0\.0\.2 and ours fd00::1"):
            perf.connect(a, Plan(Verb.READ), "127.0.0.1", listens.get())

    def serve() -> None:
        with pytest.raises(LinkError, match=r"ours 10\.0\.0\.2: choose an own address"):
            perf.serve(b, Plan(Verb.READ), 0, addresses=["127.0.0.1"], listens=listens.put)

    with a, b, a.port, b.port:  # type: ignore[attr-defined]
        side_by_side(ask, serve)


def test_server_takes_the_own_address_that_fits_the_client() -> None:
    """The channel is over IPv4, and the client has an IPv6 address only."""
    a_port, b_port = ports()
    a = Endpoint(a_port, addresses=["fd00::1"], neighbour=lambda _: b_port.mac)
    b = Endpoint(b_port, neighbour=lambda _: a_port.mac)
    listens: SimpleQueue[int] = SimpleQueue()
    plan = Plan(Verb.WRITE, size=3000, messages=20, qps=2)

    with a, b, a.port, b.port:  # type: ignore[attr-defined]
        client, server = side_by_side(
            lambda: perf.connect(a, plan, "127.0.0.1", listens.get()),
            lambda: perf.serve(b, plan, 0, addresses=["127.0.0.1"], listens=listens.put),
        )

    assert (client.own, client.peer) == (server.peer, server.own) == ("fd00::1", "fd00::2")
    assert client.passed
    assert server.passed


# Plans and measures.


def test_usual_sizes_are_those_of_the_tools() -> None:
    """perftest_parameters.h: DEF_SIZE_BW, DEF_SIZE_LAT, DEF_SIZE_ATOMIC; UD is cut to a packet."""
    assert fitting(Plan(Verb.SEND), 4096).size == 65536
    assert fitting(Plan(Verb.READ, latency=True), 4096).size == 2
    assert fitting(Plan(Verb.ATOMIC), 4096).size == 8
    assert fitting(Plan(Verb.SEND, qp_type=QPType.UD), 1024).size == 1024


def test_datagram_larger_than_a_packet_is_refused() -> None:
    with pytest.raises(EncodeError, match="one packet"):
        fitting(Plan(Verb.SEND, qp_type=QPType.UD, size=1025), 1024)


def test_memory_is_bounded_whatever_is_wanted() -> None:
    plan = fitting(Plan(Verb.SEND, size=1 << 26, qps=4, messages=10_000), 4096)
    assert (plan.depth, plan.receives) == (1, 1)

    plan = fitting(Plan(Verb.READ, size=1 << 20, messages=10_000), 4096)
    assert plan.depth * plan.size <= MEMORY

    with pytest.raises(EncodeError, match="at most 268435 with 1000 queue pairs"):
        fitting(Plan(Verb.SEND, size=1 << 26, qps=1000), 4096)


def test_swaps_have_no_more_outstanding_than_places() -> None:
    assert fitting(Plan(Verb.ATOMIC, swaps=True, depth=500), 4096).depth == 64


def test_bandwidth_by_hand() -> None:
    """Two messages of 2**20 bytes, posted at 0 and 1 s, completed at 2 and 2.5 s."""
    s = 1_000_000_000
    measured = Bandwidth(1 << 20, 2, 0, 2 * s + s // 2, [0, s], [2 * s, 2 * s + s // 2])
    report = measured.report()

    assert report.average_mib_per_s == pytest.approx(2 / 2.5)
    assert report.rate_mpps == pytest.approx(2 / 2.5 / 1e6)
    # Both in 2.5 s, or the second in 1.5 s, or the first in 2 s.
    assert report.peak_mib_per_s == pytest.approx(1 / 1.25)


def test_latency_by_hand() -> None:
    """Rounds of 999, 10, 20, 30 and 100 us, of two messages each; the first does not count."""
    posted = [0, 999_000, 1_009_000, 1_029_000, 1_059_000, 1_159_000]
    latency = Latency.of(64, posted, 2)

    assert latency.messages == 6
    assert (latency.t_min, latency.t_typical, latency.t_max) == (5, 12.5, 50)
    assert latency.t_avg == 20
    assert (latency.p99, latency.p99_9) == (50, 50)


def test_times_of_messages_take_eight_bytes_each() -> None:
    a, _ = endpoints()
    plan = Plan(Verb.READ, latency=True, messages=10)
    cq = a.device.create_cq(10)
    with a, a.port:
        flow = Flow(a, a.device.alloc_pd(), plan, Layout(8), (cq, cq), 0, 0)
        taken = Fetches(a, plan, flow, cq, begins=True)
        taken.posted_ns.extend(range(10))

    assert memoryview(taken.posted_ns).nbytes == 10 * 8


def test_latency_of_one_message_is_none() -> None:
    assert Latency.of(64, [5], 2).t_max == 0
