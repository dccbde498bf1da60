"""Connections with a few regular packets, which are counted when the capture is over.

A tracker is what the next packet of a connection needs. Where all packets of a connection are at
hand and none is odd, none is made: the same arrays as in `short_runs` say what its tracker would
have counted, and what would be open at its end. Tests require the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection, End
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.ending import NAMED, Ending, OpenRequest, Trouble
from ibwire.connections.opcode_sets import VERB
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
    Sides,
    States,
    plain,
)
from ibwire.connections.steady import IS_FULL, IS_RESPONSE
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import MASK

REFUSES = 0x20
"""From this syndrome on a response is a NAK or an RNR NAK."""
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
        alone = observer.alone(exchanges.runs(mtu, kept))
        is_regular[packets.connection[np.flatnonzero(kept)[alone]]] = False
        kept = is_regular[packets.connection]
    if not kept.any():
        return is_regular
    for each in np.flatnonzero(is_regular & (mtu > 0)).tolist():
        connections[each].learn_mtu(int(mtu[each]))
    sides.count(kept)
    requests, responses = exchanges.chosen(kept)
    if len(requests):
        messages = Messages(exchanges, requests, responses)
        exchanges.count_requests(requests, is_early)
        if len(responses):
            exchanges.count_credits(responses)
        messages.count_answered()
        _note_endings(connections, exchanges, messages, requests, responses, now)
    return is_regular


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
    connections: Sequence[Connection],
    exchanges: Exchanges,
    messages: Messages,
    requests: Index,
    responses: Index,
    now: int,
) -> None:
    """Note what is open at the end, as `open_requests` does for trackers."""
    groups, acked = Groups(exchanges.key[requests]), exchanges.acked.copy()
    newest = np.zeros(len(acked), np.int64)
    newest[groups.keys] = requests[groups.ends - 1]
    following = exchanges.after[newest[groups.keys]]
    if len(responses):
        answers = Groups(exchanges.key[responses])
        last = responses[answers.ends - 1]
        acked[answers.keys] = exchanges.answer[last]
        newest[answers.keys] = np.maximum(newest[answers.keys], last)
    still_open: dict[int, list[OpenRequest]] = {}
    starts = messages.starts[messages.last > acked[exchanges.key[messages.starts]]]
    for key, opcode, number in zip(
        exchanges.key[starts].tolist(),
        exchanges.opcode[starts].tolist(),
        exchanges.number[starts].tolist(),
        strict=True,
    ):
        still_open.setdefault(key, []).append(OpenRequest(VERB[opcode], number))
    for key, first, end, silence in zip(
        groups.keys.tolist(),
        (acked[groups.keys] + 1).tolist(),
        following.tolist(),
        (now - exchanges.time_ns[newest[groups.keys]]).tolist(),
        strict=True,
    ):
        connection, direction = connections[key >> 1], key & 1
        found: Sequence[OpenRequest] = ()
        trouble, oldest = None, end - 1
        if connection.is_paired:
            found, oldest = still_open.get(key, ()), first
            if silence >= UNANSWERED_NS and (found or first < end):
                trouble = Trouble.SILENCE
        ending = Ending(len(found), trouble, silence, tuple(found[:NAMED]))
        before, after = connection.endings
        connection.endings = (before, ending) if direction else (ending, after)
        connection.unacknowledged[direction] = oldest & MASK, end - oldest
