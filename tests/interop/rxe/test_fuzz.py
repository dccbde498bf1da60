"""Live: deviations of Linux rxe that `ibwire fuzz` finds without knowing the target."""

import json
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ibwire.fuzz.case import step_text
from ibwire.fuzz.saved import parse_case
from interop.rxe import boot, network
from interop.rxe.boot import Guest, GuestError
from interop.rxe.conformance import start_agent
from interop.rxe.peers import Ended, Peers, Running
from interop.rxe.wire import THEIRS

DEVIATIONS = {
    "a READ that is replayed from its middle begins with MIDDLE or LAST",
    "a SEND longer than the receive draws NAK remote operational error",
    "a payload that is not a multiple of 4 is accepted without padding",
    "a reserved opcode is discarded and not NAKed",
    "the payload of SENDs is not checked against position and path MTU",
}
"""Those of docs/reference/habits.md that a responder shows."""

SELECTION = ("--ops", "length,dup,parser", "--seed", "7")
"""Attacks among which all of these are met soon, with a guest whose packets are slow."""

REQUESTER_DEVIATIONS = {
    "7 retries are for ever",
    "BTH.MigReq is 0 without an alternate path",
    "a gap in the responses of a READ waits for the timeout",
    "a response out of place does not end its request with BAD_RESP_ERR",
    "an answer to what was never sent acknowledges what was",
    "requests are sent during an RNR wait",
    "the length of READ responses is not checked, and the READ waits for more",
}
"""Those of its section 3 that do not need exact times, and what it makes of wrong answers."""

REQUESTER_SELECTION = ("--role", "requester", "--ops", "reply", "--seed", "14")
"""Attacks among which all of these are met within 60 s, also on a busy machine."""

MOST_GUESTS = 12
"""That may be lost in a run; fewer are needed, unless the machine is slow."""

SECONDS = 40
"""On each guest, at most."""

PATIENCE = 400.0
"""Seconds until a run of that length has ended, with all that it looks at again."""

BOOTS = 900.0
"""Seconds for a case that is made shorter with a guest for every death: on a busy machine four
take 130."""


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

WRITE = {"step": "packet", "opcode": "RC_RDMA_WRITE_ONLY", "length": 8}
INVALIDATE = {"step": "packet", "opcode": "RC_SEND_ONLY_WITH_INVALIDATE"}
DEADLY = [WRITE, INVALIDATE, WRITE, INVALIDATE]
"""The same with something between that does no harm."""


@contextmanager
def with_agent() -> Iterator[Peers]:
    """A guest on which the agent of drill waits."""
    if reason := boot.missing() or network.missing():
        pytest.skip(reason)
    with Peers() as peers:
        start_agent(peers.guest)
        yield peers


class Booting:
    """Boots another guest in the place of the last one whenever its `command` is run.

    The other guest has another MAC address.
    """

    def __init__(self, peers: Peers, path: Path) -> None:
        self.command = shlex.join([sys.executable, "-c", ASK, str(path)])
        self.guests = 0
        self._peers = peers
        self._path = path

    def until_ended(self, running: Running) -> None:
        """Do it until a command of ours has ended."""
        guest = self._peers.guest
        deadline = time.monotonic() + BOOTS
        with socket.socket(socket.AF_UNIX) as listening, ExitStack() as stack:
            listening.bind(str(self._path))
            listening.listen()
            listening.settimeout(0.2)
            while running.process.poll() is None and time.monotonic() < deadline:
                try:
                    asking, _ = listening.accept()
                except TimeoutError:
                    continue
                with asking:
                    guest.close()
                    guest = stack.enter_context(Guest(self._peers.network))
                    guest.add_rxe(f"{THEIRS[4]}/24")
                    start_agent(guest)
                    self.guests += 1
                    asking.sendall(b"up")


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect(sys.argv[1])
    sys.exit(asking.recv(2) != b"up")
"""
"""Asks for another guest, and waits until it is up."""


def start(peers: Peers, *arguments: str) -> Ended:
    """Run a command against the guest."""
    place = ("--dev", peers.port, "--peer", THEIRS[4])
    return peers.start("-m", "ibwire", *arguments, *place).wait(PATIENCE)


@pytest.mark.parametrize(
    ("selection", "tolerance", "wanted"),
    # It retransmits up to 13 ms later than an RNR NAK asks (reference/habits#rxe-rnr-wait).
    [(SELECTION, 20, DEVIATIONS), (REQUESTER_SELECTION, 40, REQUESTER_DEVIATIONS)],
    ids=["responder", "requester"],
)
def test_what_rxe_does_otherwise_is_found_by_name(
    tmp_path: Path, selection: tuple[str, ...], tolerance: int, wanted: set[str]
) -> None:
    """On guest after guest: a kernel may not survive it."""
    directory = tmp_path / "found"
    found: set[str] = set()
    for number in range(MOST_GUESTS):
        where = ("--resume", str(directory)) if number else ("-o", str(directory), *selection)
        with with_agent() as peers:
            late = ("--tolerance", str(tolerance))
            ended = start(peers, "fuzz", *where, *late, "--budget", f"{SECONDS}s")
        # 0: a slow guest has shown nothing yet.
        assert ended.status in (0, 1), ended
        known = json.loads((directory / "run.json").read_text())["findings"]
        found = {name for each in known for name in each["bucket"].split("; ")}
        if found >= wanted:
            break

    assert found >= wanted


def test_its_kernel_does_not_survive_that_a_window_is_invalidated_twice(tmp_path: Path) -> None:
    """Found by a run. rxe_mw.c of Linux 6.1 takes a free window for one that has a queue pair."""
    script = tmp_path / "twice.drill"
    script.write_text(TWICE)

    with with_agent() as peers:
        # On a busy machine the first answer is late, and what comes after it matters.
        ended = start(peers, "drill", str(script), "--tolerance", "1000")
        with pytest.raises(GuestError, match="__rxe_put"):
            peers.guest.run("true")

    assert ended.status == 1


def test_what_it_does_not_survive_is_made_shorter_on_one_guest_after_the_other(
    tmp_path: Path,
) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps({"ibwire-fuzz-case": 1, "profile": "spec", "steps": DEADLY}))

    # The name of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as short, with_agent() as peers:
        booting = Booting(peers, Path(short) / "booting")
        running = peers.start(
            "-m",
            "ibwire",
            "fuzz",
            "min",
            str(case),
            "--restart",
            booting.command,
            "--dev",
            peers.port,
            "--peer",
            THEIRS[4],
        )
        booting.until_ended(running)
        ended = running.wait(PATIENCE)

    assert ended.status == 1, ended
    steps = parse_case(ended.output.encode(), "case.drill").steps
    assert [step_text(each).split()[0] for each in steps] == ["SEND_ONLY_WITH_INVALIDATE"] * 2
    assert booting.guests > 1
