"""Identifications show the same of many senders at once as of one packet after another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ibwire.connections.packets import TransportPacket
from ibwire.rules.history import MOST_STEPS, Identifications

STEPS = st.lists(
    st.sampled_from((0, 1, 1, 1, 1, 2, MOST_STEPS - 1, MOST_STEPS, 0x10000 - 1)), max_size=8
)
SENDERS = st.lists(
    st.tuples(st.sampled_from((-1, 0, 7, 0xFFFE)), STEPS, st.booleans(), STEPS),
    min_size=10,
    max_size=30,
)
"""The first identification, -1 without IPv4, and the steps after it; whether packets were judged
before, and the steps in what is judged."""


def packet(ip_id: int) -> TransportPacket:
    """A packet of which only the identification counts."""
    nothing = dict.fromkeys(TransportPacket._fields, 0)
    return TransportPacket(**(nothing | {"ip_id": ip_id}))


def numbered(first: int, steps: list[int]) -> list[int]:
    """Identifications (steps + 1,), all -1 without IPv4."""
    found = [first]
    for step in steps:
        found.append(first if first < 0 else (found[-1] + step) & 0xFFFF)
    return found


@given(SENDERS)
def test_the_newest_gap_is_that_of_one_packet_after_another(
    senders: list[tuple[int, list[int], bool, list[int]]],
) -> None:
    noted, before, together, expected = [], [], [], []
    ends = [0]
    for first, earlier, has_earlier, later in senders:
        older = numbered(first, earlier) if has_earlier else []
        newer = numbered(older[-1], later)[1:] if older else numbered(first, later)
        sender, alone = Identifications(), Identifications()
        for each in map(packet, older):
            sender.note(each)
            alone.note(each)
        gap, last = -1, packet(older[-1]) if older else None
        for place, each in enumerate(map(packet, newer), ends[-1]):
            if last is None or not alone.is_next(last, each):
                gap = place
            alone.note(each)
            last = each
        noted.append(sender)
        before.append(older[-1] if older else -1)
        together += newer
        expected.append(gap)
        ends.append(len(together))

    gaps = Identifications.newest_gaps(
        noted, before, np.array(together, np.int32), np.array(ends, np.int64)
    )

    assert gaps.tolist() == expected
