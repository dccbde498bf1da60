"""Live: `ibwire tap` between ibwire and rxe: its plan is applied, and both ends recover."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.rxe.peers import Peers
from interop.rxe.workloads import workload

TAP = "from ibwire.cli.tap import command; command(prog_name='ibwire tap')"

PLAN = """
[[from.a]]
drop = { opcode = "request", psn = 5, nth = 1 }
[[from.a]]
corrupt = { opcode = "request", psn = 20, nth = 1, where = "payload" }
[[from.b]]
drop = { opcode = "request", psn = 9, nth = 1 }
[[from.b]]
duplicate = { opcode = "request", psn = 14, nth = 1 }
[[from.b]]
mark_ecn = { opcode = "request", psn = 30, nth = 1, force = true }
"""


@pytest.fixture
def sides(peers: Peers) -> Iterator[tuple[str, str]]:
    """The guest's tap and the end of our port, which no bridge joins meanwhile."""
    ours = peers.port.replace("port", "bridge")
    for name in (ours, peers.tap):
        peers.network.run("ip", "link", "set", name, "nomaster")
    yield ours, peers.tap
    for name in (ours, peers.tap):
        peers.network.run("ip", "link", "set", name, "master", "bridge")


@pytest.mark.parametrize("role", ["client", "server"])
def test_plan_happens_and_is_survived(
    peers: Peers, sides: tuple[str, str], tmp_path: Path, role: str
) -> None:
    work = workload("rc pingpong", 1024)
    ours, theirs = work.commands(4, "spec")
    (tmp_path / "plan.toml").write_text(PLAN)
    captures = [tmp_path / "side-a.pcapng", tmp_path / "side-b.pcapng"]
    tap = peers.start(
        "-c",
        TAP,
        "--between",
        *sides,
        "--plan",
        str(tmp_path / "plan.toml"),
        "--json",
        "-o",
        str(captures[0]),
        "-o",
        str(captures[1]),
    )
    # Before that nothing passes, not even the question for a MAC address.
    tap.wait_for_words("passing between")

    meeting = peers.meet(ours, theirs, is_client=role == "client", directory=tmp_path)
    tap.process.send_signal(signal.SIGINT)
    ended = tap.wait()

    work.assert_done(meeting, is_client=role == "client")
    assert ended.status == 128 + signal.SIGINT, ended.errors
    *events, end = map(json.loads, ended.output.splitlines())
    assert [rule["frames"] for rule in end["rules"]] == [1] * 5
    assert not end["problems"]
    found = peers.start(
        "-m", "ibwire", "flows", str(captures[0]), "--other", str(captures[1]), "--json"
    ).wait()
    told = [json.loads(line) for line in found.output.splitlines()]
    assert sorted(
        (kind, each["frame"], each["psn"])
        for direction in told
        for kind in ("lost", "damaged", "duplicated", "marked", "reordered")
        for each in direction[f"{kind}_between"]
    ) == sorted((KINDS[each["action"]], each["packet"], each["psn"]) for each in events)


KINDS = {"drop": "lost", "corrupt": "damaged", "duplicate": "duplicated", "mark_ecn": "marked"}
"""What `ibwire flows --other` calls the event."""
