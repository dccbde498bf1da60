"""`ibwire fuzz` against devices of ours that do not survive it, as its user starts it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from ibwire.fuzz.case import Packet
from ibwire.fuzz.saved import parse_case
from ibwire.lab.veth import Lab
from ibwire_layers.opcodes import OpCode
from live.fuzzing import HERE, PATIENCE, Fuzz, end
from processes import Processes, wait_for

ZERO = {
    "step": "packet",
    "opcode": "RC_RDMA_WRITE_ONLY",
    "length": 7,
    "fields": {"reth.dma_len": 0},
}
INVALIDATE = {"step": "packet", "opcode": "RC_SEND_ONLY_WITH_INVALIDATE"}
RESERVED = {"step": "packet", "opcode": "RC_SEND_ONLY", "fields": {"bth.opcode": 31}}
SEND = {"step": "packet", "opcode": "RC_SEND_ONLY", "length": 20}
WRITE = {"step": "packet", "opcode": "RC_RDMA_WRITE_ONLY", "length": 8}
UNUSUAL = {"rq_psn": 5, "min_rnr_timer": 3, "receives": 2}
AGAIN = {"step": "connect", "connection": {"rq_psn": 7}}

DEAF = """
import socket
with socket.create_server(("", 18516)) as listening:
    print("ready", flush=True)
    programs = []
    while True:
        programs.append(listening.accept())
"""
"""An agent that never answers."""


class Device:
    """A device of ours on side b, and its agent."""

    def __init__(self, lab: Lab, file: Path) -> None:
        self._lab = lab
        self._file = file

    def start(self, profile: str, *weakness: str) -> str:
        """Start it; the command that starts it again."""
        agent = [sys.executable, str(HERE / "frail_agent.py"), "veth-b", profile, *weakness]
        again = [sys.executable, str(HERE / "again.py"), str(self._file)]
        again += self._lab.command("b", agent)
        subprocess.run(again, env=self._lab.environment(), check=True, timeout=PATIENCE)
        return shlex.join(again)

    def end(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(self._file.read_text()), signal.SIGKILL)


@pytest.fixture
def device(lab: Lab, tmp_path: Path) -> Iterator[Device]:
    found = Device(lab, tmp_path / "agent.pid")
    yield found
    found.end()


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Path]:
    """Writes a case of these steps."""

    def write(*steps: object) -> Path:
        found = {"ibwire-fuzz-case": 1, "profile": "spec", "connection": UNUSUAL}
        path = tmp_path / "case.json"
        path.write_text(json.dumps({**found, "steps": steps}))
        return path

    return write


def short(output: str) -> tuple[list[str], dict[str, object]]:
    """Opcodes of a case, and what its connection has of what was unusual."""
    found = parse_case(output.encode(), "case.drill")
    names = {int(opcode): opcode.name for opcode in OpCode}
    steps = [
        names[step.opcode] if isinstance(step, Packet) else type(step).__name__.lower()
        for step in found.steps
    ]
    connection = asdict(found.connection)
    return steps, {name: connection[name] for name in UNUSUAL if connection[name] == UNUSUAL[name]}


# A run.


def test_crashing_case_is_minimised_when_the_device_can_be_restarted(
    device: Device, fuzz: Fuzz, tmp_path: Path
) -> None:
    """And the run continues to its end."""
    again = device.start("spec", "opcode", "dies")
    found = tmp_path / "found"

    status, output, errors = fuzz(
        "--ops", "parser", "--budget", "60pkt", "--restart", again, "-o", found, "--json"
    )
    finding, *_, run = map(json.loads, output.splitlines())
    replayed = fuzz("replay", found / "F0001")

    assert (status, run["lost"], run["packets"]) == (1, None, 60), errors
    assert [*run["findings"]] == ["every connection is dead after a reserved opcode"]
    assert len(finding["steps"]) == 1
    assert "searching for the shortest case: 32 restarts at most\n" in errors
    assert f"the device is dead; restart by {again}" in errors
    assert (found / "F0001" / "case.drill").exists()
    assert replayed[0] == 1
    assert "got       every connection is dead: 10.0.0.2 port 18516: " in replayed[1]


@pytest.mark.parametrize(
    ("harm", "bucket"),
    [
        ("others", "another connection is dead after a reserved opcode"),
        ("scribbles", "memory of another connection has changed after a reserved opcode"),
    ],
)
def test_harm_to_other_connections_is_found_and_the_run_continues(
    device: Device, fuzz: Fuzz, tmp_path: Path, harm: str, bucket: str
) -> None:
    """The finding replays from the case in which it was met."""
    device.start("spec", "opcode", harm)
    found = tmp_path / "found"

    status, output, errors = fuzz("--ops", "parser", "--budget", "150pkt", "-o", found, "--json")
    finding, *_, run = map(json.loads, output.splitlines())
    replayed = fuzz("replay", found / "F0001" / "original.drill")

    assert (status, run["lost"], run["packets"]) == (1, None, 150), errors
    assert [*run["findings"]] == [bucket]
    assert len(finding["steps"]) == 1
    assert replayed[0] == 1, replayed


def test_a_restart_that_fails_ends_the_run_with_what_was_found(device: Device, fuzz: Fuzz) -> None:
    device.start("spec", "opcode", "dies")
    command = shlex.join([sys.executable, "-c", "raise SystemExit('no power')"])

    status, output, _ = fuzz("--ops", "parser", "--budget", "150pkt", "--restart", command)

    assert status == 1
    assert "F0001  every connection is dead after " in output
    ended = f"ended     the device is not there: restart by {command}: exit status 1: no power\n"
    assert ended in output


def test_device_that_is_dead_at_the_start_is_restarted(device: Device, fuzz: Fuzz) -> None:
    again = device.start("spec", "zero", "dies")
    device.end()

    status, output, errors = fuzz("--ops", "dup", "--budget", "30pkt", "--restart", again)

    assert status == 0, errors
    assert f"the device is dead; restart by {again}\n" in errors
    assert output.startswith("30 packets, ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_is_brought_back_ends_the_run_with_what_was_found(
    device: Device, fuzz: Fuzz, tmp_path: Path, number: int
) -> None:
    device.start("spec", "opcode", "dies")
    found = tmp_path / "found"
    running = fuzz.start("--ops", "parser", "-o", found, "--restart", "sleep 100")
    wait_for(running.stderr, "the device is dead; restart by sleep 100")
    running.send_signal(number)

    status, _, errors = end(running)

    assert status == 130, errors
    assert len(json.loads((found / "run.json").read_text())["findings"]) == 1
    assert (found / "F0001" / "case.pcapng").exists()


# A case.


@pytest.mark.parametrize(
    ("weakness", "steps", "needed"),
    [
        ("zero", [SEND, WRITE, ZERO, WRITE], [ZERO]),
        ("twice", [SEND, INVALIDATE, WRITE, INVALIDATE], [INVALIDATE, INVALIDATE]),
    ],
)
def test_a_deadly_case_is_made_shorter_on_a_device_that_is_brought_back(
    *,
    device: Device,
    fuzz: Fuzz,
    case: Callable[..., Path],
    weakness: str,
    steps: list[dict[str, object]],
    needed: list[dict[str, object]],
) -> None:
    again = device.start("spec", weakness, "dies")

    status, output, errors = fuzz("min", case(*steps), "--restart", again)

    assert status == 1, errors
    assert short(output) == ([each["opcode"] for each in needed], {})


def test_a_deadly_case_may_have_several_connections(
    device: Device, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    device.start("spec", "across", "dies")

    status, output, errors = fuzz("replay", case(INVALIDATE, WRITE, AGAIN, INVALIDATE))

    assert status == 1, errors
    assert "differs at step 4" in output


def test_a_case_of_several_connections_that_is_outlived_shows_nothing(
    device: Device, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    device.start("spec", "across", "dies")

    status, output, errors = fuzz("replay", case(WRITE, AGAIN, SEND), "-v")

    assert status == 0, errors
    assert "no difference between live:10.0.0.2 and the reference" in output
    assert output.count("\n  step ") == 2


@pytest.mark.parametrize(
    "fields", [{"ip.dst": 0x08080808}, {"eth.dst": 0x010000C28001}, {"eth.type": 0x86DD}]
)
def test_case_for_another_destination_is_not_executed(
    device: Device, fuzz: Fuzz, case: Callable[..., Path], fields: dict[str, int]
) -> None:
    device.start("spec", "zero", "dies")

    for command in ("replay", "min"):
        status, output, errors = fuzz(command, case({**WRITE, "fields": fields}))

        assert (status, output) == (2, "")
        assert "only the peer is sent to" in errors


def test_device_that_crashes_when_asked_again_is_reported(
    device: Device, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    """A case is carried out twice for a replay: to be judged, and to be recorded."""
    device.start("spec", "across", "dies")

    status, output, errors = fuzz("replay", case(INVALIDATE, WRITE))

    assert status == 1, errors
    assert "differs at step 1" in output
    assert "got       10.0.0.2 port 18516 has closed its connection" in output


def test_harm_to_other_connections_is_made_shorter_without_a_restart(
    device: Device, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    device.start("spec", "opcode", "others")

    status, output, errors = fuzz("min", case(WRITE, SEND, RESERVED, WRITE))

    assert status == 1, errors
    assert short(output) == (["RC_SEND_ONLY"], {})


def test_what_a_device_does_otherwise_is_made_shorter_on_it(
    device: Device, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    """MigReq is 0 in what rxe sends (reference/habits#rxe-headers)."""
    device.start("rxe", "zero", "dies")

    status, output, errors = fuzz("min", case(WRITE, SEND, RESERVED, WRITE))

    assert status == 1, errors
    assert short(output)[0] == ["RC_RDMA_WRITE_ONLY"]


def test_crashing_case_is_not_minimised_without_a_restart(
    device: Device, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    device.start("spec", "zero", "dies")

    status, output, errors = fuzz("min", case(ZERO))

    assert (status, output) == (1, "")
    assert "a case that ends it is made shorter with --restart COMMAND\n" in errors


# A silent device.


@pytest.mark.parametrize(
    ("harm", "what"),
    [("stalls", "every connection is dead"), ("falls_deaf", "no new connection can be had")],
)
def test_silent_device_is_dead(
    device: Device, fuzz: Fuzz, case: Callable[..., Path], harm: str, what: str
) -> None:
    device.start("spec", "zero", harm)

    status, output, _ = fuzz("replay", case(WRITE, ZERO, WRITE))

    assert status == 1
    assert f"{what}: no answer of the agent at 10.0.0.2 port 18516 for 5 s" in output


def test_a_host_that_has_gone_is_the_end_and_the_last_case_a_finding(
    device: Device, lab: Lab, fuzz: Fuzz
) -> None:
    """Its end of the cable is down."""
    device.start("rxe", "zero", "dies")
    running = fuzz.start("--budget", "1h")
    wait_for(running.stdout, "F0001")
    cable = ["ip", "link", "set", "veth-b"]
    subprocess.run(lab.command("b", [*cable, "down"]), env=lab.environment(), check=True)

    try:
        status, output, errors = end(running)
    finally:
        subprocess.run(lab.command("b", [*cable, "up"]), env=lab.environment(), check=True)

    assert status == 1, errors
    assert "  the host is dead after " in output
    assert "\nended     the device is not there: veth-a: " in output


def test_silent_agent_is_reported(
    lab: Lab, processes: Processes, fuzz: Fuzz, case: Callable[..., Path]
) -> None:
    deaf = processes.start(lab.command("b", [sys.executable, "-c", DEAF]), lab.environment())
    wait_for(deaf.stdout, "ready")

    run = fuzz("--budget", "1kpkt")
    replayed = fuzz("replay", case(WRITE))

    silence = "no answer of the agent at 10.0.0.2 port 18516 for 5 s\n"
    assert f"ended     the device is not there: {silence}" in run[1]
    assert f"error: {silence}" in replayed[2]
    assert (run[0], replayed[0]) == (1, 1)
