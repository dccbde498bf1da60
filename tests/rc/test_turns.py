"""The turns of queue pairs that have something to send: each sends a burst, then the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import GBPS, Time
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.congestion.rate import RateLimit
from ibwire.rc.connect import ALL_ACCESS, bring_up, connect
from ibwire.rc.device import Device, gid_of
from ibwire.rc.profile import SPEC
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, SendWR, WROpcode
from ibwire_layers.packet import Packet

MTU = 1024


class Sender:
    """A device whose queue pairs have WRITEs of so many packets to send."""

    def __init__(self, burst_packets: int, packets: Sequence[int]) -> None:
        self.device = Device("x", "10.0.0.2", profile=replace(SPEC, burst_packets=burst_packets))
        self.pd, cq = self.device.alloc_pd(), self.device.create_cq(999)
        self.region = self.pd.register(max(*packets, 1) * MTU, int(ALL_ACCESS))
        self.qps: list[QueuePair] = []
        for number, count in enumerate(packets):
            init = QPInit(QPType.RC, pd=self.pd, send_cq=cq, recv_cq=cq)
            self.qps.append(self.device.create_qp(init))
            bring_up(self.qps[-1], AddressVector(dgid=gid_of("10.0.0.1")), dest_qp_num=number)
            self.post(number, count)

    def post(self, number: int, packets: int) -> None:
        """Give a queue pair a WRITE of so many packets."""
        if packets:
            sge = SGE(self.region.iova, packets * MTU, self.region.lkey)
            self.qps[number].post_send(SendWR(WROpcode.RDMA_WRITE, [sge]))

    def take(self, count: int = 1 << 30) -> list[int]:
        """The queue pairs of the next frames, by their numbers here."""
        found: list[int] = []
        while len(found) < count and (frame := self.device.poll_transmit(0)) is not None:
            found.append(Packet.parse(frame).bth.dest_qp)
        return found


def rounds(burst_packets: int, packets: Sequence[int]) -> list[int]:
    """The order of packets where nothing is posted later."""
    left, found = list(packets), []
    while any(left):
        for number, count in enumerate(left):
            found += [number] * min(burst_packets, count)
            left[number] -= min(burst_packets, count)
    return found


@given(st.integers(1, 20), st.lists(st.integers(0, 40), min_size=2, max_size=6))
def test_each_queue_pair_sends_a_burst_in_its_turn(burst: int, packets: list[int]) -> None:
    assert Sender(burst, packets).take() == rounds(burst, packets)


def test_one_packet_a_turn_is_the_default() -> None:
    assert SPEC.burst_packets == 1
    assert Sender(1, [3, 2, 3]).take() == [0, 1, 2, 0, 1, 2, 0, 2]


@pytest.mark.parametrize("burst", [1, 4, 16])
def test_a_queue_pair_that_comes_later_waits_for_one_turn_of_each_other(burst: int) -> None:
    sender = Sender(burst, [100, 100, 0])

    sender.take(2 * burst)
    sender.post(2, 100)
    after = sender.take(50)

    assert after.index(2) == 2 * burst


def test_a_queue_pair_with_new_work_has_a_whole_turn() -> None:
    """It left its last turn early, as it had no more to send."""
    sender = Sender(4, [10, 3])

    assert sender.take(7) == [0, 0, 0, 0, 1, 1, 1]
    sender.post(1, 8)
    assert sender.take() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1]


def test_a_queue_pair_alone_has_the_rest_of_its_turn_when_another_comes() -> None:
    sender = Sender(4, [20, 0])

    assert sender.take(6) == [0] * 6
    sender.post(1, 2)
    assert sender.take(5) == [0, 0, 1, 1, 0]


def test_a_burst_of_no_packets_is_einval() -> None:
    with pytest.raises(VerbsError, match="burst_packets 0"):
        Device(profile=replace(SPEC, burst_packets=0))


@pytest.mark.parametrize("burst", [1, 16])
def test_a_paced_queue_pair_keeps_its_rate_within_its_turn(burst: int) -> None:
    """At 10 Gbit/s, 1082 bytes of a MIDDLE packet and 24 of the line take 884.8 ns."""
    profile = replace(SPEC, burst_packets=burst)
    a, b = (
        Device(
            name,
            f"10.0.0.{at}",
            profile=profile,
            key_start=at * 50,
            rate_control=lambda: RateLimit(10 * GBPS),
        )
        for at, name in enumerate("ab", 1)
    )
    left: dict[int, list[Time]] = {}

    def note(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        packet = Packet.parse(frame)
        left.setdefault(packet.bth.dest_qp, []).append(now)
        return [(0, frame)]

    simulator = Simulator()
    simulator.connect(a, b, a_to_b=note)
    pds = a.alloc_pd(), b.alloc_pd()
    source, sink = (pd.register(20 * MTU, int(ALL_ACCESS)) for pd in pds)
    for at in range(3):
        near, far = (
            device.create_qp(
                QPInit(QPType.RC, pd=pd, send_cq=device.create_cq(9), recv_cq=device.create_cq(9))
            )
            for device, pd in zip((a, b), pds, strict=True)
        )
        connect(near, far, mtu=MTU, psn_a=at)
        sge = SGE(source.iova, 20 * MTU, source.lkey)
        near.post_send(SendWR(WROpcode.RDMA_WRITE, [sge], remote_addr=sink.iova, rkey=sink.rkey))
    simulator.run()

    gap = 884_800  # picoseconds
    assert [len(times) for times in left.values()] == [20, 20, 20]
    for times in left.values():
        assert all(after - before >= gap for before, after in pairwise(times[1:]))
    order = sorted((time, number) for number, times in left.items() for time in times)
    assert max(len(list(same)) for _, same in groupby(number for _, number in order)) == 1
