"""The exchange of messages between two programs of perftest, over TCP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ibwire.programs.channel import Channel
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_flows import Flow
from ibwire.programs.perftest import Record


class Exchange(Protocol):
    """The connection over which two programs exchange messages."""

    is_client: bool
    peer: str
    """Name of the other end in errors."""
    meanwhile: Callable[[], object]
    """Called repeatedly while a step is waited for."""

    def bring_up(self, flows: Sequence[Flow]) -> bool:
        """Connect the queue pairs; `False` if their records are needed for that."""
        ...

    def swap(self, own: bytes, what: str, *, timeout: float | None = None) -> bytes:
        """Send a message and receive one of the same size.

        timeout: seconds without any frame or message after which the exchange fails; by
        default some seconds without the message. Raises `PeerError`.
        """
        ...

    def swap_record(self, own: Record, *, timeout: float | None = None) -> Record:
        """Exchange the records of a queue pair."""
        ...

    def end(self, word: bytes) -> None:
        """Send the last message."""
        ...


class TCPExchange:
    """Over a TCP connection, records as text."""

    SECONDS = 10.0
    """Time for a step: the tools fill their buffers meanwhile, and some sleep a second."""

    def __init__(self, endpoint: Endpoint, channel: Channel, *, is_client: bool) -> None:
        self.is_client = is_client
        self.peer = channel.peer
        self.meanwhile: Callable[[], object] = bool
        self.adapt: Callable[[Record, Record], Record] = lambda own, theirs: own
        """Changes the record of a server, which has that of the client by then."""
        self._endpoint = endpoint
        self._channel = channel

    def bring_up(self, flows: Sequence[Flow]) -> bool:
        """`False`: the records are needed."""
        return False

    def swap(self, own: bytes, what: str, *, timeout: float | None = None) -> bytes:
        """Send a message and receive one of the same size."""
        if self.is_client:
            self._channel.send(own)
        theirs = self._receive(len(own), what, timeout)
        if not self.is_client:
            self._channel.send(own)
        return theirs

    def swap_record(self, own: Record, *, timeout: float | None = None) -> Record:
        """Exchange the records of a queue pair."""
        if self.is_client:
            self._channel.send(own.pack_text())
        theirs = Record.unpack_text(self._receive(Record.TEXT_SIZE, "record", timeout))
        if not self.is_client:
            self._channel.send(self.adapt(own, theirs).pack_text())
        return theirs

    def _receive(self, size: int, what: str, timeout: float | None) -> bytes:
        return self._endpoint.read(
            self._channel,
            size,
            what,
            seconds=self.SECONDS,
            timeout=timeout,
            meanwhile=self.meanwhile,
        )

    def end(self, word: bytes) -> None:
        """Send the last message."""
        self._channel.send(word)
