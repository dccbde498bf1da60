"""The priority of a frame: from its VLAN tag (PCP) or from its IP header (DSCP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.fabric.pause import LANES
from ibwire_layers.outer import EtherType

_TAGS = tuple(tag.to_bytes(2) for tag in (EtherType.VLAN, EtherType.QINQ, EtherType.QINQ_OLD))
_IPV4, _IPV6 = EtherType.IPV4.to_bytes(2), EtherType.IPV6.to_bytes(2)
_ROCE = EtherType.ROCE.to_bytes(2)

DSCPS = 64


class Trust(StrEnum):
    """Which field decides on the priority."""

    DSCP = "dscp"
    """Of the IP header, or of the GRH of RoCEv1; other frames have the default priority."""
    PCP = "pcp"
    """Of the VLAN tag; frames without a tag have the default priority."""


class Classifier:
    """Finds the priority of frames.

    trust: the field that decides. by_dscp: priority by DSCP where it is not `dscp // 8`, which is
    the usual table of NICs and switches. default: of frames that do not have the field.
    """

    __slots__ = ("_by_dscp", "_by_pcp", "default", "trust")

    def __init__(
        self,
        trust: Trust = Trust.DSCP,
        *,
        by_dscp: Mapping[int, int] | None = None,
        by_pcp: Mapping[int, int] | None = None,
        default: int = 0,
    ) -> None:
        self.trust = trust
        self.default = _lane("default", default)
        self._by_dscp = [dscp // LANES for dscp in range(DSCPS)]
        for dscp, lane in (by_dscp or {}).items():
            if not 0 <= dscp < DSCPS:
                raise EncodeError("dscp", dscp, f"0 to {DSCPS - 1}")
            self._by_dscp[dscp] = _lane(f"dscp {dscp}", lane)
        self._by_pcp = list(range(LANES))
        for pcp, lane in (by_pcp or {}).items():
            self._by_pcp[_lane("pcp", pcp)] = _lane(f"pcp {pcp}", lane)

    def priority(self, frame: Frame) -> int:
        """The priority of a frame."""
        kind, at = frame[12:14], 14
        if self.trust is Trust.PCP:
            if kind in _TAGS and len(frame) > at:
                return self._by_pcp[frame[at] >> 5]
            return self.default
        while kind in _TAGS:
            kind, at = frame[at + 2 : at + 4], at + 4
        if len(frame) < at + 2:
            return self.default
        if kind == _IPV4:
            return self._by_dscp[frame[at + 1] >> 2]
        if kind in (_IPV6, _ROCE):
            return self._by_dscp[(frame[at] & 15) << 2 | frame[at + 1] >> 6]
        return self.default


@dataclass(frozen=True, slots=True)
class Remark:
    """What a switch writes into the frames of a priority; `None` for what stays."""

    dscp: int | None = None
    pcp: int | None = None
    """Into the VLAN tag, of frames that have one."""

    def __post_init__(self) -> None:
        if self.dscp is not None and not 0 <= self.dscp < DSCPS:
            raise EncodeError("dscp", self.dscp, f"0 to {DSCPS - 1}")
        if self.pcp is not None:
            _lane("pcp", self.pcp)

    def apply(self, frame: Frame) -> Frame:
        """The frame with these values; the checksum of IPv4 is adjusted, ECN and ICRC stay."""
        kind, at = frame[12:14], 14
        changed = bytearray(frame)
        if self.pcp is not None and kind in _TAGS and len(frame) > at:
            changed[at] = self.pcp << 5 | changed[at] & 0x1F
        while kind in _TAGS:
            kind, at = frame[at + 2 : at + 4], at + 4
        if self.dscp is None or len(frame) < at + 2:
            return type(frame)(changed)
        if kind == _IPV4 and len(frame) >= at + 12:
            changed[at + 1] = self.dscp << 2 | changed[at + 1] & 3
            # ~(~old checksum + ~old word + new word), in one's complement (RFC 1624).
            total = 0xFFFF ^ int.from_bytes(frame[at + 10 : at + 12])
            total += (0xFFFF ^ int.from_bytes(frame[at : at + 2])) + int.from_bytes(
                changed[at : at + 2]
            )
            while total >> 16:
                total = (total & 0xFFFF) + (total >> 16)
            changed[at + 10 : at + 12] = (total ^ 0xFFFF).to_bytes(2)
        elif kind in (_IPV6, _ROCE):
            changed[at] = changed[at] & 0xF0 | self.dscp >> 2
            changed[at + 1] = (self.dscp & 3) << 6 | changed[at + 1] & 0x3F
        return type(frame)(changed)


def _lane(name: str, value: int) -> int:
    if not 0 <= value < LANES:
        raise EncodeError(name, value, f"a priority from 0 to {LANES - 1}")
    return value
