"""Packet sockets: what all that sends and receives whole frames has in common.

Source: packet(7), linux/if_packet.h, recvmmsg(2), sendmmsg(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from struct import Struct

import numpy as np

from ibwire.base.errors import LinkError


def packet_socket(name: str) -> socket.socket:
    """A packet socket that never waits, and receives nothing before it is bound.

    name: of the interface, for errors.
    """
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    try:
        return socket.socket(socket.AF_PACKET, kind, 0)
    except PermissionError:
        raise LinkError(
            name,
            "needs the capability CAP_NET_RAW: run as root, or without any rights on the "
            "interfaces of `ibwire lab`",
        ) from None
    except OSError as error:
        raise LinkError(name, f"no packet socket: {error.strerror}") from None


def make_room(opened: socket.socket, size: int, *, sending: bool = False) -> None:
    """Set a buffer size; without CAP_NET_ADMIN up to net.core.rmem_max or wmem_max."""
    force, plain = _SENDING if sending else _RECEIVING
    try:
        opened.setsockopt(socket.SOL_SOCKET, force, size)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, plain, size)


def take_all(opened: socket.socket, index: int) -> None:
    """Receive what is for other MAC addresses too, until the socket is closed."""
    opened.setsockopt(SOL_PACKET, _ADD_MEMBERSHIP, _MREQ.pack(index, _PROMISCUOUS, 0))


def take_lost(opened: socket.socket) -> int:
    """Frames that the kernel dropped for lack of room since the last call."""
    drops: int = _STATISTICS.unpack(opened.getsockopt(SOL_PACKET, _ASKED, _STATISTICS.size))[1]
    return drops


def check(name: str, code: int) -> None:
    """Whether an error number means only that there is nothing to do; raises `LinkError`."""
    if code in (errno.EAGAIN, errno.EINTR):
        return
    if code == errno.ENETDOWN:
        raise LinkError(name, "has gone down")
    if code in (errno.ENXIO, errno.ENODEV):
        raise LinkError(name, "has gone: there is no such interface any more")
    raise LinkError(name, os.strerror(code))


_libc = ctypes.CDLL(None, use_errno=True)
recvmmsg = _libc.recvmmsg
recvmmsg.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_int,
    ctypes.c_void_p,
)
sendmmsg = _libc.sendmmsg
sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)

VECTOR = np.dtype([("base", np.uintp), ("length", np.uintp)], align=True)
"""struct iovec."""
MESSAGE = np.dtype(
    [
        ("name", np.uintp),
        ("name_length", np.uint32),
        ("vectors", np.uintp),
        ("vector_count", np.uintp),
        ("control", np.uintp),
        ("control_length", np.uintp),
        ("flags", np.int32),
    ],
    align=True,
)
"""struct msghdr."""
HEADER = np.dtype([("message", MESSAGE), ("length", np.uint32)], align=True)
"""struct mmsghdr: what a message is made of, and how many bytes of it there were."""

# Plain numbers: an enumeration costs a microsecond a frame.
MSG_TRUNC = int(socket.MSG_TRUNC)
MSG_DONTWAIT = int(socket.MSG_DONTWAIT)
ETH_P_ALL = 3  # linux/if_ether.h
SOL_PACKET = 263
AUXDATA = 8
"""Option: a struct tpacket_auxdata comes with each frame."""
IGNORE_OUTGOING = 23
"""Option: what this machine sends is not received; from Linux 4.20 on."""
VLAN_VALID = 1 << 4
"""Status in tpacket_auxdata: there was a tag, which has been taken off."""
VLAN_TPID_VALID = 1 << 6
"""The type of the tag is given."""

_SENDING = 32, socket.SO_SNDBUF  # SO_SNDBUFFORCE, asm-generic/socket.h
_RECEIVING = 33, socket.SO_RCVBUF
_ADD_MEMBERSHIP = 1
_ASKED = 6  # PACKET_STATISTICS
_PROMISCUOUS = 1
_MREQ = Struct("@iHH8x")
"""struct packet_mreq: interface, type, length of the address, address."""
_STATISTICS = Struct("=II")
"""struct tpacket_stats: frames, drops; reading resets them."""
