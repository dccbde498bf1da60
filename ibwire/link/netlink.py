"""Questions to the kernel about addresses, routes and neighbours, over netlink.

Source: netlink(7), rtnetlink(7), linux/netlink.h, linux/rtnetlink.h.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from struct import Struct

from ibwire.base.errors import LinkError

DUMP = 0x300
"""NLM_F_DUMP: everything there is, instead of the one that the request describes."""


def ask(name: str, request: int, body: bytes, flags: int = 0) -> Iterator[bytes]:
    """The messages that answer a request, each without its header.

    name: the interface that errors name. The type of the answers is the one before the next
    request: RTM_NEW* for RTM_GET*. Raises `LinkError` with the kernel's reason.
    """
    header = _HEADER.pack(_HEADER.size + len(body), request, _NLM_F_REQUEST | flags, 1, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    try:
        with socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE) as asking:
            asking.send(header + body)
            while True:
                data = asking.recv(_ANSWER)
                position = 0
                while position + _HEADER.size <= len(data):
                    size, answer, _, _, _ = _HEADER.unpack_from(data, position)
                    if answer == _NLMSG_DONE:
                        return
                    inner = data[position + _HEADER.size : position + size]
                    if answer == _NLMSG_ERROR:
                        (code,) = _ERROR.unpack_from(inner)
                        raise LinkError(name, os.strerror(-code))
                    if answer == request - 2:
                        yield inner
                    position += _aligned(size)
                if not flags & DUMP:
                    return
    except OSError as error:
        raise LinkError(name, f"cannot be asked: {error.strerror}") from None


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute of a request."""
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + bytes(_aligned(size) - size)


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes of an answer, by their type."""
    found = {}
    position = 0
    while position + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, position)
        found[kind] = data[position + _ATTRIBUTE.size : position + size]
        position += _aligned(size)
    return found


def _aligned(size: int) -> int:
    # At least one step: the kernel's lengths are right, but nothing here may hang.
    return max(size + 3 & ~3, 4)


_HEADER = Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, port."""
_ATTRIBUTE = Struct("=HH")
"""struct rtattr: length, type."""
_ERROR = Struct("=i")
"""The beginning of struct nlmsgerr: an error number, negative."""
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_ANSWER = 1 << 16
"""Bytes taken at a time; the kernel fills at most 32 KiB."""
