"""TCP between two programs that tell each other their queue pairs, as perftest and pingpong do.

The host's own TCP: it goes where the user said the peer is, by the routes of the
machine, which need not be the interface of the RDMA traffic. Messages are small; a
program that waits for one lets its device live meanwhile (`Endpoint.read`).
"""

from __future__ import annotations

import errno
import socket
import time

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError, PeerError
from ibwire.programs.host_names import addresses_of

STARTING = 2.0
"""Seconds that a program may need until it listens: both ends are started side by side."""

_STEP = 0.05


class Channel(Closing):
    """One connection; `peer` is what errors call the other end."""

    LIMIT = 1 << 20
    """Bytes that may wait to be read: nobody sends so much before it is asked."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = connected
        self._waiting = bytearray()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connect(cls, host: str, port: int, *, seconds: float = 10) -> Channel:
        """Connect to a program on another host, which may be starting just now.

        Raises `LinkError` for a name that means no address, or one that only an interface
        gives a meaning, `PeerError` when nobody answers.
        """
        addresses_of(host)  # a name that means nothing, not even the local host as "" does
        peer = f"{host} port {port}"
        end = time.monotonic() + STARTING
        while True:
            try:
                return cls(socket.create_connection((host, port), seconds), peer)
            except TimeoutError:
                raise PeerError(f"{peer}: no answer for {seconds:g} s") from None
            except ConnectionRefusedError:
                if time.monotonic() >= end:
                    raise PeerError(f"{peer}: nobody listens there") from None
            except OSError as error:
                if error.errno == errno.EINVAL:
                    raise LinkError(host, f"is on which interface? {host}%IFACE") from None
                raise PeerError(f"{peer}: {error.strerror}") from None
            time.sleep(_STEP)

    @property
    def address(self) -> str:
        """IP address of the other end; IPv4 as such also where IPv6 sockets carry it."""
        try:
            address: str = self._socket.getpeername()[0]
        except OSError as error:
            raise PeerError(f"{self.peer}: {error.strerror}") from None
        return address.removeprefix("::ffff:").partition("%")[0]

    @property
    def waiting(self) -> bytes:
        """What has come of a message that is not whole."""
        return bytes(self._waiting)

    def fileno(self) -> int:
        """Readable when something has come."""
        return self._socket.fileno()

    def read(self, size: int) -> bytes | None:
        """Exactly so many bytes, once they have come; never waits.

        Raises `PeerError` when the peer has closed the connection before them.
        """
        while len(self._waiting) < size:
            try:
                data = self._socket.recv(min(size - len(self._waiting), self.LIMIT))
            except BlockingIOError:
                return None
            except OSError as error:
                raise PeerError(f"{self.peer}: {error.strerror}") from None
            if not data:
                raise PeerError(f"{self.peer} has closed its connection")
            self._waiting += data
        message = bytes(self._waiting[:size])
        del self._waiting[:size]
        return message

    def send(self, data: bytes) -> None:
        """Send a message at once; raises `PeerError` when the peer is gone, or does not read."""
        try:
            self._socket.sendall(data)
        except BlockingIOError:
            raise PeerError(f"{self.peer} does not read what it is told") from None
        except OSError as error:
            raise PeerError(f"{self.peer}: {error.strerror}") from None

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Listening(Closing):
    """A TCP port of this host, 0 for any, at all of its addresses unless one is given."""

    def __init__(self, port: int, address: str = "") -> None:
        """Raises `LinkError` when it is taken."""
        family = socket.AF_INET if "." in address else socket.AF_INET6
        both = not address and socket.has_dualstack_ipv6()
        if not address and not both:
            family = socket.AF_INET
        try:
            self._socket = socket.create_server((address, port), family=family, dualstack_ipv6=both)
        except OSError as error:
            raise LinkError(f"TCP port {port}", str(error.strerror)) from None
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        """Its number."""

    def fileno(self) -> int:
        """Readable when somebody has connected."""
        return self._socket.fileno()

    def accept(self) -> Channel | None:
        """Whoever has connected first, if anybody has; never waits."""
        try:
            connected, address = self._socket.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            raise PeerError(f"connection: {error.strerror}") from None
        return Channel(connected, f"{address[0].removeprefix('::ffff:')} port {address[1]}")

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()
