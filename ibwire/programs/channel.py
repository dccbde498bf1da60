"""TCP connections over which two programs exchange their queue pairs, as perftest does.

This is the TCP of the host, which may use another interface than the RDMA traffic. Messages
are small; `Endpoint.read` runs the device while it waits for one.
"""

from __future__ import annotations

import errno
import socket
import time

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError, PeerError
from ibwire.programs.host_names import addresses_of

STARTING = 2.0
"""Seconds for which connecting is retried, because both ends are often started together."""

_STEP = 0.05


class Channel(Closing):
    """A TCP connection; `peer` is the name of the other end in errors."""

    LIMIT = 1 << 20
    """Bytes read at once, more than any message has."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = connected
        self._waiting = bytearray()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connect(cls, host: str, port: int, *, seconds: float = 10) -> Channel:
        """Connect to a program on another host, which may still be starting.

        Raises `LinkError` for a name without an address, or a link-local address without an
        interface, `PeerError` when no connection is made.
        """
        addresses_of(host)  # raises for a name without an address, also for ""
        peer = f"{host} port {port}"
        end = time.monotonic() + STARTING
        while True:
            try:
                return cls(socket.create_connection((host, port), seconds), peer)
            except TimeoutError:
                raise PeerError(f"{peer}: no answer for {seconds:g} s") from None
            except ConnectionRefusedError:
                if time.monotonic() >= end:
                    raise PeerError(
                        f"{peer}: connection refused: no program listens there"
                    ) from None
            except OSError as error:
                if error.errno == errno.EINVAL:
                    raise LinkError(host, f"needs an interface: {host}%IFACE") from None
                raise PeerError(f"{peer}: {error.strerror}") from None
            time.sleep(_STEP)

    @property
    def address(self) -> str:
        """IP address of the other end; IPv4 in its own form, not mapped into IPv6."""
        try:
            address: str = self._socket.getpeername()[0]
        except OSError as error:
            raise PeerError(f"{self.peer}: {error.strerror}") from None
        return address.removeprefix("::ffff:").partition("%")[0]

    @property
    def waiting(self) -> bytes:
        """The bytes received of an incomplete message."""
        return bytes(self._waiting)

    def fileno(self) -> int:
        """The descriptor, readable when bytes have arrived."""
        return self._socket.fileno()

    def read(self, size: int) -> bytes | None:
        """Exactly `size` bytes, or `None` until they have arrived; never waits.

        Raises `PeerError` when the peer closes the connection before that.
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
        """Send a message; raises `PeerError` when the peer is gone or does not read."""
        try:
            self._socket.sendall(data)
        except BlockingIOError:
            raise PeerError(f"{self.peer} does not read its TCP connection") from None
        except OSError as error:
            raise PeerError(f"{self.peer}: {error.strerror}") from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class TCPListener(Closing):
    """A listening TCP port, 0 for any, at all addresses unless one is given."""

    def __init__(self, port: int, address: str = "") -> None:
        """Raises `LinkError` when the port is in use."""
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
        """The port number."""

    def fileno(self) -> int:
        """The descriptor, readable when a client has connected."""
        return self._socket.fileno()

    def accept(self) -> Channel | None:
        """The next client that has connected, or `None`; never waits."""
        try:
            connected, address = self._socket.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            raise PeerError(f"connection: {error.strerror}") from None
        return Channel(connected, f"{address[0].removeprefix('::ffff:')} port {address[1]}")

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
