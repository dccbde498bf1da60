"""`ibwire agent`, an emulated device on a link: drill and fuzz meet it as they meet others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import terminal
from ibwire.lab.veth import Lab
from live.fuzzing import Fuzz, end
from processes import Processes, wait_for
from terminal import EVIL

SCRIPTS = Path(__file__).parents[1] / "conformance"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(lab: Lab, processes: Processes) -> Start:
    """Starts a command of ibwire on a side."""

    def start(side: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ibwire", *map(str, arguments)]
        return processes.start(lab.command(side, command), lab.environment())

    return start


def agent(start: Start, *options: object) -> subprocess.Popen[str]:
    process = start("b", "agent", "--dev", "veth-b", *options)
    wait_for(process.stderr, "veth-b: waiting at 10.0.0.2, ")
    return process


@pytest.mark.parametrize(
    ("profile", "failed"), [("spec", []), ("rxe", ["acks/nak-has-the-msn-before.drill"])]
)
def test_scripts_meet_the_device_of_a_profile(
    start: Start, profile: str, failed: list[str]
) -> None:
    """Linux raises no event when it refuses a request (reference/habits#rxe-cm)."""
    agent(start, "--profile", profile)

    scripts = (SCRIPTS / "acks", SCRIPTS / "cm" / "request-reply-ready.drill")
    options = ("--dev", "veth-a", "--peer", "10.0.0.2", "--tolerance", 60, "--json")
    _, output, _ = end(start("a", "drill", *scripts, *options))

    cases = [each for each in map(json.loads, output.splitlines()) if each["kind"] == "case"]
    assert [each["script"] for each in cases if not each["passed"]] == [
        str(SCRIPTS / name) for name in failed
    ]
    assert len(cases) > 4


OWN = ("--address", "10.0.0.20", "--mac", "02:cc:00:00:00:20", "--vlan", "5")


@pytest.mark.parametrize(
    ("own", "peer", "address"),
    [
        ((), "10.0.0.2", "10.0.0.9"),
        ((), "fd00::a00:2", "fd00::9"),
        (OWN, "10.0.0.20", "10.0.0.9"),
    ],
    ids=["ipv4", "ipv6", "own"],
)
def test_agent_resolves_the_address_for_its_responses(
    start: Start, tmp_path: Path, own: tuple[str, ...], peer: str, address: str
) -> None:
    """MAC addresses say nothing of IP addresses, and another host may have one now."""
    agent(start, *own)
    script = tmp_path / "s.drill"
    version = 6 if ":" in peer else 4
    script.write_text(f"  qp version={version}\n  < WRITE_ONLY psn ack\n  > ACK psn\n")
    link = ("--dev", "veth-a", "--peer", peer, "--host", "10.0.0.2", "--tolerance", 100)
    for mac in ("02:bb:00:00:00:07", "02:bb:00:00:00:08"):
        us = ("--address", address, "--mac", mac, *own[-2:])
        _, output, errors = end(start("a", "drill", script, *link, *us))

        assert output == "1 script, 1 case, profile spec: all passed\n", errors


def test_attacks_find_what_a_profile_does_otherwise(start: Start, fuzz: Fuzz) -> None:
    agent(start, "--profile", "rxe")

    status, output, _ = fuzz("--ops", "order", "--stop-after", 4)

    assert status == 1
    assert "target    live:10.0.0.2" in output
    assert "BTH.MigReq is 0 without an alternate path" in output


def test_interrupt_ends_it(start: Start) -> None:
    process = agent(start)
    process.send_signal(signal.SIGINT)

    status, _, errors = end(process)

    assert status == 128 + signal.SIGINT
    assert "counters: " in errors


def test_second_agent_is_refused_with_a_reason(start: Start) -> None:
    agent(start)

    status, _, errors = end(start("b", "agent", "--dev", "veth-b"))

    assert status == 1
    assert "UDP port 4791 is in use" in errors


@pytest.mark.parametrize("given", ["", "not the token of the agent"])
def test_connection_without_the_token_is_refused(start: Start, given: str) -> None:
    agent(start)

    wish = ("--dev", "veth-a", "--peer", "10.0.0.2", "--token", given)
    status, _, errors = end(start("a", "drill", SCRIPTS / "acks", *wish))

    if given:
        assert status == 1
        assert "10.0.0.2 port 18516: the agent refuses: wrong token" in errors
    else:
        assert status == 2
        assert "--token or IBWIRE_TOKEN is required" in errors


def test_what_it_prints_is_what_the_other_side_types(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IBWIRE_TOKEN")
    process = start("b", "agent", "--dev", "veth-b", "--port", 0)
    assert process.stderr is not None
    printed = [process.stderr.readline() for _ in range(4)]
    export, command = (each.split() for each in printed[2:])
    assert (export[0], command[:3]) == ("export", ["ibwire", "drill", "SCRIPT"])

    name, _, token = export[1].partition("=")
    monkeypatch.setenv(name, token)
    options = ["veth-a" if each == "IFACE" else each for each in command[3:]]
    status, output, errors = end(start("a", "drill", SCRIPTS / "acks", *options))

    assert status == 0, errors
    assert output.endswith("all passed\n")


FALSE_AGENT = """
import socket, sys
with socket.create_server(("10.0.0.2", 18516)) as listening:
    print("ready", flush=True)
    while True:
        connected, _ = listening.accept()
        connected.recv(1 << 16)
        connected.sendall(sys.argv[1].encode() + b"\\n")
"""


@pytest.mark.parametrize("answer", [{"refused": EVIL}, {EVIL: EVIL}, [EVIL]])
def test_an_answer_of_an_agent_does_not_control_the_terminal(
    lab: Lab, processes: Processes, tmp_path: Path, answer: object
) -> None:
    serving = [sys.executable, "-c", FALSE_AGENT, json.dumps(answer)]
    process = processes.start(lab.command("b", serving), lab.environment())
    wait_for(process.stdout, "ready")

    drill = [sys.executable, "-m", "ibwire", "drill", str(SCRIPTS / "acks")]
    drill += ["--dev", "veth-a", "--peer", "10.0.0.2"]
    text = terminal.output(lab.command("a", drill), tmp_path, lab.environment())

    assert terminal.controls(text) == []
    assert terminal.MARK in text


IDLE = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096) if most > 0 else 4096, most))
held = [socket.create_connection(("10.0.0.2", 18516)) for _ in range(1000)]
for each in held[::2]:
    try:
        each.sendall(b"junk " * 9)
    except ConnectionError:
        pass  # closed for a newer one
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_thousand_connections_do_not_keep_a_program_out(
    start: Start, lab: Lab, processes: Processes
) -> None:
    agent(start)
    idle = lab.command("a", [sys.executable, "-c", IDLE])
    holding = processes.start(idle, lab.environment(), stdin=subprocess.PIPE)
    wait_for(holding.stdout, "ready")

    link = ("--dev", "veth-a", "--peer", "10.0.0.2", "--tolerance", 60)
    status, output, errors = end(start("a", "drill", SCRIPTS / "acks", *link))

    assert status == 0, output + errors
