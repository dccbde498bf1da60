"""What goes to a device on a link and comes from it: damaged frames, addresses, the rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from each_case import each_case
from fuzz.across import Across
from ibwire.base.units import MS
from ibwire.drill.targets.target import Unable
from ibwire.fuzz.case import CaseError, Connection, Packet, Post, Value
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.link.device_link import damaged
from ibwire.fuzz.targets.link.frames import Pacer, behind_ip, check_addressee, transport
from ibwire.fuzz.targets.link.manager_link import ManagerLink
from ibwire.fuzz.targets.link.verbs_link import LinkDevice, VerbsLink
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.rc.device import Device
from ibwire.rc.path import Path
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

MAC, OWN_MAC = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")

PEER = "10.0.0.2"

BINDING = Binding("10.0.0.1", PEER, (OWN_MAC, MAC))

TAG = bytes.fromhex("81006000")
"""A priority tag (IEEE 802.1Q): VLAN 0, priority 3."""


def frame(**fields: Value) -> bytes:
    """A WRITE of 8 bytes: BTH, RETH and payload are 36 bytes."""
    given = {name.replace("_", ".", 1): value for name, value in fields.items()}
    step = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8, fields=given)
    return BINDING.frame(step, 0, Emulation(Connection()).symbols)


def with_total_length(whole: bytes, length: int) -> bytes:
    return whole[:16] + length.to_bytes(2) + whole[18:]


def datagram(size: int) -> bytes:
    """IPv4 and UDP with this many bytes after them."""
    whole = with_total_length(frame(), 28 + size)
    return whole[: 42 + size]


def target(**link: Any) -> LinkDevice:
    """A link whose connection is not needed."""
    found = LinkDevice.__new__(LinkDevice)
    found._link = SimpleNamespace(path=Path(BINDING.route), **link)  # type: ignore[assignment]
    return found


# What comes.


def test_a_frame_holds_its_transport_with_a_tag_or_padding_or_without() -> None:
    plain = frame()
    inside = plain[42:-4]

    assert len(inside) == 36
    assert transport(plain) == inside
    assert transport(plain + bytes(10)) == inside
    assert transport(plain[:12] + TAG + plain[12:]) == inside


@each_case(
    "odd",
    [
        *(datagram(size) for size in (0, 4, 8, 15)),
        *(with_total_length(frame(), length) for length in (0, 20, 28, 69, 0xFFFF)),
        *(frame()[:size] for size in (0, 13, 14, 33)),
        frame(eth_type=0x86DD),
    ],
)
def test_frame_without_room_for_a_bth_stays_unchanged(odd: bytes) -> None:
    assert transport(odd) is None
    assert target()._with_usual_headers(odd) == odd


def test_the_smallest_packet_is_a_bth_and_an_icrc() -> None:
    assert transport(datagram(16)) == frame()[42:54]


# What is sent.


def check(whole: bytes) -> None:
    check_addressee(whole, mac=MAC, own_mac=OWN_MAC, address=PEER)


def test_the_peer_is_sent_to() -> None:
    check(frame())
    check(frame(ip_src=0x0A000009))
    check(frame(eth_type=0x8915))


@each_case(
    "fields",
    [
        {"eth_dst": 0x010000C28001},
        {"eth_src": 0x020000000099},
        {"ip_dst": 0x08080808},
        {"ip_dst": 0xFFFFFFFF},
        {"eth_type": 0x86DD},
    ],
)
def test_frames_go_to_the_peer_only(fields: dict[str, Value]) -> None:
    with pytest.raises(CaseError, match="only the peer is sent to"):
        check(frame(**fields))


PEER6, OWN6 = "fd00::2", "fd00::1"

BINDING6 = Binding(OWN6, PEER6, (OWN_MAC, MAC))


def frame6(**fields: Value) -> bytes:
    """The same WRITE over IPv6."""
    given = {name.replace("_", ".", 1): value for name, value in fields.items()}
    step = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8, fields=given)
    return BINDING6.frame(step, 0, Emulation(Connection()).symbols)


def test_a_frame_of_ipv6_holds_the_same_transport() -> None:
    """40 bytes of header instead of 20 (RFC 8200 3)."""
    inside = frame()[42:-4]

    assert frame6()[62:-4] == inside
    assert transport(frame6()) == behind_ip(frame6()) == inside
    assert transport(frame6()[:12] + TAG + frame6()[12:]) == inside
    assert transport(frame6()[:53]) is None


def test_a_peer_with_an_ipv6_address_alone_is_sent_to() -> None:
    check_addressee(frame6(), mac=MAC, own_mac=OWN_MAC, address=PEER6)

    for whole in (frame6(ip_dst=1), frame()):
        with pytest.raises(CaseError, match=r"a packet to .*: only the peer is sent to"):
            check_addressee(whole, mac=MAC, own_mac=OWN_MAC, address=PEER6)


@pytest.mark.parametrize("vlan", [None, 5])
@pytest.mark.parametrize(("peer", "own"), [(PEER, "10.0.0.1"), (PEER6, OWN6)])
def test_received_frame_is_reproduced_as_it_was_on_the_wire(
    peer: str, own: str, vlan: int | None
) -> None:
    """Sent frames have the tag of the VLAN after their addresses."""
    link = across(peer, own, vlan)
    step = Packet(int(OpCode.RC_SEND_ONLY), length=4)
    said = Binding(peer, own, (MAC, OWN_MAC)).frame(step, 0, Emulation(Connection()).symbols)
    inside = transport(said)
    assert inside is not None

    usual = link.path.frame(inside)
    assert usual[12:14] == bytes.fromhex("0800")
    assert link.as_received(usual) == said
    assert link.as_received(damaged(usual)) == damaged(said)
    assert link.as_received(said[:50]) == said[:50]
    link.send(whole := link.binding.frame(step, 0, Emulation(Connection()).symbols))
    tag = b"" if vlan is None else bytes.fromhex("81000005")
    assert list(link.tap.leaving) == [whole[:12] + tag + whole[12:]]


def across(peer: str, own: str, vlan: int | None) -> ManagerLink:
    """A link for a peer that is not there."""
    endpoint: Any = Across()
    endpoint.device = Device("here", own, mac=OWN_MAC, vlan=vlan)
    endpoint.gid_towards = lambda gid: endpoint.device.neighbours.update({gid: MAC}) or 0
    endpoint.run = lambda **how: None
    return ManagerLink(endpoint, peer, 7174)


@pytest.mark.parametrize("tags", [TAG, TAG * 2, bytes.fromhex("88a80000") + TAG])
def test_a_tag_does_not_hide_an_address(tags: bytes) -> None:
    whole = frame(ip_dst=0x08080808)

    with pytest.raises(CaseError, match=r"a packet to 8\.8\.8\.8: only the peer is sent to"):
        check(whole[:12] + tags + whole[12:])


def test_a_bench_checks_what_it_sends() -> None:
    link = VerbsLink.__new__(VerbsLink)
    link.macs, link.peer = (MAC, OWN_MAC), PEER

    with pytest.raises(CaseError, match="only the peer is sent to"):
        link.send(frame(ip_dst=0x08080808))


def test_packets_keep_to_the_rate_over_time() -> None:
    """Pauses of 10 ms; after a late one the next may be early by 1 ms."""
    pacer = Pacer(100)

    assert pacer.pause(5 * MS) == 9 * MS
    assert pacer.pause(14 * MS) == 10 * MS
    assert pacer.pause(100 * MS) == 9 * MS


# The application.


class Refusing:
    """An agent that has not got an operation."""

    def __init__(self) -> None:
        self.regions = {"outbox": SimpleNamespace(va=0, lkey=1)}

    def post_send(self, request: object) -> None:
        raise Unable("no work request with opcode 14")


def test_request_that_an_agent_cannot_post_is_not_a_crash() -> None:
    found = target()
    found._is_under_way = False
    found._posted = 0
    found._verbs = Refusing()  # type: ignore[assignment]

    with pytest.raises(CaseError, match="no work request with opcode 14"):
        found.post_send(Post(int(WROpcode.FLUSH), 8))


def test_addresses_of_an_emulation_are_other_ones() -> None:
    """A frame of an emulated network is not for a device on a link."""
    step = Packet(int(OpCode.RC_SEND_ONLY))
    emulated = Binding(PEER_ADDRESS, ADDRESS).frame(step, 0, Emulation(Connection()).symbols)

    with pytest.raises(CaseError, match="only the peer is sent to"):
        check(emulated)
