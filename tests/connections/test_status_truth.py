"""The status of emulated connections, whose work requests say how they ended."""

import random

import pytest

from emulated_traffic import Traffic, Work, analysed, run
from ibwire.connections.status import Status
from ibwire.rc.profile import PROFILES
from ibwire.rc.work import WCStatus, WROpcode

WORK = [
    Work(WROpcode.RDMA_WRITE, 3000),
    Work(WROpcode.SEND, 700),
    Work(WROpcode.RDMA_READ, 2500),
    Work(WROpcode.ATOMIC_FETCH_AND_ADD),
] * 4

LATER_NS = 60 * 10**9
"""From the last packet to the end of the capture: a requester that waits has given up by then."""

FINE = {Status.OK, Status.RECOVERED, Status.DEGRADED}


def status(traffic: Traffic, side: str) -> Status:
    """The status in the capture of a side, which goes on for a while."""
    frames = traffic.frames(side)
    frames = [*frames, (frames[-1][0] + LATER_NS, bytes(60))]
    (connection,) = analysed(frames).connections
    return connection.status.status


def outcome(traffic: Traffic) -> set[WCStatus]:
    """How the work requests ended, except those that another one flushed."""
    return {each.status for each in traffic.completions} - {WCStatus.WR_FLUSH_ERR}


@pytest.mark.parametrize("profile", ["rxe", "connectx", "spec"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_without_losses_it_is_ok(profile: str, side: str) -> None:
    traffic = run(WORK, profile=PROFILES[profile])

    assert outcome(traffic) == {WCStatus.SUCCESS}
    assert status(traffic, side) is Status.OK


@pytest.mark.parametrize("seed", range(12))
def test_repaired_losses_leave_nothing_open(seed: int) -> None:
    rng = random.Random(seed)
    acts = {(end, number): ("loss", 0) for end in "ab" for number in rng.sample(range(1, 60), 2)}
    traffic = run(WORK, acts, profile=PROFILES[rng.choice(["rxe", "connectx", "spec"])])

    assert outcome(traffic) == {WCStatus.SUCCESS}
    assert status(traffic, "a") in FINE
    assert status(traffic, "b") in FINE


@pytest.mark.parametrize("seed", [92, 236])
def test_a_read_that_is_retransmitted_alone_is_settled(seed: int) -> None:
    """Later requests were answered already: nothing else is retransmitted, and nothing open."""
    rng = random.Random(seed)
    acts = {
        (end, number): (rng.choice(["loss", "loss", "dup", "late"]), rng.randrange(1000, 90000))
        for end in "ab"
        for number in rng.sample(range(1, 80), rng.randrange(0, 6))
    }
    traffic = run(WORK, acts, profile=PROFILES[rng.choice(["rxe", "connectx", "spec"])])

    assert outcome(traffic) == {WCStatus.SUCCESS}
    assert status(traffic, "b") in FINE


@pytest.mark.parametrize("profile", ["connectx", "spec"])
@pytest.mark.parametrize("first", [1, 2, 5, 14, 23])
def test_an_outage_that_lasts_exceeds_the_retries(profile: str, first: int) -> None:
    """Every packet of the requester from one on is lost. (Linux rxe goes on for much longer.)"""
    acts = {("a", number): ("loss", 0) for number in range(first, 2000)}
    traffic = run(WORK, acts, profile=PROFILES[profile])

    assert outcome(traffic) - {WCStatus.SUCCESS} == {WCStatus.RETRY_EXC_ERR}
    assert status(traffic, "a") is Status.RETRY_EXCEEDED


@pytest.mark.parametrize("first", [3, 9, 20])
def test_responses_that_are_all_lost_exceed_the_retries(first: int) -> None:
    """The capture of the responder cannot show it: every retransmission is answered there."""
    acts = {("b", number): ("loss", 0) for number in range(first, 2000)}
    traffic = run(WORK, acts, profile=PROFILES["spec"])

    assert outcome(traffic) - {WCStatus.SUCCESS} == {WCStatus.RETRY_EXC_ERR}
    assert status(traffic, "a") is Status.RETRY_EXCEEDED
