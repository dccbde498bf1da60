"""Impairments of frames: each class here is a `Stage`.

A stage acts on the frames that its `Pick` selects, counts them in `hits`, and lets
the others pass unchanged. `Only` puts a pick before any stage. Creating a stage may raise
`EncodeError`; no frame makes a stage raise. A `DamagedFrame` stays one when it is changed again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from ibwire.base.errors import DecodeError, EncodeError
from ibwire.base.node import DamagedFrame, Frame, Stage
from ibwire.base.unbuilt import set_ce
from ibwire.base.units import MS, Time
from ibwire.impair.match import Pick, always, locate
from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.fields import change, changes_of
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet
from ibwire_layers.walk import walk

Passing = Iterable[tuple[Time, Frame]]
"""The output of a stage: extra delays and frames."""


class Only:
    """Applies a stage only to the frames that `pick` selects."""

    def __init__(self, pick: Pick, stage: Stage) -> None:
        self.pick = pick
        self.stage = stage
        self.hits = 0

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The output of the stage, or the frame."""
        if not self.pick(frame, now):
            return ((0, frame),)
        self.hits += 1
        return self.stage(frame, now)


class Loss:
    """Drops frames."""

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
    """Duplicates frames; the `copies` follow the original, each later by `delay`."""

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
    """Delays frames by `time` and a random time up to `jitter`, inclusive.

    Frames closer together than the jitter are reordered, and frames that are not picked
    overtake picked ones.
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
    """Holds a frame back until `by` later ones have passed.

    A stage is only called when a frame passes. So a frame that is held when the
    traffic ends stays in `held`, as if lost, until another frame passes; when that
    is after `max_delay`, the held frame goes first. Only one frame is held at a time:
    frames that pass meanwhile are not picked. To reorder by time instead, use `Delay` for some
    frames.
    """

    def __init__(self, pick: Pick = always, by: int = 1, max_delay: Time = MS) -> None:
        self.pick = pick
        self.by = _at_least("by", by, 1)
        self.max_delay = _at_least("max_delay", max_delay, 0)
        self.hits = 0
        self.held: Frame | None = None
        self.until: Time = 0
        """When the held frame has waited for `max_delay`."""
        self._to_pass = 0

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """Nothing, the frame, or the frame and the held one."""
        picked = self.pick(frame, now)  # always called, because it may count
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
    """The part of a frame in which bits are flipped; never the Ethernet header or a VLAN tag."""

    PACKET = "packet"
    """BTH to ICRC, except the byte of the BTH that the ICRC does not cover: the ICRC always
    detects one to three flipped bits."""
    PAYLOAD = "payload"
    """Payload and padding after the extension headers."""
    ICRC = "icrc"
    NETWORK = "network"
    """IP and UDP, or GRH, or LRH. The ICRC covers part of it; the IP
    checksum, addresses and ports reveal other changes, except some bits that
    routers change."""
    FRAME = "frame"
    """Everything after the Ethernet header and VLAN tags, in any frame."""


class Corrupt:
    """Flips random bits of frames without updating checksums.

    A frame without the region passes unchanged. If the region has fewer bits, all of them are
    flipped.
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
        """The frame, corrupted if picked."""
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
        return ((0, DamagedFrame(damaged)),)


class MarkECN:
    """Marks packets "congestion experienced" (CE), as a switch does (RFC 3168 5).

    Only packets of ECN-capable transports are marked; `force` also marks others.
    The IPv4 checksum is adjusted (RFC 1624), so a wrong one stays
    wrong; the ICRC does not cover the field. In a tunnel the outer IP header is
    marked, as by a switch; RoCEv1 has no such field.
    """

    def __init__(self, pick: Pick = always, force: bool = False) -> None:
        if not isinstance(force, bool):
            raise EncodeError("force", force, "true or false")
        self.pick = pick
        self.force = force
        self.hits = 0
        """Frames that were newly marked."""

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame, marked if picked."""
        if not self.pick(frame, now):
            return ((0, frame),)
        marked = mark_ce(frame, force=self.force)
        if marked is None:
            return ((0, frame),)
        self.hits += 1
        return ((0, marked),)


def mark_ce(frame: Frame, *, force: bool = False) -> Frame | None:
    """A frame with a new CE mark; `None` if it has one, or its transport is not ECN-capable.

    force: mark it also without ECN. The checksum of the IPv4 header is adjusted (RFC 1624).
    """
    at = _ip_header(frame)
    if at < 0:
        return None
    ecn = frame[at + 1] >> (4 if frame[at] >> 4 == 6 else 0) & 3
    if ecn == _CE or (ecn == _NOT_ECT and not force):
        return None
    return set_ce(frame, at)


class Repair(StrEnum):
    """What `Rewrite` recomputes."""

    NOTHING = "nothing"
    """Nothing: the ICRC becomes wrong if it covers a changed field."""
    ICRC = "icrc"
    """The ICRC."""
    EVERYTHING = "everything"
    """Pad count, lengths, IP checksum and ICRC, as `Packet.repaired` does; these fields
    cannot be rewritten."""


class Rewrite:
    """Sets header fields of packets.

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
        """The frame with the new values."""
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
        return ((0, type(frame)(rewritten)),)

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
    """Start and end of a region, and the offset of a byte to leave out, or -1."""
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
    """Offset of the outermost IP header; -1 without one."""
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
