"""A program for the host of a device under test that listens for connections.

    python3 listener.py --port 7174

It needs only this file of ibwire, and librdmacm of rdma-core. `ibwire fuzz --service`
attacks the connection manager through it. Requests are accepted with a queue pair that does
not exist, so only the manager itself is under attack; the program continues whatever a peer
does. The first byte of a request's private data selects the reaction: modulo 4, 1 is
refused, 2 waits and is refused later, 3 is accepted and ended as soon as it is established,
0 is accepted.

Private data that begin with `call` are refused, too, but the program then asks their sender
for a connection, at the address and port of the request, so that the requesting side can be
attacked. That request has the same private data, and their fifth byte selects the reaction to
its response, as above.

Source: rdma_cma.h of rdma-core for the functions and the layout of their arguments.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int, c_size_t, c_uint8, c_uint32, c_void_p, sizeof
from pathlib import Path

PORT = 7174
"""That of rping."""

TCP_SPACE = 0x0106
"""RDMA_PS_TCP."""

BACKLOG = 1024

FIRST_QPN = 0xE00000
"""Of queue pairs that there are not; devices count from below."""

ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, CONNECT_RESPONSE = 0, 2, 4, 5
ESTABLISHED, DISCONNECTED = 9, 10
"""rdma_cm_event_type."""

OVER = (1, 3, 6, 7, 8, 11, 15)
"""Those after which nothing is left of a connection: errors of address, route and connection,
UNREACHABLE, REJECTED, DEVICE_REMOVAL, TIMEWAIT_EXIT."""

ACCEPT, REFUSE, WAIT, LEAVE = range(4)
"""What a request may wish for."""

CALL = b"call"
"""Private data with this beginning ask for a connection."""

CALL_SIZE = 9
"""Bytes of them that are returned: `call`, the reaction, and an ID for the caller."""

DECISION_SECONDS = 5.0
"""Seconds until what waits is refused: a request, or its answer."""

CALLING = 20.0
"""Seconds that an answer to a request of ours may take."""

MOST_CALLS = 256
"""Of our requests that are not answered: the oldest is given up for another one."""

MOST_CONNECTIONS = 4096
"""Connections of others at a time; further requests are refused."""

DEVICES = Path("/sys/class/infiniband")

RESOLUTION_MS = 2000
"""Until it is given up to find the way to an address."""

ONLY_OF_ITS_VERSION = 0, 2
"""RDMA_OPTION_ID and RDMA_OPTION_ID_AFONLY."""

SOCKADDR_SIZE = 128
"""Bytes of a sockaddr_storage, as which rdma_addr has either address."""

PORT_PLACE = 2
"""Where a port is in a sockaddr_in and in a sockaddr_in6."""


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


class Identifier(ctypes.Structure):
    """rdma_cm_id, as far as it has the addresses of both ends."""

    _fields_ = (
        *((name, c_void_p) for name in ("verbs", "channel", "context", "qp")),
        *((name, c_uint8 * SOCKADDR_SIZE) for name in ("own", "peer")),
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
    """A listener at some addresses of this host, until it is stopped."""

    def __init__(self, addresses: Sequence[str], port: int) -> None:
        self._library = _library()
        self._channel = self._library.rdma_create_event_channel()
        if not self._channel:
            raise _failure("rdma_create_event_channel")
        for address in addresses:
            self._listen(address, port)
        self._numbers = 0
        """Queue pairs that were named."""
        self._fd = ctypes.cast(self._channel, POINTER(c_int))[0]
        self._waiting: dict[int, float] = {}
        """Requests and answers that wait, and until when."""
        self._calling: dict[int, tuple[float, bytes]] = {}
        """Requests of ours, until when they may be answered, and their private data."""
        self._leaving: set[int] = set()
        self._accepted: set[int] = set()
        """Requests of others that are not over."""

    def serve(self) -> None:
        """Accept every request; without end."""
        while True:
            if select.select([self._fd], [], [], DECISION_SECONDS / 5)[0]:
                self._handle()
            now = time.monotonic()
            for connection in [each for each, until in self._waiting.items() if until < now]:
                self._refuse(connection)
            for connection in [each for each, (until, _) in self._calling.items() if until < now]:
                self._forget(connection)

    def _listen(self, address: str, port: int) -> None:
        """Listen to an address; `::` is every address of both versions."""
        number = ipaddress.ip_address(address)
        if number.version == 6:
            packed = struct.pack("=H", socket.AF_INET6) + struct.pack(">H4x", port)
            packed += number.packed + bytes(4)
        else:
            packed = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port)
            packed += number.packed + bytes(8)
        listening = self._created()
        # Whatever net.ipv6.bindv6only says; one of IPv4 does not mind.
        no = c_int(0)
        self._library.rdma_set_option(listening, *ONLY_OF_ITS_VERSION, byref(no), sizeof(no))
        self._call("rdma_bind_addr", listening, packed)
        self._call("rdma_listen", listening, BACKLOG)

    def _handle(self) -> None:
        """The next event."""
        pointer = POINTER(Event)()
        self._call("rdma_get_cm_event", self._channel, byref(pointer))
        event = pointer.contents
        kind, connection, asked = event.event, int(event.id), event.parameters
        wanted = asked.initiator_depth, asked.responder_resources
        has_data = kind == CONNECT_REQUEST and asked.private_data
        data = ctypes.string_at(asked.private_data, asked.private_data_len) if has_data else b""
        self._library.rdma_ack_cm_event(pointer)
        if kind == CONNECT_REQUEST and len(self._accepted) >= MOST_CONNECTIONS:
            self._refuse(connection)
        elif kind == CONNECT_REQUEST and data.startswith(CALL):
            self._call_back(connection, data[:CALL_SIZE].ljust(CALL_SIZE, b"\0"))
            self._refuse(connection)
        elif kind == CONNECT_REQUEST:
            self._decide(connection, data[0] % 4 if data else ACCEPT, *wanted)
        elif kind == CONNECT_RESPONSE and connection in self._calling:
            self._answer(connection, self._calling.pop(connection)[1][len(CALL)] % 4)
        elif kind in (ADDR_RESOLVED, ROUTE_RESOLVED) and connection in self._calling:
            self._go_on(connection, kind)
        elif kind == DISCONNECTED or (kind == ESTABLISHED and connection in self._leaving):
            self._library.rdma_disconnect(connection)
        elif kind in OVER:
            self._forget(connection)

    # Requests from peers.

    def _decide(self, connection: int, wish: int, depth: int, resources: int) -> None:
        """Do what a request wishes for."""
        self._accepted.add(connection)
        if wish == REFUSE:
            self._refuse(connection)
        elif wish == WAIT:
            self._waiting[connection] = time.monotonic() + DECISION_SECONDS
        else:
            if wish == LEAVE:
                self._leaving.add(connection)
            parameters = self._parameters(min(resources, 1), min(depth, 1))
            if self._library.rdma_accept(connection, byref(parameters)):
                self._forget(connection)  # the peer has given up already

    # Requests to peers.

    def _call_back(self, asking: int, data: bytes) -> None:
        """Begin to ask a peer that requested it for a connection."""
        ends = Identifier.from_address(asking)
        own, peer = bytes(ends.own), bytes(ends.peer)
        own = own[:PORT_PLACE] + bytes(2) + own[PORT_PLACE + 2 :]  # from any port
        connection = self._created()
        self._calling[connection] = (time.monotonic() + CALLING, data)
        if len(self._calling) > MOST_CALLS:
            self._forget(next(iter(self._calling)))
        if self._library.rdma_resolve_addr(connection, own, peer, RESOLUTION_MS):
            self._forget(connection)

    def _go_on(self, connection: int, kind: int) -> None:
        """The way is known by half, or as a whole."""
        library = self._library
        if kind == ADDR_RESOLVED:
            failed = library.rdma_resolve_route(connection, RESOLUTION_MS)
        else:
            data = self._calling[connection][1]
            parameters = self._parameters(1, 1)
            content = ctypes.create_string_buffer(data, len(data))
            parameters.private_data = ctypes.cast(content, c_void_p)
            parameters.private_data_len = len(data)
            failed = library.rdma_connect(connection, byref(parameters))
        if failed:
            self._forget(connection)

    def _answer(self, connection: int, wish: int) -> None:
        """Do what was wished for when an answer has come."""
        library = self._library
        if wish == REFUSE:
            self._refuse(connection)
        elif wish == WAIT:
            self._waiting[connection] = time.monotonic() + DECISION_SECONDS
        elif library.rdma_establish(connection):
            self._forget(connection)  # the peer has given up already
        elif wish == LEAVE:  # no event reports an established connection to the side that asked
            library.rdma_disconnect(connection)

    # Either.

    def _parameters(self, resources: int, depth: int) -> Parameters:
        self._numbers += 1
        return Parameters(
            responder_resources=resources,
            initiator_depth=depth,
            retry_count=7,
            rnr_retry_count=7,
            qp_num=FIRST_QPN + self._numbers % 0x100000,
        )

    def _created(self) -> int:
        made = c_void_p()
        self._call("rdma_create_id", self._channel, byref(made), None, TCP_SPACE)
        return int(made.value or 0)

    def _refuse(self, connection: int) -> None:
        self._library.rdma_reject(connection, None, 0)
        self._forget(connection)

    def _forget(self, connection: int) -> None:
        self._waiting.pop(connection, None)
        self._calling.pop(connection, None)
        self._leaving.discard(connection)
        self._accepted.discard(connection)
        self._library.rdma_destroy_id(connection)

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
    library.rdma_set_option.argtypes = [c_void_p, c_int, c_int, c_void_p, c_size_t]
    library.rdma_resolve_addr.argtypes = [c_void_p, ctypes.c_char_p, ctypes.c_char_p, c_int]
    library.rdma_resolve_route.argtypes = [c_void_p, c_int]
    library.rdma_connect.argtypes = [c_void_p, c_void_p]
    library.rdma_establish.argtypes = [c_void_p]
    library.rdma_accept.argtypes = [c_void_p, c_void_p]
    library.rdma_reject.argtypes = [c_void_p, c_void_p, c_uint8]
    library.rdma_disconnect.argtypes = [c_void_p]
    library.rdma_destroy_id.argtypes = [c_void_p]
    return library


def _failure(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")


def device_addresses(devices: Path = DEVICES) -> list[str]:
    """IP addresses of the RDMA devices of this host: their GIDs for RoCE v2, not link-local."""
    found = []
    for file in sorted(devices.glob("*/ports/*/gids/*")):
        try:
            kind = (file.parent.parent / "gid_attrs" / "types" / file.name).read_text()
            gid = ipaddress.IPv6Address(file.read_text().strip())
        except (OSError, ValueError):
            continue  # an entry that is not used
        if kind.strip() == "RoCE v2" and int(gid) and not gid.is_link_local:
            found.append(str(gid.ipv4_mapped or gid))
    return list(dict.fromkeys(found))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Listen for RDMA connections, and accept all.")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument(
        "--address",
        action="append",
        help="where to listen, may be repeated, :: for everywhere; default: the addresses of the "
        "RDMA devices",
    )
    wish = parser.parse_args()
    addresses = wish.address or device_addresses()
    if not addresses:
        sys.exit("error: no RDMA device of this host has an IP address: give --address")
    try:
        listener = Listener(addresses, wish.port)
        print(f"listening at {', '.join(addresses)}, port {wish.port}", flush=True)
        listener.serve()
    except ValueError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}")
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
