"""`ibwire fuzz` against emulated devices behind a router, which is a separate host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from ibwire.base.errors import LinkError
from ibwire.lab.veth import Lab
from live.fuzzing import Fuzz, Serve, end
from processes import Processes, wait_for

ADDRESS, ROUTER = "192.0.2.2", "10.0.0.254"

SETUP = {
    "m": f"""
        ip link set eth-b address 02:00:0a:00:00:01
        ip addr add {ROUTER}/24 dev eth-a
        ip addr add 192.0.2.254/24 dev eth-b
        sysctl -q net.ipv4.ip_forward=1
    """,
    "a": f"ip route add 192.0.2.0/24 via {ROUTER}",
    "b": f"""
        ip addr flush dev veth-b scope global
        ip addr add {ADDRESS}/24 dev veth-b
        ip route add default via 192.0.2.254
    """,
}
"""Commands on each side, in this order.

A device of ours without a connection manager knows no router: it makes a MAC address out of the
IP address of its peer, so that has to be the router's.
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        built = Lab.create(middle=True)
    except LinkError as error:
        pytest.skip(f"no lab: {error}")
    with built:
        for side, commands in SETUP.items():
            for command in commands.strip().splitlines():
                run(built, side, command)
        yield built


def run(lab: Lab, side: str, command: str) -> None:
    subprocess.run(lab.command(side, command.split()), env=lab.environment(), check=True)


@pytest.fixture
def fuzz(lab: Lab, processes: Processes) -> Fuzz:
    return Fuzz(lab, processes, ADDRESS)


def test_a_device_like_its_reference_raises_no_alarm(serve: Serve, fuzz: Fuzz) -> None:
    serve("drill_agent.py", "spec")

    status, output, errors = fuzz("--budget", "300pkt")

    assert status == 0, output + errors


def test_host_of_a_crashed_device_is_alive(serve: Serve, fuzz: Fuzz) -> None:
    serve("drill_agent.py", "spec", "collect")

    status, output, errors = fuzz("--budget", "1kpkt")

    assert status == 1, errors
    assert "F0001  every connection is dead after " in output


def test_a_right_manager_raises_no_alarm(serve: Serve, fuzz: Fuzz) -> None:
    serve("cm_server.py", 7174)

    status, output, errors = fuzz("--budget", "300pkt", "--service", 7174)

    assert status == 0, output + errors


def test_a_host_that_may_not_be_asked_for_an_echo_counts_as_there(
    lab: Lab, serve: Serve, fuzz: Fuzz
) -> None:
    """The router forbids it, and says so: destination unreachable, code 13 (RFC 1812, 5.2.7.1)."""
    serve("drill_agent.py", "spec")
    rule = f"to {ADDRESS} ipproto icmp prohibit"
    run(lab, "m", f"ip rule add pref 10 {rule}")
    try:
        status, output, errors = fuzz("--budget", "50pkt")
    finally:
        run(lab, "m", f"ip rule del pref 10 {rule}")

    assert status == 0, output + errors


def test_absent_host_is_dead(lab: Lab, serve: Serve, fuzz: Fuzz) -> None:
    """Though the router is still there."""
    serve("drill_agent.py", "rxe")
    running = fuzz.start("--budget", "1h")
    wait_for(running.stdout, "F0001")
    run(lab, "b", "ip link set veth-b down")
    try:
        status, output, errors = end(running)
    finally:
        run(lab, "b", "ip link set veth-b up")
        run(lab, "b", "ip route replace default via 192.0.2.254")

    assert status == 1, errors
    assert "  the host is dead after " in output
