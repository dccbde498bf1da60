"""`ibwire rping` with itself on a real link, as its user starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ibwire.lab.veth import Lab
from processes import Processes, wait_for

PATIENCE = 30
"""Seconds that anything may take here."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(lab: Lab, processes: Processes) -> Start:
    """Starts rping on a side."""

    def start(side: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ibwire", "rping", "--dev", f"veth-{side}"]
        command += map(str, arguments)
        return processes.start(lab.command(side, command), lab.environment())

    return start


def serve(start: Start, *arguments: object) -> subprocess.Popen[str]:
    """A server that can be connected to."""
    process = start("b", *arguments)
    wait_for(process.stderr, "waiting for a client")
    return process


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


@pytest.mark.parametrize(
    ("host", "own"), [("10.0.0.2", "10.0.0.1"), ("fd00::a00:2", "fd00::a00:1")]
)
def test_both_sides_say_what_was_verified(
    start: Start, tmp_path: Path, host: str, own: str
) -> None:
    tap = tmp_path / "tap.pcapng"
    serving = serve(start)
    status, output, _ = end(start("a", "--connect", host, "-C", 30, "-S", 9000, "--tap", tap))
    served = end(serving)

    assert status == served[0] == 0
    assert output.startswith(f"{host}: 30 pings of 9000 bytes, contents verified, ")
    assert served[1].startswith(f"{own}: 30 pings of 9000 bytes, contents verified, ")
    checked = subprocess.run([sys.executable, "-m", "ibwire", "check", tap], capture_output=True)
    assert checked.returncode == 0


def test_data_and_objects_are_printed(start: Start) -> None:
    """The line is that of rping (cm-rping in the manifest of the captures has its output)."""
    serving = serve(start, "-v")
    status, output, errors = end(start("a", "--connect", "10.0.0.2", "-C", 2, "-v", "--json"))

    line = "ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs\n"
    assert status == 0
    assert line in errors
    assert f"server {line}" in end(serving)[1]
    result = json.loads(output)
    assert (result["role"], result["pings"], result["size"]) == ("client", 2, 64)
    assert (result["validated"], result["problem"]) == (True, None)
    assert (result["passed"], result["local"], result["remote"]) == (True, "10.0.0.1", "10.0.0.2")
    assert result["counters"]["frames_sent"] > result["qp_counters"]["packets_sent"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_pings_without_a_count_on_both_sides(
    start: Start, number: signal.Signals
) -> None:
    serving = serve(start, "-P", "--json")
    asking = start("a", "--connect", "10.0.0.2", "-v", "--json")
    wait_for(asking.stderr, "rdma-ping-100:")
    asking.send_signal(number)
    status, output, errors = end(asking)
    # The server is there for the next one.
    again = end(start("a", "--connect", "10.0.0.2", "-C", 5))
    serving.send_signal(number)
    served = end(serving)

    assert status == served[0] == 128 + number
    assert "frames_sent" in errors
    assert json.loads(output)["pings"] > 100
    assert json.loads(output)["problem"] is None
    assert again[0] == 0
    first, second = map(json.loads, served[1].splitlines())
    assert first["pings"] >= json.loads(output)["pings"]
    assert (second["pings"], second["problem"]) == (5, None)


def test_signal_at_the_server_ends_its_client(start: Start) -> None:
    serving = serve(start)
    asking = start("a", "--connect", "10.0.0.2", "-v")
    wait_for(asking.stdout, "rdma-ping-100:")
    serving.send_signal(signal.SIGINT)
    status, output, errors = end(asking)

    assert end(serving)[0] == 128 + signal.SIGINT
    assert status == 1
    assert errors.endswith("error: 10.0.0.2 port 7174 disconnected before the last ping\n")
    assert "then: 10.0.0.2 port 7174 disconnected before the last ping" in output


def test_missing_listener_is_one_message(start: Start) -> None:
    serve(start, "-p", 7175)
    status, output, errors = end(start("a", "--connect", "10.0.0.2", "-C", 1))

    assert (status, output) == (1, "")
    assert errors.endswith("error: 10.0.0.2 port 7174: no program listens there (REJ 8)\n")


def test_wrong_usage_has_its_own_exit_status(start: Start) -> None:
    assert end(start("a", "--connect", "10.0.0.2", "-P"))[0] == 2
    assert end(start("a", "--connect", "10.0.0.2", "-S", 25))[0] == 2
    assert end(start("a", "--connect", "10.0.0.2", "-S", 65536))[0] == 2
