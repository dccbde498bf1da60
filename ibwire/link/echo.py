"""Sends echo requests to an IPv4 address, also beyond routers.

The kernel routes them. Responses are recognised by their identifier; the raw socket requires
CAP_NET_RAW.

Source: RFC 792, raw(7).
"""

from __future__ import annotations

import os
import random
import socket
import time
from struct import Struct

from ibwire.base.errors import LinkError
from ibwire_layers.crc import internet_checksum
from ibwire_layers.outer import IPv4

ATTEMPTS = 3


def answers_echo(name: str, address: str, *, seconds: float = 3.0) -> bool:
    """Whether an IPv4 address answers an echo request from this interface within `seconds`.

    Raises `LinkError` when no request can be sent, or a firewall rejects it.
    """
    identifier = random.getrandbits(16)
    try:
        with socket.socket(socket.AF_INET, _RAW, socket.IPPROTO_ICMP) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(name) + b"\0")
            asking.connect((address, 0))  # to receive responses of this host only
            for sequence in range(ATTEMPTS):
                asking.send(_request(identifier, sequence))
                if _is_answered(asking, identifier, time.monotonic() + seconds / ATTEMPTS):
                    return True
    except OSError as error:
        raise LinkError(name, f"no echo request to {address}: {error.strerror}") from None
    return False


def _is_answered(asking: socket.socket, identifier: int, end: float) -> bool:
    while (left := end - time.monotonic()) > 0:
        asking.settimeout(left)
        try:
            packet = asking.recv(_LONGEST)
        except TimeoutError:
            return False
        message = packet[IPv4.SIZE :]  # a response with IP options is ignored
        if len(message) >= _ECHO.size:
            kind, code, _, whose, _ = _ECHO.unpack_from(message)
            if (kind, code, whose) == (_REPLY, 0, identifier):
                return True
    return False


def _request(identifier: int, sequence: int) -> bytes:
    message = _ECHO.pack(_REQUEST, 0, 0, identifier, sequence)
    return _ECHO.pack(_REQUEST, 0, internet_checksum(message), identifier, sequence)


_RAW = socket.SOCK_RAW | socket.SOCK_CLOEXEC
_ECHO = Struct(">BBHHH")
"""Type, code, checksum, identifier, sequence number."""
_REQUEST, _REPLY = 8, 0
_LONGEST = 256
"""Bytes of a response that are read."""
