"""Congestion controls that acknowledgements move: reference/congestion#hpcc, #timely, #swift,
#dctcp, #telemetry.

`tests/fabric/test_truth.py` compares whole runs with another simulator.
"""

from typing import Any

import pytest

from each_case import each_case
from fabric import hosts as frames
from fabric.transfers import Transfers
from ibwire.base import telemetry
from ibwire.base.errors import EncodeError
from ibwire.base.node import DamagedFrame
from ibwire.base.units import GBPS, NS, US, Time
from ibwire.fabric.lossless import SwitchSettings
from ibwire.fabric.topology import star
from ibwire.rc.congestion import (
    DCQCN,
    DCTCP,
    HPCC,
    DCTCPParameters,
    Feedback,
    HPCCParameters,
    NotificationPoint,
    Pacer,
    RateLimit,
    Swift,
    SwiftParameters,
    Timely,
    TimelyParameters,
)
from ibwire_layers.packet import CrcStatus, Packet

LINE = 100 * GBPS


def hop(time: int, sent: int, queue: int, rate_bps: int = LINE) -> telemetry.Hop:
    return telemetry.Hop(rate_bps, time, sent, queue)


# HPCC.


def test_hpcc_divides_the_rate_by_the_utilisation_of_the_busiest_hop() -> None:
    parameters = HPCCParameters(eta=0.95, ai_bps=50e6, base_rtt=4 * US)
    hpcc = HPCC(parameters, LINE, bdp=50_000)

    hpcc.acknowledged(Feedback(1, 50, 4 * US, (hop(0, 0, 0), hop(0, 0, 250))), 4 * US)
    hpcc.acknowledged(Feedback(2, 51, 4 * US, (hop(2000, 97, 0), hop(2000, 195, 500))), 6 * US)

    # The second hop: 195 x 128 bytes in 2 us are 99.84 Gb/s; the smaller queue 250 x 80 bytes.
    busiest = 0.9984 + 20_000 / 50_000
    utilisation = 1 + (busiest - 1) * 2 / 4
    assert hpcc.utilisation == pytest.approx(utilisation)
    assert hpcc.rate == pytest.approx(100e9 / (utilisation / 0.95) + 50e6)
    assert hpcc.window == pytest.approx(50_000 * hpcc.rate / 100e9)


def test_hpcc_computes_from_the_rate_of_the_last_round_trip() -> None:
    hpcc = HPCC(HPCCParameters(base_rtt=4 * US), LINE, bdp=50_000)
    hops = [hop(each * 1000, each * 97, 1000) for each in range(4)]

    hpcc.acknowledged(Feedback(1, 50, None, (hops[0],)), 0)
    for number in (1, 2):
        hpcc.acknowledged(Feedback(1 + number, 50, None, (hops[number],)), 0)
    before = hpcc.reference
    hpcc.acknowledged(Feedback(51, 99, None, (hops[3],)), 0)

    assert before == LINE
    assert hpcc.reference == hpcc.rate < LINE


def test_hpcc_survives_counters_that_wrap_and_hops_of_other_paths() -> None:
    hpcc = HPCC(HPCCParameters(base_rtt=4 * US), LINE)
    top = (1 << 24) - 1

    hpcc.acknowledged(Feedback(1, 9, None, (hop(top, (1 << 20) - 1, 0),)), 0)
    hpcc.acknowledged(Feedback(2, 9, None, (hop(999, 97, 0),)), 0)
    hpcc.acknowledged(Feedback(3, 9, None, (hop(999, 97, 0), hop(0, 0, 0))), 0)
    hpcc.acknowledged(Feedback(4, 9, None, (hop(999, 97, 0), hop(0, 0, 0))), 0)
    hpcc.acknowledged(Feedback(5, 9, None, ()), 0)

    # 98 x 128 bytes in 1000 ns are 100.35 Gb/s; then nothing was measured.
    assert hpcc.utilisation == pytest.approx(1 + 0.00352 / 4)


# TIMELY.


def timely_after(*rtts: Time) -> Timely:
    timely = Timely(TimelyParameters(), LINE)
    timely.rate = 50e9
    for number, rtt in enumerate(rtts):
        timely.acknowledged(Feedback(number + 1, number + 1, rtt, ()), 0)
    return timely


@each_case(
    ("rtts", "rate"),
    [
        ((40 * US,), 50e9),  # the first round trip is only noted
        ((40 * US, 49 * US), 50.01e9),  # below t_low
        ((100 * US, 90 * US), 50.01e9),  # falling
        ((100 * US, 102 * US), 50e9 * (1 - 0.8 * 0.875 * 2 / 20)),  # rising
        ((100 * US, 900 * US), 50e9 * (1 - 0.8 * (1 - 500 / 900))),  # above t_high
        ((100 * US, 400 * US), 100e6),  # a gradient that would take all
        ((40 * US, *[30 * US] * 7), 50.05e9 + 2 * 50e6),  # five small steps, then large ones
    ],
)
def test_timely_follows_the_change_of_the_round_trip(rtts: tuple[Time, ...], rate: float) -> None:
    assert timely_after(*rtts).rate == pytest.approx(rate)


def test_timely_changes_once_in_a_round_trip() -> None:
    timely = Timely(TimelyParameters(), LINE)
    timely.rate = 50e9

    for acknowledged in range(1, 12):
        timely.acknowledged(Feedback(acknowledged, 10, 30 * US, ()), 0)

    assert timely.rate == pytest.approx(50.01e9)


# DCTCP.


def test_dctcp_cuts_by_half_of_alpha_once_in_a_round_trip() -> None:
    dctcp = DCTCP(DCTCPParameters(g=1 / 16, ai_bps=1e9), LINE)

    dctcp.acknowledged(Feedback(1, 10, None, ()), 0)
    for acknowledged in (2, 3, 4):
        dctcp.notified(0)
        dctcp.acknowledged(Feedback(acknowledged, 10 + acknowledged, None, ()), 0)

    assert dctcp.cuts == 1
    assert dctcp.rate == 50e9  # alpha is 1 at first

    dctcp.acknowledged(Feedback(11, 20, None, ()), 0)
    assert dctcp.alpha == pytest.approx(1 + (3 / 11 - 1) / 16)
    dctcp.acknowledged(Feedback(13, 30, None, ()), 0)
    dctcp.acknowledged(Feedback(21, 30, None, ()), 0)
    assert dctcp.rate == 51e9


# Swift.


def test_swift_cuts_by_the_excess_delay_once_in_a_round_trip() -> None:
    own = SwiftParameters(base_target=10 * US, per_hop=1 * US, hops=2, fs_range=0)
    swift = Swift(own, LINE)
    swift.cwnd = 10.0

    swift.acknowledged(Feedback(1, 9, 15 * US, ()), 100 * US)
    cut = swift.cwnd
    swift.acknowledged(Feedback(2, 9, 15 * US, ()), 110 * US)

    assert swift.target == 12 * US
    assert cut == pytest.approx(10 * (1 - 0.8 * 3 / 15))
    assert swift.cwnd == cut
    swift.acknowledged(Feedback(3, 9, 15 * US, ()), 116 * US)
    assert swift.cwnd < cut
    below = swift.cwnd
    swift.acknowledged(Feedback(5, 9, 11 * US, ()), 117 * US)
    assert swift.cwnd == pytest.approx(below + 2 / below)
    assert swift.window == pytest.approx(swift.cwnd * 1024)


@pytest.mark.parametrize("packets", [1, 2, 4])
def test_swift_with_a_window_of_few_packets_sends_them_once_in_a_round_trip(packets: int) -> None:
    own = SwiftParameters(min_cwnd=packets, max_cwnd=packets)
    transfers = Transfers(star(2), SwitchSettings(buffer=4 << 20), rate_control=lambda: Swift(own))
    transfers.add("h0", "h1", 40)

    transfers.run()

    # By hand, at 100 Gb/s with two links of 1 us: a packet of 1106 bytes on the line and its ACK of
    # 86 pass two links each. The first and the last packet have a RETH or no ACK after them.
    round_trip = 2 * (1106 * 80 + US) + 2 * (86 * 80 + US)
    expected = 40 // packets * round_trip
    assert transfers.transfers[0].end == pytest.approx(expected, rel=0.01 * packets)


def test_swift_window_grows_by_a_packet_in_a_round_trip_and_is_cut_to_its_target() -> None:
    own = SwiftParameters(base_target=10 * US, per_hop=0, fs_range=0, max_cwnd=256)
    swift = Swift(own, LINE)
    swift.cwnd = cwnd = 10.0
    now = acknowledged = 0
    rtt = 8 * US

    # A link that takes a packet in 0.5 us and 8 us of delay: by hand, the round trip is the time
    # of the window on the link once that is longer. 20 packets fill it up to the target.
    for _ in range(40):
        before = round(swift.cwnd)
        rtt = max(8 * US, before * US // 2)
        for _ in range(before):
            acknowledged += 1
            now += rtt // before
            swift.acknowledged(Feedback(acknowledged, acknowledged + before, rtt, ()), now)
        if rtt < 10 * US:
            cwnd = cwnd + 1
            assert swift.cwnd == pytest.approx(cwnd, abs=0.5)
        else:
            cwnd = swift.cwnd
        assert 18 <= swift.cwnd <= 22 or before < 20


def test_swift_below_one_packet_waits_for_several_round_trips() -> None:
    swift = Swift(SwiftParameters(), LINE)
    swift.cwnd = 0.5
    swift.acknowledged(Feedback(1, 1, 1000 * US, ()), 0)

    swift.sent(1106, 1000 * US)

    assert swift.cwnd == 0.25
    assert swift.next_send == 1000 * US + 4000 * US
    assert swift.target > SwiftParameters().base_target + 2 * US  # small windows may wait longer


# Pacing.


def test_burst_leaves_without_gaps_after_a_pause() -> None:
    limit = RateLimit(10 * GBPS, burst=3000)
    waits = []

    now = 100 * US
    for _ in range(6):
        limit.sent(1000, now)
        waits.append((limit.next_send - now) // NS)
        now = limit.next_send

    # 1000 bytes take 800 ns at 10 Gb/s: three of them are free, then each has its gap.
    assert waits == [0, 0, 0, 800, 800, 800]


@each_case(
    "make",
    [
        lambda: RateLimit(0),
        lambda: RateLimit(10, burst=-1),
        lambda: Pacer(0),
        lambda: HPCCParameters(eta=0),
        lambda: HPCCParameters(base_rtt=0),
        lambda: TimelyParameters(beta=2),
        lambda: TimelyParameters(t_low=9 * US, t_high=1 * US),
        lambda: TimelyParameters(min_rtt=0),
        lambda: DCTCPParameters(g=2),
        lambda: SwiftParameters(max_mdf=1),
        lambda: SwiftParameters(fs_min_cwnd=200),
        lambda: SwiftParameters(min_cwnd=0),
    ],
)
def test_value_outside_of_its_range_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(EncodeError):
        make()


# Telemetry.


def frame_with_record(record: bytes = telemetry.EMPTY) -> bytes:
    return frames.frame(1, by=0, size=64) + record


def test_switches_write_one_hop_each() -> None:
    packet = frame_with_record()

    first = telemetry.write_hop(
        packet, now=5 * US, sent=128 * 3 + 5, queued=80 * 7, rate_bps=400 * GBPS
    )
    second = telemetry.write_hop(
        first, now=(1 << 24) * NS + 9 * NS, sent=128 << 20, queued=1 << 30, rate_bps=LINE
    )

    record = second[len(packet) - telemetry.SIZE :]
    # 64 bits: queue 7, sent 3, time 5000, rate code 4.
    assert record[:8] == (7 << 47 | 3 << 27 | 5000 << 3 | 4).to_bytes(8, "little")
    assert record[-2:] == b"\2\0"
    found = telemetry.read_hops(record)
    assert found == (hop(5000, 3, 7, 400 * GBPS), hop(9, 0, (1 << 17) - 1))
    assert found[0].queue_bytes == 560
    assert second[: -telemetry.SIZE] == packet[: -telemetry.SIZE]


@each_case(
    "packet",
    [
        frames.frame(1),
        frames.frame(1) + bytes(41),
        frame_with_record(telemetry.echoed(telemetry.EMPTY)),
        b"\x08\x06" * 30,
        b"",
    ],
    ids=["no record", "another trailer", "echoed", "no IP", "nothing"],
)
def test_frame_without_room_stays_as_it_is(packet: bytes) -> None:
    assert telemetry.write_hop(packet, now=1, sent=1, queued=1, rate_bps=LINE) == packet


def test_damaged_frame_stays_damaged_with_a_hop() -> None:
    packet = DamagedFrame(frame_with_record())

    written = telemetry.write_hop(packet, now=1, sent=1, queued=1, rate_bps=LINE)

    assert written != packet
    assert type(written) is DamagedFrame


def test_path_longer_than_the_record_has_no_hops() -> None:
    packet = frame_with_record()
    for number in range(6):
        packet = telemetry.write_hop(packet, now=number, sent=0, queued=0, rate_bps=LINE)

    assert telemetry.read_hops(packet[-telemetry.SIZE :]) == ()


# Between devices.


def incast(rate_control: Any, *, packets: int = 250, **settings: Any) -> Transfers:
    """Two hosts write to a third one through one switch."""
    found = Transfers(
        star(3),
        SwitchSettings(buffer=4 << 20, **settings),
        rate_control=rate_control,
        notification=lambda: NotificationPoint(interval=0),
    )
    for source in ("h0", "h1"):
        found.add(source, "h2", packets)
    return found


def test_hpcc_keeps_the_queue_short() -> None:
    without = incast(None)
    without.run()
    parameters = HPCCParameters(base_rtt=4168 * NS)
    transfers = incast(lambda: HPCC(parameters, LINE), has_telemetry=True)
    queues = []
    taken: list[bytes] = []
    line = transfers.network.wires[transfers.network.topology.links[2]][0].a_to_b
    line.stage = lambda frame, now: taken.append(frame) or [(0, frame)]

    transfers.run()
    queues.append(transfers.largest_queue)

    assert all(each.arrived for each in transfers.transfers)
    assert transfers.largest_queue < without.largest_queue / 3
    # What the receiver sends are ACKs with the record of the packet that each answers.
    assert all(telemetry.is_echoed(each[-telemetry.SIZE :]) for each in taken)
    assert {len(telemetry.read_hops(each[-telemetry.SIZE :])) for each in taken} == {1}
    assert Packet.parse(taken[0]).icrc_status() is CrcStatus.GOOD


def test_swift_keeps_the_delay_near_its_target() -> None:
    own = SwiftParameters(base_target=5 * US, per_hop=0, fs_range=0, max_cwnd=64)
    rtts: list[Time] = []

    class Noted(Swift):
        def acknowledged(self, feedback: Feedback, now: Time) -> None:
            if feedback.rtt is not None:
                rtts.append(feedback.rtt)
            super().acknowledged(feedback, now)

    transfers = incast(lambda: Noted(own, LINE), packets=600)
    transfers.run()

    assert all(each.arrived for each in transfers.transfers)
    late = sorted(rtts[len(rtts) // 2 :])
    assert 4 * US < late[len(late) // 2] < 6 * US


def test_window_smaller_than_a_packet_never_stops_a_transfer() -> None:
    class Tiny(Pacer):
        window = 1.0

        def acknowledged(self, feedback: Feedback, now: Time) -> None:
            assert feedback.sent == feedback.acknowledged

    transfers = incast(lambda: Tiny(LINE), packets=20)

    # One packet in a round trip of 4.2 us.
    assert transfers.run() == pytest.approx(20 * 4.2 * US, rel=0.05)


def test_queue_pairs_at_a_limit_share_the_line_in_turn() -> None:
    transfers = Transfers(
        star(2), SwitchSettings(buffer=4 << 20), rate_control=lambda: RateLimit(30 * GBPS)
    )
    for _ in range(3):
        transfers.add("h0", "h1", 100)

    end = transfers.run()

    ends = [each.end for each in transfers.transfers]
    assert max(ends) - min(ends) < 1 * US
    assert end == pytest.approx(100 * 1106 * 8 * NS / 30 + 4 * US, rel=0.02)


def test_control_without_feedback_has_no_loop() -> None:
    transfers = incast(DCQCN, packets=1)

    assert [each.qp.feedback is None for each in transfers.transfers] == [True, True]
