"""Connections with a few regular packets, which are counted when the capture is over.

A tracker is what the next packet of a connection needs. Where all packets of a connection are at
hand and none is odd, none is made: the same arrays as in `short_runs` say what its tracker would
have counted, and what would be open at its end. Tests require the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection, End
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.counted import ROW, TROUBLES, Counted, Lists
from ibwire.connections.ending import NAMED, Trouble
from ibwire.connections.opcode_tables import IS_FULL, IS_RESPONSE, REFUSES, VERB_OF
from ibwire.connections.open_requests import UNANSWERED_NS
from ibwire.connections.packets import Rows
from ibwire.connections.run_observer import RunsObserver
from ibwire.connections.short_runs import (
    Exchanges,
    Flags,
    Groups,
    Index,
    Messages,
    Packets,
    SideCounts,
    Sides,
    States,
    plain,
)
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import MASK

MOST = 256
"""Packets of a connection; with more a tracker costs little beside them."""


def are_odd(rows: Rows) -> Flags:
    """(n,) which packets are odd by themselves, so that their connection needs a tracker."""
    odd: Flags = rows.damaged | rows.marked | (rows.opcode == OpCode.CNP)
    odd |= IS_RESPONSE[rows.opcode] & (rows.syndrome >= REFUSES)
    return odd


def count(
    connections: Sequence[Connection],
    rows: Rows,
    direction: npt.NDArray[np.uint8],
    counts: Index,
    *,
    now: int,
    observer: RunsObserver | None = None,
) -> Flags:
    """Count all packets of the connections that have no odd one; returns which these are.

    rows: of one connection after the other, without any that `are_odd`. direction: (n,) which end
    sent each. counts: (connections,) how many each has. now: when the capture ends, ns. observer:
    for which packets are odd that must be reported alone; the others are not reported to it, as
    nothing follows that needs them.
    """
    packets = Packets(rows, direction, counts)
    states = States(connections, fresh=None if observer is None else _fresh())
    mtu, odd, is_early = plain(packets, states.mtu)
    odd |= is_early & ~_are_measured(packets, mtu)
    sides = Sides(packets, states)
    odd |= sides.odd()
    exchanges = Exchanges(packets, states, mtu)
    odd |= exchanges.odd()
    is_regular: Flags = ~np.logical_or.reduceat(odd, packets.starts)
    kept = is_regular[packets.connection]
    if observer is not None and kept.any():
        alone = observer.alone(replace(exchanges.runs(mtu, kept), is_whole=True))
        is_regular[packets.connection[np.flatnonzero(kept)[alone]]] = False
        kept = is_regular[packets.connection]
    if not kept.any():
        return is_regular
    for each in np.flatnonzero(is_regular & (mtu > 0)).tolist():
        connections[each].learn_mtu(int(mtu[each]))
    counted = _counted(exchanges, sides.counted(kept), kept, is_early, now)
    for each in np.flatnonzero(is_regular).tolist():
        connections[each].keep_in(counted, each)
    return is_regular


def _counted(
    exchanges: Exchanges, sides: SideCounts, kept: Flags, is_early: Flags, now: int
) -> Counted:
    """All that is counted of the packets that are kept."""
    rows = np.zeros(exchanges.states.exchanges, ROW)
    side = sides.groups.keys
    rows["packets"][side] = sides.groups.ends - sides.groups.starts
    rows["counts_up"][side] = sides.has_moved & sides.counts_up
    for name in ("bytes", "payload_bytes", "first_ns", "last_ns", "skipped_ids", "skipped_soon"):
        rows[name][side] = getattr(sides, name)
    requests, responses = exchanges.chosen(kept)
    if not len(requests):
        return Counted(rows, messages=_NO_LISTS, latencies=_NO_LISTS, named=_NO_LISTS)
    keys, outstanding = exchanges.outstanding(requests, is_early)
    rows["max_outstanding"][keys] = np.maximum(outstanding, 0)
    key, verb, count = exchanges.verbs(requests)
    order = np.argsort(key, kind="stable")
    keys, lowest, highest = exchanges.credits(responses)
    rows["gives_credits"][keys] = True
    rows["lowest_credits"][keys], rows["highest_credits"][keys] = lowest, highest
    messages = Messages(exchanges, requests, responses)
    answered = messages.answered()
    keys = answered.groups.keys
    rows["completed"][keys] = answered.groups.ends - answered.groups.starts
    rows["coalesced"][keys], rows["acks"][keys] = answered.coalesced, answered.acks
    rows["message_bytes"][keys] = answered.size
    rows["latency_low"][keys] = np.maximum(answered.lowest_ns, 0)
    rows["latency_high"][keys] = np.maximum(answered.highest_ns, 0)
    np.add.at(rows["skipped_ids"], exchanges.without_ids(answered.passed), 1)
    return Counted(
        rows,
        messages=Lists(key[order], verb[order], count[order]),
        latencies=Lists(answered.bucket_key, answered.bucket, answered.times),
        named=_note_endings(rows, exchanges, messages, requests, responses, now),
    )


def _are_measured(packets: Packets, mtu: Index) -> Flags:
    """(n,) requests behind which a packet shows the path MTU before the next one of their sender.

    mtu: (connections,) 0 where none shows it.
    """
    full = np.flatnonzero(IS_FULL[packets.opcode])
    connection, first = np.unique(packets.connection[full], return_index=True)
    shown = np.zeros(packets.connections, np.int64)
    shown[connection] = full[first]
    at = np.flatnonzero(packets.is_request)
    side = 2 * packets.connection[at] + packets.direction[at]
    order = np.argsort(side, kind="stable")
    at, side = at[order], side[order]
    following = np.full(packets.count, packets.count, np.int64)
    is_same = side[1:] == side[:-1]
    following[at[:-1][is_same]] = at[1:][is_same]
    found: Flags = (mtu > 0)[packets.connection] & (following >= shown[packets.connection])
    return found


def _fresh() -> RequestTracker:
    """What knows of no packet, like the tracker of every connection that begins."""
    nobody = End("", None)
    connection = Connection(0, (nobody, nobody), Service.RC)
    connection.pairing = "responses"
    return ConnectionTracker(connection).requests[0]


def _note_endings(
    rows: npt.NDArray[np.void],
    exchanges: Exchanges,
    messages: Messages,
    requests: Index,
    responses: Index,
    now: int,
) -> Lists:
    """Note what is open at the end, as `open_requests` does for trackers.

    Returns the verbs and first packets of the first open messages.
    """
    groups, acked = Groups(exchanges.key[requests]), exchanges.acked.copy()
    newest = np.zeros(len(acked), np.int64)
    newest[groups.keys] = requests[groups.ends - 1]
    following = exchanges.after[newest[groups.keys]]
    if len(responses):
        answers = Groups(exchanges.key[responses])
        last = responses[answers.ends - 1]
        acked[answers.keys] = exchanges.answer[last]
        newest[answers.keys] = np.maximum(newest[answers.keys], last)
    is_paired = np.repeat([each.is_paired for each in exchanges.states.connections], 2)
    starts = messages.starts
    key = exchanges.key[starts]
    is_open = (messages.last > acked[key]) & is_paired[key]
    starts, key = starts[is_open], key[is_open]
    still_open = np.bincount(key, minlength=len(rows))
    keys = groups.keys
    oldest = np.where(is_paired[keys], acked[keys] + 1, following - 1)
    silence = now - exchanges.time_ns[newest[keys]]
    is_silent = is_paired[keys] & (silence >= UNANSWERED_NS)
    is_silent &= (still_open[keys] > 0) | (oldest < following)
    rows["open_messages"][keys] = still_open[keys]
    rows["trouble"][keys] = np.where(is_silent, TROUBLES.index(Trouble.SILENCE), 0)
    rows["silence_ns"][keys] = silence
    rows["unacknowledged_psn"][keys] = oldest & MASK
    rows["unacknowledged"][keys] = following - oldest
    is_named = np.arange(len(key)) - np.searchsorted(key, key) < NAMED
    starts, key = starts[is_named], key[is_named]
    return Lists(key, VERB_OF[exchanges.opcode[starts]].astype(np.int64), exchanges.number[starts])


_NO_LISTS = Lists(*(np.zeros(0, np.int64) for _ in Lists._fields))
