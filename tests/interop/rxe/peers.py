"""A command of ours and one in a guest that talk to each other, and what the wire saw of it.

with Peers() as peers:
    meeting = peers.meet(
        ["pingpong", "--json"], "ibv_rc_pingpong -g 1", is_client=True, directory=path
    )
    assert meeting.ours.status == meeting.theirs.status == 0
    assert not meeting.wire.damaged
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ibwire.base.closing import Closing
from interop.rxe.boot import DEVICE, Guest, GuestError, Job, Result
from interop.rxe.network import Network
from interop.rxe.wire import OURS, THEIRS, Wire

GID_INDEX = {4: 1, 6: 2}
"""Of the guest's addresses, by IP version."""

TCP_PORT = 18515
"""Of the tools of rdma-core and of perftest."""

GUEST_CAPTURE, OWN_CAPTURE = "guest.pcap", "ours.pcapng"
"""Frames between the guest and its tap, and what our `--tap` writes."""

LIMIT = 120.0
"""Seconds for either side of a meeting: a guest without KVM on a busy machine is slow."""

AFTERWARDS = 30.0
"""Seconds for the other side when one has failed."""


class Ended(NamedTuple):
    """How a command of ours ended."""

    status: int
    output: str
    errors: str

    @property
    def found(self) -> Any:
        """The object that it printed with `--json`."""
        return json.loads(self.output.splitlines()[-1])


class Running:
    """A command of ours that runs."""

    def __init__(self, command: Sequence[str]) -> None:
        # Files, so that no reader is needed while it runs.
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors
        )

    def wait_for_port(self, port: int = TCP_PORT, limit: float = LIMIT) -> None:
        """Until it, or another in its namespace, listens at this TCP port, or has ended."""
        listens = f":{port:04X} "
        deadline = time.monotonic() + limit
        while self.process.poll() is None:
            for name in ("tcp", "tcp6"):
                # nsenter becomes the command, in the namespace.
                try:
                    table = Path(f"/proc/{self.process.pid}/net/{name}").read_text()
                except OSError:  # it has just ended
                    break
                # State 0A is LISTEN.
                if any(listens in line and " 0A " in line for line in table.splitlines()):
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"does not listen for {limit:g} s: {self.end()}")
            time.sleep(0.01)

    def wait_for_words(self, words: str, limit: float = LIMIT) -> None:
        """Wait until it prints so on standard error."""
        deadline = time.monotonic() + limit
        # Its place in the file is the command's, too: not to be moved.
        while words not in os.pread(self._errors.fileno(), 1 << 16, 0).decode():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"never says {words!r}: {self.end()}")
            time.sleep(0.01)

    def wait(self, limit: float = LIMIT) -> Ended:
        """Its exit status and output; killed after this many seconds."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.end()

    def end(self) -> Ended:
        """Kill it if it still runs."""
        self.process.kill()
        status = self.process.wait()
        texts = []
        for file in (self._output, self._errors):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Ended(status, *texts)


class Meeting(NamedTuple):
    """How both ended, and what was between them."""

    ours: Ended
    theirs: Result
    wire: Wire
    """The guest's side of it."""


class Peers(Closing):
    """A guest with rxe and a port of ours on one bridge."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network())
            self.port = self.network.add_port(f"{OURS[4]}/24", f"{OURS[6]}/64")
            self.guest = stack.enter_context(Guest(self.network))
            self.tap = _first_tap(self.network)
            """Where the guest is joined to the bridge."""
            self.guest.add_rxe(f"{THEIRS[4]}/24", f"{THEIRS[6]}/64")
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def start(self, *arguments: str) -> Running:
        """Run Python where our port is."""
        return Running(self.network.command(sys.executable, *arguments))

    def wait_for_traffic(self, packets: int = 500) -> None:
        """Wait until the guest has received this many packets more."""
        read = "$(cat /sys/class/net/eth0/statistics/rx_packets)"
        self.guest.check(f"end=$(({read} + {packets})); until [ {read} -gt $end ]; do :; done")

    def meet(
        self,
        ours: Sequence[str],
        theirs: str,
        *,
        is_client: bool,
        directory: Path,
        limit: float = LIMIT,
    ) -> Meeting:
        """Run both until both have ended; see `together`. Raises `GuestError`."""
        with self.together(ours, theirs, is_client=is_client, directory=directory) as (own, other):
            ended = both(own, other, limit)
        return Meeting(*ended, Wire(directory / GUEST_CAPTURE, self.guest.mac))

    @contextmanager
    def together(
        self, ours: Sequence[str], theirs: str, *, is_client: bool, directory: Path
    ) -> Iterator[tuple[Running, Job]]:
        """Two commands that talk to each other, the server first; the caller ends theirs.

        ours: arguments of ibwire, without interface and host; with -R its server is found by
        the connection manager. theirs: a tool, without device and host. is_client: whether
        ours is the client. directory: for both captures.
        """
        tap = ("--dev", self.port, "--tap", str(directory / OWN_CAPTURE))
        arguments = ["-m", "ibwire", *ours, *tap]
        with self.guest.capture(directory / GUEST_CAPTURE):
            if is_client:
                job = self.guest.start(f"{theirs} -d {DEVICE}")
                if "-R" in ours:
                    listens = f"rdma resource show cm_id | grep -q 'LISTEN.*:{TCP_PORT}'"
                    self.guest.check(f"until {listens}; do sleep 0.05; done", LIMIT)
                else:
                    self.guest.wait_for_port(TCP_PORT, LIMIT)
                running = self.start(*arguments, "--connect", THEIRS[4])
            else:
                running = self.start(*arguments)
                if "-R" in ours:
                    running.wait_for_words("waiting for a client")
                else:
                    running.wait_for_port()
                job = self.guest.start(f"{theirs} -d {DEVICE} {OURS[4]}")
            try:
                yield running, job
            finally:
                running.process.kill()


def both(ours: Running, theirs: Job, limit: float = LIMIT) -> tuple[Ended, Result]:
    """How both ended; raises `GuestError` when the guest's does not in time."""
    ended = ours.wait(limit)
    try:
        return ended, theirs.wait(AFTERWARDS if ended.status else limit)
    except GuestError as error:
        raise GuestError(f"{error}\n{ended}") from None


def _first_tap(network: Network) -> str:
    names = (line.split()[1].rstrip(":") for line in network.run("ip", "-o", "link").splitlines())
    return next(name for name in names if name.startswith("tap"))
