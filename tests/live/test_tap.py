"""`ibwire tap` between two real interfaces.

Two ends and a middle, each a namespace; the tap runs in the middle.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ibwire.capture import open_capture
from live.tap_wire import Wire, WireError
from processes import Processes, wait_for

PATIENCE = 60
"""Seconds that anything may take here."""

TAP = "from ibwire.cli.tap import command; command(prog_name='ibwire tap')"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    try:
        built = Wire()
    except WireError as error:
        pytest.skip(f"no namespaces: {error}")
    with built:
        yield built


@pytest.fixture
def start(wire: Wire, processes: Processes) -> Start:
    """Starts a Python program somewhere."""

    def start(where: str, *arguments: object) -> subprocess.Popen[str]:
        command = wire.command(where, sys.executable, *arguments)
        return processes.start(command, stdin=subprocess.PIPE)

    return start


class Tapping:
    """A tap that runs."""

    def __init__(self, start: Start, folder: Path, plan: str, *arguments: object) -> None:
        (folder / "plan.toml").write_text(plan)
        self.process = start(
            "middle",
            "-c",
            TAP,
            "--between",
            "eth1",
            "eth2",
            "--json",
            "--plan",
            folder / "plan.toml",
            *arguments,
        )
        wait_for(self.process.stderr, "passing between")

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[list[Any], dict[str, Any]]:
        """Ends it as its user would; returns its events, and its last output."""
        self.process.send_signal(number)
        told, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 128 + number, said
        *events, end = map(json.loads, told.splitlines())
        return events, end


@pytest.fixture
def tap(start: Start, tmp_path: Path) -> Callable[..., Tapping]:
    return lambda plan, *arguments: Tapping(start, tmp_path, plan, *arguments)


Tap = Callable[..., Tapping]


def play(start: Start, folder: Path, count: int = 20) -> None:
    """Messages of 4096 bytes in both directions; what each end saw is in a.pcapng, b.pcapng."""
    common = ("-m", "ibwire", "pingpong", "--dev", "eth0", "-n", count, "--json", "--tap")
    serving = start("b", *common, folder / "b.pcapng")
    wait_for(serving.stderr, "waiting for a client")
    playing = start("a", *common, folder / "a.pcapng", "--connect", "10.0.0.2")
    ends = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in (playing, serving)]
    assert [each["passed"] for each in ends] == [True, True]


# Plans.


ONE_OF_EACH = """
[[from.a]]
drop = { opcode = "request", psn = 5, nth = 1 }
[[from.a]]
corrupt = { opcode = "request", psn = 20, nth = 1, where = "icrc" }
[[from.a]]
duplicate = { opcode = "request", psn = 30, nth = 1 }
[[from.b]]
drop = { opcode = "RC_ACKNOWLEDGE", nth = 4 }
[[from.b]]
mark_ecn = { opcode = "request", psn = 12, nth = 1, force = true }
[[from.b]]
reorder = { opcode = "request", psn = 25, nth = 1 }
[[from.b]]
corrupt = { opcode = "request", psn = 33, nth = 1, where = "payload" }
"""

BETWEEN = {
    "drop": "lost_between",
    "corrupt": "damaged_between",
    "duplicate": "duplicated_between",
    "reorder": "reordered_between",
    "mark_ecn": "marked_between",
}
"""What `ibwire flows --other` calls the event."""


def between(one: Path, other: Path) -> dict[str, list[tuple[int, str, int]]]:
    """What differs between two captures, by kind: frame, opcode and PSN."""
    command = [sys.executable, "-m", "ibwire", "flows", str(one), "--other", str(other), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout
    found: dict[str, list[tuple[int, str, int]]] = {}
    for direction in map(json.loads, told.splitlines()):
        for kind in (*BETWEEN.values(), "unsent"):
            for each in direction[kind]:
                place = (each.get("frame"), each["opcode_name"], each["psn"])
                found.setdefault(kind, []).append(place)
    return found


def test_exactly_the_planned_events_happen_and_are_survived(
    start: Start, tap: Tap, tmp_path: Path
) -> None:
    sides = [tmp_path / "eth1.pcapng", tmp_path / "eth2.pcapng"]
    tapping = tap(ONE_OF_EACH, "-o", sides[0], "-o", sides[1])
    play(start, tmp_path)

    events, end = tapping.end()

    assert [rule["frames"] for rule in end["rules"]] == [1] * 7
    planned: dict[str, list[tuple[int, str, int]]] = {}
    for each in events:
        place = (each["packet"], each["opcode"], each["psn"])
        planned.setdefault(BETWEEN[each["action"]], []).append(place)
    # The captures at both interfaces of the tap say the same, with the same packet numbers.
    assert between(*sides) == planned
    # And so do those of the two ends, which number their packets themselves.
    ends = between(tmp_path / "a.pcapng", tmp_path / "b.pcapng")
    assert {kind: sorted(each[1:] for each in found) for kind, found in ends.items()} == {
        kind: sorted(each[1:] for each in found) for kind, found in planned.items()
    }


def test_answers_reach_the_end_that_they_are_for(start: Start, tap: Tap, tmp_path: Path) -> None:
    plan = """
    [[from.a]]
    nak = { opcode = "request", psn = 12, nth = 1 }
    [[from.b]]
    cnp = { opcode = "request", psn = 9, nth = 1 }
    [[from.a]]
    pfc = { opcode = "request", psn = 16, nth = 1, priorities = 3 }
    """
    tapping = tap(plan, "-o", tmp_path / "both.pcapng")
    play(start, tmp_path)

    events, _ = tapping.end()

    assert sorted(each["action"] for each in events) == ["cnp", "nak", "pfc"]
    made = between(tmp_path / "a.pcapng", tmp_path / "b.pcapng")
    assert sorted(each[1] for each in made["unsent"]) == ["CNP", "RC_ACKNOWLEDGE"]
    both = tmp_path / "both.pcapng"
    with open_capture(both) as capture:
        commented = {each.number: each.comments for each in capture.records() if each.comments}
    assert commented == {
        each["packet"]: (f"tap: {each['action']} (rule {each['rule']})",) for each in events
    }
    checked = subprocess.run([sys.executable, "-m", "ibwire", "check", str(both)])
    assert checked.returncode == 0


def test_luminas_example_runs_on_a_wire(start: Start, tap: Tap, tmp_path: Path) -> None:
    """Four connections write 100 packets each; two are marked, two lose one."""
    sides = [tmp_path / "eth1.pcapng", tmp_path / "eth2.pcapng"]
    process = start(
        "middle",
        "-c",
        TAP,
        "--between",
        "eth1",
        "eth2",
        "--plan",
        "lumina",
        "-o",
        sides[0],
        "-o",
        sides[1],
    )
    wait_for(process.stderr, "passing between")
    command = ("-m", "ibwire", "perf", "write", "--dev", "eth0", "-q", 4, "-n", 1)
    command += ("-s", 102_400, "-m", 1024)
    serving = start("b", *command)
    wait_for(serving.stderr, "waiting for a client")
    playing = start("a", *command, "--connect", "10.0.0.2")
    _, said = playing.communicate(timeout=PATIENCE)
    assert playing.returncode == 0, said

    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=PATIENCE)

    assert [line for line in told.splitlines() if line.startswith("rule")] == [
        "rule 1 from eth1: mark_ecn applied to 1 frame",
        "rule 2 from eth1: mark_ecn applied to 1 frame",
        "rule 3 from eth1: drop applied to 1 frame",
        "rule 4 from eth1: drop applied to 1 frame",
    ]
    found = {kind: len(each) for kind, each in between(*sides).items()}
    assert found == {"marked_between": 2, "lost_between": 2}


def test_one_of_each_is_survived(start: Start, tap: Tap, tmp_path: Path) -> None:
    process = start(
        "middle", "-c", TAP, "--between", "eth1", "eth2", "--plan", "one-of-each", "--json"
    )
    wait_for(process.stderr, "passing between")
    play(start, tmp_path)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=PATIENCE)

    assert [rule["frames"] for rule in json.loads(told.splitlines()[-1])["rules"]] == [1] * 12


# What passes.


FRAMES = r"""
import random, sys
from ibwire.tap.bridge import Side
sys.path.insert(0, sys.argv[1])
import strategies
rng = random.Random(5)
kinds = [each.data for each in strategies.HANDMADE if each.link_type == 1 and len(each.data) > 14]
frames = []
for number in range(2000):
    data = rng.choice(kinds) if rng.random() < 0.5 else rng.randbytes(rng.randrange(14, 9000))
    # Numbered by their source address, and without a receiver: kernels ignore them.
    head = b"\x02\xff\0\0\0\1" + number.to_bytes(6)
    frames.append((head + data[12:]).ljust(60, b"\0"))
    if rng.random() < 0.2:
        frames[-1] = frames[-1][:12] + b"\x81\x00\x60\x07" + frames[-1][12:]
"""

SEND = (
    FRAMES
    + r"""
with Side("eth0") as side:
    for first in range(0, len(frames), 50):
        side.send(frames[first : first + 50])
    print(side.counters["sent"], flush=True)
    sys.stdin.read()
    back = side.receive()
    print(0 if back is None else len(back))
"""
)

RECEIVE = (
    FRAMES
    + r"""
import select
with Side("eth0") as side:
    print("ready", file=sys.stderr, flush=True)
    came = []
    while len(came) < len(frames):
        if not select.select([side], [], [], 20)[0]:
            break
        batch = side.receive()
        came += [batch.frame(row) for row in range(len(batch))] if batch else []
    print(len(came), came == frames)
"""
)


@pytest.mark.parametrize(
    "plan",
    ["", "[[from.a]]\ndelay = { opcode = 'request', time = '1us', nth = 1000000 }"],
    ids=["no plan", "a plan for other frames"],
)
def test_everything_passes_untouched_and_in_order(start: Start, tap: Tap, plan: str) -> None:
    """Frames of all kinds and sizes, tagged and not; and none of them comes back."""
    tapping = tap(plan)
    tests = Path(__file__).parents[1]
    receiving = start("b", "-c", RECEIVE, tests)
    wait_for(receiving.stderr, "ready")
    sending = start("a", "-c", SEND, tests)

    assert receiving.communicate(timeout=PATIENCE)[0].split() == ["2000", "True"]
    assert sending.communicate(timeout=PATIENCE)[0].split() == ["2000", "0"]
    _, end = tapping.end()
    assert end["frames"] == {"eth1": {"received": 2000}, "eth2": {"sent": 2000}}


SERVE = r"""
import hashlib, socket, sys
with socket.create_server(("", 4000)) as server:
    print("ready", file=sys.stderr, flush=True)
    connection, _ = server.accept()
    with connection:
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
print(len(data), hashlib.sha256(data).hexdigest())
"""

CONNECT = r"""
import hashlib, random, socket, sys
data = random.Random(1).randbytes(3_000_000)
with socket.create_connection(("10.0.0.2", 4000), timeout=20) as connection:
    connection.sendall(data)
print(len(data), hashlib.sha256(data).hexdigest())
"""


@pytest.mark.parametrize("plan", ["", "[[from.a]]\ndelay = '1us'"], ids=["untouched", "delayed"])
def test_tcp_of_kernels_passes(wire: Wire, start: Start, tap: Tap, plan: str) -> None:
    """Their checksums are unfinished on a veth pair, and segments come merged."""
    tapping = tap(plan)
    serving = start("b", "-c", SERVE)
    wait_for(serving.stderr, "ready")
    sent = start("a", "-c", CONNECT).communicate(timeout=PATIENCE)[0]

    assert serving.communicate(timeout=PATIENCE)[0] == sent
    _, end = tapping.end()
    assert not end["problems"]
    # Merged: 3 MB would be more than 330 segments of an MTU of 9000.
    assert end["frames"]["eth1"]["received"] < 330


SPEAK = r"""
from ibwire.tap.bridge import Side
with Side("eth1") as side:
    side.send([b"\x02\xff\0\0\0\1" + bytes(54)] * 5)
"""


def test_what_the_middle_itself_sends_is_not_passed_on(wire: Wire, tap: Tap) -> None:
    tapping = tap("")

    wire.run("middle", sys.executable, "-c", SPEAK)

    _, end = tapping.end()
    assert end["frames"] == {"eth1": {}, "eth2": {}}


# How it ends.


def promiscuity(wire: Wire) -> list[int]:
    links = (
        wire.run("middle", "ip", "-d", "-j", "link", "show", each) for each in ("eth1", "eth2")
    )
    return [json.loads(each)[0]["promiscuity"] for each in links]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_and_leaves_the_interfaces_as_they_were(
    wire: Wire, tap: Tap, tmp_path: Path, number: signal.Signals
) -> None:
    tapping = tap("", "-o", tmp_path / "both.pcapng")
    during = promiscuity(wire)

    events, end = tapping.end(number)

    assert (during, promiscuity(wire)) == ([1, 1], [0, 0])
    assert events == []
    assert end["problems"] == []
    with open_capture(tmp_path / "both.pcapng") as capture:
        assert list(capture.records()) == []
        assert [each.name for each in capture.interfaces.values()] == ["eth1", "eth2"]


def test_delayed_frames_leave_when_it_ends(start: Start, tap: Tap, tmp_path: Path) -> None:
    tapping = tap("[[from.a]]\ndelay = '1000s'", "-o", tmp_path / "both.pcapng")
    receiving = start("b", "-c", RECEIVE, Path(__file__).parents[1])
    wait_for(receiving.stderr, "ready")
    sending = start("a", "-c", SEND, Path(__file__).parents[1])
    assert sending.stdout
    assert sending.stdout.readline() == "2000\n"

    _, end = tapping.end()

    assert receiving.communicate(timeout=PATIENCE)[0].split() == ["2000", "True"]
    assert end["frames"] == {"eth1": {"received": 2000}, "eth2": {"sent": 2000}}
    assert end["rules"][0]["frames"] == 2000


@pytest.mark.parametrize("limit", [("--count", 700), ("--time", 0.2)])
def test_limit_ends_it(start: Start, tap: Tap, limit: tuple[str, float]) -> None:
    tapping = tap("", *limit)
    if limit[0] == "--count":
        start("a", "-c", SEND, Path(__file__).parents[1])

    told, _ = tapping.process.communicate(timeout=PATIENCE)

    assert tapping.process.returncode == 0
    frames = json.loads(told)["frames"]
    assert frames["eth1"].get("received", 0) == (700 if limit[0] == "--count" else 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [("x.pcap", "its name does not end in .pcapng"), ("n/x.pcapng", "cannot be written: ")],
)
def test_unwritable_file_is_reported_first(
    start: Start, tmp_path: Path, name: str, words: str
) -> None:
    process = start(
        "middle",
        "-c",
        TAP,
        "--between",
        "eth1",
        "eth2",
        "--plan",
        "lumina",
        "-o",
        tmp_path / name,
    )
    told, said = process.communicate(timeout=PATIENCE)

    assert (process.returncode, told) == (1, "")
    assert f"{tmp_path / name}: {words}" in said


def test_frames_too_long_for_the_other_side_are_a_failure(
    wire: Wire, start: Start, tap: Tap
) -> None:
    wire.run("middle", "ip", "link", "set", "eth2", "mtu", 1500)
    try:
        tapping = tap("", "--count", 2000)
        start("a", "-c", SEND, Path(__file__).parents[1])
        told, said = tapping.process.communicate(timeout=PATIENCE)
    finally:
        wire.run("middle", "ip", "link", "set", "eth2", "mtu", 9000)

    end = json.loads(told)
    assert tapping.process.returncode == 1
    assert end["frames"]["eth2"]["sent"] + end["frames"]["eth2"]["too_long"] == 2000
    assert "frames lost: longer than the MTU of eth2" in said


def test_link_down_is_reported(wire: Wire, tap: Tap) -> None:
    tapping = tap("")
    wire.run("middle", "ip", "link", "set", "eth2", "down")
    try:
        told, said = tapping.process.communicate(timeout=PATIENCE)
    finally:
        wire.run("middle", "ip", "link", "set", "eth2", "up")

    assert tapping.process.returncode == 1
    assert "eth2: has gone down" in said
    assert json.loads(told)["kind"] == "end"


def test_addresses_on_the_interfaces_are_reported(wire: Wire, start: Start, tmp_path: Path) -> None:
    wire.run("middle", "ip", "addr", "add", "192.0.2.1/24", "dev", "eth1")
    try:
        process = start(
            "middle", "-c", TAP, "--between", "eth1", "eth2", "--plan", "lumina", "--time", 0
        )
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        wire.run("middle", "ip", "addr", "flush", "dev", "eth1")

    assert "note: eth1: has IP addresses, so the kernel of this machine also sends there" in said
