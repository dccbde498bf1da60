"""Two managers over a wire that loses, repeats and reorders: both ends come to the same end.

No protocol can make sure of that when everything from some moment on is lost; so the
wire is bad for a while and then good. Virtual time only.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from ibwire.base.units import MS, US, Time
from ibwire.cm import (
    Connection,
    ConnectionManager,
    EventKind,
    State,
    Timing,
    identifiers,
    reply,
    request,
    resolve_reply,
)
from ibwire.cm.rdma_cm import Endpoints, resolve_request
from ibwire.rc.attributes import AddressVector
from ibwire.rc.device import gid_of
from ibwire_layers import cm

GIDS = {"a": gid_of("10.0.0.1"), "b": gid_of("10.0.0.2")}
SERVICE = 0x1061C06

QUICK = Timing(
    packet_life_time=10, ca_ack_delay=5, response_timeout=12, max_cm_retries=5, service_timeout=14
)
"""Packets live 4.2 ms; an answer is awaited for 25 ms at the active side, 17 ms at the passive.
An MRA asks for 67 ms."""

RETRIES = QUICK.max_cm_retries

FATES = st.lists(
    st.one_of(
        st.just(()),
        st.tuples(st.integers(0, 3)),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
    ),
    max_size=40,
)
"""What becomes of each frame of one direction: lost, or a delay in ms for each copy, which is less
than packets live."""


@dataclass
class End:
    """A manager and an application that wants to be connected."""

    name: str
    manager: ConnectionManager
    accepts: bool = True
    thinking: Time = 0
    connections: list[Connection] = field(default_factory=list)
    told: list[EventKind] = field(default_factory=list)


class Network:
    """Both ends, and the frames between them."""

    def __init__(self, fates: dict[str, list[tuple[int, ...]]], **passive: object) -> None:
        self.now: Time = 0
        self.fates = fates
        self.ends = {
            name: End(
                name,
                ConnectionManager([gid], n, identifiers(random.Random(n)), QUICK),
            )
            for n, (name, gid) in enumerate(GIDS.items(), 1)
        }
        self.a, self.b = self.ends["a"], self.ends["b"]
        for key, value in passive.items():
            setattr(self.b, key, value)
        self.b.manager.listen(SERVICE)
        self._flying: list[tuple[Time, int, str, bytes]] = []
        self._number = 0
        self._decisions: list[tuple[Time, int, Connection]] = []
        self._sent = {"a": 0, "b": 0}

    def connect(self) -> Connection:
        connection = self.a.manager.connect(
            request(
                service_id=SERVICE,
                source=GIDS["a"],
                destination=GIDS["b"],
                qpn=0x11,
                starting_psn=5,
                timing=QUICK,
            ),
            self.now,
        )
        self.a.connections.append(connection)
        return connection

    def run(self, until: Time) -> None:
        """Let everything happen until then."""
        while True:
            for end in self.ends.values():
                self._drain(end)
            due = [
                time
                for time in (
                    self.a.manager.poll_timeout(),
                    self.b.manager.poll_timeout(),
                    self._flying[0][0] if self._flying else None,
                    self._decisions[0][0] if self._decisions else None,
                )
                if time is not None
            ]
            if not due or min(due) > until:
                self.now = until
                return
            self.now = max(self.now, *[min(due)])
            while self._flying and self._flying[0][0] <= self.now:
                _, _, to, mad = heapq.heappop(self._flying)
                way = AddressVector(dgid=GIDS["a" if to == "b" else "b"])
                self.ends[to].manager.handle_mad(mad, way, self.now)
            while self._decisions and self._decisions[0][0] <= self.now:
                self._decide(heapq.heappop(self._decisions)[2])
            for end in self.ends.values():
                end.manager.handle_timeout(self.now)

    def _drain(self, end: End) -> None:
        manager = end.manager
        while (event := manager.poll_event()) is not None:
            end.told.append(event.kind)
            if event.kind in (EventKind.CONNECT_REQUEST, EventKind.RESOLVE_REQUEST):
                end.connections.append(event.connection)
                self._number += 1
                heapq.heappush(
                    self._decisions, (self.now + end.thinking, self._number, event.connection)
                )
            elif event.kind is EventKind.CONNECT_RESPONSE:
                manager.ready(event.connection, self.now)
        while (out := manager.poll_transmit(self.now)) is not None:
            number = self._sent[end.name]
            self._sent[end.name] += 1
            known = self.fates[end.name]
            for delay in known[number] if number < len(known) else (0,):
                self._number += 1
                heapq.heappush(
                    self._flying,
                    (self.now + 10 * US + delay * MS, self._number, "ab"[end.name == "a"], out[0]),
                )

    def _decide(self, connection: Connection) -> None:
        manager = self.b.manager
        if connection.state not in (State.REQ_RCVD, State.MRA_REQ_SENT, State.SIDR_REQ_RCVD):
            return  # the peer has given up
        if not self.b.accepts:
            manager.reject(connection, self.now)
        elif isinstance(connection.request, cm.SIDR_REQ):
            manager.accept(connection, resolve_reply(0x33), self.now)
        else:
            manager.accept(connection, reply(qpn=0x22, starting_psn=9, timing=QUICK), self.now)


LONG = 10_000 * MS
"""More than all retries of all messages, an MRA and TIMEWAIT take together."""


def fates(a: list[tuple[int, ...]], b: list[tuple[int, ...]]) -> dict[str, list[tuple[int, ...]]]:
    return {"a": a, "b": b}


def bear(a: list[tuple[int, ...]], b: list[tuple[int, ...]], thinking: Time = 0) -> None:
    """Leave as many losses as the retries make up for.

    An application that thinks longer than the peer's patience needs an MRA to arrive in
    time, which one loss cannot prevent.
    """
    bearable = RETRIES - 1 if thinking < 25 * MS else 1
    while sum(not each for each in a + b) > bearable:
        (a if () in a else b).remove(())


def is_up(connection: Connection) -> bool:
    return connection.state is State.ESTABLISHED


@given(FATES, FATES, st.sampled_from([0, 10 * MS, 100 * MS]))
@settings(max_examples=scaled(120))
def test_fewer_losses_than_retries_connect_both_ends(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]], thinking: Time
) -> None:
    """A question is lost, or its answer: so many in both directions together."""
    net = Network(fates(a, b), thinking=thinking)
    bear(a, b, thinking)
    active = net.connect()
    net.run(LONG)

    assert is_up(active)
    assert [is_up(each) for each in net.b.connections] == [True]
    assert net.a.told == [EventKind.CONNECT_RESPONSE, EventKind.ESTABLISHED]
    assert net.b.told == [EventKind.CONNECT_REQUEST, EventKind.ESTABLISHED]


@given(FATES, FATES, st.booleans(), st.sampled_from([0, 10 * MS, 100 * MS, 700 * MS]))
@settings(max_examples=scaled(200))
def test_half_a_connection_ends_with_the_first_thing_that_is_said_over_it(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]], accepts: bool, thinking: Time
) -> None:
    net = Network(fates(a, b), accepts=accepts, thinking=thinking)
    active = net.connect()
    net.run(LONG)

    ups = [active, *net.b.connections]
    assert {each.state for each in ups} <= {State.ESTABLISHED, State.IDLE}
    both = is_up(active) and sum(map(is_up, net.b.connections)) == 1
    if not both:
        # The end that is left sends a message: it is answered, and that is the end.
        net.fates = fates([], [])
        for end, connection in (("a", active), *(("b", each) for each in net.b.connections)):
            if is_up(connection):
                net.ends[end].manager.disconnect(connection, net.now)
        net.run(net.now + LONG)

        assert not any(map(is_up, ups))
        assert len(net.a.manager.connections) == len(net.b.manager.connections) == 0


@given(FATES, FATES, st.booleans())
@settings(max_examples=scaled(120))
def test_disconnecting_ends_both_ends_and_leaves_nothing(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]], both: bool
) -> None:
    net = Network(fates([], []))
    active = net.connect()
    net.run(1 * MS)
    (passive,) = net.b.connections
    assert is_up(active)
    assert is_up(passive)

    net.fates = fates([(0,)] * 2 + a, [(0,)] * 1 + b)
    net.a.manager.disconnect(active, net.now)
    if both:
        net.b.manager.disconnect(passive, net.now)
    net.run(LONG)
    if is_up(passive):  # all six DREQs were lost
        net.fates = fates([], [])
        net.b.manager.disconnect(passive, net.now)
        net.run(net.now + LONG)

    for end in (net.a, net.b):
        assert end.told.count(EventKind.DISCONNECTED) == 1
        assert end.told[-1] is EventKind.TIMEWAIT_EXIT
        assert len(end.manager.connections) == 0
        assert end.manager.poll_timeout() is None


@given(FATES, FATES, st.booleans())
@settings(max_examples=scaled(80))
def test_fewer_losses_than_retries_resolve_a_service(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]], accepts: bool
) -> None:
    bear(a, b)
    net = Network(fates(a, b), accepts=accepts)
    sidr = resolve_request(Endpoints(GIDS["a"], 9, GIDS["b"], 7174))
    asked = net.a.manager.resolve(sidr, AddressVector(dgid=GIDS["b"]), 0)
    net.run(LONG)

    assert net.a.told == [EventKind.RESOLVED]
    assert set(net.b.told) == {EventKind.RESOLVE_REQUEST}
    answer = asked.reply
    assert isinstance(answer, cm.SIDR_REP)
    assert (answer.status, answer.qpn) == ((0, 0x33) if accepts else (2, 0))


@given(FATES, FATES, st.sampled_from([0, 10 * MS, 100 * MS]))
@settings(max_examples=scaled(80))
def test_fewer_losses_than_retries_bring_the_rejection(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]], thinking: Time
) -> None:
    bear(a, b, thinking)
    net = Network(fates(a, b), accepts=False, thinking=thinking)
    net.connect()
    net.run(LONG)

    assert net.a.told == [EventKind.REJECTED]
    assert set(net.b.told) == {EventKind.CONNECT_REQUEST}  # asked again, it says no again
    assert len(net.a.manager.connections) == len(net.b.manager.connections) == 0


def test_lost_rtu_comes_again_with_the_next_rep() -> None:
    net = Network(fates([(0,), ()], []))
    active = net.connect()
    net.run(LONG)

    assert is_up(active)
    assert is_up(net.b.connections[0])


def test_answer_is_kept_as_long_as_it_is_asked_for() -> None:
    """Lost twice, it comes with the third question, and the application was asked once."""
    net = Network(fates([], [(), ()]), accepts=False)
    net.connect()
    net.run(LONG)

    assert net.a.told == [EventKind.REJECTED]
    assert net.b.told == [EventKind.CONNECT_REQUEST]


def test_answer_is_kept_while_the_peer_waits_as_it_was_asked_to() -> None:
    """An MRA makes the peer ask again only after 67 ms and the way, not after 25 ms."""
    net = Network(fates([(0, 0)], [(0,), ()]), accepts=False, thinking=1 * MS)
    net.connect()
    net.run(LONG)

    assert net.a.told == [EventKind.REJECTED]
    assert net.b.told == [EventKind.CONNECT_REQUEST]
