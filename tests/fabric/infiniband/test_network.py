"""Packets over an InfiniBand fabric: when they arrive, what is counted, and what stops them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import MS, NS, US, Time
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.lrh import dlid_of, words_of
from ibwire.fabric.infiniband.network import PacketFabric, set_limits
from ibwire.fabric.infiniband.routing import Engine, bring_up
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port, Subnet
from ibwire.fabric.infiniband.tap import tap
from ibwire.fabric.llr import LLR
from ibwire.fabric.sim import Outcome, Simulator
from ibwire.rc.device import Device
from ibwire.rc.work import WCStatus
from ibwire.scenario.infiniband import FabricTraffic, Operation
from ibwire.sm.mads import Datagram
from ibwire.sm.pma import PMA
from ibwire_layers import crc
from ibwire_layers.attributes import PortState
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet
from ibwire_layers.performance import PortCountersExtended


def fabric_of(
    key: str,
    engine: Engine = Engine.MINHOP,
    settings: FabricSettings | None = None,
    *,
    lanes: int = 1,
    seed: int = 0,
) -> FabricTraffic:
    """The fabric of a topology key, ready for traffic."""
    subnet = generate(key)
    bring_up(subnet, engine)
    set_limits(subnet, lanes=lanes)
    return FabricTraffic(subnet, settings, seed=seed)


def test_more_lanes_than_a_port_has_are_refused() -> None:
    """VLCap is 4: VL0 to VL7 (IBA 14.2.5.6)."""
    with pytest.raises(EncodeError, match=r"lanes: 15 is not at most 8, which is the VLCap of"):
        fabric_of("star:hosts=2", lanes=15)


def hosts_of(subnet: Subnet) -> list[Port]:
    return [node.ports[1] for node in subnet.nodes.values() if not node.is_switch]


def port_at(host: Port) -> Port:
    """The port of the switch of a host."""
    assert host.peer is not None
    return host.peer


def assert_nothing_lost(traffic: FabricTraffic) -> None:
    """The laws of links with credits, at the end of a run."""
    for link in traffic.fabric.links():
        counters = link.counters
        assert counters.port_xmit_discards == counters.excessive_buffer_overrun_errors == 0
        assert counters.port_rcv_errors == counters.port_rcv_switch_relay_errors == 0
        for buffer in link.buffers:
            assert 0 <= buffer.held <= buffer.most <= buffer.size


def test_data_makes_an_armed_port_active_which_then_sends() -> None:
    """IBA 7.2.7: without it the second host could not acknowledge."""
    subnet = generate("star:hosts=2")
    bring_up(subnet)
    a, b = hosts_of(subnet)
    b.state = port_at(a).state = PortState.ARMED
    traffic = FabricTraffic(subnet)
    transfer = traffic.add(a, b, 30_000)

    traffic.run(5 * MS)

    assert transfer.status is WCStatus.SUCCESS
    assert {port.state for link in subnet.links() for port in link} == {PortState.ACTIVE}


@pytest.mark.parametrize("operation", list(Operation))
def test_a_transfer_arrives(operation: Operation) -> None:
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    transfer = traffic.add(a, b, 30_000, operation=operation)

    traffic.run(10 * MS)

    assert (transfer.status, transfer.arrived) == (WCStatus.SUCCESS, True)
    assert_nothing_lost(traffic)


def test_a_switch_sends_a_packet_on_before_it_is_there_whole() -> None:
    """4xEDR is 100 Gb/s, 80 ps a byte. A WRITE Only of 4096 bytes has 8 + 12 + 16 + 4096 + 4 + 2
    = 4138 bytes from LRH to VCRC, with its delimiters 4140: 331.2 ns. Cables 10 ns, switch 130 ns.
    """
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    left: list[int] = []
    there: list[int] = []
    tap(traffic.fabric, a, lambda frame, now: left.append(now) if len(frame) > 100 else None)
    tap(traffic.fabric, b, lambda frame, now: there.append(now) if len(frame) > 100 else None)
    traffic.add(a, b, 4096)

    traffic.run(1 * MS)

    assert there == [left[0] + 331_200 + 2 * 10 * NS + 130 * NS]


def test_a_faster_output_waits_until_the_end_of_a_packet_is_near() -> None:
    """Into the switch at 4xEDR, out at 12xEDR: the packet must not run dry. So its last byte leaves
    130 ns after it has come."""
    subnet = generate("star:hosts=2")
    a, b = hosts_of(subnet)
    switch = port_at(b)
    for port in (b, switch):
        port.width = 8  # 12x
    bring_up(subnet)
    set_limits(subnet)
    traffic = FabricTraffic(subnet)
    left: list[int] = []
    there: list[int] = []
    tap(traffic.fabric, a, lambda frame, now: left.append(now) if len(frame) > 100 else None)
    tap(traffic.fabric, b, lambda frame, now: there.append(now) if len(frame) > 100 else None)
    traffic.add(a, b, 4096)

    traffic.run(1 * MS)

    assert there == [left[0] + 331_200 + 2 * 10 * NS + 130 * NS]


@pytest.mark.parametrize("retry", [None, LLR(pcs_lost_timeout=1 * MS)])
@pytest.mark.parametrize("comes_back", ["restored", "interrupted"])
def test_a_link_that_was_trained_again_has_its_new_rate(comes_back: str, retry: LLR | None) -> None:
    """At one lane EDR a packet of 4140 bytes takes 4140 x 320 ps = 1,324.8 ns, at four 331.2 ns.

    Cables 10 ns, switch 130 ns. With retry a switch has a packet whole before it sends it on.
    """
    traffic = fabric_of("star:hosts=2", settings=FabricSettings(retry=retry))
    a, b = hosts_of(traffic.subnet)
    simulator, fabric = traffic.simulator, traffic.fabric
    b.width_enabled = 1
    if comes_back == "restored":
        fabric.fail(b)
        fabric.restore(b)
    else:
        fabric.interrupt(b, 20 * MS)  # beyond the limit: the link goes down
        simulator.run(21 * MS)
    times: dict[tuple[Port, int], int] = {}
    for port in (a, b):

        def note(frame: bytes, now: int, port: Port = port) -> None:
            if len(frame) > 4000:
                times[port, dlid_of(frame)] = now

        tap(fabric, port, note)
    for source, destination in ((a, b), (b, a)):
        traffic.add(source, destination, 4096)
        simulator.run(simulator.now + MS)

    to_b, to_a = (times[b, b.lid] - times[a, b.lid], times[a, a.lid] - times[b, a.lid])
    assert to_b == 1_324_800 + 2 * 10 * NS + 130 * NS + (331_200 if retry else 0)
    # Into the switch at one lane: cut through, the last byte leaves when it has passed.
    assert to_a == 1_324_800 + 2 * 10 * NS + 130 * NS + (331_200 if retry else 0)


def test_flow_control_packets_and_ticks_follow_the_new_rate() -> None:
    """One lane SDR carries 2 Gb/s of data: 16 ns are 4 bytes, and 65,536 symbols 262.144 us."""
    traffic = fabric_of("star:hosts=2")
    _, b = hosts_of(traffic.subnet)
    b.width_enabled, b.speed_ext_enabled, b.speed_enabled = 1, 0, 1

    traffic.fabric.fail(b)
    traffic.fabric.restore(b)

    for link in (traffic.fabric.link(b), traffic.fabric.link(port_at(b))):
        assert (link.tick, link.period) == (16 * NS, 262_144 * NS)


def test_goodput_is_that_of_the_link() -> None:
    """4096 of 4124 bytes of a packet with its delimiters are payload: 99.3 Gb/s at 4xEDR."""
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    transfer = traffic.add(a, b, 1 << 19)

    traffic.run(10 * MS)

    assert transfer.end is not None
    assert (1 << 22) / (transfer.end / 1000) == pytest.approx(99.3, rel=0.02)


def test_a_small_buffer_halts_the_sender_for_a_round_trip() -> None:
    """In 66 blocks there is room for one packet of 65: the next one leaves when it has left the
    switch and the new limit is here."""
    traffic = fabric_of("star:hosts=2", settings=FabricSettings(buffer=66))
    a, b = hosts_of(traffic.subnet)
    transfer = traffic.add(a, b, 1 << 18)

    traffic.run(10 * MS)

    assert transfer.arrived
    assert transfer.end is not None
    assert (1 << 21) / (transfer.end / 1000) < 75
    assert port_at(a).counters.port_xmit_wait == 0
    assert a.counters.port_xmit_wait > 1000
    assert_nothing_lost(traffic)


def test_a_sender_goes_on_at_once_when_there_is_room_again() -> None:
    """A packet of 4124 bytes with its delimiters takes 329.92 ns at 4xEDR. It begins to leave the
    switch after a cable and 130 ns; its room is free at its end, and the flow-control packet of 8
    bytes takes 0.64 ns and a cable."""
    traffic = fabric_of("star:hosts=2", settings=FabricSettings(buffer=66))
    a, b = hosts_of(traffic.subnet)
    left: list[int] = []
    tap(
        traffic.fabric,
        a,
        lambda frame, now: left.append(now) if len(frame) == 4122 else None,
        arriving=False,
    )
    traffic.add(a, b, 1 << 16)

    traffic.run(1 * MS)

    turn = 10 * NS + 130 * NS + 329_920 + 640 + 10 * NS
    gaps = [later - earlier for earlier, later in pairwise(left)]
    assert gaps == [turn] * 14


def test_counters_are_the_sums_of_the_packets_on_the_link() -> None:
    """PortXmitData counts words from the LRH to the ICRC, without flow-control packets."""
    traffic = fabric_of("ring:switches=4,hosts=1")
    hosts = hosts_of(traffic.subnet)
    port = port_at(hosts[0])
    words: list[int] = []
    link_packets: list[bytes] = []

    def record(frame: bytes, now: int) -> None:
        if len(frame) == 6:
            link_packets.append(frame)
        else:
            words.append(words_of(frame))

    tap(traffic.fabric, port, record, arriving=False)
    for source in hosts[1:]:
        traffic.add(source, hosts[0], 50_000, message=10_000)

    traffic.run(10 * MS)
    traffic.simulator.run(traffic.simulator.now + 5 * US)

    answer = PMA().answer(port.node, port.number, counters_request(port.number))
    counters = PortCountersExtended.unpack(bytes(answer.mad[64:]))
    assert (counters.port_xmit_data, counters.port_xmit_pkts) == (sum(words), len(words))
    assert hosts[0].counters.port_rcv_data == sum(words)
    assert len(words) > 39
    assert link_packets


def counters_request(port: int) -> Datagram:
    """A Get of PortCountersExtended."""
    mad = bytearray(256)
    mad[:4] = bytes((1, 4, 1, 1))  # base version, PerfMgt, class version, Get
    mad[16:18] = b"\0\x1d"
    mad[65] = port
    return Datagram(mad, slid=1, dlid=2, sqp=1, dqp=1)


def test_flow_control_packets_come_every_65536_symbol_times() -> None:
    """A symbol of a lane of EDR (25 Gb/s of data) takes 0.32 ns: 20.97152 us."""
    traffic = fabric_of("star:hosts=2", lanes=2)
    a, _ = hosts_of(traffic.subnet)
    times: list[int] = []
    tap(traffic.fabric, a, lambda frame, now: times.append(now), arriving=False)

    traffic.simulator.run(100 * US)

    starts = times[::2]
    assert [later - earlier for earlier, later in pairwise(starts)] == [20_971_520] * 4
    assert len(times) == 10


@pytest.mark.parametrize("symbols", [0, 65_536])
def test_lost_credits_come_back(symbols: int) -> None:
    """A packet that is lost on the wire takes its blocks along until a flow-control packet says how
    many were sent."""
    settings = FabricSettings(buffer=66, update_symbols=symbols)
    traffic = fabric_of("star:hosts=2", settings=settings)
    a, b = hosts_of(traffic.subnet)
    line = traffic.fabric.line(a)
    lost: list[bytes] = []

    def lose(frame: bytes, now: int) -> Sequence[tuple[int, bytes]]:
        if len(frame) > 100 and not lost:
            lost.append(frame)
            return ()
        return ((0, frame),)

    line.stage = lose
    transfer = traffic.add(a, b, 20_000, timeout=8)  # 1 ms

    traffic.run(20 * MS)

    assert (transfer.status == WCStatus.SUCCESS) == transfer.arrived == bool(symbols)


def test_packets_of_two_lanes_pass_each_other() -> None:
    """Service levels 0 and 1 are on lanes 0 and 1; the default tables give lane 0 the line first,
    with a limit of one packet, so both share it."""
    traffic = fabric_of("star:hosts=3", lanes=2)
    a, b, c = hosts_of(traffic.subnet)
    transfers = [traffic.add(a, c, 1 << 17, sl=0), traffic.add(b, c, 1 << 17, sl=1)]
    lanes: list[int] = []
    tap(
        traffic.fabric,
        port_at(c),
        lambda frame, now: lanes.append(frame[0] >> 4) if len(frame) > 100 else None,
        arriving=False,
    )

    traffic.run(10 * MS)

    assert all(transfer.arrived for transfer in transfers)
    assert lanes[4:40].count(0) == pytest.approx(18, abs=2)


def test_what_leaves_is_a_packet_with_good_checksums() -> None:
    traffic = fabric_of("star:hosts=2", lanes=2)
    a, b = hosts_of(traffic.subnet)
    frames: list[bytes] = []
    tap(traffic.fabric, port_at(b), lambda frame, now: frames.append(frame), arriving=False)
    traffic.add(a, b, 5000, sl=1)

    traffic.run(10 * MS)

    packets = [Packet.parse(frame, LinkType.INFINIBAND) for frame in frames if len(frame) > 6]
    assert [packet.bth.opcode for packet in packets if packet.payload] == [
        OpCode.RC_RDMA_WRITE_FIRST,
        OpCode.RC_RDMA_WRITE_LAST,
    ]
    for packet in packets:
        assert packet.icrc == packet.computed_icrc()
    for frame in frames:
        if len(frame) > 6:
            assert frame[-2:] == crc.vcrc(frame[:-2])


class Plain:
    """A device that does not say when it has a packet."""

    def __init__(self, device: Device) -> None:
        self.receive = device.receive
        self.poll_transmit = device.poll_transmit
        self.poll_timeout = device.poll_timeout
        self.handle_timeout = device.handle_timeout


def shifted(operation: Operation) -> FabricTraffic:
    """The end of a transfer from each host of a star to the next one."""
    traffic = fabric_of("star:hosts=4")
    hosts = hosts_of(traffic.subnet)
    for source, destination in pairwise([*hosts, hosts[0]]):
        traffic.add(source, destination, 65536, mtu=1024, operation=operation)
    assert traffic.run() is Outcome.STOPPED
    return traffic


@pytest.mark.parametrize("operation", Operation)
def test_devices_that_name_no_ports_send_at_the_same_times(
    operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(
        simulator: Simulator,
        subnet: Subnet,
        devices: Mapping[Port, Device],
        settings: FabricSettings | None,
    ) -> PacketFabric:
        found = {port: Plain(device) for port, device in devices.items()}
        return PacketFabric(simulator, subnet, found, settings)

    named = shifted(operation)
    monkeypatch.setattr("ibwire.scenario.infiniband.PacketFabric", plain)
    unnamed = shifted(operation)

    assert [each.end for each in named.transfers] == [each.end for each in unnamed.transfers]


def test_a_receiver_is_asked_only_when_it_may_have_a_packet() -> None:
    """64 packets of 17 blocks over steps of 64 blocks are 16 or 17 limits, and one is an ACK."""
    traffic = fabric_of("star:hosts=2")
    source, destination = hosts_of(traffic.subnet)
    line = traffic.fabric.line(destination)
    poll, asked = line.poll_transmit, 0

    def count(now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | UnbuiltFrame | None:
        nonlocal asked
        asked += 1
        return poll(now, port, grant)

    line.poll_transmit = count
    traffic.add(source, destination, 65536, mtu=1024)
    traffic.run()

    assert destination.counters.port_rcv_pkts == 64
    assert 17 < asked < 48
