"""Regular traffic of many connections, a few packets of each, all of them at once.

`steady` takes many packets of one connection; where each of thousands has only a few, their
trackers are read into arrays, which say how many packets at the beginning of each connection's
are regular, and what those change. The rules are those of `steady`, and tests require the same
results. A connection, or the requests of one end, may also begin here.

Packets are in order of connections. A *side* is one end that sends packets: twice the connection,
plus the end. An *exchange* is the requests of one end with their responses, numbered by that end
in the same way. PSNs are unwrapped as in `tracker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.histogram import buckets
from ibwire.base.membership import are_among
from ibwire.connections.connection import MTUS, Connection
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.events import FlowEventKind
from ibwire.connections.identity import REORDER_IDS, Identity
from ibwire.connections.opcode_tables import (
    IS_ACKNOWLEDGE,
    IS_ANSWERED,
    IS_END,
    IS_FULL,
    IS_READ,
    IS_RESPONSE,
    IS_START,
    REFUSES,
    VERB_OF,
    VERBS,
)
from ibwire.connections.packets import Rows
from ibwire.connections.regular_changes import (
    CompletedLists,
    Continued,
    Opened,
    SideLists,
    continue_messages,
    count_completed,
    count_credits,
    count_outstanding,
    count_sides,
    disturbed,
    drop_messages,
    expect_responses,
    is_usable,
    known,
    note_last,
    open_messages,
    take_requests,
    take_responses,
    whole_messages,
)
from ibwire.connections.retransmissions import NO_SKIP_NS
from ibwire.connections.runs import Runs
from ibwire.connections.states import RequesterInput
from ibwire.connections.steady import LONGEST, REACH
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import HALF, MASK, MODULUS
from ibwire_layers.syndrome import INVALID_CREDITS

FEWEST = 256
"""From this many packets on arrays are faster than single packets."""
NO_VERB = 255
"""In place of the verb of a message."""
_VERB_NUMBER = {"": NO_VERB, **{verb: number for number, verb in enumerate(VERBS)}}
_FAR = 1 << 25
"""More PSNs than lie between those of packets that are compared."""

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def advance(
    trackers: Sequence[ConnectionTracker],
    rows: Rows,
    direction: npt.NDArray[np.uint8],
    starts: Index,
    ends: Index,
) -> Index:
    """Take the regular packets at the beginning of each connection's; returns how many.

    rows: of one connection after the other. direction: (n,) which end sent each. starts, ends:
    where the packets of each tracker are. All trackers have the same observer: none, or one that
    takes runs of many connections.
    """
    taken = np.zeros(len(trackers), np.int64)
    chosen = np.flatnonzero([is_usable(each) for each in trackers])
    counts = (ends - starts)[chosen]
    if int(counts.sum()) < FEWEST:
        return taken
    begin = np.cumsum(counts) - counts
    at = np.arange(int(counts.sum())) + np.repeat(starts[chosen] - begin, counts)
    packets = Packets(rows.take(at), direction[at], counts)
    used = [trackers[each] for each in chosen.tolist()]
    states = States([each.connection for each in used], used)
    mtu, odd, is_early = plain(packets, states.mtu)
    odd |= is_early
    sides = Sides(packets, states)
    odd |= sides.odd()
    exchanges = Exchanges(packets, states, mtu)
    odd |= exchanges.odd()
    kept = packets.regular(odd)
    observer = states.trackers[0].runs_observer
    if observer is not None and kept.any():
        runs = exchanges.runs(mtu, kept)
        alone = observer.alone(runs)
        if alone.any():
            odd[np.flatnonzero(kept)[alone]] = True
            before, kept = kept, packets.regular(odd)
            runs = runs.kept(kept[before])
        observer.runs(runs)
        sides.report(kept)
    if not kept.any():
        return taken
    taken[chosen] = np.bincount(packets.connection[kept], minlength=len(chosen))
    _learn_mtus(packets, states, mtu, kept)
    sides.count(kept)
    exchanges.follow(kept)
    return taken


class Packets:
    """Packets of several connections, in order of connections and then of time.

    counts: (connections,) how many each has.
    """

    def __init__(self, rows: Rows, direction: npt.NDArray[np.uint8], counts: Index) -> None:
        self.rows = rows
        self.count = len(rows)
        self.connections = len(counts)
        self.connection = np.repeat(np.arange(len(counts)), counts)
        self.starts = np.cumsum(counts) - counts
        self.ends = self.starts + counts
        self.direction = direction.astype(np.int64)
        self.opcode = np.ascontiguousarray(rows.opcode)
        self.size = rows.size.astype(np.int64)
        self.dma_len = rows.dma_len.astype(np.int64)
        self.time_ns = np.ascontiguousarray(rows.time_ns)
        self.is_response: Flags = IS_RESPONSE[self.opcode]
        self.is_cnp: Flags = self.opcode == OpCode.CNP
        self.is_request = ~self.is_response & ~self.is_cnp

    def by_end(self, end: Index) -> Index:
        """(n,) positions in order of connections, then of these ends, then of time."""
        other = end == 1
        before = np.cumsum(other)
        before_start = (before - other)[self.starts]
        others = before - other - before_start[self.connection]
        total = before[self.ends - 1] - before_start
        at = np.arange(self.count)
        first_of_other = (self.ends - total)[self.connection]
        order = np.empty(self.count, np.int64)
        order[np.where(other, first_of_other + others, at - others)] = at
        return order

    def first_of_side(self, side: Index) -> Index:
        """(n,) position of the first packet of each of these sides."""
        sides = 2 * self.connection + self.direction
        first = np.full(2 * self.connections, self.count, np.int64)
        keys, places = np.unique(sides, return_index=True)
        first[keys] = places
        found: Index = first[side]
        return found

    def regular(self, odd: Flags) -> Flags:
        """(n,) which packets are before the first odd one of their connection."""
        at = np.flatnonzero(odd)
        connection, first = np.unique(self.connection[at], return_index=True)
        stop = self.ends.copy()
        stop[connection] = at[first]
        return np.arange(self.count) < stop[self.connection]


class States:
    """What is known of connections before their packets, as arrays.

    connections: nothing is known of them yet. trackers: what follows them; none, if nothing will
    follow after these packets. fresh: a tracker that has seen nothing, for all of them.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        trackers: Sequence[ConnectionTracker] = (),
        *,
        fresh: RequestTracker | None = None,
    ) -> None:
        self.connections, self.trackers = connections, trackers
        self.exchanges = 2 * len(connections)
        self.requests = [each for tracker in trackers for each in tracker.requests]
        """By exchange."""
        if fresh is not None:
            self.requests = [fresh] * self.exchanges
        self.identities: list[Identity] = []
        self.directions: list[DirectionCounts] = []
        """By side; so are the identities. Both are needed with trackers only."""
        if trackers:
            self.identities = [each for one in connections for each in one.identities]
            self.directions = [each for one in connections for each in one.directions]
            self._read(connections)
        else:
            self._begin(len(connections))

    def _begin(self, connections: int) -> None:
        self.mtu = np.zeros(connections, np.int64)
        exchanges = self.exchanges
        self.high = np.full(exchanges, -1, np.int64)
        self.last_ns = self.next = np.zeros(exchanges, np.int64)
        self.acked = np.full(exchanges, -1, np.int64)
        self.is_new = self.is_whole = np.ones(exchanges, np.bool_)
        self.is_negotiated = self.is_broken = np.zeros(exchanges, np.bool_)
        self.verb = np.full(exchanges, NO_VERB, np.int64)
        self.waiting = np.zeros((0, 3), np.int64)

    def _read(self, connections: Sequence[Connection]) -> None:
        requests = self.requests
        self.mtu = np.array([each.mtu or 0 for each in connections], np.int64)
        self.high = np.array([each.high for each in self.identities], np.int64)
        """(sides,) newest IP identification; -1 before the first."""
        self.last_ns = np.array([each.last_ns or 0 for each in self.directions], np.int64)
        """(sides,)"""
        before = known(requests)
        self.is_new = np.array(before.is_new, np.bool_)
        """(exchanges,) whether no request has been seen; so are the following."""
        self.next = np.array(before.next, np.int64)
        self.acked = np.array(before.acked, np.int64)
        self.is_negotiated = np.array(before.is_negotiated, np.bool_)
        """Whether a handshake has named the PSN of a first request."""
        self.is_whole = np.array(before.is_whole, np.bool_)
        """Whether the newest open message has all of its requests."""
        self.verb = np.array([_VERB_NUMBER[each] for each in before.verb], np.int64)
        """Of that message."""
        self.is_broken = np.array(before.is_broken, np.bool_)
        self.waiting = np.array(before.waiting, np.int64).reshape(-1, 3)
        """(READs and atomics, 3) exchange, PSN of the next response, and how many are missing."""


def plain(packets: Packets, known_mtu: Index) -> tuple[Index, Flags, Flags]:
    """Path MTU of each connection, 0 where it is not known, and which packets are odd.

    The third is which READs come before the path MTU is known, that says how many PSNs they take.
    """
    rows, opcode = packets.rows, packets.opcode
    is_full, is_read = IS_FULL[opcode], IS_READ[opcode] & ~IS_FULL[opcode]
    full = np.flatnonzero(is_full)
    mtu = known_mtu.copy()
    first_full = packets.ends.copy()
    connection, first = np.unique(packets.connection[full], return_index=True)
    first_full[connection] = full[first]
    unknown = connection[mtu[connection] == 0]
    shown = packets.size[first_full[unknown]]
    mtu[unknown] = np.where(are_among(shown, MTUS), shown, 0)
    of_packet = mtu[packets.connection]
    odd = rows.damaged | (packets.is_response & (rows.syndrome >= REFUSES))
    odd |= is_full & (packets.size != of_packet)
    odd |= is_read & (packets.dma_len > LONGEST)
    is_early: Flags = (known_mtu == 0)[packets.connection]
    is_early &= np.arange(packets.count) < first_full[packets.connection]
    is_early &= is_read & (packets.dma_len > MTUS[0])
    return mtu, odd, is_early


def _learn_mtus(packets: Packets, states: States, mtu: Index, kept: Flags) -> None:
    """Record the path MTUs that the packets show."""
    shows = kept & IS_FULL[packets.opcode] & (states.mtu == 0)[packets.connection]
    for each in _distinct(packets.connection[shows]):
        states.trackers[each].learn_mtu(int(mtu[each]))


class Sides:
    """The packets by the ends that sent them: IP identifications, and what every packet counts."""

    def __init__(self, packets: Packets, states: States) -> None:
        self._packets, self._states = packets, states
        self._order = order = packets.by_end(packets.direction)
        self._side = side = (2 * packets.connection + packets.direction)[order]
        self._ip_id = packets.rows.ip_id[order].astype(np.int64)
        is_first = np.diff(side, prepend=-1) != 0
        self._is_first = is_first
        before = np.concatenate([[0], self._ip_id[:-1]])
        high = states.high[side]
        before[is_first] = np.where(high < 0, self._ip_id, high)[is_first]
        self._step = self._ip_id - before & 0xFFFF
        self._is_very_first = is_first & (high < 0)

    def odd(self) -> Flags:
        """(n,) packets whose IP identification is neither ahead nor the same as all others."""
        step = self._step
        odd = step > 0x10000 - REORDER_IDS
        # The step of the very first packet is none; the second decides.
        decides = self._is_first & ~self._is_very_first
        decides[1:] |= self._is_very_first[:-1] & ~self._is_first[1:]
        deciding = np.maximum.accumulate(np.where(decides, np.arange(len(step)), 0))
        odd |= ((step == 0) != (step[deciding] == 0)) & ~self._is_very_first
        found = np.empty(len(odd), np.bool_)
        found[self._order] = odd
        return found

    def counted(self, kept: Flags) -> SideCounts:
        """What the packets that are kept count."""
        packets, states = self._packets, self._states
        here = np.flatnonzero(kept[self._order])
        at, side = self._order[here], self._side[here]
        step, ip_id = self._step[here], self._ip_id[here]
        groups = Groups(side)
        rows, times = packets.rows, packets.time_ns[at]
        is_first = np.zeros(len(here), np.bool_)
        is_first[groups.starts] = True
        before = np.where(is_first, states.last_ns[side], np.concatenate([[0], times[:-1]]))
        skipped = np.maximum(step - 1, 0) * (ip_id >= 0)
        soon = skipped * (times - before < NO_SKIP_NS)
        moved = np.maximum.accumulate(np.where(step > 0, np.arange(len(step)), -1))[groups.ends - 1]
        return SideCounts(
            groups,
            ip_id=ip_id,
            icrc=rows.icrc[at],
            bytes=groups.add(rows.length[at].astype(np.int64)),
            payload_bytes=groups.add(packets.size[at]),
            marked=groups.add(rows.marked[at].astype(np.int64)),
            cnps=groups.add(packets.is_cnp[at].astype(np.int64)),
            first_ns=times[groups.starts],
            last_ns=times[groups.ends - 1],
            skipped_ids=groups.add(skipped),
            skipped_soon=groups.add(soon),
            has_moved=(moved >= groups.starts) & (ip_id[groups.starts] >= 0),
            counts_up=step[moved] < REORDER_IDS,
        )

    def count(self, kept: Flags) -> None:
        """Count the packets that are kept."""
        states, found = self._states, self.counted(kept)
        groups, ip_id = found.groups, found.ip_id
        lists = SideLists(
            groups.keys.tolist(),
            groups.starts.tolist(),
            groups.ends.tolist(),
            ip_id[groups.starts].tolist(),
            ip_id[groups.ends - 1].tolist(),
            *(each.tolist() for each in found[3:]),
        )
        count_sides(states.directions, states.identities, lists, ip_id, found.icrc)

    def report(self, kept: Flags) -> None:
        """Report marked packets and CNPs."""
        packets = self._packets
        for at in np.flatnonzero(kept & (packets.rows.marked | packets.is_cnp)).tolist():
            reports = self._states.trackers[int(packets.connection[at])].reports
            (packet,) = packets.rows.take(slice(at, at + 1)).packets()
            if packet.marked:
                reports.packet(FlowEventKind.ECN_CE, int(packets.direction[at]), packet)
            if packet.opcode == OpCode.CNP:
                reports.packet(FlowEventKind.CNP, int(packets.direction[at]), packet)


def _distinct(keys: Index) -> list[int]:
    """The different keys, ascending; `np.unique` would import numpy.ma for this."""
    found: list[int] = np.flatnonzero(np.bincount(keys)).tolist()
    return found


class Groups:
    """Where each key is among sorted ones."""

    def __init__(self, keys: Index) -> None:
        self.starts = np.flatnonzero(np.diff(keys, prepend=-1))
        self.ends = np.append(self.starts[1:], len(keys))[: len(self.starts)]
        self.keys = keys[self.starts]

    def add(self, values: Index) -> Index:
        """(keys,) the sum of each."""
        found: Index = np.add.reduceat(values, self.starts) if len(values) else values
        return found


class SideCounts(NamedTuple):
    """What packets count, by the ends that sent them.

    Arrays (sides,) in the order of the groups, whose keys are the sides; those of packets (n,).
    """

    groups: Groups
    ip_id: Index
    """Of the packets."""
    icrc: npt.NDArray[np.uint32]
    """Of the packets."""
    bytes: Index
    payload_bytes: Index
    marked: Index
    cnps: Index
    first_ns: Index
    last_ns: Index
    skipped_ids: Index
    skipped_soon: Index
    has_moved: Flags
    """Whether the IP identification is another one than before."""
    counts_up: Flags
    """Whether it does so by counting up."""


class Exchanges:
    """The packets by exchange: requests of one end and the responses to them.

    All arrays are in order of exchanges, and then of time.
    """

    def __init__(self, packets: Packets, states: States, mtu: Index) -> None:
        self._packets, self.states = packets, states
        end = np.where(packets.is_response, 1 - packets.direction, packets.direction)
        self._order = order = packets.by_end(end)
        self.key = key = (2 * packets.connection + end)[order]
        groups = Groups(key)
        self._first = np.zeros(states.exchanges, np.int64)
        """(exchanges,) position of the first packet."""
        self._first[groups.keys] = groups.starts
        self.opcode = packets.opcode[order]
        self._is_request = packets.is_request[order]
        self._is_response = packets.is_response[order]
        self._psn = packets.rows.psn[order].astype(np.int64)
        self.number = packets.rows.number[order]
        self.time_ns, self.size = packets.time_ns[order], packets.size[order]
        self.dma_len = packets.dma_len[order]
        self._begin()
        span = self._is_request.astype(np.int64)
        reads = np.flatnonzero(self._is_request & IS_READ[self.opcode])
        of_read = np.where(mtu == 0, MTUS[-1], mtu)[packets.connection[order[reads]]]
        span[reads] = np.maximum(-(-self.dma_len[reads] // of_read), 1)
        self.span = span
        sent = np.cumsum(span)
        sent -= (sent - span)[self._first[key]]
        self.after = self.next[key] + sent
        """PSN after the requests up to here."""
        self.expected = self.after - span
        """PSN of a request."""
        base = self.next[key]
        self.answer = base + (self._psn - base + HALF & MASK) - HALF
        """PSN of a response."""
        at = np.arange(len(key))
        self._request_before = self._before(self._is_request, at)
        self._response_before = self._before(self._is_response, at)

    def _begin(self) -> None:
        """The first requests of exchanges that begin here give them their PSN."""
        states, requests = self.states, np.flatnonzero(self._is_request)
        key, first = np.unique(self.key[requests], return_index=True)
        self._first_request = np.full(states.exchanges, len(self.key), np.int64)
        self._first_request[key] = requests[first]
        new = np.flatnonzero(states.is_new & (self._first_request < len(self.key)))
        self.next, self.acked = states.next.copy(), states.acked.copy()
        self.next[new] = self._psn[self._first_request[new]] + MODULUS
        self.acked[new] = self.next[new] - 1

    def _before(self, chosen: Flags, at: Index) -> Index:
        """(n,) position of the chosen packet before each in its exchange; -1 without one."""
        last = np.maximum.accumulate(np.where(chosen, at, -1))
        before = np.concatenate([[-1], last[:-1]])
        return np.where(before >= self._first[self.key], before, -1)

    def odd(self) -> Flags:
        """(n,) in the order of the packets: which are not the next ones in sequence."""
        odd = self._is_request & self._odd_requests()
        odd |= self._is_response & self._odd_responses()
        found = np.empty(len(odd), np.bool_)
        found[self._order] = odd
        return found

    def _odd_requests(self) -> Flags:
        key, before, verb = self.key, self._request_before, VERB_OF[self.opcode]
        odd: Flags = (self.expected & MASK) != self._psn
        odd |= self.expected - self.next[key] > REACH
        # The first request may have a negotiated PSN, or one after it.
        states = self.states
        odd |= (states.is_new & states.is_negotiated)[key]
        follows_whole = np.where(before >= 0, IS_END[self.opcode[before]], states.is_whole[key])
        same_verb = np.where(before >= 0, verb[before], states.verb[key]) == verb
        start = IS_START[self.opcode]
        odd |= (start != follows_whole) | (~start & ~same_verb)
        return odd

    def _odd_responses(self) -> Flags:
        key, before, answer = self.key, self._response_before, self.answer
        odd: Flags = answer <= np.where(before >= 0, answer[before], self.acked[key])
        odd |= answer >= self.after
        odd |= self.states.is_new[key] & (np.arange(len(key)) < self._first_request[key])
        is_answer = self._is_response & ~IS_ACKNOWLEDGE[self.opcode]
        wanted = _Wanted(self.states, key, self.expected, self.span, self._asked())
        given = np.cumsum(is_answer)
        given -= (given - is_answer)[self._first[key]]
        odd |= is_answer & (wanted.psn(key, given - 1) != answer)
        # No ACK acknowledges beyond a READ that is not answered in full.
        following = wanted.psn(key, given)
        odd |= (following >= 0) & (following <= answer)
        # A response after a message that was left unfinished completes that as well.
        odd |= self.states.is_broken[key]
        return odd

    def _asked(self) -> Index:
        """Positions of READs and atomics."""
        return np.flatnonzero(self._is_request & IS_ANSWERED[self.opcode])

    def runs(self, mtu: Index, kept: Flags) -> Runs:
        """The packets that are kept, for an observer.

        mtu: (connections,) path MTU, 0 where it is not known.
        """
        packets, states = self._packets, self.states
        requests, responses = self.chosen(kept)
        is_active = np.zeros(states.exchanges, np.bool_)
        is_active[self.key[requests]] = is_active[self.key[responses]] = True
        active = np.flatnonzero(is_active)
        place, position = np.cumsum(is_active) - 1, np.cumsum(kept) - 1
        return Runs(
            connections=states.connections,
            mtu=mtu,
            rows=packets.rows.take(kept),
            direction=packets.direction[kept].astype(np.uint8),
            connection=packets.connection[kept],
            trackers=[states.requests[each] for each in active.tolist()],
            owner=active >> 1,
            next=self.next[active],
            requests=position[self._order[requests]],
            request_key=place[self.key[requests]],
            psn=self.expected[requests],
            span=self.span[requests],
            responses=position[self._order[responses]],
            response_key=place[self.key[responses]],
            answers=self.answer[responses],
        )

    def chosen(self, kept: Flags) -> tuple[Index, Index]:
        """Positions of the requests and of the responses among these packets."""
        here = kept[self._order]
        return (
            np.flatnonzero(here & self._is_request),
            np.flatnonzero(here & self._is_response),
        )

    def follow(self, kept: Flags) -> None:
        """Change the trackers by the packets that are kept."""
        requests, responses = self.chosen(kept)
        trackers = self.states.requests
        for key in _distinct(self.key[requests[self.states.is_new[self.key[requests]]]]):
            _start(trackers[key], int(self.next[key]))
        messages = Messages(self, requests, responses)
        if len(requests):
            self._take_requests(requests)
            self.count_requests(requests)
        if len(responses):
            self._take_responses(responses)
            self.count_credits(responses)
        self._note_last(np.sort(np.concatenate([requests, responses])))
        groups = Groups(self.key[responses])
        answers = self.answer[responses]
        changed = disturbed(
            trackers,
            groups.keys.tolist(),
            groups.starts.tolist(),
            groups.ends.tolist(),
            answers,
        )
        messages.complete()
        for tracker, answer in changed:
            tracker.note_answered(answer)

    def _take_requests(self, requests: Index) -> None:
        groups = Groups(self.key[requests])
        rows = self._packets.rows.take(self._order[requests])
        psn = self.expected[requests]
        take_requests(
            self.states.requests,
            groups.keys.tolist(),
            groups.starts.tolist(),
            groups.ends.tolist(),
            psn[groups.starts].tolist(),
            psn[groups.ends - 1].tolist(),
            self.after[requests[groups.ends - 1]].tolist(),
            psn,
            rows,
        )

    def count_requests(self, requests: Index, is_early: Flags | None = None) -> None:
        """Count what these requests show: PSNs outstanding, and messages by verbs.

        is_early: (n,) in the order of the packets, which READs count as one PSN.
        """
        directions = self.states.directions
        keys, outstanding = self.outstanding(requests, is_early)
        count_outstanding(directions, keys.tolist(), outstanding.tolist())
        for each, verb, count in zip(
            *(each.tolist() for each in self.verbs(requests)), strict=True
        ):
            directions[each].count_message(VERBS[verb], count)

    def outstanding(self, requests: Index, is_early: Flags | None = None) -> tuple[Index, Index]:
        """Exchanges of these requests, and the most PSNs outstanding in each.

        is_early: as for `count_requests`.
        """
        key = self.key[requests]
        groups, before = Groups(key), self._response_before[requests]
        acked = np.where(before >= 0, self.answer[before], self.acked[key])
        after = self.after[requests]
        if is_early is not None:
            early = is_early[self._order[requests]]
            after = np.where(early, self.expected[requests] + 1, after)
        return groups.keys, np.maximum.reduceat(after - acked, groups.starts) - 1

    def verbs(self, requests: Index) -> tuple[Index, Index, Index]:
        """Exchanges, verbs and counts of the messages that end with these requests.

        In the order in which the verbs appear.
        """
        ends = requests[IS_END[self.opcode[requests]]]
        codes, first, times = np.unique(
            self.key[ends] * len(VERBS) + VERB_OF[self.opcode[ends]],
            return_index=True,
            return_counts=True,
        )
        order = np.argsort(first)
        codes = codes[order]
        return codes // len(VERBS), codes % len(VERBS), times[order]

    def _take_responses(self, responses: Index) -> None:
        groups = Groups(self.key[responses])
        rows = self._packets.rows.take(self._order[responses])
        answers = self.answer[responses]
        take_responses(
            self.states.requests,
            groups.keys.tolist(),
            groups.starts.tolist(),
            groups.ends.tolist(),
            answers[groups.starts].tolist(),
            answers[groups.ends - 1].tolist(),
            answers,
            rows,
        )

    def count_credits(self, responses: Index) -> None:
        """Count the credits that these responses give."""
        keys, low, high = (each.tolist() for each in self.credits(responses))
        count_credits(self.states.directions, keys, low, high)

    def credits(self, responses: Index) -> tuple[Index, Index, Index]:
        """Exchanges of these responses, and the lowest and highest credit code in each."""
        syndrome = self._packets.rows.syndrome[self._order[responses]].astype(np.int64)
        gives = np.flatnonzero((syndrome >= 0) & (syndrome < INVALID_CREDITS))
        if not len(gives):
            return gives, gives, gives
        groups = Groups(self.key[responses[gives]])
        lowest = np.minimum.reduceat(syndrome[gives], groups.starts)
        highest = np.maximum.reduceat(syndrome[gives], groups.starts)
        return groups.keys, lowest, highest

    def _note_last(self, packets: Index) -> None:
        """When the last packets were."""
        if not len(packets):
            return
        groups = Groups(self.key[packets])
        last = packets[groups.ends - 1]
        files = self._packets.rows.file[self._order[last]]
        note_last(
            self.states.requests,
            groups.keys.tolist(),
            self.time_ns[last].tolist(),
            files.tolist(),
            self.number[last].tolist(),
            (groups.ends - groups.starts).tolist(),
        )

    def without_ids(self, by: Index) -> Index:
        """Sides of these responses, one for each, as far as it is not known what those sent before.

        That is the case before the first packet of a responder.
        """
        at = self._order[by]
        side = self.key[by] ^ 1
        is_first = self._packets.rows.ip_id[at] < 0
        is_first |= at == self._packets.first_of_side(side)
        found: Index = side[(self.states.high[side] < 0) & is_first]
        return found


def _start(tracker: RequestTracker, psn: int) -> None:
    """The first request of an end has this PSN."""
    tracker.start, tracker.acked = psn, psn - 1
    tracker.move_requester(RequesterInput.FIRST)


class _Wanted:
    """PSNs of all responses that READs and atomics wait for, in order.

    asked: positions of those that are new; key, psn, span: of every packet.
    """

    def __init__(
        self,
        states: States,
        key: Index,
        psn: Index,
        span: Index,
        asked: Index,
    ) -> None:
        before = states.waiting
        keys = np.concatenate([before[:, 0], key[asked]])
        order = np.argsort(keys, kind="stable")
        count = np.concatenate([before[:, 2], span[asked]])[order]
        self._first = np.concatenate([before[:, 1], psn[asked]])[order]
        self._end = np.cumsum(count)
        self._begin = self._end - count
        total = np.bincount(keys[order], count, states.exchanges).astype(np.int64)
        self._total, self._base = total, np.cumsum(total) - total

    def psn(self, key: Index, index: Index) -> Index:
        """(n,) PSN of these of an exchange, from 0; -1 beyond the last."""
        found = np.full(len(key), -1, np.int64)
        at = np.flatnonzero((index >= 0) & (index < self._total[key]))
        place = self._base[key[at]] + index[at]
        message = np.searchsorted(self._end, place, side="right")
        found[at] = self._first[message] + place - self._begin[message]
        return found


class MessageCounts(NamedTuple):
    """What completed messages count, by the ends that requested them.

    Arrays (exchanges,) in the order of the groups, whose keys are the exchanges.
    """

    groups: Groups
    """Of the messages."""
    coalesced: Index
    acks: Index
    size: Index
    lowest_ns: Index
    """Of the latencies; so is the next."""
    highest_ns: Index
    bucket_key: Index
    """(buckets,) exchange of each bucket of a histogram of latencies."""
    bucket: Index
    """(buckets,) its number in the histogram."""
    times: Index
    """(buckets,) messages in it."""
    passed: Index
    """Positions of the responses to later messages, one for each message that is `coalesced`."""


class Messages:
    """The messages that the packets continue, begin and complete.

    requests, responses: positions of those that are kept.
    """

    def __init__(self, exchanges: Exchanges, requests: Index, responses: Index) -> None:
        self._all, self._requests, self._responses = exchanges, requests, responses
        x = exchanges
        self._sent = np.cumsum(x.size[requests])
        self.starts = requests[IS_START[x.opcode[requests]]]
        """Positions of their first requests."""
        self._groups = Groups(x.key[requests])
        if len(requests):
            self._continue()
        ends = requests[IS_END[x.opcode[requests]]]
        at = np.searchsorted(ends, self.starts)
        end = ends[np.minimum(at, len(ends) - 1)] if len(ends) else self.starts
        self._is_whole = (at < len(ends)) & (x.key[end] == x.key[self.starts])
        groups = self._groups
        newest = np.full(x.states.exchanges, -1, np.int64)
        newest[groups.keys] = requests[groups.ends - 1]
        self._ends = np.where(self._is_whole, end, newest[x.key[self.starts]])
        """Position of the last request of each that starts here."""
        self.last = x.expected[self._ends] + x.span[self._ends] - 1
        """PSN that must be acknowledged for each."""
        first, last = np.searchsorted(requests, [self.starts, self._ends])
        size = self._sent[last] - self._sent[first] + x.size[self.starts] if len(first) else first
        is_read = IS_READ[x.opcode[self.starts]]
        self._size = np.where(is_read, x.dma_len[self.starts], size)

    def _continue(self) -> None:
        """Add requests to the newest open messages."""
        x, requests, groups = self._all, self._requests, self._groups
        goes_on = np.flatnonzero(~IS_START[x.opcode[requests[groups.starts]]])
        if not len(goes_on):
            return
        begin, end = groups.starts[goes_on], groups.ends[goes_on]
        # Those before the next message of the exchange, if one starts there.
        starts = np.append(np.searchsorted(requests, self.starts), len(requests))
        end = np.minimum(end, starts[np.searchsorted(self.starts, requests[begin])])
        at = requests[end - 1]
        continue_messages(
            x.states.requests,
            Continued(
                groups.keys[goes_on].tolist(),
                (self._sent[end - 1] - self._sent[begin] + x.size[requests[begin]]).tolist(),
                x.expected[at].tolist(),
                x.number[at].tolist(),
                x.time_ns[at].tolist(),
                IS_END[x.opcode[at]].tolist(),
            ),
        )

    def complete(self) -> None:
        """Complete what is acknowledged, and keep what is not."""
        x, trackers = self._all, self._all.states.requests
        active = _distinct(x.key[np.concatenate([self._requests, self._responses])])
        before = np.array(whole_messages(trackers, active), np.int64).reshape(-1, 4)
        new = np.flatnonzero(self._is_whole)
        starts = self.starts[new]
        key = np.concatenate([before[:, 0], x.key[starts]])
        last = np.concatenate([before[:, 1], self.last[new]])
        by, is_done = self._answered(key, last)
        first_ns = np.concatenate([before[:, 2], x.time_ns[starts]])
        size = np.concatenate([before[:, 3], self._size[new]])
        self._count(self._counted(is_done, key, last, by, first_ns, size))
        done = np.bincount(before[is_done[: len(before)], 0])
        drop_messages(trackers, done.tolist())
        expect_responses(trackers, _distinct(x.key[self._responses]))
        is_open = np.ones(len(self.starts), np.bool_)
        is_open[new] = ~is_done[len(before) :]
        self._open(np.flatnonzero(is_open))
        for number in _distinct(x.key[self._requests]):
            trackers[number].limit()

    def _answered(self, key: Index, last: Index) -> tuple[Index, Flags]:
        """(n,) position of the first response that acknowledges these PSNs, and where one does."""
        x, responses = self._all, self._responses
        if not len(responses):
            return np.zeros(len(key), np.int64), np.zeros(len(key), np.bool_)
        answers = _ordered(x.key[responses], x.answer[responses] - x.next[x.key[responses]])
        at = np.searchsorted(answers, _ordered(key, last - x.next[key]))
        by = responses[np.minimum(at, len(responses) - 1)]
        return by, (at < len(responses)) & (x.key[by] == key)

    def answered(self) -> MessageCounts:
        """What is acknowledged, where nothing was open before."""
        x, new = self._all, np.flatnonzero(self._is_whole)
        starts, last = self.starts[new], self.last[new]
        by, is_done = self._answered(x.key[starts], last)
        return self._counted(is_done, x.key[starts], last, by, x.time_ns[starts], self._size[new])

    def _counted(
        self, is_done: Flags, key: Index, last: Index, by: Index, first_ns: Index, size: Index
    ) -> MessageCounts:
        """What completed messages count.

        is_done: which of these are. by: position of the response. first_ns: of the first request.
        """
        done = np.flatnonzero(is_done)
        done = done[np.argsort(key[done], kind="stable")]
        key, last, by, first_ns, size = (each[done] for each in (key, last, by, first_ns, size))
        x = self._all
        groups = Groups(key)
        is_passed = x.answer[by] != last
        latency = x.time_ns[by] - first_ns
        codes, times = np.unique(key << _BUCKETS | buckets(latency), return_counts=True)
        return MessageCounts(
            groups,
            coalesced=groups.add(is_passed.astype(np.int64)),
            acks=groups.add((np.diff(by, prepend=-1) != 0).astype(np.int64)),
            size=groups.add(size),
            lowest_ns=np.minimum.reduceat(latency, groups.starts) if len(done) else latency,
            highest_ns=np.maximum.reduceat(latency, groups.starts) if len(done) else latency,
            bucket_key=codes >> _BUCKETS,
            bucket=codes & (1 << _BUCKETS) - 1,
            times=times,
            passed=by[is_passed],
        )

    def _count(self, found: MessageCounts) -> None:
        """Count completed messages."""
        x, groups = self._all, found.groups
        count_completed(
            x.states.directions,
            CompletedLists(
                groups.keys.tolist(),
                (groups.ends - groups.starts).tolist(),
                found.coalesced.tolist(),
                found.acks.tolist(),
                found.size.tolist(),
                found.lowest_ns.tolist(),
                found.highest_ns.tolist(),
                np.searchsorted(found.bucket_key, groups.keys, side="right").tolist(),
                found.bucket.tolist(),
                found.times.tolist(),
                x.without_ids(found.passed).tolist(),
            ),
        )

    def _open(self, index: Index) -> None:
        """Keep those that start here open."""
        x, start, end = self._all, self.starts[index], self._ends[index]
        open_messages(
            x.states.requests,
            Opened(
                x.key[start].tolist(),
                x.opcode[start].tolist(),
                x.expected[start].tolist(),
                self.last[index].tolist(),
                self._is_whole[index].tolist(),
                self._size[index].tolist(),
                x.dma_len[start].tolist(),
                x.number[start].tolist(),
                x.time_ns[start].tolist(),
                x.number[end].tolist(),
                x.time_ns[end].tolist(),
            ),
        )


_BUCKETS = 16
"""Bits for the number of a bucket of a histogram."""


def _ordered(key: Index, psn: Index) -> Index:
    """(n,) numbers in order of exchanges, then of PSNs, which count from one of the exchange."""
    ordered: Index = key * (4 * _FAR) + np.clip(psn, -_FAR, _FAR) + _FAR
    return ordered
