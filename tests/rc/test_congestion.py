"""Many queue pairs against a peer that is slow or loses frames, in virtual time."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise

import pytest

from examples import sampled
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import MS, US, Time
from ibwire.fabric.sim import Simulator
from ibwire.impair import build_pipe
from ibwire.rc.attributes import QPCap
from ibwire.rc.congestion.window import (
    LARGEST_WINDOW,
    SMALLEST_WINDOW,
    PathWindow,
    SendWindow,
)
from ibwire.rc.connect import connect
from ibwire.rc.device import Device
from ibwire.rc.profile import RXE, SPEC, Profile
from ibwire.rc.send_state import SendState
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode
from ibwire.testing import Pair, Peer, create_queue_pair, summaries

ADAPTIVE = replace(SPEC, max_unacked_psns=128, controls_congestion=True)
"""As the programs on a link use it (`ibwire.programs.endpoint`)."""
FIXED = replace(SPEC, max_unacked_psns=128)

PATH_MTU = 1024


class SlowReceiver:
    """A device with a receive buffer that it empties frame by frame."""

    def __init__(self, device: Device, room: int, each: Time) -> None:
        self.name = device.name
        self.device = device
        self.room = room
        self.each = each
        self.waiting: deque[Frame] = deque()
        self.next_at: Time | None = None
        self.lost = 0

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        if len(self.waiting) >= self.room:
            self.lost += 1
            return
        self.waiting.append(frame)
        if self.next_at is None:
            self.next_at = now + self.each

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        return self.device.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        dues = [due for due in (self.next_at, self.device.poll_timeout()) if due is not None]
        return min(dues, default=None)

    def handle_timeout(self, now: Time) -> None:
        if self.next_at is not None and self.next_at <= now:
            self.device.receive(self.waiting.popleft(), now)
            self.next_at = now + self.each if self.waiting else None
        self.device.handle_timeout(now)


class Crowd:
    """Queue pairs that each write or read messages at a slow peer over a lossy wire."""

    def __init__(
        self,
        profile: Profile,
        *,
        count: int,
        messages: int = 2,
        packets: int = 16,
        opcode: WROpcode = WROpcode.RDMA_WRITE,
        room: int = 4096,
        each: Time = 1 * US,
        loss: float = 0,
    ) -> None:
        self.simulator = Simulator(seed=1)
        a, b = (
            Device(f"d{i}", f"10.0.0.{i}", profile=each_profile, key_start=50 * i)
            for i, each_profile in ((1, profile), (2, SPEC))
        )
        self.peer = SlowReceiver(b, room, each)
        pipes = [build_pipe([{"loss": loss}], name=name, seed=1) for name in "ab"] if loss else []
        stages = dict(zip(("a_to_b", "b_to_a"), pipes, strict=False))
        self.simulator.connect(a, self.peer, **stages)
        self.total = count * messages
        self.qps = []
        self.done: list[WCStatus] = []
        self.cq, other_cq = a.create_cq(9000), b.create_cq(9000)
        pd, other_pd = a.alloc_pd(), b.alloc_pd()
        size = packets * PATH_MTU
        near, far = pd.register(size, 15), other_pd.register(size, 15)
        cap = QPCap(max_send_wr=64, max_recv_wr=16)
        for index in range(count):
            pair = (
                create_queue_pair(a, pd=pd, send_cq=self.cq, recv_cq=self.cq, cap=cap),
                create_queue_pair(b, pd=other_pd, send_cq=other_cq, recv_cq=other_cq, cap=cap),
            )
            connect(*pair, psn_a=index, psn_b=index, mtu=PATH_MTU)
            self.qps.append(pair[0])
            for _ in range(messages):
                sge = SGE(near.iova, size, near.lkey)
                wr = SendWR(opcode, [sge], remote_addr=far.iova, rkey=far.rkey)
                pair[0].post_send(wr)

    def run(self) -> set[WCStatus]:
        """Until everything has completed; the statuses."""

        def is_done() -> bool:
            self.done += [wc.status for wc in self.cq.poll(9000)]
            return len(self.done) >= self.total

        self.simulator.run(stop=is_done, until=600_000 * MS)
        assert len(self.done) == self.total
        return set(self.done)


@pytest.mark.slow
def test_without_it_a_slow_peer_ends_the_connections() -> None:
    crowd = Crowd(FIXED, count=64, room=256, each=1 * MS)

    assert WCStatus.RETRY_EXC_ERR in crowd.run()


@pytest.mark.parametrize("room", sampled([256, 16, 4096], 3))
def test_a_slow_peer_gets_everything(room: int) -> None:
    """1024 packets at first take it a second, and the ACK timeout is 67 ms."""
    crowd = Crowd(ADAPTIVE, count=64, room=room, each=1 * MS)

    assert crowd.run() == {WCStatus.SUCCESS}


@pytest.mark.parametrize("opcode", sampled([WROpcode.RDMA_READ, WROpcode.RDMA_WRITE], 2))
@pytest.mark.parametrize("loss", [pytest.param(0.01, marks=pytest.mark.slow), 0.05])
@pytest.mark.parametrize("count", [1, 32])
def test_loss_is_survived(count: int, loss: float, opcode: WROpcode) -> None:
    crowd = Crowd(ADAPTIVE, count=count, messages=4, loss=loss, opcode=opcode)

    assert crowd.run() == {WCStatus.SUCCESS}


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0, 0.05])
@pytest.mark.parametrize("profile", [SPEC, RXE], ids=lambda profile: profile.name)
def test_128_queue_pairs_against_a_slow_peer(profile: Profile, loss: float) -> None:
    adaptive = replace(profile, max_unacked_psns=128, controls_congestion=True)
    crowd = Crowd(adaptive, count=128, messages=3, room=64, each=200 * US, loss=loss)

    assert crowd.run() == {WCStatus.SUCCESS}


def test_packets_in_flight_of_all_queue_pairs_stay_in_the_window() -> None:
    crowd = Crowd(ADAPTIVE, count=64, each=400 * US)
    highest = 0

    def watch() -> bool:
        nonlocal highest
        sends = [qp.sends for qp in crowd.qps]
        highest = max(highest, sum((each.next_psn - each.una) % (1 << 24) for each in sends))
        return False

    crowd.simulator.run(stop=watch, until=40 * MS)

    assert 64 < highest <= LARGEST_WINDOW


def test_a_queue_pair_that_waits_for_a_receive_request_does_not_hold_up_the_next() -> None:
    """Woken in its RNR wait of 656 ms, it passes the room on."""
    path = PathWindow()
    woken: list[str] = []

    def window(name: str) -> SendWindow:
        return SendWindow(path, SendState(), lambda: woken.append(name), 16)

    first, *waiting = map(window, "abc")
    path.in_flight = LARGEST_WINDOW
    assert not any(each.allows(0, 16, 0) for each in waiting)

    path.in_flight = 0
    first.stop()
    assert woken == ["b"]
    waiting[0].pass_on()
    assert woken == ["b", "c"]
    waiting[0].pass_on()
    assert woken == ["b", "c"]


def test_every_turn_asks_for_an_acknowledgement() -> None:
    """A queue pair whose message fits the window only in part would wait for its timeout."""
    crowd = Crowd(ADAPTIVE, count=100, messages=1, packets=27, each=50 * US)

    assert crowd.run() == {WCStatus.SUCCESS}
    assert sum(qp.counters.timeouts for qp in crowd.qps) == 0


def test_a_healthy_connection_sends_the_same_packets() -> None:
    def packets(profile: Profile) -> list[str]:
        pair = Pair(profile=profile)
        pair.a.post_send(WROpcode.RDMA_WRITE, 60_000)
        pair.run()
        return summaries(pair.packets())

    assert packets(replace(SPEC, controls_congestion=True)) == packets(SPEC)


def test_the_timeout_follows_the_round_trip_and_never_falls_below_the_configured_one() -> None:
    """RFC 6298 2.2, 2.3."""
    path = PathWindow()
    assert path.timeout(67 * MS) == 67 * MS
    path.measure(100 * MS)
    assert path.timeout(67 * MS) == 300 * MS
    for _ in range(100):
        path.measure(100 * MS)
    assert 100 * MS <= path.timeout(67 * MS) < 101 * MS
    for _ in range(100):
        path.measure(1 * MS)
    assert path.timeout(67 * MS) == 67 * MS


def test_the_window_is_halved_once_in_a_round_trip_and_grows_again() -> None:
    """RFC 5681 3.1."""
    path = PathWindow()
    path.measure(10 * MS)
    size = path.size
    path.shrink(1 * MS, 67 * MS)
    path.shrink(2 * MS, 67 * MS)
    assert path.size == size / 2
    path.grow(int(path.size))
    assert path.size == size / 2 + 1  # one packet in a round trip
    for number in range(2, 50):
        path.shrink(number * 20 * MS, 67 * MS)
    assert path.size == SMALLEST_WINDOW
    for _ in range(20_000):
        path.grow(100)
    assert path.size == LARGEST_WINDOW


def test_a_peer_that_is_gone_is_reported_after_some_seconds() -> None:
    """After 8 transmissions, each after twice the time, up to a second."""
    lone = Peer(profile=ADAPTIVE)
    lone.qp.post_send(SendWR(WROpcode.SEND))
    lone.wait(5100 * MS)

    waits = [round((b.time - a.time) / MS) for a, b in pairwise(lone.log)]
    assert waits == [67, 134, 268, 537, 1000, 1000, 1000]
    assert [wc.status for wc in lone.poll_send_cq()] == [WCStatus.RETRY_EXC_ERR]
