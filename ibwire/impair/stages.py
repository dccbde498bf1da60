"""What can happen to a frame on its way: each class here is a `Stage`.

A stage acts on the frames that its `Pick` means, counts them in `hits`, and lets
the others through as they are. `Only` puts a pick before any stage. Errors are
`EncodeError` when a stage is made; no frame makes a stage raise.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from ibwire.base.errors import DecodeError, EncodeError
from ibwire.base.node import Frame, Stage
from ibwire.base.units import MS, Time
from ibwire.impair.match import Pick, always, locate
from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.fields import change, changes_of
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet
from ibwire_layers.walk import walk

Passing = Iterable[tuple[Time, Frame]]
"""What a stage lets out: extra delays and frames."""


class Only:
    """The frames that `pick` means go through a stage, the others past it."""

    def __init__(self, pick: Pick, stage: Stage) -> None:
        self.pick = pick
        self.stage = stage
        self.hits = 0

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """Through or past."""
        if not self.pick(frame, now):
            return ((0, frame),)
        self.hits += 1
        return self.stage(frame, now)


class Loss:
    """Frames are lost."""

    def __init__(self, pick: Pick = always) -> None:
        self.pick = pick
        self.hits = 0

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """Nothing, or the frame."""
        if not self.pick(frame, now):
            return ((0, frame),)
        self.hits += 1
        return ()


class Duplicate:
    """Frames come more than once; the `copies` follow the original, each later by `delay`."""

    MAXIMUM_COPIES = 1000

    def __init__(self, pick: Pick = always, copies: int = 1, delay: Time = 0) -> None:
        self.pick = pick
        self.copies = _at_least("copies", copies, 1)
        if copies > self.MAXIMUM_COPIES:
            raise EncodeError("copies", copies, f"at most {self.MAXIMUM_COPIES}")
        self.delay = _at_least("delay", delay, 0)
        self.hits = 0

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame and its copies."""
        if not self.pick(frame, now):
            return ((0, frame),)
        self.hits += 1
        return [(self.delay * i, frame) for i in range(self.copies + 1)]


class Delay:
    """Frames come later, by `time` and at random by up to `jitter` more, inclusive.

    Frames that come closer together than the jitter overtake one another, and those
    that are not picked overtake those that are.
    """

    def __init__(
        self,
        time: Time,
        jitter: Time = 0,
        *,
        pick: Pick = always,
        seed: int = 0,
        name: str = "delay",
    ) -> None:
        self.time = _at_least("time", time, 0)
        self.jitter = _at_least("jitter", jitter, 0)
        self.pick = pick
        self.hits = 0
        self._random = random.Random(f"{seed}/{name}")

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame, later."""
        if not self.pick(frame, now):
            return ((0, frame),)
        self.hits += 1
        more = self._random.randint(0, self.jitter) if self.jitter else 0
        return ((self.time + more, frame),)


class Reorder:
    """A frame is held back until `by` later ones have passed, and comes right behind the last.

    A stage is only called when a frame passes. So a frame that is held when the
    traffic ends stays in `held`, as if lost, until something passes again; when that
    is after `max_delay`, the held frame goes first. One frame is held at a time:
    those that pass meanwhile are not picked, so the memory is one frame. To reorder
    by time instead, give some frames a `Delay`.
    """

    def __init__(self, pick: Pick = always, by: int = 1, max_delay: Time = MS) -> None:
        self.pick = pick
        self.by = _at_least("by", by, 1)
        self.max_delay = _at_least("max_delay", max_delay, 0)
        self.hits = 0
        self.held: Frame | None = None
        self.until: Time = 0
        """When the frame that is held has waited for `max_delay`."""
        self._to_pass = 0

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """Nothing, the frame, or the frame and the one that was held."""
        picked = self.pick(frame, now)  # always asked: it may count
        held = self.held
        if held is not None:
            self._to_pass -= 1
            if now > self.until:
                self.held = None
                return ((0, held), (0, frame))
            if not self._to_pass:
                self.held = None
                return ((0, frame), (0, held))
            return ((0, frame),)
        if not picked:
            return ((0, frame),)
        self.hits += 1
        self.held, self.until, self._to_pass = frame, now + self.max_delay, self.by
        return ()


class Region(StrEnum):
    """The part of a frame in which bits are flipped; never the Ethernet header or a tag."""

    PACKET = "packet"
    """BTH to ICRC, but for the byte of the BTH that the ICRC leaves out: one to three
    flipped bits are always found by it."""
    PAYLOAD = "payload"
    """What follows the extension headers, with its padding."""
    ICRC = "icrc"
    NETWORK = "network"
    """IP and UDP, or GRH, or LRH. The ICRC covers it in part; the IP
    checksum, addresses and ports give the rest away, except for some of the bits that
    routers change."""
    FRAME = "frame"
    """Everything behind the Ethernet header and tags, in any frame."""


class Corrupt:
    """Random bits of frames are flipped and no checksum is put right.

    A frame that has no such region passes untouched. Fewer bits are flipped
    where the region has no more.
    """

    def __init__(
        self,
        pick: Pick = always,
        bits: int = 1,
        where: Region | str = Region.PACKET,
        *,
        link_type: int = LinkType.ETHERNET,
        seed: int = 0,
        name: str = "corrupt",
    ) -> None:
        if where not in list(Region):
            raise EncodeError("where", where, f"one of {', '.join(Region)}")
        self.pick = pick
        self.bits = _at_least("bits", bits, 1)
        self.where = Region(where)
        self._link_type = link_type
        self.hits = 0
        self._random = random.Random(f"{seed}/{name}")

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame, damaged or not."""
        if not self.pick(frame, now):
            return ((0, frame),)
        start, end, gap = _region(frame, self.where, self._link_type)
        size = end - start - (gap >= 0)
        if size <= 0:
            return ((0, frame),)
        self.hits += 1
        damaged = bytearray(frame)
        for bit in self._random.sample(range(8 * size), min(self.bits, 8 * size)):
            at = start + (bit >> 3)
            if 0 <= gap <= at:
                at += 1
            damaged[at] ^= 0x80 >> (bit & 7)
        return ((0, bytes(damaged)),)


class MarkECN:
    """A switch marks packets "congestion experienced" (RFC 3168 5).

    Only packets of ECN-capable transports are marked; `force` marks those too that
    say they are not. The IPv4 checksum is adjusted (RFC 1624), so a wrong one stays
    wrong; the ICRC leaves the field out. Of an IP packet in another, the outer is
    marked, as a switch would; RoCEv1 has no such field.
    """

    def __init__(self, pick: Pick = always, force: bool = False) -> None:
        if not isinstance(force, bool):
            raise EncodeError("force", force, "true or false")
        self.pick = pick
        self.force = force
        self.hits = 0
        """Frames that carry a mark that they did not come with."""

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame, marked or not."""
        if not self.pick(frame, now):
            return ((0, frame),)
        at = _ip_header(frame)
        if at < 0:
            return ((0, frame),)
        is_ipv6 = frame[at] >> 4 == 6
        # Traffic class: the second byte of IPv4, astride the first two of IPv6.
        shift = 4 if is_ipv6 else 0
        ecn = frame[at + 1] >> shift & 3
        if ecn == _CE or (ecn == _NOT_ECT and not self.force):
            return ((0, frame),)
        self.hits += 1
        marked = bytearray(frame)
        marked[at + 1] |= _CE << shift
        if not is_ipv6:
            # ~(~old checksum + ~old word + new word), in one's complement.
            total = (marked[at + 10] << 8 | marked[at + 11]) ^ 0xFFFF
            total += marked[at + 1] - frame[at + 1]
            total = (total & 0xFFFF) + (total >> 16)
            marked[at + 10 : at + 12] = (total ^ 0xFFFF).to_bytes(2)
        return ((0, bytes(marked)),)


class Repair(StrEnum):
    """What `Rewrite` puts right afterwards."""

    NOTHING = "nothing"
    """Only the fields change: the ICRC becomes wrong if it covers one of them."""
    ICRC = "icrc"
    """The ICRC fits the packet, whatever it says."""
    EVERYTHING = "everything"
    """Pad count, lengths, IP checksum and ICRC too, as `Packet.repaired` does; these
    cannot be rewritten then."""


class Rewrite:
    """Sets fields of packets to other values.

    fields: values by name, as `ibwire_layers.fields` has them: `{"bth.psn": 5, "ip.ttl": 1}`.
    A packet that has none of these headers passes unchanged, and so does a frame without a BTH.
    """

    def __init__(
        self,
        pick: Pick,
        fields: Mapping[str, int],
        repair: Repair | str = Repair.EVERYTHING,
        *,
        link_type: int = LinkType.ETHERNET,
    ) -> None:
        if not fields:
            raise EncodeError("fields", fields, "one field or more")
        if repair not in list(Repair):
            raise EncodeError("repair", repair, f"one of {', '.join(Repair)}")
        self.pick = pick
        self.repair = Repair(repair)
        self._link_type = link_type
        self.hits = 0
        self._changes = changes_of(fields)

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame, with its new values."""
        if not self.pick(frame, now):
            return ((0, frame),)
        try:
            packet = Packet.parse(frame, self._link_type, strict=False)
        except DecodeError:
            return ((0, frame),)
        changed = change(packet, self._changes)
        if changed is packet:
            return ((0, frame),)
        try:
            rewritten = self._repaired(changed).build()
        except EncodeError:  # a length field cannot hold what the packet would become
            return ((0, frame),)
        self.hits += 1
        return ((0, rewritten),)

    def _repaired(self, packet: Packet) -> Packet:
        if self.repair is Repair.EVERYTHING:
            return packet.repaired()
        if self.repair is Repair.ICRC and packet.icrc:
            return replace(packet, icrc=None, vcrc=None if packet.vcrc else b"")
        return packet


def _at_least(field: str, value: object, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise EncodeError(field, value, f"an integer {low} or above")
    return value


def _region(frame: Frame, where: Region, link_type: int) -> tuple[int, int, int]:
    """First byte and end of a region, and a byte that does not belong to it or -1."""
    if where is Region.FRAME:
        start = _behind_tags(frame) if link_type == LinkType.ETHERNET else 0
        return start, len(frame), -1
    place = locate(frame, link_type)
    if place.bth < 0 or place.end > len(frame):
        return 0, 0, -1
    if where is Region.PACKET:
        return place.bth, place.end, place.bth + 4
    if where is Region.NETWORK:
        return place.network, place.bth, -1
    if where is Region.ICRC:
        return max(place.bth + h.BTH.SIZE, place.end - h.ICRC_SIZE), place.end, -1
    info = opcodes.INFO.get(frame[place.bth])
    size = h.BTH.SIZE if info is None else info.header_size
    return place.bth + size, place.end - h.ICRC_SIZE, -1


def _behind_tags(frame: Frame) -> int:
    at = outer.Ethernet.SIZE
    while frame[at - 2 : at] in _TAGS:
        at += outer.VLAN.SIZE
    return at


def _ip_header(frame: Frame) -> int:
    """Where the outermost IP header stands, -1 when there is none."""
    if frame[12:15] == b"\x08\x00\x45" and len(frame) >= outer.Ethernet.SIZE + outer.IPv4.SIZE:
        return outer.Ethernet.SIZE
    for layer in walk(frame).layers:
        if layer.header in (outer.IPv4, outer.IPv6):
            return layer.offset
    return -1


_CE = 3
_NOT_ECT = 0
_TAGS = tuple(
    tag.to_bytes(2)
    for tag in (outer.EtherType.VLAN, outer.EtherType.QINQ, outer.EtherType.QINQ_OLD)
)
