"""Two ports joined by a pair of sockets: a real link for two endpoints in one process.

No privilege, no interface; what does not fit into the sockets waits, nothing is lost.
"""

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ibwire.base.closing import Closing
from ibwire.base.node import Frame
from ibwire.programs.endpoint import Endpoint

LIMIT = 120
"""Seconds that one side may take: a test that fails shall not hang."""


class SocketPort(Closing):
    """One end."""

    mtu = 9000

    def __init__(self, end: socket.socket, name: str, mac: bytes, addresses: Sequence[str]) -> None:
        self.name = name
        self.mac = mac
        self.addresses = addresses
        self._socket = end
        end.setblocking(False)

    def receive(self) -> Sequence[Frame]:
        frames: list[Any] = []
        try:
            while len(frames) < 64:
                frame = self._socket.recv(1 << 16)
                if not frame:
                    break
                frames.append(frame)
        except BlockingIOError:
            pass
        return frames

    def send(self, frames: Sequence[Frame]) -> int:
        for number, frame in enumerate(frames):
            try:
                self._socket.send(frame)
            except BlockingIOError:
                return number
            except BrokenPipeError:
                return len(frames)
        return len(frames)

    def notes(self) -> list[str]:
        return []

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def ports() -> tuple[SocketPort, SocketPort]:
    """Ports with 10.0.0.1 and fd00::1, 10.0.0.2 and fd00::2."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return (
        SocketPort(a, "a", bytes.fromhex("020000000001"), ["10.0.0.1", "fd00::1"]),
        SocketPort(b, "b", bytes.fromhex("020000000002"), ["10.0.0.2", "fd00::2"]),
    )


class SocketEndpoint(Endpoint):
    """An endpoint on such a port. Its addresses are none of this host, so TCP uses others."""

    port: SocketPort
    listening_addresses = ("127.0.0.1", "::1")


def endpoints(**options: Any) -> tuple[SocketEndpoint, SocketEndpoint]:
    """Endpoints on such ports, which know each other's MAC address."""
    a, b = ports()
    return (
        SocketEndpoint(a, neighbour=lambda _: b.mac, **options),
        SocketEndpoint(b, neighbour=lambda _: a.mac, **options),
    )


def side_by_side(*programs: Callable[[], Any]) -> list[Any]:
    """What programs return that run at the same time; the first error of one is raised."""
    results: list[Any] = [None] * len(programs)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = programs[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "a program does not end"
    if errors:
        raise errors[0]
    return results
