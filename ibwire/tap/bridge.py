"""A bump in the wire: what arrives at one interface leaves at another, frame by frame.

Each side is a promiscuous packet socket, which sees every frame that comes in and nothing that
goes out. A batch of frames that shall pass as they are is handed from one socket to
the other where it lies in memory.

The kernel has changed a frame by the time a packet socket sees it, and each change is
undone on the way out:

- A VLAN tag has been taken off, and is told beside the frame; it is put back.
- A frame of a local virtual interface may have an unfinished checksum, or be many TCP
  segments in one; received segments may have been merged. The header of `PACKET_VNET_HDR`
  says so on arrival, and lets the other interface's kernel finish or cut them.

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
    """A batch of frames that have arrived at one side; good until that side receives again."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        merged: npt.NDArray[np.bool_],
    ) -> None:
        self.data = data
        """Where the frames are, each with its `PACKET_VNET_HDR` before it."""
        self.starts = starts
        """Of each frame in the data."""
        self.lengths = lengths
        self.merged = merged
        """Which are several packets in one."""

    def __len__(self) -> int:
        return len(self.starts)

    def frame(self, row: int) -> Frame:
        """A copy of a frame, with the checksum that the kernel has left unfinished."""
        start, length = int(self.starts[row]), int(self.lengths[row])
        frame = self.data[start : start + length].tobytes()
        flags, _, _, _, begin, offset = _OFFLOAD.unpack_from(self.data.data, start - _OFFLOAD.size)
        if not flags & _NEEDS_CHECKSUM or begin + offset + 2 > length:
            return frame
        # What stands there is the sum of the pseudo header; for UDP no 0, which means none.
        checksum = internet_checksum(frame[begin:]) or 0xFFFF
        return frame[: begin + offset] + checksum.to_bytes(2) + frame[begin + offset + 2 :]


class Side(Closing):
    """One interface of the bump; a context manager, at whose end it is as it was before.

    receive_buffer: bytes that may wait in the kernel. Raises `LinkError` when there is no
    such interface, it is down, or the right to open packet sockets is missing.
    """

    BATCH = 128
    """Frames that are received or sent by one system call."""

    def __init__(self, name: str, *, receive_buffer: int = 64 << 20) -> None:
        self.interface: Interface = interface(name)
        if not self.interface.is_up:
            raise LinkError(name, f"is down: ip link set {name} up")
        self.counters: Counter[str] = Counter()
        """`received`, `sent`; and frames that are lost: `too_long` for the other interface's
        MTU, `refused` by its queue, `no_room` in the kernel for arriving ones."""
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
        """Frames that have arrived, at most `BATCH`, `None` for none; never waits."""
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
        """Send all frames of a batch as they have arrived."""
        self._send(
            arrived.data.ctypes.data + arrived.starts - _OFFLOAD.size,
            arrived.lengths + _OFFLOAD.size,
        )

    def send(self, frames: Sequence[Frame | int], arrived: Arrived | None = None) -> None:
        """Send frames in order; a number stands for that of a batch, as it has arrived."""
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
        """Ask the kernel for `no_room`; raises `LinkError`."""
        try:
            self.counters["no_room"] += take_lost(self._socket)
        except OSError as error:
            raise LinkError(self.name, str(error.strerror)) from None

    def close(self) -> None:
        """Close the socket, with which the interface stops being promiscuous."""
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
        """Insert the tag behind the addresses: all before it moves to the front."""
        table = self._data.reshape(self.BATCH, _ROW)
        addresses = _FRAME + 2 * _MAC
        front = table[rows, _FRAME - _OFFLOAD.size : addresses]
        # The checksum of what is behind the tag begins later now.
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
                # The queue is full; or the kernel takes no merged packets of this kind.
                self.counters["refused"] += 1
                done += 1
            else:
                check(self.name, code)

    def _wait(self) -> bool:
        """Wait until the interface takes more."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        return bool(poll.poll(_PATIENCE_MS))


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
        """Say where the buffers are."""
        self.vectors["base"] = addresses


def notes(sides: Sequence[Side]) -> list[str]:
    """What a user should know about the interfaces before traffic goes through, a sentence each."""
    sentences = []
    for side in sides:
        if side.interface.addresses:
            sentences.append(
                f"{side.name}: has IP addresses, so the kernel of this machine speaks there too: "
                f"ip addr flush dev {side.name}"
            )
        if not side.interface.has_carrier:
            sentences.append(f"{side.name}: nobody is at the other end yet (no carrier)")
    mtus = {side.interface.mtu for side in sides}
    if len(mtus) > 1:
        told = ", ".join(f"{side.name} {side.interface.mtu}" for side in sides)
        sentences.append(f"the MTUs differ ({told}): longer frames will be lost")
    return sentences


def losses(side: Side) -> list[str]:
    """What was lost at one side, a sentence each."""
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
"""struct virtio_net_hdr: flags, what it merges, bytes of its headers, bytes of a segment, where
the checksum begins to count, and where it stands from there."""
_NO_OFFLOAD = bytes(_OFFLOAD.size)
_CHECKSUM_AT = 6
"""Where it says from where on the checksum counts."""
_NEEDS_CHECKSUM = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
_NOT_MERGED = 0  # VIRTIO_NET_HDR_GSO_NONE

_MAC = 6
_FRAME = VLAN.SIZE + _OFFLOAD.size
"""Where a frame begins in its row: before it are the header and room for a tag."""
_ROW = _FRAME + Ethernet.SIZE + (1 << 16) + 1024
"""A merged frame has up to 64 KiB and its headers; readers look beyond the end of a short one."""

_PATIENCE_MS = 1000
"""Milliseconds that a line may be busy."""

_LOSSES = {
    "no_room": "arriving frames are lost: they came faster than they were taken",
    "too_long": "frames are lost: longer than the MTU of {0}",
    "refused": "frames are lost: refused by the queue of the interface: "
    "ip link set {0} txqueuelen 10000",
}
"""What the counters of lost frames mean."""

_PACKET_VNET_HDR = 15
