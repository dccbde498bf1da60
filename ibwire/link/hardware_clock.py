"""The clock of an adapter that notes when frames arrive.

It need not show the time of day: without a program that sets it, such as phc2sys, it may show TAI
or the time since it was switched on. Its times are moved to the system's clock, so that received
and sent frames of a capture have one clock. They keep their order, and their distances to 500 ppm,
until one of the clocks is set.

Source: linux/ethtool.h, linux/net_tstamp.h; Documentation/networking/timestamping.rst of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import sys
from collections import deque
from struct import Struct

from ibwire.base.errors import LinkError
from ibwire.link.arrival import Stamps


class HardwareClock:
    """Moves the times of an adapter to the system's clock.

    The kernel sees a frame some time after the adapter, so the smallest difference of both times is
    the best estimate of the difference of both clocks. That of the last second is used, as clocks
    drift apart. The offset of the times starts as the first difference and approaches the estimate
    slowly, as each change of it changes the distance of two frames.
    """

    WINDOW_NS = 1_000_000_000
    SLOWNESS = 2000
    """Nanoseconds in which the offset changes by at most one: 500 ppm, more than two clocks of
    100 ppm drift apart (IEEE 802.3 allows that much to an Ethernet clock)."""
    STEP_NS = 10_000_000
    """If the estimate is further away than this, a clock was set: not all frames of a second wait
    that long."""

    def __init__(self) -> None:
        self._smallest: deque[tuple[int, int]] = deque()
        """Hardware time and difference, of increasing differences: candidates for the smallest."""
        self._newest = 0
        """Of the hardware times; frames of several queues arrive slightly out of order."""
        self._offset: int | None = None
        self._adjusted = 0
        """Hardware time up to which the offset has changed."""

    def system_ns(self, stamps: Stamps) -> int | None:
        """The hardware time of a frame by the system's clock; `None` if one of both is missing."""
        kernel_ns, hardware_ns = stamps
        if kernel_ns is None or hardware_ns is None:
            return None
        difference = kernel_ns - hardware_ns
        smallest = self._smallest
        if self._offset is None or abs(difference - self._offset) > self.WINDOW_NS:
            # The first frame, or a clock was set.
            smallest.clear()
            self._offset = difference
            self._newest = self._adjusted = hardware_ns
        self._newest = max(self._newest, hardware_ns)
        while smallest and smallest[-1][1] >= difference:
            smallest.pop()
        smallest.append((self._newest, difference))
        while smallest[0][0] < self._newest - self.WINDOW_NS:
            smallest.popleft()
        self._offset += self._change(smallest[0][1] - self._offset)
        return hardware_ns + self._offset

    def _change(self, wanted: int) -> int:
        """How much of a change of the offset is made now."""
        most = (self._newest - self._adjusted) // self.SLOWNESS
        self._adjusted += most * self.SLOWNESS
        if abs(wanted) > self.STEP_NS:
            return wanted
        return max(-most, min(most, wanted))


def stamp_all_frames(name: str) -> None:
    """Have the adapter note when each frame arrives, unless it does already.

    The setting stays when the program ends, as tcpdump -j leaves it. Raises `LinkError` for an
    interface that cannot, with the reason.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        try:
            answer = _ioctl(
                asking, name, _SIOCETHTOOL, _INFO.pack(_ETHTOOL_GET_TS_INFO, 0, 0, 0, 0)
            )
        except OSError:
            answer = bytes(_INFO.size)
        reason = objection(answer)
        if reason:
            raise LinkError(name, f"{reason}: leave out --hardware-timestamps")
        try:
            flags, sends, receives = _CONFIG.unpack(
                _ioctl(asking, name, _SIOCGHWTSTAMP, bytes(_CONFIG.size))
            )
        except OSError:  # a driver that does not say what is set
            flags = sends = receives = 0
        if receives == _FILTER_ALL:
            return
        try:
            _ioctl(asking, name, _SIOCSHWTSTAMP, _CONFIG.pack(flags, sends, _FILTER_ALL))
        except OSError as problem:
            if problem.errno == errno.EPERM:
                raise LinkError(
                    name,
                    "hardware time stamps need the capability CAP_NET_ADMIN: run as root, or "
                    f"before: hwstamp_ctl -i {name} -r {_FILTER_ALL}",
                ) from None
            raise LinkError(
                name, f"hardware time stamps cannot be turned on: {problem.strerror}"
            ) from None


def objection(info: bytes) -> str:
    """Why an adapter cannot stamp all frames, by its struct ethtool_ts_info; empty if it can."""
    _, supported, _, _, filters = _INFO.unpack(info)
    if not supported & _RX_HARDWARE or not supported & _RAW_HARDWARE:
        return "its driver gives no hardware time stamps of received frames"
    if not filters & 1 << _FILTER_ALL:
        return "its adapter stamps packets of clock synchronisation (PTP) only"
    return ""


def _ioctl(asking: socket.socket, name: str, request: int, argument: bytes) -> bytes:
    """The structure behind the pointer of a struct ifreq, as the driver has left it."""
    structure = ctypes.create_string_buffer(argument, len(argument))
    pointer = ctypes.addressof(structure).to_bytes(ctypes.sizeof(ctypes.c_void_p), sys.byteorder)
    fcntl.ioctl(asking, request, _IFREQ.pack(os.fsencode(name), pointer))
    return structure.raw


_IFREQ = Struct("=16s24s")
_SIOCETHTOOL = 0x8946
_SIOCSHWTSTAMP = 0x89B0
_SIOCGHWTSTAMP = 0x89B1
_ETHTOOL_GET_TS_INFO = 0x41
_INFO = Struct("=IIiI12xI12x")
"""struct ethtool_ts_info: command, SOF_TIMESTAMPING flags, number of the clock, a bit for each mode
of sending and each filter of receiving."""
_CONFIG = Struct("=iii")
"""struct hwtstamp_config: flags, mode of sending, filter of receiving."""
_FILTER_ALL = 1
"""HWTSTAMP_FILTER_ALL."""
_RX_HARDWARE = 1 << 2
_RAW_HARDWARE = 1 << 6
