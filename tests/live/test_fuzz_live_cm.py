"""`ibwire fuzz --service` against a connection manager of ours on a real link."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from ibwire.capture import open_capture
from ibwire.lab.veth import ADDRESSES, Lab
from live.fuzzing import Fuzz, Serve
from processes import Processes, wait_for

PORT = 7174

ROCE = (4791).to_bytes(2)
"""The UDP port, after Ethernet and IPv4, with or without a tag."""

SERVICE = ("--service", PORT)


@pytest.mark.parametrize("service", [PORT, PORT + 1])
def test_a_right_manager_raises_no_alarm(serve: Serve, fuzz: Fuzz, service: int) -> None:
    """With and without a listening program."""
    serve("cm_server.py", PORT)

    status, output, errors = fuzz("--budget", "1500pkt", "--json", "--service", service)

    run = json.loads(output.splitlines()[-1])
    assert (status, run["findings"], run["lost"]) == (0, {}, None), output + errors
    assert (run["role"], run["packets"], run["unstable"]) == ("cm", 1500, {})


@pytest.mark.parametrize("version", [0, 1], ids=["IPv4", "IPv6"])
def test_a_right_manager_that_asks_itself_raises_no_alarm(
    serve: Serve, fuzz: Fuzz, tmp_path: Path, version: int
) -> None:
    """When the listening program tells it to."""
    serve("cm_caller.py", PORT)
    directory = tmp_path / "run"

    status, output, errors = fuzz(
        "--budget", "1500pkt", "-o", directory, "--json", *SERVICE, peer=ADDRESSES["b"][version]
    )

    run = json.loads(output.splitlines()[-1])
    assert (status, run["findings"], run["lost"], run["unstable"]) == (0, {}, None, {}), errors
    coverage = json.loads((directory / "run.json").read_text())["coverage"]
    states = {state for state, *_ in coverage}
    assert states >= {"REQ_SENT", "MRA_REQ_RCVD", "REP_RCVD", "ESTABLISHED", "DREQ_SENT", "IDLE"}


def test_what_the_side_that_asks_does_wrong_is_found_and_found_again(
    serve: Serve, fuzz: Fuzz, tmp_path: Path
) -> None:
    serve("cm_caller.py", PORT, "stubborn")
    directory = tmp_path / "found"

    status, output, errors = fuzz("--stop-after", 1, "-o", directory, "--json", *SERVICE)
    replayed = fuzz("replay", directory / "F0001", *SERVICE)
    shortened = fuzz("min", directory / "F0001", *SERVICE)

    found, run = map(json.loads, output.splitlines())
    assert (status, run["lost"]) == (1, None), errors
    assert found["bucket"] == "REP in IDLE: RTU instead of silence"
    assert [step.split()[0] for step in found["steps"]] == ["connect", "REJ", "REP"]
    assert (replayed[0], shortened[0]) == (1, 1)
    assert "differs at step" in replayed[1]


def test_a_wrong_answer_is_found_and_found_again(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    """With a case that is as short as can be, and has other numbers when it is replayed."""
    serve("cm_server.py", PORT, "swapped")
    directory = tmp_path / "found"

    status, output, errors = fuzz("--stop-after", 1, "-o", directory, "--json", *SERVICE)
    replayed = fuzz("replay", directory / "F0001", *SERVICE)

    found, run = map(json.loads, output.splitlines())
    assert (status, run["lost"]) == (1, None), errors
    assert found["bucket"].startswith("DREQ: ")
    assert "cm.drep.local_comm_id" in found["bucket"]
    assert len(found["steps"]) <= 2
    assert replayed[0] == 1
    assert "differs at step" in replayed[1]


def test_crash_of_a_manager_is_a_finding_and_ends_the_run(
    serve: Serve, fuzz: Fuzz, tmp_path: Path
) -> None:
    server = serve("cm_server.py", PORT, "fragile")
    directory = tmp_path / "found"

    status, output, errors = fuzz("--ops", "field", "-o", directory, *SERVICE)
    server.send_signal(signal.SIGUSR1)
    replayed = fuzz("replay", directory / "F0001", *SERVICE)
    server.send_signal(signal.SIGUSR1)
    refused = fuzz("min", directory / "F0001", *SERVICE)

    assert status == 1, errors
    assert "F0001  the manager is dead after REQ " in output
    assert "req.transport_service_type=1" in output
    assert "\nended     the device is not there: " in output
    assert "Traceback" not in errors
    with open_capture(str(directory / "F0001" / "case.pcapng")) as capture:
        assert list(capture.records())
    assert (replayed[0], refused[0]) == (1, 1)
    assert "expected  a device that goes on" in replayed[1]
    assert "a case that ends it is made shorter with --restart COMMAND" in refused[2]


def test_what_a_manager_that_comes_back_died_of_is_made_shorter(
    serve: Serve, fuzz: Fuzz, tmp_path: Path
) -> None:
    """And is left out from then on."""
    restart = f"kill -USR1 {serve('cm_server.py', PORT, 'fragile').pid}"
    directory = tmp_path / "found"

    ops = ("--ops", "field", "--budget", "1kpkt", "-o", directory, "--json")
    status, output, errors = fuzz(*ops, "--restart", restart, *SERVICE)

    *found, run = map(json.loads, output.splitlines())
    assert (status, run["lost"], run["packets"]) == (1, None, 1000), errors
    assert found[0]["bucket"].startswith("the manager is dead after REQ ")
    assert len(found[0]["steps"]) == 1
    assert "req.transport_service_type=1" in found[0]["steps"][0]


def test_frames_go_to_the_peer_only(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    """Nor more per second than allowed, with all that is sent besides the cases."""
    serve("cm_server.py", PORT)
    tap = tmp_path / "tap.pcapng"

    status, output, _ = fuzz("--budget", "100pkt", "--rate", 100, "--tap", tap, *SERVICE)

    assert status == 0, output
    with open_capture(str(tap)) as capture:
        frames = [(record.time_ns, bytes(record.data)) for record in capture.records()]
    own_mac = frames[0][1][6:12]
    sent = [(time, frame) for time, frame in frames if frame[6:12] == own_mac]
    assert {frame[:6] for _, frame in sent} == {frames[0][1][:6]}
    assert {frame[26:34] for _, frame in sent} == {bytes([10, 0, 0, 1, 10, 0, 0, 2])}
    assert len(sent) >= 100
    # A machine that is busy sends one late, and the next in time.
    times = [time for time, _ in sent]
    assert min(after - before for before, after in zip(times, times[5:], strict=False)) >= 4e7


def test_service_without_a_listener_is_reported(serve: Serve, fuzz: Fuzz) -> None:
    """Its refusals are still attacked; IB_CM_REJ_INVALID_SERVICE_ID is 8."""
    serve("cm_server.py", PORT)

    status, _, errors = fuzz("--budget", "20pkt", "--service", PORT + 1)

    assert status == 0, errors
    note = f"note: service {PORT + 1}: no program there accepts a connection (REJ 8)"
    assert errors.count(note) == 1


def test_no_response_on_queue_pair_1_is_one_message(fuzz: Fuzz) -> None:
    status, output, errors = fuzz("--budget", "1kpkt", *SERVICE)

    assert status == 1, errors
    assert "ended     the device is not there: 10.0.0.2 does not answer a request on QP1" in output


@pytest.mark.parametrize(
    ("role", "service", "reason"),
    [
        ("cm", (), "role 'cm': on a link it needs --service, the port of a listener there"),
        (
            "responder",
            SERVICE,
            "role 'responder': with --service the connection manager is attacked",
        ),
    ],
)
def test_a_role_that_does_not_fit_is_one_sentence(
    fuzz: Fuzz, role: str, service: tuple[object, ...], reason: str
) -> None:
    status, _, errors = fuzz("--role", role, *service)

    assert status == 2
    assert reason in errors


def test_manager_with_ipv6_has_no_findings(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    serve("cm_server.py", PORT)
    tap = tmp_path / "tap.pcapng"

    status, output, errors = fuzz(
        "--budget", "300pkt", "--tap", tap, "--json", *SERVICE, peer=ADDRESSES["b"][1]
    )

    run = json.loads(output.splitlines()[-1])
    assert (status, run["findings"], run["unstable"]) == (0, {}, {}), output + errors
    with open_capture(str(tap)) as capture:
        kinds = {bytes(record.data[12:14]).hex() for record in capture.records()}
    assert kinds == {"86dd"}


def test_a_manager_in_a_vlan_raises_no_alarm(
    lab: Lab, processes: Processes, fuzz: Fuzz, tmp_path: Path
) -> None:
    """Its address is its own, and so is ours."""
    command = [sys.executable, "-m", "ibwire", "rping", "-P", "--dev", "veth-b"]
    command += ["--address", "10.0.0.7", "--vlan", "5"]
    serving = processes.start(lab.command("b", command), lab.environment())
    wait_for(serving.stderr, "waiting for a client")
    tap = tmp_path / "tap.pcapng"

    status, output, errors = fuzz(
        "--budget",
        "300pkt",
        "--tap",
        tap,
        "--json",
        *SERVICE,
        "--address",
        "10.0.0.8",
        "--vlan",
        5,
        peer="10.0.0.7",
    )

    run = json.loads(output.splitlines()[-1])
    assert (status, run["findings"], run["unstable"]) == (0, {}, {}), output + errors
    with open_capture(str(tap)) as capture:
        frames = [bytes(record.data) for record in capture.records()]
    # The kernel of the other side also sends frames sometimes, without a VLAN tag.
    tags = {frame[12:16].hex() for frame in frames if ROCE in frame[34:42]}
    assert tags == {"81000005"}
