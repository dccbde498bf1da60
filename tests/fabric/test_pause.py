"""Pause frames: their bytes, what they stop and for how long (reference/fabric#quanta)."""

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import GBPS, NS, US, Time
from ibwire.fabric import Simulator
from ibwire.fabric.pause import LONGEST, PauseGrant, is_mac_control, pause_frame, pfc_frame
from ibwire_layers.walk import Protocol, walk

MAC = 0x02_00_00_00_00_07
DATA = bytes.fromhex("020000000002020000000001080045") + bytes(85)


class Host:
    """Sends what is in `to_send`, by priority, as its grant allows."""

    def __init__(self, *to_send: tuple[int, bytes]) -> None:
        self.to_send = deque(to_send)
        self.sent: list[tuple[Time, int]] = []
        self.got: list[tuple[Time, bytes]] = []

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.got.append((now, frame))

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        for index, (lane, frame) in enumerate(self.to_send):
            if is_mac_control(frame) or grant.allows(lane, len(frame)):
                del self.to_send[index]
                self.sent.append((now, lane))
                return frame
        return None

    def poll_timeout(self) -> Time | None:
        return None

    def handle_timeout(self, now: Time) -> None:
        pass


def test_bytes_of_a_pfc_frame() -> None:
    frame = pfc_frame(MAC, {3: LONGEST, 6: 0})

    # IEEE 802.1Q 36: destination, source, 8808, opcode 0101, enable vector, eight times.
    assert (
        frame.hex()
        == ("0180c2000001020000000007880801010048000000000000ffff0000000000000000") + "00" * 26
    )
    assert walk(frame).protocol is Protocol.PFC


def test_bytes_of_a_pause_frame() -> None:
    frame = pause_frame(MAC, 0x1234)

    assert frame.hex() == "0180c2000001020000000007880800011234" + "00" * 42


def test_pause_lasts_for_its_quanta() -> None:
    # 512 bit times at 100 Gb/s are 5.12 ns; 65,535 of them 335.5 us.
    grant = PauseGrant(100 * GBPS)

    end = grant.take(pfc_frame(MAC, {3: LONGEST}), 1 * US)

    assert end == 1 * US + 335_539_200
    assert not grant.allows(3, 100)
    assert all(grant.allows(lane, 100) for lane in range(8) if lane != 3)
    grant.advance(end - 1)
    assert not grant.allows(3, 100)
    grant.advance(end)
    assert grant.allows(3, 100)
    assert grant.time_paused[3] == 335_539_200


def test_new_time_replaces_the_old_one_and_zero_ends_the_pause() -> None:
    grant = PauseGrant(100 * GBPS)
    grant.take(pfc_frame(MAC, {3: 1000}), 0)

    assert grant.take(pfc_frame(MAC, {3: 10}), 100 * NS) == 100 * NS + 51_200
    assert grant.take(pfc_frame(MAC, {4: 0}), 110 * NS) == 100 * NS + 51_200
    assert grant.take(pfc_frame(MAC, {3: 0}), 120 * NS) is None
    assert grant.allows(3, 100)
    assert grant.time_stopped(3, 1 * US) == 120 * NS


def test_pause_frame_stops_the_whole_port() -> None:
    grant = PauseGrant(100 * GBPS)

    grant.take(pause_frame(MAC, 5), 0)

    assert not any(grant.allows(lane, 100) for lane in range(8))


def test_priority_without_pfc_is_not_stopped() -> None:
    grant = PauseGrant(100 * GBPS, frozenset({3}), obeys_pause=False)

    grant.take(pfc_frame(MAC, {3: 5, 4: 5}), 0)
    grant.take(pause_frame(MAC, 5), 0)

    assert grant.paused == 1 << 3
    assert grant.frames == 2


@given(st.binary(max_size=40))
def test_any_mac_control_frame_is_taken(body: bytes) -> None:
    grant = PauseGrant(100 * GBPS)

    end = grant.take(DATA[:12] + b"\x88\x08" + body, 0)

    assert (end is not None) == bool(grant.paused)
    assert grant.frames + grant.malformed == 1


def run_two(a: Host, b: Host, **wire: Any) -> None:
    simulator = Simulator()
    simulator.connect(a, b, rate_bps=100 * GBPS, delay=1 * US, overhead=24, **wire)
    simulator.run()


def test_sender_stops_from_the_whole_arrival_of_a_pause_to_its_end() -> None:
    a = Host(*[(3, DATA)] * 400)
    b = Host((7, pfc_frame(MAC, {3: 100})))

    run_two(a, b, flow_control=True)

    # 84 bytes of line time take 6.72 ns, and 1 us of delay; 100 quanta are 512 ns. Each data
    # frame takes 124 bytes of line time, 9.92 ns.
    paused, resumed = 1_006_720, 1_006_720 + 512_000
    times = [time for time, _ in a.sent]
    assert max(time for time in times if time < resumed) == (paused - 1) // 9920 * 9920
    assert min(time for time in times if time > paused) == resumed
    assert len(b.got) == 400
    assert not a.got  # the frame ends at the line


def test_without_flow_control_a_pause_frame_is_a_frame() -> None:
    a = Host(*[(3, DATA)] * 200)
    b = Host((7, pfc_frame(MAC, {3: 100})))

    run_two(a, b)

    assert [frame for _, frame in a.got] == [pfc_frame(MAC, {3: 100})]
    assert [time for time, _ in a.sent] == [9920 * n for n in range(200)]


@each_case("lane", range(8))
def test_other_priorities_go_on(lane: int) -> None:
    a = Host(*[(lane, DATA)] * 300)
    b = Host((7, pfc_frame(MAC, {5: 100})))

    run_two(a, b, flow_control=True)

    gaps = {later - earlier for (earlier, _), (later, _) in zip(a.sent, a.sent[1:], strict=False)}
    assert (gaps == {9920}) == (lane != 5)


def test_observer_sees_every_mac_control_frame_with_its_time() -> None:
    grant = PauseGrant(100 * GBPS)
    seen: list[Any] = []
    grant.observe = lambda frame, now: seen.append((frame, now))

    grant.take(pfc_frame(1, {3: 5}), 7)

    assert seen == [(pfc_frame(1, {3: 5}), 7)]
