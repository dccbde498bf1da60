"""Every kind of port against every other, on a veth pair and on a loopback interface."""

from __future__ import annotations

import pytest

from ibwire.base.errors import LinkError
from ibwire.lab.veth import ADDRESSES, Lab
from ibwire_layers.packet import CrcStatus, Packet
from live.sides import UNPRIVILEGED, exchange, inside, peer, result_line, start

try:
    import pcapy
except ImportError:
    pcapy = None

needs_pcapy = pytest.mark.skipif(pcapy is None, reason="pcapy-ng not installed")


KINDS = [
    ("udp", "udp"),
    ("udp", "afpacket"),
    ("afpacket", "udp"),
    pytest.param("pcap", "afpacket", marks=needs_pcapy),
    pytest.param("udp", "pcap", marks=needs_pcapy),
]


@pytest.mark.parametrize("version", [0, 1], ids=["v4", "v6"])
@pytest.mark.parametrize(("a", "b"), KINDS)
def test_every_byte_arrives_between_ports_of_all_kinds(lab, started, a, b, version):
    exchange(
        lab,
        started,
        {"port": a, "address": ADDRESSES["a"][version]},
        {"port": b, "address": ADDRESSES["b"][version]},
    )


@pytest.mark.parametrize(("a", "b"), [("udp", "afpacket"), ("afpacket", "udp")])
def test_identifications_that_are_counted_up_do_not_disturb_sockets(lab, started, a, b):
    """The `rxe` profile numbers its packets, the kernel of a socket does not."""
    exchange(
        lab,
        started,
        {"port": a, "address": ADDRESSES["a"][0]},
        {"port": b, "address": ADDRESSES["b"][0]},
        profile="rxe",
        mtu=4096,
    )


def test_two_processes_on_loopback_need_no_right(lab, started):
    exchange(
        lab,
        started,
        {"address": "127.0.0.1"},
        {"address": "127.0.0.2"},
        sides="aa",
        prefix=("-c", UNPRIVILEGED),
        port="udp",
        device="lo",
    )


@pytest.mark.parametrize("kind", ["afpacket", pytest.param("pcap", marks=needs_pcapy)])
def test_every_byte_arrives_with_a_vlan_tag(lab, started, kind):
    exchange(
        lab,
        started,
        {"port": kind, "address": ADDRESSES["a"][0]},
        {"port": "afpacket", "address": ADDRESSES["b"][0]},
        vlan=5,
    )


FRAMES = """
from ibwire.rc.device import gid_of
from ibwire.rc.path import Path, ethernet_route

def frames(**how):
    route = ethernet_route(
        source=gid_of("10.0.0.1"), destination=gid_of("10.0.0.2"),
        source_mac=bytes.fromhex("02000a000001"), destination_mac=bytes.fromhex("02000a000002"),
        source_port=0xC123, **how)
    path = Path(route, counts_identification=True)
    send = bytes.fromhex("0400ffff0000001100000007")
    return [path.frame(send + bytes(4 * number)) for number in range(4)]
"""

TELL_FRAMES = (
    FRAMES
    + """
import select, sys
from ibwire.link.{module} import {name}
with {name}("veth-b") as port:
    {first}
    print("ready", flush=True)
    found = []
    while len(found) < {count}:
        assert select.select([port], [], [], 10)[0]
        found += port.receive()
    print(*(frame.hex() for frame in found))
"""
)


def taken_by(lab, started, module, name, count, first=""):
    """A process on side b that reports the frames that its port receives.

    first: called with the port before.
    """
    script = TELL_FRAMES.format(module=module, name=name, count=count, first=first)
    process = start(lab, started, "b", "-c", script)
    assert process.stdout.readline() == "ready\n"
    return process


TELL_TIMES = (
    FRAMES
    + """
import sys
from ibwire.link import afpacket
from ibwire.link.{module} import {name}
afpacket.stamp_all_frames = lambda name: None
with {name}("veth-b"{timed}) as port:
    print("ready", flush=True)
    sys.stdin.readline()
    received = port.receive()
    assert len(received) == 8
    assert sum(frame[12:14] == bytes.fromhex("8100") for frame in received) == {tagged}
    assert port.counters["not_stamped"] == (8 if "hardware" in "{timed}" else 0)
    print(*port.arrival_ns)
"""
)


@pytest.mark.parametrize(
    ("module", "name", "tagged", "timed"),
    [
        ("afpacket", "AFPacketPort", "vlan=5", ", timed=True"),
        # A veth gives no hardware stamps, so the kernel's times are taken.
        ("afpacket", "AFPacketPort", "vlan=5", ", timed=True, hardware_stamps=True"),
        ("udp", "UDPPort", "", ", timed=True"),
        pytest.param("pcap", "PcapPort", "vlan=5", "", marks=needs_pcapy),
    ],
)
def test_kernel_knows_when_frames_have_arrived(lab, started, module, name, tagged, timed):
    """They are taken only later; a VLAN tag comes with the time."""
    script = TELL_TIMES.format(module=module, name=name, timed=timed, tagged=4 if tagged else 0)
    taking = start(lab, started, "b", "-c", script)
    assert taking.stdout.readline() == "ready\n"
    before, after = inside(
        lab,
        FRAMES
        + "import time\n"
        + "from ibwire.link.afpacket import AFPacketPort\n"
        + "with AFPacketPort('veth-a') as port:\n"
        + "    before = time.time_ns()\n"
        + f"    assert port.send(frames() + frames({tagged})) == 8\n"
        + "    time.sleep(0.05)\n"
        + "    print(before, time.time_ns())\n",
    ).split()
    output, _ = taking.communicate("take them\n", timeout=20)

    times = [int(each) for each in output.split()]
    assert len(times) == 8
    assert int(before) < times[0] <= times[-1] < int(after)
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("module", "name"),
    [("afpacket", "AFPacketPort"), pytest.param("pcap", "PcapPort", marks=needs_pcapy)],
)
def test_vlan_tags_arrive_as_they_were_sent(lab, started, module, name):
    """The kernel takes the outer tag off every frame that it receives."""
    taking = taken_by(lab, started, module, name, 12)
    sent = inside(
        lab,
        FRAMES
        + "from ibwire.link.afpacket import AFPacketPort\n"
        + "tagged = frames(vlan=5, priority=3)\n"
        + "double = [frame[:12] + b'\\x88\\xa8' + frame[14:] for frame in frames(vlan=4095)]\n"
        + "everything = [*tagged, *frames(), *double]\n"
        + "with AFPacketPort('veth-a') as port:\n"
        + "    assert port.send(everything) == 12\n"
        + "print(*(frame.hex() for frame in everything))\n",
    )

    assert result_line(taking).split() == sent.split()


@pytest.mark.parametrize(
    ("module", "name"),
    [("afpacket", "AFPacketPort"), pytest.param("pcap", "PcapPort", marks=needs_pcapy)],
)
def test_port_does_not_hear_what_its_machine_sends(lab, started, module, name):
    first = (
        "import socket; other = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); "
        "other.bind(('veth-b', 0)); [other.send(frame) for frame in frames(vlan=9)]; "
        "port.send(frames(vlan=9))"
    )
    taking = taken_by(lab, started, module, name, 4, first)
    sent = inside(
        lab,
        FRAMES
        + "from ibwire.link.afpacket import AFPacketPort\n"
        + "with AFPacketPort('veth-a') as port:\n    port.send(frames())\n"
        + "print(*(frame.hex() for frame in frames()))\n",
    )

    assert result_line(taking).split() == sent.split()


def test_what_a_socket_sends_has_identification_0_df_and_a_good_icrc(lab, started):
    """Frames of the port and of the kernel, seen by a packet socket at the other end."""
    taking = taken_by(lab, started, "afpacket", "AFPacketPort", 4)
    inside(
        lab,
        FRAMES
        + "from ibwire.link.udp import UDPPort\n"
        + "with UDPPort('veth-a') as port:\n"
        + "    assert port.send(frames(traffic_class=0x6A, hop_limit=9)) == 4\n"
        + "    assert port.counters == {'sent': 4}\n",
    )

    packets = [Packet.parse(bytes.fromhex(frame)) for frame in result_line(taking).split()]
    assert len(packets) == 4
    for packet in packets:
        ip, udp = packet.route.ip, packet.route.udp
        assert (ip.id, ip.df, ip.ttl, ip.dscp << 2 | ip.ecn) == (0, 1, 9, 0x6A)
        assert (udp.src_port, udp.checksum) == (0xC123, 0)
        assert packet.icrc_status() is CrcStatus.GOOD


def test_socket_without_room_becomes_readable_when_there_is_some(lab):
    """Packets for a neighbour that does not answer wait in the kernel, and count as unsent."""
    said = inside(
        lab,
        FRAMES.replace("10.0.0.2", "10.0.0.77")
        + "import select, subprocess\n"
        + "from ibwire.link.udp import UDPPort\n"
        + "def readable(): return bool(select.select([port], [], [], 0)[0])\n"
        + "with UDPPort('veth-a', buffer=1) as port:\n"
        + "    wanted = frames() * 50\n"
        + "    taken = port.send(wanted)\n"
        + "    print(0 < taken < 200, readable(), port.send(wanted[taken:]))\n"
        + "    subprocess.run('ip neigh replace 10.0.0.77 lladdr 02:00:0a:00:00:02 dev veth-a'\n"
        + "                   .split(), check=True)\n"
        + "    select.select([port], [], [], 10)\n"
        + "    print(readable(), port.receive(), readable())\n"
        + "    print(port.send(wanted[taken:]) == 200 - taken, port.counters['sent'])\n"
        + "    subprocess.run('ip neigh del 10.0.0.77 dev veth-a'.split(), check=True)\n",
    )

    assert said.splitlines() == ["True False 0", "True [] False", "True 200"]


def test_packet_longer_than_the_mtu_is_a_link_error_with_the_path_mtu(lab):
    said = inside(
        lab,
        FRAMES.replace("4 * number", "9000")
        + "from ibwire.base.errors import LinkError\n"
        + "from ibwire.link.udp import UDPPort\n"
        + "try:\n    UDPPort('veth-a').send(frames())\n"
        + "except LinkError as error:\n    print(error)\n",
    )

    assert said.startswith(
        "veth-a: a packet of 9044 bytes does not fit its MTU of 9000, which allows a path MTU of "
        "4096"
    )


def opening(port, module, name):
    return (
        "from ibwire.base.errors import LinkError\n"
        f"from ibwire.link.{module} import {name}\n"
        f"try:\n    {port}\n"
        "except LinkError as error:\n    print(error)\n"
    )


def test_udp_port_that_a_packet_socket_holds_is_taken(lab, started):
    peer(lab, started, "a", "wait", address=ADDRESSES["a"][0], peer=ADDRESSES["b"][0])

    said = inside(lab, opening("UDPPort('veth-a')", "udp", "UDPPort"))

    assert said.startswith("veth-a: 10.0.0.1: UDP port 4791 is taken: by another RoCE stack")


@needs_pcapy
def test_filter_of_the_user_decides_what_arrives(lab, started):
    script = TELL_FRAMES.replace('{name}("veth-b")', "PcapPort('veth-b', filter='greater 60')")
    taking = start(
        lab,
        started,
        "b",
        "-c",
        script.format(module="pcap", name="PcapPort", count=3, first=""),
    )
    assert taking.stdout.readline() == "ready\n"
    inside(
        lab,
        FRAMES
        + "from ibwire.link.afpacket import AFPacketPort\n"
        + "with AFPacketPort('veth-a') as port:\n    port.send(frames())\n",
    )

    assert [len(frame) // 2 for frame in result_line(taking).split()] == [62, 66, 70]


@needs_pcapy
def test_filter_that_libpcap_does_not_know_is_a_link_error(lab):
    said = inside(lab, opening("PcapPort('veth-a', filter='no filter')", "pcap", "PcapPort"))

    assert said.startswith("veth-a: libpcap: can't parse filter expression")


@needs_pcapy
def test_missing_right_for_libpcap_is_named(lab):
    drop = UNPRIVILEGED.partition("sys.argv")[0]

    said = inside(lab, drop + opening("PcapPort('veth-a')", "pcap", "PcapPort"))

    assert "CAP_NET_RAW" in said


@pytest.mark.parametrize(
    ("module", "name"),
    [("udp", "UDPPort"), pytest.param("pcap", "PcapPort", marks=needs_pcapy)],
)
def test_link_that_goes_down_is_a_link_error_when_it_is_used(module, name):
    try:
        own = Lab.create()
    except LinkError as error:
        pytest.skip(f"no lab: {error}")
    with own:
        told = inside(
            own,
            FRAMES
            + "import subprocess\n"
            + "from ibwire.base.errors import LinkError\n"
            + f"from ibwire.link.{module} import {name}\n"
            + f"port = {name}('veth-a')\n"
            + "subprocess.run('ip link set veth-a down'.split(), check=True)\n"
            + "try:\n    port.send(frames())\n"
            + "except LinkError as error:\n    print(error)\n",
        )

    assert told == "veth-a: has gone down"
