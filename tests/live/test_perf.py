"""`ibwire perf` as its users start it, between two namespaces. Live tests."""

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
    """Starts `ibwire perf` on a side."""

    def start(side: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ibwire", "perf", *map(str, arguments)]
        command += ["--dev", f"veth-{side}"]
        return processes.start(lab.command(side, command), lab.environment())

    return start


def server(start: Start, *arguments: object) -> subprocess.Popen[str]:
    process = start("b", *arguments)
    wait_for(process.stderr, "waiting for a client")
    return process


def client(start: Start, *arguments: object, host: str = "10.0.0.2") -> subprocess.Popen[str]:
    return start("a", *arguments, "--connect", host)


def results(*processes: subprocess.Popen[str]) -> list[dict]:
    return [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in processes]


@pytest.mark.parametrize("verb", ["send", "write", "read", "atomic"])
@pytest.mark.parametrize("options", [("-q", 2, "-b"), ("--latency",), ("-R",)], ids=str)
def test_both_ends_agree_and_the_capture_is_clean(
    start: Start, tmp_path: Path, verb: str, options: tuple[object, ...]
) -> None:
    tap = tmp_path / "tap.pcapng"
    serving = server(start, verb, "-n", 100, *options, "--json")
    ends = results(client(start, verb, "-n", 100, *options, "--json", "--tap", tap), serving)

    assert [end["passed"] for end in ends] == [True, True]
    assert [end["role"] for end in ends] == ["client", "server"]
    assert all(end["counters"]["frames_sent"] for end in ends)
    assert [end["with"] for end in ends] == ["ibwire", "ibwire"]
    assert ends[0]["sent"] == 100 * len(ends[0]["qpns"])
    assert ends[0]["verified"] or ends[1]["verified"]
    assert [end["local"] for end in ends] == ["10.0.0.1", "10.0.0.2"]
    check = [sys.executable, "-m", "ibwire", "check", str(tap)]
    assert subprocess.run(check, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0, 0.01, 0.05])
@pytest.mark.parametrize("qps", [1, 32, 128])
@pytest.mark.parametrize("verb", ["write", "read"])
def test_many_queue_pairs_and_loss_end_well(
    start: Start, tmp_path: Path, verb: str, qps: int, loss: float
) -> None:
    """The socket of the server has room for a quarter of what 128 queue pairs once sent."""
    plan = tmp_path / "loss.toml"
    plan.write_text(f"[[in]]\nloss = {loss}\n[[out]]\nloss = {loss}\n" if loss else "")
    options = ("-q", qps, "-n", 384 // qps, "-s", 65536, "--json")
    serving = server(start, verb, *options)
    ends = results(client(start, verb, *options, "--faults", plan), serving)

    assert [end["passed"] for end in ends] == [True, True]
    assert ends[0]["sent"] == 384 // qps * qps


def test_table_is_in_the_shape_of_perftest(start: Start) -> None:
    """The columns as ib_send_bw and ib_send_lat of perftest 4.5-0.17 print them."""
    serving = server(start, "send", "-n", 50, "-s", 2000)
    output, _ = client(start, "send", "-n", 50, "-s", 2000).communicate(timeout=PATIENCE)
    serving.communicate(timeout=PATIENCE)
    lines = output.splitlines()
    row = lines.index(
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
    )
    size, messages, *measures = lines[row + 1].split()

    assert (size, messages) == ("2000", "50")
    assert len([float(measure) for measure in measures]) == 3

    serving = server(start, "send", "--latency", "-n", 50)
    output, _ = client(start, "send", "--latency", "-n", 50).communicate(timeout=PATIENCE)
    serving.communicate(timeout=PATIENCE)
    lines = output.splitlines()
    row = lines.index(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
        "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
    )
    size, messages, *measures = lines[row + 1].split()

    assert (size, messages) == ("2", "50")
    assert len([float(measure) for measure in measures]) == 7


@pytest.mark.slow
def test_link_that_is_down_for_a_moment_is_survived(start: Start, lab: Lab, tmp_path: Path) -> None:
    tap = tmp_path / "tap.pcapng"
    serving = server(start, "write", "-D", 4, "-s", 4096, "--json")
    running = client(start, "write", "-D", 4, "-s", 4096, "--json", "--tap", tap)
    while not tap.exists() or tap.stat().st_size < 500_000:
        assert running.poll() is None
    for state in ("down", "up"):
        flap = lab.command("b", ["ip", "link", "set", "veth-b", state])
        subprocess.run(flap, env=lab.environment(), check=True)
    ends = results(running, serving)

    assert [end["passed"] for end in ends] == [True, True]
    assert ends[0]["counters"]["retransmitted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_the_middle(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    tap = tmp_path / "tap.pcapng"
    serving = server(start, "write", "--json")
    running = client(start, "write", "-D", 20, "--json", "--tap", tap)
    while not tap.exists() or tap.stat().st_size < 1_000_000:
        assert running.poll() is None
    running.send_signal(number)
    output, errors = running.communicate(timeout=PATIENCE)
    ended, reason = serving.communicate(timeout=PATIENCE)

    assert running.returncode == 128 + number
    assert output == ended == ""
    assert "frames_sent" in errors
    assert serving.returncode == 1
    assert "has closed its connection" in reason or "reset" in reason


def test_interface_whose_mtu_becomes_smaller_is_reported(
    start: Start, lab: Lab, tmp_path: Path
) -> None:
    def set_mtu(mtu: int) -> None:
        command = ["ip", "link", "set", "veth-a", "mtu", str(mtu)]
        subprocess.run(lab.command("a", command), env=lab.environment(), check=True)

    serving = server(start, "write", "-D", 20)
    running = client(start, "write", "-D", 20, "--tap", tmp_path / "tap.pcapng")
    while not (tmp_path / "tap.pcapng").exists():
        assert running.poll() is None
    try:
        set_mtu(1500)
        _, errors = running.communicate(timeout=PATIENCE)
    finally:
        set_mtu(9000)
    serving.communicate(timeout=PATIENCE)

    assert running.returncode == 1
    assert (
        "does not fit its MTU of 1500, which allows a path MTU of 1024; it was 9000 when" in errors
    )
    assert "note: veth-a: its MTU has changed from 9000 to 1500 since the command began" in errors


def test_command_lines_of_perftest_run_as_they_are(start: Start) -> None:
    serving = server(start, "ib_read_lat", "-x", 1, "-F", "-n", 20, "-s", "1K", "--json")
    asking = start("a", "ib_read_lat", "-F", "-n", 20, "-s", "0x400", "10.0.0.2", "--json")
    ends = results(asking, serving)

    assert [end["passed"] for end in ends] == [True, True]
    assert [end["size"] for end in ends] == [1024, 1024]
    assert "latency_us" in ends[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("send", "-n", 5, "-D", 1), "-n and -D exclude each other"),
        (("read", "--latency", "-b"), "--latency excludes -b and -q"),
        (("write", "--latency", "-q", 2), "--latency excludes -b and -q"),
        (("send", "-c", "UC", "-R"), "-R requires -c RC"),
        (("send", "-m", 1024, "-R"), "-R excludes -m: the connection manager chooses the path MTU"),
        (("read", "-c", "UC"), "'UC' is not 'rc'"),
        (("atomic", "-s", 16), "No such option"),
        (("send", "-s", 0), "0 is not in the range"),
        (("send", "-D", "nan"), "'nan' is not a valid integer range"),
        (("send", "--dev", "veth-a", "-R", "-p", 0), "-p 0 requires a server over TCP"),
        (("read", "--dev", "veth-a", "--connect", "", "-p", 0), "-p 0 requires a server over TCP"),
    ],
)
def test_wrong_usage_is_explained(start: Start, arguments: tuple[object, ...], reason: str) -> None:
    wrong = start("a", *arguments)
    _, errors = wrong.communicate(timeout=PATIENCE)

    assert wrong.returncode == 2
    assert reason in errors


def test_server_keeps_waiting_after_an_invalid_client(start: Start, lab: Lab) -> None:
    serving = server(start, "read", "-n", 20)
    script = "import socket; socket.create_connection(('10.0.0.2', 18515)).sendall(b'6.06')"
    subprocess.run(
        lab.command("a", [sys.executable, "-c", script]), env=lab.environment(), check=True
    )
    asking = client(start, "read", "-n", 20)
    _, errors = serving.communicate(timeout=PATIENCE)
    asking.communicate(timeout=PATIENCE)

    assert asking.returncode == serving.returncode == 0
    assert "has closed its connection, after 4 of 16 bytes: b'6.06'; waiting for another" in errors


@pytest.mark.parametrize("options", [("-c", "UD", "-s", 5000), ("-q", 1024, "-s", 1 << 26)])
def test_messages_that_cannot_be_are_wrong_usage_at_once(
    start: Start, options: tuple[object, ...]
) -> None:
    serving = start("b", "send", *options)
    _, errors = serving.communicate(timeout=PATIENCE)

    assert serving.returncode == 2
    assert "size" in errors
    assert "waiting" not in errors
