"""Connections to a server that have not begun as a client yet: many at a time, none for long.

A server of pingpong or perf serves one client, and the protocols of these tools have no password.
So a program that connects and sends nothing must not keep the client out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ibwire.base.closing import Closing
from ibwire.base.errors import PeerError
from ibwire.programs.channel import Channel, TCPListener

Message = TypeVar("Message")

SECONDS = 10.0
"""Until a candidate has sent its first message."""

MOST, MOST_OF_HOST = 64, 16
"""Candidates at a time. When there are more, the oldest one is closed."""


@dataclass(slots=True)
class _Candidate:
    channel: Channel
    host: str
    end_ns: int


class Candidates(Closing, Generic[Message]):
    """Connections of a listener until one of them begins as a client.

    size: bytes of its first message. unpack: raises `PeerError` for an invalid one. tell: shows
    the user why a connection is not that of a client.
    """

    def __init__(
        self,
        listening: TCPListener,
        size: int,
        what: str,
        unpack: Callable[[bytes], Message],
        tell: Callable[[str], None],
    ) -> None:
        self._listening = listening
        self._size = size
        self._what = what
        self._unpack = unpack
        self._tell = tell
        self._waiting: list[_Candidate] = []

    def filenos(self) -> list[int]:
        """Descriptors that are readable when `poll` has something to do."""
        return [self._listening.fileno(), *(each.channel.fileno() for each in self._waiting)]

    def seconds(self, now_ns: int) -> float | None:
        """Seconds until `poll` is to be called even if nothing arrives."""
        if not self._waiting:
            return None
        return max(min(each.end_ns for each in self._waiting) - now_ns, 0) / 1e9

    def poll(self, now_ns: int) -> tuple[Channel, Message] | None:
        """The client and its first message, if there is one; never waits.

        now_ns: nanoseconds, for the time limit.
        """
        while (channel := self._listening.accept()) is not None:
            end_ns = now_ns + int(SECONDS * 1e9)
            self._waiting.append(_Candidate(channel, _host(channel), end_ns))
            self._limit()
        for candidate in list(self._waiting):
            channel = candidate.channel
            try:
                data = channel.read(self._size)
                if data is None:
                    if now_ns >= candidate.end_ns:
                        raise PeerError(f"no {self._what} from {channel.peer} for {SECONDS:g} s")
                    continue
                message = self._unpack(data)
            except PeerError as error:
                self._end(candidate, error)
                continue
            self._waiting.remove(candidate)
            return channel, message
        return None

    def close(self) -> None:
        """Close the connections that wait."""
        for each in self._waiting:
            each.channel.close()
        self._waiting.clear()

    def _limit(self) -> None:
        """Close the oldest connection of the newest one's host, or of the host that has most."""
        hosts = [each.host for each in self._waiting]
        if hosts.count(hosts[-1]) > MOST_OF_HOST:
            crowd = hosts[-1]
        elif len(hosts) > MOST:
            crowd = max(hosts, key=hosts.count)
        else:
            return
        oldest = self._waiting[hosts.index(crowd)]
        self._end(oldest, PeerError("too many connections"))

    def _end(self, candidate: _Candidate, error: PeerError) -> None:
        channel = candidate.channel
        part = ""
        if channel.waiting:
            part = f", after {len(channel.waiting)} of {self._size} bytes: {channel.waiting!r}"
        self._tell(f"{channel.peer} is not a client: {error}{part}; waiting for another")
        self._waiting.remove(candidate)
        channel.close()


def _host(channel: Channel) -> str:
    """What is counted as one host: an IPv4 address, or a /64 network of IPv6."""
    try:
        address = ipaddress.ip_address(channel.address)
    except PeerError:  # it is gone already
        return channel.peer
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
