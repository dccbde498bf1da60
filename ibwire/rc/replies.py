"""Responses that wait to leave, and what is kept to answer a duplicate again.

Answers leave in the order of their PSNs: one that is asked for again takes its place
among those that wait, so that a requester which goes back gets them as it needs them.

Source: IBA 9.7.5.1.4; rxe_resp.c `duplicate_request`, qib_rc.c `qib_rc_rcv_error`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ibwire.rc.memory import ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire_layers.psn import MASK, distance


class Resource:
    """A request that was executed and has an answer of its own: kept for duplicates."""

    __slots__ = (
        "answered",
        "count",
        "form",
        "length",
        "narrowed",
        "original",
        "pd",
        "psn",
        "rkey",
        "va",
    )

    def __init__(self, packet: TransportPacket, count: int, pd: ProtectionDomain) -> None:
        self.form = packet.form
        self.psn = packet.psn
        self.count = count
        """PSNs of its answer."""
        self.va = packet.va
        self.rkey = packet.rkey
        self.length = 0
        self.original = 0
        self.answered = False
        """Whether the whole answer has left once."""
        self.pd = pd
        self.narrowed = 0
        """First position that a replay may still begin at, where replays narrow it."""


class Reply:
    """A response that waits: an acknowledgement, or the answer of a `Resource`."""

    __slots__ = ("first", "length", "msn", "position", "psn", "resource", "syndrome")

    def __init__(
        self, psn: int, msn: int, syndrome: int | None, resource: Resource | None = None
    ) -> None:
        self.psn = psn
        self.msn = msn
        """Messages that were completed when it was made: others may be before it leaves
        (reference/transport#msn)."""
        self.syndrome = syndrome
        """NAK or RNR NAK; `None` for an ACK with the credits of the moment it leaves."""
        self.resource = resource
        self.position = 0
        """Next response packet of a READ."""
        self.first = 0
        """The one that this answer began with."""
        self.length = 0 if resource is None else resource.length
        """Where it ends, in bytes of a READ: a duplicate may ask for less than the original."""


def put_back(replies: deque[Reply], answer: Reply) -> None:
    """Put an answer where its PSN belongs among those that wait, or join the one there."""
    for index, waiting in enumerate(replies):
        if waiting.resource is answer.resource:
            answer.length = waiting.length = max(answer.length, waiting.length)
            if answer.position < waiting.position:
                replies[index] = answer
            return
        if distance(waiting.psn, answer.psn) < 0:
            replies.insert(index, answer)
            return
    replies.append(answer)


Accepts = Callable[[Resource, int, int], bool]
"""Whether a part of a READ is answered again: the READ, a response packet, a byte to end before."""


def find_read(
    resources: Iterable[Resource], packet: TransportPacket, mtu: int, accepts: Accepts
) -> tuple[Resource, int, int] | None:
    """What a duplicate READ asks for again, if it lies inside one that is kept.

    Returns that READ, the response packet to begin with, and its byte to end before.
    """
    for resource in resources:
        position = (packet.psn - resource.psn) & MASK
        if resource.form is not packet.form or position >= resource.count:
            continue
        done = position * mtu
        if packet.rkey != resource.rkey or packet.va != resource.va + done:
            return None
        end = done + packet.dma_len
        if end > resource.length or not accepts(resource, position, end):
            return None
        return resource, position, end
    return None
