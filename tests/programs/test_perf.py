"""Tests of perftest's kind between two of our own, over a link without faults and with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from examples import sampled, usual
from ibwire.base.errors import EncodeError, PeerError
from ibwire.cm import Endpoints, request
from ibwire.programs.perf_cm import CMExchange, connect_cm, serve_cm
from ibwire.programs.perf_flows import MEMORY, Flow, Plan, fitting
from ibwire.programs.perf_latency import Fetches
from ibwire.programs.perf_results import Bandwidth, Latency
from ibwire.programs.perftest import PORT, Layout, Verb
from ibwire.rc.attributes import QPType
from ibwire.rc.qp import QueuePair
from programs.perf_play import play
from socket_port import endpoints, side_by_side


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("qps", [1, 3])
def test_all_is_sent_and_verified(verb: Verb, both: bool, qps: int) -> None:
    size = 8 if verb is Verb.ATOMIC else 3000
    messages = usual(150, quick=50)
    client, server = play(Plan(verb, size=size, messages=messages, qps=qps, both=both))

    total = messages * qps
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
    messages = usual(300, quick=100)
    client, server = play(Plan(verb, latency=True, size=size, messages=messages))

    assert client.passed
    assert server.passed
    assert client.latency is not None
    assert client.latency.messages == messages
    assert 0 < client.latency.t_min <= client.latency.t_typical <= client.latency.t_max
    is_back_and_forth = verb in (Verb.SEND, Verb.WRITE)
    assert (server.latency is not None) is is_back_and_forth
    assert server.received == (messages if is_back_and_forth else 0)


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


@pytest.mark.slow
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
@pytest.mark.parametrize("verb", sampled(Verb, 2))
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
