"""The requests of one end, and responses to them, that were not seen: late, or lost.

A PSN that was passed without being seen is a gap. Once it is retransmitted, the gap is
unsettled: what was sent the first time may still arrive, and counts as lost when many packets
have come after it. What is acknowledged although it was never seen is lost as well.
"""

from __future__ import annotations

from typing import Final

from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.gaps import Gap, Unsettled, cut, joined, within
from ibwire.connections.identity import KEEP
from ibwire.connections.open_message import OpenMessage
from ibwire.connections.packets import TransportPacket
from ibwire.connections.reporting import Reporter
from ibwire_layers.psn import MASK

GAPS: Final = 256
"""Gaps that may be open."""


class Unseen:
    """What was not seen of the requests of one end and of the responses to them.

    end: which end sends the requests.
    """

    __slots__ = ("_end", "_reports", "_unsettled", "requests", "responses")

    def __init__(self, reports: Reporter, end: int) -> None:
        self._reports = reports
        self._end = end
        self.requests: list[Gap] = []
        """Requests that were not seen, and not retransmitted since."""
        self.responses: list[Gap] = []
        """READ responses that were not seen, and not retransmitted since."""
        self._unsettled: Unsettled | None = None
        """Made when it is asked for: most connections never retransmit."""

    @property
    def unsettled(self) -> Unsettled:
        """What was missing before a retransmission."""
        if self._unsettled is None:
            self._unsettled = Unsettled()
        return self._unsettled

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was missing before a retransmission may still arrive."""
        return self._unsettled is None or self._unsettled.is_empty

    def join(self, before: Unseen) -> None:
        """Take the place of what was not seen in an earlier part of the connection."""
        self._reports, self._end = before._reports, before._end

    def is_unseen(self, direction: int, psn: int) -> bool:
        """Whether no packet of this PSN has been seen, or not the one that was sent first."""
        if direction == self._end:
            return any(within(each, psn) for each in (self.unsettled.requests, self.requests))
        return any(within(each, psn) for each in (self.unsettled.responses, self.responses))

    def gap_of(self, direction: int, psn: int) -> Gap | None:
        """What a packet that arrives late was missing in."""
        unsettled = self.unsettled
        gaps = (
            (unsettled.skipped, unsettled.requests, self.requests)
            if direction == self._end
            else (unsettled.responses, self.responses)
        )
        return next((gap for each in gaps if (gap := within(each, psn))), None)

    def was_left_out(self, psn: int) -> bool:
        """Whether the newest packet of this PSN that was sent, as far as known, was not seen."""
        return any(within(each, psn) for each in (self.unsettled.skipped, self.requests))

    def lacks_responses(self, message: OpenMessage) -> bool:
        """Whether responses of a READ are missing before the newest."""
        return any(gap.first <= message.last and message.first < gap.end for gap in self.responses)

    # What is not seen.

    def miss_requests(self, psn: int, end: int, packet: TransportPacket) -> None:
        """This packet has arrived instead of the requests `psn` to `end` - 1."""
        self.requests.append(Gap(psn, end, packet.number, packet.time_ns))

    def miss_responses(self, psn: int, end: int, packet: TransportPacket) -> None:
        """This packet has arrived instead of the responses `psn` to `end` - 1."""
        self.responses.append(Gap(psn, end, packet.number, packet.time_ns))

    def skip_requests(self, psn: int, end: int, packet: TransportPacket, packets: int) -> None:
        """Requests were left out where those around them were retransmitted."""
        gap = Gap(psn, end, packet.number, packet.time_ns, packets)
        self.unsettled.skipped.append(gap)

    def skip_responses(self, psn: int, end: int, packet: TransportPacket) -> None:
        """Responses were left out where those around them were retransmitted."""
        gap = Gap(psn, end, packet.number, packet.time_ns, end - psn)
        self.unsettled.responses.append(gap)

    # What arrives after all.

    def retransmit_request(self, psn: int, end: int) -> bool:
        """A request is retransmitted; returns whether it was not seen before."""
        return _retransmit(self.requests, self.unsettled.requests, psn, end)

    def retransmit_response(self, psn: int) -> bool:
        """A response is retransmitted; returns whether it was not seen before."""
        return _retransmit(self.responses, self.unsettled.responses, psn, psn + 1)

    def fill_request(self, psn: int, end: int) -> bool:
        """A missing request has arrived late; returns whether no other of its PSN was seen."""
        gaps = self.unsettled.skipped, self.unsettled.requests, self.requests
        if _fill(gaps, psn, end) is self.requests:
            return True
        # What is still missing of it is the packet that was sent before.
        return self.retransmit_request(psn, end)

    def pass_requests(self, psn: int, end: int) -> None:
        """No requests have the PSNs `psn` to `end` - 1: a READ reserves them."""
        gap = within(self.requests, psn) if psn < end else None
        if gap is not None:
            cut(self.requests, gap, first=psn, end=min(end, gap.end))

    def was_skipped(self, psn: int) -> bool:
        """Whether a request was left out where those around it were retransmitted."""
        return within(self.unsettled.skipped, psn) is not None

    def fill_response(self, psn: int) -> bool:
        """A response has arrived late; returns whether it had been missing."""
        return _fill((self.unsettled.responses, self.responses), psn, psn + 1) is not None

    # What is lost.

    def age(self, *, is_retransmitting: bool, packets: int = 1) -> bool:
        """Count packets since the last retransmission; what is missing after many is lost.

        Returns whether that is settled now.
        """
        unsettled = self.unsettled
        unsettled.age = 0 if is_retransmitting else unsettled.age + packets
        if unsettled.age <= KEEP:
            return False
        self._settle()
        return True

    def acknowledge(self, upto: int) -> None:
        """Requests up to this PSN are acknowledged: what was never seen of them is lost."""
        gaps = self.requests
        while gaps and gaps[0].first <= upto:
            gap = gaps[0]
            end = min(gap.end, upto + 1)
            self._lose(Gap(gap.first, end, gap.number, gap.time_ns, end - gap.first), self._end)
            cut(gaps, gap, first=gap.first, end=end)

    def abandon(self, message: OpenMessage) -> None:
        """The requester has the responses of a READ, although they were not seen."""
        for gap in self.responses[:]:
            if gap.first <= message.last:
                self.responses.remove(gap)
                self._lose_all(gap, 1 - self._end, Cause.NOT_CAPTURED)
        first, end = message.next_response, message.last + 1
        if first < end:
            gap = Gap(first, end, message.last_number, message.last_ns)
            self._lose_all(gap, 1 - self._end, Cause.NOT_CAPTURED)

    def limit(self) -> None:
        """Forget the oldest gaps, of which there may be any number."""
        if len(self.requests) <= GAPS and len(self.responses) <= GAPS:
            return
        for gaps, direction in self._open_gaps():
            while len(gaps) > GAPS:
                self._lose_all(gaps.pop(0), direction)

    def finish(self) -> None:
        """Nothing more arrives."""
        if not (self.requests or self.responses) and self.is_settled:
            return
        self._settle()
        for gaps, direction in self._open_gaps():
            for gap in gaps:
                self._lose_all(gap, direction, Cause.UNKNOWN)
            gaps.clear()

    def _open_gaps(self) -> tuple[tuple[list[Gap], int], ...]:
        """Gaps, and the direction of their packets."""
        return (self.requests, self._end), (self.responses, 1 - self._end)

    def _settle(self) -> None:
        """What had been missing before it was retransmitted was lost."""
        unsettled, self._unsettled = self.unsettled, None
        connection = self._reports.connection
        connection.directions[self._end].unseen_ids += len(unsettled.ip_ids)
        for gap in joined(unsettled.requests) + unsettled.skipped:
            self._lose(gap, self._end)
        for gap in joined(unsettled.responses):
            self._lose(gap, 1 - self._end)

    def _lose_all(self, gap: Gap, direction: int, cause: Cause | None = None) -> None:
        """Count a packet for each PSN of a gap as lost."""
        gap.packets = gap.end - gap.first
        self._lose(gap, direction, cause)

    def _lose(self, gap: Gap, direction: int, cause: Cause | None = None) -> None:
        """Count the packets of a gap as lost, except those that were seen damaged.

        cause: `NOT_CAPTURED` or `UNKNOWN`, where it may not be the network.
        """
        connection = self._reports.connection
        psn = gap.first & MASK
        span = gap.end - gap.first
        is_response = direction != self._end
        count = connection.count_lost(
            direction, psn=psn, count=gap.packets, span=span, are_responses=is_response
        )
        if count:
            self._reports.event(
                FlowEvent(
                    kind=FlowEventKind.LOST,
                    connection=connection.number,
                    direction=direction,
                    number=gap.number,
                    time_ns=gap.time_ns,
                    psn=psn,
                    last_psn=gap.end - 1 & MASK,
                    count=count,
                    cause=cause,
                    is_response=is_response,
                )
            )


def _retransmit(missing: list[Gap], unsettled: list[Gap], psn: int, end: int) -> bool:
    """Move one packet from the missing to the unsettled, if it was missing."""
    gap = within(missing, psn)
    if gap is None:
        return False
    cut(missing, gap, first=psn, end=end)
    unsettled.append(Gap(psn, end, gap.number, gap.time_ns, 1))
    return True


def _fill(gaps: tuple[list[Gap], ...], psn: int, end: int) -> list[Gap] | None:
    """Take a packet out of the first of these that it was missing in, and return that."""
    for each in gaps:
        gap = within(each, psn)
        if gap is not None:
            cut(each, gap, first=psn, end=end)
            return each
    return None
