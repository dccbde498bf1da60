"""MADs as packets in virtual time: SMPs on VL15 beside data, other MADs on the lanes of data."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import MS, US, S, Time
from ibwire.fabric.infiniband.errors import DamagedFrame
from ibwire.fabric.infiniband.lrh import MANAGEMENT_VL, dlid_of, vl_of
from ibwire.fabric.infiniband.packets import read_packet
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.fabric.infiniband.subnet import Port, Subnet
from ibwire.fabric.infiniband.tap import tap
from ibwire.rc.attributes import QPAttr, QPAttrMask, QPType
from ibwire.scenario.infiniband import FabricTraffic, Operation
from ibwire.sm.asking import Ask, packed
from ibwire.sm.configuration import Settings, read_partition, with_default
from ibwire.sm.mads import Datagram
from ibwire.sm.recording import packet_of
from ibwire_layers.attributes import NodeInfo, PortInfo, PortPhysicalState, PortState, SMAttribute
from ibwire_layers.mad import MAD, Method, MgmtClass, Notice
from ibwire_layers.performance import PerfAttribute, PortCounters
from sm.managed import Managed

FCP = 8
"""Bytes of a flow-control packet."""
SMP = 290
"""Bytes of a packet with a MAD: 8 + 12 + 8 before it, ICRC and VCRC behind it."""


class Brought:
    """A fabric that a subnet manager on its first adapter has brought up by packets."""

    def __init__(self, topology: str, settings: FabricSettings | None = None) -> None:
        self.subnet: Subnet = find_topology(topology)
        self.traffic = FabricTraffic(self.subnet, settings)
        self.adapters = [
            port
            for node in self.subnet.nodes.values()
            if not node.is_switch
            for port in node.external_ports()
        ]
        self.seen: list[tuple[Frame, Time]] = []
        """What passes the link of the first adapter."""
        tap(self.traffic.fabric, self.adapters[0], lambda *seen: self.seen.append(seen))
        self.manager = self.traffic.manage(self.adapters[0], Settings(), 1 * S)
        assert self.traffic.management is not None
        self.management = self.traffic.management

    def run(self, duration: Time) -> None:
        simulator = self.traffic.simulator
        simulator.run(simulator.now + duration)

    def ask(self, port: Port, lid: int, mad: bytes, queue_pair: int) -> list[Datagram]:
        """Send a MAD from an adapter to a LID; what comes back to the program there."""
        asker = Asker()
        self.management.programs[port] = asker
        self.management.send(
            Datagram(bytearray(mad.ljust(256, b"\0")), port.lid, lid, queue_pair, queue_pair), port
        )
        self.management.run(self.traffic.simulator.now)
        self.run(1 * MS)
        return asker.received


class Asker:
    def __init__(self) -> None:
        self.received: list[Datagram] = []

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        self.received.append(datagram)
        return True


@pytest.mark.parametrize("topology", ["star2", "ring:switches=4,hosts=1"])
def test_a_fabric_comes_up_as_if_mads_took_no_time(topology: str) -> None:
    """Tables, LIDs and states are those of the manager whose MADs are delivered at once."""
    at_once = Managed(topology)
    at_once.start(Settings())
    at_once.run(1)
    brought = Brought(topology)

    assert brought.manager.is_up
    assert brought.traffic.simulator.now > 50 * US
    for name, node in brought.subnet.nodes.items():
        other = at_once.subnet.nodes[name]
        assert node.lft == other.lft
        assert [port.lid for port in node.ports] == [port.lid for port in other.ports]
        assert all(port.state == PortState.ACTIVE for port in node.ports if port.peer)
    lanes = Counter(vl_of(frame) for frame, _ in brought.seen if len(frame) > FCP)
    assert set(lanes) == {MANAGEMENT_VL}
    # Each packet is 8 + 12 + 8 + 256 + 4 + 2 bytes: LRH, BTH, DETH, MAD, ICRC, VCRC.
    assert {len(frame) for frame, _ in brought.seen if vl_of(frame) == MANAGEMENT_VL} == {290}


def test_smps_by_directed_route_are_no_multicast_packets() -> None:
    """Their LIDs are 0xFFFF, the permissive one, which no group has (IBA 4.1.3)."""
    brought = Brought("star2")

    for port in brought.adapters:
        for counters in (port.counters, port.peer.counters if port.peer else port.counters):
            assert counters.port_xmit_pkts > 0 < counters.port_rcv_pkts
            assert counters.port_multicast_xmit_pkts == counters.port_multicast_rcv_pkts == 0


def test_an_agent_answers_after_the_time_of_links_switches_and_its_own() -> None:
    """A Get to the switch: 292 bytes with delimiters at 100 Gb/s, 10 ns of cable, each way."""
    brought = Brought("star2", FabricSettings(agent_delay=3 * US))

    own_first = [time for frame, time in brought.seen if vl_of(frame) == MANAGEMENT_VL][:2]

    packet = 292 * 8 * S // (4 * 25_781_250_000 * 64 // 66)
    assert own_first[1] - own_first[0] == pytest.approx(3 * US + 2 * packet + 20_000, abs=5_000)


def test_a_link_that_fails_is_routed_around_while_data_flow() -> None:
    """The switches send trap 128; the transfer goes the other way round the ring."""
    brought = Brought("ring:switches=4,hosts=1", FabricSettings(update_symbols=0))
    fabric, subnet = brought.traffic.fabric, brought.subnet
    source, destination = brought.adapters[1], brought.adapters[2]
    near = subnet.nodes["sw1"]
    before = near.route(destination.lid)
    start = brought.traffic.simulator.now
    brought.seen.clear()
    transfer = brought.traffic.add(source, destination, 400_000, message=50_000, timeout=9)
    fabric.plan_failure(near.ports[before], start + 5 * US)

    brought.traffic.run(start + 1 * S)

    assert transfer.arrived
    assert transfer.qp.counters.retransmitted > 0
    assert near.route(destination.lid) not in (before, 0xFF)
    assert brought.manager.sweeps == 2
    assert {vl_of(frame) for frame, _ in brought.seen if len(frame) > FCP} == {MANAGEMENT_VL}


def notices_at(brought: Brought, number: int) -> list[Notice]:
    """The traps of a number that came to the manager."""
    smps = (frame for frame, _ in brought.seen if len(frame) == SMP)
    notices = (Notice.unpack(smp[28 + 64 :]) for smp in smps if smp[28 + 3] == Method.TRAP)
    return [notice for notice in notices if notice.trap_number == number]


def traps_at(brought: Brought) -> list[tuple[int, int, bytes]]:
    """Number, producer type and details of the traps that came to the manager."""
    found = []
    for frame, _ in brought.seen:
        if len(frame) == SMP and frame[28 + 3] == Method.TRAP:
            notice = Notice.unpack(frame[28 + 64 :])
            found.append((notice.trap_number, notice.producer_type, notice.data_details[:5]))
    return found


def test_a_damaged_packet_makes_a_switch_send_no_trap_about_its_p_key() -> None:
    """Each bit of LRH and BTH of an acknowledgement of 30 bytes: 8 + 12 + 4 + 4 + 2."""
    brought = Brought("star2")
    traffic, switch = brought.traffic, brought.subnet.nodes["sw0"]
    seen: list[Frame] = []
    tap(traffic.fabric, brought.adapters[1], lambda frame, now: seen.append(frame))
    traffic.add(brought.adapters[0], brought.adapters[1], 1)
    brought.run(20 * US)
    acknowledgement = next(frame for frame in seen if len(frame) == 30)
    errors = switch.ports[2].counters
    assert errors.port_rcv_errors == 0

    for bit in range(8 * 20):
        damaged = bytearray(acknowledgement)
        damaged[bit // 8] ^= 1 << bit % 8
        traffic.fabric.switches["sw0"].receive(
            DamagedFrame(damaged), traffic.simulator.now, switch.ports[2].number
        )
        brought.run(1 * US)

    assert errors.symbol_error_counter == 8 * 20
    assert errors.port_rcv_constraint_errors > 0
    assert 259 not in {number for number, _, _ in traps_at(brought)}


@pytest.mark.parametrize("damaged", [8, 9])
def test_a_link_whose_errors_exceed_the_threshold_is_reported(damaged: int) -> None:
    """Trap 129 with LID and port: nine damaged packets in a row, one more than LocalPhyErrors."""
    brought = Brought("star2")
    fabric, switch = brought.traffic.fabric, brought.subnet.nodes["sw0"]
    left = iter(range(damaged))

    def damage(frame: Frame, now: Time) -> tuple[tuple[Time, Frame], ...]:
        return ((0, frame if next(left, None) is None else DamagedFrame(bytes(len(frame)))),)

    fabric.line(brought.adapters[1]).stage = damage
    brought.run(60 * US)  # flow-control packets of eight lanes come in 21 us

    lid = switch.ports[0].lid.to_bytes(2, "big")
    assert traps_at(brought) == [(129, 2, bytes(2) + lid + bytes((2,)))] * (damaged - 8)
    assert switch.ports[2].counters.local_link_integrity_errors == damaged - 8


def test_good_packets_between_damaged_ones_keep_a_link_below_the_threshold() -> None:
    """On a link that carries flow-control packets only, of which every second one is damaged."""
    brought = Brought("star2")
    fabric, switch = brought.traffic.fabric, brought.subnet.nodes["sw0"]
    numbers = iter(range(1000))
    fabric.line(brought.adapters[1]).stage = lambda frame, now: (
        (0, DamagedFrame(bytes(len(frame))) if next(numbers) % 2 else frame),
    )
    brought.run(60 * US)

    assert fabric.link(switch.ports[2]).errors >= 9
    assert switch.ports[2].counters.local_link_integrity_errors == 0


def test_a_link_without_flow_control_packets_is_trained_again() -> None:
    """Trap 131 after 400,000 symbol times, 51 % less or 3 % more: 124 us at most at 4xEDR."""
    brought = Brought("star2")
    fabric, switch = brought.traffic.fabric, brought.subnet.nodes["sw0"]
    line = fabric.line(brought.adapters[1])
    line.stage = lambda frame, now: () if len(frame) <= FCP else ((0, frame),)
    symbol = 8 * S / (25_781_250_000 * 64 / 66)

    brought.run(int(0.49 * 400_000 * symbol))
    assert not traps_at(brought)
    brought.run(int(0.54 * 400_000 * symbol) + 65_536 * int(symbol) + 10 * US)

    numbers = [number for number, _, _ in traps_at(brought)]
    assert set(numbers) == {131, 128}
    lid = switch.ports[0].lid.to_bytes(2, "big")
    assert (131, 2, bytes(2) + lid + bytes((2,))) in traps_at(brought)
    assert switch.ports[2].counters.link_downed_counter == 1


def test_packets_without_room_in_the_buffer_are_reported() -> None:
    """Trap 130 and its counter: an overrun in more periods in a row than OverrunErrors."""
    brought = Brought("star2")
    fabric, switch = brought.traffic.fabric, brought.subnet.nodes["sw0"]
    host = brought.adapters[1]
    receiver = fabric.link(switch.ports[2])
    period = receiver.period
    frame = packet_of(Datagram(bytearray(256), host.lid, 1, 1, 1), vl=0)
    receiver.buffers[0].held = receiver.buffers[0].size  # nothing leaves any more
    for count in range(9):
        assert switch.ports[2].counters.excessive_buffer_overrun_errors == 0, count
        assert not receiver.take(read_packet(frame), fabric.simulator.now)
        brought.run(period)
    brought.run(10 * US)

    lid = switch.ports[0].lid.to_bytes(2, "big")
    assert traps_at(brought) == [(130, 2, bytes(2) + lid + bytes((2,)))]
    assert switch.ports[2].counters.excessive_buffer_overrun_errors == 1
    assert switch.ports[2].counters.port_rcv_errors == 9


def test_a_port_that_is_disabled_takes_its_link_down_until_it_is_set_to_polling() -> None:
    """As ibportstate disable and enable do (IBA 14.2.5.6, PortPhysicalState 3 and 2)."""
    brought = Brought("star2")
    traffic, switch = brought.traffic, brought.subnet.nodes["sw0"]
    port, host = switch.ports[2], brought.adapters[1]
    start = traffic.simulator.now
    transfer = traffic.add(host, brought.adapters[0], 1_000_000, timeout=9)
    set_physical_state(brought, PortPhysicalState.DISABLED)
    traffic.simulator.run(start + 40 * US)
    frames: list[Frame] = []
    tap(traffic.fabric, host, lambda frame, now: frames.append(frame))
    traffic.simulator.run(start + 400 * US)

    assert not frames, "neither data nor flow-control packets"
    assert (port.state, port.physical_state) == (PortState.DOWN, PortPhysicalState.DISABLED)
    assert host.state == PortState.DOWN
    assert not transfer.arrived

    set_physical_state(brought, PortPhysicalState.POLLING)
    traffic.run(start + 2 * S)

    assert port.state == host.state == PortState.ACTIVE
    assert transfer.arrived


def test_data_have_the_rate_that_a_link_was_reset_to() -> None:
    """As `ibportstate` does with `width 1` and `reset`: at one lane EDR 4140 bytes take 1,324.8 ns.

    So 64 of them take 84.8 us; at four lanes they took 21.2.
    """
    brought = Brought("star2")
    traffic = brought.traffic

    set_port(brought, PortInfo(link_width_enabled=1))
    set_port(brought, PortInfo(port_state=PortState.DOWN))
    brought.run(50 * MS)
    start = traffic.simulator.now
    transfer = traffic.add(brought.adapters[0], brought.adapters[1], 64 * 4096)
    traffic.run(start + 1 * S)

    assert transfer.arrived
    assert transfer.end is not None
    assert transfer.end - start == pytest.approx(64 * 4124 * 320, rel=0.02)


def set_physical_state(brought: Brought, state: PortPhysicalState) -> None:
    """Let port 2 of the switch train, or disable it."""
    set_port(brought, PortInfo(port_physical_state=state))


def set_port(brought: Brought, info: PortInfo) -> None:
    """Send Set(PortInfo) for port 2 of the switch from the first host."""
    head = MAD(
        mgmt_class=MgmtClass.SUBN_DIRECTED_ROUTE, class_version=1, method=Method.SET,
        transaction_id=9, attribute_id=SMAttribute.PORT_INFO, attribute_modifier=2,
    ).pack()  # fmt: skip
    mad = bytearray(head.ljust(256, b"\0"))
    mad[7] = 1
    mad[32:36] = b"\xff" * 4
    mad[64 : 64 + PortInfo.SIZE] = info.pack()
    mad[129] = 1
    brought.management.send(Datagram(mad, 0xFFFF, 0xFFFF, 0, 0), brought.adapters[0])
    brought.management.run(brought.traffic.simulator.now)


def test_a_mad_whose_link_fails_before_it_is_there_whole_is_lost() -> None:
    """290 bytes at 1xSDR, 2 Gb/s, take 1.17 us; the switch acts on the first 8 of them."""
    brought = Brought("star:hosts=2,rate=1xSDR")
    fabric, management = brought.traffic.fabric, brought.management
    before = management.delivered, management.lost
    link = brought.subnet.nodes["sw0"].ports[2]
    link_of_sender = brought.adapters[1]
    mad = MAD(
        mgmt_class=MgmtClass.SUBN_DIRECTED_ROUTE, class_version=1, method=Method.GET,
        transaction_id=9, attribute_id=SMAttribute.NODE_INFO,
    ).pack()  # fmt: skip
    smp = bytearray(mad.ljust(256, b"\0"))
    smp[7], smp[129] = 1, 1
    smp[32:36] = b"\xff" * 4
    management.send(Datagram(smp, 0xFFFF, 0xFFFF, 0, 0), link_of_sender)
    management.run(brought.traffic.simulator.now)
    brought.run(600_000)
    fabric.fail(link)
    brought.run(5 * US)

    assert (management.delivered, management.lost) == (before[0], before[1] + 1)


def test_a_request_for_counters_takes_credits_of_a_lane_of_data() -> None:
    brought = Brought("ring:switches=4,hosts=1")
    asker, target = brought.adapters[0], brought.adapters[2]
    head = MAD(
        mgmt_class=MgmtClass.PERF, class_version=1, method=Method.GET, transaction_id=5,
        attribute_id=PerfAttribute.PORT_COUNTERS,
    ).pack()  # fmt: skip
    mad = head + bytes(40) + PortCounters(port_select=1).pack()
    link = brought.traffic.fabric.link(asker)
    brought.seen.clear()

    answers = {
        port: brought.ask(asker, port.lid, mad, 1)
        for port in (target, brought.subnet.nodes["sw2"].ports[0])
    }

    assert [len(each) for each in answers.values()] == [1, 1]
    counted = PortCounters.unpack(bytes(answers[target][0].mad[64:]))
    assert counted.port_xmit_pkts == target.counters.port_xmit_pkts - 1  # the answer itself
    assert link.credits[0].sent == 2 * 5  # 290 bytes are 5 blocks of 64
    assert [dlid_of(frame) for frame, _ in brought.seen if len(frame) > FCP] == [
        target.lid, asker.lid, brought.subnet.nodes["sw2"].ports[0].lid, asker.lid,
    ]  # fmt: skip


def test_smps_for_a_link_that_is_down_are_discarded() -> None:
    """They do not wait until it comes up again."""
    brought = Brought("ring:switches=2,hosts=1")
    asker, target = brought.adapters[1], brought.adapters[0]
    fabric, switch = brought.traffic.fabric, asker.peer.node
    out = switch.ports[switch.route(target.lid)]
    mad = MAD(
        mgmt_class=MgmtClass.SUBN_LID_ROUTED, class_version=1, method=Method.GET,
        transaction_id=5, attribute_id=0x11,
    ).pack()  # fmt: skip
    fabric.fail(out)

    before = brought.ask(asker, target.lid, mad, 0)
    fabric.restore(out, activate=False)
    later = Asker()
    brought.management.programs[asker] = later
    brought.run(1 * MS)

    assert (before, later.received) == ([], [])
    assert out.counters.port_xmit_discards == 1


def test_smps_by_lid_are_answered_too() -> None:
    brought = Brought("star2")
    asker, switch = brought.adapters[1], brought.subnet.nodes["sw0"]
    mad = MAD(
        mgmt_class=MgmtClass.SUBN_LID_ROUTED, class_version=1, method=Method.GET,
        transaction_id=5, attribute_id=0x11,
    ).pack()  # fmt: skip

    (answer,) = brought.ask(asker, switch.ports[0].lid, mad, 0)
    (own,) = brought.ask(asker, asker.lid, mad, 0)

    # NodeInfo: node type 2 is a switch; it was asked by its port 2.
    assert (answer.mad[66], answer.mad[64 + 36]) == (2, 2)
    assert own.mad[66] == 1


def test_a_directed_route_begins_where_an_smp_has_come_by_lid() -> None:
    """As with `ibportstate LID PORT`, which asks for the port at the other end (IBA 14.2.2.2)."""
    brought = Brought("ring6")
    asker, far = brought.adapters[3], brought.adapters[-1]
    assert far.peer is not None
    switch = far.peer.node
    mad = packed(Ask((far.peer.number,), SMAttribute.NODE_INFO), 5)
    mad[32:34] = asker.lid.to_bytes(2, "big")

    (answer,) = brought.ask(asker, switch.ports[0].lid, bytes(mad), 0)

    assert NodeInfo.unpack(bytes(answer.mad[64:])).node_guid == far.node.guid
    assert (answer.slid, answer.dlid) == (switch.ports[0].lid, asker.lid)


def keys_of(notice: Notice) -> tuple[int, ...]:
    """LIDs, key, SL and queue pairs of trap 257 or 258 (opensm ib_types.h, ntc_257_258)."""
    lids_and_key = struct.unpack(">2xHHI", notice.data_details[:10])
    source, destination = struct.unpack(">II", notice.data_details[10:18])
    return (*lids_and_key, source >> 28, source & 0xFFFFFF, destination & 0xFFFFFF)


@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UD])
def test_data_of_another_partition_are_counted_and_reported(qp_type: QPType) -> None:
    """Two limited members of a partition: the queue pair drops the packet, trap 257 has both ends;
    an RC packet does not say from which queue pair it is."""
    brought = Brought("ring:switches=3,hosts=1")
    traffic, (_, source, destination) = brought.traffic, brought.adapters
    for port in (source, destination):
        traffic.devices[port].pkeys = [0x7FFF]

    transfer = traffic.add(
        source, destination, 100, operation=Operation.SEND, qp_type=qp_type, sl=3
    )
    brought.run(10 * US)
    assert (source.pkey_violations, destination.pkey_violations) == (0, 1)
    assert not transfer.arrived
    brought.run(1 * MS)

    assert [keys_of(notice) for notice in notices_at(brought, 257)] == [
        (
            source.lid,
            destination.lid,
            0x7FFF,
            3,
            transfer.qp.number if qp_type is QPType.UD else 0,
            transfer.peer.number,
        )
    ]


def test_a_datagram_with_a_wrong_q_key_is_counted_and_reported() -> None:
    brought = Brought("ring:switches=3,hosts=1")
    traffic, (_, source, destination) = brought.traffic, brought.adapters
    transfer = traffic.add(source, destination, 100, operation=Operation.SEND, qp_type=QPType.UD)
    transfer.peer.modify(QPAttr(qkey=0x2222), QPAttrMask.QKEY)

    brought.run(1 * MS)

    assert (source.qkey_violations, destination.qkey_violations) == (0, 1)
    assert destination.pkey_violations == 0
    (notice,) = notices_at(brought, 258)
    ends = transfer.qp.number, transfer.peer.number
    assert keys_of(notice) == (source.lid, destination.lid, 0x11111111, 0, *ends)


def test_queue_pairs_have_the_p_keys_that_the_manager_has_written() -> None:
    """A device that is made after the manager's sweep has the table of its port."""
    subnet = find_topology("star2")
    traffic = FabricTraffic(subnet)
    first, second = (
        port
        for node in subnet.nodes.values()
        if not node.is_switch
        for port in node.external_ports()
    )
    partition = read_partition("storage=0x10:ALL")
    traffic.manage(first, Settings(partitions=with_default([partition])), 1 * S)

    assert traffic.devices[second].pkeys[:3] == [0xFFFF, 0x8010, 0]
