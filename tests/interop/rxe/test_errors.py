"""Live: what must fail between ibwire and rxe fails at both ends, with the right status."""

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from interop.rxe.ends import SIZE, Ends, crc, statuses
from interop.rxe.peers import OWN_CAPTURE, Peers
from interop.rxe.wire import Wire

SUCCESS, LOC_LEN_ERR, LOC_QP_OP_ERR, WR_FLUSH_ERR = 0, 1, 2, 5
REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR = 9, 10, 11, 12, 13
"""Numbers of `enum ibv_wc_status` (rdma-core, libibverbs/verbs.h)."""

NAK_INVALID_REQUEST, NAK_ACCESS, NAK_OPERATIONAL = 0x61, 0x62, 0x63
RNR_NAK = 0x20 | 12
"""AETH syndromes (IBA 9.7.5.1); 12 is `min_rnr_timer`."""

requester = pytest.mark.parametrize("requester", ["ours", "theirs"])


@requester
@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_wrong_key_is_an_access_error_and_touches_nothing(
    peers: Peers, tmp_path: Path, requester: str, opcode: str
) -> None:
    """Later requests are flushed, and so are the posted receives of the responder."""
    sends = [
        {"opcode": opcode, "length": 5000, "wrong_key": 0x100},
        {"opcode": opcode, "length": 5000},
    ]

    ends = Ends(
        peers,
        tmp_path,
        requester,
        {"sends": sends, "completions": 2},
        {"receives": [10], "completions": 1},
    )

    assert statuses(ends.requester) == [REM_ACCESS_ERR, WR_FLUSH_ERR]
    assert statuses(ends.responder) == [WR_FLUSH_ERR]
    assert ends.naks == [NAK_ACCESS]
    assert ends.requester["crc"] == crc(filled=SIZE)
    assert ends.responder["crc"] == crc()
    ends.wire.assert_clean()


@requester
def test_receiver_that_is_never_ready_is_given_up(
    peers: Peers, tmp_path: Path, requester: str
) -> None:
    """It is sent once, and retransmitted `rnr_retry` times."""
    rnr_retry = 2
    sends = [{"opcode": "SEND", "length": 100}]

    ends = Ends(
        peers,
        tmp_path,
        requester,
        {"rnr_retry": rnr_retry, "sends": sends, "completions": 1},
        {},
    )

    assert statuses(ends.requester) == [RNR_RETRY_EXC_ERR]
    assert statuses(ends.responder) == []
    assert ends.naks == [RNR_NAK] * (rnr_retry + 1)
    ends.wire.assert_clean()


@pytest.mark.parametrize(
    ("requester", "profile", "nak", "sent", "received"),
    [
        # rxe reports an error of its own memory.
        ("ours", "spec", NAK_OPERATIONAL, REM_OP_ERR, LOC_QP_OP_ERR),
        ("theirs", "rxe", NAK_OPERATIONAL, REM_OP_ERR, LOC_QP_OP_ERR),
        ("theirs", "spec", NAK_INVALID_REQUEST, REM_INV_REQ_ERR, LOC_LEN_ERR),
    ],
)
def test_message_longer_than_its_buffer_fails_at_both_ends(
    peers: Peers,
    tmp_path: Path,
    requester: str,
    profile: str,
    nak: int,
    sent: int,
    received: int,
) -> None:
    sends = [{"opcode": "SEND", "length": 5000}]

    ends = Ends(
        peers,
        tmp_path,
        requester,
        {"sends": sends, "completions": 1},
        {"receives": [2000], "completions": 1},
        profile=profile,
    )

    assert statuses(ends.requester) == [sent]
    assert statuses(ends.responder) == [received]
    assert ends.naks == [nak]
    ends.wire.assert_clean(profile=profile)


@pytest.mark.parametrize(
    ("requester", "profile", "least", "most"),
    [
        # 4.096 us * 2 ** 14, and up to four times that (IBA 9.7.6.1.3).
        ("ours", "spec", 0.0671, 0.2684),
        # rxe and its profile cut it to ticks of 4 ms, and may be a tick early.
        ("ours", "rxe", 0.060, 0.2684),
        ("theirs", "spec", 0.060, 0.2684),
    ],
)
def test_peer_on_a_dead_link_is_abandoned_in_time(
    peers: Peers, tmp_path: Path, requester: str, profile: str, least: float, most: float
) -> None:
    """A message is sent once and `retry_cnt` times again, one timeout apart each, and when one
    more is over it has failed."""
    retry_cnt = 3
    request: dict[str, Any] = {
        "timeout": 14,
        "retry_cnt": retry_cnt,
        "sends": [{"opcode": "SEND", "length": 100}],
        "completions": 1,
    }
    response: dict[str, Any] = {"timeout": 14, "receives": [100]}
    down, up = (f"ip link set {peers.tap} {state}" for state in ("down", "up"))
    # The commands are for our end, which runs where the link is. The guest gives it time to take
    # the link down, and has given up when the link is up again.
    if requester == "ours":
        request |= {"before": down, "after": up}
    else:
        request |= {"before": "sleep 2"}
        response |= {"before": f"{down}; sleep 8; {up}"}
    seen = []
    for attempt in range(ATTEMPTS):
        directory = tmp_path / str(attempt)
        directory.mkdir()

        ends = Ends(peers, directory, requester, request, response, profile=profile)

        assert statuses(ends.requester) == [RETRY_EXC_ERR]
        assert statuses(ends.responder) == []
        # What has left is only seen on the requester's side of the link.
        sent = ends.tap if requester == "ours" else ends.wire
        times = [packet.time_ns / 1e9 for packet in sent.of(is_ours=requester == "ours")]
        assert len(times) == retry_cnt + 1
        seconds = ends.requester["seconds"]
        assert least * (retry_cnt + 1) <= seconds
        waits = [after - before for before, after in pairwise(times)]
        seen.append((waits, seconds))
        # A busy machine may be late, also with the message that the next is measured from.
        late = 0.5
        if seconds <= (most + late) * (retry_cnt + 1) and all(
            least - 0.005 <= wait <= most + late for wait in waits
        ):
            return
    pytest.fail(f"waits and seconds: {seen}")


ATTEMPTS = 4
"""Measurements, of which a busy machine does not disturb every one."""


@pytest.mark.parametrize(
    ("is_client", "ours", "theirs", "status", "told"),
    [
        (True, 4096, 1024, "REM_OP_ERR", "local QP operation error (2)"),
        (False, 1024, 4096, "LOC_LEN_ERR", "remote invalid request error (9)"),
    ],
)
def test_pingpong_with_messages_of_two_sizes_ends_with_what_both_have_seen(
    peers: Peers, tmp_path: Path, is_client: bool, ours: int, theirs: int, status: str, told: str
) -> None:
    """Unlike the tools, the ends do not compare them before."""
    meeting = peers.meet(
        ["pingpong", "-s", str(ours), "--json"],
        f"ibv_rc_pingpong -g 1 -s {theirs}",
        is_client=is_client,
        directory=tmp_path,
    )

    assert meeting.ours.status == 1
    assert meeting.ours.found["status"] == status
    assert f"error: a completion failed with {status}: " in meeting.ours.errors
    assert meeting.theirs.status == 1
    assert f"Failed status {told} for wr_id" in meeting.theirs.output
    meeting.wire.assert_clean()


@pytest.mark.parametrize("is_client", [True, False])
def test_specification_refuses_packets_of_another_path_mtu(
    peers: Peers, tmp_path: Path, is_client: bool
) -> None:
    """The first packet that is not full ends it (IBA 9.7.4.1.6); no path MTU is compared."""
    meeting = peers.meet(
        ["pingpong", "-m", "1024", "--json"],
        "ibv_rc_pingpong -g 1 -m 256",
        is_client=is_client,
        directory=tmp_path,
    )

    assert (meeting.ours.status, meeting.ours.found["status"]) == (1, "LOC_LEN_ERR")
    assert meeting.theirs.status == 1
    assert "Failed status remote invalid request error (9)" in meeting.theirs.output


@pytest.mark.parametrize("is_client", [True, False])
def test_rxe_takes_packets_of_any_size_and_so_does_its_profile(
    peers: Peers, tmp_path: Path, is_client: bool
) -> None:
    meeting = peers.meet(
        ["pingpong", "-m", "1024", "-n", "50", "--json", "--profile", "rxe"],
        "ibv_rc_pingpong -g 1 -m 256 -n 50",
        is_client=is_client,
        directory=tmp_path,
    )

    assert (meeting.ours.status, meeting.theirs.status) == (0, 0)
    assert meeting.ours.found["passed"]


@pytest.mark.parametrize("is_client", [True, False])
def test_terminated_command_reports_what_it_has_done(
    peers: Peers, tmp_path: Path, is_client: bool
) -> None:
    """And leaves a whole capture. The tool tries for ever, as rxe takes 7 retries."""
    with peers.together(
        ["pingpong", "-n", "1000000"],
        "ibv_rc_pingpong -g 1 -n 1000000",
        is_client=is_client,
        directory=tmp_path,
    ) as (own, other):
        peers.wait_for_traffic()
        own.process.terminate()
        ended = own.wait()
        other.kill()

    assert ended.status == 128 + signal.SIGTERM
    assert "counters: packets_sent" in ended.errors
    assert "Traceback" not in ended.errors
    tap = Wire(tmp_path / OWN_CAPTURE, peers.guest.mac)
    assert len(tap.packets) >= 500


@pytest.mark.parametrize(
    ("test", "is_client", "reasons"),
    [
        # Its queue pair is gone, and our request is given up after eight timeouts: from 67 ms on
        # each twice as long as the one before, 1 s at most.
        ("send", True, ["RETRY_EXC_ERR: the peer has stopped responding"]),
        ("read", True, ["RETRY_EXC_ERR: the peer has stopped responding"]),
        # The kernel resets the connection where the tool has not read everything.
        ("write", False, ["has closed its connection", "Connection reset by peer"]),
    ],
)
def test_peer_that_is_killed_in_the_middle_is_missed(
    peers: Peers, tmp_path: Path, test: str, is_client: bool, reasons: list[str]
) -> None:
    with peers.together(
        ["perf", test, "-n", "1000000", "-s", "1000"],
        f"ib_{test}_bw -F -x 1 -n 1000000 -s 1000",
        is_client=is_client,
        directory=tmp_path,
    ) as (own, other):
        peers.wait_for_traffic()
        other.kill()
        ended = own.wait()

    assert ended.status == 1, ended
    assert any(reason in ended.errors.splitlines()[-1] for reason in reasons), ended.errors
