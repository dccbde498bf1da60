"""PSNs that were passed without being seen, and what may still arrive of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Gap:
    """PSNs `first` to `end` - 1, which were passed without being seen."""

    first: int
    end: int
    number: int
    """Of the packet that arrived instead."""
    time_ns: int
    packets: int = 0
    """How many packets they are; a READ takes several PSNs and is one packet."""


@dataclass(slots=True)
class Unsettled:
    """What was missing before a retransmission: lost, or reordered and still to arrive."""

    requests: list[Gap] = field(default_factory=list)
    """Missing requests that have been retransmitted since."""
    skipped: list[Gap] = field(default_factory=list)
    """Requests that were left out when others were retransmitted: lost another time."""
    responses: list[Gap] = field(default_factory=list)
    """Missing READ responses that have been retransmitted since."""
    ip_ids: set[int] = field(default_factory=set)
    """IP identifications that were left out where requests were retransmitted."""
    age: int = 0
    """Packets since the retransmission."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that may still arrive."""
        return not (self.requests or self.skipped or self.responses or self.ip_ids)


def within(gaps: list[Gap], psn: int) -> Gap | None:
    """The gap that contains a PSN."""
    for gap in gaps:
        if gap.first <= psn < gap.end:
            return gap
    return None


def joined(gaps: list[Gap]) -> list[Gap]:
    """The gaps in order of PSN, with those that touch joined into one."""
    joined: list[Gap] = []
    for gap in sorted(gaps, key=lambda each: each.first):
        if joined and joined[-1].end == gap.first and joined[-1].number == gap.number:
            joined[-1].end = gap.end
            joined[-1].packets += gap.packets
        else:
            joined.append(gap)
    return joined


def cut(gaps: list[Gap], gap: Gap, *, first: int, end: int) -> None:
    """Take the PSNs `first` to `end` - 1 out of a gap."""
    at = gaps.index(gap)
    parts = [(gap.first, first), (end, gap.end)]
    gaps[at : at + 1] = [
        Gap(low, high, gap.number, gap.time_ns, gap.packets and high - low)
        for low, high in parts
        if low < high
    ]
