"""What a thousand connections cost, and that they carry their data: facts without a clock."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ibwire.base.compiled import compiled_modules
from ibwire.base.units import MS, US, Time
from ibwire.fabric.flights import Flights
from ibwire.fabric.line import Flight
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import QPCap
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device
from ibwire.rc.packet import TransportPacket
from ibwire.rc.profile import RXE, SPEC, Profile
from ibwire.rc.qp import QueuePair
from ibwire.rc.requester import Requester
from ibwire.rc.send_queue import SendQueue
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus, WROpcode
from ibwire.testing import Pair, create_queue_pair

COUNT = 1000


def connections(a: Device, b: Device, count: int = COUNT) -> Iterator[tuple[QueuePair, QueuePair]]:
    """Connected queue pairs that share two completion queues a side."""
    parts = [
        {
            "pd": device.alloc_pd(),
            "send_cq": device.create_cq(9000),
            "recv_cq": device.create_cq(9000),
        }
        for device in (a, b)
    ]
    for index in range(count):
        cap = QPCap(max_send_wr=16, max_recv_wr=16)
        pair = create_queue_pair(a, **parts[0], cap=cap), create_queue_pair(b, **parts[1], cap=cap)
        connect(*pair, psn_a=index, psn_b=5000 + index)
        yield pair


def two_devices(profile: Profile) -> tuple[Simulator, Device, Device]:
    simulator = Simulator()
    a, b = (Device(f"d{i}", f"10.0.0.{i}", profile=profile, key_start=i * 50) for i in (1, 2))
    simulator.connect(a, b)
    return simulator, a, b


@pytest.mark.slow
@pytest.mark.parametrize("profile", [SPEC, RXE], ids=lambda profile: profile.name)
def test_an_idle_queue_pair_takes_at_most_5_kb(profile: Profile) -> None:
    """One that has carried messages before keeps a little of what they needed."""
    simulator, a, b = two_devices(profile)
    list(connections(a, b, 20))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    pairs = list(connections(a, b))
    fresh, _ = tracemalloc.get_traced_memory()
    for near, far in pairs:
        far.post_recv(RecvWR())
        near.post_send(SendWR(WROpcode.SEND))
    simulator.run()
    for cq in (pairs[0][0].send_cq, pairs[0][1].recv_cq):
        assert cq is not None
        assert [wc.status for wc in cq.poll(9000)] == [WCStatus.SUCCESS] * COUNT
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (fresh - before) / (2 * COUNT) <= 5_000
    assert (used - before) / (2 * COUNT) <= 6_000


@pytest.mark.slow
@pytest.mark.parametrize("profile", [SPEC, RXE], ids=lambda profile: profile.name)
def test_a_thousand_connections_all_carry_their_own_data(profile: Profile) -> None:
    """A WRITE, a SEND and a READ on each, of 1 to 3 packets."""
    simulator, a, b = two_devices(profile)
    pairs = list(connections(a, b))
    size = 2500
    near_mr = pairs[0][0].pd.register(3 * size * COUNT, 15)
    far_mr = pairs[0][1].pd.register(3 * size * COUNT, 15)
    for index, (near, far) in enumerate(pairs):
        own, other = near_mr.iova + 3 * size * index, far_mr.iova + 3 * size * index
        data = index.to_bytes(2) * (size // 2)
        near_mr.write(own, data)
        far_mr.write(other + 2 * size, data[::-1])
        remote: dict[str, Any] = {"rkey": far_mr.rkey}
        source = [SGE(own, size, near_mr.lkey)]
        far.post_recv(RecvWR([SGE(other, size, far_mr.lkey)], index))
        near.post_send(
            SendWR(WROpcode.RDMA_WRITE, source, remote_addr=other + size, wr_id=index, **remote)
        )
        near.post_send(SendWR(WROpcode.SEND, source, wr_id=index))
        near.post_send(
            SendWR(
                WROpcode.RDMA_READ,
                [SGE(own + 2 * size, size, near_mr.lkey)],
                remote_addr=other + 2 * size,
                wr_id=index,
                **remote,
            )
        )

    simulator.run(until=100 * MS)

    cq = pairs[0][0].send_cq
    assert cq is not None
    assert [wc.status for wc in cq.poll(9000)] == [WCStatus.SUCCESS] * 3 * COUNT
    for index in range(COUNT):
        data = index.to_bytes(2) * (size // 2)
        other, own = far_mr.iova + 3 * size * index, near_mr.iova + 3 * size * index
        assert far_mr.read(other, 2 * size) == 2 * data
        assert near_mr.read(own + 2 * size, size) == data[::-1]


@pytest.mark.skipif(compiled_modules() > 0, reason="methods of compiled classes stay as they are")
def test_only_queue_pairs_with_something_to_do_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy one among a thousand idle ones costs as many calls as alone."""
    calls: list[int] = []

    def count(pair: Pair, idle: int) -> list[int]:
        list(connections(pair.a.device, pair.b.device, idle))
        pair.run(1 * US)
        calls.clear()
        pair.b.post_recv(1 << 16)
        pair.a.post_send(WROpcode.SEND, 1 << 16)
        pair.a.post_send(WROpcode.RDMA_READ, 1 << 16)
        pair.run(1 * MS)
        assert len(pair.a.poll_send_cq()) == 2
        assert set(calls) == {pair.a.qp.number}
        return list(calls)

    asked: tuple[tuple[type, str], ...] = (
        (Requester, "poll_transmit"),
        (SendQueue, "handle_timeout"),
    )
    for owner, name in asked:
        original = getattr(owner, name)

        def counted(self: Requester, now: int, original: Any = original) -> object:
            calls.append(self.qp.number)
            return original(self, now)

        monkeypatch.setattr(owner, name, counted)

    assert count(Pair(size=1 << 20), 0) == count(Pair(size=1 << 20), 300)


def test_timers_of_idle_connections_are_never_looked_at() -> None:
    """Nothing is outstanding, so no time is of interest."""
    simulator, a, b = two_devices(SPEC)
    pairs = list(connections(a, b, 100))
    for near, far in pairs:
        far.post_recv(RecvWR())
        near.post_send(SendWR(WROpcode.SEND))

    simulator.run()

    assert a.poll_timeout() is None
    assert b.poll_timeout() is None
    assert simulator.pending == 0


def test_connecting_gives_no_turn_to_a_queue_pair_without_work() -> None:
    """Otherwise each change of an address would look for it among all others."""
    _, a, b = two_devices(SPEC)

    pairs = list(connections(a, b, 10))

    assert not any(qp.scheduled for pair in pairs for qp in pair)


def test_a_frame_does_not_look_at_all_queue_pairs_that_wait() -> None:
    """A packet inside a message might begin a run if its turn went on longer."""
    _, a, b = two_devices(replace(SPEC, burst_packets=3))
    pd = a.alloc_pd()
    region = pd.register(8192, int(ALL_ACCESS))
    for near, _ in connections(a, b, 300):
        near.pd = pd
        near.post_send(SendWR(WROpcode.RDMA_WRITE, [SGE(region.iova, 8192, region.lkey)]))
    a.poll_unbuilt(0)
    middle = a.poll_unbuilt(0)
    assert isinstance(middle, TransportPacket)
    assert middle.continues

    tracemalloc.start()
    run = a.extend_run(middle)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert run is None
    assert peak < 1000  # a list of them takes eight bytes for each


@pytest.mark.skipif(compiled_modules() > 0, reason="methods of compiled classes stay as they are")
def test_a_long_wire_with_many_runs_is_looked_at_no_more_than_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only runs that have begun to arrive matter to an event, not all that are on their way."""
    looks = 0
    original = Flights.take_arrived

    def counted(self: Flights, flight: Flight, now: Time, since: Time) -> None:
        nonlocal looks
        looks += 1
        original(self, flight, now, since)

    monkeypatch.setattr(Flights, "take_arrived", counted)

    def count(delay: Time) -> int:
        nonlocal looks
        simulator = Simulator()
        profile = replace(SPEC, burst_packets=4)
        a, b = (Device(f"d{i}", f"10.0.0.{i}", profile=profile, key_start=i * 50) for i in (1, 2))
        simulator.connect(a, b, delay=delay)
        pds = a.alloc_pd(), b.alloc_pd()
        source, sink = (pd.register(1 << 16, int(ALL_ACCESS)) for pd in pds)
        for near, far in connections(a, b, 8):
            near.pd, far.pd = pds
            sge = SGE(source.iova, 1 << 16, source.lkey)
            request = SendWR(WROpcode.RDMA_WRITE, [sge], remote_addr=sink.iova, rkey=sink.rkey)
            near.post_send(request)
        looks = 0
        simulator.run()
        assert simulator.flights.delivered > 300
        return looks

    assert count(1 * MS) <= count(1 * US)
