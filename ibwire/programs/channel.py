"""TCP connections over which two programs exchange their queue pairs, as perftest does.

This is the TCP of the host, which may use another interface than the RDMA traffic. Messages
are small; `Endpoint.read` runs the device while it waits for one.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Sequence

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError, PeerError
from ibwire.programs.host_names import addresses_of

STARTING = 2.0
"""Seconds for which connecting is retried, because the other end may still be starting."""

TOGETHER = 5.0
"""The same for programs that are often started together with the other end, on a busy machine."""

BACKLOG = 1024
"""Connections that wait to be accepted."""

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
    def connect(
        cls, host: str, port: int, *, seconds: float = 10, starting: float = STARTING
    ) -> Channel:
        """Connect to a program on another host, which may still be starting, for so many seconds.

        Raises `LinkError` for a name without an address, or a link-local address without an
        interface, `PeerError` when no connection is made.
        """
        addresses_of(host)  # raises for a name without an address, also for ""
        peer = f"{host} port {port}"
        end = time.monotonic() + starting
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
    """A listening TCP port, 0 for any, at some local addresses; `::` is every address.

    Addresses that the host does not have are left out, unless there is no other.
    """

    def __init__(self, port: int, addresses: Sequence[str]) -> None:
        """Raises `LinkError` when the port is in use, or there is no such address or name."""
        for address in addresses:
            addresses_of(address)  # raises for a name without an address
        self._sockets: list[socket.socket] = []
        failure: OSError | None = None
        for address in addresses:
            try:
                opened = _listening_socket(address, port)
            except OSError as error:
                failure = error
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
                break
            self._sockets.append(opened)
            port = opened.getsockname()[1]
        if failure is not None and (not self._sockets or failure.errno != errno.EADDRNOTAVAIL):
            for each in self._sockets:
                each.close()
            raise LinkError(f"TCP port {port} of {', '.join(addresses)}", str(failure.strerror))
        self.port = port
        """The port number."""
        self._ready = select.epoll()
        for each in self._sockets:
            self._ready.register(each, select.EPOLLIN)

    @property
    def addresses(self) -> list[str]:
        """Where it listens."""
        return [each.getsockname()[0] for each in self._sockets]

    def fileno(self) -> int:
        """A descriptor, readable when a client has connected."""
        return self._ready.fileno()

    def accept(self) -> Channel | None:
        """The next client that has connected, or `None`; never waits."""
        for each in self._sockets:
            try:
                connected, address = each.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                raise PeerError(f"connection: {error.strerror}") from None
            return Channel(connected, f"{address[0].removeprefix('::ffff:')} port {address[1]}")
        return None

    def close(self) -> None:
        """Stop listening."""
        for each in self._sockets:
            each.close()
        self._ready.close()


def _listening_socket(address: str, port: int) -> socket.socket:
    # It resolves `%eth1` after an address.
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    both = found[4][0] == "::" and socket.has_dualstack_ipv6()
    opened = socket.create_server(found[4], family=found[0], dualstack_ipv6=both, backlog=BACKLOG)
    opened.setblocking(False)
    return opened
