"""`ibwire fuzz` against a device of ours on a real link, as its user starts it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from ibwire.capture import open_capture
from ibwire.lab.veth import ADDRESSES, Lab
from live.fuzzing import Fuzz, Serve, end
from processes import wait_for

DEVIATIONS = {
    "BTH.MigReq is 0 without an alternate path",
    "the ACK of a duplicate has the PSN of the last packet executed, whatever that was",
    "a READ that is replayed from its middle begins with MIDDLE or LAST",
    "a SEND longer than the receive draws NAK remote operational error",
    "a payload that is not a multiple of 4 is accepted without padding",
    "a reserved opcode is discarded and not NAKed",
    "the payload of SENDs is not checked against position and path MTU",
}
"""Of profile rxe, as far as its responder shows them (docs/reference/habits.md)."""

BTH = 42
"""After Ethernet, IPv4 and UDP."""

DEST_QP = slice(BTH + 5, BTH + 8)

READ_REQUEST = 0x0C
"""RC RDMA READ Request (IBA 9.2, opcodes.csv)."""


def test_known_deviations_are_found_by_name(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    """With cases that replay on another connection, and scripts that the device fails."""
    serve("drill_agent.py", "rxe")
    directory = tmp_path / "found"

    ops = ("--ops", "length,dup,parser", "--seed", 7)
    status, output, errors = fuzz("--budget", "1500pkt", *ops, "-o", directory, "--json")
    *found, run = map(json.loads, output.splitlines())
    replayed = fuzz("replay", directory / "F0001")

    assert {name for each in found for name in each["bucket"].split("; ")} >= DEVIATIONS, errors
    assert all(each["known_deviation"] for each in found), output
    assert status == 1
    assert run["lost"] is None
    assert all(len(each["steps"]) <= 5 for each in found)
    assert all((directory / f"F000{n}" / "case.pcapng").exists() for n in range(1, 6))
    assert replayed[0] == 1, replayed
    assert "differs at step" in replayed[1]
    told = (directory / "F0001" / "report.txt").read_text()
    assert f"ibwire drill {directory}/F0001/case.drill --dev veth-a --peer 10.0.0.2\n" in told


@pytest.mark.parametrize("profile", ["spec", "rxe"])
def test_a_device_like_its_reference_raises_no_alarm(
    serve: Serve, fuzz: Fuzz, profile: str
) -> None:
    serve("drill_agent.py", profile)

    status, output, errors = fuzz("--budget", "4kpkt", "--seed", 5, "--profile", profile, "--json")

    run = json.loads(output.splitlines()[-1])
    assert (status, run["findings"], run["choices"]) == (0, {}, {}), output + errors
    assert run["packets"] == 4000


@pytest.mark.parametrize("role", ["responder", "requester"])
def test_pfc_frames_are_sent_when_they_are_asked_for(
    serve: Serve, fuzz: Fuzz, tmp_path: Path, role: str
) -> None:
    """From our port, and to no other address but that of the link's ports (IEEE 802.1Q 36)."""
    serve("drill_agent.py", "spec")
    tap = tmp_path / "tap.pcapng"

    ops = ("--role", role, "--ops", "pfc", "--budget", "200pkt", "--tap", tap)
    status, output, errors = fuzz(*ops, "--json")

    assert (status, json.loads(output)["findings"]) == (0, {}), output + errors
    with open_capture(str(tap)) as capture:
        sent = [record.data for record in capture.records()]
    frames = [frame for frame in sent if frame[12:14] == b"\x88\x08"]
    assert len(frames) > 10
    assert {bytes(frame[:6]).hex() for frame in frames} == {"0180c2000001"}
    assert len({bytes(frame[6:12]) for frame in frames}) == 1
    assert {bytes(frame[14:16]).hex() for frame in frames} == {"0101"}


def test_device_with_ipv6_gives_the_same_results(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    """With its deviations, and a case that replays."""
    serve("drill_agent.py", "rxe")
    directory = tmp_path / "found"
    peer, host = ADDRESSES["b"]

    ops = ("--ops", "length,parser", "--budget", "300pkt", "-o", directory, "--host", peer)
    status, output, errors = fuzz(*ops, "--json", peer=host)
    *found, run = map(json.loads, output.splitlines())
    replayed = fuzz("replay", directory / "F0001", "--host", peer, peer=host)

    assert (status, run["lost"], run["unstable"]) == (1, None, {}), errors
    assert "BTH.MigReq is 0 without an alternate path" in run["findings"]
    assert all(each["known_deviation"] for each in found), output
    assert replayed[0] == 1, replayed
    with open_capture(str(directory / "F0001" / "case.pcapng")) as capture:
        kinds = {bytes(record.data[12:14]).hex() for record in capture.records()}
    assert kinds == {"86dd"}


def test_frames_go_to_the_peer_only(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    """Nor more in a second than may be, but for a READ now and then of the control connection.

    What is sent beside the packets of cases is said: on this device the fingerprint alone.
    """
    serve("drill_agent.py", "spec")
    tap = tmp_path / "tap.pcapng"

    status, output, _ = fuzz("--budget", "200pkt", "--rate", 100, "--tap", tap, "--json")

    run = json.loads(output)
    assert status == 0, output
    with open_capture(str(tap)) as capture:
        frames = [(record.time_ns, bytes(record.data)) for record in capture.records()]
    own_mac = frames[0][1][6:12]
    sent = [(time, frame) for time, frame in frames if frame[6:12] == own_mac]
    assert {frame[:6] for _, frame in sent} == {frames[0][1][:6]}
    control = sent[0][1][DEST_QP]
    cases = [time for time, frame in sent if frame[DEST_QP] != control]
    assert len(cases) == run["sent"] > run["packets"] == 200
    assert cases[-1] - cases[0] >= 1e7 * (len(cases) - 10)
    assert {frame[BTH] for _, frame in sent if frame[DEST_QP] == control} == {READ_REQUEST}


def test_crash_of_a_device_is_a_finding_and_ends_the_run(
    serve: Serve, fuzz: Fuzz, tmp_path: Path
) -> None:
    """The agent dies when it is first asked for completions: after a case."""
    serve("drill_agent.py", "spec", "collect")
    directory = tmp_path / "found"

    status, output, errors = fuzz("--budget", "1kpkt", "-o", directory)

    assert status == 1, errors
    assert "F0001  every connection is dead after " in output
    assert "\nended     the device is not there: 10.0.0.2 port 18516: " in output
    assert "made shorter with --restart COMMAND, and the run continues\n" in errors
    assert json.loads((directory / "run.json").read_text())["findings"]
    with open_capture(str(directory / "F0001" / "case.pcapng")) as capture:
        assert list(capture.records())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_what_was_found(
    serve: Serve, fuzz: Fuzz, tmp_path: Path, number: int
) -> None:
    serve("drill_agent.py", "rxe")
    directory = tmp_path / "found"
    running = fuzz.start("--budget", "1h", "-o", directory)
    wait_for(running.stdout, "F0001")
    running.send_signal(number)

    status, _, errors = end(running)

    assert status == 130, errors
    assert "the findings so far are saved" in errors
    assert json.loads((directory / "run.json").read_text())["findings"]


def test_nothing_is_sent_on_the_interface_of_the_default_route(lab: Lab, fuzz: Fuzz) -> None:
    def route(what: str) -> None:
        command = ["ip", "route", what, "default", "dev", "veth-a"]
        subprocess.run(lab.command("a", command), check=True)

    route("add")
    try:
        status, _, errors = fuzz("--budget", "1kpkt")
    finally:
        route("del")

    assert status == 1
    assert "error: veth-a: refused: the default route of this machine uses it" in errors
    assert "frames_sent" not in errors


def test_absent_peer_is_one_message(fuzz: Fuzz) -> None:
    silent = fuzz("--budget", "1kpkt")
    unknown = fuzz("--budget", "1kpkt", peer="10.0.0.99")

    assert "ended     the device is not there: 10.0.0.2 port 18516: connection refused" in silent[1]
    assert "on its host an agent must run: ibwire agent, or python3 agent.py\n" in silent[1]
    assert "error: veth-a: 10.0.0.99 has not answered for 3 s\n" in unknown[2]
    assert (silent[0], unknown[0]) == (1, 1)
