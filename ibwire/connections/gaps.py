"""PSNs that were passed without being seen, and what may still arrive of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, init=False)
class Gap:
    """PSNs `first` to `end` - 1, which were passed without being seen."""

    first: int
    end: int
    number: int
    """Of the packet that arrived instead."""
    time_ns: int
    packets: int
    """How many packets they are; a READ takes several PSNs and is one packet."""

    # Written out, as in other classes that are made for each packet: mypyc does not compile the
    # `__init__` of a dataclass.
    def __init__(self, first: int, end: int, number: int, time_ns: int, packets: int = 0) -> None:
        self.first = first
        self.end = end
        self.number = number
        self.time_ns = time_ns
        self.packets = packets


@dataclass(slots=True, init=False)
class Unsettled:
    """What was missing before a retransmission: lost, or reordered and still to arrive."""

    requests: list[Gap]
    """Missing requests that have been retransmitted since."""
    skipped: list[Gap]
    """Requests that were left out when others were retransmitted: lost another time."""
    responses: list[Gap]
    """Missing READ responses that have been retransmitted since."""
    ip_ids: set[int]
    """IP identifications that were left out where requests were retransmitted."""
    age: int
    """Packets since the retransmission."""

    def __init__(self) -> None:
        self.requests = []
        self.skipped = []
        self.responses = []
        self.ip_ids = set()
        self.age = 0

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
