"""Somebody who listens for connections on a device under test: a program for its host.

    python3 listener.py --port 7174

It needs nothing of ibwire but this file, and of rdma-core librdmacm. `ibwire fuzz --service`
attacks the connection manager through it. Requests are accepted with a queue pair that does
not exist, so nothing but the manager itself is under attack; whatever a peer does, it goes on.
The first byte of a request's private data says what else may become of it: modulo 4, 1 is
refused, 2 waits for a decision until it is refused after all, 3 is accepted and ended as soon
as it is established.

Source: rdma_cma.h of rdma-core for the functions and the layout of what they take.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import socket
import struct
import sys
import time
from ctypes import POINTER, byref, c_int, c_uint8, c_uint32, c_void_p

PORT = 7174
"""That of rping."""

TCP_SPACE = 0x0106
"""RDMA_PS_TCP."""

BACKLOG = 1024

FIRST_QPN = 0xE00000
"""Of queue pairs that there are not; devices count from below."""

CONNECT_REQUEST, CONNECT_ERROR, UNREACHABLE = 4, 6, 7
REJECTED, DEVICE_REMOVAL, TIMEWAIT_EXIT = 8, 11, 15
"""rdma_cm_event_type."""

ESTABLISHED, DISCONNECTED = 9, 10

ACCEPT, REFUSE, WAIT, LEAVE = range(4)
"""What a request may wish for."""

PATIENCE = 5.0
"""Seconds until a request that waits is refused."""


class Parameters(ctypes.Structure):
    """rdma_conn_param."""

    _fields_ = (
        ("private_data", c_void_p),
        ("private_data_len", c_uint8),
        ("responder_resources", c_uint8),
        ("initiator_depth", c_uint8),
        ("flow_control", c_uint8),
        ("retry_count", c_uint8),
        ("rnr_retry_count", c_uint8),
        ("srq", c_uint8),
        ("qp_num", c_uint32),
    )


class Event(ctypes.Structure):
    """rdma_cm_event, as far as both kinds of parameters have room."""

    _fields_ = (
        ("id", c_void_p),
        ("listen_id", c_void_p),
        ("event", c_int),
        ("status", c_int),
        ("parameters", Parameters),
        ("rest", c_uint8 * 64),
    )


class Listener:
    """A listener at every address of this host, until it is stopped."""

    def __init__(self, port: int) -> None:
        self._library = _library()
        self._channel = self._library.rdma_create_event_channel()
        if not self._channel:
            raise _failure("rdma_create_event_channel")
        listening = c_void_p()
        self._call("rdma_create_id", self._channel, byref(listening), None, TCP_SPACE)
        # A sockaddr_in of any address.
        address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", port, bytes(4))
        self._call("rdma_bind_addr", listening, address)
        self._call("rdma_listen", listening, BACKLOG)
        self._accepted = 0
        self._fd = ctypes.cast(self._channel, POINTER(c_int))[0]
        self._waiting: dict[int, float] = {}
        """Requests that wait, and until when."""
        self._leaving: set[int] = set()

    def serve(self) -> None:
        """Accept whoever asks; without end."""
        while True:
            if select.select([self._fd], [], [], PATIENCE / 5)[0]:
                self._handle()
            now = time.monotonic()
            for connection in [each for each, until in self._waiting.items() if until < now]:
                self._refuse(connection)

    def _handle(self) -> None:
        """The next event."""
        pointer = POINTER(Event)()
        self._call("rdma_get_cm_event", self._channel, byref(pointer))
        event = pointer.contents
        kind, connection, asked = event.event, int(event.id), event.parameters
        wanted = asked.initiator_depth, asked.responder_resources
        has_wish = kind == CONNECT_REQUEST and asked.private_data and asked.private_data_len
        wish = ctypes.string_at(asked.private_data, 1)[0] % 4 if has_wish else ACCEPT
        self._library.rdma_ack_cm_event(pointer)
        if kind == CONNECT_REQUEST and wish == REFUSE:
            self._refuse(connection)
        elif kind == CONNECT_REQUEST and wish == WAIT:
            self._waiting[connection] = time.monotonic() + PATIENCE
        elif kind == CONNECT_REQUEST:
            if wish == LEAVE:
                self._leaving.add(connection)
            self._accept(connection, *wanted)
        elif kind == DISCONNECTED or (kind == ESTABLISHED and connection in self._leaving):
            self._library.rdma_disconnect(connection)
        elif kind in (CONNECT_ERROR, UNREACHABLE, REJECTED, DEVICE_REMOVAL, TIMEWAIT_EXIT):
            self._forget(connection)

    def _refuse(self, connection: int) -> None:
        self._library.rdma_reject(connection, None, 0)
        self._forget(connection)

    def _forget(self, connection: int) -> None:
        self._waiting.pop(connection, None)
        self._leaving.discard(connection)
        self._library.rdma_destroy_id(connection)

    def _accept(self, connection: int, depth: int, resources: int) -> None:
        self._accepted += 1
        parameters = Parameters(
            responder_resources=min(resources, 1),
            initiator_depth=min(depth, 1),
            rnr_retry_count=7,
            qp_num=FIRST_QPN + self._accepted % 0x100000,
        )
        if self._library.rdma_accept(connection, byref(parameters)):
            self._forget(connection)  # the peer has given up already

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, name)(*arguments):
            raise _failure(name)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    library.rdma_create_event_channel.restype = c_void_p
    library.rdma_create_event_channel.argtypes = []
    library.rdma_create_id.argtypes = [c_void_p, c_void_p, c_void_p, c_int]
    library.rdma_bind_addr.argtypes = [c_void_p, ctypes.c_char_p]
    library.rdma_listen.argtypes = [c_void_p, c_int]
    library.rdma_get_cm_event.argtypes = [c_void_p, c_void_p]
    library.rdma_ack_cm_event.argtypes = [c_void_p]
    library.rdma_accept.argtypes = [c_void_p, c_void_p]
    library.rdma_reject.argtypes = [c_void_p, c_void_p, c_uint8]
    library.rdma_disconnect.argtypes = [c_void_p]
    library.rdma_destroy_id.argtypes = [c_void_p]
    return library


def _failure(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Listen for RDMA connections, and accept all.")
    parser.add_argument("--port", type=int, default=PORT)
    try:
        listener = Listener(parser.parse_args().port)
        print("listening", flush=True)
        listener.serve()
    except OSError as error:
        sys.exit(f"listener: {error.strerror or error}")
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
