"""A switch as a whole: where frames go, what is dropped, paused and marked."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.hosts import Host
from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Grant
from ibwire.base.units import GBPS, MS, US, Time
from ibwire.fabric import Outcome, Simulator
from ibwire.fabric.pause import pause_frame, pfc_frame
from ibwire.fabric.switch import PortSettings, PriorityRules, Ramp, Router, Switch
from ibwire_layers.build import build
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

MACS = [0x02_00_00_00_00_10 + port for port in range(4)]
LOSSLESS = PriorityRules(is_lossless=True, reserve=4096, headroom=40_000)
BUFFER = 1 << 20


def frame(to: int, *, by: int = 0, dscp: int = 26, ecn: int = 2, size: int = 1024) -> bytes:
    route = RoCEv2Route(IPv4(dscp=dscp, ecn=ecn), UDP(), Ethernet(MACS[to], MACS[by]))
    return build(OpCode.RC_RDMA_WRITE_MIDDLE, route=route, payload=bytes(size))


def switch(rules: Any = None, *, ports: int = 4, buffer: int = BUFFER, **settings: Any) -> Switch:
    table = {mac.to_bytes(6): [port] for port, mac in enumerate(MACS)}
    rules = {3: LOSSLESS} if rules is None else rules
    each = PortSettings(100 * GBPS, rules)
    return Switch([each] * ports, Router(table), buffer=buffer, **settings)


def leaving(node: Switch, port: int, grant: Grant = OPEN) -> list[bytes]:
    return list(iter(lambda: node.poll_transmit(0, port, grant), None))


def test_frame_leaves_unchanged_by_the_port_of_its_destination() -> None:
    node = switch()

    node.receive(frame(2), 0, 0)

    assert [leaving(node, port) for port in range(4)] == [[], [], [frame(2)], []]
    assert node.counters[2].sent[3] == 1
    assert node.counters[2].sent_bytes[3] == len(frame(2))
    assert node.buffered == 0


def test_frames_without_a_way_and_stumps_are_dropped_with_their_reason() -> None:
    node = switch()

    node.receive(b"\xff" * 60, 0, 1)
    node.receive(frame(2)[:13], 0, 1)

    assert node.counters[1].dropped == {"no route": 1, "malformed": 1}


def test_lossy_priority_drops_and_the_lossless_one_does_not() -> None:
    node = switch(buffer=400_000)
    for _ in range(300):
        node.receive(frame(2, dscp=0), 0, 0)
        if not node.is_pausing(1, 3):
            node.receive(frame(2, by=1), 0, 1)

    assert node.counters[0].dropped["buffer full"] > 100
    assert not node.counters[1].dropped
    assert node.is_pausing(1, 3)
    assert leaving(node, 1) == [pfc_frame(0x02_00_53_00_00_01, {3: 0xFFFF})]


def test_pause_is_repeated_while_it_is_needed_and_ends_with_a_resume() -> None:
    node = switch(pause_quanta=1000)
    while not node.is_pausing(0, 3):
        node.receive(frame(2), 0, 0)
    assert leaving(node, 0) == [pfc_frame(0x02_00_53_00_00_00, {3: 1000})]

    # 1000 quanta at 100 Gb/s are 5.12 us; the pause is repeated after half of it.
    assert node.poll_timeout() == 2_560_000
    node.handle_timeout(2_560_000)
    assert leaving(node, 0) == [pfc_frame(0x02_00_53_00_00_00, {3: 1000})]
    assert node.poll_timeout() == 5_120_000
    leaving(node, 2)

    assert leaving(node, 0) == [pfc_frame(0x02_00_53_00_00_00, {3: 0})]
    node.handle_timeout(5_120_000)
    assert node.poll_timeout() is None
    assert leaving(node, 0) == []
    assert (node.counters[0].pauses_sent[3], node.counters[0].resumes_sent[3]) == (1, 1)


def test_pause_of_the_whole_port_lasts_until_all_priorities_may_go_on() -> None:
    node = switch({3: LOSSLESS, 4: LOSSLESS}, buffer=2 << 20, pauses_port=True)
    for lane in (3, 4):
        while not node.is_pausing(0, lane):
            node.receive(frame(2, dscp=lane << 3), 0, 0)
        assert leaving(node, 0) == [pause_frame(0x02_00_53_00_00_00, 0xFFFF)]
    leaving(node, 2, Only(3))
    assert (node.is_pausing(0, 3), node.is_pausing(0, 4)) == (False, True)
    assert leaving(node, 0) == [pause_frame(0x02_00_53_00_00_00, 0xFFFF)]

    leaving(node, 2)

    assert leaving(node, 0) == [pause_frame(0x02_00_53_00_00_00, 0)]


class Only:
    """A grant for one priority."""

    def __init__(self, lane: int) -> None:
        self.lane = lane

    def allows(self, lane: int, size: int) -> bool:
        return lane == self.lane


def test_times_of_the_first_pause_and_the_first_mark_are_kept() -> None:
    node = switch(
        {3: PriorityRules(is_lossless=True, headroom=10_000, ramp=Ramp(minimum=0, maximum=0))}
    )
    while not node.is_pausing(0, 3):
        node.receive(frame(2), 5 * US, 0)
    node.poll_transmit(7 * US, 2)
    node.poll_transmit(8 * US, 2)

    assert node.counters[0].first_pause == 5 * US
    assert node.counters[2].first_mark == 7 * US
    assert (node.counters[0].first_mark, node.counters[2].first_pause) == (None, None)


def test_new_pause_is_repeated_by_its_own_time_only() -> None:
    node = switch(pause_quanta=1000)

    def fill(now: Time) -> None:
        while not node.is_pausing(0, 3):
            node.receive(frame(2), now, 0)

    fill(0)
    leaving(node, 2)  # resumed
    fill(1 * US)
    leaving(node, 0)

    # The first pause would have been repeated at 2.56 us, the second is at 3.56 us.
    node.handle_timeout(2_560_000)
    assert leaving(node, 0) == []
    node.handle_timeout(3_560_000)
    assert leaving(node, 0) == [pfc_frame(0x02_00_53_00_00_00, {3: 1000})]


def test_paused_priority_waits_and_others_pass_it() -> None:
    class WithoutThree:
        def allows(self, lane: int, size: int) -> bool:
            return lane != 3

    node = switch()
    node.receive(frame(2), 0, 0)
    node.receive(frame(2, dscp=0), 0, 0)

    assert leaving(node, 2, WithoutThree()) == [frame(2, dscp=0)]
    assert node.queued(2, 3) == len(frame(2)) + 4
    assert leaving(node, 2) == [frame(2)]


def test_marks_leave_the_frame_sound() -> None:
    rules = {3: PriorityRules(ramp=Ramp(minimum=0, maximum=0))}
    node = switch(rules)
    node.receive(frame(2), 0, 0)
    node.receive(frame(2), 0, 0)
    node.receive(frame(2, ecn=0), 0, 0)
    node.receive(frame(2), 0, 0)

    found = [Packet.parse(each) for each in leaving(node, 2)]

    # The last frame leaves an empty queue behind it.
    assert [each.route.ip.ecn for each in found] == [3, 3, 0, 2]
    assert {each.icrc_status() for each in found} == {CrcStatus.GOOD}
    assert node.counters[2].marked[3] == 2


@pytest.mark.parametrize("wrong", [{"ports": 0}, {"pause_quanta": 1}, {"pause_quanta": 65_536}])
def test_impossible_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        switch(**wrong)


COUNTS = st.tuples(st.integers(0, 300), st.sampled_from([64, 512, 4096]))


@given(st.tuples(COUNTS, COUNTS, COUNTS), st.sampled_from([1 * US, 3 * US]))
def test_nothing_is_lost_in_a_lossless_priority(
    sent: tuple[tuple[int, int], ...], delay: Time
) -> None:
    # What a link of 100 Gb/s carries in twice its delay, and frames that have begun to leave.
    headroom = 2 * 100 * delay // 8000 + 3 * 4200
    rules = {3: PriorityRules(is_lossless=True, reserve=2000, headroom=headroom)}
    node = switch(rules, buffer=150_000 + 4 * headroom)
    hosts = [Host() for _ in range(4)]
    for by, (count, size) in enumerate(sent):
        hosts[by].to_send.extend([frame(3, by=by, size=size)] * count)
    simulator = Simulator()
    for port, host in enumerate(hosts):
        rate = (10 if port == 3 else 100) * GBPS
        simulator.connect(host, node, 0, port, rate_bps=rate, delay=delay, flow_control=True)

    outcome = simulator.run(until=10 * MS)

    assert outcome is not Outcome.UNTIL
    assert len(hosts[3].got) == sum(count for count, _ in sent)
    assert node.buffered == 0
    assert not any(port.dropped for port in node.counters)


# The threshold of a queue (reference/fabric#shared-buffer).


def test_lossy_queue_ends_at_its_share_of_what_is_free() -> None:
    rules = {0: PriorityRules(alpha=Fraction(128), egress_alpha=Fraction(1, 8))}
    node = switch(rules, buffer=400_000)
    size = len(frame(2, dscp=0)) + 4

    for _ in range(100):
        node.receive(frame(2, dscp=0), 0, 0)

    # By hand: frame k is kept if 8 k size <= 400,000 - (k - 1) size.
    kept = (400_000 + size) // (9 * size)
    assert node.queued(2, 0) == kept * size
    assert node.counters[2].discarded == {"queue full": 100 - kept}
    # Other ports still have room, and this one has again when frames have left.
    node.receive(frame(3, dscp=0), 0, 0)
    assert node.queued(3, 0) == size
    node.poll_transmit(0, 2)
    node.poll_transmit(0, 2)
    node.receive(frame(2, dscp=0), 0, 1)
    assert node.queued(2, 0) == (kept - 1) * size


@pytest.mark.parametrize(
    "rule",
    [
        PriorityRules(is_lossless=True, headroom=40_000, egress_alpha=Fraction(1)),
        PriorityRules(egress_alpha=Fraction(1, 257)),
        PriorityRules(egress_alpha=Fraction(129)),
    ],
)
def test_threshold_of_a_queue_that_cannot_be_is_refused(rule: PriorityRules) -> None:
    with pytest.raises(EncodeError, match="egress_alpha"):
        switch({0: rule})
