"""A transparent bridge: frames that arrive at one interface are sent on another.

Each side is a promiscuous packet socket, which receives every arriving frame and no
outgoing ones. A batch of unchanged frames is passed from one socket to
the other without copying it.

The kernel changes frames before a packet socket receives them, and each change is
undone when they are sent:

- A VLAN tag is removed and reported separately; it is inserted again.
- A frame of a local virtual interface may have an incomplete checksum, or contain many TCP
  segments; received segments may be merged. The header of `PACKET_VNET_HDR`
  describes this, and lets the kernel complete or divide them on the other interface.

Source: packet(7), linux/if_packet.h, linux/virtio_net.h, recvmmsg(2), sendmmsg(2);
af_packet.c packet_rcv and packet_snd, skbuff.c skb_checksum_help.
"""

from __future__ import annotations

import ctypes
import errno
import select
from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.base.node import Frame
from ibwire.link.interface import Interface, interface
from ibwire.link.packet_socket import (
    AUXDATA,
    ETH_P_ALL,
    HEADER,
    IGNORE_OUTGOING,
    MSG_DONTWAIT,
    MSG_TRUNC,
    SOL_PACKET,
    VECTOR,
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
from ibwire_layers.crc import internet_checksum
from ibwire_layers.outer import VLAN, Ethernet, EtherType


class Arrived:
    """A batch of frames that have arrived at one side; valid until that side receives again."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        merged: npt.NDArray[np.bool_],
    ) -> None:
        self.data = data
        """The memory of the frames, each after its `PACKET_VNET_HDR`."""
        self.starts = starts
        """Offset of each frame in the data."""
        self.lengths = lengths
        self.merged = merged
        """Which frames are several merged packets."""

    def __len__(self) -> int:
        return len(self.starts)

    def frame(self, row: int) -> Frame:
        """A copy of a frame, with its checksum completed."""
        start, length = int(self.starts[row]), int(self.lengths[row])
        frame = self.data[start : start + length].tobytes()
        flags, _, _, _, begin, offset = _OFFLOAD.unpack_from(self.data.data, start - _OFFLOAD.size)
        if not flags & _NEEDS_CHECKSUM or begin + offset + 2 > length:
            return frame
        # The field has the sum of the pseudo header; for UDP 0 would mean no checksum.
        checksum = internet_checksum(frame[begin:]) or 0xFFFF
        return frame[: begin + offset] + checksum.to_bytes(2) + frame[begin + offset + 2 :]


class Side(Closing):
    """One interface of the bridge; closing it restores the interface.

    receive_buffer: bytes of the kernel's buffer. Raises `LinkError` when there is no
    such interface, it is down, or the right to open packet sockets is missing.
    """

    BATCH = 128
    """Frames received or sent by one system call."""

    def __init__(self, name: str, *, receive_buffer: int = 64 << 20) -> None:
        self.interface: Interface = interface(name)
        if not self.interface.is_up:
            raise LinkError(name, f"is down: ip link set {name} up")
        self.counters: Counter[str] = Counter()
        """`received`, `sent`; and lost frames: `too_long` for the MTU of the other interface,
        `refused` by its queue, `no_room` in the kernel for arriving ones."""
        self._socket = packet_socket(name)
        try:
            self._prepare(receive_buffer)
        except OSError as error:
            self._socket.close()
            raise LinkError(name, f"no packet socket: {error.strerror}") from None
        self._receiving = _Messages(self.BATCH)
        self._sending = _Messages(self.BATCH)
        self._data = np.zeros(self.BATCH * _ROW, np.uint8)
        self._control = np.zeros(self.BATCH, _CONTROL)
        rows = np.arange(self.BATCH, dtype=np.int64) * _ROW
        self._starts = rows + _FRAME
        self._receiving.place(self._data.ctypes.data + rows + _FRAME - _OFFLOAD.size)
        self._receiving.vectors["length"] = _ROW - _FRAME + _OFFLOAD.size
        message = self._receiving.headers["message"]
        message["control"] = self._control.ctypes.data + np.arange(self.BATCH) * _CONTROL.itemsize
        message["control_length"] = _CONTROL.itemsize

    @property
    def name(self) -> str:
        """The interface."""
        return self.interface.name

    def receive(self, most: int = BATCH) -> Arrived | None:
        """Frames that have arrived, at most `BATCH`; `None` for none; never waits."""
        headers = self._receiving.headers
        limit = min(most, self.BATCH)
        count = recvmmsg(self.fileno(), self._receiving.address, limit, MSG_DONTWAIT, None)
        if count <= 0:
            if count < 0:
                check(self.name, ctypes.get_errno())
            return None
        self.counters["received"] += count
        some = headers[:count]
        some["message"]["control_length"] = _CONTROL.itemsize
        starts = self._starts[:count].copy()
        lengths = some["length"].astype(np.int64) - _OFFLOAD.size
        tagged = np.flatnonzero(self._control["status"][:count] & VLAN_VALID)
        if len(tagged):
            self._put_tags_back(tagged, starts, lengths)
        merged = self._data[starts - _OFFLOAD.size + 1] != _NOT_MERGED
        arrived = Arrived(self._data, starts, lengths, merged)
        cut = some["message"]["flags"] & MSG_TRUNC != 0
        if cut.any():
            self.counters["too_long"] += int(cut.sum())
            kept = ~cut
            arrived = Arrived(self._data, starts[kept], lengths[kept], merged[kept])
        return arrived

    def forward(self, arrived: Arrived) -> None:
        """Send all frames of a batch unchanged."""
        self._send(
            arrived.data.ctypes.data + arrived.starts - _OFFLOAD.size,
            arrived.lengths + _OFFLOAD.size,
        )

    def send(self, frames: Sequence[Frame | int], arrived: Arrived | None = None) -> None:
        """Send frames in order; a number stands for a frame of the batch, unchanged."""
        for begin in range(0, len(frames), self.BATCH):
            addresses, lengths, kept = [], [], []
            for each in frames[begin : begin + self.BATCH]:
                if isinstance(each, int):
                    assert arrived is not None
                    addresses.append(arrived.data.ctypes.data + int(arrived.starts[each]))
                    addresses[-1] -= _OFFLOAD.size
                    lengths.append(int(arrived.lengths[each]) + _OFFLOAD.size)
                else:
                    buffer = ctypes.create_string_buffer(
                        _NO_OFFLOAD + each, len(each) + len(_NO_OFFLOAD)
                    )
                    kept.append(buffer)
                    addresses.append(ctypes.addressof(buffer))
                    lengths.append(len(buffer))
            self._send(np.array(addresses, np.uint64), np.array(lengths, np.uint64))

    def fileno(self) -> int:
        """The packet socket."""
        return self._socket.fileno()

    def count_losses(self) -> None:
        """Read `no_room` from the kernel; raises `LinkError`."""
        try:
            self.counters["no_room"] += take_lost(self._socket)
        except OSError as error:
            raise LinkError(self.name, str(error.strerror)) from None

    def close(self) -> None:
        """Close the socket, which ends the promiscuous mode."""
        self._socket.close()

    def _prepare(self, receive_buffer: int) -> None:
        opened = self._socket
        make_room(opened, receive_buffer)
        make_room(opened, receive_buffer, sending=True)
        opened.setsockopt(SOL_PACKET, _PACKET_VNET_HDR, 1)
        opened.setsockopt(SOL_PACKET, AUXDATA, 1)
        opened.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
        take_all(opened, self.interface.index)
        opened.bind((self.name, ETH_P_ALL))

    def _put_tags_back(
        self,
        rows: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Insert VLAN tags after the addresses; the bytes before move to the front."""
        table = self._data.reshape(self.BATCH, _ROW)
        addresses = _FRAME + 2 * _MAC
        front = table[rows, _FRAME - _OFFLOAD.size : addresses]
        # The checksummed part begins later now.
        begins = front[:, _CHECKSUM_AT : _CHECKSUM_AT + 2].copy().view(np.uint16)
        begins[front[:, 0] & _NEEDS_CHECKSUM != 0] += VLAN.SIZE
        front[:, _CHECKSUM_AT : _CHECKSUM_AT + 2] = begins.view(np.uint8)
        table[rows, : front.shape[1]] = front
        control = self._control[rows]
        known = control["status"] & VLAN_TPID_VALID != 0
        tag = np.empty((len(rows), 2), ">u2")
        tag[:, 0] = np.where(known, control["tpid"], EtherType.VLAN)
        tag[:, 1] = control["tci"]
        table[rows, addresses - VLAN.SIZE : addresses] = tag.view(np.uint8)
        starts[rows] -= VLAN.SIZE
        lengths[rows] += VLAN.SIZE

    def _send(self, addresses: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        messages, count = self._sending, len(addresses)
        messages.vectors["base"][:count] = addresses
        messages.vectors["length"][:count] = lengths
        done, descriptor = 0, self.fileno()
        while done < count:
            place = messages.address + done * HEADER.itemsize
            sent = sendmmsg(descriptor, place, count - done, MSG_DONTWAIT)
            if sent > 0:
                self.counters["sent"] += sent
                done += sent
                continue
            code = ctypes.get_errno()
            if code == errno.EMSGSIZE:
                self.counters["too_long"] += 1
                done += 1
            elif code in (errno.EAGAIN, errno.EINTR):
                if not self._wait():
                    self.counters["refused"] += count - done
                    return
            elif code in (errno.ENOBUFS, errno.EINVAL):
                # The queue is full, or the kernel does not support such merged packets.
                self.counters["refused"] += 1
                done += 1
            else:
                check(self.name, code)

    def _wait(self) -> bool:
        """Wait until the interface accepts more frames."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        return bool(poll.poll(_SEND_TIMEOUT_MS))


class _Messages:
    """The structures of one batch call: a message with one buffer for each frame."""

    def __init__(self, count: int) -> None:
        self.vectors = np.zeros(count, VECTOR)
        self.headers = np.zeros(count, HEADER)
        self.address: int = self.headers.ctypes.data
        message = self.headers["message"]
        message["vectors"] = self.vectors.ctypes.data + np.arange(count) * VECTOR.itemsize
        message["vector_count"] = 1

    def place(self, addresses: npt.NDArray[np.int64]) -> None:
        """Set the addresses of the buffers."""
        self.vectors["base"] = addresses


def notes(sides: Sequence[Side]) -> list[str]:
    """Sentences for the user about the interfaces, before traffic passes."""
    sentences = []
    for side in sides:
        if side.interface.addresses:
            sentences.append(
                f"{side.name}: has IP addresses, so the kernel of this machine also sends there: "
                f"ip addr flush dev {side.name}"
            )
        if not side.interface.has_carrier:
            sentences.append(f"{side.name}: no carrier: nothing is connected at the other end")
    mtus = {side.interface.mtu for side in sides}
    if len(mtus) > 1:
        mtu_list = ", ".join(f"{side.name} {side.interface.mtu}" for side in sides)
        sentences.append(f"the MTUs differ ({mtu_list}): longer frames will be lost")
    return sentences


def losses(side: Side) -> list[str]:
    """Sentences about frames lost at one side."""
    return [
        f"{side.name}: {side.counters[counter]} {reason.format(side.name)}"
        for counter, reason in _LOSSES.items()
        if side.counters[counter]
    ]


_CONTROL = np.dtype(
    [
        ("length", np.uintp),
        ("level", np.int32),
        ("type", np.int32),
        ("status", np.uint32),
        ("wire", np.uint32),
        ("kept", np.uint32),
        ("mac", np.uint16),
        ("network", np.uint16),
        ("tci", np.uint16),
        ("tpid", np.uint16),
    ],
    align=True,
)
"""struct cmsghdr with struct tpacket_auxdata."""
_OFFLOAD = Struct("=BBHHHH")
"""struct virtio_net_hdr: flags, kind of merged packets, bytes of their headers, bytes of a segment,
start of the checksummed part, and offset of the checksum from there."""
_NO_OFFLOAD = bytes(_OFFLOAD.size)
_CHECKSUM_AT = 6
"""Offset of the start of the checksummed part in the header."""
_NEEDS_CHECKSUM = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
_NOT_MERGED = 0  # VIRTIO_NET_HDR_GSO_NONE

_MAC = 6
_FRAME = VLAN.SIZE + _OFFLOAD.size
"""Offset of a frame in its row, after the header and room for a VLAN tag."""
_ROW = _FRAME + Ethernet.SIZE + (1 << 16) + 1024
"""A merged frame has up to 64 KiB and its headers; readers access bytes after a short one."""

_SEND_TIMEOUT_MS = 1000
"""Milliseconds for which an interface may be busy."""

_LOSSES = {
    "no_room": "arriving frames lost: they arrived faster than they were processed",
    "too_long": "frames lost: longer than the MTU of {0}",
    "refused": "frames lost: refused by the queue of the interface: "
    "ip link set {0} txqueuelen 10000",
}
"""Descriptions of the counters of lost frames."""

_PACKET_VNET_HDR = 15
