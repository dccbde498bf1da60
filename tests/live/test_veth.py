"""Emulated devices on real interfaces: a veth pair in separate network namespaces.

Live tests: they take real time, a few seconds in all, and wait for other processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ibwire.base.errors import LinkError
from ibwire.lab.veth import ADDRESSES, INTERFACES, VARIABLE, Lab

PEER = Path(__file__).parent / "peer.py"
DUMPCAP = shutil.which("dumpcap")
TSHARK = shutil.which("tshark")
PATIENCE = 20
"""Seconds that anything may take here."""


def peer(lab, started, side, role, *, mtu=1024, version=0, **more):
    """Start one of the two processes; returns it, and its first output."""
    other = "b" if side == "a" else "a"
    wanted = {
        "role": role,
        "device": INTERFACES[side],
        "address": ADDRESSES[side][version],
        "peer": ADDRESSES[other][version],
        "mtu": mtu,
        **more,
    }
    process = subprocess.Popen(
        lab.command(side, [sys.executable, str(PEER), json.dumps(wanted)]),
        env=lab.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process, json.loads(process.stdout.readline())


def result(process, said=""):
    output, _ = process.communicate(said, timeout=PATIENCE)
    return json.loads(output)


def exchange(lab, started, **kind):
    """WRITE, SEND and READ between the two sides; what the requester and the responder say."""
    responder, facts = peer(lab, started, "b", "respond", **kind)
    requester, _ = peer(
        lab, started, "a", "request", rkey=facts["rkey"], iova=facts["iova"], **kind
    )
    return result(requester), result(responder, "over")


def inside(lab, script, side="a"):
    """Run Python inside; what it prints."""
    done = subprocess.run(
        lab.command(side, [sys.executable, "-c", script]),
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def open_port(name, arguments=""):
    """A script that opens a port and prints why it cannot."""
    return (
        "from ibwire.base.errors import LinkError\n"
        "from ibwire.link.afpacket import AFPacketPort\n"
        f"try:\n    AFPacketPort({name!r}{arguments})\n"
        "except LinkError as error:\n    print(error)\n"
    )


@pytest.mark.parametrize(
    ("mtu", "version"), [(256, 0), (1024, 1), (4096, 0)], ids=["256-v4", "1024-v6", "4096-v4"]
)
def test_every_byte_of_write_send_and_read_arrives(lab, started, mtu, version):
    requester, responder = exchange(lab, started, mtu=mtu, version=version)

    assert requester["ended"] == responder["ended"] == "stopped"
    assert requester["statuses"] == ["SUCCESS"] * 3
    assert responder["statuses"] == ["SUCCESS"]
    assert (requester["read"], responder["sent"], responder["written"]) == (True, True, True)
    assert requester["counters"] == responder["counters"] == {}


@pytest.mark.skipif(DUMPCAP is None or TSHARK is None, reason="dumpcap or tshark not installed")
@pytest.mark.parametrize("version", [0, 1], ids=["v4", "v6"])
def test_captured_frames_have_good_icrcs_and_tshark_reads_them(lab, started, tmp_path, version):
    capture = tmp_path / "veth.pcapng"
    dumpcap = subprocess.Popen(
        lab.command(
            "a", [DUMPCAP, "-q", "-i", INTERFACES["a"], "-f", "udp port 4791", "-w", str(capture)]
        ),
        env=lab.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(dumpcap)
    line = dumpcap.stderr.readline()
    while line and not line.startswith("File:"):
        line = dumpcap.stderr.readline()

    requester, _ = exchange(lab, started, version=version)
    wanted = requester["frames"]
    end = time.monotonic() + PATIENCE
    while len(dissected(capture)) < wanted and time.monotonic() < end:
        time.sleep(0.1)
    dumpcap.send_signal(signal.SIGINT)
    dumpcap.communicate(timeout=PATIENCE)

    rows = dissected(capture)
    assert len(rows) == wanted
    assert {row["icrc.status"] for row in rows} == {"good"}
    fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "_ws.malformed"]
    tshark = subprocess.run(
        [TSHARK, "-r", capture, "-T", "fields", *(f"-e{name}" for name in fields)],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = [line.split("\t") for line in tshark.stdout.splitlines()]
    ours = [[str(row["bth.opcode"]), str(row["bth.psn"]), ""] for row in rows]
    assert ours == theirs


def dissected(capture):
    done = subprocess.run(
        [sys.executable, "-m", "ibwire", "dissect", "--json", str(capture)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_sleeping_process_cleanly(lab, started, number):
    process, _ = peer(lab, started, "b", "wait")

    process.send_signal(number)

    assert result(process) == {"ended": "signal", "signal": number}
    assert process.returncode == 0


def test_port_has_the_addresses_of_its_interface(lab, started):
    process, facts = peer(lab, started, "b", "respond")

    assert facts["addresses"][:2] == list(ADDRESSES["b"])
    process.kill()


def test_missing_interface_is_named_with_those_that_exist(lab):
    said = inside(lab, open_port("eth9"))

    assert said == "eth9: no such interface; existing ones: lo, veth-a"


@pytest.mark.parametrize("name", ["", "a/b", "x" * 300, "nul\0", "\udcff"])
def test_impossible_name_is_a_link_error(name):
    from ibwire.link.interface import interface

    with pytest.raises(LinkError, match="no such interface"):
        interface(name)


def test_second_user_of_the_udp_port_is_refused(lab, started):
    peer(lab, started, "a", "wait")

    assert "UDP port 4791 is in use" in inside(lab, open_port(INTERFACES["a"]))


def test_missing_right_is_named(lab):
    drop = (
        "import ctypes\n"
        "class Header(ctypes.Structure): _fields_ = [('v', ctypes.c_uint32), ('p', ctypes.c_int)]\n"
        "# capset(2) with _LINUX_CAPABILITY_VERSION_3 and no capability at all.\n"
        "assert not ctypes.CDLL(None).capset(\n"
        "    ctypes.byref(Header(0x20080522, 0)), (ctypes.c_uint32 * 6)())\n"
    )

    assert "CAP_NET_RAW" in inside(lab, drop + open_port(INTERFACES["a"]))


def test_frame_longer_than_the_mtu_is_a_link_error_with_the_path_mtu(lab):
    said = inside(
        lab,
        "from ibwire.base.errors import LinkError\n"
        "from ibwire.link.afpacket import AFPacketPort\n"
        f"with AFPacketPort({INTERFACES['a']!r}) as port:\n"
        "    try:\n        port.send([bytes(14 + 9001)])\n"
        "    except LinkError as error:\n        print(error)\n"
        "    print(port.send([bytes(14 + 9000)] * 3))",
    )

    problem, taken = said.splitlines()
    assert problem.endswith(
        "a packet of 9001 bytes does not fit its MTU of 9000, which allows a path MTU of 4096"
    )
    assert taken == "3"


KERNEL_ANSWERS = """
import select, socket
from ibwire.link.afpacket import AFPacketPort
listening = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
with AFPacketPort("veth-a", hold_port=False) as port:
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.sendto(bytes(24), ("10.0.0.2", 4791))
    print(bool(select.select([listening], [], [], 0.5)[0]))
"""


def test_kernel_answers_roce_with_icmp_errors_unless_the_port_is_held(lab, started):
    unheld = inside(lab, KERNEL_ANSWERS)
    peer(lab, started, "b", "wait")
    held = inside(lab, KERNEL_ANSWERS)

    assert (unheld, held) == ("True", "False")


def test_link_that_is_down_at_either_end_is_named(runtime):
    with build() as own:
        set_link = (
            "import subprocess\nsubprocess.run(['ip', 'link', 'set', '{}', '{}'], check=True)"
        )
        inside(own, set_link.format("veth-b", "down"), "b")
        no_carrier = inside(own, open_port("veth-a"))
        down = inside(own, open_port("veth-b"), "b")

    assert no_carrier == "veth-a: is up, but has no carrier: nothing is connected at the other end"
    assert down == "veth-b: is down: ip link set veth-b up"


def test_link_that_goes_down_during_a_run_is_a_link_error(started, runtime):
    with build() as own:
        process, _ = peer(own, started, "b", "wait")
        inside(own, "import os\nos.execlp('ip', 'ip', 'link', 'set', 'veth-b', 'down')", "b")

        assert result(process) == {"error": "veth-b: has gone down"}


def test_notes_describe_what_the_interface_does_to_frames(lab):
    said = inside(
        lab,
        "from ibwire.link.interface import interface, notes, set_tx_checksum\n"
        "print(notes(interface('veth-a')))\n"
        "set_tx_checksum('veth-a', True)\n"
        "print(*notes(interface('veth-a')))\n"
        "set_tx_checksum('veth-a', False)\n",
    )

    before, after = said.splitlines()
    assert before == "[]"
    assert after.endswith("ethtool -K veth-a tx off")


MAC_TOWARDS = """
from ibwire.base.errors import LinkError
from ibwire.link.neighbours import mac_towards
for address in {addresses!r}:
    try:
        print(mac_towards("veth-a", address, seconds=0.2).hex())
    except LinkError as error:
        print(error)
"""


def test_kernel_is_asked_for_the_peers_mac_address(lab):
    said = inside(lab, MAC_TOWARDS.format(addresses=ADDRESSES["b"])).splitlines()

    assert said == ["02000a000002"] * 2


def test_address_without_an_answer_or_a_route_is_a_link_error(lab):
    addresses = ["10.0.0.77", "fd00::77", "192.0.2.1", "10.0.0.1", "10.0.0.255", "nowhere"]
    said = inside(lab, MAC_TOWARDS.format(addresses=addresses)).splitlines()

    assert said == [
        "veth-a: 10.0.0.77 has not answered for 0.2 s",
        "veth-a: fd00::77 has not answered for 0.2 s",
        "veth-a: no route to 192.0.2.1: Network is unreachable",
        "veth-a: 10.0.0.1 is this machine itself",
        "veth-a: 10.0.0.255 is not a single host: it is for all on this link",
        "veth-a: 'nowhere' is not an IP address",
    ]


def test_peer_behind_a_router_has_the_routers_mac_address(runtime):
    with build() as own:
        said = inside(
            own,
            "import subprocess\n"
            "subprocess.run('ip route add 192.0.2.0/24 via 10.0.0.2'.split(), check=True)\n"
            + MAC_TOWARDS.format(addresses=["192.0.2.1"]),
        )

    assert said == "02000a000002"


def test_router_to_an_ipv4_address_may_have_an_ipv6_address(runtime):
    with build() as own:
        said = inside(
            own,
            "import subprocess\n"
            "route = 'ip route add 192.0.2.0/24 via inet6 fd00::a00:2'\n"
            "subprocess.run(route.split(), check=True)\n"
            + MAC_TOWARDS.format(addresses=["192.0.2.1"]),
        )

    assert said == "02000a000002"


def test_address_that_is_still_being_checked_for_duplicates_is_not_used_but_named(runtime):
    with build() as own:
        said = inside(
            own,
            "import pathlib, subprocess\n"
            "from ibwire.link.interface import interface, notes\n"
            "pathlib.Path('/proc/sys/net/ipv6/conf/veth-a/accept_dad').write_text('1')\n"
            "for command in ('del fd00::a00:1/64', 'add fd00::5/64'):\n"
            "    subprocess.run(f'ip addr {command} dev veth-a'.split(), check=True)\n"
            "found = interface('veth-a')\n"
            "print(*found.addresses[:1], len(found.addresses))\n"
            "print(*found.unusable)\n"
            "print(*notes(found))\n",
        )

    usable, unusable, note = said.splitlines()
    assert usable == "10.0.0.1 2"  # the other one is link-local
    assert unusable == "fd00::5"
    assert note.startswith("veth-a: not usable: fd00::5: duplicate address detection takes")


# The lab itself.


def build(**how):
    try:
        return Lab.create(**how)
    except LinkError as error:
        pytest.skip(f"no lab: {error}")


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A separate directory for the sockets of labs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def test_link_that_is_taken_away_is_a_link_error(started, runtime):
    lab = build()
    process, _ = peer(lab, started, "b", "wait")

    lab.down()

    assert result(process)["error"].startswith("veth-b: has gone")


def test_lab_can_be_found_until_it_is_down_and_leaves_nothing(runtime):
    build(name="one", mtu=1500, detached=True)
    lab = Lab.find("one")
    with pytest.raises(LinkError, match="is up already"):
        Lab.create("one")
    mtu = inside(
        lab, "from ibwire.link.interface import interface as i\nprint(i('veth-b').mtu)", "b"
    )

    lab.down()

    assert mtu == "1500"
    assert Lab.find("one") is None
    assert list(runtime.rglob("*.socket")) == []
    with pytest.raises(LinkError, match="is not up"):
        lab.enter("a")


def test_lab_ends_with_its_maker_even_when_that_is_killed(runtime):
    build().down()  # or skip
    script = (
        "from ibwire.lab.veth import Lab\n"
        "lab = Lab.create('orphan')\n"
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=PATIENCE,
        check=False,
    )
    end = time.monotonic() + PATIENCE
    while Lab.find("orphan") is not None and time.monotonic() < end:
        time.sleep(0.01)

    assert Lab.find("orphan") is None


def test_killed_keeper_leaves_a_socket_that_the_next_look_removes(runtime):
    lab = build(name="killed")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(lab.path))
        # struct ucred: process, user, group.
        who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        os.kill(struct.unpack("3i", who)[0], signal.SIGKILL)

    # The pipe to it closes when it has gone.
    lab.down()

    assert Lab.find("killed") is None
    assert list(runtime.rglob("*")) == []


def test_nothing_of_this_machine_is_visible_inside(lab):
    assert (
        inside(lab, "import socket\nprint(*(n for _, n in socket.if_nameindex()))") == "lo veth-a"
    )


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 33, "n\0"])
def test_impossible_name_of_a_lab_is_a_link_error(name, runtime):
    with pytest.raises(LinkError, match="invalid name"):
        Lab.create(name)


@pytest.mark.parametrize("mtu", [0, 1279, 65536, -1])
def test_impossible_mtu_is_a_link_error(mtu, runtime):
    with pytest.raises(LinkError, match="MTU"):
        Lab.create(mtu=mtu)
