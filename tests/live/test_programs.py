"""Commands on a real link as their user starts them: how they end, and what they say."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ibwire.lab.veth import Lab
from ibwire.link.privileges import CAP_NET_BIND_SERVICE, effective_capabilities
from processes import Processes, wait_for

PATIENCE = 30
"""Seconds that anything may take here."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(lab: Lab, processes: Processes) -> Start:
    """Starts an ibwire command on a side."""

    def start(side: str, *arguments: object, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*under, sys.executable, "-m", "ibwire", *map(str, arguments)]
        return processes.start(lab.command(side, command), lab.environment())

    return start


def server(start: Start, *arguments: object) -> subprocess.Popen[str]:
    """A pingpong server that can be connected to."""
    process = start("b", "pingpong", "--dev", "veth-b", "--json", *arguments)
    wait_for(process.stderr, "waiting for a client")
    return process


@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
@pytest.mark.parametrize(
    ("host", "own"), [("10.0.0.2", "10.0.0.1"), ("fd00::a00:2", "fd00::a00:1")]
)
def test_two_commands_play(start: Start, tmp_path: Path, kind: str, host: str, own: str) -> None:
    tap = tmp_path / "tap.pcapng"
    serving = server(start, "-t", kind, "-n", 100)
    playing = start(
        "a",
        "pingpong",
        "--dev",
        "veth-a",
        "--connect",
        host,
        "--json",
        "-t",
        kind,
        "-n",
        100,
        "--tap",
        tap,
    )
    ends = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in (playing, serving)]

    assert [end["passed"] for end in ends] == [True, True]
    assert [end["received"] for end in ends] == [100, 100]
    assert [end["role"] for end in ends] == ["client", "server"]
    assert all(end["counters"]["frames_sent"] for end in ends)
    assert ends[0]["local"] == ends[1]["remote"] == own
    assert check(tap) == 0


def check(capture: Path) -> int:
    command = [sys.executable, "-m", "ibwire", "check", str(capture)]
    return subprocess.run(command, capture_output=True).returncode


@pytest.fixture
def second_addresses(lab: Lab) -> None:
    """Another IPv4 address on each side."""
    for side, address in (("a", "10.0.0.3/24"), ("b", "10.0.0.4/24")):
        command = ["ip", "addr", "replace", address, "dev", f"veth-{side}"]
        subprocess.run(lab.command(side, command), env=lab.environment(), check=True)


@pytest.mark.parametrize(
    ("via", "clients", "servers"),
    [
        ("afpacket", ("10.0.0.10", "10.0.0.11"), ("10.0.0.20", "10.0.0.21")),
        ("afpacket", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2", "10.0.0.4")),
        ("udp", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2", "10.0.0.4")),
    ],
    ids=["own", "afpacket", "udp"],
)
@pytest.mark.usefixtures("second_addresses")
def test_several_commands_share_an_interface(
    start: Start, via: str, clients: tuple[str, str], servers: tuple[str, str]
) -> None:
    """Each has its own address, and all run at the same time."""
    how = ("--via", via, "--json", "-n", 200)
    serving, playing = [], []
    for port, address in enumerate(servers, 18515):
        serving.append(server(start, "--address", address, "-p", port, *how))
    taken = ended(start("b", "pingpong", "--dev", "veth-b", "--via", via, "--address", servers[0]))
    for port, (address, peer) in enumerate(zip(clients, servers, strict=True), 18515):
        host = peer if via == "udp" else "10.0.0.2"
        client = ("pingpong", "--dev", "veth-a", "--connect", host, "--address", address)
        playing.append(start("a", *client, "-p", port, *how))
    outputs = [each.communicate(timeout=PATIENCE) for each in playing]
    ends = [json.loads(output) for output, errors in outputs if output or pytest.fail(errors)]

    assert [(end["local"], end["remote"]) for end in ends] == list(
        zip(clients, servers, strict=True)
    )
    assert all(end["passed"] and end["received"] == 200 for end in ends)
    assert all(each.wait(PATIENCE) == 0 for each in serving)
    assert taken[0] == 1
    assert "in use" in taken[1] or "is taken" in taken[1]


@pytest.mark.parametrize("via", ["afpacket", "udp"])
def test_capabilities_are_given_up_when_the_link_is_open(
    start: Start, tmp_path: Path, via: str
) -> None:
    """The traffic works without them, and the tap has its file."""
    tap = tmp_path / "tap.pcapng"
    serving = server(start, "--via", via, "--tap", tap, "-n", 10)
    tasks = [
        f"{serving.pid}/task/{each.name}" for each in Path(f"/proc/{serving.pid}/task").iterdir()
    ]
    left = {effective_capabilities(task) for task in tasks}
    playing = start("a", "pingpong", "--dev", "veth-a", "--connect", "10.0.0.2", "-n", 10)
    status, errors = ended(playing)

    assert left <= {1 << CAP_NET_BIND_SERVICE, 0}
    assert status == 0, errors
    assert json.loads(serving.communicate(timeout=PATIENCE)[0])["passed"]
    assert check(tap) == 0


def test_faults_of_a_plan_are_survived_and_counted(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("seed = 3\n[[in]]\nloss = 0.02\n[[out]]\nloss = 0.02\n")
    server(start, "-n", 200)
    playing = start(
        "a",
        "pingpong",
        "--dev",
        "veth-a",
        "--connect",
        "10.0.0.2",
        "--json",
        "-n",
        200,
        "--faults",
        plan,
    )
    result = json.loads(playing.communicate(timeout=PATIENCE)[0])

    assert result["passed"]
    assert result["counters"]["faults"] > 0
    assert result["counters"]["retransmitted"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_command_that_waits(start: Start, number: signal.Signals) -> None:
    serving = server(start)

    serving.send_signal(number)
    output, errors = serving.communicate(timeout=PATIENCE)

    assert serving.returncode == 128 + number
    assert output == ""
    assert errors == "counters: no packets\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_the_middle_leaves_a_whole_capture(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    tap = tmp_path / "tap.pcapng"
    serving = server(start, "-n", 10_000_000)
    playing = start(
        "a",
        "pingpong",
        "--dev",
        "veth-a",
        "--connect",
        "10.0.0.2",
        "-n",
        10_000_000,
        "--tap",
        tap,
    )
    while not tap.exists() or tap.stat().st_size < 100_000:
        assert playing.poll() is None
    playing.send_signal(number)
    _, errors = playing.communicate(timeout=PATIENCE)

    assert playing.returncode == 128 + number
    counted = int(errors.partition("frames_sent ")[2].partition(",")[0])
    assert counted > 0
    dissected = subprocess.run(
        [sys.executable, "-m", "ibwire", "dissect", "--json", tap], capture_output=True, text=True
    )
    assert dissected.returncode == 0
    assert dissected.stderr == ""
    # The remaining peer gives up by itself.
    output, errors = serving.communicate(timeout=PATIENCE)
    assert serving.returncode == 1
    assert json.loads(output)["status"] == "RETRY_EXC_ERR"
    assert "RETRY_EXC_ERR" in errors


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def test_missing_interface_is_a_sentence(start: Start) -> None:
    status, errors = ended(start("a", "pingpong", "--dev", "nothing0"))

    assert status == 1
    assert errors == "error: nothing0: no such interface; existing ones: lo, veth-a\n"


def test_address_that_the_interface_has_not_is_a_sentence(start: Start) -> None:
    status, errors = ended(start("a", "pingpong", "--dev", "veth-a", "--address", "nonsense"))

    assert status == 2
    assert "'nonsense' is not an IP address" in errors


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0", "0.0.0.0 is not an address of a single host"),
        ("::", ":: is not an address of a single host"),
        ("224.0.0.1", "224.0.0.1 is not an address of a single host"),
        ("ff02::1", "ff02::1 is not an address of a single host"),
        ("255.255.255.255", "255.255.255.255 is not an address of a single host"),
        ("::ffff:224.0.0.1", "is not an address of a single host"),
        ("fe80::1%veth-a", "fe80::1%veth-a says an interface, and that is known already"),
    ],
)
def test_address_that_no_host_can_have_is_wrong_usage(
    start: Start, address: str, reason: str
) -> None:
    status, errors = ended(start("a", "pingpong", "--dev", "veth-a", "--address", address))

    assert status == 2
    assert reason in errors


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("", ": no such host: "),
        ("a..b", "a..b: no such host: invalid name"),
        ("fe80::1", "fe80::1: needs an interface: fe80::1%IFACE"),
    ],
)
def test_host_that_means_nothing_is_a_sentence(start: Start, host: str, reason: str) -> None:
    status, errors = ended(start("a", "pingpong", "--dev", "veth-a", "--connect", host))

    assert status == 1
    assert reason in errors
    assert "Traceback" not in errors


def test_link_local_host_is_found_on_its_interface(start: Start) -> None:
    serving = server(start, "-n", 20)
    host = "fe80::aff:fe00:2%veth-a"
    playing = start("a", "pingpong", "--dev", "veth-a", "--connect", host, "--json", "-n", 20)
    ends = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in (playing, serving)]

    assert [end["passed"] for end in ends] == [True, True]


@pytest.mark.parametrize(
    "options",
    [("-p", 0, "--connect", "10.0.0.2"), ("-s", 1 << 27), ("--connect", "10.0.0.2", "-n", 0)],
)
def test_numbers_without_a_meaning_are_wrong_usage(
    start: Start, options: tuple[object, ...]
) -> None:
    assert ended(start("a", "pingpong", "--dev", "veth-a", *options))[0] == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_under_a_tap_is_a_sentence(start: Start) -> None:
    serving = server(start, "-n", 3000, "--tap", "/dev/full")
    playing = start("a", "pingpong", "--dev", "veth-a", "--connect", "10.0.0.2", "-n", 3000)
    status, errors = ended(serving)

    assert status == 1
    assert "error: /dev/full: cannot be written: no space left on device" in errors
    assert ended(playing)[0] == 1


def test_path_mtu_too_large_is_a_sentence(start: Start, lab: Lab) -> None:
    ip = ["ip", "link", "set", "veth-a", "mtu"]
    subprocess.run(lab.command("a", [*ip, "1500"]), env=lab.environment(), check=True)
    try:
        status, errors = ended(start("a", "pingpong", "--dev", "veth-a", "-m", 4096))
    finally:
        subprocess.run(lab.command("a", [*ip, "9000"]), env=lab.environment(), check=True)

    assert status == 1
    assert "veth-a: MTU 1500 is too small for a path MTU of 4096, which needs 4176" in errors


def test_interface_that_is_down_is_a_sentence(start: Start, lab: Lab) -> None:
    ip = ["ip", "link", "set", "veth-a"]
    subprocess.run(lab.command("a", [*ip, "down"]), env=lab.environment(), check=True)
    try:
        status, errors = ended(start("a", "pingpong", "--dev", "veth-a"))
    finally:
        restore = [*ip, "up"]
        subprocess.run(lab.command("a", restore), env=lab.environment(), check=True)
        address = ["ip", "address", "replace", "fd00::a00:1/64", "dev", "veth-a", "nodad"]
        subprocess.run(lab.command("a", address), env=lab.environment(), check=True)

    assert status == 1
    assert errors == "error: veth-a: is down: ip link set veth-a up\n"


def test_absent_server_is_one_message(start: Start) -> None:
    status, errors = ended(start("a", "pingpong", "--dev", "veth-a", "--connect", "10.0.0.2"))

    assert status == 1
    assert errors.endswith(
        "error: 10.0.0.2 port 18515: connection refused: no program listens there\n"
    )


def test_tcp_port_that_is_taken_is_a_sentence(start: Start) -> None:
    server(start)
    status, errors = ended(start("b", "pingpong", "--dev", "veth-b"))

    assert status == 1
    assert "4791" in errors or ("TCP port 18515 of" in errors and "already in use" in errors)


def test_without_permission_it_is_a_sentence(start: Start) -> None:
    under = ("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw")
    status, errors = ended(start("a", "pingpong", "--dev", "veth-a", under=under))

    assert status == 1
    assert "CAP_NET_RAW" in errors


def test_server_keeps_waiting_after_an_invalid_client(start: Start, lab: Lab) -> None:
    serving = server(start, "-n", 20)
    script = "import socket; socket.create_connection(('10.0.0.2', 18515)).sendall(b'x' * 52)"
    subprocess.run(
        lab.command("a", [sys.executable, "-c", script]), env=lab.environment(), check=True
    )
    wait_for(serving.stderr, "is not a client: not a line of a pingpong program")
    playing = start("a", "pingpong", "--dev", "veth-a", "--connect", "10.0.0.2", "-n", 20)

    assert ended(playing)[0] == 0
    assert ended(serving)[0] == 0


@pytest.mark.parametrize("vlan", [(), ("--vlan", 5)], ids=["untagged", "vlan"])
def test_addresses_of_our_own_are_found_by_arp_and_nd(
    start: Start, tmp_path: Path, vlan: tuple[object, ...]
) -> None:
    """Neither kernel has these addresses; TCP uses those that they have."""
    for number, own in (("10.0.0.7", "10.0.0.8"), ("fd00::7", "fd00::8")):
        tap = tmp_path / f"{number.replace(':', '')}.pcapng"
        serving = server(start, "--address", number, "-n", 50, *vlan)
        playing = start(
            "a",
            "pingpong",
            "--dev",
            "veth-a",
            "--connect",
            "10.0.0.2",
            "--json",
            "--address",
            own,
            "-n",
            50,
            "--tap",
            tap,
            *vlan,
        )
        ends = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in (playing, serving)]

        assert [end["passed"] for end in ends] == [True, True]
        assert (ends[0]["local"], ends[0]["remote"]) == (own, number)
        tagged = dissected(tap, "--where", "vlan.id == 5 and bth")
        # A busy machine asks again.
        assert len(tagged) >= 2 * 50 * 5 if vlan else not tagged


def dissected(capture: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "ibwire", "dissect", "--json", *options, str(capture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("via", ["pcap", "udp"])
def test_other_ways_to_the_same_link(start: Start, via: str) -> None:
    if via == "pcap":
        pytest.importorskip("pcapy")
    serving = server(start, "--via", via, "-n", 50)
    playing = start("a", "pingpong", "--dev", "veth-a", "--connect", "10.0.0.2", "--json", "-n", 50)
    ends = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in (playing, serving)]

    assert [end["passed"] for end in ends] == [True, True]


def test_mac_address_is_for_an_address_of_our_own(start: Start) -> None:
    status, errors = ended(start("a", "pingpong", "--dev", "veth-a", "--mac", "02:00:00:00:00:09"))

    assert status == 2
    assert "--mac and --vlan require an --address the interface lacks" in errors


def test_peer_of_another_ip_version_is_a_sentence(start: Start) -> None:
    serving = server(start, "--address", "10.0.0.7")
    playing = start(
        "a", "pingpong", "--dev", "veth-a", "--connect", "10.0.0.2", "--address", "fd00::8"
    )

    assert ended(playing)[0] == 1
    status, errors = ended(serving)
    assert status == 1
    assert "veth-b: no IPv6 address, and the peer has fd00::8" in errors
