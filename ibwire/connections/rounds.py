"""Packets of many connections in rounds: regular ones of all at once, the others one by one.

Where packets are lost, regular traffic of a connection has an end every few dozen packets. In each
round `short_runs` takes what is regular at the beginning of every connection, up to its next break;
then each takes the packets after it one by one, until nothing is missing, refused or retransmitted
any more. A connection with hardly anything regular leaves the rounds, which look at more than they
take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ibwire.connections import short_runs
from ibwire.connections.breaks import Breaks
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.packets import Rows
from ibwire.connections.short_runs import Index
from ibwire_layers.opcodes import Service

MANY = 4
"""From this many connections on rounds are faster than one connection after the other."""
LARGE = 1 << 12
"""A connection with more packets is followed alone."""
WINDOW = 256
"""Packets of a connection that a round looks at; more, where all of them were regular before."""
NARROW = 32
"""The same, where few were regular before."""
FEW = 12
"""With fewer regular packets of a connection a round has cost more than it gained."""
PATIENCE = 4
"""Such rounds in a row, after which the connection is followed alone. `check` has some behind a
long READ: until a packet shows the path MTU, it judges requests alone."""
REST = 8
"""With so many packets left, or fewer, a connection leaves the rounds: one by one they cost no
more."""


def advance(
    trackers: Sequence[ConnectionTracker],
    rows: Rows,
    direction: npt.NDArray[np.uint8],
    starts: Index,
    ends: Index,
    breaks: Breaks,
) -> Index:
    """Take packets of each connection, as long as rounds are worth it; returns how many.

    rows: of one connection after the other. direction: (n,) which end sent each. starts, ends:
    where the packets of each tracker are. breaks: those of all rows.
    """
    at = starts.copy()
    count = ends - starts
    is_short = (count <= LARGE) & (count > REST)
    group = np.array([each.group for each in trackers], np.int64)
    all_left = np.flatnonzero(is_short & [_takes_part(each) for each in trackers])
    for number in sorted(set(group[all_left].tolist())):
        left = all_left[group[all_left] == number]
        _advance_group(trackers, rows, direction, at, ends, breaks, left)
    return at - starts


def _advance_group(
    trackers: Sequence[ConnectionTracker],
    rows: Rows,
    direction: npt.NDArray[np.uint8],
    at: Index,
    ends: Index,
    breaks: Breaks,
    left: Index,
) -> None:
    """Take packets of those that are left, which may be reported together; moves `at`."""
    window = np.full(len(at), WINDOW)
    fruitless = np.zeros(len(at), np.int64)
    while len(left) >= MANY:
        begin = at[left]
        stop = np.minimum(breaks.following_many(begin), ends[left])
        until = np.minimum(begin + window[left], stop)
        if int((until - begin).sum()) < short_runs.FEWEST:
            break
        looks = until > begin
        chosen = [trackers[each] for each in left[looks].tolist()]
        taken = np.zeros(len(left), np.int64)
        taken[looks] = short_runs.advance(chosen, rows, direction, begin[looks], until[looks])
        at[left] += taken
        is_whole = (begin + taken == until) & ((until < stop) | (stop == ends[left]))
        window[left] = np.where(
            is_whole,
            4 * window[left],
            np.where(begin + taken == stop, WINDOW, np.clip(4 * taken, NARROW, WINDOW)),
        )
        fruitless[left] = np.where(is_whole | (taken >= FEW), 0, fruitless[left] + 1)
        for each in left[~is_whole].tolist():
            start, end = int(at[each]), int(ends[each])
            at[each] += trackers[each].take_odd(rows, direction, start, end, breaks)
        left = left[(ends[left] - at[left] > REST) & (fruitless[left] < PATIENCE)]


def _takes_part(tracker: ConnectionTracker) -> bool:
    is_followed = tracker.connection.service in (Service.RC, Service.XRC)
    is_watched = tracker.has_observer and tracker.runs_observer is None
    return is_followed and not is_watched and tracker.first_packets is None
