"""Sending frames at the limit of the kernel: rows of an array, a thousand per system call.

sendmmsg(2) reads an array of headers that point to the frames. Here that array is NumPy's,
and its columns of addresses and lengths are filled for a whole block at once: no Python runs
for a single frame, and none is copied before the kernel does it. A ring shared with the
kernel was measured to be no faster, and a call for each frame 1.6 times slower
(reference/sending#batch-calls).

Source: packet(7), sendmmsg(2), linux/socket.h, linux/if_link.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.link import netlink
from ibwire.link.packet_socket import HEADER, MSG_DONTWAIT, VECTOR, packet_socket, sendmmsg
from ibwire.traffic.safety import injectable_interface


class Sender(Closing):
    """Sends arbitrary frames on an interface and receives none.

    allow_default_route: also on the interface of the default route. Raises `LinkError` for an
    interface that is not fit for test traffic (`injectable_interface`), and without the right to
    open packet sockets.
    """

    BATCH = 1024
    """Frames of one system call: the kernel takes no more (UIO_MAXIOV)."""

    STALL_SECONDS = 2.0
    """Seconds without any frame accepted after which sending fails."""

    def __init__(self, name: str, *, allow_default_route: bool = False) -> None:
        self.interface = injectable_interface(name, allow_default_route=allow_default_route)
        """The interface when the sender was opened."""
        self.sent = 0
        """Frames that the kernel has accepted."""
        self.waits: Counter[str] = Counter()
        """How often it had to wait, by reason: `buffer full` for the socket's buffer, `queue full`
        when the queue of the interface refused a frame, which is then retried.
        """
        self._socket = packet_socket(name)
        try:
            # With protocol 0 the socket sends and receives nothing.
            self._socket.bind((name, 0))
        except OSError as error:
            self._socket.close()
            raise LinkError(name, f"no packet socket: {error.strerror}") from None
        self._full = ""
        """Why the last call sent nothing; empty when it sent something."""
        self._full_since = 0.0
        self._loaded = 0
        self._headers = np.zeros(self.BATCH, HEADER)
        self._vectors = np.zeros(self.BATCH, VECTOR)
        begin = _address(self._vectors)
        messages = self._headers["message"]
        messages["vectors"] = begin + np.arange(self.BATCH) * VECTOR.itemsize
        messages["vector_count"] = 1
        self._rows = np.arange(self.BATCH)
        self._first_header = _address(self._headers)
        # Keeps the memory alive that the kernel reads.
        self._frames: npt.NDArray[np.uint8] | None = None

    @property
    def name(self) -> str:
        """The interface."""
        return self.interface.name

    def load(self, frames: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> None:
        """Prepare rows for sending.

        frames: (n, width), n at most `BATCH`, the bytes of a row contiguous; `send` reads it, so
        its contents may change between two calls. lengths: (n,) bytes of the frame in each row.
        """
        count = len(frames)
        step, byte = frames.strides
        if count > self.BATCH or frames.dtype != np.uint8 or byte != 1:
            raise LinkError(self.name, f"not {self.BATCH} rows of bytes or less")
        if len(lengths) != count or (count and int(lengths.max()) > frames.shape[1]):
            raise LinkError(self.name, "frames are longer than their rows, or not as many")
        self._vectors["base"][:count] = _address(frames) + self._rows[:count] * step
        self._vectors["length"][:count] = lengths
        self._loaded = count
        self._frames = frames

    def send(self, first: int, count: int) -> int:
        """Send `count` loaded rows from row `first` on, without waiting; returns how many left.

        0 means that there is no room: call `wait`. Raises `LinkError` for a frame that can
        never be sent, when the link is down or gone, and when nothing was accepted for
        `STALL_SECONDS`.
        """
        count = min(count, self._loaded - first)
        header = self._first_header + first * HEADER.itemsize
        taken = int(sendmmsg(self._socket.fileno(), header, count, MSG_DONTWAIT))
        if taken > 0:
            self.sent += taken
            self._full = ""
            return taken
        if taken < 0:
            self._refused(ctypes.get_errno(), int(self._vectors["length"][first]))
        return 0

    def wait(self) -> None:
        """Wait until there may be room, at most a millisecond."""
        if self._full == _QUEUE:
            # The socket has room, so polling it would return at once.
            time.sleep(_STEP)
        else:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            poll.poll(1)

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send frames and wait until the kernel has accepted them; raises `LinkError` as `send`."""
        for frame in frames:
            row = np.frombuffer(frame, np.uint8).reshape(1, -1)
            self.load(row, np.array([len(frame)]))
            while not self.send(0, 1):
                self.wait()

    def fileno(self) -> int:
        """The packet socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; accepted frames are still sent."""
        self._socket.close()

    def _refused(self, code: int, length: int) -> None:
        """Record that there is no room; raises `LinkError` for any other error code."""
        if code == errno.EINTR:
            return
        if code in (errno.EAGAIN, errno.ENOBUFS):
            now = time.monotonic()
            if not self._full:
                self._full_since = now
            self._full = _QUEUE if code == errno.ENOBUFS else _BUFFER
            self.waits[self._full] += 1
            if now - self._full_since > self.STALL_SECONDS:
                raise LinkError(
                    self.name,
                    f"accepts no more frames: {self._full} for {self.STALL_SECONDS:g} s "
                    f"after {self.sent} frames",
                )
            return
        mtu = self.interface.mtu
        reasons = {
            errno.EMSGSIZE: f"a frame of {length} bytes does not fit its MTU of {mtu}, which "
            f"allows {mtu + _ETHERNET_SIZE}",
            errno.EINVAL: f"a frame of {length} bytes is too short for an Ethernet header",
            errno.ENETDOWN: "has gone down",
            errno.ENXIO: _GONE,
            errno.ENODEV: _GONE,
        }
        reason = reasons.get(code, os.strerror(code))
        raise LinkError(self.name, f"{reason}; {self.sent} frames were sent before")


class DeviceCounters(NamedTuple):
    """Transmit counters of an interface since it exists."""

    packets: int
    bytes: int
    errors: int
    dropped: int

    def since(self, before: DeviceCounters) -> DeviceCounters:
        """The increase since an earlier reading."""
        return DeviceCounters(*(now - then for now, then in zip(self, before, strict=True)))


def device_counters(name: str) -> DeviceCounters:
    """The transmit counters of an interface, which include the frames of all programs.

    Raises `LinkError` when it is gone.
    """
    try:
        index = socket.if_nametoindex(name)
    except OSError:
        raise LinkError(name, _GONE) from None
    request = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, index, 0, 0)
    (answer,) = netlink.ask(name, _RTM_GETLINK, request)
    found = netlink.attributes(answer[_IFINFOMSG.size :])
    return DeviceCounters(*_STATISTICS.unpack_from(found[_IFLA_STATS64]))


def _address(array: npt.NDArray[np.generic]) -> int:
    """Where an array's memory begins."""
    return int(array.__array_interface__["data"][0])


_BUFFER = "buffer full"
_QUEUE = "queue full"
_GONE = "has gone: there is no such interface any more"
_STEP = 100e-6
"""Seconds after which a full queue is tried again."""
_ETHERNET_SIZE = 14

_RTM_GETLINK = 18
_IFINFOMSG = Struct("=BxHiII")
"""struct ifinfomsg: family, padding, type, index, flags, change."""
_IFLA_STATS64 = 23
_STATISTICS = Struct("=8xQ8xQ8xQ8xQ")
"""The beginning of struct rtnl_link_stats64: packets, bytes, errors and drops, each first for
receiving, then for transmitting."""
