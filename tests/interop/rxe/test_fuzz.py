"""Live: what `ibwire fuzz` finds of Linux rxe without being told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ibwire.drill.ways import AGENT_PORT
from interop.rxe import boot, network
from interop.rxe.boot import DEVICE, GuestError
from interop.rxe.conformance import AGENT
from interop.rxe.peers import Ended, Peers
from interop.rxe.wire import THEIRS

DEVIATIONS = {
    "a READ that is replayed from its middle begins with MIDDLE or LAST",
    "a SEND longer than the receive draws NAK remote operational error",
    "a payload that is no multiple of 4 without padding is taken",
    "a reserved opcode is discarded and not NAKed",
    "the payload of SENDs is not checked against position and path MTU",
}
"""Those of rxe-peer.md, sections 2 and 4, that a responder shows."""

SELECTION = ("--ops", "length,dup,parser", "--seed", "7")
"""Attacks among which all of these are met soon, with a guest whose packets are slow."""

MOST_GUESTS = 6
"""That may be lost in a run."""

SECONDS = 40
"""On each guest, at most."""

PATIENCE = 150.0
"""Seconds until a run of that length has ended, with all that it looks at again."""


TWICE = """
  mw w va=va len=1024 access=REMOTE_READ+REMOTE_WRITE
  post_recv wr_id=1
  post_recv wr_id=2
  +1us  < SEND_ONLY_WITH_INVALIDATE psn ack ieth.rkey=w.rkey
        > ACKNOWLEDGE psn
  +1us  < SEND_ONLY_WITH_INVALIDATE psn+1 ack ieth.rkey=w.rkey
        > ACKNOWLEDGE psn+1
"""
"""Two SENDs that invalidate the same memory window."""


@contextmanager
def with_agent() -> Iterator[Peers]:
    """A guest on which the agent of drill waits."""
    if reason := boot.missing() or network.missing():
        pytest.skip(reason)
    with Peers() as peers:
        peers.guest.check(f"cat >/tmp/agent.py <<'END'\n{AGENT.read_text()}\nEND")
        peers.guest.start(f"python3 /tmp/agent.py --device {DEVICE}")
        peers.guest.wait_for_port(AGENT_PORT)
        yield peers


def start(peers: Peers, *arguments: str) -> Ended:
    """Run a command against the guest."""
    place = ("--dev", peers.port, "--peer", THEIRS[4])
    return peers.start("-m", "ibwire", *arguments, *place).wait(PATIENCE)


def test_what_rxe_does_otherwise_is_found_by_name(tmp_path: Path) -> None:
    """On guest after guest: a kernel may not survive it."""
    directory = tmp_path / "found"
    found: set[str] = set()
    for number in range(MOST_GUESTS):
        where = ("--resume", str(directory)) if number else ("-o", str(directory), *SELECTION)
        with with_agent() as peers:
            ended = start(peers, "fuzz", *where, "--budget", f"{SECONDS}s")
        assert ended.status == 1, ended
        known = json.loads((directory / "run.json").read_text())["findings"]
        found = {each["bucket"] for each in known}
        if found >= DEVIATIONS:
            break

    assert found >= DEVIATIONS


def test_its_kernel_does_not_survive_that_a_window_is_invalidated_twice(tmp_path: Path) -> None:
    """Found by a run. rxe_mw.c of Linux 6.1 takes a free window for one that has a queue pair."""
    script = tmp_path / "twice.drill"
    script.write_text(TWICE)

    with with_agent() as peers:
        ended = start(peers, "drill", str(script))
        with pytest.raises(GuestError, match="__rxe_put"):
            peers.guest.run("true")

    assert ended.status == 1
