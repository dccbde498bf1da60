"""Live: perftest's options -R, -b, -q and its latency programs, with ibwire in both roles."""

from pathlib import Path

import pytest

from interop.rxe.peers import GID_INDEX, Meeting, Peers

MESSAGES = 300
SIZE = 3001
"""Bytes, of which the last packet of a message is not full."""

RANDOM = "as runs of glibc's rand()"


def meet(
    peers: Peers, directory: Path, ours: list[str], theirs: str, *, is_client: bool
) -> Meeting:
    common = ["-n", str(MESSAGES), "-s", str(SIZE)]
    meeting = peers.meet(
        ["perf", *ours, *common, "--json"],
        f"{theirs} {' '.join(common)} -F -x {GID_INDEX[4]}",
        is_client=is_client,
        directory=directory,
    )
    assert meeting.ours.status == 0, meeting.ours.errors
    assert meeting.theirs.status == 0, meeting.theirs.output
    found = meeting.ours.found
    assert found["passed"]
    assert found["wrong"] == 0
    assert found["role"] == ("client" if is_client else "server")
    assert found["with"] == "perftest"
    meeting.wire.assert_clean(uses_cm="-R" in ours)
    assert not meeting.wire.damaged
    return meeting


def assert_row(meeting: Meeting, messages: int) -> None:
    """The row of the tool's table begins with size and messages."""
    rows = [row.split()[:2] for row in meeting.theirs.output.splitlines()]
    assert [str(SIZE), str(messages)] in rows


@pytest.mark.parametrize("role", ["client", "server"])
def test_bandwidth_over_the_connection_manager(peers: Peers, tmp_path: Path, role: str) -> None:
    is_client = role == "client"
    meeting = meet(peers, tmp_path, ["send", "-R"], "ib_send_bw -R", is_client=is_client)

    found = meeting.ours.found
    assert found["sent" if is_client else "received"] == MESSAGES
    assert found["verified"] == ({} if is_client else {"messages": RANDOM})
    assert_row(meeting, MESSAGES)


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("options", [[], ["-R"]], ids=["tcp", "cm"])
def test_latency(peers: Peers, tmp_path: Path, role: str, options: list[str]) -> None:
    meeting = meet(
        peers,
        tmp_path,
        ["send", "--latency", *options],
        " ".join(["ib_send_lat", *options]),
        is_client=role == "client",
    )

    found = meeting.ours.found
    assert found["sent"] == found["received"] == MESSAGES
    assert found["verified"] == {"messages": RANDOM}
    times = found["latency_us"]
    assert 0 < times["t_min"] <= times["t_typical"] <= times["t_max"]
    assert_row(meeting, MESSAGES)


@pytest.mark.parametrize("role", ["client", "server"])
def test_two_queue_pairs_in_both_directions(peers: Peers, tmp_path: Path, role: str) -> None:
    meeting = meet(
        peers,
        tmp_path,
        ["send", "-b", "-q", "2"],
        "ib_send_bw -b -q 2",
        is_client=role == "client",
    )

    found = meeting.ours.found
    assert len(found["qpns"]) == 2
    assert found["sent"] == found["received"] == 2 * MESSAGES
    assert found["verified"] == {"messages": RANDOM}
    assert_row(meeting, 2 * MESSAGES)
