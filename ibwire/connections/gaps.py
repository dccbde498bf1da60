"""PSNs that were passed without being seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Missing:
    """PSNs `first` to `end` - 1, which were passed without being seen."""

    first: int
    end: int
    number: int
    """Of the packet that came instead."""
    time_ns: int
    packets: int = 0
    """How many they were; a READ takes several PSNs and is one."""


def within(gaps: list[Missing], psn: int) -> Missing | None:
    """The gap that a PSN lies in."""
    for gap in gaps:
        if gap.first <= psn < gap.end:
            return gap
    return None


def joined(gaps: list[Missing]) -> list[Missing]:
    """Gaps that touch, as one."""
    joined: list[Missing] = []
    for gap in sorted(gaps, key=lambda each: each.first):
        if joined and joined[-1].end == gap.first and joined[-1].number == gap.number:
            joined[-1].end = gap.end
            joined[-1].packets += gap.packets
        else:
            joined.append(gap)
    return joined


def cut(gaps: list[Missing], gap: Missing, first: int, end: int) -> None:
    """Take the PSNs `first` to `end` - 1 out of a gap."""
    at = gaps.index(gap)
    parts = [(gap.first, first), (end, gap.end)]
    gaps[at : at + 1] = [
        Missing(low, high, gap.number, gap.time_ns, gap.packets and high - low)
        for low, high in parts
        if low < high
    ]
