"""A Linux interface as a port: a packet socket with many frames per system call.

A filter in the kernel lets only RoCE frames pass, and never those that this machine
sends. The batch calls recvmmsg and sendmmsg, which Python lacks, are made through ctypes; a
ring shared with the kernel was measured to be no faster for sending, and is not necessary at
the rates of a `Device`.

The kernel receives the frames as well. Without RDMA it would answer each with an ICMP error
if the address is its own; an open socket on UDP port 4791 prevents this.

Source: packet(7), linux/if_packet.h, linux/socket.h, recvmmsg(2), sendmmsg(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from struct import Struct

from ibwire.base.errors import LinkError
from ibwire.base.node import Frame
from ibwire.link.arrival import (
    ADAPTERS_TIME,
    HARDWARE_STAMPS,
    KERNELS_TIME,
    TIME,
    TIMES,
    TIMESTAMPING,
    TIMESTAMPNS,
    control_messages,
    stamps,
)
from ibwire.link.hardware_clock import HardwareClock, stamp_all_frames
from ibwire.link.interface import Interface, OnInterface, interface, notes, too_long
from ibwire.link.packet_filter import NOTHING, attach, interesting
from ibwire.link.packet_socket import (
    AUXDATA,
    ETH_P_ALL,
    IGNORE_OUTGOING,
    MSG_DONTWAIT,
    MSG_TRUNC,
    SOL_PACKET,
    VLAN_TPID_VALID,
    VLAN_VALID,
    check,
    make_room,
    packet_socket,
    recvmmsg,
    sendmmsg,
    take_all,
    take_lost,
)
from ibwire_layers.outer import ROCEV2_PORT, EtherType


class AFPacketPort(OnInterface):
    """A Linux interface; a context manager.

    neighbours: also receive ARP, neighbour discovery and echo requests, for a node that answers
    them itself. promiscuous: also receive frames for other MAC addresses, for a node with its
    own. hold_port: prevent ICMP errors of the kernel for RoCEv2. addresses: those of the node, by
    default all of the interface: another node may have others at the same time.
    receive_buffer: bytes of the kernel's buffer. down_seconds: how long the link may be down; its
    frames are lost meanwhile. timed: have the kernel note when frames arrive. hardware_stamps: with
    `timed`, have the adapter note it.

    Raises `LinkError` when there is no such interface, it is down, the right to open
    packet sockets is missing, another program uses the UDP port, or the adapter does not stamp
    frames. Only `send` sends frames.
    """

    BATCH = 64
    """Frames received or sent by one system call."""

    def __init__(
        self,
        name: str,
        *,
        neighbours: bool = False,
        promiscuous: bool = False,
        hold_port: bool = True,
        addresses: Sequence[str] = (),
        receive_buffer: int = 8 << 20,
        down_seconds: float = 0,
        timed: bool = False,
        hardware_stamps: bool = False,
    ) -> None:
        self.interface = interface(name)
        if not self.interface.is_up:
            raise LinkError(name, f"is down: ip link set {name} up")
        if not self.interface.has_carrier:
            raise LinkError(
                name, "is up, but has no carrier: nothing is connected at the other end"
            )
        self._down_seconds = down_seconds
        self._down_until: float | None = None
        """While the link is down, the time from which that is an error."""
        self.counters: Counter[str] = Counter()
        """`received`, `sent`; `too_long`: received frames longer than the MTU; `not_sent`:
        frames refused by the queue of the interface; `no_room`: frames for which the kernel had
        no room, when `notes` was last called; `not_stamped`: frames that have the kernel's time
        instead of the adapter's."""
        with ExitStack() as opened:
            self._socket = opened.enter_context(packet_socket(name))
            program = interesting(neighbours=neighbours, foreign=promiscuous)
            attach(self._socket, program)
            make_room(self._socket, receive_buffer)
            if promiscuous:
                take_all(self._socket, self.interface.index)
            # Kernels before 4.20 lack it; then the filter drops outgoing frames.
            with suppress(OSError):
                self._socket.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
            if hold_port:
                opened.enter_context(held_ports(self.interface, addresses))
            # The kernel then reports the VLAN tag that it has removed from a frame.
            self._socket.setsockopt(SOL_PACKET, AUXDATA, 1)
            _ask_for_times(self._socket, name, timed=timed, hardware_stamps=hardware_stamps)
            # Receiving starts only now, with the filter in place.
            self._socket.bind((name, ETH_P_ALL))
            self._closing = opened.pop_all()
        # The kernel writes the time first.
        before = _TIME_SIZE if timed else 0
        size = before + _CONTROL_SIZE + hardware_stamps * _TIMES_SIZE
        self._receiving = _Batch(self.BATCH, self.mtu + _ETHERNET_SIZE, size)
        words = self._receiving.control.cast("I")
        self._statuses = words[(before + _STATUS) // 4 :: size // 4]
        """Status of each frame of a batch, and its VLAN tag."""
        self._tags = words[(before + _TAG) // 4 :: size // 4]
        self._times = self._receiving.control.cast("L") if timed else None
        self.arrival_ns: Sequence[int] = ()
        """With `timed`, nanoseconds since the epoch for each frame of the last `receive`."""
        self._clock = HardwareClock() if hardware_stamps else None
        self.arrival_clock = ADAPTERS_TIME if hardware_stamps else KERNELS_TIME
        self._sending = _Batch(self.BATCH, 0)

    def receive(self) -> Sequence[Frame]:
        """Frames that have arrived, at most `BATCH`; never waits."""
        batch = self._receiving
        count = recvmmsg(self._socket.fileno(), batch.headers, self.BATCH, MSG_DONTWAIT, None)
        if count <= 0:
            if count < 0:
                code = ctypes.get_errno()
                if not self._bears(code):
                    check(self.name, code)
            return ()
        self._down_until = None
        statuses: Sequence[int] = self._statuses
        tags: Sequence[int] = self._tags
        if self._clock is not None:
            statuses, tags = self._read_control(count, self._clock)
        elif self._times is not None:
            self._note_times(count)
        frames = []
        for header, buffer, status, tag in zip(
            batch.headers[:count], batch.buffers, statuses, tags, strict=False
        ):
            if header.message.flags & MSG_TRUNC:
                self.counters["too_long"] += 1
            elif status & VLAN_VALID:
                frames.append(_tagged(buffer[: header.length].tobytes(), status, tag))
            else:
                frames.append(buffer[: header.length].tobytes())
        self.counters["received"] += len(frames)
        return frames

    def _note_times(self, count: int) -> None:
        """Read when the frames of a batch have arrived, except those that are too long."""
        assert self._times is not None
        size = (_TIME_SIZE + _CONTROL_SIZE) // _WORD
        first = socket.CMSG_LEN(0) // _WORD
        seconds, nanoseconds = self._times[first::size], self._times[first + 1 :: size]
        self.arrival_ns = [
            seconds[row] * 1_000_000_000 + nanoseconds[row]
            for row in range(count)
            if not self._receiving.headers[row].message.flags & MSG_TRUNC
        ]

    def _read_control(self, count: int, clock: HardwareClock) -> tuple[list[int], list[int]]:
        """Read status and VLAN tag of each frame, and the times, of which some may be missing."""
        batch, times = self._receiving, []
        statuses, tags = [], []
        size = len(batch.control) // self.BATCH
        for row in range(count):
            message = batch.headers[row].message
            control = batch.control[row * size : row * size + message.control_length]
            message.control_length = size
            found = dict(control_messages(control))
            status, tag = _AUXDATA.unpack_from(found.get((SOL_PACKET, AUXDATA), _NO_AUXDATA))
            statuses.append(status)
            tags.append(tag)
            if message.flags & MSG_TRUNC:
                continue
            known = stamps(found)
            time_ns = clock.system_ns(known)
            if time_ns is None:
                self.counters["not_stamped"] += 1
                time_ns = known.kernel_ns or time.time_ns()
            times.append(time_ns)
        self.arrival_ns = times
        return statuses, tags

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames without waiting; returns how many were accepted."""
        taken = 0
        while taken < len(frames):
            some = frames[taken : taken + self.BATCH]
            count = self._send_batch(some)
            taken += count
            if count < len(some):
                break
        return taken

    def notes(self) -> list[str]:
        """Sentences for the user about the interface and about lost frames."""
        self.counters["no_room"] += take_lost(self._socket)
        sentences = notes(self.interface)
        for counter, reason in _LOSSES.items():
            if self.counters[counter]:
                text = f"{self.counters[counter]} {reason.format(self.name)}"
                sentences.append(f"{self.name}: {text}")
        if self.counters["not_stamped"]:
            sentences.append(
                f"{self.name}: {self.counters['not_stamped']} received frames have no hardware "
                "time stamp, and the kernel's time in the capture"
            )
        return sentences

    def fileno(self) -> int:
        """The packet socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the packet socket and release the UDP port."""
        self._closing.close()

    def _bears(self, code: int) -> bool:
        """Whether the link is down, and may be up again in time."""
        if code != errno.ENETDOWN or not self._down_seconds:
            return False
        now = time.monotonic()
        if self._down_until is None:
            self._down_until = now + self._down_seconds
        return now < self._down_until

    def _send_batch(self, frames: Sequence[Frame]) -> int:
        batch = self._sending
        for vector, frame in zip(batch.vectors, frames, strict=False):
            vector.base = frame
            vector.length = len(frame)
        descriptor = self._socket.fileno()
        count = sendmmsg(descriptor, batch.headers, len(frames), MSG_DONTWAIT)
        if count >= 0:
            self.counters["sent"] += count
            self._down_until = None
            return int(count)
        code = ctypes.get_errno()
        if self._bears(code):
            self.counters["link_down"] += len(frames)
            return len(frames)
        if code == errno.EMSGSIZE:
            raise LinkError(self.name, too_long(self.interface, len(frames[0]) - _ETHERNET_SIZE))
        if code == errno.ENOBUFS:
            # The queue of the interface refused the frame, which is lost as on any link.
            self.counters["not_sent"] += 1
            return 1
        check(self.name, code)
        return 0


class _Vector(ctypes.Structure):
    """struct iovec; a `c_char_p` takes the address of a bytes object, and keeps it alive."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Header(ctypes.Structure):
    """struct mmsghdr: a message and its number of bytes."""

    _fields_ = (("message", _Message), ("length", ctypes.c_uint32))


class _Batch:
    """The structures of one batch call, created once: a vector of one buffer for each frame.

    control_size: bytes of control data for each frame; it must be exactly what the kernel
    writes, otherwise the length would have to be reset for each call.
    """

    __slots__ = ("_memory", "buffers", "control", "headers", "vectors")

    def __init__(self, count: int, size: int, control_size: int = 0) -> None:
        self._memory = (ctypes.c_char * (count * size))()
        view = memoryview(self._memory).cast("B")
        self.buffers = [view[each * size : (each + 1) * size] for each in range(count)]
        array = (_Vector * count)()
        self.vectors = list(array)
        self.headers = (_Header * count)()
        control = (ctypes.c_char * (count * control_size))()
        self.control = memoryview(control).cast("B")
        for number, vector in enumerate(self.vectors):
            place = ctypes.addressof(self._memory) + number * size
            ctypes.c_void_p.from_buffer(vector).value = place
            vector.length = size
            message = self.headers[number].message
            message.vectors = ctypes.pointer(vector)
            message.vector_count = 1
            if control_size:
                message.control = ctypes.addressof(control) + number * control_size
                message.control_length = control_size


def _ask_for_times(asked: socket.socket, name: str, *, timed: bool, hardware_stamps: bool) -> None:
    """Have times of arrival come with the frames of an interface."""
    if timed:
        asked.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)
    if hardware_stamps:
        stamp_all_frames(name)
        asked.setsockopt(socket.SOL_SOCKET, TIMESTAMPING, HARDWARE_STAMPS)


def _tagged(frame: Frame, status: int, tag: int) -> Frame:
    """A frame with the VLAN tag that the kernel has removed."""
    control, kind = _TAG_PARTS.unpack(tag.to_bytes(4, sys.byteorder))
    if not status & VLAN_TPID_VALID:
        kind = EtherType.VLAN
    return frame[:12] + _TAG_BYTES.pack(kind, control) + frame[12:]


def held_ports(found: Interface, addresses: Sequence[str] = ()) -> ExitStack:
    """Holds the UDP port of RoCEv2 on an interface until it is closed.

    addresses: only there, by default at all of the interface. Where the interface lacks one, only
    other programs of ibwire are kept from it.
    """
    with ExitStack() as opened:
        for address in addresses or (_ANY_V4, _ANY_V6):
            if addresses and address not in found.addresses:
                opened.enter_context(_held_name(found.name, address))
                continue
            held = _held_port(found, address)
            if held is not None:
                opened.enter_context(held)
        return opened.pop_all()


def _held_name(name: str, address: str) -> socket.socket:
    """A socket without a file that no other process of this network namespace can have."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        held.bind(f"\0ibwire {name} {address}")
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            raise LinkError(name, f"{address} is in use by another ibwire") from None
        raise LinkError(name, f"{address}: {error.strerror}") from None
    return held


def _held_port(found: Interface, address: str) -> socket.socket | None:
    """A socket that holds the UDP port of RoCEv2 at an address and receives nothing.

    `None` on a machine without this version of IP.
    """
    name = found.name
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        held = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise LinkError(name, f"no UDP socket: {error.strerror}") from None
    try:
        attach(held, NOTHING)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(name) + b"\0")
        place: tuple[object, ...] = address, ROCEV2_PORT
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            place = address, ROCEV2_PORT, 0, found.index if address != _ANY_V6 else 0
        held.bind(place)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            raise LinkError(
                name,
                f"UDP port {ROCEV2_PORT} is in use: another RoCE stack, such as Soft-RoCE or a "
                "second ibwire, would also respond; several ibwire need their own --address each",
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            return None  # IPv6 is disabled
        raise LinkError(name, f"UDP port {ROCEV2_PORT}: {error.strerror}") from None
    return held


_ANY_V4, _ANY_V6 = "0.0.0.0", "::"

_LOSSES = {
    "too_long": "received frames were longer than the MTU and are lost; the kernel may merge UDP "
    "packets: ethtool -K {} rx-udp-gro-forwarding off rx-gro-list off gro off",
    "no_room": "received frames are lost: they came faster than they were taken; a larger "
    "net.core.rmem_max, or CAP_NET_ADMIN, lets more of them wait",
    "link_down": "frames are lost: the link was down for a moment",
    "not_sent": "frames were refused by the interface's queue and are lost: "
    "ip link set {} txqueuelen 10000",
}
"""What the counters of lost frames mean."""

_ETHERNET_SIZE = 14
_WORD = TIME.size // 2
_TIME_SIZE = socket.CMSG_SPACE(TIME.size)
"""Of a struct cmsghdr and a struct timespec."""
_TIMES_SIZE = socket.CMSG_SPACE(TIMES.size)
# What comes with each frame: a struct cmsghdr, then a struct tpacket_auxdata.
_CONTROL_SIZE = socket.CMSG_SPACE(20)
_STATUS = socket.CMSG_LEN(0)
"""Position of the status; its bits say whether there was a tag, and whether its type is given."""
_TAG = _STATUS + 16
"""Where priority and VLAN ID stand, and then the type of the tag; 16 bits each."""
_AUXDATA = Struct("=I12xI")
"""Both in struct tpacket_auxdata."""
_NO_AUXDATA = bytes(_AUXDATA.size)
_TAG_PARTS = Struct("=HH")
_TAG_BYTES = Struct(">HH")
