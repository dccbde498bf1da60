"""ARP, neighbour discovery and echo for the IP addresses of an emulated node on a real link.

For addresses of the machine the kernel implements these protocols
(`ibwire.link.neighbours` queries it). For other addresses a `NeighbourResponder` in front of
the node answers requests for the node's addresses, resolves those of peers, and answers
echo requests. All other frames are passed to the node.

It needs a port that receives these frames, and frames for a MAC address that is not
the interface's: `AFPacketPort(name, neighbours=True, promiscuous=True)`. It joins no
multicast groups, so a switch with MLD snooping may not forward solicitations to it.

Source: RFC 826 and 5227 (ARP), RFC 4861 (neighbour discovery), RFC 792 and 4443 (echo).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from ibwire.base.errors import LinkError
from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import S, Time
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import V4_MAPPED, is_v4, nearest
from ibwire_layers.crc import internet_checksum
from ibwire_layers.outer import EtherType, IPProto, IPv4, IPv6


@dataclass(slots=True, eq=False)
class Resolution:
    """A request for the MAC address of a peer, and its state."""

    gid: int
    """GID of the requested address."""
    mac: bytes | None = None
    """The result."""
    failed: bool = False
    """Whether no response came."""
    asked: int = 0
    """Number of requests sent."""
    due: Time | None = None
    """When it is repeated, or fails."""


class NeighbourResponder:
    """A node with one port in front of another, which has addresses on the link.

    mac: its MAC address; frames for others are dropped, as by an adapter. addresses:
    IPv4 and IPv6. vlan: VLAN ID of all that it sends and receives; frames of the node
    must have it already. Raises `VerbsError` EINVAL for an invalid IP address.

    It learns addresses from responses to its requests and from requests directed to it. These
    protocols have no authentication.
    """

    ATTEMPTS = 3
    """Requests until a resolution fails (RFC 4861 10 MAX_MULTICAST_SOLICIT)."""

    INTERVAL: Time = S
    """Time between two requests (RFC 4861 10 RETRANS_TIMER)."""

    LIMIT = 1024
    """Neighbours that are kept; the oldest is dropped first."""

    LIMIT_ANSWERS = 64
    """Responses that wait to be sent; further requests are not answered."""

    def __init__(
        self, node: Node, mac: bytes, addresses: str | Sequence[str], *, vlan: int | None = None
    ) -> None:
        self.node = node
        self.mac = mac
        self.gids = [
            gid_of(each) for each in ([addresses] if isinstance(addresses, str) else addresses)
        ]
        self.vlan = vlan
        self.neighbours: dict[int, bytes] = {}
        """MAC by GID. A device may share it: `device.neighbours = responder.neighbours`."""
        self.counters: Counter[str] = Counter()
        """`other_mac`: frames for other MAC addresses; `malformed`: invalid ones of
        these protocols; `conflict`: hosts that claim an own address; `not_answered`:
        requests that came too fast; `arp`, `solicitations`, `echo`: answered requests."""
        self._leaving: deque[Frame] = deque()
        self._asking: dict[int, Resolution] = {}
        """Resolutions without a response."""
        self._to_ask: deque[Resolution] = deque()
        """Resolutions whose request is sent next."""
        self._tag = b"" if vlan is None else _TAG.pack(EtherType.VLAN, vlan)

    def resolve(self, gid: int) -> Resolution:
        """Resolve the MAC address of a peer on this link, or of the router towards it.

        The result changes while the node runs: it gets a `mac`, or has `failed`
        after three seconds. A known address, and that of any group, is set at once.
        Raises `LinkError` without an own address of that version.
        """
        known = mac_of(gid) if _is_multicast(gid) else self.neighbours.get(gid)
        if known is not None:
            return Resolution(gid, known)
        resolution = self._asking.get(gid)
        if resolution is None:
            self._own_for(gid)
            resolution = self._asking[gid] = Resolution(gid)
            self._to_ask.append(resolution)
        return resolution

    # As a node.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived whole."""
        if frame[:6] != self.mac and not (frame and frame[0] & 1):
            self.counters["other_mac"] += 1
            return
        kind, start, vlan = frame[12:14], 14, 0
        if kind == _TAGGED:
            kind, start, vlan = frame[16:18], 18, int.from_bytes(frame[14:16]) & _VID
        # The protocol is 9 bytes into an IPv4 header, 6 into an IPv6 header.
        if kind == _IPV4 and frame[start + 9 : start + 10] == _ICMP:
            handle = self._icmp
        elif kind == _IPV6 and frame[start + 6 : start + 7] == _ICMPV6:
            handle = self._icmpv6
        elif kind == _ARP:
            handle = self._arp
        else:
            self.node.receive(frame, now, port)
            return
        # A tag with VLAN ID 0 has only a priority (IEEE 802.1Q 9.6).
        if vlan == (self.vlan or 0):
            handle(frame[6:12], frame[start:])

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame: responses and requests, then frames of the node."""
        if self._to_ask:
            self._leaving.append(self._question(self._to_ask.popleft(), now))
        if self._leaving and (grant is OPEN or grant.allows(0, len(self._leaving[0]))):
            return self._leaving.popleft()
        return self.node.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        """When the node or a resolution has a timeout."""
        due = self.node.poll_timeout()
        for resolution in self._asking.values():
            if resolution.due is not None and (due is None or resolution.due < due):
                due = resolution.due
        return due

    def handle_timeout(self, now: Time) -> None:
        """Repeat requests without a response, and handle the timeouts of the node."""
        for resolution in list(self._asking.values()):
            if resolution.due is None or resolution.due > now:
                continue
            resolution.due = None
            if resolution.asked < self.ATTEMPTS:
                self._to_ask.append(resolution)
            else:
                resolution.failed = True
                del self._asking[resolution.gid]
        due = self.node.poll_timeout()
        if due is not None and due <= now:
            self.node.handle_timeout(now)

    # Requests and learning.

    def _question(self, resolution: Resolution, now: Time) -> Frame:
        resolution.asked += 1
        resolution.due = now + self.INTERVAL
        gid = resolution.gid
        own = self._own_for(gid)
        if is_v4(gid):
            return self._arp_frame(_BROADCAST, _ARP_REQUEST, own, gid, bytes(6))
        group = _solicited_group(gid)
        message = _nd_message(_SOLICITATION, 0, gid, _SOURCE_LINK, self.mac)
        return self._icmpv6_frame(mac_of(group), own, group, message, 255)

    def _own_for(self, gid: int) -> int:
        """The own address for a request: link-local for link-local."""
        own = nearest(self.gids, gid)
        if own is None:
            version = 4 if is_v4(gid) else 6
            raise LinkError("responder", f"no own IPv{version} address")
        return own

    def _learn(self, gid: int, mac: bytes) -> None:
        if gid in self.gids:
            self.counters["conflict"] += 1
            return
        resolution = self._asking.pop(gid, None)
        if resolution is not None:
            resolution.mac = mac
            if resolution in self._to_ask:
                self._to_ask.remove(resolution)
        if gid not in self.neighbours and len(self.neighbours) >= self.LIMIT:
            del self.neighbours[next(iter(self.neighbours))]
        self.neighbours[gid] = mac

    def _answer(self, counter: str, frame: Frame) -> None:
        if len(self._leaving) >= self.LIMIT_ANSWERS:
            self.counters["not_answered"] += 1
            return
        self.counters[counter] += 1
        self._leaving.append(frame)

    # ARP.

    def _arp(self, mac: bytes, packet: bytes) -> None:
        if len(packet) < _ARP_PACKET.size:
            self.counters["malformed"] += 1
            return
        *kind, operation, sender, source, _, target = _ARP_PACKET.unpack_from(packet)
        if tuple(kind) != _ARP_KIND or sender[0] & 1:
            self.counters["malformed"] += 1
            return
        gid, own = V4_MAPPED | source, V4_MAPPED | target
        if operation == _ARP_REPLY and (gid in self._asking or gid in self.gids):
            self._learn(gid, sender)
        elif operation == _ARP_REQUEST and own in self.gids:
            if source:  # otherwise a probe whether the address is free (RFC 5227 1.1)
                self._learn(gid, sender)
            if gid != own:
                self._answer("arp", self._arp_frame(mac, _ARP_REPLY, own, gid, mac))

    # ICMP.

    def _icmp(self, mac: bytes, packet: bytes) -> None:
        if len(packet) < IPv4.SIZE:
            self.counters["malformed"] += 1
            return
        ip = IPv4.unpack(packet)
        message = packet[IPv4.SIZE : ip.total_length]
        if V4_MAPPED | ip.dst not in self.gids:
            return
        if (
            (ip.version, ip.ihl, ip.mf, ip.fragment_offset) != (4, 5, 0, 0)
            or not _ECHO_SIZE <= len(message) == ip.total_length - IPv4.SIZE
            or internet_checksum(packet[: IPv4.SIZE])
            or internet_checksum(message)
        ):
            self.counters["malformed"] += 1
            return
        # No response to a group or broadcast address, which has not sent the request.
        if message[:2] != bytes((_ECHO_REQUEST, 0)) or not ip.src or ip.src >> 28 >= 14:
            return
        message = _with_checksum(bytes((_ECHO_REPLY, 0)) + message[2:], b"")
        header = IPv4(
            dscp=ip.dscp,
            total_length=ip.total_length,
            protocol=IPProto.ICMP,
            src=ip.dst,
            dst=ip.src,
        ).pack()
        header = header[:10] + internet_checksum(header).to_bytes(2) + header[12:]
        self._answer("echo", self._frame(mac, _IPV4, header + message))

    # ICMPv6.

    def _icmpv6(self, mac: bytes, packet: bytes) -> None:
        if len(packet) < IPv6.SIZE:
            self.counters["malformed"] += 1
            return
        ip = IPv6.unpack(packet)
        message = packet[IPv6.SIZE : IPv6.SIZE + ip.payload_length]
        if (
            ip.version != 6
            or not _ECHO_SIZE <= len(message) == ip.payload_length
            or internet_checksum(_pseudo(ip.src, ip.dst, len(message)) + message)
            or _is_multicast(ip.src)
            or is_v4(ip.src)  # an address that no IPv6 packet may have (RFC 4291 2.5.5.2)
            or is_v4(ip.dst)
        ):
            self.counters["malformed"] += 1
            return
        kind = message[0]
        if kind == _ECHO_REQUEST_V6 and ip.dst in self.gids and ip.src:
            reply = bytes((_ECHO_REPLY_V6, 0, 0, 0)) + message[4:]
            self._answer("echo", self._icmpv6_frame(mac, ip.dst, ip.src, reply, 64))
        elif kind in (_SOLICITATION, _ADVERTISEMENT):
            self._neighbour(mac, ip, message)

    def _neighbour(self, mac: bytes, ip: IPv6, message: bytes) -> None:
        """Handle a solicitation or an advertisement; validity: RFC 4861 7.1."""
        options = _link_options(message[_ND.size :]) if len(message) >= _ND.size else None
        if options is None or ip.hop_limit != 255:
            self.counters["malformed"] += 1
            return
        kind, code, _, flags, address = _ND.unpack_from(message)
        target = int.from_bytes(address)
        to_group = _is_multicast(ip.dst)
        if kind == _SOLICITATION:
            linked = options.get(_SOURCE_LINK)
            sound = ip.src or (linked is None and ip.dst == _solicited_group(target))
        else:
            linked = options.get(_TARGET_LINK)
            sound = not (to_group and flags & _SOLICITED)
        if code or _is_multicast(target) or is_v4(target) or not sound:
            self.counters["malformed"] += 1
        elif kind == _SOLICITATION and target in self.gids:
            self._solicited(mac, ip.src, target, linked)
        elif kind == _ADVERTISEMENT and linked and (target in self._asking or target in self.gids):
            self._learn(target, linked)

    def _solicited(self, mac: bytes, source: int, target: int, linked: bytes | None) -> None:
        """Answer a solicitation for an own address."""
        flags = _SOLICITED | _OVERRIDE
        if not source:
            # Duplicate address detection of a host without an address (RFC 4862 5.4): the
            # advertisement goes to all nodes (RFC 4861 7.2.4).
            source, mac, flags = _ALL_NODES, mac_of(_ALL_NODES), _OVERRIDE
        elif linked:
            self._learn(source, linked)
        message = _nd_message(_ADVERTISEMENT, flags, target, _TARGET_LINK, self.mac)
        self._answer("solicitations", self._icmpv6_frame(mac, target, source, message, 255))

    # Frames.

    def _arp_frame(
        self, mac: bytes, operation: int, source: int, target: int, target_mac: bytes
    ) -> Frame:
        low = 0xFFFFFFFF
        packet = _ARP_PACKET.pack(
            *_ARP_KIND, operation, self.mac, source & low, target_mac, target & low
        )
        return self._frame(mac, _ARP, packet)

    def _icmpv6_frame(
        self, mac: bytes, source: int, destination: int, message: bytes, hop_limit: int
    ) -> Frame:
        header = IPv6(
            payload_length=len(message),
            next_header=IPProto.ICMPV6,
            hop_limit=hop_limit,
            src=source,
            dst=destination,
        )
        pseudo = _pseudo(source, destination, len(message))
        return self._frame(mac, _IPV6, header.pack() + _with_checksum(message, pseudo))

    def _frame(self, mac: bytes, kind: bytes, packet: bytes) -> Frame:
        return mac + self.mac + self._tag + kind + packet


def _nd_message(kind: int, flags: int, target: int, option: int, mac: bytes) -> bytes:
    """A solicitation or an advertisement with the MAC address of its sender, without checksum."""
    return _ND.pack(kind, 0, 0, flags, target.to_bytes(16)) + bytes((option, 1)) + mac


def _link_options(options: bytes) -> dict[int, bytes] | None:
    """The MAC addresses in the options of a message by type; `None` for invalid options."""
    found = {}
    place = 0
    while place < len(options):
        # In units of eight bytes; 0 would never end (RFC 4861 4.6).
        size = 8 * int.from_bytes(options[place + 1 : place + 2])
        if not size or place + size > len(options):
            return None
        mac = options[place + 2 : place + 8]
        if size == 8 and not mac[0] & 1:
            found[options[place]] = mac
        place += size
    return found


def _with_checksum(message: bytes, pseudo: bytes) -> bytes:
    """The message with the checksum of itself and a pseudo-header at its third byte."""
    blank = message[:2] + bytes(2) + message[4:]
    return message[:2] + internet_checksum(pseudo + blank).to_bytes(2) + message[4:]


def _pseudo(source: int, destination: int, size: int) -> bytes:
    """The pseudo-header of ICMPv6 (RFC 8200 8.1)."""
    return _PSEUDO.pack(source.to_bytes(16), destination.to_bytes(16), size, IPProto.ICMPV6)


def _solicited_group(gid: int) -> int:
    """The solicited-node multicast address of an address (RFC 4291 2.7.1)."""
    return 0xFF02_0000_0000_0000_0000_0001_FF00_0000 | gid & 0xFFFFFF


def _is_multicast(gid: int) -> bool:
    return (gid >> 28 & 15 == 14) if is_v4(gid) else gid >> 120 == 0xFF


_IPV4 = EtherType.IPV4.to_bytes(2)
_IPV6 = EtherType.IPV6.to_bytes(2)
_ARP = EtherType.ARP.to_bytes(2)
_TAGGED = EtherType.VLAN.to_bytes(2)
_TAG = Struct(">HH")
"""EtherType, then priority and VLAN ID."""
_VID = 0xFFF
_BROADCAST = b"\xff" * 6
_ALL_NODES = 0xFF02 << 112 | 1
"""RFC 4291 2.7.1."""

_ARP_PACKET = Struct(">HHBBH6sI6sI")
"""Address types and sizes, operation, MAC and IPv4 address of the sender and of the target."""
_ARP_KIND = (1, EtherType.IPV4, 6, 4)
_ARP_REQUEST = 1
_ARP_REPLY = 2

_ICMP = IPProto.ICMP.to_bytes(1)
_ICMPV6 = IPProto.ICMPV6.to_bytes(1)
_ECHO_SIZE = 8
"""Bytes of the shortest message, which has only headers."""
_ECHO_REQUEST = 8
_ECHO_REPLY = 0
_ECHO_REQUEST_V6 = 128
_ECHO_REPLY_V6 = 129

_ND = Struct(">BBHI16s")
"""Type, code, checksum, flags, target."""
_SOLICITATION = 135
_ADVERTISEMENT = 136
_SOLICITED = 1 << 30
_OVERRIDE = 1 << 29
_SOURCE_LINK = 1
_TARGET_LINK = 2
_PSEUDO = Struct(">16s16sII")
"""Source, destination, length, next header."""
