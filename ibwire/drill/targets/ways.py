"""Ways to a connection with a device on a real link, a new one for each case of a script.

A way yields the device's end of the connection; our end is a QPN without transport state.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ibwire.base.errors import PeerError
from ibwire.drill.agent.agent_server import PORT
from ibwire.drill.targets.emulated import DEFAULTS, pkey_of
from ibwire.drill.targets.remote import Remote
from ibwire.drill.targets.target import Unable
from ibwire.programs import cm, pingpong
from ibwire.programs.channel import Channel
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.attributes import MTU_BYTES, MTU_CODES, QPState, QPType
from ibwire.rc.device import gid_of
from ibwire.rc.path import is_v4
from ibwire.rc.qp import QueuePair

LONGEST_LINE = 1 << 24
"""Bytes of a reply: memory is read in hexadecimal, 4 MiB at most."""

SECONDS = 10.0
"""Time for a reply over TCP, and for a command that prints numbers."""


@dataclass(slots=True)
class Connected:
    """The device's end of a connection."""

    qpn: int
    mtu: int
    rq_psn: int
    """The first PSN that it expects."""
    sq_psn: int
    memory: Mapping[str, int] = field(default_factory=dict)
    """`va`, `rkey`, `size`, `end` of a region that we can access, if any."""
    verbs: Remote | None = None
    pkey: int = DEFAULTS["pkey"]
    peer_qpn: int | None = None
    """Our QPN as the device sees it, if it is not that of our queue pair."""


class Way(Protocol):
    """How a connection with the device is made."""

    @property
    def has_verbs(self) -> bool:
        """Whether the script can command the device's application."""
        ...

    def connect(
        self, endpoint: Endpoint, qp: QueuePair, given: Mapping[str, int]
    ) -> AbstractContextManager[Connected]:
        """A connection of our queue pair, which ends with the context.

        given: attributes of the device's queue pair in the script. Raises `Unable` for those that
        this way cannot set, `VerbsError` where the device refuses, `LinkError` and `PeerError`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ByAgent:
    """The agent on the device's host makes a queue pair to measure, and carries verbs out.

    token: that the agent has printed. seconds: that it may take to answer. keeps: one TCP
    connection serves connection after connection, which spares a slow device some milliseconds
    each.
    """

    peer: str
    host: str
    token: str = field(repr=False)
    port: int = PORT
    seconds: float = SECONDS
    keeps: bool = False
    _kept: list[Channel] = field(default_factory=list, repr=False, compare=False)
    has_verbs = True

    @contextmanager
    def connect(
        self, endpoint: Endpoint, qp: QueuePair, given: Mapping[str, int]
    ) -> Iterator[Connected]:
        """Connect to a queue pair that the agent makes."""
        settings = {**DEFAULTS, **given}
        device = gid_of(self.peer)
        if (settings["version"] == 4) != is_v4(device):
            raise Unable(f"needs a peer with an IPv{settings['version']} address")
        own = endpoint.device.gids[endpoint.gid_towards(device)]
        with ExitStack() as closing:
            is_new = not self._kept
            channel = closing.enter_context(self._channel() if is_new else self._kept.pop())
            agent = _Agent(endpoint, channel, self.seconds)
            if is_new:
                agent.show(self.token)
            remote = Remote(agent.ask, given, (device, own), qp.number)
            yield Connected(
                qpn=remote.qpn,
                mtu=settings["mtu"],
                rq_psn=settings["rq_psn"],
                sq_psn=settings["sq_psn"],
                memory=remote.symbols,
                verbs=remote,
                pkey=pkey_of(settings),
            )
            # After an error the state of the channel is unknown, so it is not kept.
            if self.keeps:
                closing.pop_all()
                self._kept.append(channel)

    def _channel(self) -> Channel:
        return Channel.connect(self.host, self.port, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class ByPingpong:
    """A server `ibv_rc_pingpong` on the device's host, one for each case."""

    host: str
    port: int = pingpong.PORT
    mtu: int | None = None
    has_verbs = False

    @contextmanager
    def connect(
        self, endpoint: Endpoint, qp: QueuePair, given: Mapping[str, int]
    ) -> Iterator[Connected]:
        """Connect as the client of the server."""
        mtu = endpoint.path_mtu(self.mtu)
        rq_psn = given.get("rq_psn", endpoint.psn())
        _check(given, mtu, rq_psn)
        with self._channel(endpoint) as channel:
            gid = endpoint.device.gids[endpoint.gid_like(channel.address)]
            channel.send(pingpong.Destination(qp.number, rq_psn, gid).pack())
            line = endpoint.read(channel, pingpong.LINE_SIZE, "answer", seconds=SECONDS)
            channel.send(pingpong.DONE)
        peer = pingpong.Destination.unpack(line)
        yield Connected(peer.qpn, mtu, rq_psn, peer.psn)

    def _channel(self, endpoint: Endpoint) -> Channel:
        """Connect to the server; the one of the former case may still be closing."""
        end = endpoint.now_ns + int(SECONDS * 1e9)
        while True:
            try:
                return Channel.connect(self.host, self.port, seconds=SECONDS)
            except PeerError:
                if endpoint.now_ns >= end:
                    raise


@dataclass(frozen=True, slots=True)
class ByManager:
    """A program on the device's host that listens for the connection manager (rdma_cm)."""

    host: str
    port: int
    depth: int = 16
    has_verbs = False

    @contextmanager
    def connect(
        self, endpoint: Endpoint, qp: QueuePair, given: Mapping[str, int]
    ) -> Iterator[Connected]:
        """Request a connection, and end it afterwards."""
        connection = cm.connect(endpoint, self.host, self.port, qp, depth=self.depth)
        try:
            _, attributes = connection.queue_pair_attributes()
            mtu = MTU_BYTES[attributes["path_mtu"]]
            _check(given, mtu, attributes["sq_psn"])
            yield Connected(
                attributes["dest_qp_num"], mtu, attributes["sq_psn"], attributes["rq_psn"]
            )
        finally:
            cm.leave(endpoint, connection)
            cm.settle(endpoint, connection, seconds=cm.ABORT_SECONDS)


@dataclass(frozen=True, slots=True)
class ByParameters:
    """Numbers of a queue pair that another program has connected to us.

    source: a file of JSON, or with `is_command` a command of the shell that prints it, which
    is run for each case with our end in its environment. `peer_qpn` in it is our QPN, for a
    device that got one before.
    """

    source: str
    is_command: bool = False
    has_verbs = False

    @contextmanager
    def connect(
        self, endpoint: Endpoint, qp: QueuePair, given: Mapping[str, int]
    ) -> Iterator[Connected]:
        """Use the numbers of the file or command."""
        numbers = self._numbers(endpoint, qp, given.get("rq_psn", endpoint.psn()))
        _check(given, numbers["mtu"], numbers["rq_psn"])
        memory: dict[str, int] = {
            name: numbers[name] for name in ("va", "rkey", "size") if name in numbers
        }
        if "va" in memory and "size" in memory:
            memory["end"] = memory["va"] + memory["size"]
        yield Connected(
            qpn=numbers["qpn"],
            mtu=numbers["mtu"],
            rq_psn=numbers["rq_psn"],
            sq_psn=numbers["sq_psn"],
            memory=memory,
            peer_qpn=numbers.get("peer_qpn"),
        )

    def _numbers(self, endpoint: Endpoint, qp: QueuePair, psn: int) -> dict[str, int]:
        text = self._run(qp, psn) if self.is_command else self._read()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PeerError(f"{self.source}: not JSON: {error}") from None
        numbers: dict[str, Any] = {"rq_psn": psn, "sq_psn": 0, "mtu": endpoint.path_mtu()}
        if not isinstance(found, dict):
            raise PeerError(f"{self.source}: not a JSON object")
        for name, number in found.items():
            if name not in _LIMITS:
                known = ", ".join(_LIMITS)
                raise PeerError(f"{self.source}: {name[:40]!r} is not one of {known}")
            limit = _LIMITS[name]
            if type(number) is not int or not 0 <= number < limit:
                raise PeerError(f"{self.source}: {name} is {number!r}, not a number below {limit}")
        if "qpn" not in found:
            raise PeerError(
                f"{self.source}: qpn, the number of the device's queue pair, is missing"
            )
        numbers |= found
        if numbers["mtu"] not in MTU_CODES:
            raise PeerError(f"{self.source}: mtu is {numbers['mtu']}, not one of {list(MTU_CODES)}")
        return numbers

    def _read(self) -> bytes:
        try:
            return Path(self.source).read_bytes()
        except OSError as error:
            raise PeerError(f"{self.source}: {error.strerror}") from None

    def _run(self, qp: QueuePair, psn: int) -> bytes:
        own = {"IBWIRE_QPN": str(qp.number), "IBWIRE_PSN": str(psn)}
        try:
            ended = subprocess.run(
                self.source,
                shell=True,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"{self.source}: not ended after {SECONDS:g} s") from None
        if ended.returncode:
            raise PeerError(f"{self.source}: exit status {ended.returncode}")
        return ended.stdout


class _Agent:
    """A question and its reply, each a line; frames are received meanwhile."""

    def __init__(self, endpoint: Endpoint, channel: Channel, seconds: float) -> None:
        self._endpoint = endpoint
        self._channel = channel
        self._seconds = seconds

    def show(self, token: str) -> None:
        """Show the token; raises `PeerError` if the agent does not accept it."""
        answer = self.ask({"do": "hello", "token": token})
        if not isinstance(answer, dict) or "ok" not in answer:
            reason = answer.get("refused", answer) if isinstance(answer, dict) else answer
            raise PeerError(f"{self._channel.peer}: the agent refuses: {reason}")

    def ask(self, question: dict[str, Any]) -> Any:
        channel = self._channel
        channel.send(json.dumps(question).encode() + b"\n")
        line = b""

        def has_come() -> bool:
            nonlocal line
            try:
                is_too_long = channel.read(LONGEST_LINE) is not None
            except PeerError:
                if b"\n" not in channel.waiting:
                    raise
                is_too_long = False  # its last line
            if is_too_long:
                raise PeerError(f"{channel.peer}: a line of more than {LONGEST_LINE} bytes")
            end = channel.waiting.find(b"\n") + 1
            if end:
                line = channel.read(end) or b""
            return bool(end)

        what = f"answer of the agent at {channel.peer}"
        self._endpoint.wait(has_come, what, seconds=self._seconds, watch=[channel.fileno()])
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise PeerError(f"{channel.peer}: not an agent: {line[:80]!r}") from None


def _check(given: Mapping[str, int], mtu: int, rq_psn: int) -> None:
    """Raise `Unable` for attributes that a queue pair made by others does not have."""
    had = {"mtu": mtu, "rq_psn": rq_psn, "type": QPType.RC, "state": QPState.RTS}
    for name, wanted in given.items():
        if had.get(name) != wanted:
            raise Unable(f"needs qp {name}={wanted}: the device's program makes the queue pair")


_LIMITS = {
    **dict.fromkeys(("qpn", "peer_qpn", "rq_psn", "sq_psn"), 1 << 24),
    **dict.fromkeys(("mtu", "rkey", "size"), 1 << 32),
    "va": 1 << 64,
}
