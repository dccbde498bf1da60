"""Live: ibwire with rxe does what the tools of rdma-core and perftest do with each other."""

from itertools import combinations
from pathlib import Path

import pytest

from interop.rxe.ends import SIZE, Ends, crc, statuses
from interop.rxe.pairwise import pairwise
from interop.rxe.peers import Peers
from interop.rxe.workloads import PERF, PINGPONG, workload

FACTORS = {
    "name": (*PINGPONG, *PERF),
    "mtu": (256, 1024, 4096),
    "role": ("client", "server"),
    "version": (4, 6),
    "profile": ("spec", "rxe"),
}

IMM_DATA = 0x01020304


def test_cells_hold_every_pair_of_values() -> None:
    cells = pairwise(FACTORS)

    for one, other in combinations(range(len(FACTORS)), 2):
        values = list(FACTORS.values())
        wanted = {(a, b) for a in values[one] for b in values[other]}
        assert {(cell[one], cell[other]) for cell in cells} == wanted


@pytest.mark.parametrize(tuple(FACTORS), pairwise(FACTORS))
def test_all_is_done_at_both_ends(
    peers: Peers, tmp_path: Path, name: str, mtu: int, role: str, version: int, profile: str
) -> None:
    work = workload(name, mtu)
    is_client = role == "client"

    meeting = peers.meet(*work.commands(version, profile), is_client=is_client, directory=tmp_path)

    work.assert_done(meeting, is_client=is_client)
    meeting.wire.assert_clean(work.service, profile)
    assert not meeting.wire.damaged


@pytest.mark.parametrize(
    ("requester", "path_mtu", "version", "profile"),
    [
        ("ours", 1, 4, "rxe"),
        ("theirs", 1, 6, "spec"),
        ("theirs", 5, 4, "rxe"),
        ("ours", 5, 6, "spec"),
    ],
)
def test_send_with_immediate(
    peers: Peers, tmp_path: Path, requester: str, path_mtu: int, version: int, profile: str
) -> None:
    """No tool sends one. The second message has no other bytes."""
    length = 5001
    sends = [
        {"opcode": "SEND_WITH_IMM", "length": length, "imm_data": IMM_DATA},
        {"opcode": "SEND_WITH_IMM", "length": 0, "imm_data": 0},
    ]
    common = {"path_mtu": path_mtu, "completions": 2}

    ends = Ends(
        peers,
        tmp_path,
        requester,
        {"sends": sends, **common},
        {"receives": [SIZE, SIZE], **common},
        version=version,
        profile=profile,
    )

    assert statuses(ends.requester) == [0, 0]
    assert ends.responder["done"] == [
        {"status": 0, "opcode": 128, "length": length, "imm_data": IMM_DATA},
        {"status": 0, "opcode": 128, "length": 0, "imm_data": 0},
    ]
    assert ends.responder["crc"] == crc(filled=length)
    ends.wire.assert_clean("RC", profile)
    assert not ends.wire.damaged
