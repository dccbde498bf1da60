"""`ibwire drill` against a device of ours on a real link, as its user starts it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ibwire.capture import open_capture
from ibwire.lab.veth import Lab
from live.sides import peer
from processes import Processes, wait_for

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "conformance"

PATIENCE = 120
"""Seconds that anything may take here."""

CALM = ("--tolerance", 200)
"""For short scripts that must pass, also on a busy machine."""

Drill = Callable[..., subprocess.Popen[str]]

WRITE = "+1us < WRITE_ONLY psn ack len=8\n"


@pytest.fixture
def drill(lab: Lab, processes: Processes) -> Drill:
    """Starts the command on side a, for a device on side b."""

    def start(*arguments: object, address: str = "10.0.0.2", **more: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ibwire", "drill", *map(str, arguments)]
        command += ["--dev", "veth-a", "--peer", address]
        return processes.start(lab.command("a", command), lab.environment(), **more)

    return start


@pytest.fixture
def agent(lab: Lab, processes: Processes) -> subprocess.Popen[str]:
    """The agent on side b."""
    return serve(lab, processes)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script."""

    def write(text: str, name: str = "s.drill") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def serve(lab: Lab, processes: Processes, *dies_of: str) -> subprocess.Popen[str]:
    """Start the agent; it dies at a request."""
    command = [sys.executable, str(HERE / "drill_agent.py"), "veth-b", "spec", *dies_of]
    process = processes.start(lab.command("b", command), lab.environment())
    wait_for(process.stdout, "ready")
    return process


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


@pytest.mark.usefixtures("agent")
def test_conformance_scripts_pass_on_a_link_as_in_virtual_time(drill: Drill) -> None:
    """But for one: a device on a link keeps to a window that software keeps up with.

    Left out is what takes longer than a second, what nothing but virtual time can give, and
    what another network would be needed for. What a busy machine has spoilt may be done again.
    """
    status, output, _ = end(drill(SCRIPTS, "--limit", 1, "--json"))
    *cases, run = map(json.loads, output.splitlines())
    again = cases
    for tolerance in (40, 20, 60):
        failed = sorted({case["script"] for case in again if case["failure"]})
        _, output, _ = end(drill(*failed, "--json", "--tolerance", tolerance))
        *again, _ = map(json.loads, output.splitlines())
        wrong = [case["failure"]["text"] for case in again if case["failure"]]
        if len(wrong) <= 1:
            break

    reasons = (case["skipped"].partition(" time: ")[0] for case in cases if case["skipped"])
    skipped = {re.sub("[0-9.]+", "N", reason) for reason in reasons}
    assert wrong == ["> WRITE_MIDDLE psn+$i"], failed
    assert skipped == {
        "takes N s, and the limit is N s",
        "needs an answer within N us: on a link it may take N ms",
        "needs a peer with an IPvN address",
        "needs virtual",
    }
    assert run["cases"] - run["skipped"] > 400
    assert status == 1


@pytest.mark.usefixtures("agent")
def test_over_ipv6(drill: Drill) -> None:
    scripts = (SCRIPTS / "address" / "ipv6.drill", SCRIPTS / "cm" / "over-ipv6.drill")
    process = drill(*scripts, *CALM, address="fd00::a00:2")

    assert end(process)[:2] == (0, "2 scripts, 2 cases, profile spec: all passed\n")


@pytest.mark.usefixtures("agent")
def test_connections_are_made_and_ended_as_scripts_say(drill: Drill) -> None:
    """By the device's connection manager, whose messages only the script answers."""
    status, output, _ = end(drill(SCRIPTS / "cm", *CALM, "--limit", 4))

    *skipped, summary = output.splitlines()
    reasons = {line.rpartition(": ")[2] for line in skipped}
    assert {re.sub("[0-9.]+", "N", reason) for reason in reasons} == {
        "takes N s, and the limit is N s",
        "needs a peer with an IPvN address",
    }
    assert summary == "23 scripts, 33 cases, profile spec: 21 passed, 12 skipped"
    assert status == 0


@pytest.mark.usefixtures("agent")
def test_a_failure_is_explained_and_its_packets_are_written(
    drill: Drill, write: Callable[..., Path], tmp_path: Path
) -> None:
    script = write(f"// Wrong.\n{WRITE}  > ACK psn msn=7\n")

    status, output, errors = end(drill(script, "-o", tmp_path / "out", "--tolerance", 500))

    assert status == 1
    assert f"FAIL  {script}:3: > ACK psn msn=7\n" in output
    assert "            msn 1, not 7\n" in output
    assert errors.count("packets: ") == 1
    with open_capture(str(tmp_path / "out" / "s.pcapng")) as capture:
        assert len(list(capture.records())) == 2


@pytest.mark.usefixtures("agent")
def test_what_a_device_has_not_got_does_not_keep_the_next_case_from_running(
    drill: Drill, write: Callable[..., Path], tmp_path: Path
) -> None:
    """The connection to the agent is another one then."""
    write(WRITE + "> ACK psn\n", "a.drill")
    write("qp pkey=0x1234\n" + WRITE + "> ACK psn\n", "b.drill")
    write(WRITE + "> ACK psn\n", "c.drill")
    write("qp state=RESET rq_psn=5\nlisten\n", "d.drill")

    status, output, _ = end(drill(tmp_path, *CALM))

    assert status == 0
    assert output == (
        f"skip  {tmp_path}/b.drill: needs modify: the device has no P_Key 0x1234\n"
        f"skip  {tmp_path}/d.drill: "
        "needs rq_psn: the device's connection manager draws its first PSN\n"
        "4 scripts, 4 cases, profile spec: 2 passed, 2 skipped\n"
    )


@pytest.mark.usefixtures("agent")
def test_what_the_device_sends_unasked_is_a_failure(
    drill: Drill, write: Callable[..., Path]
) -> None:
    status, output, _ = end(drill(write(WRITE), *CALM))

    assert status == 1
    assert "  expected  nothing after this line\n  got       ACKNOWLEDGE psn (100)" in output


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        ("+1us < WRITE_ONLY psn len=8 eth.dst=0x020000000099\n", "eth.dst"),
        (f"impair < rewrite ethernet.dst=0x020000000099\n{WRITE}", "a frame to 02:00:00:00:00:99"),
    ],
)
def test_nothing_is_sent_to_another_mac_address(
    drill: Drill, write: Callable[..., Path], lines: str, needed: str
) -> None:
    script = write(lines)

    status, output, errors = end(drill(script))

    assert status == 0
    assert output.startswith(f"skip  {script}: needs {needed}: only the peer is sent to\n")
    assert "frames_sent" not in errors


@pytest.mark.usefixtures("agent")
def test_the_time_line_of_a_link_shows_what_rules_have_done(
    drill: Drill, write: Callable[..., Path]
) -> None:
    lines = "impair > drop nth=1\n+1us < WRITE_ONLY psn ack len=8\n+30ms silence\n"

    status, output, _ = end(drill(write(lines + "state RTR\n")))

    dropped, silence = (output.splitlines()[at].split() for at in (-6, -5))
    assert status == 1
    assert dropped[1:5] == ["1", ">", "ACKNOWLEDGE", "psn"]
    assert dropped[-1] == "(drop)"
    assert silence[1:3] == ["3", "silence"]
    assert float(dropped[0]) <= float(silence[0])


def test_without_an_agent_verbs_are_a_reason_to_skip(
    drill: Drill, write: Callable[..., Path], tmp_path: Path
) -> None:
    """Before any connection is made."""
    write("post_recv wr_id=1\n", "a.drill")
    write("qp access=NONE\n" + WRITE, "b.drill")
    write("+9s silence\n+2s silence\n", "c.drill")
    write(WRITE, "d.drill")
    write("+1us < CM_REQ\n> CM_REJ\n", "e.drill")
    numbers = tmp_path / "numbers.json"
    numbers.write_text('{"qpn": 512, "mtu": 1024}')

    status, output, _ = end(drill(tmp_path, "--connect", "params", "--params", numbers))

    assert status == 0
    reasons = [line.partition(": ")[2] for line in output.splitlines()[:5]]
    assert reasons == [
        "needs post_recv at the device: there is no agent",
        "needs qp access=0: the device's program makes the queue pair",
        "takes 11 s, and the limit is 10 s",
        "needs memory of the device, whose address and R_Key are not known",
        "needs an agent: the device's program does its own connection management",
    ]


# Other ways to a connection.


def test_numbers_in_a_file_are_a_connection(
    lab: Lab,
    started: list[subprocess.Popen[str]],
    drill: Drill,
    write: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """The device got our number before, and has one connection for all cases."""
    _, facts = peer(lab, started, "b", "respond", address="10.0.0.2", peer="10.0.0.1")
    connection = {"qpn": 0x200, "peer_qpn": 0x100, "rq_psn": 0xFFFFF0, "sq_psn": 0x10}
    memory = {"mtu": 1024, "rkey": facts["rkey"], "va": facts["iova"], "size": 1 << 16}
    numbers = tmp_path / "numbers.json"
    numbers.write_text(json.dumps(connection | memory))
    script = write(
        "cases n {\n0\n2\n}\n"
        "+1us < WRITE_ONLY psn+$n ack len=8 at=$n va=end-8\n > ACK psn+$n\n"
        "+1us < READ_REQUEST psn+$n+1 ack va=end-8 dma_len=8\n"
        " > READ_RESPONSE_ONLY psn+$n+1 at=$n\n"
    )

    connect = (script, *CALM, "--connect", "params")
    from_file = end(drill(*connect, "--params", numbers, "--case", "[0]"))
    by_command = end(drill(*connect, "--params-from", f"cat {numbers}", "--case", "[2]"))

    assert from_file[:2] == (0, "1 script, 1 case, profile spec: all passed\n")
    assert by_command[:2] == (0, "1 script, 1 case, profile spec: all passed\n")


def test_a_pingpong_server_is_a_device(
    lab: Lab, processes: Processes, drill: Drill, write: Callable[..., Path]
) -> None:
    """It answers a message with one of its own (rc_pingpong.c)."""
    command = [sys.executable, "-m", "ibwire", "pingpong", "--dev", "veth-b", "-s", "64", "-n", "1"]
    serving = processes.start(lab.command("b", command), lab.environment())
    wait_for(serving.stderr, "waiting for a client")
    script = write(
        "+1us < SEND_ONLY psn ack len=64\n > ACK psn msn=1\n"
        "> SEND_ONLY psn len=64\n+1us < ACK psn msn=1\n"
    )

    assert end(drill(script, *CALM, "--connect", "pingpong"))[:2] == (
        0,
        "1 script, 1 case, profile spec: all passed\n",
    )
    serving.send_signal(signal.SIGTERM)


def test_a_listener_of_the_connection_manager_is_a_device(
    lab: Lab, processes: Processes, drill: Drill, write: Callable[..., Path]
) -> None:
    """A server of rping READs what the client offers: address, key and length (rping.c)."""
    command = [sys.executable, "-m", "ibwire", "rping", "--dev", "veth-b"]
    serving = processes.start(lab.command("b", command), lab.environment())
    wait_for(serving.stderr, "waiting for a client")
    script = write(
        '+1us < SEND_ONLY psn ack data="0000000000010000 00001234 00000040"\n'
        "unordered {\n > ACK psn\n > READ_REQUEST psn va=0x10000 rkey=0x1234 dma_len=64\n}\n"
    )

    status, output, _ = end(drill(script, *CALM, "--connect", "cm"))

    assert (status, output) == (0, "1 script, 1 case, profile spec: all passed\n"), output


# The end.


def test_a_device_that_vanishes_ends_the_run_with_what_was_found(
    lab: Lab, processes: Processes, drill: Drill, write: Callable[..., Path], tmp_path: Path
) -> None:
    serve(lab, processes, "post_recv")
    write(WRITE + "> ACK psn\n", "a.drill")
    write(WRITE + "> ACK psn\npost_recv\n", "b.drill")
    write(WRITE + "> ACK psn\n", "c.drill")
    junit = tmp_path / "out.xml"

    status, output, errors = end(drill(tmp_path, *CALM, "--junit", junit))

    assert status == 1
    failure = f"FAIL  {tmp_path}/b.drill:3: post_recv\n  expected  a device that is there\n"
    assert failure in output
    assert "3 scripts, 3 cases, profile spec: 1 failed, 1 not run\n" in output
    assert f"; the last case was {tmp_path}/b.drill; the other cases did not run\n" in errors
    assert "Traceback" not in errors
    assert '<skipped message="not run: ' in junit.read_text()


@pytest.fixture
def mortal(lab: Lab, tmp_path: Path) -> Iterator[str]:
    """The command that starts, once more, an agent on side b which dies of `post_recv`."""
    file = tmp_path / "agent.pid"
    agent = [sys.executable, str(HERE / "drill_agent.py"), "veth-b", "spec", "post_recv"]
    again = [sys.executable, str(HERE / "again.py"), str(file)]
    yield shlex.join([*again, *lab.command("b", agent)])
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_device_that_dies_is_restarted_and_the_other_cases_run(
    mortal: str, drill: Drill, write: Callable[..., Path], tmp_path: Path
) -> None:
    """It is dead at the start, and dies of the second case."""
    for name in ("a.drill", "c.drill"):
        write(WRITE + "> ACK psn\n", name)
    write(WRITE + "> ACK psn\npost_recv\n", "b.drill")

    status, output, errors = end(drill(tmp_path, *CALM, "--restart", mortal))
    rest = end(drill(tmp_path, *CALM, "--restart", mortal, "--exclude", "b.drill"))

    assert status == 1, errors
    assert f"FAIL  {tmp_path}/b.drill:3: post_recv\n  expected  a device that is there\n" in output
    assert output.endswith("1 failed; the device died 1 time and was restarted\n")
    assert "the device is dead: 10.0.0.2 port 18516: connection refused" in errors
    assert f"; the last case was {tmp_path}/b.drill; restart by " in errors
    assert rest[:2] == (0, "3 scripts, 2 cases, profile spec: all passed\n"), rest


def test_a_restart_that_fails_ends_the_run(drill: Drill, write: Callable[..., Path]) -> None:
    script = write(WRITE)

    status, output, errors = end(drill(script, "--restart", "false"))

    assert (status, output) == (1, "1 script, 1 case, profile spec: 0 passed, 1 not run\n")
    assert "error: restart by false: exit status 1; the other cases did not run\n" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("agent")
def test_a_signal_ends_the_run_with_what_was_found(
    drill: Drill, write: Callable[..., Path], tmp_path: Path, number: int
) -> None:
    write(WRITE + "> ACK psn\n", "a.drill")
    write("+9s silence\n", "b.drill")
    running = drill(tmp_path, *CALM, "-v")
    wait_for(running.stdout, "pass ")
    running.send_signal(number)

    status, output, errors = end(running)

    assert status == 128 + number
    assert "2 scripts, 2 cases, profile spec: 1 passed, 1 not run\n" in output
    assert "error: interrupted; the other cases did not run\n" in errors


def test_absent_peer_is_one_message(drill: Drill, write: Callable[..., Path]) -> None:
    script = write(WRITE)

    status, output, errors = end(drill(script))
    unknown = end(drill(script, address="10.0.0.99"))

    assert status == unknown[0] == 1
    assert (
        "error: 10.0.0.2 port 18516: connection refused: no program listens there; "
        "the other cases did not run\n" in errors
    )
    assert output == "1 script, 1 case, profile spec: 0 passed, 1 not run\n"
    assert "error: veth-a: 10.0.0.99 has not answered for 3 s\n" in unknown[2]
