"""Live: frames are lost, doubled, swapped and damaged between ibwire and rxe, in both directions,
and every byte arrives."""

import zlib
from pathlib import Path

import pytest

from interop.rxe.ends import Ends, content, statuses
from interop.rxe.pairwise import pairwise
from interop.rxe.peers import Peers
from interop.rxe.workloads import PERF, workload

FAULTS = {
    "1 % loss": "loss = {{ {}, probability = 0.01 }}",
    "5 % loss": "loss = {{ {}, probability = 0.05 }}",
    "duplication": "duplicate = {{ {}, probability = 0.05 }}",
    "reordering": "reorder = {{ {}, probability = 0.05, by = 2, max_delay = '5ms' }}",
    "corruption": "corrupt = {{ {}, probability = 0.02, bits = 3 }}",
}
"""Rules, each for both directions."""

NOT_THE_LAST = "burst = { count = 480 }"
"""Which frames: ping-pong has 540 at least. A tool that has all it wants is gone with its queue
pair, and no retransmission can ask it again for a lost acknowledgement."""

FACTORS = {
    "fault": tuple(FAULTS),
    # The unreliable services promise nothing.
    "name": ("rc pingpong", *PERF),
    "mtu": (256, 1024),
    "role": ("client", "server"),
    "version": (4, 6),
    "profile": ("spec", "rxe"),
}


def plan(directory: Path, fault: str, cell: str = "") -> Path:
    """A file for `--faults`; other frames of each cell are hit, and the same each time."""
    path = directory / "faults.toml"
    rule = FAULTS[fault].format(NOT_THE_LAST)
    path.write_text(f"seed = {zlib.crc32(cell.encode())}\n[[in]]\n{rule}\n[[out]]\n{rule}\n")
    return path


@pytest.mark.parametrize(tuple(FACTORS), pairwise(FACTORS))
def test_all_is_done_at_both_ends(
    peers: Peers,
    tmp_path: Path,
    fault: str,
    name: str,
    mtu: int,
    role: str,
    version: int,
    profile: str,
) -> None:
    work = workload(name, mtu)
    ours, theirs = work.commands(version, profile)
    is_client = role == "client"

    meeting = peers.meet(
        [*ours, "--faults", str(plan(tmp_path, fault, f"{name} {mtu}"))],
        theirs,
        is_client=is_client,
        directory=tmp_path,
    )

    work.assert_done(meeting, is_client=is_client)
    counters = meeting.ours.found["counters"]
    assert counters["faults"] > 0
    meeting.wire.assert_clean(profile=profile)
    # Frames to the guest are damaged before it, those from the guest after it.
    damaged = len(meeting.wire.damaged) + counters.get("bad_icrc", 0)
    assert (damaged > 0) == (fault == "corruption")


@pytest.mark.parametrize("fault", FAULTS)
def test_memory_of_rxe_holds_what_was_written_and_read(
    peers: Peers, tmp_path: Path, fault: str
) -> None:
    """No tool looks at it. We write to its first half while it reads ours to the second."""
    size = 50 * 1024 + 1
    # A loss costs 67 ms.
    common = {"timeout": 14, "retry_cnt": 7, "completions": 1}

    ends = Ends(
        peers,
        tmp_path,
        "ours",
        common | {"size": size, "sends": [write(size)]},
        common | {"size": 2 * size, "sends": [read(size)]},
        faults=plan(tmp_path, fault),
    )

    assert statuses(ends.requester) == statuses(ends.responder) == [0]
    assert ends.responder["crc"] == zlib.crc32(2 * content(size))
    ends.wire.assert_clean()


def write(size: int) -> dict[str, object]:
    return {"opcode": "RDMA_WRITE", "length": size}


def read(size: int) -> dict[str, object]:
    return {"opcode": "RDMA_READ", "length": size, "offset": size}
