"""The headers before the BTH, cached for both directions.

Between two queue pairs these headers hardly change. A `Path` caches those it writes by
packet size, an `Arrivals` those it has read by their bytes; new ones are built and parsed
with `ibwire_layers`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import repeat
from struct import Struct
from typing import Final
from zlib import crc32 as _zlib_crc32

from ibwire.base.node import Frame
from ibwire_layers import crc
from ibwire_layers import headers as h
from ibwire_layers.outer import UDP, VLAN, Ethernet, EtherType, IPv4, IPv6, LinkType
from ibwire_layers.packet import (
    IBRoute,
    Packet,
    RoCEv1Route,
    RoCEv2Route,
    Route,
    headers_before_bth,
    icrc_register,
    masked_headers,
    with_lengths,
)
from ibwire_layers.psn import MASK
from ibwire_layers.walk import walk

try:
    from isal.isal_zlib import crc32
except ImportError:
    crc32 = _zlib_crc32

V4_MAPPED = 0xFFFF << 32
"""The GID of an IPv4 address is ::ffff:a.b.c.d."""


def is_v4(gid: int) -> bool:
    """Whether a GID is an IPv4 address."""
    return gid >> 32 == 0xFFFF


def is_link_local(gid: int) -> bool:
    """Whether a GID is a link-local IPv6 address (fe80::/10, RFC 4291 2.4)."""
    return gid >> 118 == 0xFE80 >> 6


def address_of(gid: int) -> str:
    """The IP address of a GID."""
    if is_v4(gid):
        return str(ipaddress.IPv4Address(gid ^ V4_MAPPED))
    return str(ipaddress.IPv6Address(gid))


def nearest(own: Sequence[int], gid: int) -> int | None:
    """The local GID for a peer: of its IP version, and link-local for a link-local
    peer if possible."""
    fitting = [each for each in own if is_v4(each) == is_v4(gid)]
    near = (each for each in fitting if is_link_local(each) == is_link_local(gid))
    return next(near, fitting[0] if fitting else None)


class Headers:
    """The headers of one route by packet size, shared by all its flows.

    Flows over RoCEv2 differ in their UDP source port alone.
    """

    __slots__ = ("_flows", "_seed", "_sizes", "is_native", "route", "udp")

    LIMIT = 4096
    """Packet sizes whose headers are kept."""

    LIMIT_FLOWS = 64
    """Source ports whose headers are kept for later flows."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.is_native = isinstance(route, IBRoute)
        self._seed = 0 if isinstance(route, IBRoute) and route.grh is None else crc.ICRC_SEED
        self.udp = UDP.SIZE if isinstance(route, RoCEv2Route) else 0
        """Bytes from the UDP header to the BTH; 0 without one."""
        self._sizes: dict[int, tuple[bytes, bytes]] = {}
        self._flows: dict[int | None, dict[int, tuple[bytes, int]]] = {}

    def flow(self, source_port: int | None) -> dict[int, tuple[bytes, int]]:
        """The cache of `sized` that all paths with this source port share."""
        if source_port not in self._flows:
            if len(self._flows) >= self.LIMIT_FLOWS:
                self._flows.clear()
            self._flows[source_port] = {}
        return self._flows[source_port]

    def sized(self, size: int, source_port: int | None) -> tuple[bytes, int]:
        """Headers of a packet, given its bytes from BTH to padding, and the CRC over them."""
        known = self._sizes.get(size)
        if known is None:
            if len(self._sizes) >= self.LIMIT:
                self._sizes.clear()
            known = self._sizes[size] = _headers_of(self.route, size)
        before, masked = known
        if source_port is not None and self.udp:
            port = source_port.to_bytes(2)
            before = before[: -self.udp] + port + before[2 - self.udp :]
            masked = masked[: -self.udp] + port + masked[2 - self.udp :]
        return before, crc32(masked, self._seed)


@lru_cache(1 << 12)
def _headers_of(route: Route, size: int) -> tuple[bytes, bytes]:
    """The headers of a packet, and those that its ICRC covers; devices come to the same ones."""
    route = with_lengths(route, size)
    return headers_before_bth(route), masked_headers(route)


class Path:
    """The path of one flow: adds the headers before the BTH and the ICRC after the packet."""

    __slots__ = (
        "_bth",
        "_headers",
        "_identification",
        "_known",
        "_register",
        "_size",
        "_source_port",
        "_start",
        "around",
        "counts",
        "flow_key",
    )

    LIMIT = 64
    """Packet sizes whose headers are kept."""

    def __init__(
        self,
        headers: Headers | Route,
        *,
        source_port: int | None = None,
        counts_identification: bool = False,
    ) -> None:
        """A flow over a route.

        source_port: UDP source port; `None` for that of the route.
        counts_identification: whether the IPv4 identification increases with each packet.
        """
        self._headers = headers if isinstance(headers, Headers) else Headers(headers)
        self._source_port = source_port
        self._known = self._headers.flow(source_port)
        self.counts = counts_identification
        """Whether it counts IPv4 identifications."""
        self._identification = 0 if counts_identification else -1
        self._bth = self._start = b""
        """The first bytes of the BTH that `plain` has seen last, and the frame up to their end."""
        self._size = -1
        """Bytes of data of that packet."""
        self._register = 0
        """CRC of the start of that frame."""
        before = self._headers.sized(h.BTH.SIZE, source_port)[0]
        self.around = len(before) + h.ICRC_SIZE + (h.VCRC_SIZE if self._headers.is_native else 0)
        """Bytes of a frame beside those from the BTH to the padding."""
        is_plain = before[12:15] == _PLAIN_IPV4 and len(before) == _PLAIN_SIZE
        self.flow_key = before[:16] + before[22:24] + before[26:38] if is_plain else b""
        """What switches look at in its frames, if they may be sent unbuilt; otherwise empty. Of
        native InfiniBand without a GRH, the LRH with length 0."""
        if self._headers.is_native and len(before) == h.LRH.SIZE:
            self.flow_key = before[:4] + bytes(2) + before[6:]

    def next_identification(self) -> int:
        """The IPv4 identification of the next frame, if the path counts them; otherwise -1."""
        number = self._identification
        if number >= 0:
            self._identification = number + 1 & 0xFFFF
        return number

    def skip_identifications(self, count: int) -> None:
        """Count as many frames more, or fewer, if the path counts them."""
        if self._identification >= 0:
            self._identification = self._identification + count & 0xFFFF

    def frames(
        self, bth: bytes, psn: int, data: bytes, mtu: int, identification: int
    ) -> list[Frame]:
        """The frames of packets without other headers and padding.

        bth: its bytes before the PSN. psn: of the first. data: of all, cut at `mtu`.
        identification: of the first, -1 on a path that counts none.
        """
        before, register = self._of_size(len(bth) + 4 + mtu)
        register ^= _MASKING[bth[4]]
        native = self._headers.is_native
        found = []
        if identification >= 0:
            ip = len(before) - _V4_SIZE
            numbered = _identified(before, identification)
            middle = numbered[ip + 4 :] + bth + psn.to_bytes(4)
            count = -(-len(data) // mtu)
            register = crc32(bth, register)
            middles, changes = _numbered(middle, count)
            start = before[: ip + 4]
            at = 0
            for index in range(count):
                middle = middles[index]
                piece = data[at : at + mtu]
                at += mtu
                icrc = crc32(piece, crc32(middle[-4:], register ^ changes[index]))
                found.append(b"".join((start, middle, piece, icrc.to_bytes(4, "little"))))
            return found
        start = before + bth
        register = crc32(bth, register)
        for at in range(0, len(data), mtu):
            word = psn.to_bytes(4)
            psn = psn + 1 & MASK
            piece = data[at : at + mtu]
            icrc = crc32(piece, crc32(word, register))
            frame = b"".join((start, word, piece, icrc.to_bytes(4, "little")))
            found.append(frame + crc.vcrc(frame) if native else frame)
        return found

    def plain(self, bth: bytes, word: bytes, payload: bytes) -> Frame:
        """The frame of a packet without other headers and padding; its path counts no packets.

        bth: its bytes before the word with AckReq and PSN, which are the same for most of a flow.
        """
        if bth != self._bth or len(payload) != self._size:
            before, register = self._of_size(len(bth) + len(word) + len(payload))
            self._bth, self._size = bth, len(payload)
            self._start = before + bth
            self._register = crc32(bth, register ^ _MASKING[bth[4]])
        icrc = _CRC32(payload, _CRC32(word, self._register))
        frame = b"".join((self._start, word, payload, icrc.to_bytes(4, "little")))
        return frame + crc.vcrc(frame) if self._headers.is_native else frame

    def _of_size(self, size: int) -> tuple[bytes, int]:
        """The headers of packets of a size, and the CRC over them."""
        known = self._known.get(size)
        if known is None:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            known = self._known[size] = self._headers.sized(size, self._source_port)
        return known

    def frame(self, transport: bytes, identification: int | None = None) -> Frame:
        """The frame of a packet, given from its BTH to its padding.

        identification: as `next_identification` has given it; `None` to take the next one.
        """
        before, register = self._known.get(len(transport)) or self._of_size(len(transport))
        if self._identification >= 0:
            number = self.next_identification() if identification is None else identification
            before = _identified(before, number)
            register ^= _change_before_bth(number)
        icrc = _CRC32(transport, register ^ _MASKING[transport[4]])
        frame = b"".join((before, transport, icrc.to_bytes(4, "little")))
        return frame + crc.vcrc(frame) if self._headers.is_native else frame


def _identified(before: bytes, number: int) -> bytes:
    """The headers, which have IPv4 identification 0, with another one."""
    ip = len(before) - _V4_SIZE
    # One's complement arithmetic: adding to the header subtracts from its checksum.
    checksum = int.from_bytes(before[ip + 10 : ip + 12]) - number
    checksum = checksum + (checksum >> 16) & 0xFFFF
    return (
        before[: ip + 4]
        + number.to_bytes(2)
        + before[ip + 6 : ip + 10]
        + checksum.to_bytes(2)
        + before[ip + 12 :]
    )


_CRC32: Final = crc32  # compiled code finds a constant without a lookup by name
_RESIDUE: Final = crc32(crc32(b"").to_bytes(4, "little"))
"""The CRC of bytes with their right CRC behind them: the same of all, and here of none."""
_V4_SIZE: Final[int] = IPv4.SIZE + UDP.SIZE
_PLAIN_SIZE = Ethernet.SIZE + _V4_SIZE
_PLAIN_IPV4 = EtherType.IPV4.to_bytes(2) + b"\x45"
_V4_SEED: Final = crc32(b"\x45\xff", crc.ICRC_SEED)


def _v4_register(frame: bytes, ip: int) -> int:
    """CRC over the masked IPv4 header without options at `ip` and the UDP header after it."""
    masked = b"".join(
        (
            frame[ip + 2 : ip + 8],
            b"\xff",  # TTL
            frame[ip + 9 : ip + 10],
            b"\xff\xff",  # header checksum
            frame[ip + 12 : ip + 26],
            b"\xff\xff",  # UDP checksum
        )
    )
    return _CRC32(masked, _V4_SEED)


@dataclass(slots=True, init=False)
class Arrival:
    """The headers before a BTH, parsed; shared by all packets with the same bytes."""

    source: int
    """GID of the sender, or its LID without a GRH (native InfiniBand inside a subnet)."""
    destination: int
    size: int
    """Bytes before the BTH."""
    end: int
    """Where the ICRC ends."""
    register: int
    """CRC of the covered headers."""
    ecn: int
    grh: bytes
    """The 40 bytes that a UD receiver finds in front of the message; empty without a GRH."""
    source_port: int
    """UDP source port; 0 without UDP."""
    route: Route
    """Route of a packet of this sender: lengths, identification and source port may differ."""

    # Written out: that of a dataclass is never compiled.
    def __init__(
        self,
        *,
        source: int,
        destination: int,
        size: int,
        end: int,
        register: int,
        ecn: int,
        grh: bytes,
        source_port: int,
        route: Route,
    ) -> None:
        self.source = source
        self.destination = destination
        self.size = size
        self.end = end
        self.register = register
        self.ecn = ecn
        self.grh = grh
        self.source_port = source_port
        self.route = route


class Arrivals:
    """Reads the headers before the BTH; known headers are one lookup.

    Over IPv4 a stream varies identification, lengths and source port only; headers
    that differ in these only are checked here, all others with `ibwire_layers`.
    """

    LIMIT = 1 << 15
    """Headers kept, some 13 MB of them: enough for four sizes of packets from each of 8,000
    connections. A sender that varies them costs time but no more memory."""

    LIMIT_SIZES = 16
    """Sizes of headers that are looked up; extensions of IPv6 allow any number."""

    def __init__(self, link_type: int = LinkType.ETHERNET) -> None:
        self._link_type = link_type
        self._known: dict[bytes, Arrival] = {}
        self._similar: dict[bytes, Arrival] = {}
        """IPv4 headers by the bytes that do not vary."""
        self._counted: dict[bytes, tuple[Arrival, int, int]] = {}
        """IPv4 headers by all bytes but identification and checksum; with the sum of these two, and
        the CRC for identification 0."""
        self._sizes: list[int] = []

    def read(self, frame: Frame) -> Arrival | None:
        """The headers of a frame with a BTH, `None` for any other or damaged one."""
        for size in self._sizes:
            arrival = self._known.get(frame[:size])
            if arrival is not None:
                return arrival if len(frame) >= arrival.end else None
        for size in self._sizes:
            ip = size - _V4_SIZE
            if ip >= 0:
                if self._counted:
                    counted = self._counted.get(_without_number(frame, ip))
                    if counted is not None:
                        return _renumber(*counted, frame, ip)
                similar = self._similar.get(_constant(frame, ip))
                if similar is not None:
                    return self._vary(similar, frame, ip)
        return self._examine(frame)

    def _vary(self, similar: Arrival, frame: Frame, ip: int) -> Arrival | None:
        """The headers of a frame that differ from known ones only in the varying fields."""
        total = int.from_bytes(frame[ip + 2 : ip + 4])
        udp = int.from_bytes(frame[ip + 24 : ip + 26])
        end = ip + total
        size = similar.size
        if end > len(frame) or end < size + h.BTH.SIZE + h.ICRC_SIZE:
            return None
        # A one's complement sum of all ones is a multiple of 0xFFFF (RFC 1071).
        if udp != total - IPv4.SIZE or int.from_bytes(frame[ip : ip + IPv4.SIZE]) % 0xFFFF:
            return None
        arrival = Arrival(
            source=similar.source,
            destination=similar.destination,
            size=size,
            end=end,
            register=_v4_register(frame, ip),
            ecn=similar.ecn,
            grh=bytes(20) + frame[ip : ip + IPv4.SIZE],
            source_port=int.from_bytes(frame[ip + 20 : ip + 22]),
            route=similar.route,
        )
        self._make_room()
        number = int.from_bytes(frame[ip + 4 : ip + 6])
        if not number:  # otherwise no other frame has the same headers
            self._known[frame[:size]] = arrival
        else:
            total = number + int.from_bytes(frame[ip + 10 : ip + 12])
            register = arrival.register ^ _change_before_bth(number)
            self._counted[_without_number(frame, ip)] = arrival, total, register
        return arrival

    def _examine(self, frame: Frame) -> Arrival | None:
        found = walk(frame, self._link_type)
        if not found.protocol.is_rdma or found.bth < 0 or found.tunnelled:
            return None
        if found.end > len(frame) or found.end < found.bth + h.BTH.SIZE + h.ICRC_SIZE:
            return None
        route = Packet.parse(frame, self._link_type, strict=False).route
        if not _is_sound(route, found.end - found.bth):
            return None
        arrival = _arrival(route, found.bth, found.end)
        if isinstance(route, RoCEv2Route) and route.udp.checksum:
            # The checksum covers the payload, so these headers cannot be reused.
            return arrival if _udp_checksum_fits(route, frame, found.bth, found.end) else None
        if found.bth not in self._sizes:
            if len(self._sizes) >= self.LIMIT_SIZES:
                return arrival
            self._sizes.append(found.bth)
        self._make_room()
        self._known[frame[: found.bth]] = arrival
        if isinstance(route, RoCEv2Route) and isinstance(route.ip, IPv4) and not route.options:
            self._similar[_constant(frame, found.bth - _V4_SIZE)] = arrival
        return arrival

    def _make_room(self) -> None:
        if len(self._known) >= self.LIMIT:
            self._known.clear()
        if len(self._similar) >= self.LIMIT:
            self._similar.clear()
        if len(self._counted) >= self.LIMIT:
            self._counted.clear()


def _renumber(known: Arrival, total: int, register: int, frame: Frame, ip: int) -> Arrival | None:
    """The headers of a frame that differ from known ones in identification and checksum only.

    total: the sum of these two. register: the CRC of the headers for identification 0.
    """
    number = int.from_bytes(frame[ip + 4 : ip + 6])
    checksum = int.from_bytes(frame[ip + 10 : ip + 12])
    if known.end > len(frame) or (number + checksum - total) % 0xFFFF:
        return None
    return Arrival(
        source=known.source,
        destination=known.destination,
        size=known.size,
        end=known.end,
        register=register ^ _change_before_bth(number),
        ecn=known.ecn,
        grh=bytes(20) + frame[ip : ip + IPv4.SIZE],
        source_port=known.source_port,
        route=known.route,
    )


def _without_number(frame: Frame, ip: int) -> bytes:
    """The headers up to the BTH without IPv4 identification and checksum."""
    return frame[: ip + 4] + frame[ip + 6 : ip + 10] + frame[ip + 12 : ip + _V4_SIZE]


def _constant(frame: Frame, ip: int) -> bytes:
    """The bytes that all packets of a sender share: no length, number, checksum or source port."""
    return (
        frame[: ip + 2]
        + frame[ip + 6 : ip + 10]
        + frame[ip + 12 : ip + 20]
        + frame[ip + 22 : ip + 24]
        + frame[ip + 26 : ip + 28]
    )


def icrc_fits(frame: Frame, arrival: Arrival) -> bool:
    """Whether the ICRC of a frame is right."""
    start = arrival.size
    register = arrival.register ^ _MASKING[frame[start + 4]]
    return _CRC32(frame[start : arrival.end], register) == _RESIDUE


def run_data(frames: Sequence[Frame], arrival: Arrival) -> bytes | None:
    """The data of MIDDLE packets from `frames`, whose headers are those of the first but the PSN.

    arrival: the headers of the first frame. Returns `None` unless all have the same size and a
    right ICRC, and PSNs in order.
    """
    start = arrival.size + 8
    end = arrival.end
    head = frames[0][:start]
    psn = int.from_bytes(frames[0][start : start + 4])
    register = crc32(head[arrival.size :], arrival.register ^ _MASKING[head[-4]])
    pieces = []
    if not frames[-1].startswith(head):
        return _numbered_run_data(frames, arrival)
    for frame in frames:
        word = psn.to_bytes(4)
        if len(frame) != end or not frame.startswith(head) or frame[start : start + 4] != word:
            return None
        piece = frame[start + 4 : end - 4]
        if crc32(piece, crc32(word, register)).to_bytes(4, "little") != frame[end - 4 :]:
            return None
        pieces.append(piece)
        psn = psn + 1 & MASK
    return b"".join(pieces)


def _numbered_run_data(frames: Sequence[Frame], arrival: Arrival) -> bytes | None:
    """The same for frames whose IPv4 identifications increase."""
    route = arrival.route
    if not isinstance(route, RoCEv2Route) or not isinstance(route.ip, IPv4):
        return None
    start, end, head = arrival.size + 12, arrival.end, frames[0]
    ip = arrival.size - _V4_SIZE
    first, bth = head[: ip + 4], head[arrival.size : start - 4]
    middles, changes = _numbered(head[ip + 4 : start], len(frames))
    register = crc32(bth, arrival.register ^ _MASKING[bth[4]]) ^ changes[0]
    pieces = []
    at = ip + 4
    for index, frame in enumerate(frames):
        middle = middles[index]
        is_next = frame.startswith(first) and frame.startswith(middle, at)
        if len(frame) != end or not is_next:
            return None
        piece = frame[start : end - 4]
        found = crc32(piece, crc32(middle[-4:], register ^ changes[index]))
        if found.to_bytes(4, "little") != frame[end - 4 :]:
            return None
        pieces.append(piece)
    return b"".join(pieces)


@lru_cache(maxsize=2)
def _numbered(first: bytes, count: int) -> tuple[list[bytes], Sequence[int]]:
    """The bytes of frames from the IPv4 identification to the PSN, which both increase.

    first: those of the first of `count` frames. With each goes the change of the CRC over the
    masked headers and the BTH before the PSN, against identification 0. Cached, as the receiver
    in the same process asks for the same: do not change the list.
    """
    number, checksum = int.from_bytes(first[:2]), int.from_bytes(first[6:8])
    psn = int.from_bytes(first[-4:])
    numbers: Sequence[int] = range(number, number + count)
    checksums: Sequence[int] = range(checksum, checksum - count, -1)
    psns: Sequence[int] = range(psn, psn + count)
    if number + count > 0x10000 or checksum < count or psn + count > MASK:
        numbers, psns = [each & 0xFFFF for each in numbers], [each & MASK for each in psns]
        # That of identification 0, which is never 0xFFFF, less each number (RFC 1071).
        whole = (checksum + number) % 0xFFFF
        checksums = [(whole - each) % 0xFFFF for each in numbers]
    pack = Struct(f">H4sH{len(first) - 12}sI").pack
    before, after = repeat(first[2:6]), repeat(first[8:-4])
    middles = list(map(pack, numbers, before, checksums, after, psns))
    end = number + count
    changes = _changes_before_psn()
    if end > len(changes):
        changes = changes * (1 + end // len(changes))
    return middles, changes[number:end]


@cache
def _changes_before_psn() -> tuple[int, ...]:
    """How each identification changes the CRC of the headers up to the PSN."""
    return tuple([high ^ low for high in _HIGH_CHANGES for low in _LOW_CHANGES])


def _masking(value: int) -> int:
    """The change of the header CRC that makes BTH byte 4 count as ones.

    value: the actual byte. A CRC is linear: flipping bits of a byte flips certain bits of
    the CRC for any message, and so do certain bits of the register four bytes before. So
    the byte need not be set, which would cost a copy of the packet.
    """
    register = value ^ 0xFF
    for _ in range(4):  # back over the bytes before it, each taken for zero
        byte = _BY_TOP[register >> 24]
        register = (register ^ _STEPS[byte]) << 8 & 0xFFFFFFFF | byte
    return register


_STEPS = [crc32(bytes((byte,)), 0xFFFFFFFF) ^ 0xFFFFFFFF for byte in range(256)]
"""The register after one byte, starting from zero."""
_BY_TOP = {step >> 24: byte for byte, step in enumerate(_STEPS)}
_MASKING: Final = tuple(_masking(value) for value in range(256))


def _changes(before: int, after: int) -> list[int]:
    """How each value of a byte in or after an IPv4 identification changes a CRC, against 0.

    before, after: zero bytes around it that are in the CRC. A CRC is linear, so the changes add up.
    """
    nothing = crc32(bytes(before + 1 + after))
    return [crc32(bytes(before) + bytes((byte,)) + bytes(after)) ^ nothing for byte in range(256)]


def _change_before_bth(number: int) -> int:
    """How an identification changes the CRC of the headers before the BTH."""
    return _HIGH_BEFORE_BTH[number >> 8] ^ _LOW_BEFORE_BTH[number & 0xFF]


_HIGH_BEFORE_BTH: Final = _changes(0, _V4_SIZE - 5)
_LOW_BEFORE_BTH: Final = _changes(1, _V4_SIZE - 6)
_HIGH_CHANGES: Final = _changes(0, _V4_SIZE - 5 + 8)
"""With the BTH up to its PSN."""
_LOW_CHANGES: Final = _changes(1, _V4_SIZE - 6 + 8)


def _is_sound(route: Route, size: int) -> bool:
    """Whether lengths agree and the IP header checksum is right."""
    if isinstance(route, RoCEv2Route):
        if route.udp.length != UDP.SIZE + size:
            return False
        return not isinstance(route.ip, IPv4) or not crc.internet_checksum(
            route.ip.pack() + route.options
        )
    return True


def _udp_checksum_fits(route: RoCEv2Route, frame: Frame, bth: int, end: int) -> bool:
    ip = route.ip
    width = 4 if isinstance(ip, IPv4) else 16
    pseudo = ip.src.to_bytes(width) + ip.dst.to_bytes(width) + b"\0\x11"
    pseudo += route.udp.length.to_bytes(2)
    data = pseudo + frame[bth - UDP.SIZE : end]
    return not crc.internet_checksum(data)


def _arrival(route: Route, size: int, end: int) -> Arrival:
    port = 0
    if isinstance(route, RoCEv2Route):
        ip, port = route.ip, route.udp.src_port
        if isinstance(ip, IPv4):
            # The IPv4 header takes the last 20 of the 40 bytes (IBA annex A17.4.5.2).
            source, destination = V4_MAPPED | ip.src, V4_MAPPED | ip.dst
            grh = bytes(20) + ip.pack()
        else:
            source, destination, grh = ip.src, ip.dst, ip.pack()
        ecn = ip.ecn
    else:
        ecn = 0
        header = route.grh
        if header is not None:
            source, destination, grh = header.sgid, header.dgid, header.pack()
        else:
            assert isinstance(route, IBRoute)
            source, destination, grh = route.lrh.slid, route.lrh.dlid, b""
    return Arrival(
        source=source,
        destination=destination,
        size=size,
        end=end,
        register=icrc_register(route),
        ecn=ecn,
        grh=grh,
        source_port=port,
        route=route,
    )


def ethernet_route(
    *,
    source: int,
    destination: int,
    source_mac: bytes,
    destination_mac: bytes,
    source_port: int,
    traffic_class: int = 0,
    hop_limit: int = 64,
    flow_label: int = 0,
    vlan: int | None = None,
    priority: int = 0,
    version: int = 2,
) -> RoCEv2Route | RoCEv1Route:
    """The route of RoCEv2 (`version` 2) or RoCEv1 packets between two GIDs."""
    v4 = is_v4(destination)
    kind = EtherType.ROCE if version == 1 else EtherType.IPV4 if v4 else EtherType.IPV6
    tags: tuple[VLAN, ...] = ()
    eth = Ethernet(
        int.from_bytes(destination_mac),
        int.from_bytes(source_mac),
        kind if vlan is None else EtherType.VLAN,
    )
    if vlan is not None:
        tags = (VLAN(pcp=priority, vid=vlan, type=kind),)
    if version == 1:
        grh = h.GRH(
            tclass=traffic_class,
            flow_label=flow_label,
            hop_lmt=hop_limit,
            sgid=source,
            dgid=destination,
        )
        return RoCEv1Route(grh, eth, tags)
    udp = UDP(src_port=source_port)
    ip: IPv4 | IPv6
    if v4:
        ip = IPv4(
            dscp=traffic_class >> 2,
            ecn=traffic_class & 3,
            ttl=hop_limit,
            src=source & 0xFFFFFFFF,
            dst=destination & 0xFFFFFFFF,
        )
    else:
        ip = IPv6(
            dscp=traffic_class >> 2,
            ecn=traffic_class & 3,
            flow_label=flow_label,
            hop_limit=hop_limit,
            src=source,
            dst=destination,
        )
    return RoCEv2Route(ip, udp, eth, tags)


def ib_route(
    *,
    source: int,
    destination: int,
    slid: int,
    dlid: int,
    sl: int = 0,
    is_global: bool = False,
    traffic_class: int = 0,
    hop_limit: int = 64,
    flow_label: int = 0,
) -> IBRoute:
    """The route of native InfiniBand packets between two LIDs, with a GRH if `is_global`."""
    grh = None
    if is_global:
        grh = h.GRH(
            tclass=traffic_class,
            flow_label=flow_label,
            hop_lmt=hop_limit,
            sgid=source,
            dgid=destination,
        )
    return IBRoute(h.LRH(vl=sl & 7, sl=sl, dlid=dlid, slid=slid), grh)
