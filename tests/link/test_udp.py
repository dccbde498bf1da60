"""The port of UDP sockets, on the loopback interface, with plain sockets at the other end."""

from __future__ import annotations

import random
import select
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ibwire.base.errors import LinkError
from ibwire.capture import open_capture
from ibwire.link.identification import icrc_change, two_bytes_behind
from ibwire.link.udp import UDPPort
from ibwire_layers.crc import internet_checksum
from ibwire_layers.headers import BTH
from ibwire_layers.outer import UDP, VLAN, Ethernet, EtherType, IPv4
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="binds sockets as Linux does")

CAPTURES = Path(__file__).parents[2] / "captures"


class Ends:
    """A port and a plain socket, each with a loopback address of this test alone."""

    def __init__(self) -> None:
        source = random.SystemRandom()
        self.own, self.other = (
            f"127.{source.randrange(1, 255)}.{source.randrange(255)}.{each}" for each in (1, 2)
        )
        try:
            self.port = UDPPort("lo", addresses=[self.own])
        except LinkError as error:
            pytest.skip(f"no loopback: {error}")
        self.plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.plain.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.plain.setblocking(False)
        self.plain.bind((self.other, 4791))

    def packet(self, *, inbound: bool = False, payload: bytes = b"hello, peer!", **ip: Any) -> Any:
        """A SEND with a good ICRC, from the port or to it."""
        source, destination = (self.other, self.own) if inbound else (self.own, self.other)
        route = RoCEv2Route(
            IPv4(src=number(source), dst=number(destination), **ip),
            UDP(src_port=4791 if inbound else 0xC123),
            Ethernet(dst=0, src=0),
        )
        bth = BTH(opcode=4, pkey=0xFFFF, dest_qp=0x11, psn=7)
        return Packet(route, bth, payload=payload).repaired()

    def arrived(self) -> Any:
        """Payload, ToS and source port of the next datagram at the plain socket."""
        payload, said, _, peer = self.plain.recvmsg(65535, 64)
        return payload, said[0][2][0], peer[1]

    def close(self) -> None:
        self.port.close()
        self.plain.close()


def number(address: Any) -> Any:
    return int.from_bytes(socket.inet_aton(address))


def payload_of(packet: Any) -> Any:
    return packet.build()[14 + 20 + 8 :]


@pytest.fixture
def ends() -> Iterator[Any]:
    made = Ends()
    yield made
    made.close()


# What the ICRC says.


@pytest.mark.parametrize(
    "name", ["rc-pingpong.pcap", "rcx-all-ops.pcap", "ud-pingpong.pcap", "srq-pingpong.pcap"]
)
def test_identifications_that_soft_roce_has_written_are_found_from_its_icrcs(name: str) -> None:
    numbers = []
    with open_capture(CAPTURES / name) as reader:
        for record in reader.records():
            if record.data[36:38] != (4791).to_bytes(2):
                continue
            packet = Packet.parse(record.data, record.link_type)
            ip = packet.route.ip
            route = replace(packet.route, ip=replace(ip, id=0))
            blank = replace(packet, route=route).repaired().computed_icrc()
            change = int.from_bytes(blank, "little") ^ int.from_bytes(packet.icrc, "little")
            # The rest of the IPv4 header, UDP, and all but the ICRC.
            after = 14 + 8 + packet.route.udp.length - 8 - 4
            assert two_bytes_behind(change, after) == ip.id.to_bytes(2)
            numbers.append(ip.id)

    assert len(set(numbers)) >= 20


@pytest.mark.parametrize("after", [0, 1, 3, 30, 1084, 4156, 65507])
def test_two_bytes_are_found_at_any_distance(after: int) -> None:
    source = random.Random(after)
    for _ in range(50):
        two = source.randbytes(2)
        assert two_bytes_behind(icrc_change(two, after), after) == two


def test_one_change_in_65536_is_that_of_two_bytes() -> None:
    source = random.Random("changes")
    found = sum(two_bytes_behind(source.getrandbits(32), 100) is not None for _ in range(20_000))

    assert found <= 3


# Receiving.


def test_datagram_becomes_the_frame_that_it_was(ends: Any) -> None:
    packet = ends.packet(inbound=True, dscp=26, ecn=1, ttl=64)
    ends.plain.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 26 << 2 | 1)
    ends.plain.sendto(payload_of(packet), (ends.own, 4791))

    assert ends.port.receive() == [packet.build()]


@pytest.mark.parametrize("identification", [1, 0x1234, 0xFFFF])
def test_identification_of_the_sender_is_found(ends: Any, identification: int) -> None:
    packet = ends.packet(inbound=True, id=identification)
    ends.plain.sendto(payload_of(packet), (ends.own, 4791))

    assert ends.port.receive() == [packet.build()]


def test_damaged_datagram_has_a_bad_icrc(ends: Any) -> None:
    payload = bytearray(payload_of(ends.packet(inbound=True)))
    payload[15] ^= 4
    ends.plain.sendto(payload, (ends.own, 4791))
    (frame,) = ends.port.receive()

    assert Packet.parse(frame).icrc_status() is CrcStatus.BAD
    assert frame[42:] == payload


def test_datagrams_arrive_in_order_and_in_batches(ends: Any) -> None:
    packets = [ends.packet(inbound=True, payload=bytes(4 * n)) for n in range(100)]
    for packet in packets:
        ends.plain.sendto(payload_of(packet), (ends.own, 4791))
    first = ends.port.receive()

    assert len(first) == ends.port.BATCH
    assert [*first, *ends.port.receive()] == [packet.build() for packet in packets]
    assert ends.port.receive() == []


def test_datagram_without_room_for_a_packet_is_counted(ends: Any) -> None:
    for size in (0, 4, 15):
        ends.plain.sendto(bytes(size), (ends.own, 4791))

    assert ends.port.receive() == []
    assert ends.port.counters["too_short"] == 3


def test_descriptor_is_readable_only_while_something_waits(ends: Any) -> None:
    def readable() -> bool:
        return bool(select.select([ends.port], [], [], 0)[0])

    before = readable()
    ends.plain.sendto(payload_of(ends.packet(inbound=True)), (ends.own, 4791))
    waiting = readable()
    ends.port.receive()

    assert (before, waiting, readable()) == (False, True, False)


def test_what_is_kept_of_senders_is_bounded(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UDPPort, "LIMIT", 4)
    packets = []
    for tos in range(0, 80, 4):
        packets.append(ends.packet(inbound=True, dscp=tos >> 2))
        ends.plain.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        ends.plain.sendto(payload_of(packets[-1]), (ends.own, 4791))

    assert ends.port.receive() == [packet.build() for packet in packets]
    assert len(ends.port._paths) <= 4


# Sending.


def test_datagram_leaves_with_source_port_and_tos_of_the_frame(ends: Any) -> None:
    packet = ends.packet(dscp=26, ecn=3)

    assert ends.port.send([packet.build()]) == 1
    assert ends.arrived() == (payload_of(packet), 26 << 2 | 3, 0xC123)
    assert ends.port.counters == {"sent": 1}


@pytest.mark.parametrize("ip", [{"id": 1}, {"id": 0xABCD}, {"df": 0}, {"id": 7, "df": 0}])
def test_icrc_follows_identification_and_flags_that_the_kernel_writes(ends: Any, ip: Any) -> None:
    ends.port.send([ends.packet(**ip).build()])

    assert ends.arrived()[0] == payload_of(ends.packet(id=0, df=1))


def test_source_port_of_somebody_else_is_replaced_and_the_icrc_follows(ends: Any) -> None:
    packet = ends.packet()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((ends.own, packet.route.udp.src_port))
        ends.port.send([packet.build()])

    payload, _, source_port = ends.arrived()
    udp = replace(packet.route.udp, src_port=4791)
    other = replace(packet, route=replace(packet.route, udp=udp)).repaired()
    assert (source_port, payload) == (4791, payload_of(other))


def test_sockets_for_source_ports_are_bounded(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UDPPort, "LIMIT_SOURCE_PORTS", 3)
    packet = ends.packet()
    for source_port in range(0xD000, 0xD008):
        udp = replace(packet.route.udp, src_port=source_port)
        other = replace(packet, route=replace(packet.route, udp=udp)).repaired()
        assert ends.port.send([other.build()]) == 1

    ports = [ends.arrived()[2] for _ in range(8)]
    assert ports == [0xD000, 0xD001, 0xD002] + [4791] * 5


def test_wrong_icrc_stays_wrong_by_the_same_bits(ends: Any) -> None:
    frame = bytearray(ends.packet(id=5).build())
    frame[-1] ^= 0x80
    ends.port.send([bytes(frame)])

    good = bytearray(payload_of(ends.packet(id=0)))
    good[-1] ^= 0x80
    assert ends.arrived()[0] == good


def short(ends: Any) -> bytes:
    """A sound frame with less than a BTH and an ICRC."""
    ip = IPv4(total_length=20 + 8 + 12, src=number(ends.own), dst=number(ends.other))
    ip = replace(ip, checksum=internet_checksum(ip.pack()))
    return Ethernet().pack() + ip.pack() + UDP(length=8 + 12).pack() + bytes(12)


def unsendable(ends: Any) -> Any:
    packet = ends.packet()
    route, frame = packet.route, packet.build()
    tagged = replace(route, eth=replace(route.eth, type=EtherType.VLAN), vlans=(VLAN(vid=5),))
    return {
        "a VLAN tag": replace(packet, route=tagged).repaired().build(),
        "RoCEv1": frame[:12] + b"\x89\x15" + frame[14:],
        "an address of others": ends.packet(inbound=True).build(),
        "a damaged header": frame[:22] + b"\x41" + frame[23:],
        "no room for a packet": short(ends),
        "a fragment": ends.packet(mf=1).build(),
        "no time to live": ends.packet(ttl=0).build(),
        "TCP": ends.packet(protocol=6).build(),
        "another port": frame[:36] + b"\x12\xb8" + frame[38:],
        "lengths that disagree": frame[:38] + b"\x00\x20" + frame[40:],
        "its end missing": frame[:-1],
        "nothing but Ethernet": frame[:14],
        "nothing": b"",
    }


def test_frames_that_no_socket_can_send_are_lost_and_counted(ends: Any) -> None:
    frames = unsendable(ends)
    last = ends.packet().build()
    taken = ends.port.send([*frames.values(), last])

    assert taken == len(frames) + 1
    assert ends.port.counters == {"not_udp": len(frames), "sent": 1}
    assert ends.arrived()[0] == last[42:]
    with pytest.raises(BlockingIOError):
        ends.arrived()
    assert any(f"{len(frames)} frames are lost" in each for each in ends.port.notes())


@pytest.mark.slow
def test_any_bytes_are_survived_in_both_directions(ends: Any) -> None:
    source = random.Random("udp port")
    good = ends.packet().build()
    for _ in range(3000):
        frame = bytearray(good)
        for _ in range(source.randrange(1, 4)):
            # Not the destination: nothing leaves for where it may be.
            place = source.choice([*range(30), *range(34, len(frame))])
            frame[place] = source.randrange(256)
        assert ends.port.send([bytes(frame[: source.randrange(10, len(frame) + 1)])]) == 1
        ends.plain.sendto(source.randbytes(source.randrange(100)), (ends.own, 4791))
        ends.port.receive()


def test_largest_packet_of_ip_fits(ends: Any) -> None:
    largest = ends.packet(payload=bytes(ends.port.mtu - 20 - 8 - 12 - 4 - 3))

    assert ends.port.send([largest.build()]) == 1
    assert ends.arrived()[0] == payload_of(largest)


# Opening.


def test_second_user_of_an_address_is_refused(ends: Any) -> None:
    with pytest.raises(LinkError, match=rf"^lo: {ends.own}: UDP port 4791 is taken"):
        UDPPort("lo", addresses=[ends.own])


def test_what_was_opened_is_closed_when_the_rest_fails(ends: Any) -> None:
    free = ends.own[:-1] + "3"
    with pytest.raises(LinkError, match="is taken"):
        UDPPort("lo", addresses=[free, ends.own])

    UDPPort("lo", addresses=[free]).close()


def test_address_that_this_machine_does_not_have_is_named() -> None:
    with pytest.raises(LinkError, match=r"192\.0\.2\.1: this machine does not have"):
        UDPPort("lo", addresses=["192.0.2.1"])


def test_missing_interface_is_named() -> None:
    with pytest.raises(LinkError, match="no such interface"):
        UDPPort("eth-none")
