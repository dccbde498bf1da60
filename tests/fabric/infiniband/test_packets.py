"""Packets whose bytes are made late are those that they would have been at once."""

from __future__ import annotations

from functools import partial

import pytest

from fabric.infiniband.test_network import fabric_of, hosts_of
from ibwire.base.node import Frame
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import MS, Time
from ibwire.fabric.infiniband.errors import DamagedFrame
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.packets import FlowControl, LinkPacket, read_packet, unbuilt_packet
from ibwire.fabric.infiniband.routing import bring_up
from ibwire.fabric.infiniband.tap import tap
from ibwire.rc.packet import FORMS, TransportPacket
from ibwire.rc.path import Path
from ibwire.scenario.infiniband import FabricTraffic, Operation
from ibwire_layers import crc
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import IBRoute, Packet

LRH = h.LRH(vl=1, sl=1, dlid=0x1234, slid=7)


def transport(payload: bytes) -> TransportPacket:
    packet = TransportPacket(FORMS[OpCode.RC_SEND_ONLY], 5, payload)
    packet.dest_qp, packet.pkey, packet.mig_req = 0x42, 0xFFFF, 1
    packet.send_by(Path(IBRoute(LRH)))
    return packet


@pytest.mark.parametrize("size", [0, 1, 100, 4096])
def test_a_packet_has_the_fields_of_its_bytes(size: int) -> None:
    """Those of `Packet`, which knows the headers, are the reference."""
    unbuilt = unbuilt_packet(transport(bytes(size)))

    frame = unbuilt.build()

    built = read_packet(frame)
    parsed = Packet.parse(frame, LinkType.INFINIBAND)
    assert isinstance(parsed.route, IBRoute)
    assert frame == parsed.repaired().build()
    said = parsed.route.lrh
    for packet in (unbuilt, built):
        assert (
            (packet.vl, packet.sl, packet.dlid) == (said.vl, said.sl, said.dlid) == (1, 1, 0x1234)
        )
        assert (packet.size, packet.words) == (len(frame), said.pkt_len)
        assert packet.cost == -(-len(frame) // 64)
        assert not packet.is_malformed
        assert not packet.is_management


def test_on_another_lane_it_has_another_vcrc_and_is_not_what_the_device_has_sent() -> None:
    packet = unbuilt_packet(transport(bytes(64)))
    given = packet.build()
    assert packet.received() is packet.transport

    packet.put_on(3)

    frame = packet.build()
    assert frame[0] == 0x30
    assert frame[1:-2] == given[1:-2]
    assert frame[-2:] == crc.vcrc(frame[:-2])
    assert packet.received() is None
    packet.put_on(1)
    assert packet.build() == given
    assert packet.received() is packet.transport


def test_what_came_as_bytes_stays_so() -> None:
    """A damaged frame too: its receiver counts the symbol error."""
    frame = transport(bytes(8)).build()
    damaged = read_packet(DamagedFrame(frame[:30] + b"\xff" + frame[31:]))
    assert damaged.is_damaged
    assert type(damaged.build()) is DamagedFrame
    for short in (b"", frame[:7], frame[:-4], frame + bytes(4)):
        assert read_packet(short).is_malformed
        assert read_packet(short).build() == short


def test_a_copy_is_moved_alone() -> None:
    packet = unbuilt_packet(transport(bytes(8)))

    copy = packet.copy()
    copy.put_on(5)

    assert (packet.build()[0] >> 4, copy.build()[0] >> 4) == (1, 5)


def test_a_flow_control_packet_has_the_bytes_of_its_fields() -> None:
    """The bytes are those of `test_credits.py`."""
    packet = FlowControl(3, sent=0x123, limit=0x456, operation=0)

    assert packet.build().hex() == "01233456d19f"
    assert packet.size == 6


def captured(*, bytes_only: bool) -> list[tuple[str, int, bytes]]:
    """All that leaves and arrives at the ports of a fabric with lanes and datagrams."""
    subnet = generate("ring:switches=4,hosts=1")
    bring_up(subnet)
    set_limits(subnet, lanes=4)
    traffic = FabricTraffic(subnet)
    if bytes_only:
        for wire in traffic.simulator.wires:
            for line in (wire.a_to_b, wire.b_to_a):
                line.poll_transmit = line.near.node.poll_transmit
    seen: list[tuple[str, int, bytes]] = []

    def record(port: str, frame: Frame, now: Time) -> None:
        seen.append((port, now, frame))

    for ends in subnet.links():
        for port in ends:
            tap(traffic.fabric, port, partial(record, str(port)))
    hosts = hosts_of(subnet)
    for number, operation in enumerate(Operation):
        traffic.add(hosts[number], hosts[number + 1], 20_000, operation=operation, sl=number)
    traffic.run(5 * MS)
    assert all(each.arrived for each in traffic.transfers)
    return seen


def test_a_fabric_sends_the_same_whether_bytes_are_made_late_or_at_once() -> None:
    late, at_once = captured(bytes_only=False), captured(bytes_only=True)

    assert len(late) > 300
    assert late == at_once


def test_bytes_are_made_where_they_are_looked_at_and_nowhere_else() -> None:
    """The first packet has a few headers that the receiver has not yet seen."""
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    transfer = traffic.add(a, b, 1 << 18)
    arrived: list[LinkPacket] = []
    incoming = traffic.fabric.link(b).incoming
    take = incoming.receive_unbuilt
    assert take is not None

    def receive(frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        take(frame, now, port)
        if isinstance(frame, LinkPacket):
            arrived.append(frame)

    incoming.receive_unbuilt = receive
    traffic.run(5 * MS)

    assert transfer.arrived
    assert len(arrived) == 64
    assert [each for each in arrived if each.built is not None] == []
