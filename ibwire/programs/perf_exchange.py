"""The steps of perftest, each said by the client and then by the server, over TCP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ibwire.programs.channel import Channel
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_flows import Flow
from ibwire.programs.perftest import Record


class Exchange(Protocol):
    """How two programs tell each other things."""

    is_client: bool
    peer: str
    """What errors call the other end."""
    meanwhile: Callable[[], object]
    """What is done whenever something may have come, while a step is waited for."""

    def bring_up(self, flows: Sequence[Flow]) -> bool:
        """Connect queue pairs, where it is not for their records to say how: then `False`."""
        ...

    def swap(self, own: bytes, what: str, *, patience: float | None = None) -> bytes:
        """Say something, and hear as many bytes.

        patience: seconds without a frame of the peer, or without an answer, after which it
        is given up; by default a few without an answer. Raises `PeerError`.
        """
        ...

    def swap_record(self, own: Record, *, patience: float | None = None) -> Record:
        """Tell each other a queue pair."""
        ...

    def end(self, word: bytes) -> None:
        """Say the last word."""
        ...


class TCPExchange:
    """Over a TCP connection, records as text."""

    SECONDS = 10.0
    """That a step may take; the tools fill their buffers, and some sleep a second."""

    def __init__(self, endpoint: Endpoint, channel: Channel, *, is_client: bool) -> None:
        self.is_client = is_client
        self.peer = channel.peer
        self.meanwhile: Callable[[], object] = bool
        self._endpoint = endpoint
        self._channel = channel

    def bring_up(self, flows: Sequence[Flow]) -> bool:
        """Their records say how."""
        return False

    def swap(self, own: bytes, what: str, *, patience: float | None = None) -> bytes:
        """Say something, and hear as many bytes."""
        if self.is_client:
            self._channel.send(own)
        theirs = self._endpoint.read(
            *(self._channel, len(own), what),
            seconds=self.SECONDS,
            patience=patience,
            meanwhile=self.meanwhile,
        )
        if not self.is_client:
            self._channel.send(own)
        return theirs

    def swap_record(self, own: Record, *, patience: float | None = None) -> Record:
        """Tell each other a queue pair."""
        return Record.unpack_text(self.swap(own.pack_text(), "record", patience=patience))

    def end(self, word: bytes) -> None:
        """Say the last word."""
        self._channel.send(word)
