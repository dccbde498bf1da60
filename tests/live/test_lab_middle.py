"""A lab with a middle: nothing passes but what a tap passes. The kernels' ping is the judge."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ibwire.base.errors import LinkError
from ibwire.lab.veth import VARIABLE, Lab
from live.sides import PATIENCE, inside, start

PING = """
import socket, sys
with open("/proc/sys/net/ipv4/ping_group_range", "w") as group:
    group.write("0 0")  # in this namespace: the right to open the sockets of ping
for family, protocol, request, address in (
    (socket.AF_INET, socket.IPPROTO_ICMP, 8, "10.0.0.2"),
    (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, "fd00::a00:2"),
):
    with socket.socket(family, socket.SOCK_DGRAM, protocol) as asking:
        asking.settimeout({patience})
        try:
            asking.sendto(bytes((request, 0, 0, 0, 0, 0, 0, 7)), (address, 0))
            asking.recv(100)
            print("answered")
        except OSError:
            print("lost")
"""
ANSWERED, LOST = ["answered"] * 2, ["lost"] * 2


@pytest.fixture
def runtime(monkeypatch):
    """A separate directory for the sockets of labs, where they leave nothing. Its name is short:
    the name of a socket has at most 107 bytes (unix(7))."""
    with TemporaryDirectory() as name:
        place = Path(name)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
        monkeypatch.delenv(VARIABLE, raising=False)
        yield place
        left = Lab.find()
        if left is not None:
            left.down()
        assert list(place.rglob("*")) == []


@pytest.fixture
def middle(runtime):
    try:
        built = Lab.create("middle", middle=True)
    except LinkError as error:
        pytest.skip(f"no lab: {error}")
    with built:
        yield built


@pytest.fixture
def tap(middle, started, tmp_path):
    """Starts a tap in the middle."""

    def start_tap(plan):
        (tmp_path / "plan.toml").write_text(plan)
        command = [
            "-m",
            "ibwire",
            "tap",
            "--between",
            "eth-a",
            "eth-b",
            "--plan",
            tmp_path / "plan.toml",
        ]
        process = subprocess.Popen(
            middle.command("m", [sys.executable, *map(str, command), "--json"]),
            env=middle.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        # The notes on the interfaces would be before.
        assert process.stderr.readline() == "passing between eth-a and eth-b\n"
        return process

    return start_tap


def ping(lab, patience):
    return inside(lab, PING.replace("{patience}", str(patience))).splitlines()


def lab(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ibwire", "lab", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# What passes.


def test_nothing_passes_without_a_tap_and_the_middle_is_silent(middle):
    assert ping(middle, 0.5) == LOST

    links = json.loads(inside(middle, IP.format("-s link"), "m"))
    addresses = json.loads(inside(middle, IP.format("addr"), "m"))
    assert [each["ifname"] for each in links] == ["lo", "eth-a", "eth-b"]
    assert [each["stats64"]["tx"]["packets"] for each in links[1:]] == [0, 0]
    assert links[1]["stats64"]["rx"]["packets"] > 0
    assert [each["operstate"] for each in links[1:]] == ["UP", "UP"]
    assert [each["addr_info"] for each in addresses] == [[], [], []]


IP = "import os\nos.execvp('ip', 'ip -j {}'.split())"


def test_empty_plan_lets_everything_pass(middle, tap):
    tap("")

    assert ping(middle, PATIENCE) == ANSWERED


def test_plan_that_loses_all_answers_loses_them(middle, tap):
    running = tap("[[from.b]]\nloss = 1.0\n")

    assert ping(middle, 0.5) == LOST

    running.send_signal(signal.SIGINT)
    end = json.loads(running.communicate(timeout=PATIENCE)[0].splitlines()[-1])
    frames = end["frames"]
    assert frames["eth-b"]["received"] == end["rules"][0]["frames"] > 0
    assert "sent" not in frames["eth-a"]
    assert frames["eth-b"]["sent"] == frames["eth-a"]["received"]


def test_kernels_finish_the_checksums_of_what_they_send(middle):
    """So that a capture at any place has them."""
    asking = (
        "import socket\nfrom ibwire.link.interface import interface\n"
        "names = [name for _, name in socket.if_nameindex() if name != 'lo']\n"
        "print(*((name, interface(name).tx_checksum, interface(name).mtu) for name in names))\n"
    )

    assert [inside(middle, asking, side) for side in ("a", "b", "m")] == [
        "('veth-a', False, 9000)",
        "('veth-b', False, 9000)",
        "('eth-a', False, 9000) ('eth-b', False, 9000)",
    ]


# The end.


def test_tap_ends_when_the_lab_is_taken_down(middle, tap):
    running = tap("")

    middle.down()

    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert said.startswith("error: eth-"), said


def test_program_that_stays_inside_keeps_no_link(middle, started):
    asking = (
        "import socket\nprint(flush=True)\ninput()\n"
        "print(*(name for _, name in socket.if_nameindex()))\n"
    )
    staying = [start(middle, started, side, "-c", asking) for side in ("a", "b", "m")]
    for each in staying:
        assert each.stdout.readline()

    middle.down()

    left = [each.communicate("\n", timeout=PATIENCE)[0].split() for each in staying]
    assert left == [["lo"]] * 3


def test_tap_ends_when_the_keeper_is_killed(middle, tap):
    running = tap("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(middle.path))
        # struct ucred: process, user, group.
        who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        os.kill(struct.unpack("3i", who)[0], signal.SIGKILL)

    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert said.startswith("error: eth-"), said


# The command.


def test_lab_with_a_middle_is_described_and_entered_by_name(runtime):
    up = lab("up", "--middle", "--mtu", "1500")
    if up.returncode:
        pytest.skip(f"no lab: {up.stderr}")
    seen = lab("run", "--side", "m", "ip", "-br", "link")
    again = lab("run", "--middle", "true")
    down = lab("down")

    assert up.stdout.splitlines() == [
        "a: veth-a 10.0.0.1 fd00::a00:1 mtu 1500",
        "b: veth-b 10.0.0.2 fd00::a00:2 mtu 1500",
        "m: eth-a eth-b mtu 1500",
    ]
    assert [line.split("@")[0] for line in seen.stdout.splitlines()[1:]] == ["eth-a", "eth-b"]
    assert again.returncode == 2
    assert "--middle are for a lab that is not up yet" in again.stderr
    assert (down.returncode, down.stderr) == (0, "")


def test_run_builds_a_lab_with_a_middle_for_one_command(middle):
    done = lab("run", "--middle", "--side", "m", "ip", "-br", "link")

    assert done.returncode == 0, done.stderr
    assert [line.split("@")[0] for line in done.stdout.splitlines()[1:]] == ["eth-a", "eth-b"]
    assert Lab.find() is None


def test_side_m_of_a_lab_without_a_middle_is_explained(middle):
    unbuilt = lab("run", "--side", "m", "true")
    lab("up")
    found = lab("run", "--side", "m", "true")

    assert unbuilt.returncode == 2
    assert "no lab is up; to create one for --side m, give --middle" in unbuilt.stderr
    assert (found.returncode, found.stderr) == (
        1,
        "error: lab: has no middle: ibwire lab up --middle\n",
    )
