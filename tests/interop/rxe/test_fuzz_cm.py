"""Live: what `ibwire fuzz --service` finds in the connection manager of Linux with rxe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ibwire.fuzz.targets.link import listener
from interop.rxe import boot, network
from interop.rxe.peers import Ended, Peers
from interop.rxe.wire import THEIRS

DEADLY = "the manager is dead after a datagram longer than a MAD"

REPEATED_REP = "REP in ESTABLISHED: RTU instead of silence"

DEVIATIONS = {DEADLY, "a datagram shorter than a MAD is taken", REPEATED_REP}
"""QP1 of rxe goes to ERR for what does not fit its receive; ib_mad does not look at the length of
what does; ib_cm takes a REP again for one that is repeated, whichever side has sent the REQ."""

ASKING = {"REQ_SENT", "MRA_REQ_RCVD"}
"""States in which only a side is that asks."""

RARE = {"DREQ with dreq.local_comm_id: silence instead of DREP"}
"""Not found in every run: of the side that asks `cm_acquire_id` compares the sender's ID with
that of the peer, which is 0 until the REP comes."""

MOST_GUESTS = 10
"""That may be lost in a run; fewer are needed, unless the machine is slow."""

SECONDS = 60
"""On each guest, at most."""

PATIENCE = 400.0
"""Seconds until a run of that length has ended, with all that it looks at again."""


TOLERANCE, LONG_TOLERANCE = 50, 400
"""Milliseconds that a guest may be late: without KVM on a busy machine it is slow to answer."""

Open = Callable[[], AbstractContextManager[Peers]]


@contextmanager
def without_listener() -> Iterator[Peers]:
    """A guest with a connection manager, and no program that listens."""
    if reason := boot.missing() or network.missing():
        pytest.skip(reason)
    with Peers() as peers:
        peers.guest.check("modprobe rdma_ucm || true")
        yield peers


@contextmanager
def with_listener() -> Iterator[Peers]:
    """A guest with a listening program."""
    with without_listener() as peers:
        program = Path(listener.__file__).read_text()
        peers.guest.check(f"cat >/tmp/listener.py <<'END'\n{program}\nEND")
        peers.guest.start("python3 /tmp/listener.py >/tmp/said 2>&1")
        peers.guest.check("until grep -q listening /tmp/said; do sleep 0.1; done")
        yield peers


def start(peers: Peers, *arguments: str, version: int = 4, tolerance: int = TOLERANCE) -> Ended:
    """Run the command against the guest, over this version of IP."""
    place = ("--dev", peers.port, "--peer", THEIRS[version], "--service", str(listener.PORT))
    arguments = ("-m", "ibwire", "fuzz", *arguments, *place, "--tolerance", str(tolerance))
    return peers.start(*arguments).wait(PATIENCE)


def unexpected(directory: Path, expected: set[str], opened: Open, version: int = 4) -> set[str]:
    """Findings of a run that another guest shows too, when it has more time to answer."""
    found = set()
    for each in json.loads((directory / "run.json").read_text())["findings"]:
        if each["bucket"] in expected:
            continue
        case = str(directory / f"F{each['number']:04}")
        with opened() as peers:
            ended = start(peers, "replay", case, version=version, tolerance=LONG_TOLERANCE)
        assert ended.status in (0, 1), ended
        if ended.status:
            found.add(each["bucket"])
    return found


def test_what_the_manager_does_otherwise_is_found_and_nothing_else(tmp_path: Path) -> None:
    """On guest after guest: their QP1 does not survive the first."""
    directory = tmp_path / "found"
    found: set[str] = set()
    for number in range(MOST_GUESTS):
        where = ("--resume", str(directory)) if number else ("-o", str(directory), "--seed", "4")
        with with_listener() as peers:
            ended = start(peers, *where, "--budget", f"{SECONDS}s")
            state = peers.guest.check("rdma resource show qp")
        assert ended.status == 1, ended
        known = json.loads((directory / "run.json").read_text())["findings"]
        found = {each["bucket"] for each in known}
        if not number:
            assert (DEADLY in found) is ("type GSI state ERR" in state)
        if found >= DEVIATIONS:
            break

    assert found >= DEVIATIONS
    assert unexpected(directory, DEVIATIONS | RARE, with_listener) == set()
    assert states_in(directory) >= ASKING


def test_the_side_that_asks_does_right_over_ipv6(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    options = ("--budget", "300pkt", "--ops", "order", "--seed", "4", "-o", str(directory))
    with with_listener() as peers:
        ended = start(peers, *options, "--json", version=6)

    run = json.loads(ended.output.splitlines()[-1])
    # A late answer is a difference that is not seen again.
    assert unexpected(directory, {REPEATED_REP}, with_listener, version=6) == set(), ended
    assert (run["packets"], run["lost"]) == (300, None), ended
    assert states_in(directory) >= ASKING


def states_in(directory: Path) -> set[str]:
    """States of connections in which a message was sent."""
    return {state for state, *_ in json.loads((directory / "run.json").read_text())["coverage"]}


def test_manager_without_a_listener_is_attacked_as_any_other(tmp_path: Path) -> None:
    """Every REQ is refused, and what is about no connection answered as by the reference."""
    directory = tmp_path / "run"
    options = ("--budget", "300pkt", "--ops", "order", "-o", str(directory))
    with without_listener() as peers:
        ended = start(peers, *options, "--json")

    run = json.loads(ended.output.splitlines()[-1])
    assert (ended.status, run["lost"]) == (1 if run["findings"] else 0, None), ended
    assert unexpected(directory, set(), without_listener) == set(), ended
