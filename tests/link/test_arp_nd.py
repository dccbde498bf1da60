"""Own addresses on a link, held against what the Linux kernel says in the same place.

The frames of `KERNEL` are a dialogue of the kernels of two network namespaces (Linux 6.18,
`ibwire lab`): 10.0.0.1 and fd00::a00:1 ping 10.0.0.2 and fd00::a00:2, caches empty.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import LinkError, VerbsError
from ibwire.base.node import Frame, Grant
from ibwire.base.units import S, Time
from ibwire.capture import PcapWriter
from ibwire.link.arp_nd import NeighbourResponder
from ibwire.rc.device import gid_of

ARP_REQUEST = bytes.fromhex(
    "ffffffffffff 02000a000001 0806 0001 0800 0604 000102000a000001 0a000001 000000000000 0a000002"
)
ARP_REPLY = bytes.fromhex(
    "02000a000001 02000a000002 0806 0001 0800 0604 000202000a000002 0a000002 02000a000001 0a000001"
)
SOLICITATION = bytes.fromhex(
    "3333ff000002 02000a000001 86dd 60000000 0020 3a ff fd00000000000000000000000a000001"
    "ff0200000000000000000001ff000002 87005f97 00000000 fd00000000000000000000000a000002"
    "0101 02000a000001"
)
ADVERTISEMENT = bytes.fromhex(
    "02000a000001 02000a000002 86dd 60000000 0020 3a ff fd00000000000000000000000a000002"
    "fd00000000000000000000000a000001 8800f499 60000000 fd00000000000000000000000a000002"
    "0201 02000a000002"
)
ECHO_REQUEST = bytes.fromhex(
    "02000a000002 02000a000001 0800 45000021edfe4000400138db 0a000001 0a000002"
    "08007ac0396c0001 68656c6c6f"
)
ECHO_REPLY = bytes.fromhex("000082c0396c0001 68656c6c6f")
"""From the ICMP header on: of the IP header the sender chooses identification and DF."""
ECHO_REQUEST_V6 = bytes.fromhex(
    "02000a000002 02000a000001 86dd 60020f6f 000d 3a 40 fd00000000000000000000000a000001"
    "fd00000000000000000000000a000002 8000f472396d0001 68656c6c6f"
)
ECHO_REPLY_V6 = bytes.fromhex(
    "02000a000001 02000a000002 86dd 60000000 000d 3a 40 fd00000000000000000000000a000002"
    "fd00000000000000000000000a000001 8100f372396d0001 68656c6c6f"
)
"""The kernel's has a flow label of its own, 0xe44b8."""
REQUESTS = [ARP_REQUEST, SOLICITATION, ECHO_REQUEST, ECHO_REQUEST_V6]

MAC = {1: bytes.fromhex("02000a000001"), 2: bytes.fromhex("02000a000002")}
GIDS = {end: [gid_of(f"10.0.0.{end}"), gid_of(f"fd00::a00:{end}")] for end in (1, 2)}
STRANGER = bytes.fromhex("02000a000003")
TAG_5 = bytes.fromhex("81000005")
ROCE = MAC[2] + MAC[1] + bytes.fromhex("0800 4500") + bytes(7) + b"\x11" + bytes(40)


class Node:
    """Keeps what it receives, and sends what it is given."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.frames: list[Any] = []
        self.due = None
        self.handled: list[Any] = []

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.received.append(frame)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant | None = None) -> Frame | None:
        return self.frames.pop(0) if self.frames else None

    def poll_timeout(self) -> Time | None:
        return self.due

    def handle_timeout(self, now: Time) -> None:
        self.handled.append(now)
        self.due = None


def responder(end: int = 2, **more: Any) -> NeighbourResponder:
    return NeighbourResponder(Node(), MAC[end], [f"10.0.0.{end}", f"fd00::a00:{end}"], **more)


def sent(node: Any, now: Time = 0) -> Any:
    frames = []
    while (frame := node.poll_transmit(now)) is not None:
        frames.append(frame)
    return frames


def answers(frame: Frame, **more: Any) -> Any:
    node = responder(**more)
    node.receive(frame, 0)
    assert node.node.received == []  # type: ignore[attr-defined]
    return sent(node)


def changed(frame: Frame, place: Any, replacement: Any) -> Any:
    return frame[:place] + replacement + frame[place + len(replacement) :]


def tagged(frame: Frame, tag: Any = TAG_5) -> Any:
    return frame[:12] + tag + frame[12:]


def icmpv6(frame: Frame, **fields: Any) -> Any:
    """A frame with other fields, and the ICMPv6 checksum that belongs to them."""
    places = {"destination_mac": 0, "hop_limit": 21, "source": 22, "destination": 38}
    places |= {"type": 54, "code": 55, "flags": 58, "target": 62, "option": 78}
    for name, value in fields.items():
        frame = changed(frame, places[name], value)
    message = changed(frame[54:], 2, bytes(2))
    # RFC 1071 in the way of its section 1, in words.
    whole = frame[22:54] + len(message).to_bytes(4) + (58).to_bytes(4) + message
    whole += bytes(len(whole) % 2)
    total = sum(int.from_bytes(whole[at : at + 2]) for at in range(0, len(whole), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return changed(frame, 56, (total ^ 0xFFFF).to_bytes(2))


# Answering.


def test_who_asks_for_an_own_address_gets_the_kernels_answer() -> None:
    assert answers(ARP_REQUEST) == [ARP_REPLY]
    assert answers(SOLICITATION) == [ADVERTISEMENT]


def test_echo_is_answered_as_by_the_kernel() -> None:
    (reply,) = answers(ECHO_REQUEST)
    (reply_v6,) = answers(ECHO_REQUEST_V6)

    assert reply[:14] == MAC[1] + MAC[2] + b"\x08\x00"
    assert reply[26:] == bytes.fromhex("0a000002 0a000001") + ECHO_REPLY
    assert reply_v6 == ECHO_REPLY_V6


def test_nobody_is_answered_for_an_address_of_others() -> None:
    other = NeighbourResponder(Node(), MAC[2], ["10.0.0.3", "fd00::a00:3"])
    for frame in REQUESTS:
        other.receive(frame, 0)

    assert sent(other) == []
    assert other.neighbours == {}


def test_frames_for_other_mac_addresses_are_dropped() -> None:
    node = responder()
    for frame in (*REQUESTS, ROCE):
        node.receive(STRANGER + frame[6:], 0)

    assert sent(node) == []
    assert node.node.received == []  # type: ignore[attr-defined]
    assert node.counters == {"other_mac": 5}


def test_everything_else_is_the_nodes() -> None:
    node = responder()
    udp_v6 = changed(ECHO_REQUEST_V6, 20, b"\x11")
    frames = [ROCE, udp_v6, MAC[2] + MAC[1] + b"\x89\x15" + bytes(60), tagged(ROCE)]
    for frame in frames:
        node.receive(frame, 0)
    node.node.frames = [b"out"]  # type: ignore[attr-defined]

    assert node.node.received == frames  # type: ignore[attr-defined]
    assert sent(node) == [b"out"]


@pytest.mark.slow
def test_tshark_finds_every_checksum_good(tmp_path: Path) -> None:
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark not installed")
    node = responder()
    node.resolve(gid_of("10.0.0.9"))
    node.resolve(gid_of("fe80::9"))
    odd = icmpv6(ECHO_REQUEST_V6[:18] + b"\x00\x0c" + ECHO_REQUEST_V6[20:-1])
    for frame in (*REQUESTS, odd):
        node.receive(frame, 0)
    path = tmp_path / "answers.pcap"
    with PcapWriter(path) as writer:
        for frame in sent(node):
            writer.write(frame, 0)

    fields = ["ip.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status"]
    done = subprocess.run(
        [tshark, "-r", path, "-o", "ip.check_checksum:TRUE", "-T", "fields", "-E", "separator=,"]
        + [f"-e{name}" for name in (*fields, "_ws.malformed", "_ws.expert.message")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == [",,,,"] * 2 + [",,1,,"] * 4 + ["1,1,,,"]


def test_answers_that_wait_are_bounded() -> None:
    node = responder()
    for _ in range(node.LIMIT_ANSWERS + 10):
        node.receive(ECHO_REQUEST, 0)

    assert len(sent(node)) == node.LIMIT_ANSWERS
    assert node.counters == {"echo": node.LIMIT_ANSWERS, "not_answered": 10}


# What is not answered.


BROKEN = {
    "arp of another kind": changed(ARP_REQUEST, 14, b"\x00\x06"),
    "arp from a group": changed(ARP_REQUEST, 22, b"\x03"),
    "arp cut": ARP_REQUEST[:-1],
    "solicitation that a router has passed on": icmpv6(SOLICITATION, hop_limit=b"\xfe"),
    "solicitation with a bad checksum": changed(SOLICITATION, 56, b"\x5f\x98"),
    "solicitation with a code": icmpv6(SOLICITATION, code=b"\x01"),
    "solicitation for a group": icmpv6(SOLICITATION, target=b"\xff"),
    "solicitation with an empty option": icmpv6(SOLICITATION, option=b"\x01\x00"),
    "solicitation with a long option": icmpv6(SOLICITATION, option=b"\x01\x02"),
    "solicitation from nobody with an option": icmpv6(SOLICITATION, source=bytes(16)),
    "solicitation from a group": icmpv6(SOLICITATION, source=b"\xff\x02"),
    "solicitation cut": SOLICITATION[:-1],
    "solicitation without a target": icmpv6(
        changed(SOLICITATION[:70], 18, b"\x00\x10"), flags=bytes(4)
    ),
    "echo with a bad checksum": changed(ECHO_REQUEST, 36, b"\x7a\xc1"),
    "echo with a bad header checksum": changed(ECHO_REQUEST, 24, b"\x38\xdc"),
    "echo in fragments": changed(changed(ECHO_REQUEST, 20, b"\x60"), 24, b"\x18\xdb"),
    "echo cut": ECHO_REQUEST[:-1],
    "echo of ipv6 with a bad checksum": changed(ECHO_REQUEST_V6, 56, b"\xf4\x73"),
    "echo of ipv6 cut": ECHO_REQUEST_V6[:-1],
    "echo of ipv6 from an ipv4 address": icmpv6(
        ECHO_REQUEST_V6, source=bytes(10) + b"\xff\xff\x0a\x00\x00\x01"
    ),
}


@each_case("name", BROKEN)
def test_malformed_requests_are_counted_and_not_answered(name: str) -> None:
    node = responder()
    node.receive(BROKEN[name], 0)

    assert sent(node) == []
    assert node.counters == {"malformed": 1}
    assert node.neighbours == {}


def test_echo_from_a_group_is_not_answered() -> None:
    # 224.0.0.1 in the place of 10.0.0.1: 0xd600 more, so the checksum is so much less.
    frame = changed(
        changed(ECHO_REQUEST, 26, b"\xe0"), 24, (0x38DB - 0xD600 - 1 & 0xFFFF).to_bytes(2)
    )
    node = responder()
    node.receive(frame, 0)

    assert sent(node) == []
    assert node.counters == {}


@pytest.mark.slow
def test_any_bytes_are_survived() -> None:
    source = random.Random("responder")
    node = responder()
    node.resolve(GIDS[1][0])
    for number in range(20_000):
        frame = bytearray(REQUESTS[number % 4])
        for _ in range(source.randrange(1, 4)):
            frame[source.randrange(6, len(frame))] = source.randrange(256)
        node.receive(bytes(frame[: source.randrange(len(frame) + 1)]), 0)
        node.receive(icmpv6(bytes(frame)) if number % 2 else bytes(frame), 0)
        sent(node)

    assert len(node.neighbours) <= node.LIMIT


# Asking.


def test_questions_are_the_kernels_and_its_answers_are_learnt() -> None:
    node = responder(1)
    asked = [node.resolve(gid) for gid in GIDS[2]]

    assert sent(node) == [ARP_REQUEST, SOLICITATION]
    assert [each.mac for each in asked] == [None, None]
    node.receive(ARP_REPLY, 0)
    node.receive(ADVERTISEMENT, 0)
    assert [each.mac for each in asked] == [MAC[2]] * 2
    assert node.neighbours == dict.fromkeys(GIDS[2], MAC[2])
    assert node.poll_timeout() is None


def test_silent_peer_is_asked_three_times_a_second_apart_and_given_up() -> None:
    """RFC 4861 10: MAX_MULTICAST_SOLICIT, RETRANS_TIMER."""
    node = responder(1)
    asked = node.resolve(GIDS[2][0])
    now, times = 5 * S, []
    while not asked.failed:
        times += [now] * len(sent(node, now))
        now = node.poll_timeout()  # type: ignore[assignment]
        node.handle_timeout(now)

    assert times == [5 * S, 6 * S, 7 * S]
    assert now == 8 * S
    assert sent(node, now) == []
    assert node.poll_timeout() is None


def test_peer_that_was_given_up_can_be_asked_for_again() -> None:
    node = responder(1)
    node.resolve(GIDS[2][0])
    for now in range(4):
        sent(node, now * S)
        node.handle_timeout((now + 1) * S)
    again = node.resolve(GIDS[2][0])

    assert sent(node, 9 * S) == [ARP_REQUEST]
    assert not again.failed


def test_two_questions_for_one_peer_are_one() -> None:
    node = responder(1)

    assert node.resolve(GIDS[2][0]) is node.resolve(GIDS[2][0])
    assert sent(node) == [ARP_REQUEST]


def test_known_peer_and_group_are_not_asked_for() -> None:
    node = responder(1)
    node.resolve(GIDS[2][0])
    node.receive(ARP_REPLY, 0)

    assert node.resolve(GIDS[2][0]).mac == MAC[2]
    # RFC 1112 6.4 and RFC 2464 7.
    assert node.resolve(gid_of("224.1.2.3")).mac == bytes.fromhex("01005e010203")
    assert node.resolve(gid_of("ff02::1")).mac == bytes.fromhex("333300000001")
    assert sent(node) == []


def test_link_local_peer_is_asked_from_a_link_local_address() -> None:
    node = NeighbourResponder(Node(), MAC[1], ["fd00::1", "fe80::1"])
    node.resolve(gid_of("fe80::2"))
    node.resolve(gid_of("fd00::2"))

    sources = [frame[22:24].hex() for frame in sent(node)]
    assert sources == ["fe80", "fd00"]


def test_without_an_address_of_that_version_nobody_can_be_asked_for() -> None:
    node = NeighbourResponder(Node(), MAC[1], "10.0.0.1")

    with pytest.raises(LinkError, match="no own IPv6 address"):
        node.resolve(gid_of("fd00::2"))


def test_address_that_is_none_is_refused() -> None:
    with pytest.raises(VerbsError):
        NeighbourResponder(Node(), MAC[1], "nowhere")


# Learning.


def test_answers_to_questions_that_were_not_asked_are_not_believed() -> None:
    node = responder(1)
    node.receive(ARP_REPLY, 0)
    node.receive(ADVERTISEMENT, 0)

    assert node.neighbours == {}


def test_who_asks_for_us_is_known_afterwards() -> None:
    node = responder(2)
    node.receive(ARP_REQUEST, 0)
    node.receive(SOLICITATION, 0)

    assert node.neighbours == dict.fromkeys(GIDS[1], MAC[1])


def test_request_of_the_peer_answers_an_open_question() -> None:
    node = responder(2)
    asked = node.resolve(GIDS[1][0])
    node.receive(ARP_REQUEST, 0)

    assert asked.mac == MAC[1]
    assert sent(node) == [ARP_REPLY]


def test_neighbours_are_bounded_and_the_newest_stay() -> None:
    node = responder(2)
    for number in range(node.LIMIT + 5):
        node.receive(changed(ARP_REQUEST, 28, (0x0B000000 + number).to_bytes(4)), 0)
        sent(node)

    assert len(node.neighbours) == node.LIMIT
    assert gid_of("11.0.0.4") not in node.neighbours
    assert {gid_of("11.0.0.5"), gid_of("11.0.4.4")} <= node.neighbours.keys()


def test_others_with_our_address_are_counted_and_not_believed() -> None:
    gratuitous = changed(ARP_REQUEST, 28, bytes((10, 0, 0, 2)))
    theirs = icmpv6(
        ADVERTISEMENT,
        destination_mac=bytes.fromhex("333300000001"),
        destination=bytes.fromhex("ff020000000000000000000000000001"),
        flags=bytes.fromhex("20000000"),
    )
    node = responder(2)
    node.receive(gratuitous, 0)
    node.receive(theirs, 0)

    assert node.counters == {"conflict": 2}
    assert node.neighbours == {}
    assert sent(node) == []


def test_advertisement_to_a_group_that_claims_to_be_solicited_is_malformed() -> None:
    """RFC 4861 7.1.2."""
    theirs = icmpv6(
        ADVERTISEMENT,
        destination_mac=bytes.fromhex("333300000001"),
        destination=bytes.fromhex("ff020000000000000000000000000001"),
    )
    node = responder(1)
    asked = node.resolve(GIDS[2][1])
    node.receive(theirs, 0)

    assert node.counters == {"malformed": 1}
    assert asked.mac is None


def test_whether_an_own_address_is_free_is_answered_and_teaches_nothing() -> None:
    """An ARP probe: RFC 5227 1.1; duplicate address detection: RFC 4862 5.4, RFC 4861 7.2.4."""
    probe = changed(ARP_REQUEST, 28, bytes(4))
    shorter = changed(SOLICITATION[:78], 18, b"\x00\x18")
    detection = icmpv6(shorter, source=bytes(16))
    node = responder(2)
    node.receive(probe, 0)
    node.receive(detection, 0)
    reply, advertisement = sent(node)

    assert reply == changed(ARP_REPLY, 38, bytes(4))
    assert advertisement == icmpv6(
        ADVERTISEMENT,
        destination_mac=bytes.fromhex("333300000001"),
        destination=bytes.fromhex("ff020000000000000000000000000001"),
        flags=bytes.fromhex("20000000"),  # override alone
    )
    assert node.neighbours == {}


# VLANs.


def test_in_a_vlan_questions_and_answers_carry_its_tag() -> None:
    node = responder(2, vlan=5)
    node.receive(tagged(ARP_REQUEST), 0)
    node.receive(tagged(SOLICITATION), 0)
    node.resolve(gid_of("10.0.0.9"))
    frames = sent(node)

    assert frames[:2] == [tagged(ARP_REPLY), tagged(ADVERTISEMENT)]
    assert frames[2][12:16] == TAG_5


@each_case(
    ("vlan", "frame", "answered"),
    [
        (5, ARP_REQUEST, False),
        (5, tagged(ARP_REQUEST, bytes.fromhex("81000006")), False),
        (5, tagged(ARP_REQUEST, bytes.fromhex("8100e005")), True),
        (None, tagged(ARP_REQUEST), False),
        (None, tagged(ARP_REQUEST, bytes.fromhex("8100e000")), True),
    ],
    ids=["untagged", "another", "with a priority", "none of ours", "priority only"],
)
def test_requests_of_other_vlans_are_not_ours(
    vlan: int | None, frame: Frame, answered: bool
) -> None:
    assert bool(answers(frame, vlan=vlan)) is answered


# As a node.


def test_timeouts_of_the_node_and_of_questions_are_both_kept() -> None:
    node = responder(1)
    node.node.due = 7 * S // 10  # type: ignore[attr-defined]
    node.resolve(GIDS[2][0])
    sent(node, 0)

    first = node.poll_timeout()
    node.handle_timeout(first)
    second = node.poll_timeout()
    node.handle_timeout(second)

    assert (first, second) == (7 * S // 10, S)
    assert node.node.handled == [first]  # type: ignore[attr-defined]
    assert sent(node, second) == [ARP_REQUEST]


def test_answers_wait_for_a_grant() -> None:
    class Nothing:
        def allows(self, lane: int, size: int) -> bool:
            return False

    node = responder(2)
    node.receive(ARP_REQUEST, 0)

    assert node.poll_transmit(0, 0, Nothing()) is None
    assert sent(node) == [ARP_REPLY]
