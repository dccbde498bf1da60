"""A port without privileges: UDP sockets in place of packet sockets.

A socket sees only the payload of a packet, so the port makes the frame around it: the
addresses, ToS and TTL come from the kernel; the MAC address of the sender and the
IPv6 flow label, which the kernel does not give, are zero. Sent packets get their headers
from the kernel: those of the frame as far as a socket can set them.

The ICRC covers three things that the kernel decides. The source port: sockets are
bound to those that the node uses, and where that is not possible 4791 is used.
The IPv4 flags and identification: DF and 0, which Linux writes for a socket that is not
connected and must not fragment (seen on the wire, Linux 6.18). The ICRC is corrected for
each difference from the frame, and stays wrong if it was.

The identification of received packets, which some senders increment (rxe does), is not
given. It is computed as the one that fits the ICRC. So of the 32 bits of an ICRC
16 remain as a check over IPv4: one in 65536 damaged packets is accepted
(one that had passed the Ethernet FCS, too, as on any port). Over IPv6, which has no
identification, all 32 remain. Packets of a sender over IPv4 without DF are dropped.

Source: ip(7), ipv6(7), udp(7), linux/udp.h, asm-generic/socket.h.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from struct import Struct
from typing import NamedTuple

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.base.node import Frame
from ibwire.link.arrival import KERNELS_TIME, TIME, TIMESTAMPNS
from ibwire.link.identification import icrc_change, two_bytes_behind
from ibwire.link.interface import Interface, interface, notes, too_long
from ibwire.link.packet_filter import NOTHING, attach
from ibwire.rc.device import gid_of
from ibwire.rc.path import V4_MAPPED, Path, address_of, ethernet_route, is_link_local, is_v4
from ibwire_layers.crc import internet_checksum
from ibwire_layers.headers import BTH, ICRC_SIZE
from ibwire_layers.outer import ROCEV2_PORT, UDP, EtherType, IPProto, IPv4, IPv6


class UDPPort(Closing):
    """UDP sockets on an interface, or on `lo` between processes; a context manager.

    addresses: those that are used, by default all of the interface; on `lo` any of
    127.0.0.0/8, so that each process has its own. buffer: bytes that may wait in the kernel
    in each direction, as far as net.core.rmem_max and wmem_max allow. timed: have the kernel note
    when datagrams arrive. The kernel finds the route to the peer, so MAC addresses in frames do
    not matter.

    Raises `LinkError` when there is no such interface, it is down, or has no such address,
    and when another program has the UDP port; `VerbsError` EINVAL for an invalid address.
    A link that has gone down shows only in `send`.
    """

    BATCH = 64
    """Datagrams that are taken from a socket in a row."""

    LIMIT_SOURCE_PORTS = 64
    """Sockets for source ports; beyond these packets leave from port 4791."""

    LIMIT = 4096
    """Headers that are kept for each direction."""

    def __init__(
        self,
        name: str,
        *,
        addresses: Sequence[str] = (),
        buffer: int = 8 << 20,
        timed: bool = False,
    ) -> None:
        self.interface: Interface = interface(name)
        """The interface as it was at the beginning."""
        if not self.interface.is_up:
            raise LinkError(name, f"is down: ip link set {name} up")
        self.addresses = tuple(addresses or self.interface.addresses)
        """IPv4, then global, then link-local IPv6, unless given."""
        if not self.addresses:
            raise LinkError(name, "has no IP address")
        self.counters: Counter[str] = Counter()
        """`received`, `sent`; `too_short`: received datagrams without room for a packet;
        `not_udp`: frames that no socket can send; `not_sent`: frames that the interface's
        queue has refused; `no_room`: datagrams that the kernel had no room to keep, as
        `notes` has last found."""
        self._buffer = memoryview(bytearray(1 << 16))
        self._size = buffer
        self._timed = timed
        self.arrival_ns: list[int] = []
        """With `timed`, nanoseconds since the epoch for each frame of the last `receive`."""
        self.arrival_clock = KERNELS_TIME
        self._paths: dict[tuple[object, ...], Path] = {}
        """Headers of received packets, by the information of the kernel."""
        self._ways: dict[bytes, _Way | None] = {}
        """What becomes of a frame by its headers."""
        self._sockets: dict[tuple[int, int], socket.socket | None] = {}
        """By own GID and port; `None` for a port that cannot be had."""
        self._receivers: dict[int, tuple[int, socket.socket]] = {}
        """Those on port 4791 with their GID, by descriptor."""
        self._full: dict[int, socket.socket] = {}
        """Those without room to send, by descriptor."""
        with ExitStack() as opened:
            self._opened = opened
            self._epoll = opened.enter_context(select.epoll())
            for address in self.addresses:
                gid = gid_of(address)
                receiver = self._sockets[gid, ROCEV2_PORT] = self._open(gid)
                self._receivers[receiver.fileno()] = gid, receiver
                self._epoll.register(receiver, select.EPOLLIN)
            self._opened = opened.pop_all()

    @property
    def name(self) -> str:
        """The interface."""
        return self.interface.name

    @property
    def mac(self) -> bytes:
        """Its MAC address."""
        return self.interface.mac

    @property
    def mtu(self) -> int:
        """Bytes of the largest IP packet."""
        return min(self.interface.mtu, _LARGEST)

    def receive(self) -> Sequence[Frame]:
        """Frames made of the datagrams that have arrived; never waits."""
        frames: list[Frame] = []
        self.arrival_ns = []
        for descriptor, _ in self._epoll.poll(0):
            if descriptor in self._full:
                self._note_room(descriptor)
            if descriptor in self._receivers:
                frames += self._arrivals(*self._receivers[descriptor])
        self.counters["received"] += len(frames)
        return frames

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames, never waiting; returns how many were accepted.

        Frames that are not valid RoCEv2 packets from one of the addresses are lost.
        """
        for taken, frame in enumerate(frames):
            header = frame[: _V6_SIZE if frame[12:14] == _IPV6 else _V4_SIZE]
            try:
                way = self._ways[header]
            except KeyError:
                if len(self._ways) >= self.LIMIT:
                    self._ways.clear()
                way = self._ways[header] = self._way(header)
            if way is None or len(frame) < way.end:
                self.counters["not_udp"] += 1
            elif not self._send(way, frame):
                return taken
        return len(frames)

    def notes(self) -> list[str]:
        """What a user should know about the interface and about what has happened on it so far,
        a sentence each."""
        drops = 0
        for _, receiver in self._receivers.values():
            information = receiver.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            drops += _MEMINFO.unpack(information)[-1]
        self.counters["no_room"] = drops
        sentences = notes(self.interface)
        for counter, reason in _LOSSES.items():
            if self.counters[counter]:
                sentences.append(f"{self.name}: {self.counters[counter]} {reason}")
        return sentences

    def fileno(self) -> int:
        """An epoll(7) descriptor: readable when datagrams have arrived, and also when there is
        room again."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close all sockets."""
        self._opened.close()

    # Sockets.

    def _open(self, gid: int, port: int = ROCEV2_PORT) -> socket.socket:
        v4 = is_v4(gid)
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            opened = socket.socket(socket.AF_INET if v4 else socket.AF_INET6, kind)
        except OSError as error:
            raise LinkError(self.name, f"no UDP socket: {error.strerror}") from None
        try:
            device = os.fsencode(self.name) + b"\0"
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            for level, option, value in _OPTIONS_V4 if v4 else _OPTIONS_V6:
                opened.setsockopt(level, option, value)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._size)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._size)
            if self._timed:
                opened.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)
            if port != ROCEV2_PORT:
                # For sending alone: what comes to it would only fill its buffer.
                attach(opened, NOTHING)
            opened.bind(self._place(gid, port))
        except OSError as error:
            opened.close()
            reasons = {
                errno.EPERM: "before Linux 5.7 it needs CAP_NET_RAW to keep to one interface",
                errno.EADDRINUSE: f"UDP port {port} is taken: by another RoCE stack, such as "
                "Soft-RoCE or a second ibwire",
                errno.EADDRNOTAVAIL: "this machine does not have this address",
            }
            reason = reasons.get(error.errno or 0, str(error.strerror))
            raise LinkError(self.name, f"{address_of(gid)}: {reason}") from None
        return self._opened.enter_context(opened)

    def _sender(self, gid: int, port: int) -> socket.socket | None:
        """A socket to send from; `None` when that port cannot be had."""
        key = gid, port
        if key not in self._sockets:
            if len(self._sockets) - len(self._receivers) >= self.LIMIT_SOURCE_PORTS:
                return None
            try:
                self._sockets[key] = self._open(gid, port)
            except LinkError:
                self._sockets[key] = None
        return self._sockets[key]

    def _place(self, gid: int, port: int) -> tuple[object, ...]:
        """A socket address, on this link where it is link-local."""
        if is_v4(gid):
            return address_of(gid), port
        return address_of(gid), port, 0, self.interface.index if is_link_local(gid) else 0

    # Receiving.

    def _arrivals(self, gid: int, receiver: socket.socket) -> Iterator[Frame]:
        for _ in range(self.BATCH):
            try:
                size, said, _, peer = receiver.recvmsg_into([self._buffer], _ROOM)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkError(self.name, str(error.strerror)) from None
            if size < BTH.SIZE + ICRC_SIZE:
                self.counters["too_short"] += 1
                continue
            if self._timed:
                self.arrival_ns.append(_time_of(said))
                said = [each for each in said if each[0] != socket.SOL_SOCKET]
            key = gid, peer, *said
            path = self._paths.get(key)
            if path is None:
                if len(self._paths) >= self.LIMIT:
                    self._paths.clear()
                path = self._paths[key] = self._path(gid, peer, said)
            yield _frame(path, bytes(self._buffer[:size]), is_v4(gid))

    def _path(
        self, gid: int, peer: tuple[str, int], said: Sequence[tuple[int, int, bytes]]
    ) -> Path:
        """The headers of a datagram, from its source and the information of the kernel."""
        facts = {kind: int.from_bytes(value, sys.byteorder) for _, kind, value in said}
        v4 = is_v4(gid)
        return Path(
            ethernet_route(
                source=gid_of(peer[0]),
                destination=gid,
                source_mac=bytes(6),
                destination_mac=self.mac,
                source_port=peer[1],
                traffic_class=facts.get(socket.IP_TOS if v4 else socket.IPV6_TCLASS, 0),
                hop_limit=facts.get(socket.IP_TTL if v4 else socket.IPV6_HOPLIMIT, 0),
            )
        )

    # Sending.

    def _way(self, header: bytes) -> _Way | None:
        """How frames with these headers are sent, `None` if no socket can."""
        kind = header[12:14]
        if kind == _IPV4 and len(header) == _V4_SIZE:
            return self._way_v4(header)
        if kind == _IPV6 and len(header) == _V6_SIZE:
            return self._way_v6(header)
        return None

    def _way_v4(self, header: bytes) -> _Way | None:
        ip = IPv4.unpack(header, _ETHERNET_SIZE)
        udp = UDP.unpack(header, _V4_SIZE - UDP.SIZE)
        if (
            (ip.version, ip.ihl, ip.mf, ip.fragment_offset) != (4, 5, 0, 0)
            or ip.protocol != IPProto.UDP
            or ip.total_length != IPv4.SIZE + udp.length
            or internet_checksum(header[_ETHERNET_SIZE : _V4_SIZE - UDP.SIZE])
            or not ip.ttl
        ):
            return None
        said = (
            (socket.IPPROTO_IP, socket.IP_TOS, _INT.pack(ip.dscp << 2 | ip.ecn)),
            (socket.IPPROTO_IP, socket.IP_TTL, _INT.pack(ip.ttl)),
        )
        way = self._way_udp(V4_MAPPED | ip.src, V4_MAPPED | ip.dst, udp, _V4_SIZE, said)
        if way is None:
            return None
        covered = way.end - ICRC_SIZE - (_ETHERNET_SIZE + _AFTER_FLAGS)
        written = int.from_bytes(header[_ETHERNET_SIZE + 4 : _ETHERNET_SIZE + 8]) ^ _DF
        return way._replace(change=way.change ^ icrc_change(written.to_bytes(4), covered))

    def _way_v6(self, header: bytes) -> _Way | None:
        ip = IPv6.unpack(header, _ETHERNET_SIZE)
        udp = UDP.unpack(header, _V6_SIZE - UDP.SIZE)
        if ip.version != 6 or ip.next_header != IPProto.UDP or ip.payload_length != udp.length:
            return None
        said = (
            (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _INT.pack(ip.dscp << 2 | ip.ecn)),
            (socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT, _INT.pack(ip.hop_limit)),
        )
        return self._way_udp(ip.src, ip.dst, udp, _V6_SIZE, said)

    def _way_udp(
        self, source: int, destination: int, udp: UDP, start: int, said: _Said
    ) -> _Way | None:
        end = start + udp.length - UDP.SIZE
        main = self._sockets.get((source, ROCEV2_PORT))
        if main is None or udp.dst_port != ROCEV2_PORT or end < start + BTH.SIZE + ICRC_SIZE:
            return None
        sender = self._sender(source, udp.src_port)
        change = 0
        if sender is None:
            sender = main
            # After the source port come six bytes of UDP.
            other = (udp.src_port ^ ROCEV2_PORT).to_bytes(2)
            change = icrc_change(other, 6 + end - ICRC_SIZE - start)
        return _Way(sender, said, self._place(destination, ROCEV2_PORT), start, end, change)

    def _send(self, way: _Way, frame: Frame) -> bool:
        """Whether the kernel has taken the frame."""
        payload = frame[way.start : way.end]
        if way.change:
            icrc = int.from_bytes(payload[-ICRC_SIZE:], "little") ^ way.change
            payload = payload[:-ICRC_SIZE] + icrc.to_bytes(ICRC_SIZE, "little")
        try:
            way.socket.sendmsg([payload], way.said, 0, way.destination)
        except BlockingIOError:
            self._await_room(way.socket)
            return False
        except OSError as error:
            self._check(error, way)
            return True
        self.counters["sent"] += 1
        return True

    def _check(self, error: OSError, way: _Way) -> None:
        """Raise what an error of sending means, if it is one."""
        if error.errno == errno.ENOBUFS:
            self.counters["not_sent"] += 1
            return
        peer = way.destination[0]
        if error.errno == errno.EMSGSIZE:
            reason = too_long(self.interface, way.end - _ETHERNET_SIZE)
            raise LinkError(self.name, f"{reason}, or that of the way to {peer}")
        if error.errno == errno.EPERM:
            raise LinkError(self.name, f"a firewall of this machine keeps packets from {peer}")
        # Without the interface there is no route: a socket has no better reason.
        if not interface(self.name).is_up:
            raise LinkError(self.name, "has gone down")
        raise LinkError(self.name, f"{peer}: {error.strerror}")

    # Room.

    def _await_room(self, full: socket.socket) -> None:
        """Let `fileno` become readable when a socket takes datagrams again."""
        descriptor = full.fileno()
        if descriptor in self._full:
            return
        self._full[descriptor] = full
        if descriptor in self._receivers:
            self._epoll.modify(full, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._epoll.register(full, select.EPOLLOUT)

    def _note_room(self, descriptor: int) -> None:
        free = self._full.pop(descriptor)
        if descriptor in self._receivers:
            self._epoll.modify(free, select.EPOLLIN)
        else:
            self._epoll.unregister(free)


_Said = tuple[tuple[int, int, bytes], ...]
"""Ancillary data of a datagram: level, type, value."""


def _time_of(said: Sequence[tuple[int, int, bytes]]) -> int:
    """When a datagram has arrived, in nanoseconds since the epoch."""
    (time,) = (value for level, _, value in said if level == socket.SOL_SOCKET)
    seconds, nanoseconds = TIME.unpack(time)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


class _Way(NamedTuple):
    """What becomes of frames with certain headers."""

    socket: socket.socket
    said: _Said
    """ToS and TTL for the kernel to write."""
    destination: tuple[object, ...]
    start: int
    """Where in the frame the payload of the datagram begins."""
    end: int
    change: int
    """Of the ICRC, for what the kernel writes in another way."""


def _frame(path: Path, payload: bytes, v4: bool) -> Frame:
    """The frame that a datagram has come in, as far as it can be known."""
    frame = path.frame(payload[:-ICRC_SIZE])
    icrc = payload[-ICRC_SIZE:]
    if frame[-ICRC_SIZE:] == icrc:
        return frame
    if v4:
        change = int.from_bytes(frame[-ICRC_SIZE:], "little") ^ int.from_bytes(icrc, "little")
        covered = len(payload) - ICRC_SIZE + _V4_SIZE - (_ETHERNET_SIZE + _AFTER_IDENTIFICATION)
        number = two_bytes_behind(change, covered)
        if number is not None:
            ip = frame[14:18] + number + frame[20:24] + bytes(2) + frame[26:34]
            checksum = internet_checksum(ip).to_bytes(2)
            frame = frame[:14] + ip[:10] + checksum + ip[12:] + frame[34:]
    return frame[:-ICRC_SIZE] + icrc


_LOSSES = {
    "no_room": "received packets are lost: they came faster than they were taken; a larger "
    "net.core.rmem_max lets more of them wait",
    "not_sent": "packets were refused by the interface's queue and are lost",
    "not_udp": "frames are lost, because only RoCEv2 without a VLAN tag can be sent by a UDP "
    "socket, from its own address and with sound headers",
}
"""What the counters of lost frames mean."""

_LARGEST = 65535
"""Bytes of the largest IP packet; the loopback interface has a larger MTU."""
_ETHERNET_SIZE = 14
_V4_SIZE = _ETHERNET_SIZE + IPv4.SIZE + UDP.SIZE
_V6_SIZE = _ETHERNET_SIZE + IPv6.SIZE + UDP.SIZE
_AFTER_IDENTIFICATION = 6
"""Bytes of an IPv4 header up to and with the identification."""
_AFTER_FLAGS = 8
_DF = 0x4000
"""Identification 0, DF, no fragment: the four bytes that the kernel writes."""
_IPV4 = EtherType.IPV4.to_bytes(2)
_IPV6 = EtherType.IPV6.to_bytes(2)

_INT = Struct("@i")
_ROOM = 2 * socket.CMSG_SPACE(_INT.size) + socket.CMSG_SPACE(TIME.size)
"""Bytes for ToS and TTL of a datagram."""

_SO_NO_CHECK = 11
_SO_MEMINFO = 55
_MEMINFO = Struct("=9I")
"""The last is the number of datagrams that were dropped (linux/sock_diag.h SK_MEMINFO_DROPS)."""
_IP_MTU_DISCOVER = 10
_IP_RECVTTL = 12
_IPV6_MTU_DISCOVER = 23
_IPV6_DONTFRAG = 62
_PMTUDISC_DO = 2
_UDP_NO_CHECK6_TX = 101
_UDP_NO_CHECK6_RX = 102

# A UDP checksum of zero is what RoCEv2 has (IBA annex A17.3.1); no packet is fragmented.
_OPTIONS_V4 = (
    (socket.SOL_SOCKET, _SO_NO_CHECK, 1),
    (socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO),
    (socket.IPPROTO_IP, socket.IP_RECVTOS, 1),
    (socket.IPPROTO_IP, _IP_RECVTTL, 1),
)
_OPTIONS_V6 = (
    (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1),
    (socket.IPPROTO_UDP, _UDP_NO_CHECK6_TX, 1),
    (socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1),
    (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO),
    (socket.IPPROTO_IPV6, _IPV6_DONTFRAG, 1),
    (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1),
    (socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1),
)
