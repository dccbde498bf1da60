"""When the kernel, or the adapter, has received what a socket delivers.

Source: socket(7), cmsg(3), asm-generic/socket.h, linux/net_tstamp.h, linux/errqueue.h;
Documentation/networking/timestamping.rst of Linux.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import NamedTuple

TIMESTAMPNS = 35
"""Option of a socket, SO_TIMESTAMPNS: a struct timespec comes with each message."""

TIMESTAMPING = 37
"""Option of a socket, SO_TIMESTAMPING: a struct scm_timestamping comes with each message."""

HARDWARE_STAMPS = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6
"""Value of that option: the time of the adapter and that of the kernel for received frames, both as
they are (SOF_TIMESTAMPING_RX_HARDWARE, RX_SOFTWARE, SOFTWARE, RAW_HARDWARE)."""

TIME = Struct("@ll")
"""struct timespec: seconds since the epoch, nanoseconds."""

TIMES = Struct("@6l")
"""struct scm_timestamping: three struct timespec, of the kernel, unused, and of the adapter. A time
that is not known is 0."""

KERNELS_TIME = "the kernel's"
"""Whose times those of received frames are."""

ADAPTERS_TIME = "the adapter's, moved to the system's clock"


class Stamps(NamedTuple):
    """When a frame has arrived, in nanoseconds; `None` for a time that is not known."""

    kernel_ns: int | None
    """By the system's clock."""
    hardware_ns: int | None
    """By the adapter's clock."""


def control_messages(control: memoryview) -> Iterator[tuple[tuple[int, int], memoryview]]:
    """Level and type, and the data, of each control message; ends at one that is incomplete."""
    position = 0
    while position + _HEADER.size <= len(control):
        length, level, kind = _HEADER.unpack_from(control, position)
        if length < _HEADER.size or position + length > len(control):
            return
        yield (level, kind), control[position + _HEADER.size : position + length]
        position += -(-length // _ALIGNMENT) * _ALIGNMENT


def stamps(messages: Mapping[tuple[int, int], memoryview]) -> Stamps:
    """The times among the control messages of a frame."""
    kernel_ns = hardware_ns = None
    time = messages.get((socket.SOL_SOCKET, TIMESTAMPNS))
    if time is not None and len(time) >= TIME.size:
        kernel_ns = _nanoseconds(*TIME.unpack_from(time))
    times = messages.get((socket.SOL_SOCKET, TIMESTAMPING))
    if times is not None and len(times) >= TIMES.size:
        seconds, nanoseconds, _, _, *hardware = TIMES.unpack_from(times)
        kernel_ns = _nanoseconds(seconds, nanoseconds) or kernel_ns
        hardware_ns = _nanoseconds(*hardware)
    return Stamps(kernel_ns, hardware_ns)


def _nanoseconds(seconds: int, nanoseconds: int) -> int | None:
    return seconds * 1_000_000_000 + nanoseconds or None


_HEADER = Struct("@Nii")
"""struct cmsghdr: length with this header, level, type."""
_ALIGNMENT = Struct("@N").size
