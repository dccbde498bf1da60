"""DCQCN and CNPs: reference/congestion#dcqcn, reference/congestion#cnp-pacing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.compiled import compiled_modules
from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN
from ibwire.base.units import GBPS, MS, NS, US, Time
from ibwire.fabric import Simulator
from ibwire.impair.stages import mark_ce
from ibwire.rc.attributes import AddressVector, QPState
from ibwire.rc.congestion import (
    CONNECTX,
    DCQCN,
    HPCC_MODEL,
    PAPER,
    NotificationPoint,
    Parameters,
    Scope,
)
from ibwire.rc.connect import move
from ibwire.rc.device import gid_of
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire.testing import End
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route


def control(parameters: Parameters = HPCC_MODEL) -> DCQCN:
    return DCQCN(parameters, 100 * GBPS)


def test_nothing_is_held_back_before_the_first_cnp() -> None:
    dcqcn = control()

    dcqcn.sent(1106, 5 * US)

    assert dcqcn.rate == 100 * GBPS
    assert dcqcn.next_send <= 5 * US


def test_cuts_follow_each_other_while_cnps_come() -> None:
    dcqcn = control()
    rates = []

    # A CNP each microsecond; cuts 4 us after the first one, then every 4 us, each by half.
    for time in range(0, 18 * US, US):
        dcqcn.notified(time)
        rates.append(dcqcn.rate / GBPS)

    # Alpha has lost one period at the start, 1/256 of it.
    expected = [100] * 5 + [50] * 4 + [25] * 4 + [12.5] * 4 + [6.25]
    assert rates == pytest.approx(expected, rel=0.02)
    assert dcqcn.cuts == 4
    assert dcqcn.target == 100 * GBPS


@pytest.mark.parametrize(("time_reset", "cnp"), [(300, 302), (2, 7)])
def test_of_an_increase_and_a_cut_at_one_instant_the_timer_that_was_set_first_goes_first(
    time_reset: int, cnp: int
) -> None:
    """reference/congestion#dcqcn-timers"""
    dcqcn = control(replace(HPCC_MODEL, rp_time_reset=time_reset))

    # The first cut is at 4 us. 300 us later an increase and a cut are due together, where the
    # increase was set before; with 2 us there is one increase, and the second is due with a cut.
    dcqcn.notified(0)
    dcqcn.advance(cnp * US)
    dcqcn.notified(cnp * US)
    dcqcn.advance((cnp + 3) * US)

    # By hand: alpha has lost 1/256 four times. One increase goes half of the way to the line, and
    # the cut takes that as its target.
    kept = 100 * (1 - (255 / 256) ** 4 / 2)
    assert dcqcn.cuts == 2
    assert dcqcn.target / GBPS == pytest.approx((kept + 100) / 2, rel=1e-9)


def test_rate_is_not_cut_below_its_floor() -> None:
    dcqcn = control()
    for time in range(0, 200 * US, US):
        dcqcn.notified(time)

    assert dcqcn.rate == 100_000_000


def test_alpha_decays_and_rises_by_its_gain() -> None:
    dcqcn = control()
    dcqcn.notified(0)
    dcqcn.advance(10 * US)

    # 10 periods without a CNP of (1 - 1/256).
    assert dcqcn.alpha == pytest.approx((255 / 256) ** 10)
    dcqcn.notified(10 * US)
    dcqcn.advance(11 * US)
    assert dcqcn.alpha == pytest.approx((255 / 256) ** 11 + 1 / 256)


def test_recovery_goes_halfway_to_the_target_then_raises_it() -> None:
    dcqcn = control(replace(HPCC_MODEL, rp_max_rate=0, rp_ai_rate=1000, rp_hai_rate=5000))
    for time in range(0, 9 * US, US):
        dcqcn.notified(time)
    dcqcn.notified(9 * US)
    dcqcn.advance(13 * US)  # the last cut, at 12 us
    assert dcqcn.rate == pytest.approx(12.5 * GBPS, rel=0.02)
    last = 12 * US + NS

    found = []
    for number in (1, 2, 3):
        dcqcn.advance(last + number * 300 * US)
        found.append(dcqcn.rate / GBPS)

    # The target is 100, the ceiling, which no step can raise.
    assert found == pytest.approx([56.25, 78.125, 89.0625], rel=0.02)


def test_target_follows_a_cut_after_a_timer_increase() -> None:
    dcqcn = control(replace(HPCC_MODEL, rp_ai_rate=1000, rp_hai_rate=5000))
    dcqcn.notified(0)
    dcqcn.advance(350 * US)  # cut to 50 at 4 us, back to 75 at 304 us
    assert dcqcn.rate == pytest.approx(75 * GBPS, rel=0.01)
    assert dcqcn.target == 100 * GBPS
    before = dcqcn.rate
    dcqcn.notified(350 * US)
    dcqcn.advance(353 * US)
    assert dcqcn.target == before
    alpha = dcqcn.alpha
    cut = dcqcn.rate
    assert cut == pytest.approx(before * (1 - alpha / 2), rel=0.01)

    dcqcn.advance(653 * US)
    assert dcqcn.rate == pytest.approx((cut + before) / 2)
    dcqcn.advance(953 * US)
    assert dcqcn.target == before + GBPS
    dcqcn.advance(1253 * US)
    assert dcqcn.target == before + 6 * GBPS


def test_bytes_increase_the_rate_as_well() -> None:
    # The paper: 10 MB are a stage.
    dcqcn = control(replace(PAPER, rp_time_reset=131_071))
    dcqcn.notified(0)
    dcqcn.advance(51 * US)
    assert dcqcn.rate == pytest.approx(50 * GBPS)

    for _ in range(9_999_744 // 1024):
        dcqcn.sent(1024, 60 * US)
    assert dcqcn.rate == pytest.approx(50 * GBPS)
    dcqcn.sent(1024, 60 * US)
    assert dcqcn.rate == pytest.approx(75 * GBPS)


def test_next_packet_waits_for_the_time_of_the_last_at_its_rate() -> None:
    dcqcn = control()
    for time in range(0, 5 * US, US):
        dcqcn.notified(time)

    dcqcn.sent(1250, 5 * US)

    # 10,000 bits at 50 Gb/s are 200 ns.
    assert dcqcn.next_send == pytest.approx(5 * US + 200 * NS, abs=2 * NS)


@given(
    st.sampled_from([CONNECTX, PAPER, HPCC_MODEL]),
    st.lists(st.tuples(st.integers(0, 400 * US), st.booleans()), max_size=60),
)
def test_looking_in_between_changes_nothing(
    parameters: Parameters, steps: list[tuple[Time, bool]]
) -> None:
    one, other = control(parameters), control(parameters)
    now = 0
    for wait, is_cnp in steps:
        for part in (now + wait // 3, now + wait // 2, now + wait):
            other.advance(part)
        now += wait
        for each in (one, other):
            if is_cnp:
                each.notified(now)
            else:
                each.sent(1106, now)
    one.advance(now + MS)
    other.advance(now + MS)

    assert one.rate == pytest.approx(other.rate)
    assert one.alpha == pytest.approx(other.alpha)
    assert one.cuts == other.cuts
    assert parameters.rp_min_rate * 10**6 <= one.rate <= 100 * GBPS


@pytest.mark.skipif(compiled_modules() > 0, reason="compiled classes cannot be inherited from")
def test_idle_queue_pair_costs_nothing_once_it_has_recovered() -> None:
    class Counting(DCQCN):
        increases = 0

        def _increase(self) -> None:
            self.increases += 1
            super()._increase()

    dcqcn = Counting(CONNECTX, 100 * GBPS)
    dcqcn.notified(0)
    dcqcn.advance(10**6 * US * 3600)

    assert dcqcn.rate == 100 * GBPS
    assert dcqcn.increases < 100


@pytest.mark.parametrize(
    "wrong",
    [{"rp_dce_tcp_g": 1024}, {"rp_min_rate": 0}, {"rp_time_reset": 0}, {"rp_min_dec_fac": 101}],
)
def test_parameters_out_of_range_are_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError, match=next(iter(wrong))):
        Parameters(**wrong)


# CNPs.


def test_profile_says_for_whom_the_interval_counts() -> None:
    profile = replace(SPEC, cnp_scope=Scope.PORT)
    own, given = NotificationPoint(), NotificationPoint(scope=Scope.DESTINATION)

    End("a", "10.0.0.1", profile=profile, notification=own)
    End("b", "10.0.0.2", profile=profile, notification=given)

    assert (own.scope, given.scope) == (Scope.PORT, Scope.DESTINATION)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [(Scope.QUEUE_PAIR, 3), (Scope.DESTINATION, 2), (Scope.PORT, 1)],
)
def test_interval_between_cnps_counts_for_its_scope(scope: Scope, expected: int) -> None:
    point = NotificationPoint(interval=4 * US, scope=scope)

    for time in (0, US, 4 * US - 1):
        for qpn, peer in ((1, 100), (2, 100), (3, 200)):
            point.answers(qpn, peer, time)
    assert point.sent == expected

    assert point.answers(1, 100, 4 * US)


class Marking:
    """Marks all packets that pass."""

    def __init__(self, mark: Callable[[bytes], bytes]) -> None:
        self.mark = mark
        self.seen: list[tuple[Time, bytes]] = []

    def __call__(self, frame: bytes, now: Time) -> list[tuple[Time, bytes]]:
        self.seen.append((now, frame))
        return [(0, self.mark(frame))]


def connected(*, sl: int = 0, **device: Any) -> tuple[End, End]:
    ends = (End("a", "10.0.0.1", **device), End("b", "10.0.0.2", **device))
    for end, peer in (ends, ends[::-1]):
        dgid = gid_of(f"10.0.0.{1 + (peer is ends[1])}")
        address = AddressVector(dgid=dgid, traffic_class=2, sl=sl)
        end.connect_to(address, peer.qp.number, psn=0, peer_psn=0, mtu=1024, timeout=0)
        end.remote = {"remote_addr": peer.mr.iova, "rkey": peer.mr.rkey}
    return ends


def test_marked_packet_gets_a_cnp_like_that_of_a_connectx() -> None:
    a, b = connected(notification=NotificationPoint(interval=0))
    a.post_send(WROpcode.RDMA_WRITE, 100)
    frame = a.device.poll_transmit(0)
    assert frame is not None

    b.device.receive(mark_ce(frame) or b"", 0)

    cnp = b.device.poll_transmit(0)
    assert cnp is not None
    packet = Packet.parse(cnp)
    assert isinstance(packet.route, RoCEv2Route)
    # What the CNP of a ConnectX-4 Lx has (the vector in tests of scapy.contrib.roce).
    assert packet.bth.opcode == OpCode.CNP
    assert (packet.bth.becn, packet.bth.fecn, packet.bth.psn, packet.bth.mig_req) == (1, 0, 0, 0)
    assert packet.bth.dest_qp == a.qp.number
    assert (packet.route.ip.dscp, packet.route.ip.ecn, packet.route.udp.src_port) == (48, 2, 0)
    assert len(cnp) == 74
    assert packet.icrc_status() is CrcStatus.GOOD

    a.device.receive(cnp, 0)
    assert a.qp.counters.cnps_received == 1


def test_cnp_leaves_ahead_of_data_on_its_own_priority() -> None:
    class WithoutSix:
        def allows(self, lane: int, size: int) -> bool:
            return lane != 6

    a, b = connected(notification=NotificationPoint(interval=0))
    a.post_send(WROpcode.RDMA_WRITE, 100)
    b.post_send(WROpcode.RDMA_WRITE, 100)
    b.device.receive(mark_ce(a.device.poll_transmit(0) or b"") or b"", 0)

    first = b.device.poll_transmit(0, 0, WithoutSix())
    second = b.device.poll_transmit(0, 0, OPEN)

    assert first is not None
    assert second is not None
    assert Packet.parse(first).bth.opcode != OpCode.CNP
    assert Packet.parse(second).bth.opcode == OpCode.CNP


@pytest.mark.parametrize(("follows", "lane"), [(False, 6), (True, 3)])
def test_cnp_has_a_priority_of_its_own_or_that_of_its_connection(
    *, follows: bool, lane: int
) -> None:
    class Only:
        def __init__(self, lane: int) -> None:
            self.lane = lane

        def allows(self, lane: int, size: int) -> bool:
            return lane == self.lane

    point = NotificationPoint(interval=0, follows_priority=follows)
    a, b = connected(sl=3, vlan=7, notification=point)
    a.post_send(WROpcode.RDMA_WRITE, 100)

    b.device.receive(mark_ce(a.device.poll_transmit(0) or b"") or b"", 0)

    others = [each for each in range(8) if each not in (lane, 3)]
    assert [b.device.poll_transmit(0, 0, Only(each)) for each in others] == [None] * len(others)
    cnp = b.device.poll_transmit(0, 0, Only(lane))
    assert cnp is not None
    packet = Packet.parse(cnp)
    assert packet.bth.opcode == OpCode.CNP
    assert isinstance(packet.route, RoCEv2Route)
    assert (packet.route.vlans[0].pcp, packet.route.ip.dscp) == (lane, 48)


def test_cnp_of_a_paused_priority_does_not_hold_back_those_of_others() -> None:
    class WithoutThree:
        def allows(self, lane: int, size: int) -> bool:
            return lane != 3

    a, b = connected(sl=3, notification=NotificationPoint(interval=0, follows_priority=True))
    b.device.note_congestion(b.qp, "ce", 0)
    move(b.qp, QPState.RESET)
    there = AddressVector(dgid=gid_of("10.0.0.1"), traffic_class=2, sl=4)
    b.connect_to(there, a.qp.number, psn=0, peer_psn=0, mtu=1024, timeout=0)
    b.device.note_congestion(b.qp, "ce", 0)

    sent = [b.device.poll_transmit(0, 0, WithoutThree()) for _ in range(2)]
    later = [b.device.poll_transmit(0) for _ in range(2)]

    assert [frame is not None for frame in (*sent, *later)] == [True, False, True, False]


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_sender_slows_down_and_nothing_is_lost(opcode: WROpcode) -> None:
    a, b = connected(
        size=1 << 20,
        rate_control=lambda: DCQCN(HPCC_MODEL, 100 * GBPS),
        notification=NotificationPoint(interval=0),
    )
    data = bytes(range(256)) * 4096
    (a if opcode is WROpcode.RDMA_WRITE else b).write(0, data)
    simulator = Simulator()
    marking = [Marking(lambda frame: mark_ce(frame) or frame) for _ in range(2)]
    simulator.connect(a.device, b.device, a_to_b=marking[0], b_to_a=marking[1])
    a.post_send(opcode, len(data))

    simulator.run()

    assert [wc.status.name for wc in a.poll_send_cq()] == ["SUCCESS"]
    assert (b if opcode is WROpcode.RDMA_WRITE else a).memory == data
    # 1024 packets at 100 Gb/s take 90 us; at the floor of 100 Mb/s one takes 88 us.
    sender = marking[0] if opcode is WROpcode.RDMA_WRITE else marking[1]
    large = [now for now, frame in sender.seen if len(frame) > 1000]
    assert len(large) == 1024
    assert simulator.now > 2 * MS
