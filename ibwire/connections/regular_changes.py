"""What regular packets change in the trackers of many connections, one after the other.

`short_runs` finds as arrays which packets are regular, and what they add up to. Here are its loops
over connections, with lists of plain numbers: in a compiled build they take a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.identity import KEEP, Identity
from ibwire.connections.opcode_sets import ANSWERED, READ, VERB
from ibwire.connections.open_message import OpenMessage
from ibwire.connections.packets import Rows
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import Service

_FOLLOWED = (Service.RC, Service.XRC)


def is_usable(tracker: ConnectionTracker) -> bool:
    """Whether the state of a connection fits into the arrays."""
    connection = tracker.connection
    if connection.service not in _FOLLOWED or tracker.first_packets is not None:
        return False
    for requests in tracker.requests:
        if not requests.is_regular or requests.damaged_next:
            return False
        if requests.next is None and requests.unrequested_next is not None:
            return False
    answers = connection.damaged.answers
    return not answers[0] and not answers[1]


class Known(NamedTuple):
    """What is known of requests before their packets, by exchange."""

    is_new: list[bool]
    next: list[int]
    acked: list[int]
    is_negotiated: list[bool]
    is_whole: list[bool]
    verb: list[str]
    """Of the newest open message; empty without one."""
    is_broken: list[bool]
    waiting: list[int]
    """Of each READ or atomic that waits for responses: exchange, PSN of the next one, and how many
    are missing."""


def known(requests: Sequence[RequestTracker]) -> Known:
    """What is known of these requests."""
    found = Known([], [], [], [], [], [], [], [])
    waiting = found.waiting
    for number, tracker in enumerate(requests):
        following, messages = tracker.next, tracker.messages
        found.is_new.append(following is None)
        found.next.append(following or 0)
        found.acked.append(tracker.acked)
        found.is_negotiated.append(bool(tracker.start_psns))
        found.is_broken.append(tracker.has_broken_message)
        if messages:
            found.is_whole.append(messages[-1].is_whole)
            found.verb.append(messages[-1].verb)
        else:
            found.is_whole.append(True)
            found.verb.append("")
        for each in messages:
            if 0 <= each.next_response <= each.last:
                waiting += [number, each.next_response, each.last + 1 - each.next_response]
    return found


class SideLists(NamedTuple):
    """What the packets of each end count: `short_runs.SideCounts` as lists."""

    keys: list[int]
    starts: list[int]
    ends: list[int]
    first_id: list[int]
    """IP identification of the first packet."""
    last_id: list[int]
    bytes: list[int]
    payload_bytes: list[int]
    marked: list[int]
    cnps: list[int]
    first_ns: list[int]
    last_ns: list[int]
    skipped_ids: list[int]
    skipped_soon: list[int]
    has_moved: list[bool]
    counts_up: list[bool]


def count_sides(
    directions: Sequence[DirectionCounts],
    identities: Sequence[Identity],
    found: SideLists,
    ip_id: npt.NDArray[np.integer[Any]],
    icrc: npt.NDArray[np.uint32],
) -> None:
    """Count packets by the ends that sent them.

    ip_id, icrc: of the packets.
    """
    for place, key in enumerate(found.keys):
        counts = directions[key]
        start, end = found.starts[place], found.ends[place]
        counts.packets += end - start
        counts.bytes += found.bytes[place]
        counts.payload_bytes += found.payload_bytes[place]
        counts.marked += found.marked[place]
        directions[key ^ 1].cnps += found.cnps[place]
        if counts.first_ns is None:
            counts.first_ns = found.first_ns[place]
        counts.last_ns = found.last_ns[place]
        counts.skipped_ids += found.skipped_ids[place]
        counts.skipped_soon += found.skipped_soon[place]
        identity = identities[key]
        if found.first_id[place] >= 0:
            if identity.high < 0:
                identity.first = found.first_id[place]
            identity.high = found.last_id[place]
            if found.has_moved[place]:
                identity.counts_up = found.counts_up[place]
                ahead = end - start + found.skipped_ids[place]
                identity.remember(ip_id, icrc, start, end, last=identity.high, ahead=ahead)
            else:
                identity.remember(ip_id, icrc, end - 1, end, last=identity.high, ahead=0)


def take_requests(
    trackers: Sequence[RequestTracker],
    keys: list[int],
    starts: list[int],
    ends: list[int],
    first: list[int],
    last: list[int],
    following: list[int],
    psn: npt.NDArray[np.int64],
    rows: Rows,
) -> None:
    """Take the requests of exchanges: their places, first and last PSN, and the PSN after them.

    psn, rows: of the requests of all exchanges.
    """
    for place, key in enumerate(keys):
        tracker = trackers[key]
        tracker.next = following[place]
        tracker.recent_requests.add_places(
            psn, rows, starts[place], ends[place], first=first[place], last=last[place]
        )
        tracker.note_new_request()


def take_responses(
    trackers: Sequence[RequestTracker],
    keys: list[int],
    starts: list[int],
    ends: list[int],
    first: list[int],
    last: list[int],
    psn: npt.NDArray[np.int64],
    rows: Rows,
) -> None:
    """Take the responses of exchanges: their places, first and last PSN.

    psn, rows: of the responses of all exchanges.
    """
    for place, key in enumerate(keys):
        tracker = trackers[key]
        tracker.acked, tracker.attempts = last[place], 0
        tracker.recent_responses.add_places(
            psn, rows, starts[place], ends[place], first=first[place], last=last[place]
        )


def count_outstanding(
    directions: Sequence[DirectionCounts], keys: list[int], most: list[int]
) -> None:
    """Count the PSNs that were outstanding at most."""
    for place, key in enumerate(keys):
        counts = directions[key]
        if most[place] > counts.max_outstanding:
            counts.max_outstanding = most[place]


def count_credits(
    directions: Sequence[DirectionCounts], keys: list[int], low: list[int], high: list[int]
) -> None:
    """Count the lowest and the highest credits that were given."""
    for place, key in enumerate(keys):
        directions[key].note_credits(lowest=low[place], highest=high[place])


def note_last(
    trackers: Sequence[RequestTracker],
    keys: list[int],
    time_ns: list[int],
    files: list[int],
    numbers: list[int],
    counts: list[int],
) -> None:
    """When the last packets of exchanges were, and how many they are."""
    for place, key in enumerate(keys):
        tracker = trackers[key]
        tracker.last_ns, tracker.last_place = time_ns[place], (files[place], numbers[place])
        tracker.age_by(counts[place])


def disturbed(
    trackers: Sequence[RequestTracker],
    keys: list[int],
    starts: list[int],
    ends: list[int],
    answers: npt.NDArray[np.int64],
) -> list[tuple[RequestTracker, int]]:
    """Exchanges that are disturbed before these responses, and a PSN that one answers: the first
    from which on all is answered, or the last."""
    found = []
    for place, key in enumerate(keys):
        tracker = trackers[key]
        if tracker.disturbed_end:
            start, end = starts[place], ends[place]
            at = int(np.searchsorted(answers[start : end - 1], tracker.last_disturbed))
            found.append((tracker, int(answers[start + at])))
    return found


class Continued(NamedTuple):
    """Requests that continue the newest open message of an exchange, as lists."""

    keys: list[int]
    size: list[int]
    """Bytes that they add."""
    last: list[int]
    """PSN of the last of them."""
    number: list[int]
    time_ns: list[int]
    is_whole: list[bool]


def continue_messages(trackers: Sequence[RequestTracker], found: Continued) -> None:
    """Add requests to the newest open messages."""
    for place, key in enumerate(found.keys):
        message = trackers[key].messages[-1]
        message.size += found.size[place]
        message.last = found.last[place]
        message.last_number, message.last_ns = found.number[place], found.time_ns[place]
        message.is_whole = found.is_whole[place]


def whole_messages(trackers: Sequence[RequestTracker], keys: list[int]) -> list[int]:
    """Of each open message that is whole: its exchange, last PSN, time of its first packet, size.

    keys: the exchanges that are looked at.
    """
    found: list[int] = []
    for key in keys:
        for each in trackers[key].messages:
            if each.is_whole:
                found += [key, each.last, each.first_ns, each.size]
    return found


def drop_messages(trackers: Sequence[RequestTracker], counts: list[int]) -> None:
    """Drop the oldest open messages of each exchange, so many."""
    for key, count in enumerate(counts):
        if count:
            del trackers[key].messages[:count]


def expect_responses(trackers: Sequence[RequestTracker], keys: list[int]) -> None:
    """Set which response comes next, where READs and atomics are answered in part."""
    for key in keys:
        acked = trackers[key].acked
        for message in trackers[key].messages:
            if message.next_response >= 0 and message.first <= acked:
                message.next_response = acked + 1


class Opened(NamedTuple):
    """Messages that stay open, as lists."""

    keys: list[int]
    opcode: list[int]
    first: list[int]
    """PSN; so is the next."""
    last: list[int]
    is_whole: list[bool]
    size: list[int]
    dma_len: list[int]
    first_number: list[int]
    first_ns: list[int]
    last_number: list[int]
    last_ns: list[int]


def open_messages(trackers: Sequence[RequestTracker], found: Opened) -> None:
    """Append the messages that begin among these packets to those of their exchanges."""
    for place, key in enumerate(found.keys):
        tracker, code = trackers[key], found.opcode[place]
        message = OpenMessage(
            verb=VERB[code],
            first=found.first[place],
            last=found.last[place],
            is_whole=found.is_whole[place],
            size=found.size[place],
            first_number=found.first_number[place],
            first_ns=found.first_ns[place],
            last_number=found.last_number[place],
            last_ns=found.last_ns[place],
        )
        if code in ANSWERED:
            message.next_response = max(message.first, tracker.acked + 1)
        if code in READ:
            message.is_read = True
            message.dma_len = found.dma_len[place]
        tracker.messages.append(message)


class CompletedLists(NamedTuple):
    """What completed messages count: `short_runs.MessageCounts` as lists."""

    keys: list[int]
    messages: list[int]
    coalesced: list[int]
    acks: list[int]
    size: list[int]
    lowest_ns: list[int]
    highest_ns: list[int]
    bucket_end: list[int]
    """Where the buckets of the exchange end."""
    bucket: list[int]
    times: list[int]
    without_ids: list[int]
    """Sides of responses to later messages, as far as it is not known what these sent before."""


def count_completed(directions: Sequence[DirectionCounts], found: CompletedLists) -> None:
    """Count completed messages."""
    begin = 0
    for place, key in enumerate(found.keys):
        counts, end = directions[key], found.bucket_end[place]
        counts.completed += found.messages[place]
        counts.acked_messages += found.messages[place]
        counts.coalesced += found.coalesced[place]
        counts.acks += found.acks[place]
        counts.message_bytes += found.size[place]
        latencies = {found.bucket[at]: found.times[at] for at in range(begin, end)}
        counts.latency.add_buckets(latencies, found.lowest_ns[place], found.highest_ns[place])
        begin = end
    for each in found.without_ids:
        responder = directions[each]
        responder.skipped_ids += KEEP if responder.damaged else 1
